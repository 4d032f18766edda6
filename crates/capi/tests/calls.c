/*
 * Random calls of the C interface, compared with a model in arrays. Usage: calls DIRECTORY
 *
 * AZEKURA_CALLS is the number of calls, and AZEKURA_CALLS_SEED the seed. Some calls have null pointers or
 * wrong lengths, which are refused.
 */

#define _POSIX_C_SOURCE 200809L

#include "azekura.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { TABLES = 3, KEYS = 40, SAVEPOINTS = 4, SNAPSHOTS = 3, MEMBERS = 8, LARGE = 20000 };

/* The value of each key, 0 for none. */
typedef struct {
    unsigned rows[TABLES][KEYS];
    /* The sets of values of a multimap table, as bits. */
    unsigned sets[KEYS];
} model;

static unsigned long seed, calls;
static azk_db *db;
static azk_tx *tx;
static model committed, current, saved[SAVEPOINTS], seen[SNAPSHOTS];
static azk_savepoint *savepoints[SAVEPOINTS];
static azk_snapshot *snapshots[SNAPSHOTS];
static int saved_count;
/* A small cache, and no limit that a snapshot of this program reaches. */
static const char *const OPTIONS = "cache_bytes=1048576, version_bytes=268435456";
static const char *const NAMES[TABLES] = {"a", "b", "a table with a longer name"};
static unsigned char written[LARGE], expected[LARGE];

