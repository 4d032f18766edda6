// Threads that their creator starts and stops through one condition variable for each thread: `handshakes
// THREADS`. The creator waits on it for the start, and signals it for the stop. No thread holds a lock
// meanwhile.
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct service {
    pthread_mutex_t guard;
    pthread_cond_t changed;
    int is_started, is_stopped;
    char pad[64];
};

static struct service services[16];

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static void *serve(void *argument) {
    struct service *own = argument;
    sleep_ms(20);
    pthread_mutex_lock(&own->guard);
    own->is_started = 1;
    pthread_cond_broadcast(&own->changed);
    while (!own->is_stopped) pthread_cond_wait(&own->changed, &own->guard);
    pthread_mutex_unlock(&own->guard);
    return NULL;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 3;
    pthread_t started[16];
    for (int i = 0; i < threads; i++) {
        pthread_mutex_init(&services[i].guard, NULL);
        pthread_cond_init(&services[i].changed, NULL);
        pthread_create(&started[i], NULL, serve, &services[i]);
        pthread_mutex_lock(&services[i].guard);
        while (!services[i].is_started) pthread_cond_wait(&services[i].changed, &services[i].guard);
        pthread_mutex_unlock(&services[i].guard);
    }
    for (int turn = 0; turn < 2; turn++) {
        sleep_ms(400);
        // A wake-up without a reason: each service waits again.
        for (int i = 0; turn == 0 && i < threads; i++) pthread_cond_broadcast(&services[i].changed);
    }
    for (int i = 0; i < threads; i++) {
        pthread_mutex_lock(&services[i].guard);
        services[i].is_stopped = 1;
        pthread_cond_broadcast(&services[i].changed);
        pthread_mutex_unlock(&services[i].guard);
        pthread_join(started[i], NULL);
    }
    return 0;
}
