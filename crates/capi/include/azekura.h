/* C interface of the Azekura store. Made by cbindgen from crates/capi; do not edit.

   All handles are opaque. A constructor gives a handle to the caller; close, commit, abort or free take it
   back, and it must not be used after that. A call returns AZK_OK, or another status and, unless `error` is
   null, an azk_error that the caller frees. CAPI-1, CAPI-2: pointers are handles of this library or null
   where that is said; slices and texts are readable during the call. */

#ifndef AZEKURA_H
#define AZEKURA_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/*
 Rows in descending order of their keys: a flag of `azk_range`.
 */
#define AZK_REVERSE 1

/*
 Version of this interface; it changes with each incompatible change.
 */
#define AZK_ABI_VERSION 1

/*
 Result of a call. All values but `AZK_OK` come with an `azk_error`.
 */
typedef enum azk_status {
  /*
   The call succeeded.
   */
  AZK_OK = 0,
  /*
   The transaction was rolled back so that others can go on: begin again.
   */
  AZK_CONFLICT = 1,
  /*
   Something is in use or exhausted for now.
   */
  AZK_BUSY = 2,
  /*
   The call or its arguments are wrong.
   */
  AZK_INVALID = 3,
  /*
   Bytes on disk are not those that were written.
   */
  AZK_CORRUPT = 4,
  /*
   The operating system failed a call.
   */
  AZK_IO = 5,
  /*
   The store, or the transaction, takes no more calls.
   */
  AZK_CLOSED = 6,
  /*
   Another error.
   */
  AZK_OTHER = 7,
  /*
   A defect of the library.
   */
  AZK_INTERNAL = 8,
  /*
   Keeps the size of the type.
   */
  AZK_STATUS_FORCE_INT = 2147483647,
} azk_status;

/*
 A position in a range of rows.
 */
typedef struct azk_cursor azk_cursor;

/*
 An open store. Any number of threads may use it at once.
 */
typedef struct azk_db azk_db;

/*
 An error: its status and a message. Free it with `azk_error_free`.
 */
typedef struct azk_error azk_error;

/*
 A state of a transaction that it can return to. Free it with `azk_savepoint_free`.
 */
typedef struct azk_savepoint azk_savepoint;

/*
 The store as it was at one moment. Reads of it wait for no transaction. One thread uses it at a time.
 */
typedef struct azk_snapshot azk_snapshot;

/*
 A commit that may not be durable yet. Free it with `azk_ticket_free`.
 */
typedef struct azk_ticket azk_ticket;

/*
 A transaction. One thread uses it at a time.
 */
typedef struct azk_tx azk_tx;

/*
 Bytes. A slice that a call returns is valid until the next call with the same handle.
 */
typedef struct azk_slice {
  /*
   First byte; may be null if `len` is 0.
   */
  const uint8_t *data;
  /*
   Number of bytes.
   */
  uintptr_t len;
} azk_slice;

/*
 Called while a backup runs, with the rows and bytes that it has written.
 */
typedef void (*azk_progress)(uint64_t rows, uint64_t bytes, void *context);

/*
 A function that `azk_retry` runs with a transaction. It returns `AZK_OK` for a commit. Otherwise it
 returns the status of the failed call, and stores the error of that call in `error`. It does not end the
 transaction.
 */
typedef enum azk_status (*azk_body)(struct azk_tx *tx, void *context, struct azk_error **error);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Returns the version of the interface: compare it with `AZK_ABI_VERSION` of the header.
 */
uint32_t azk_abi_version(void);

/*
 Opens the store in directory `path`, or creates it there. Options: `create`, `read_only`, `direct_pages`
 (`true` or `false`), `cache_bytes`, `page_size`, `version_bytes`, `transaction_timeout_ms`,
 `lock_timeout_ms`, `close_time_ms`, `encryption_key` (64 hexadecimal digits); null for none.

 # Safety

 CAPI-2 holds.
 */
