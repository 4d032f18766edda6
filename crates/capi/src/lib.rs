//! C interface of the Azekura store.
//!
//! Programs in Rust use the crate `azekura`. cbindgen generates the header `include/azekura.h`, and a test
//! compares the header with this crate. `examples/shop.c` is a complete program.
//!
//! - **CAPI-1** Each handle is a box that its `azk_…` constructor returns to the caller, and that exactly one
//!   call (close, commit, abort, free) takes back. The caller passes no other pointer, and does not use the
//!   handle after that call.
//! - **CAPI-2** A slice that the caller passes points to `len` readable bytes for the duration of the call;
//!   an array of slices has as many elements as the caller says; an output pointer points to writable memory
//!   of its type.
//! - **CAPI-3** No panic leaves a function: it becomes `AZK_INTERNAL`, and the transaction or cursor that
//!   panicked accepts no more calls.

#![expect(non_camel_case_types, reason = "names of the C interface")]

mod options;

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, TryLockError};

use azekura::{Database, Error, ErrorKind, Snapshot, Table, TableDefinition, Transaction};

/// Result of a call. Each value except `AZK_OK` comes with an `azk_error`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum azk_status {
    /// The call succeeded.
    AZK_OK = 0,
    /// The transaction was rolled back because of a conflict with another one: begin it again.
    AZK_CONFLICT = 1,
    /// A resource is in use or exhausted at the moment.
    AZK_BUSY = 2,
    /// The call or its arguments are wrong.
    AZK_INVALID = 3,
    /// Bytes on disk are not those that were written.
    AZK_CORRUPT = 4,
    /// A call of the operating system failed.
    AZK_IO = 5,
    /// The store, or the transaction, accepts no more calls.
    AZK_CLOSED = 6,
    /// Another error.
    AZK_OTHER = 7,
    /// A defect of the library.
    AZK_INTERNAL = 8,
    /// Fixes the size of the type; never returned.
    AZK_STATUS_FORCE_INT = 0x7fff_ffff,
}

/// A sequence of bytes. A slice that a call returns is valid until the next call with the same handle.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct azk_slice {
    /// First byte; may be null if `len` is 0.
    pub data: *const u8,
    /// Number of bytes.
    pub len: usize,
}

/// An open store. Any number of threads may use it at once.
#[derive(Debug)]
pub struct azk_db {
    db: Database,
}

type SharedTx = Arc<Mutex<Option<Transaction>>>;

/// A transaction. One thread uses it at a time. Before another thread continues it, call
/// `azk_detach_from_thread`.
#[derive(Debug)]
pub struct azk_tx {
    tx: SharedTx,
    /// `true` while the function of `azk_retry` runs, which does not end the transaction.
    is_of_retry: bool,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The state of the store at one moment. Reads of a snapshot wait for no transaction. One thread uses it at a
/// time.
#[derive(Debug)]
pub struct azk_snapshot {
    snapshot: Snapshot,
    value: Vec<u8>,
}

/// The source of a cursor's rows.
#[derive(Debug)]
enum Source {
    Transaction(SharedTx),
    Snapshot(Snapshot),
    /// The cursor has all its rows.
    None,
}

/// A cursor over a range of rows.
#[derive(Debug)]
pub struct azk_cursor {
    source: Source,
    table: String,
    /// The rows are pairs of a multimap table.
    is_multimap: bool,
    low: Bound<Vec<u8>>,
    high: Bound<Vec<u8>>,
    is_reverse: bool,
    is_done: bool,
    /// Rows that were read but not returned yet, in reverse order; of a multimap table, keys and values.
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    row: (Vec<u8>, Vec<u8>),
}

/// An error: its status and a message. Free it with `azk_error_free`.
#[derive(Debug)]
pub struct azk_error {
    status: azk_status,
    message: CString,
}

/// A flag of `azk_range` and `azk_pop`: returns the rows in descending order of their keys.
pub const AZK_REVERSE: u32 = 1;

/// A flag of `azk_pop`: skips rows that other transactions have locked.
pub const AZK_SKIP_LOCKED: u32 = 2;

/// A flag of `azk_bulk_load`: the rows are in any order.
pub const AZK_UNSORTED: u32 = 4;

/// Version of this interface; it changes with each incompatible change.
pub const AZK_ABI_VERSION: u32 = 1;

/// A function that is called while a backup runs, with the number of rows and bytes written so far.
pub type azk_progress = Option<unsafe extern "C" fn(rows: u64, bytes: u64, context: *mut c_void)>;

fn status_of(error: &Error) -> azk_status {
    match error.kind() {
        ErrorKind::Conflict => azk_status::AZK_CONFLICT,
        ErrorKind::Busy => azk_status::AZK_BUSY,
        ErrorKind::Invalid => azk_status::AZK_INVALID,
        ErrorKind::Corrupt => azk_status::AZK_CORRUPT,
        ErrorKind::Io => azk_status::AZK_IO,
        ErrorKind::Closed => azk_status::AZK_CLOSED,
        _ => azk_status::AZK_OTHER,
    }
}

fn fail(error: *mut *mut azk_error, status: azk_status, text: String) -> azk_status {
    if !error.is_null() {
        let message = CString::new(text.replace('\0', "\\0")).unwrap_or_default();
        // SAFETY: CAPI-2.
        unsafe { error.write(Box::into_raw(Box::new(azk_error { status, message }))) };
    }
    status
}

/// Runs a call, stores its error, and catches panics (CAPI-3).
fn guarded(error: *mut *mut azk_error, call: impl FnOnce() -> Result<(), Error>) -> azk_status {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => azk_status::AZK_OK,
        // `with_tx` and `take` return the same error for a transaction that has ended.
        Ok(Err(failed @ Error::Closed)) => {
            fail(error, status_of(&failed), "the transaction has ended, or the store was closed".into())
        }
        Ok(Err(failed)) => fail(error, status_of(&failed), failed.full_message()),
        Err(_) => fail(error, azk_status::AZK_INTERNAL, "the library panicked; this is a defect".into()),
    }
}

