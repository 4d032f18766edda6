// A lock that is held during a write to disk and its sync.
#include "planted.h"
static pthread_mutex_t journal_mutex = PTHREAD_MUTEX_INITIALIZER;
static int journal;
static void *committer(void *unused) {
    char block[4096] = {0};
    for (int i = 0; i < 300; i++) {
        pthread_mutex_lock(&journal_mutex);
        if (write(journal, block, sizeof block) != sizeof block)
            exit(1);
        fdatasync(journal);
        pthread_mutex_unlock(&journal_mutex);
    }
    return NULL;
}
int main(void) {
    journal = open("journal", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    run_one(6, committer);
    unlink("journal");
}