enum azk_status azk_open(const char *path, const char *options, struct azk_db **db, struct azk_error **error);

/*
 Closes the store and frees the handle. Writes all changed pages, unless the option `close_time_ms` limits
 the time: the next opening then recovers the other pages from the log, and no commit is lost. On an error,
 such as `AZK_BUSY` while a transaction or a snapshot is open, the handle stays valid.

 # Safety

 CAPI-1 holds.
 */
enum azk_status azk_close(struct azk_db *db, struct azk_error **error);

/*
 Begins a transaction.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_begin(struct azk_db *db, struct azk_tx **tx, struct azk_error **error);

/*
 Commits a transaction and waits until it is durable. The handle is freed also on an error.

 # Safety

 CAPI-1 holds.
 */
enum azk_status azk_commit(struct azk_tx *tx, struct azk_error **error);

/*
 Rolls a transaction back. The handle is freed also on an error.

 # Safety

 CAPI-1 holds.
 */
enum azk_status azk_abort(struct azk_tx *tx, struct azk_error **error);

/*
 Reads the value at a key; `found` becomes 1 or 0.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_get(struct azk_tx *tx,
                        const char *table,
                        struct azk_slice key,
                        struct azk_slice *value,
                        int *found,
                        struct azk_error **error);

/*
 Stores a row, in place of one that has this key. The table is created with its first row.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_put(struct azk_tx *tx,
                        const char *table,
                        struct azk_slice key,
                        struct azk_slice value,
                        struct azk_error **error);

/*
 Removes the row at a key; `found`, unless null, becomes 1 if there was one, else 0.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_delete(struct azk_tx *tx,
                           const char *table,
                           struct azk_slice key,
                           int *found,
                           struct azk_error **error);

/*
 Opens a snapshot of the present state.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_snapshot_open(struct azk_db *db,
                                  struct azk_snapshot **snapshot,
                                  struct azk_error **error);

/*
 Reads the value at a key as it was; `found` becomes 1 or 0.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_snapshot_get(struct azk_snapshot *snapshot,
                                 const char *table,
                                 struct azk_slice key,
                                 struct azk_slice *value,
                                 int *found,
                                 struct azk_error **error);

/*
 Closes a snapshot and frees the handle; null is allowed. Cursors on it stay valid.

 # Safety

 CAPI-1 holds.
 */
void azk_snapshot_close(struct azk_snapshot *snapshot);

/*
 Makes a backup in the new directory `to` while transactions go on. Options: `rate` (bytes per second);
 null for none. `progress` may be null.

 # Safety

 CAPI-1 and CAPI-2 hold; `progress` may be called with `context` during this call.
 */
enum azk_status azk_backup(struct azk_db *db,
                           const char *to,
                           const char *options,
                           azk_progress progress,
                           void *context,
                           struct azk_error **error);

/*
 Makes a new store at `to` from the backup in directory `from`. Options: `verify`, and those of `azk_open`
 for the new store but `create` and `read_only`; null for none.

 # Safety

 CAPI-2 holds.
 */
enum azk_status azk_restore(const char *from, const char *to, const char *options, struct azk_error **error);

/*
 Returns the status of an error; `AZK_OK` for null.

 # Safety

 CAPI-1 holds.
 */
enum azk_status azk_error_status(const struct azk_error *error);

/*
 Returns the message of an error, in UTF-8, which is valid until the error is freed.

 # Safety

 CAPI-1 holds.
 */
const char *azk_error_message(const struct azk_error *error);

/*
 Frees an error; null is allowed.

 # Safety

 CAPI-1 holds.
 */
void azk_error_free(struct azk_error *error);

