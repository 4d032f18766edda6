// Threads that allocate and free blocks of all sizes for each other, under a lock that they wait for.
#include "planted.h"
#include <string.h>
static pthread_mutex_t shelf_mutex = PTHREAD_MUTEX_INITIALIZER;
static char *shelf[64];
static void *worker(void *which) {
    unsigned seed = 7 + (unsigned)(long)which;
    for (int i = 0; i < 20000; i++) {
        char *block = malloc(1 + rand_r(&seed) % 3000);
        block[0] = 1;
        int place = rand_r(&seed) % 64;
        pthread_mutex_lock(&shelf_mutex);
        char *before = shelf[place];
        shelf[place] = block;
        if (i % 100 == 0)
            work_us(20);
        pthread_mutex_unlock(&shelf_mutex);
        free(before);
    }
    return NULL;
}
int main(void) {
    run_one(6, worker);
    puts("done");
}
