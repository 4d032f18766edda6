// One lock, taken in a function that two functions call. Each thread pays in three times, and then draws
// once.
#include "planted.h"
static pthread_mutex_t vault_mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile long balance;
__attribute__((noinline)) static void open_vault(long amount) {
    pthread_mutex_lock(&vault_mutex);
    balance += amount;
    work_us(200);
    pthread_mutex_unlock(&vault_mutex);
}
__attribute__((noinline)) static void pay_in(void) {
    open_vault(3);
    balance += 0;
}
__attribute__((noinline)) static void draw(void) {
    open_vault(-9);
    balance += 0;
}
static void *customer(void *unused) {
    for (int i = 0; i < 400; i++) {
        if (i % 4 == 3)
            draw();
        else
            pay_in();
        work_us(100); // so that another thread takes the lock first
    }
    return NULL;
}
int main(void) { run_one(8, customer); }
