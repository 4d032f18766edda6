// Locks built of other objects: a semaphore, a mutex with a condition variable, a futex. A queue, which is
// not a lock.
#include "planted.h"
#include <limits.h>
#include <linux/futex.h>
#include <semaphore.h>
#include <string.h>
#include <sys/syscall.h>
static sem_t gate_semaphore, filled_semaphore;
static pthread_mutex_t pool_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t pool_returned = PTHREAD_COND_INITIALIZER;
static int pooled = 1;
static _Atomic int gate_word;

static void *by_semaphore(void *unused) {
    for (int i = 0; i < 60; i++) {
        sem_wait(&gate_semaphore);
        work_us(500);
        sem_post(&gate_semaphore);
    }
    return unused;
}
// A pool of one connection.
static void *by_condition(void *unused) {
    for (int i = 0; i < 60; i++) {
        pthread_mutex_lock(&pool_mutex);
        while (pooled == 0)
            pthread_cond_wait(&pool_returned, &pool_mutex);
        pooled--;
        pthread_mutex_unlock(&pool_mutex);
        work_us(500);
        pthread_mutex_lock(&pool_mutex);
        pooled++;
        pthread_cond_signal(&pool_returned);
        pthread_mutex_unlock(&pool_mutex);
    }
    return unused;
}
// The word is 1 when the lock is taken, so that its value does not tell whether there are waiters.
static void *by_futex(void *unused) {
    for (int i = 0; i < 60; i++) {
        while (__atomic_exchange_n((int *)&gate_word, 1, __ATOMIC_ACQUIRE) == 1)
            syscall(SYS_futex, &gate_word, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
        work_us(500);
        __atomic_store_n((int *)&gate_word, 0, __ATOMIC_RELEASE);
        syscall(SYS_futex, &gate_word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    return unused;
}
static void *filler(void *unused) {
    for (int i = 0; i < 120; i++) {
        work_us(1000);
        sem_post(&filled_semaphore);
    }
    return unused;
}
static void *taker(void *unused) {
    for (int i = 0; i < 30; i++) {
        sem_wait(&filled_semaphore);
        compute(1000);
    }
    return unused;
}
int main(int count, char **arguments) {
    const char *kind = count > 1 ? arguments[1] : "";
    sem_init(&gate_semaphore, 0, 1);
    sem_init(&filled_semaphore, 0, 0);
    if (strcmp(kind, "semaphore") == 0)
        run_one(4, by_semaphore);
    if (strcmp(kind, "condition") == 0)
        run_one(4, by_condition);
    if (strcmp(kind, "futex") == 0)
        run_one(4, by_futex);
    if (strcmp(kind, "queue") == 0)
        run(2, (int[]){1, 4}, (thread_function[]){filler, taker});
    return 0;
}