fn null(name: &str) -> Error {
    Error::Invalid(format!("argument {name} is null"))
}

/// Borrows the object of a handle that one thread at a time uses.
unsafe fn handle<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Error> {
    // SAFETY: CAPI-1, which the caller of this function guarantees.
    unsafe { pointer.as_mut() }.ok_or_else(|| null(name))
}

/// Borrows the object of a handle that several threads may use at once.
unsafe fn shared<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Error> {
    // SAFETY: CAPI-1, which the caller of this function guarantees.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(name))
}

/// Borrows a string argument.
unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Error> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: CAPI-2: a string ends with a zero byte.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Error::Invalid(format!("argument {name} is not UTF-8")))
}

/// Borrows a path argument, which may have any bytes. An empty path is refused: joined with the name of a
/// file, it would mean the working directory.
unsafe fn path_of<'a>(pointer: *const c_char, name: &str) -> Result<&'a Path, Error> {
    if pointer.is_null() {
        return Err(null(name));
    }
    // SAFETY: CAPI-2: a string ends with a zero byte.
    let path = unsafe { CStr::from_ptr(pointer) };
    if path.is_empty() {
        return Err(Error::Invalid(format!("argument {name} is an empty path")));
    }
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// Borrows a string argument that may be null; null means an empty string.
unsafe fn text_or_empty<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Error> {
    // SAFETY: CAPI-2.
    if pointer.is_null() { Ok("") } else { unsafe { text(pointer, name) } }
}

unsafe fn bytes<'a>(slice: azk_slice, name: &str) -> Result<&'a [u8], Error> {
    match (slice.data.is_null(), slice.len) {
        (true, 0) => Ok(&[]),
        (true, _) => Err(null(name)),
        // No memory has that many bytes, but a negative number that becomes a `size_t` does.
        (false, len) if isize::try_from(len).is_err() => Err(Error::Invalid(format!(
            "argument {name} has a length of {len} bytes; no memory has that many"
        ))),
        // SAFETY: CAPI-2.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(slice.data, len) }),
    }
}

/// Borrows the byte strings of an array of `count` slices.
unsafe fn byte_strings<'a>(
    array: *const azk_slice,
    count: usize,
    name: &str,
) -> Result<Vec<&'a [u8]>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if array.is_null() {
        return Err(null(name));
    }
    if count > isize::MAX as usize / size_of::<azk_slice>() {
        return Err(Error::Invalid(format!("argument {name} has {count} elements; no memory has that many")));
    }
    // SAFETY: CAPI-2.
    unsafe { std::slice::from_raw_parts(array, count).iter().map(|&slice| bytes(slice, name)).collect() }
}

unsafe fn put<T>(to: *mut T, value: T, name: &str) -> Result<(), Error> {
    if to.is_null() {
        return Err(null(name));
    }
    // SAFETY: CAPI-2.
    unsafe { to.write(value) };
    Ok(())
}

/// Stores a handle of the object that `make` returns. Makes nothing if `to` is null.
unsafe fn put_new<T>(
    to: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Result<T, Error>,
) -> Result<(), Error> {
    if to.is_null() {
        return Err(null(name));
    }
    let made = Box::into_raw(Box::new(make()?));
    // SAFETY: CAPI-2.
    unsafe { to.write(made) };
    Ok(())
}

const fn slice_of(bytes: &[u8]) -> azk_slice {
    azk_slice { data: bytes.as_ptr(), len: bytes.len() }
}

