//! Operations on rows that are composed of reads and writes: conditional writes, ranges, queues, loads.

use std::ffi::{c_char, c_int, c_void};
use std::iter;
use std::ptr;
use std::sync::Arc;

use azekura::{Error, TableDefinition};

use super::cursor::bounds_of;
use super::{
    AZK_REVERSE, AZK_SKIP_LOCKED, AZK_UNSORTED, NO_BYTES, azk_error, azk_slice, azk_snapshot, azk_status,
    azk_tx, byte_strings, bytes, check_flags, guarded, handle, null, optional, put, slice_of, text, with_tx,
};

/// Bytes of rows that `azk_bulk_load` sorts in memory. More rows use temporary files.
const SORT_BYTES: usize = 64 << 20;

/// A function that returns the rows of `azk_bulk_load`, one per call. It sets key and value and returns 1.
/// After the last row it returns 0. Another number is an error, and the load is undone. Key and value are
/// valid until the next call of the function.
pub type azk_row_source =
    Option<unsafe extern "C" fn(key: *mut azk_slice, value: *mut azk_slice, context: *mut c_void) -> c_int>;

/// Sets `found` to 1 if there is a row at a key, otherwise to 0. Does not read a large value.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_contains(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table, key) = unsafe { (handle(tx, "tx")?, text(table, "table")?, bytes(key, "key")?) };
        let is_there = with_tx(&tx.tx, |open| open.table(&TableDefinition::raw(table))?.contains(key))?;
        // SAFETY: CAPI-2.
        unsafe { put(found, c_int::from(is_there), "found") }
    })
}

/// Sets `found` as `azk_contains` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_contains(
    snapshot: *mut azk_snapshot,
    table: *const c_char,
    key: azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (from, table) = unsafe { (handle(snapshot, "snapshot")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let key = unsafe { bytes(key, "key")? };
        let is_there = from.snapshot.table(&TableDefinition::raw(table))?.contains(key)?;
        // SAFETY: CAPI-2.
        unsafe { put(found, c_int::from(is_there), "found") }
    })
}

/// Stores a row unless there is a row with this key. Sets `inserted` to 1 if the row was stored, otherwise to
/// 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_insert_if_absent(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: azk_slice,
    inserted: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let (key, value) = unsafe { (bytes(key, "key")?, bytes(value, "value")?) };
        // SAFETY: CAPI-2. A refused call changes nothing.
        unsafe { put(inserted, 0, "inserted")? };
        let is_new =
            with_tx(&tx.tx, |open| open.table(&TableDefinition::raw(table))?.insert_if_absent(key, value))?;
        // SAFETY: CAPI-2.
        unsafe { put(inserted, c_int::from(is_new), "inserted") }
    })
}

/// Stores `value` at a key if the present value is `expected`, and sets `stored` to 1 in that case, otherwise
/// to 0. Null stands for an absent row: as `expected`, and as `value`, which then removes the row.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_compare_and_set(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    expected: *const azk_slice,
    value: *const azk_slice,
    stored: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table, key) = unsafe { (handle(tx, "tx")?, text(table, "table")?, bytes(key, "key")?) };
        // SAFETY: CAPI-2.
        let (expected, value) = unsafe { (optional(expected, "expected")?, optional(value, "value")?) };
        // SAFETY: CAPI-2. A refused call changes nothing.
        unsafe { put(stored, 0, "stored")? };
        let is_stored = with_tx(&tx.tx, |open| {
            open.table(&TableDefinition::raw(table))?.compare_and_set(key, expected, value)
        })?;
        // SAFETY: CAPI-2.
        unsafe { put(stored, c_int::from(is_stored), "stored") }
    })
}

/// Removes the rows from `low` (inclusive) to `high` (exclusive). A null pointer means no bound. Sets
/// `removed`, unless it is null, to the number of removed rows. After an error the transaction is as before
/// the call, or was rolled back.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_remove_range(
    tx: *mut azk_tx,
    table: *const c_char,
    low: *const azk_slice,
    high: *const azk_slice,
    removed: *mut u64,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let range = unsafe { bounds_of(low, high)? };
        let rows = with_tx(&tx.tx, |open| open.table(&TableDefinition::raw(table))?.remove_range(range))?;
        // SAFETY: CAPI-2.
        if removed.is_null() { Ok(()) } else { unsafe { put(removed, rows, "removed") } }
    })
}

/// Sets `rows` to the number of rows of a table. Reads and locks every row, but reads no large value.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_count(
    tx: *mut azk_tx,
    table: *const c_char,
    rows: *mut u64,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        let count = with_tx(&tx.tx, |open| open.table(&TableDefinition::<[u8], [u8]>::raw(table))?.len())?;
        // SAFETY: CAPI-2.
        unsafe { put(rows, count, "rows") }
    })
}

