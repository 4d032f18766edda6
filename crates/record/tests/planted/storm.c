// Many threads, each of which waits for a mutex: all are started before the first can end, or one after
// another (PAUSE_US) without a join in between.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#ifndef THREADS
#define THREADS 400
#define PAUSE_US 0
#endif
static pthread_mutex_t storm_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *worker(void *unused) {
    pthread_mutex_lock(&storm_mutex);
    pthread_mutex_unlock(&storm_mutex);
    return unused;
}
int main(void) {
    pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 17);
    if (!PAUSE_US)
        pthread_mutex_lock(&storm_mutex);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], &small, worker, NULL) != 0)
            return 1;
        if (PAUSE_US)
            usleep(PAUSE_US);
    }
    if (!PAUSE_US) {
        usleep(200000);
        pthread_mutex_unlock(&storm_mutex);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    puts("end");
}