const NO_BYTES: azk_slice = azk_slice { data: ptr::null(), len: 0 };

fn ended() -> Error {
    Error::Closed
}

/// Runs `call` with the transaction, unless it has ended or a call of it panicked. A call of a function that
/// another call of the transaction runs is refused: it would wait for itself.
fn with_tx<T>(
    tx: &Mutex<Option<Transaction>>,
    call: impl FnOnce(&Transaction) -> Result<T, Error>,
) -> Result<T, Error> {
    let open = match tx.try_lock() {
        Ok(open) => open,
        Err(TryLockError::Poisoned(_)) => return Err(ended()),
        Err(TryLockError::WouldBlock) => return Err(in_use()),
    };
    call(open.as_ref().ok_or_else(ended)?)
}

fn in_use() -> Error {
    Error::Invalid("another call uses the transaction at the moment".into())
}

/// Returns an error if `flags` has other bits than `known`.
fn check_flags(flags: u32, known: u32) -> Result<(), Error> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Error::Invalid(format!("unknown flags {unknown:#x}"))),
    }
}

/// Borrows a slice argument that may be absent.
unsafe fn optional<'a>(slice: *const azk_slice, name: &str) -> Result<Option<&'a [u8]>, Error> {
    // SAFETY: CAPI-2.
    unsafe { slice.as_ref().map(|&slice| bytes(slice, name)).transpose() }
}

/// Returns the version of the interface, to be compared with `AZK_ABI_VERSION` of the header.
#[unsafe(no_mangle)]
pub extern "C" fn azk_abi_version() -> u32 {
    AZK_ABI_VERSION
}

/// Returns the version of the library, such as `0.2.0`.
#[unsafe(no_mangle)]
pub extern "C" fn azk_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Opens the store in directory `path`, or creates it there. Options: `create`, `read_only`, `direct_pages`,
/// `durable` (`true` or `false`), `memory_bytes`, `cache_bytes`, `page_size`, `undo_bytes`, `version_bytes`,
/// `transaction_timeout_ms`, `lock_timeout_ms`, `close_time_ms`, `recovery_time_ms`, `log_sync_interval_ms`,
/// `file_mode` (octal), `archive` (a directory), `encryption_key` (64 hexadecimal digits); null for no
/// options. A value with commas is written in double quotes. With `durable=false` a commit does not wait for
/// the disk, and a crash of the process may lose the last commits; with `log_sync_interval_ms` only a power
/// loss may.
///
/// # Safety
///
/// CAPI-2 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_open(
    path: *const c_char,
    options: *const c_char,
    db: *mut *mut azk_db,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-2.
        let (path, options) = unsafe { (path_of(path, "path")?, text_or_empty(options, "options")?) };
        // SAFETY: CAPI-2.
        unsafe { put_new(db, "db", || Ok(azk_db { db: options::builder(options)?.open(path)? })) }
    })
}

/// Closes the store and frees the handle. Writes all changed pages. If the option `close_time_ms` limits the
/// time, the next opening recovers the other pages from the log; no commit is lost. On an error, such as
/// `AZK_BUSY` while a transaction or a snapshot is open, the handle stays valid.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_close(db: *mut azk_db, error: *mut *mut azk_error) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        unsafe { shared(db, "db")? }.db.close()?;
        // SAFETY: CAPI-1: the handle is taken back here.
        drop(unsafe { Box::from_raw(db) });
        Ok(())
    })
}

/// Begins a transaction.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_begin(
    db: *mut azk_db,
    tx: *mut *mut azk_tx,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1, CAPI-2.
    unsafe { azk_begin_with(db, ptr::null(), tx, error) }
}

/// Returns the transaction of a handle, and frees the handle. Returns an error and keeps the handle if
/// another call uses the transaction: that call, or `azk_retry`, runs the function that calls this one.
unsafe fn take(tx: *mut azk_tx) -> Result<Transaction, Error> {
    // SAFETY: CAPI-1.
    let handle = unsafe { handle(tx, "tx")? };
    if handle.is_of_retry {
        let text = "azk_retry ends its transaction; its function returns AZK_OK to commit, or another status";
        return Err(Error::Invalid(text.into()));
    }
    if let Err(TryLockError::WouldBlock) = handle.tx.try_lock() {
        return Err(in_use());
    }
    // SAFETY: CAPI-1: the handle is taken back here.
    let handle = unsafe { Box::from_raw(tx) };
    let open = handle.tx.lock().map_err(|_| ended())?.take();
    open.ok_or_else(ended)
}

/// Commits a transaction and waits until it is durable. The handle is also freed on an error, except if
/// another call uses the transaction at the moment.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_commit(tx: *mut azk_tx, error: *mut *mut azk_error) -> azk_status {
    // SAFETY: CAPI-1.
    guarded(error, || unsafe { take(tx)? }.commit())
}

