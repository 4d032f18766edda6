// Counts the instructions of an uncontended lock and unlock of a mutex, by single steps.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { WARM_UP = 40000, PAIRS = 2560 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long steps;

static void step(int signal) {
    (void)signal;
    steps++;
}

static void *nothing(void *argument) { return argument; }

static void take(int pairs) {
    for (int i = 0; i < pairs; i++) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
}

int main(void) {
    pthread_t thread;
    // The recording begins when there is a second thread.
    if (pthread_create(&thread, NULL, nothing, NULL) != 0) return 3;
    pthread_join(thread, NULL);
    // The first holds of a thread are recorded more often than later ones.
    take(WARM_UP);
    signal(SIGTRAP, step);
    __asm__ volatile("pushfq\n orq $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    alarm(100); // each instruction is a context switch to the recorder, which must not retry without limit
    take(PAIRS);
    __asm__ volatile("pushfq\n andq $~0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    printf("%lu\n", steps / PAIRS);
    return 0;
}
