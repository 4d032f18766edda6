/*
 * Photos and an index of their tags: a multimap table, and values that are read in parts. Usage: photos
 * DIRECTORY
 */

#include "azekura.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PHOTO = 3000000, PIECE = 65536 };

static azk_slice slice(const char *text) {
    azk_slice bytes;
    bytes.data = (const uint8_t *)text;
    bytes.len = strlen(text);
    return bytes;
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

/* Closes a cursor after its rows have been compared with `rows`, as "key=value,...". */
static void expect_rows(azk_cursor *cursor, const char *rows) {
    azk_error *error = NULL;
    azk_slice key, value;
    char found[1000] = "";
    int row = 1;
    for (;;) {
        MUST(azk_next(cursor, &key, &value, &row, &error));
        if (!row) {
            break;
        }
        sprintf(found + strlen(found), "%.*s=%.*s,", (int)key.len, (const char *)key.data, (int)value.len,
                (const char *)value.data);
    }
    azk_cursor_close(cursor);
    if (strcmp(found, rows) != 0) {
        fprintf(stderr, "%s is not %s\n", found, rows);
        exit(1);
    }
}

int main(int argc, char **argv) {
    azk_error *error = NULL;
    azk_db *db = NULL;
    azk_tx *tx = NULL;
    azk_snapshot *snapshot = NULL;
    azk_cursor *cursor = NULL;
    azk_slice photo, low = slice("autumn"), high = slice("temple"), wrong;
    unsigned char *bytes = malloc(PHOTO), *piece = malloc(PIECE);
    char path[1024];
    size_t copied = 0;
    uint64_t size = 0, count = 0, offset;
    int found = 0, n;

    EXPECT(argc == 2 && strlen(argv[1]) < 1000 && bytes != NULL && piece != NULL);
    sprintf(path, "%s/photos.azk", argv[1]);
    for (n = 0; n < PHOTO; n++) {
        bytes[n] = (unsigned char)(n / 1000 * 7 + n);
    }
    photo.data = bytes;
    photo.len = PHOTO;
    MUST(azk_open(path, "cache_bytes=16777216", &db, &error));
    MUST(azk_begin(db, &tx, &error));
    MUST(azk_put(tx, "photos", slice("pagoda"), photo, &error));
    MUST(azk_multimap_insert(tx, "tags", slice("temple"), slice("pagoda"), &found, &error));
    EXPECT(found);
    MUST(azk_multimap_insert(tx, "tags", slice("temple"), slice("pagoda"), &found, &error));
    EXPECT(!found);
    MUST(azk_multimap_insert(tx, "tags", slice("temple"), slice("bell"), NULL, &error));
    MUST(azk_multimap_insert(tx, "tags", slice("autumn"), slice("pagoda"), NULL, &error));
    MUST(azk_multimap_insert(tx, "tags", slice("temples"), slice("gate"), NULL, &error));
    MUST(azk_multimap_insert(tx, "tags", slice(""), slice(""), NULL, &error));
    MUST(azk_multimap_contains(tx, "tags", slice("temple"), slice("bell"), &found, &error));
    EXPECT(found);
    MUST(azk_multimap_contains(tx, "tags", slice("temple"), slice("gate"), &found, &error));
    EXPECT(!found);
    MUST(azk_multimap_values(tx, "tags", slice("temple"), 0, &cursor, &error));
    expect_rows(cursor, "temple=bell,temple=pagoda,");
    MUST(azk_multimap_values(tx, "tags", slice("missing"), 0, &cursor, &error));
    expect_rows(cursor, "");
    MUST(azk_multimap_range(tx, "tags", &low, &high, 0, &cursor, &error));
    expect_rows(cursor, "autumn=pagoda,");
    MUST(azk_multimap_range(tx, "tags", NULL, NULL, AZK_REVERSE, &cursor, &error));
    expect_rows(cursor, "temples=gate,temple=pagoda,temple=bell,autumn=pagoda,=,");
    MUST(azk_count(tx, "tags", &count, &error));
    EXPECT(count == 5);

    /* A part of a value, in the transaction that stored it. */
    MUST(azk_read_at(tx, "photos", slice("pagoda"), 2999990, piece, PIECE, &copied, &size, &found, &error));
    EXPECT(found && copied == 10 && size == PHOTO && memcmp(piece, bytes + 2999990, 10) == 0);
    MUST(azk_commit(tx, &error));

    /* The whole value in pieces, in a snapshot, while another transaction replaces it. */
    MUST(azk_snapshot_open(db, &snapshot, &error));
    MUST(azk_begin(db, &tx, &error));
    MUST(azk_put(tx, "photos", slice("pagoda"), slice("short"), &error));
    MUST(azk_multimap_remove_all(tx, "tags", slice("temple"), &count, &error));
    EXPECT(count == 2);
    MUST(azk_multimap_remove(tx, "tags", slice("temples"), slice("bell"), &found, &error));
    EXPECT(!found);
    MUST(azk_multimap_remove(tx, "tags", slice("temples"), slice("gate"), &found, &error));
    EXPECT(found);
    MUST(azk_multimap_range(tx, "tags", &low, NULL, 0, &cursor, &error));
    expect_rows(cursor, "autumn=pagoda,");
    MUST(azk_read_at(tx, "photos", slice("pagoda"), 1, piece, 3, &copied, NULL, &found, &error));
    EXPECT(found && copied == 3 && memcmp(piece, "hor", 3) == 0);
    MUST(azk_read_at(tx, "photos", slice("pagoda"), 5, piece, 3, &copied, &size, &found, &error));
    EXPECT(found && copied == 0 && size == 5);
    MUST(azk_read_at(tx, "photos", slice("pagoda"), UINT64_MAX, piece, 3, &copied, &size, &found, &error));
    EXPECT(found && copied == 0 && size == 5);
    MUST(azk_read_at(tx, "photos", slice("missing"), 0, piece, 3, &copied, &size, &found, &error));
    EXPECT(!found && copied == 0 && size == 0);
    MUST(azk_commit(tx, &error));
    MUST(azk_snapshot_read_at(snapshot, "photos", slice("pagoda"), 0, NULL, 0, &copied, &size, &found,
                              &error));
    EXPECT(found && copied == 0 && size == PHOTO);
    for (offset = 0; offset < size; offset += copied) {
        MUST(azk_snapshot_read_at(snapshot, "photos", slice("pagoda"), offset, piece, PIECE, &copied, &size,
                                  &found, &error));
        EXPECT(found && copied > 0 && memcmp(piece, bytes + offset, copied) == 0);
    }
    EXPECT(offset == PHOTO);
    MUST(azk_snapshot_multimap_contains(snapshot, "tags", slice("temple"), slice("bell"), &found, &error));
    EXPECT(found);
    MUST(azk_snapshot_multimap_values(snapshot, "tags", slice("temple"), AZK_REVERSE, &cursor, &error));
    expect_rows(cursor, "temple=pagoda,temple=bell,");
    MUST(azk_snapshot_multimap_range(snapshot, "tags", NULL, &low, 0, &cursor, &error));
    expect_rows(cursor, "=,");

    /* Calls that are refused. */
    EXPECT(azk_snapshot_read_at(snapshot, "photos", slice("a"), 0, NULL, 1, &copied, &size, &found, &error) ==
           AZK_INVALID);
    EXPECT(had(&error, AZK_INVALID));
    EXPECT(azk_snapshot_read_at(snapshot, "photos", slice("a"), 0, piece, (size_t)-1, &copied, &size, &found,
                                &error) == AZK_INVALID);
    EXPECT(had(&error, AZK_INVALID));
    EXPECT(azk_snapshot_multimap_contains(snapshot, "photos", slice("a"), slice("b"), &found, &error) ==
           AZK_INVALID); /* a table of rows */
    EXPECT(had(&error, AZK_INVALID));
    azk_snapshot_close(snapshot);
    MUST(azk_begin(db, &tx, &error));
    EXPECT(azk_multimap_insert(tx, "photos", slice("a"), slice("b"), NULL, &error) == AZK_INVALID);
    EXPECT(had(&error, AZK_INVALID));
    MUST(azk_multimap_values(tx, "photos", slice("pagoda"), 0, &cursor, &error));
    EXPECT(azk_next(cursor, &wrong, &wrong, &n, &error) == AZK_INVALID && had(&error, AZK_INVALID));
    azk_cursor_close(cursor);
    EXPECT(azk_multimap_insert(tx, "tags", slice("a"), photo, NULL, &error) == AZK_INVALID);
    EXPECT(had(&error, AZK_INVALID));
    MUST(azk_abort(tx, &error));
    MUST(azk_close(db, &error));
    free(bytes);
    free(piece);
    puts("well");
    return 0;
}
