// The processors are the bottleneck; the mutex is used, but seldom contended.
#include "planted.h"
static pthread_mutex_t sum_mutex = PTHREAD_MUTEX_INITIALIZER;
static long sum;
static void *solver(void *unused) {
    for (int i = 0; i < 60; i++) {
        compute(3000000);
        pthread_mutex_lock(&sum_mutex);
        sum++;
        pthread_mutex_unlock(&sum_mutex);
    }
    return NULL;
}
int main(void) { run_one(8, solver); }
