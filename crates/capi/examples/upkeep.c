/*
 * Upkeep of a store: a bulk load, tables and their names, a queue, a check, a compaction, an incremental
 * backup, a backup through a pipe, and a restore to a time. Usage: upkeep DIRECTORY
 */

#define _POSIX_C_SOURCE 200809L

#include "azekura.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 20000 };

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

/* Frees an error; returns 1 if it had this status. */
static int had(azk_error **error, azk_status status) {
    int same = azk_error_status(*error) == status && strlen(azk_error_message(*error)) > 0;
    azk_error_free(*error);
    *error = NULL;
    return same;
}

/* The source of a bulk load: `count` rows in ascending or descending order. */
typedef struct {
    int next, count, is_descending, fails_at;
    azk_tx *tx; /* used inside the load, which is refused, unless it is null */
    char name[16];
} rows;

static int next_row(azk_slice *key, azk_slice *value, void *context) {
    rows *from = context;
    int number = from->is_descending ? from->count - 1 - from->next : from->next;
    if (from->next == from->count) {
        return 0;
    }
    if (from->next == from->fails_at) {
        return -1;
    }
    if (from->tx != NULL) {
        EXPECT(azk_delete(from->tx, "stock", slice("x"), NULL, NULL) == AZK_INVALID);
    }
    from->next++;
    sprintf(from->name, "item%05d", number);
    *key = slice(from->name);
    *value = slice(number % 2 ? "odd" : "even");
    return 1;
}

static rows rows_of(int count) {
    rows made;
    memset(&made, 0, sizeof made);
    made.count = count;
    made.fails_at = -1;
    return made;
}

static void see(uint64_t done, uint64_t of, void *context) {
    *(uint64_t *)context = done;
    EXPECT(done == 0 || of != 0);
}

static uint64_t count_of(azk_db *db, const char *table) {
    azk_error *error = NULL;
    azk_snapshot *snapshot = NULL;
    uint64_t count = 0;
    MUST(azk_snapshot_open(db, &snapshot, &error));
    MUST(azk_snapshot_count(snapshot, table, &count, &error));
    MUST(azk_snapshot_wait_durable(snapshot, &error));
    azk_snapshot_close(snapshot);
    return count;
}