/*
 Opens a cursor over the rows from `low`, included, to `high`, excluded, in a transaction. A null pointer
 stands for no bound. `flags` is 0 or `AZK_REVERSE`.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_range(struct azk_tx *tx,
                          const char *table,
                          const struct azk_slice *low,
                          const struct azk_slice *high,
                          uint32_t flags,
                          struct azk_cursor **cursor,
                          struct azk_error **error);

/*
 As `azk_range`, in a snapshot.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_snapshot_range(struct azk_snapshot *snapshot,
                                   const char *table,
                                   const struct azk_slice *low,
                                   const struct azk_slice *high,
                                   uint32_t flags,
                                   struct azk_cursor **cursor,
                                   struct azk_error **error);

/*
 Moves a cursor to the next row: `row` becomes 1 and key and value are set, or 0 after the last row.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_next(struct azk_cursor *cursor,
                         struct azk_slice *key,
                         struct azk_slice *value,
                         int *row,
                         struct azk_error **error);

/*
 Closes a cursor and frees the handle; null is allowed.

 # Safety

 CAPI-1 holds.
 */
void azk_cursor_close(struct azk_cursor *cursor);

/*
 Runs `body` with a transaction and commits it; after a conflict runs it again, at most 1,000 times. If
 `body` returns a status other than `AZK_OK`, the transaction is rolled back and this status returned.

 # Safety

 CAPI-1 and CAPI-2 hold, also for the calls of `body`.
 */
enum azk_status azk_retry(struct azk_db *db, azk_body body, void *context, struct azk_error **error);

/*
 Begins a transaction with options: `durable` (`false`: a commit does not wait for the disk, and a power
 loss can take the last ones), `lock_timeout_ms`; null for none.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_begin_with(struct azk_db *db,
                               const char *options,
                               struct azk_tx **tx,
                               struct azk_error **error);

/*
 Commits a transaction and returns at once with a ticket. The transaction's handle is freed also on an
 error.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_commit_async(struct azk_tx *tx, struct azk_ticket **ticket, struct azk_error **error);

/*
 Blocks until the commit survives power loss.

 # Safety

 CAPI-1 holds.
 */
enum azk_status azk_ticket_wait(struct azk_ticket *ticket, struct azk_error **error);

/*
 Sets `durable` to 1 if the commit survives power loss now, else to 0.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_ticket_durable(struct azk_ticket *ticket, int *durable, struct azk_error **error);

/*
 Sets `fd` to an eventfd for `poll` or `epoll`: it becomes readable when the commit is durable or the log
 has failed, which `azk_ticket_durable` tells. It belongs to the ticket.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_ticket_fd(struct azk_ticket *ticket, int *fd, struct azk_error **error);

/*
 Frees a ticket and closes its eventfd; null is allowed. The commit goes on.

 # Safety

 CAPI-1 holds.
 */
void azk_ticket_free(struct azk_ticket *ticket);

/*
 Marks the present state of a transaction.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_savepoint_set(struct azk_tx *tx,
                                  struct azk_savepoint **savepoint,
                                  struct azk_error **error);

/*
 Undoes every change of a transaction since the savepoint. Locks stay.

 # Safety

 CAPI-1 holds.
 */
enum azk_status azk_rollback_to(struct azk_tx *tx, struct azk_savepoint *savepoint, struct azk_error **error);

/*
 Frees a savepoint; null is allowed. The transaction stays as it is.

 # Safety

 CAPI-1 holds.
 */
void azk_savepoint_free(struct azk_savepoint *savepoint);

/*
 As `azk_get`, and locks the row for an update.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_get_for_update(struct azk_tx *tx,
                                   const char *table,
                                   struct azk_slice key,
                                   struct azk_slice *value,
                                   int *found,
                                   struct azk_error **error);

/*
 Removes a table with all its rows; `found`, unless null, becomes 1 if there was one, else 0.

 # Safety

 CAPI-1 and CAPI-2 hold.
 */
enum azk_status azk_drop_table(struct azk_tx *tx, const char *table, int *found, struct azk_error **error);

/*
 Writes changed pages to the disk, so that a later opening has less to recover.

 # Safety

 CAPI-1 holds.
 */
enum azk_status azk_checkpoint(struct azk_db *db, struct azk_error **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* AZEKURA_H */
