/* A shop's stock: transactions, a range, a snapshot, a backup and its restore. Usage: shop DIRECTORY */

#define _POSIX_C_SOURCE 200112L

#include "azekura.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static azk_slice slice(const char *text) {
    azk_slice bytes;
    bytes.data = (const uint8_t *)text;
    bytes.len = strlen(text);
    return bytes;
}

static int is_text(azk_slice bytes, const char *text) {
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

/* Ends the program if a call failed. */
static void must(azk_status status, azk_error *error, int line) {
    if (status != AZK_OK) {
        fprintf(stderr, "line %d: status %d: %s\n", line, (int)status, azk_error_message(error));
        exit(1);
    }
}

#define MUST(call) must((call), error, __LINE__)
#define EXPECT(fact)                                                    \
    do {                                                                \
        if (!(fact)) {                                                  \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #fact);  \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static void count(uint64_t rows, uint64_t bytes, void *context) {
    (void)bytes;
    *(uint64_t *)context = rows;
}

/* Frees an error; returns 1 if it had this status. */
static int had(azk_error **error, azk_status status) {
    int same = azk_error_status(*error) == status && strlen(azk_error_message(*error)) > 0;
    azk_error_free(*error);
    *error = NULL;
    return same;
}

/* Sells one item. azk_retry runs it again after a conflict. */
static azk_status sell(azk_tx *tx, void *context, azk_error **error) {
    const char *item = context;
    azk_slice left;
    char text[2];
    int found;
    azk_status status = azk_get_for_update(tx, "stock", slice(item), &left, &found, error);
    if (status != AZK_OK) {
        return status;
    }
    if (!found || left.len != 1 || left.data[0] == '0') {
        return AZK_OTHER; /* sold out; azk_retry rolls back */
    }
    text[0] = (char)(left.data[0] - 1);
    text[1] = 0;
    return azk_put(tx, "stock", slice(item), slice(text), error);
}

/* Tries to end the transaction of azk_retry, which is refused. */
static azk_status end_early(azk_tx *tx, void *context, azk_error **error) {
    azk_ticket *ticket = NULL;
    EXPECT(azk_commit(tx, NULL) == AZK_INVALID);
    EXPECT(azk_abort(tx, NULL) == AZK_INVALID);
    EXPECT(azk_commit_async(tx, &ticket, error) == AZK_INVALID && had(error, AZK_INVALID));
    return azk_put(tx, "stock", slice(context), slice("1"), error);
}

int main(int argc, char **argv) {
    azk_error *error = NULL;
    azk_db *db = NULL;
    azk_tx *tx = NULL;
    azk_snapshot *snapshot = NULL;
    azk_cursor *cursor = NULL;
    azk_savepoint *before = NULL;
    azk_ticket *ticket = NULL;
    struct pollfd ready;
    azk_slice key, value, low = slice("item00100"), high = slice("item00900");
    char path[3][1024], name[32];
    uint64_t copied = 0;
    int found = 0, row = 0, rows, n;

    EXPECT(argc == 2 && strlen(argv[1]) < 1000);
    EXPECT(azk_abi_version() == AZK_ABI_VERSION);
    sprintf(path[0], "%s/shop.azk", argv[1]);
    sprintf(path[1], "%s/backup", argv[1]);
    sprintf(path[2], "%s/copy.azk", argv[1]);

    /* A call that fails reports a status and a message, and changes nothing. */
    EXPECT(azk_open(path[0], "color=red", &db, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    EXPECT(azk_open(path[0], "create=false", &db, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    EXPECT(azk_open(NULL, NULL, &db, NULL) == AZK_INVALID);

    MUST(azk_open(path[0], "cache_bytes=8388608,page_size=4096", &db, &error));
    MUST(azk_begin(db, &tx, &error));
    for (n = 0; n < 1000; n++) {
        sprintf(name, "item%05d", n);
        MUST(azk_put(tx, "stock", slice(name), slice(n == 7 ? "" : "5"), &error));
    }
    EXPECT(azk_close(db, &error) == AZK_BUSY && had(&error, AZK_BUSY));
    MUST(azk_commit(tx, &error));

    MUST(azk_snapshot_open(db, &snapshot, &error));
    MUST(azk_begin(db, &tx, &error));
    MUST(azk_get(tx, "stock", slice("item00007"), &value, &found, &error));
    EXPECT(found && value.len == 0);
    MUST(azk_delete(tx, "stock", slice("item00007"), &found, &error));
    EXPECT(found);
    MUST(azk_get(tx, "stock", slice("item00007"), &value, &found, &error));
    EXPECT(!found && value.len == 0);
    MUST(azk_put(tx, "stock", slice("item00500"), slice("4"), &error));

    for (rows = 0, row = 1, MUST(azk_range(tx, "stock", &low, &high, 0, &cursor, &error)); row; rows += row) {
        MUST(azk_next(cursor, &key, &value, &row, &error));
        sprintf(name, "item%05d", 100 + rows);
        EXPECT(!row || (is_text(key, name) && is_text(value, rows == 400 ? "4" : "5")));
    }
    EXPECT(rows == 800);
    azk_cursor_close(cursor);
    MUST(azk_range(tx, "stock", NULL, NULL, AZK_REVERSE, &cursor, &error));
    MUST(azk_next(cursor, &key, &value, &row, &error));
    EXPECT(row && is_text(key, "item00999"));
    MUST(azk_commit(tx, &error));
    for (rows = 1; azk_next(cursor, &key, &value, &row, NULL) == AZK_OK; rows++) {
        EXPECT(row && rows < 1000); /* rows that were read ahead; later calls fail */
    }
    azk_cursor_close(cursor);

    /* The snapshot has the old rows, and stays open after the transaction has ended. */
    MUST(azk_snapshot_get(snapshot, "stock", slice("item00500"), &value, &found, &error));
    EXPECT(found && is_text(value, "5"));
    MUST(azk_snapshot_range(snapshot, "stock", NULL, NULL, AZK_REVERSE, &cursor, &error));
    azk_snapshot_close(snapshot);
    for (rows = 0, row = 1; row; rows += row) {
        MUST(azk_next(cursor, &key, &value, &row, &error));
    }
    EXPECT(rows == 1000);
    azk_cursor_close(cursor);

    /* A transaction that is rolled back. */
    MUST(azk_begin(db, &tx, &error));
    MUST(azk_put(tx, "stock", slice("item00500"), slice("0"), &error));
    MUST(azk_abort(tx, &error));

    /* Retries after conflicts: 4 items are sold, then none is left. */
    for (n = 0; n < 4; n++) {
        MUST(azk_retry(db, sell, "item00500", &error));
    }
    EXPECT(azk_retry(db, sell, "item00500", &error) == AZK_OTHER && error == NULL);
    EXPECT(azk_retry(db, sell, "missing", NULL) == AZK_OTHER);
    EXPECT(azk_retry(db, NULL, NULL, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    MUST(azk_retry(db, end_early, "item00501", &error));

    /* A savepoint, and a commit that an event loop waits for. */
    MUST(azk_begin_with(db, "lock_timeout_ms=1000", &tx, &error));
    MUST(azk_put(tx, "stock", slice("item00500"), slice("4"), &error));
    MUST(azk_savepoint_set(tx, &before, &error));
    MUST(azk_drop_table(tx, "stock", &found, &error));
    EXPECT(found);
    MUST(azk_rollback_to(tx, before, &error));
    azk_savepoint_free(before);
    MUST(azk_commit_async(tx, &ticket, &error));
    ready.events = POLLIN;
    MUST(azk_ticket_fd(ticket, &ready.fd, &error));
    EXPECT(poll(&ready, 1, 60000) == 1);
    MUST(azk_ticket_durable(ticket, &found, &error));
    EXPECT(found);
    MUST(azk_ticket_wait(ticket, &error));
    azk_ticket_free(ticket);
    EXPECT(azk_begin_with(db, "durable=maybe", &tx, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    MUST(azk_begin_with(db, "durable=false", &tx, &error));
    MUST(azk_put(tx, "other", slice("a"), slice("b"), &error));
    MUST(azk_commit(tx, &error));
    MUST(azk_begin(db, &tx, &error));
    MUST(azk_drop_table(tx, "other", NULL, &error));
    MUST(azk_commit(tx, &error));
    MUST(azk_checkpoint(db, &error));

    MUST(azk_backup(db, path[1], "rate=1000000000", count, &copied, &error));
    EXPECT(copied == 999);
    EXPECT(azk_backup(db, path[1], NULL, NULL, NULL, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    MUST(azk_close(db, &error));

    MUST(azk_restore(path[1], path[2], "verify=true,cache_bytes=8388608", &error));
    MUST(azk_open(path[2], "create=false,read_only=true", &db, &error));
    MUST(azk_snapshot_open(db, &snapshot, &error));
    MUST(azk_snapshot_get(snapshot, "stock", slice("item00500"), &value, &found, &error));
    EXPECT(found && is_text(value, "4"));
    azk_snapshot_close(snapshot);
    MUST(azk_begin(db, &tx, &error));
    EXPECT(azk_put(tx, "stock", slice("a"), slice("b"), &error) == AZK_INVALID && had(&error, AZK_INVALID));
    MUST(azk_abort(tx, &error));
    MUST(azk_close(db, &error));
    puts("well");
    return 0;
}