/// Sets `rows` as `azk_count` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_count(
    snapshot: *mut azk_snapshot,
    table: *const c_char,
    rows: *mut u64,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (from, table) = unsafe { (handle(snapshot, "snapshot")?, text(table, "table")?) };
        let count = from.snapshot.table(&TableDefinition::raw(table))?.len()?;
        // SAFETY: CAPI-2.
        unsafe { put(rows, count, "rows") }
    })
}

/// Announces the `count` keys of an array, so that the device reads their pages in parallel. This is useful
/// if a transaction will use several rows of a table that is larger than the memory. The call is a hint: it
/// locks no row, does not wait for the device, and changes no result. One call announces at most 256 pages.
/// Sets `announced`, unless it is null, to the number of announced pages.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_prefetch(
    tx: *mut azk_tx,
    table: *const c_char,
    keys: *const azk_slice,
    count: usize,
    announced: *mut u64,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let keys = unsafe { byte_strings(keys, count, "keys")? };
        let pages = with_tx(&tx.tx, |open| {
            open.table(&TableDefinition::<[u8], [u8]>::raw(table))?.prefetch(keys.iter().copied())
        })?;
        // SAFETY: CAPI-2.
        if announced.is_null() { Ok(()) } else { unsafe { put(announced, pages as u64, "announced") } }
    })
}

/// Removes the row with the least key and returns it. Sets `found` to 1 if there was a row, otherwise to 0.
/// Flags: `AZK_REVERSE` for the greatest key; `AZK_SKIP_LOCKED` skips rows that other transactions have
/// locked, so that consumers of a queue do not wait for each other.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_pop(
    tx: *mut azk_tx,
    table: *const c_char,
    flags: u32,
    key: *mut azk_slice,
    value: *mut azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        check_flags(flags, AZK_REVERSE | AZK_SKIP_LOCKED)?;
        // SAFETY: CAPI-2. A refused call changes nothing.
        unsafe {
            put(key, NO_BYTES, "key")?;
            put(value, NO_BYTES, "value")?;
            put(found, 0, "found")?;
        }
        let row = with_tx(&tx.tx, |open| {
            let mut table = open.table(&TableDefinition::raw(table))?;
            if flags & AZK_SKIP_LOCKED != 0 {
                table = table.skip_locked();
            }
            if flags & AZK_REVERSE != 0 { table.pop_last() } else { table.pop_first() }
        })?;
        let Some(row) = row else { return Ok(()) };
        (tx.key, tx.value) = row;
        // SAFETY: CAPI-2.
        unsafe {
            put(key, slice_of(&tx.key), "key")?;
            put(value, slice_of(&tx.value), "value")?;
            put(found, 1, "found")
        }
    })
}

/// Fills an empty table with the rows that `source` returns, in ascending order of their keys. This is
/// several times as fast as `azk_put` for each row. With the flag `AZK_UNSORTED` the rows are in any order,
/// and the table may have rows; of equal keys the last one counts. Sets `rows`, unless it is null, to the
/// number of rows. After an error the transaction is as before the call, or was rolled back. `source` makes
/// no call with `tx`.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold; `source` may be called with `context` during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_bulk_load(
    tx: *mut azk_tx,
    table: *const c_char,
    source: azk_row_source,
    context: *mut c_void,
    flags: u32,
    rows: *mut u64,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        // Not a reference to the handle: `source` may pass the handle to a call, which is refused.
        let tx = Arc::clone(&tx.tx);
        check_flags(flags, AZK_UNSORTED)?;
        let source = source.ok_or_else(|| null("source"))?;
        let next = || -> Result<Option<(&[u8], &[u8])>, Error> {
            let (mut key, mut value) = (NO_BYTES, NO_BYTES);
            // SAFETY: the caller guarantees that `source` may be called.
            match unsafe { source(ptr::from_mut(&mut key), ptr::from_mut(&mut value), context) } {
                0 => Ok(None),
                // SAFETY: CAPI-2; the row is stored before the next call of `source`.
                1 => Ok(Some(unsafe { (bytes(key, "key")?, bytes(value, "value")?) })),
                number => Err(Error::other(format!("the source of the rows returned {number}"))),
            }
        };
        let each = iter::from_fn(|| next().transpose());
        let loaded = with_tx(&tx, |open| {
            let table = open.table(&TableDefinition::raw(table))?;
            if flags & AZK_UNSORTED != 0 {
                table.try_bulk_load_unsorted(each, SORT_BYTES)
            } else {
                table.try_bulk_load(each)
            }
        })?;
        // SAFETY: CAPI-2.
        if rows.is_null() { Ok(()) } else { unsafe { put(rows, loaded, "rows") } }
    })
}
