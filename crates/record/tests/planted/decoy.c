// The counter's mutex is taken very often and held briefly; the log's mutex is taken seldom and held for
// long.
#include "planted.h"
static pthread_mutex_t counter_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t log_mutex = PTHREAD_MUTEX_INITIALIZER;
static long counter;
static void *server(void *unused) {
    for (int i = 0; i < 30; i++) {
        for (int j = 0; j < 300; j++) {
            pthread_mutex_lock(&counter_mutex);
            counter++;
            pthread_mutex_unlock(&counter_mutex);
        }
        pthread_mutex_lock(&log_mutex);
        work_us(1000);
        pthread_mutex_unlock(&log_mutex);
    }
    return NULL;
}
int main(void) { run_one(6, server); }