static void load_and_change(azk_db *db) {
    azk_error *error = NULL;
    azk_tx *tx = NULL;
    azk_cursor *cursor = NULL;
    azk_slice key, value, low = slice("item00100"), high = slice("item00200"), old, new;
    rows from = rows_of(ROWS);
    uint64_t count = 0;
    int found = 0, row = 0;

    MUST(azk_begin(db, &tx, &error));
    from.fails_at = 10;
    EXPECT(azk_bulk_load(tx, "stock", next_row, &from, 0, &count, &error) == AZK_OTHER);
    EXPECT(had(&error, AZK_OTHER));
    from = rows_of(ROWS);
    from.is_descending = 1;
    EXPECT(azk_bulk_load(tx, "stock", next_row, &from, 0, &count, &error) == AZK_INVALID);
    EXPECT(had(&error, AZK_INVALID));
    from = rows_of(ROWS);
    from.tx = tx;
    MUST(azk_bulk_load(tx, "stock", next_row, &from, 0, &count, &error));
    EXPECT(count == ROWS);
    from = rows_of(100);
    from.is_descending = 1;
    MUST(azk_bulk_load(tx, "other", next_row, &from, AZK_UNSORTED, NULL, &error));
    EXPECT(azk_bulk_load(tx, "x", next_row, &from, 64, NULL, &error) == AZK_INVALID);
    EXPECT(had(&error, AZK_INVALID));
    MUST(azk_commit(tx, &error));

    /* Conditional writes. */
    MUST(azk_begin_with(db, "nowait=true", &tx, &error));
    MUST(azk_contains(tx, "stock", slice("item00100"), &found, &error));
    EXPECT(found);
    MUST(azk_insert_if_absent(tx, "stock", slice("item00100"), slice("x"), &found, &error));
    EXPECT(!found);
    MUST(azk_insert_if_absent(tx, "stock", slice("new"), slice("x"), &found, &error));
    EXPECT(found);
    old = slice("y");
    new = slice("z");
    MUST(azk_compare_and_set(tx, "stock", slice("new"), &old, &new, &found, &error));
    EXPECT(!found);
    MUST(azk_compare_and_set(tx, "stock", slice("new"), NULL, &new, &found, &error));
    EXPECT(!found);
    old = slice("x");
    MUST(azk_compare_and_set(tx, "stock", slice("new"), &old, &new, &found, &error));
    EXPECT(found);
    MUST(azk_compare_and_set(tx, "stock", slice("new"), &new, NULL, &found, &error));
    EXPECT(found);
    MUST(azk_contains(tx, "stock", slice("new"), &found, &error));
    EXPECT(!found);
    MUST(azk_remove_range(tx, "stock", &low, &high, &count, &error));
    EXPECT(count == 100);
    MUST(azk_count(tx, "stock", &count, &error));
    EXPECT(count == ROWS - 100);

    /* A queue. */
    MUST(azk_pop(tx, "other", AZK_SKIP_LOCKED, &key, &value, &found, &error));
    EXPECT(found && is_text(key, "item00000") && is_text(value, "even"));
    MUST(azk_pop(tx, "other", AZK_REVERSE, &key, &value, &found, &error));
    EXPECT(found && is_text(key, "item00099") && is_text(value, "odd"));
    MUST(azk_pop(tx, "missing", 0, &key, &value, &found, &error));
    EXPECT(!found && key.len == 0);

    /* Tables. */
    MUST(azk_rename_table(tx, "other", "queue", &found, &error));
    EXPECT(found);
    EXPECT(azk_rename_table(tx, "queue", "stock", NULL, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    MUST(azk_rename_table(tx, "missing", "any", &found, &error));
    EXPECT(!found);
    MUST(azk_table_exists(tx, "queue", &found, &error));
    EXPECT(found);
    MUST(azk_commit(tx, &error));
    MUST(azk_tables(db, &cursor, &error));
    MUST(azk_next(cursor, &key, &value, &row, &error));
    EXPECT(row && is_text(key, "queue") && value.len > 0);
    MUST(azk_next(cursor, &key, &value, &row, &error));
    EXPECT(row && is_text(key, "stock"));
    MUST(azk_next(cursor, &key, &value, &row, &error));
    EXPECT(!row);
    azk_cursor_close(cursor);
}

int main(int argc, char **argv) {
    azk_error *error = NULL;
    azk_db *db = NULL, *copy = NULL;
    azk_tx *tx = NULL;
    azk_report *report = NULL;
    char path[7][1024], options[4096];
    uint64_t findings = 7, seen = 0, time_us = 0;
    size_t longest = 0;
    int fd;

    EXPECT(argc == 2 && strlen(argv[1]) < 1000);
    sprintf(path[0], "%s/main.azk", argv[1]);
    sprintf(path[1], "%s/full, first", argv[1]);
    sprintf(path[2], "%s/more", argv[1]);
    sprintf(path[3], "%s/small.azk", argv[1]);
    sprintf(path[4], "%s/copy.azk", argv[1]);
    sprintf(path[5], "%s/stream", argv[1]);
    sprintf(path[6], "%s/past.azk", argv[1]);
    EXPECT(strchr(azk_version(), '.') != NULL);

    sprintf(options, "cache_bytes=16777216, file_mode=0640, archive=\"%s/archive\"", argv[1]);
    MUST(azk_open(path[0], options, &db, &error));
    MUST(azk_max_key_bytes(db, &longest, &error));
    EXPECT(longest >= 1024);
    load_and_change(db);

    MUST(azk_stats(db, &report, &error));
    EXPECT(strstr(azk_report_json(report), "\"durable_lsn\"") != NULL);
    azk_report_free(report);
    MUST(azk_check(db, NULL, see, &seen, &findings, &report, &error));
    EXPECT(findings == 0 && seen > 0 && strstr(azk_report_json(report), "\"findings\":[]") != NULL);
    azk_report_free(report);
    MUST(azk_check(db, "repair=true", NULL, NULL, &findings, NULL, &error));
    EXPECT(findings == 0);

    /* A full backup, a change, an incremental backup. Its restore needs both. */
    MUST(azk_backup(db, path[1], NULL, NULL, NULL, &error));
    MUST(azk_archive_log(db, &time_us, &error));
    MUST(azk_begin(db, &tx, &error));
    MUST(azk_put(tx, "stock", slice("late"), slice("1"), &error));
    MUST(azk_commit(tx, &error));
    sprintf(options, "since=\"%s\"", path[1]);
    MUST(azk_backup(db, path[2], options, NULL, NULL, &error));
    MUST(azk_verify_backup(path[2], NULL, &error));
    EXPECT(azk_restore(path[2], path[4], NULL, &error) != AZK_OK && had(&error, AZK_INVALID));
    sprintf(options, "verify=true, base=\"%s\"", path[1]);
    MUST(azk_restore(path[2], path[4], options, &error));
    MUST(azk_open(path[4], "create=false", &copy, &error));
    EXPECT(count_of(copy, "stock") == ROWS - 100 + 1);
    MUST(azk_close(copy, &error));

    /* The state before the last change. */
    MUST(azk_archive_log(db, &seen, &error));
    EXPECT(seen > time_us);
    sprintf(options, "archive=\"%s/archive\", to_time_us=%llu", argv[1], (unsigned long long)time_us);
    MUST(azk_restore(path[1], path[6], options, &error));
    MUST(azk_open(path[6], "create=false", &copy, &error));
    EXPECT(count_of(copy, "stock") == ROWS - 100);
    MUST(azk_close(copy, &error));

    MUST(azk_compact_into(db, path[3], "page_size=4096", see, &seen, &report, &error));
    EXPECT(seen == ROWS - 100 + 1 + 98 && strstr(azk_report_json(report), "\"rows\":19999") != NULL);
    azk_report_free(report);

    /* A backup through a file descriptor. */
    fd = open(path[5], O_CREAT | O_RDWR, 0600);
    MUST(azk_backup_to_fd(db, fd, NULL, NULL, NULL, &error));
    EXPECT(lseek(fd, 0, SEEK_SET) == 0);
    sprintf(path[4], "%s/streamed.azk", argv[1]);
    MUST(azk_restore_from_fd(fd, path[4], NULL, &error));
    EXPECT(close(fd) == 0);
    EXPECT(azk_backup_to_fd(db, -1, NULL, NULL, NULL, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    MUST(azk_close(db, &error));
    MUST(azk_open(path[4], "create=false", &db, &error));
    EXPECT(count_of(db, "stock") == ROWS - 100 + 1);
    MUST(azk_close(db, &error));

    MUST(azk_open_in_memory("cache_bytes=16777216", &db, &error));
    load_and_change(db);
    MUST(azk_close(db, &error));
    puts("well");
    return 0;
}
