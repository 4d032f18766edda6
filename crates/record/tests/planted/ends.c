// Threads that end in every possible way, forks, and a lock on a thread's stack.
#include "planted.h"
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static pthread_mutex_t busy_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *leaver(void *unused) {
    pthread_mutex_lock(&busy_mutex);
    work_us(20000); // longer than the start of the other threads takes
    pthread_mutex_unlock(&busy_mutex);
    pthread_exit(NULL);
}
static void *sleeper(void *unused) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&mutex);
    for (;;)
        pthread_cond_wait(&never, &mutex);
}
static void *stayer(void *unused) {
    for (int i = 0; i < 10; i++) {
        pthread_mutex_lock(&busy_mutex);
        work_us(20000);
        pthread_mutex_unlock(&busy_mutex);
    }
    return NULL;
}
int main(int count, char **arguments) {
    pthread_t cancelled;
    if (count > 1 && !strcmp(arguments[1], "without main")) {
        for (int i = 0; i < 2; i++)
            pthread_create(&cancelled, NULL, stayer, NULL);
        pthread_exit(NULL); // the process ends with its last thread
    }
    pthread_create(&cancelled, NULL, sleeper, NULL);
    run_one(4, leaver);
    pid_t child = fork();
    if (child == 0) {
        run_one(4, leaver);
        _exit(7);
    }
    int status;
    waitpid(child, &status, 0);
    if (count > 1 && !strcmp(arguments[1], "quick_exit")) quick_exit(5);
    if (count > 1 && !strcmp(arguments[1], "exit_group")) syscall(SYS_exit_group, 6);
    if (count > 1) {
        work_us(100000); // long enough for the recorder to write the events
        abort();
    }
    work_us(1000);
    pthread_cancel(cancelled);
    pthread_join(cancelled, NULL);
    return WEXITSTATUS(status) == 7 ? 0 : 1;
}
