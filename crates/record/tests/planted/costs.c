// Programs to measure the cost of a recorder: `costs mutex|read|threads|contended COUNT`. Prints the elapsed
// time and the CPU time of one operation, in ns.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile long shared;
static long count;

static double ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static void *locks(void *unused) {
    for (long i = 0; i < count; i++) {
        pthread_mutex_lock(&mutex);
        shared++;
        pthread_mutex_unlock(&mutex);
    }
    return unused;
}
static void reads(void) {
    int zeros = open("/dev/zero", O_RDONLY);
    char byte;
    for (long i = 0; i < count; i++)
        if (read(zeros, &byte, 1) != 1) exit(3);
}
static void *nothing(void *unused) { return unused; }
static void threads(void) {
    pthread_t one;
    for (long i = 0; i < count; i++)
        if (pthread_create(&one, NULL, nothing, NULL) != 0 || pthread_join(one, NULL) != 0) exit(4);
}
static void contended(void) {
    pthread_t all[4];
    for (int i = 0; i < 4; i++) pthread_create(&all[i], NULL, locks, NULL);
    for (int i = 0; i < 4; i++) pthread_join(all[i], NULL);
}
int main(int arguments, char **argument) {
    if (arguments != 3) return 2;
    count = atol(argument[2]);
    pthread_t first;
    // As in a program with threads: a process with one thread is recorded from its first wait on.
    pthread_create(&first, NULL, nothing, NULL);
    pthread_join(first, NULL);
    double elapsed = ns(CLOCK_MONOTONIC), cpu = ns(CLOCK_PROCESS_CPUTIME_ID);
    if (!strcmp(argument[1], "mutex")) locks(NULL);
    else if (!strcmp(argument[1], "read")) reads();
    else if (!strcmp(argument[1], "threads")) threads();
    else contended();
    elapsed = ns(CLOCK_MONOTONIC) - elapsed, cpu = ns(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("%.2f %.2f\n", elapsed / count, cpu / count);
    return 0;
}
