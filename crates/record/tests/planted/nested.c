// Two locks, one taken under the other. A thread that waits for the outer lock is in fact waiting for a
// holder of the inner lock.
#include "planted.h"
static pthread_mutex_t outer_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inner_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *both(void *unused) {
    for (int i = 0; i < 30; i++) {
        pthread_mutex_lock(&outer_mutex);
        pthread_mutex_lock(&inner_mutex);
        work_us(400);
        pthread_mutex_unlock(&inner_mutex);
        pthread_mutex_unlock(&outer_mutex);
        work_us(50);
    }
    return NULL;
}
static void *inner_only(void *unused) {
    for (int i = 0; i < 30; i++) {
        pthread_mutex_lock(&inner_mutex);
        work_us(400);
        pthread_mutex_unlock(&inner_mutex);
        work_us(50);
    }
    return NULL;
}
int main(void) { run(2, (int[]){3, 5}, (thread_function[]){both, inner_only}); }
