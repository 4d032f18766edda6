// A writer starves, because readers always hold the lock.
#include "planted.h"
static pthread_rwlock_t table_lock = PTHREAD_RWLOCK_INITIALIZER;
static volatile int written;
static void *reader(void *number) {
    work_us((long)number * 100);
    while (!written) {
        pthread_rwlock_rdlock(&table_lock);
        work_us(500);
        pthread_rwlock_unlock(&table_lock);
    }
    return NULL;
}
static void *writer(void *unused) {
    // The readers' holds overlap all the time. The writer's wait has a timeout, after which the readers end.
    work_us(2000);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 120000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    if (pthread_rwlock_timedwrlock(&table_lock, &until) == 0)
        pthread_rwlock_unlock(&table_lock);
    written = 1;
    return NULL;
}
int main(void) { run(2, (int[]){8, 1}, (thread_function[]){reader, writer}); }
