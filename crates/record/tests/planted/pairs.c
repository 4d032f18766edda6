// Two locks with any times, for predictions: THREADS FIRST_US SECOND_US THINK_US COMPUTE WITHOUT. If WITHOUT
// is not 0, the work under the first lock is done without it.
#include "planted.h"
static pthread_mutex_t first_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t second_mutex = PTHREAD_MUTEX_INITIALIZER;
static long first_us, second_us, think_us, steps, without;
static void *worker(void *unused) {
    for (int i = 0; i < 150; i++) {
        if (!without)
            pthread_mutex_lock(&first_mutex);
        work_us(first_us);
        if (!without)
            pthread_mutex_unlock(&first_mutex);
        if (second_us) {
            pthread_mutex_lock(&second_mutex);
            work_us(second_us);
            pthread_mutex_unlock(&second_mutex);
        }
        if (think_us)
            work_us(think_us);
        compute(steps);
    }
    return NULL;
}
int main(int count, char **a) {
    if (count != 7)
        return 2;
    first_us = atol(a[2]), second_us = atol(a[3]), think_us = atol(a[4]), steps = atol(a[5]), without =
        atol(a[6]);
    run_one(atoi(a[1]), worker);
}
