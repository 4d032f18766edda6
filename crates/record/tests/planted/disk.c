// The disk is the bottleneck: every thread appends to a file of its own and waits for it.
#include "planted.h"
static pthread_mutex_t names_mutex = PTHREAD_MUTEX_INITIALIZER;
static int files;
static void *writer(void *unused) {
    char name[32];
    pthread_mutex_lock(&names_mutex);
    snprintf(name, sizeof name, "disk-%d", files++);
    pthread_mutex_unlock(&names_mutex);
    int file = open(name, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    char block[4096] = {0};
    for (int i = 0; i < 600; i++) {
        if (write(file, block, sizeof block) != sizeof block)
            exit(1);
        fdatasync(file);
    }
    close(file);
    unlink(name);
    return NULL;
}
int main(void) { run_one(4, writer); }
