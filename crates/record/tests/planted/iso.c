// The threads and mutexes of ISO C: all threads need one mutex.
#include <stdio.h>
#include <threads.h>
static mtx_t ledger_mutex;
static int clerk(void *unused) {
    for (int i = 0; i < 60; i++) {
        mtx_lock(&ledger_mutex);
        thrd_sleep(&(struct timespec){.tv_nsec = 500000}, NULL);
        mtx_unlock(&ledger_mutex);
    }
    return unused == NULL ? 5 : 0;
}
int main(void) {
    thrd_t threads[4];
    int sum = 0, result;
    mtx_init(&ledger_mutex, mtx_plain);
    for (int i = 0; i < 4; i++)
        thrd_create(&threads[i], clerk, NULL);
    for (int i = 0; i < 4; i++) {
        thrd_join(threads[i], &result);
        sum += result;
    }
    return sum == 20 ? 0 : 1;
}
