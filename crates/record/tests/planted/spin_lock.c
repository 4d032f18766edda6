// A spin lock: its waiters keep the processors busy.
#include "planted.h"
static pthread_spinlock_t ring_lock;
static void *sender(void *unused) {
    for (int i = 0; i < 60; i++) {
        pthread_spin_lock(&ring_lock);
        work_us(300);
        pthread_spin_unlock(&ring_lock);
        work_us(100);
    }
    return NULL;
}
int main(void) {
    pthread_spin_init(&ring_lock, PTHREAD_PROCESS_PRIVATE);
    run_one(4, sender);
}
