// Two functions in each thread: one waits for a lock, the other computes. (Not static, so that they keep
// their names.)
#include "planted.h"
static pthread_mutex_t ledger_mutex = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noinline)) void post_entry(void) {
    pthread_mutex_lock(&ledger_mutex);
    work_us(400);
    pthread_mutex_unlock(&ledger_mutex);
}
__attribute__((noinline)) void add_up(void) { compute(400000); }
static void *clerk(void *unused) {
    for (int i = 0; i < 50; i++) {
        post_entry();
        add_up();
    }
    return NULL;
}
int main(void) { run_one(4, clerk); }
