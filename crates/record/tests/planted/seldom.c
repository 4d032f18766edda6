// Threads that think for long and seldom need the lock: there is no bottleneck.
#include "planted.h"
static pthread_mutex_t board_mutex = PTHREAD_MUTEX_INITIALIZER;
static void *thinker(void *number) {
    work_us((long)number * 700);
    for (int i = 0; i < 25; i++) {
        work_us(5000);
        pthread_mutex_lock(&board_mutex);
        work_us(20);
        pthread_mutex_unlock(&board_mutex);
    }
    return NULL;
}
int main(void) { run_one(6, thinker); }
