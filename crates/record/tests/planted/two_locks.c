// Two locks, taken one after the other. Without the first, the second is the bottleneck. With an argument,
// the program does not use the first.
#include "planted.h"
static pthread_mutex_t first_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t second_mutex = PTHREAD_MUTEX_INITIALIZER;
static int without_first;
static void *worker(void *unused) {
    for (int i = 0; i < 60; i++) {
        if (!without_first)
            pthread_mutex_lock(&first_mutex);
        work_us(500);
        if (!without_first)
            pthread_mutex_unlock(&first_mutex);
        pthread_mutex_lock(&second_mutex);
        work_us(250);
        pthread_mutex_unlock(&second_mutex);
    }
    return NULL;
}
int main(int count, char **arguments) {
    without_first = count > 1;
    run_one(8, worker);
}
