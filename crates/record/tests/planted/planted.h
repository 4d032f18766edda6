// Shared by the planted programs: threads, and work with a duration that does not depend on the load of the
// machine.
#include <pthread.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef void *(*thread_function)(void *);

// Work that needs no processor. It stands for the work that a lock protects.
static inline void work_us(long us) {
    struct timespec now, until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += us * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    struct timespec rest = {us / 1000000, us % 1000000 * 1000};
    do {
        nanosleep(&rest, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec));
}

// Work that uses the processor.
static inline void compute(long steps) {
    for (volatile long i = 0; i < steps; i++) {
    }
}

static inline void run(int groups, const int *counts, const thread_function *functions) {
    pthread_t threads[64];
    int n = 0;
    for (int g = 0; g < groups; g++)
        for (long i = 0; i < counts[g]; i++)
            pthread_create(&threads[n++], NULL, functions[g], (void *)i);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static inline void run_one(int count, thread_function function) { run(1, &count, &function); }