/// Rolls a transaction back. The handle is also freed on an error, except if another call uses the
/// transaction at the moment.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_abort(tx: *mut azk_tx, error: *mut *mut azk_error) -> azk_status {
    // SAFETY: CAPI-1.
    guarded(error, || unsafe { take(tx)? }.abort())
}

/// Reads the value at a key. Sets `found` to 1 if there is a row, otherwise to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_get(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: *mut azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1, CAPI-2.
    unsafe { read_row(tx, table, key, value, found, error, |table, key| table.get(key)) }
}

/// Reads a row of a transaction with the function `read`.
unsafe fn read_row(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: *mut azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
    read: impl FnOnce(&Table<'_, [u8], [u8]>, &[u8]) -> Result<Option<Vec<u8>>, Error>,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table, key) = unsafe { (handle(tx, "tx")?, text(table, "table")?, bytes(key, "key")?) };
        let row = with_tx(&tx.tx, |open| read(&open.table(&TableDefinition::raw(table))?, key))?;
        // SAFETY: CAPI-2.
        unsafe { deliver(row, &mut tx.value, value, found) }
    })
}

/// Stores a value in its handle and lends it to the caller.
unsafe fn deliver(
    read: Option<Vec<u8>>,
    kept: &mut Vec<u8>,
    value: *mut azk_slice,
    found: *mut c_int,
) -> Result<(), Error> {
    let is_there = read.is_some();
    *kept = read.unwrap_or_default();
    // SAFETY: CAPI-2.
    unsafe {
        put(value, if is_there { slice_of(kept) } else { NO_BYTES }, "value")?;
        put(found, c_int::from(is_there), "found")
    }
}

/// Stores a row, and replaces an existing row with this key. The table is created with its first row.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_put(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: azk_slice,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let (key, value) = unsafe { (bytes(key, "key")?, bytes(value, "value")?) };
        with_tx(&tx.tx, |open| open.table(&TableDefinition::raw(table))?.insert(key, value))
    })
}

/// Removes the row at a key. Sets `found`, unless it is null, to 1 if there was a row, otherwise to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_delete(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table, key) = unsafe { (handle(tx, "tx")?, text(table, "table")?, bytes(key, "key")?) };
        let was = with_tx(&tx.tx, |open| open.table(&TableDefinition::raw(table))?.delete(key))?;
        // SAFETY: CAPI-2.
        if found.is_null() { Ok(()) } else { unsafe { put(found, c_int::from(was), "found") } }
    })
}

unsafe fn free<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // A panic of a destructor does not reach the caller (CAPI-3).
        // SAFETY: CAPI-1: the handle is taken back here.
        drop(catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(pointer) }))));
    }
}

mod copy;
mod cursor;
mod keys;
mod maintenance;
mod multimap;
mod rows;
mod snapshot;
mod streams;
mod tables;
mod transactions;
mod value;
pub use copy::{
    azk_backup, azk_error_free, azk_error_message, azk_error_status, azk_restore, azk_verify_backup,
};
pub use cursor::{azk_cursor_close, azk_next, azk_range, azk_snapshot_range};
pub use keys::{azk_change_encryption_key, azk_key_source, azk_open_with_key_source};
pub use maintenance::{
    azk_archive_log, azk_check, azk_check_progress, azk_checkpoint, azk_compact_into, azk_max_key_bytes,
    azk_open_in_memory, azk_report, azk_report_free, azk_report_json, azk_snapshot_wait_durable, azk_stats,
};
pub use multimap::{
    azk_multimap_contains, azk_multimap_insert, azk_multimap_range, azk_multimap_remove,
    azk_multimap_remove_all, azk_multimap_values, azk_snapshot_multimap_contains,
    azk_snapshot_multimap_range, azk_snapshot_multimap_values,
};
pub use rows::{
    azk_bulk_load, azk_compare_and_set, azk_contains, azk_count, azk_insert_if_absent, azk_pop, azk_prefetch,
    azk_remove_range, azk_row_source, azk_snapshot_contains, azk_snapshot_count,
};
pub use snapshot::{azk_snapshot_close, azk_snapshot_get, azk_snapshot_open};
pub use streams::{azk_backup_to_fd, azk_restore_from_fd};
pub use tables::{azk_drop_table, azk_rename_table, azk_snapshot_tables, azk_table_exists, azk_tables};
pub use transactions::{
    azk_begin_with, azk_body, azk_commit_async, azk_detach_from_thread, azk_get_for_update, azk_retry,
    azk_rollback_to, azk_savepoint, azk_savepoint_free, azk_savepoint_set, azk_ticket, azk_ticket_durable,
    azk_ticket_fd, azk_ticket_free, azk_ticket_wait,
};
pub use value::{azk_read_at, azk_snapshot_read_at};
