// Runs until it is killed, at most two minutes: a lock that all workers need, one on the heap that two need,
// and a thread without work.
#include "planted.h"
static pthread_mutex_t busy_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t *account;
static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
__attribute__((noinline)) void transfer(void) {
    pthread_mutex_lock(account);
    work_us(300);
    pthread_mutex_unlock(account);
}
static void *worker(void *number) {
    for (;;) {
        pthread_mutex_lock(&busy_mutex);
        work_us(1000);
        pthread_mutex_unlock(&busy_mutex);
        if ((long)number < 2)
            transfer();
        compute(20000);
    }
    return NULL;
}
static void *waiter(void *unused) {
    pthread_mutex_lock(&queue_mutex);
    for (;;)
        pthread_cond_wait(&work, &queue_mutex);
    return NULL;
}
int main(void) {
    account = malloc(sizeof *account);
    pthread_mutex_init(account, NULL);
    alarm(120);
    run(2, (int[]){4, 1}, (thread_function[]){worker, waiter});
}
