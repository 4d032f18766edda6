// Two threads take one lock below 24 calls of a function that calls itself. The pause leaves the lock to the
// other thread.
#include "planted.h"
static pthread_mutex_t deep_mutex = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline)) static int descend(int left) {
    if (left > 0)
        return descend(left - 1) + 1;
    pthread_mutex_lock(&deep_mutex);
    usleep(2000);
    pthread_mutex_unlock(&deep_mutex);
    return 0;
}
__attribute__((noinline)) static int dig(void) { return descend(24) + 1; }
static void *digger(void *unused) {
    for (int i = 0; i < 150; i++) {
        if (dig() != 25)
            exit(1);
        usleep(500);
    }
    return NULL;
}
int main(void) {
    run_one(2, digger);
    return 0;
}
