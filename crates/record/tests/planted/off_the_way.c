// Cleaners contend for a lock of their own all the time. The workers, which do the counted work, never need
// it.
#include "planted.h"
static pthread_mutex_t cleaning_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t work_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *cleaner(void *unused) {
    for (int i = 0; i < 40; i++) {
        pthread_mutex_lock(&cleaning_mutex);
        work_us(800);
        pthread_mutex_unlock(&cleaning_mutex);
    }
    return NULL;
}
static void *worker(void *unused) {
    for (int i = 0; i < 100; i++) {
        work_us(1000);
        pthread_mutex_lock(&work_mutex);
        pthread_mutex_unlock(&work_mutex);
    }
    return NULL;
}
int main(void) { run(2, (int[]){4, 4}, (thread_function[]){cleaner, worker}); }
