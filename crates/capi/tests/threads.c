/* A transaction that one thread begins and another thread commits. Usage: threads DIRECTORY */

#define _POSIX_C_SOURCE 200809L

#include "azekura.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define EXPECT(fact)                                                    \
    do {                                                                \
        if (!(fact)) {                                                  \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #fact);  \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static azk_slice slice(const char *text) {
    azk_slice bytes;
    bytes.data = (const uint8_t *)text;
    bytes.len = strlen(text);
    return bytes;
}

static void *commit_later(void *tx) {
    struct timespec pause = {0, 200000000};
    nanosleep(&pause, NULL);
    EXPECT(azk_put(tx, "t", slice("b"), slice("2"), NULL) == AZK_OK);
    EXPECT(azk_commit(tx, NULL) == AZK_OK);
    return NULL;
}

int main(int argc, char **argv) {
    azk_db *db = NULL;
    azk_tx *moved = NULL, *waits = NULL;
    azk_slice value;
    pthread_t thread;
    int found = 0;

    EXPECT(argc == 2);
    EXPECT(azk_open(argv[1], "cache_bytes=8388608", &db, NULL) == AZK_OK);
    EXPECT(azk_begin(db, &moved, NULL) == AZK_OK);
    EXPECT(azk_put(moved, "t", slice("a"), slice("1"), NULL) == AZK_OK);
    EXPECT(azk_begin(db, &waits, NULL) == AZK_OK);
    /* This thread has both transactions, so the wait would not end. */
    EXPECT(azk_get(waits, "t", slice("a"), &value, &found, NULL) == AZK_INVALID);

    EXPECT(azk_detach_from_thread(NULL, NULL) == AZK_INVALID);
    EXPECT(azk_detach_from_thread(moved, NULL) == AZK_OK);
    EXPECT(pthread_create(&thread, NULL, commit_later, moved) == 0);
    EXPECT(azk_get(waits, "t", slice("a"), &value, &found, NULL) == AZK_OK);
    EXPECT(found && value.len == 1 && value.data[0] == '1');
    EXPECT(azk_get(waits, "t", slice("b"), &value, &found, NULL) == AZK_OK && found);
    EXPECT(pthread_join(thread, NULL) == 0);
    EXPECT(azk_abort(waits, NULL) == AZK_OK);
    EXPECT(azk_close(db, NULL) == AZK_OK);
    puts("well");
    return 0;
}
