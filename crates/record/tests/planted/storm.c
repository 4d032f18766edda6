// Many threads that wait for a condition: all are started before the first can end. The argument is their
// number. With PAUSE_US, threads also start and end one after another, without a join in between.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#ifndef THREADS
#define THREADS 400
#define PAUSE_US 0
#endif
static pthread_mutex_t storm_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static int is_open;
static void set_open(int value) {
    pthread_mutex_lock(&storm_mutex);
    is_open = value;
    pthread_cond_broadcast(&opened);
    pthread_mutex_unlock(&storm_mutex);
}
static void *worker(void *unused) {
    pthread_mutex_lock(&storm_mutex);
    while (!is_open)
        pthread_cond_wait(&opened, &storm_mutex);
    pthread_mutex_unlock(&storm_mutex);
    return unused;
}
static int storm(int pause_us, int count) {
    pthread_t *threads = calloc(count, sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 17);
    for (int i = 0; i < count; i++) {
        if (pthread_create(&threads[i], &small, worker, NULL) != 0)
            return 1;
        if (pause_us)
            usleep(pause_us);
    }
    usleep(200000);
    set_open(1);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    set_open(0);
    return 0;
}
int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : THREADS;
    set_open(PAUSE_US > 0);
    if (PAUSE_US && storm(PAUSE_US, threads) != 0)
        return 1;
    if (storm(0, threads) != 0)
        return 1;
    puts("end");
}