#define EXPECT(fact)                                                                                  \
    do {                                                                                              \
        if (!(fact)) {                                                                                \
            fprintf(stderr, "seed %lu, call %lu, line %d: ", seed, calls, __LINE__);                  \
            fprintf(stderr, "not so: %s\n", #fact);                                                   \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

/* Makes a call that succeeds, or is refused with this status and an error. */
#define CALL(result, call)                                       \
    do {                                                         \
        azk_error *error = NULL;                                 \
        azk_status status_ = (call);                             \
        calls++;                                                 \
        if (status_ != (result)) {                               \
            fprintf(stderr, "%s\n", azk_error_message(error));   \
        }                                                        \
        EXPECT(status_ == (result));                             \
        EXPECT((error == NULL) == (status_ == AZK_OK));          \
        EXPECT(error == NULL || azk_error_status(error) == status_); \
        azk_error_free(error);                                   \
    } while (0)

static unsigned long state;

static unsigned below(unsigned n) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)((state >> 33) % n);
}

/* Key 0 is empty, and the lengths of the others differ. The order is that of the numbers. */
static azk_slice key_of(unsigned number, unsigned char *buffer) {
    azk_slice key;
    key.len = number == 0 ? 0 : 1 + number % 5 * 100;
    memset(buffer, (int)number, key.len);
    key.data = number == 0 && below(2) ? NULL : buffer;
    return key;
}

static azk_slice value_of(unsigned value, unsigned char *buffer) {
    azk_slice slice;
    slice.data = buffer;
    slice.len = value % 31 == 0 ? LARGE - value % 1000 : value % 31 == 1 ? 0 : value % 300;
    memset(buffer, (int)(value & 255), slice.len);
    return slice;
}

static void expect_value(azk_slice value, int found, unsigned number) {
    azk_slice right = value_of(number, expected);
    EXPECT(found == (number != 0));
    EXPECT(!found || value.len == right.len);
    EXPECT(!found || memcmp(value.data, expected, right.len) == 0);
}

static void expect_rows(azk_cursor *cursor, const unsigned *rows, int low, int high, int is_reverse) {
    unsigned char buffer[500];
    int number = is_reverse ? high - 1 : low;
    for (;;) {
        azk_slice key, value, right;
        int row;
        CALL(AZK_OK, azk_next(cursor, &key, &value, &row, &error));
        while (number >= low && number < high && rows[number] == 0) {
            number += is_reverse ? -1 : 1;
        }
        EXPECT(row == (number >= low && number < high));
        if (!row) {
            break;
        }
        right = key_of((unsigned)number, buffer);
        EXPECT(key.len == right.len && memcmp(key.data, buffer, right.len) == 0);
        expect_value(value, 1, rows[number]);
        number += is_reverse ? -1 : 1;
    }
    azk_cursor_close(cursor);
}

/* Value 0 of a set is empty, and the others have zero bytes. */
static azk_slice member_of(unsigned number, unsigned char *buffer) {
    azk_slice member;
    member.data = buffer;
    member.len = number;
    memset(buffer, 0, number);
    return member;
}

static void walk_sets(azk_snapshot *snapshot, const model *rows) {
    unsigned char low_bytes[500], high_bytes[500], member[MEMBERS];
    unsigned flags = below(2) ? AZK_REVERSE : 0, low = below(KEYS), high = below(KEYS);
    azk_slice least = key_of(low, low_bytes), end = key_of(high, high_bytes), key, value;
    azk_cursor *cursor = NULL;
    int found, row, count = 0, right = 0;
    unsigned at, bit;
    if (below(2)) {
        high = low + 1;
        if (snapshot != NULL) {
            CALL(AZK_OK, azk_snapshot_multimap_values(snapshot, "sets", least, flags, &cursor, &error));
        } else {
            CALL(AZK_OK, azk_multimap_values(tx, "sets", least, flags, &cursor, &error));
        }
    } else if (snapshot != NULL) {
        CALL(AZK_OK, azk_snapshot_multimap_range(snapshot, "sets", &least, &end, flags, &cursor, &error));
    } else {
        CALL(AZK_OK, azk_multimap_range(tx, "sets", &least, &end, flags, &cursor, &error));
    }
    at = flags ? high - 1 : low;
    bit = flags ? MEMBERS - 1 : 0;
    for (;;) {
        CALL(AZK_OK, azk_next(cursor, &key, &value, &row, &error));
        for (; at + 1 > low && at < high && low < high; bit = flags ? MEMBERS - 1 : 0, at += flags ? -1 : 1) {
            while (bit < MEMBERS && !(rows->sets[at] >> bit & 1)) {
                bit += flags ? -1 : 1;
            }
            if (bit < MEMBERS) {
                break;
            }
        }
        EXPECT(row == (at + 1 > low && at < high && low < high));
        if (!row) {
            break;
        }
        least = key_of(at, low_bytes);
        end = member_of(bit, member);
        EXPECT(key.len == least.len && memcmp(key.data, low_bytes, key.len) == 0);
        EXPECT(value.len == end.len && memcmp(value.data, member, value.len) == 0);
        bit += flags ? -1 : 1;
        count++;
    }
    azk_cursor_close(cursor);
    for (at = low; at < high; at++) {
        for (bit = 0; bit < MEMBERS; bit++) {
            right += (int)(rows->sets[at] >> bit & 1);
        }
    }
    EXPECT(count == right);
    at = below(KEYS);
    bit = below(MEMBERS);
    least = key_of(at, low_bytes);
    end = member_of(bit, member);
    if (snapshot != NULL) {
        CALL(AZK_OK, azk_snapshot_multimap_contains(snapshot, "sets", least, end, &found, &error));
    } else {
        CALL(AZK_OK, azk_multimap_contains(tx, "sets", least, end, &found, &error));
    }
    EXPECT(found == (int)(rows->sets[at] >> bit & 1));
}

/* Reads a part of a value; `number` is the value, 0 for none. */
static void read_part(azk_snapshot *snapshot, const char *table, azk_slice key, unsigned number) {
    azk_slice right = value_of(number, expected);
    unsigned char part[1000];
    uint64_t offset = below(2) ? below(LARGE) : below(200), size;
    size_t len = below(sizeof part + 1), copied, most;
    int found;
    if (snapshot != NULL) {
        CALL(AZK_OK,
             azk_snapshot_read_at(snapshot, table, key, offset, part, len, &copied, &size, &found, &error));
    } else {
        CALL(AZK_OK, azk_read_at(tx, table, key, offset, part, len, &copied, &size, &found, &error));
    }
    EXPECT(found == (number != 0) && size == (found ? right.len : 0));
    most = offset < size ? size - offset : 0;
    EXPECT(copied == (most < len ? most : len));
    EXPECT(copied == 0 || memcmp(part, expected + offset, copied) == 0);
}

static void walk(azk_snapshot *snapshot, const model *rows) {
    unsigned char low_bytes[500], high_bytes[500];
    unsigned table = below(TABLES), flags = below(2) ? AZK_REVERSE : 0;
    int has_low = (int)below(2), has_high = (int)below(2);
    int low = has_low ? (int)below(KEYS) : 0, high = has_high ? (int)below(KEYS) : KEYS;
    azk_slice least = key_of((unsigned)low, low_bytes), end = key_of((unsigned)high % KEYS, high_bytes);
    azk_slice *from = has_low ? &least : NULL, *to = has_high ? &end : NULL;
    azk_cursor *cursor = NULL;
    if (snapshot != NULL) {
        CALL(AZK_OK, azk_snapshot_range(snapshot, NAMES[table], from, to, flags, &cursor, &error));
    } else {
        CALL(AZK_OK, azk_range(tx, NAMES[table], from, to, flags, &cursor, &error));
    }
    expect_rows(cursor, rows->rows[table], low, high, flags != 0);
}

static void end_savepoints(int count) {
    while (saved_count > count) {
        azk_savepoint_free(savepoints[--saved_count]);
    }
}

static azk_status put_in_body(azk_tx *own, void *context, azk_error **error) {
    unsigned char buffer[500];
    unsigned *row = context;
    return azk_put(own, NAMES[row[0]], key_of(row[1], buffer), value_of(row[2], written), error);
}

static void outside_a_transaction(void) {
    unsigned row[3];
    switch (below(10)) {
    case 0:
        row[0] = below(TABLES), row[1] = below(KEYS), row[2] = 1 + below(100000);
        CALL(AZK_OK, azk_retry(db, put_in_body, row, &error));
        committed.rows[row[0]][row[1]] = row[2];
        break;
    case 1:
        CALL(AZK_OK, azk_begin(db, &tx, &error));
        break;
    default:
        CALL(AZK_OK, azk_begin_with(db, "durable=false, lock_timeout_ms=60000", &tx, &error));
    }
    current = committed;
}

static void end_transaction(void) {
    azk_ticket *ticket = NULL;
    struct pollfd ready;
    int durable = 0;
    end_savepoints(0);
    switch (below(4)) {
    case 0:
        CALL(AZK_OK, azk_abort(tx, &error));
        tx = NULL;
        return;
    case 1:
        CALL(AZK_OK, azk_commit_async(tx, &ticket, &error));
        if (below(2)) {
            ready.events = POLLIN;
            CALL(AZK_OK, azk_ticket_fd(ticket, &ready.fd, &error));
            EXPECT(poll(&ready, 1, 60000) == 1);
            CALL(AZK_OK, azk_ticket_durable(ticket, &durable, &error));
            EXPECT(durable);
        } else if (below(2)) {
            CALL(AZK_OK, azk_ticket_wait(ticket, &error));
        }
        azk_ticket_free(ticket);
        break;
    default:
        CALL(AZK_OK, azk_commit(tx, &error));
    }
    tx = NULL;
    committed = current;
}

static void in_transaction(void) {
    unsigned char buffer[500];
    unsigned table = below(TABLES), number = below(KEYS), value = 1 + below(100000), *row;
    azk_slice key = key_of(number, buffer), got, least, new;
    unsigned char bytes[500];
    uint64_t count = 0, right = 0;
    int found = 0, at;
    row = &current.rows[table][number];
    switch (below(26)) {
    case 0: case 1: case 2: case 3:
        CALL(AZK_OK, azk_put(tx, NAMES[table], key, value_of(value, written), &error));
        *row = value;
        break;
    case 4: case 5: case 6:
        CALL(AZK_OK, azk_get(tx, NAMES[table], key, &got, &found, &error));
        expect_value(got, found, *row);
        break;
    case 7:
        CALL(AZK_OK, azk_get_for_update(tx, NAMES[table], key, &got, &found, &error));
        expect_value(got, found, *row);
        break;
    case 8: case 9:
        CALL(AZK_OK, azk_delete(tx, NAMES[table], key, below(2) ? &found : NULL, &error));
        EXPECT(!found || *row != 0);
        *row = 0;
        break;
    case 10:
        walk(NULL, &current);
        break;
    case 11:
        if (saved_count < SAVEPOINTS) {
            CALL(AZK_OK, azk_savepoint_set(tx, &savepoints[saved_count], &error));
            saved[saved_count++] = current;
        }
        break;
    case 12:
        if (saved_count > 0) {
            at = (int)below((unsigned)saved_count);
            CALL(AZK_OK, azk_rollback_to(tx, savepoints[at], &error));
            current = saved[at];
            end_savepoints(at + 1);
        }
        break;
    case 13:
        if (below(20) == 0) {
            CALL(AZK_OK, azk_drop_table(tx, NAMES[table], NULL, &error));
            memset(current.rows[table], 0, sizeof current.rows[table]);
        }
        break;
    case 14: case 15:
        end_transaction();
        break;
    case 16:
        CALL(AZK_OK, azk_insert_if_absent(tx, NAMES[table], key, value_of(value, written), &found, &error));
        EXPECT(found == (*row == 0));
        *row = found ? value : *row;
        break;
    case 17:
        got = value_of(*row != 0 && below(3) ? *row : 1 + below(100000), expected);
        new = value_of(value, written);
        CALL(AZK_OK, azk_compare_and_set(tx, NAMES[table], key, *row == 0 && below(3) ? NULL : &got,
                                         below(3) ? &new : NULL, &found, &error));
        CALL(AZK_OK, azk_contains(tx, NAMES[table], key, &at, &error));
        if (found) {
            *row = at ? value : 0;
        }
        EXPECT(at == (*row != 0));
        CALL(AZK_OK, azk_prefetch(tx, NAMES[table], &key, below(2), below(2) ? NULL : &count, &error));
        CALL(AZK_INVALID, azk_prefetch(tx, NAMES[table], NULL, 1 + below(9), &count, &error));
        CALL(AZK_INVALID, azk_prefetch(tx, NAMES[table], &key, (size_t)-1 - below(9), &count, &error));
        break;
    case 18:
        least = key_of(below(KEYS), bytes);
        if (below(8) == 0) {
            at = (int)number;
            CALL(AZK_OK, azk_remove_range(tx, NAMES[table], &key, NULL, &count, &error));
            for (; at < KEYS; at++) {
                right += current.rows[table][at] != 0;
                current.rows[table][at] = 0;
            }
            EXPECT(count == right);
        } else {
            CALL(AZK_OK, azk_remove_range(tx, NAMES[table], &least, &least, &count, &error));
            EXPECT(count == 0);
        }
        break;
    case 19:
        CALL(AZK_OK, azk_count(tx, NAMES[table], &count, &error));
        for (at = 0; at < KEYS; at++) {
            right += current.rows[table][at] != 0;
        }
        EXPECT(count == right);
        break;
    case 20:
        if (below(4) == 0) {
            CALL(AZK_OK, azk_pop(tx, NAMES[table], AZK_SKIP_LOCKED, &got, &new, &found, &error));
            for (at = 0; at < KEYS && current.rows[table][at] == 0; at++) {
            }
            EXPECT(found == (at < KEYS));
            if (found) {
                least = key_of((unsigned)at, bytes);
                EXPECT(got.len == least.len && memcmp(got.data, bytes, got.len) == 0);
                expect_value(new, found, current.rows[table][at]);
                current.rows[table][at] = 0;
            }
        }
        break;
    case 21:
        read_part(NULL, NAMES[table], key, *row);
        break;
    case 22:
        value = below(MEMBERS);
        new = member_of(value, bytes);
        CALL(AZK_OK, azk_multimap_insert(tx, "sets", key, new, &found, &error));
        EXPECT(found == !(current.sets[number] >> value & 1));
        current.sets[number] |= 1u << value;
        break;
    case 23:
        value = below(MEMBERS);
        new = member_of(value, bytes);
        CALL(AZK_OK, azk_multimap_remove(tx, "sets", key, new, &found, &error));
        EXPECT(found == (int)(current.sets[number] >> value & 1));
        current.sets[number] &= ~(1u << value);
        break;
    case 24:
        walk_sets(NULL, &current);
        if (below(4) == 0) {
            CALL(AZK_OK, azk_multimap_remove_all(tx, "sets", key, &count, &error));
            for (value = 0; value < MEMBERS; value++) {
                right += current.sets[number] >> value & 1;
            }
            EXPECT(count == right);
            current.sets[number] = 0;
        }
        break;
    default:
        got.data = below(2) ? NULL : buffer;
        got.len = got.data == NULL ? 1 + below(9) : (size_t)-1 - below(9);
        CALL(AZK_INVALID, azk_put(tx, NAMES[table], got, key, &error));
        CALL(AZK_INVALID, azk_put(tx, below(2) ? NULL : "", key, key, &error));
        CALL(AZK_INVALID, azk_get(tx, NAMES[table], key, NULL, &found, &error));
        CALL(AZK_INVALID, azk_rollback_to(tx, NULL, &error));
    }
}

static void on_a_snapshot(void) {
    unsigned char buffer[500];
    unsigned at = below(SNAPSHOTS), table = below(TABLES), number = below(KEYS);
    azk_slice got;
    int found;
    if (snapshots[at] == NULL) {
        CALL(AZK_OK, azk_snapshot_open(db, &snapshots[at], &error));
        seen[at] = committed;
    } else if (below(8) == 0) {
        azk_snapshot_close(snapshots[at]);
        snapshots[at] = NULL;
    } else if (below(2)) {
        walk(snapshots[at], &seen[at]);
    } else if (below(2)) {
        walk_sets(snapshots[at], &seen[at]);
        read_part(snapshots[at], NAMES[table], key_of(number, buffer), seen[at].rows[table][number]);
    } else {
        azk_slice key = key_of(number, buffer);
        CALL(AZK_INVALID, azk_snapshot_get(snapshots[at], "", key, &got, &found, &error));
        CALL(AZK_OK, azk_snapshot_get(snapshots[at], NAMES[table], key, &got, &found, &error));
        expect_value(got, found, seen[at].rows[table][number]);
    }
}

static void open_again(const char *path) {
    int at;
    for (at = 0; at < SNAPSHOTS; at++) {
        azk_snapshot_close(snapshots[at]);
        snapshots[at] = NULL;
    }
    if (tx != NULL) {
        CALL(AZK_BUSY, azk_close(db, &error));
        end_transaction();
    }
    CALL(AZK_OK, azk_close(db, &error));
    CALL(AZK_OK, azk_open(path, OPTIONS, &db, &error));
}

int main(int argc, char **argv) {
    const char *most = getenv("AZEKURA_CALLS"), *first = getenv("AZEKURA_CALLS_SEED");
    unsigned long limit = most != NULL ? strtoul(most, NULL, 10) : 20000;
    EXPECT(argc == 2);
    seed = first != NULL ? strtoul(first, NULL, 10) : 1;
    state = seed;
    CALL(AZK_OK, azk_open(argv[1], OPTIONS, &db, &error));
    while (calls < limit) {
        if (below(5000) == 0) {
            open_again(argv[1]);
        } else if (below(1000) == 0) {
            CALL(AZK_OK, azk_checkpoint(db, &error));
        } else if (below(5) == 0) {
            on_a_snapshot();
        } else if (tx == NULL) {
            outside_a_transaction();
        } else {
            in_transaction();
        }
    }
    open_again(argv[1]);
    CALL(AZK_OK, azk_begin(db, &tx, &error));
    for (limit = 0; limit < 50; limit++) {
        walk(NULL, &committed);
    }
    CALL(AZK_OK, azk_abort(tx, &error));
    CALL(AZK_OK, azk_close(db, &error));
    puts("well");
    return 0;
}
