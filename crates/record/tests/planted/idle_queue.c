// Consumers wait for a slow producer on a condition variable: no lock is to blame.
#include "planted.h"
static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;
static int queued, ended;
static void *consumer(void *unused) {
    pthread_mutex_lock(&queue_mutex);
    for (;;) {
        while (!queued && !ended)
            pthread_cond_wait(&queue_filled, &queue_mutex);
        if (!queued)
            break;
        queued--;
    }
    pthread_mutex_unlock(&queue_mutex);
    return NULL;
}
static void *producer(void *unused) {
    for (int i = 0; i < 100; i++) {
        work_us(1000);
        pthread_mutex_lock(&queue_mutex);
        queued++;
        pthread_cond_signal(&queue_filled);
        pthread_mutex_unlock(&queue_mutex);
    }
    pthread_mutex_lock(&queue_mutex);
    ended = 1;
    pthread_cond_broadcast(&queue_filled);
    pthread_mutex_unlock(&queue_mutex);
    return NULL;
}
int main(void) { run(2, (int[]){4, 1}, (thread_function[]){consumer, producer}); }
