// Threads retry a lock with a short time limit: most waits end by the limit, and wake no other thread. In the
// pool, a thread that returns a resource wakes one waiter, but often takes the resource again before it.
#define _GNU_SOURCE
#include "planted.h"
#include <string.h>
static pthread_mutex_t timed_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t timed_rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_returned = PTHREAD_COND_INITIALIZER;
static int is_rwlock, resources = 2;
static struct timespec soon(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_nsec += 500000;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}
static int try_lock(void) {
    struct timespec until = soon(is_rwlock ? CLOCK_MONOTONIC : CLOCK_REALTIME);
    return is_rwlock ? pthread_rwlock_clockwrlock(&timed_rwlock, CLOCK_MONOTONIC, &until)
                     : pthread_mutex_timedlock(&timed_mutex, &until);
}
static void *retrier(void *unused) {
    for (int i = 0; i < 100; i++) {
        while (try_lock() != 0) {
        }
        work_us(2000);
        if (is_rwlock)
            pthread_rwlock_unlock(&timed_rwlock);
        else
            pthread_mutex_unlock(&timed_mutex);
    }
    return NULL;
}
static void *user(void *unused) {
    for (int i = 0; i < 80; i++) {
        pthread_mutex_lock(&pool_mutex);
        while (resources == 0)
            pthread_cond_wait(&pool_returned, &pool_mutex);
        resources--;
        pthread_mutex_unlock(&pool_mutex);
        work_us(2000);
        pthread_mutex_lock(&pool_mutex);
        resources++;
        pthread_mutex_unlock(&pool_mutex);
        pthread_cond_signal(&pool_returned);
    }
    return NULL;
}
int main(int count, char **arguments) {
    is_rwlock = count > 1 && !strcmp(arguments[1], "rwlock");
    if (count > 1 && !strcmp(arguments[1], "pool"))
        run_one(8, user);
    else
        run_one(4, retrier);
    return 0;
}
