// Waits for a lock, becomes another program by `exec`, and waits for a lock again. With the argument `true`
// it becomes the program of this name instead, which ends at once.
#include "planted.h"
#include <string.h>
static pthread_mutex_t first_mutex = PTHREAD_MUTEX_INITIALIZER, second_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t *mutex = &first_mutex;
static void *worker(void *unused) {
    for (int i = 0; i < 20; i++) {
        pthread_mutex_lock(mutex);
        work_us(200);
        pthread_mutex_unlock(mutex);
    }
    return NULL;
}
int main(int count, char **arguments) {
    int becomes_true = count > 1 && !strcmp(arguments[1], "true");
    if (count > 1 && !becomes_true)
        mutex = &second_mutex;
    run_one(3, worker);
    if (becomes_true)
        execl("/bin/true", "true", NULL);
    if (count == 1)
        execl("/proc/self/exe", arguments[0], "again", NULL);
    return 0;
}
