// One mutex that all threads need, most of the time.
#include "planted.h"
static pthread_mutex_t accounts_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *teller(void *unused) {
    for (int i = 0; i < 100; i++) {
        pthread_mutex_lock(&accounts_mutex);
        work_us(300);
        pthread_mutex_unlock(&accounts_mutex);
        work_us(150);
    }
    return NULL;
}
int main(void) { run_one(6, teller); }
