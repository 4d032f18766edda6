//! Snapshots: opening, reading a row, closing.

use std::ffi::{c_char, c_int};

use azekura::TableDefinition;

use super::{
    azk_db, azk_error, azk_slice, azk_snapshot, azk_status, bytes, deliver, free, guarded, handle, put_new,
    shared, text,
};

/// Opens a snapshot of the present state.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_open(
    db: *mut azk_db,
    snapshot: *mut *mut azk_snapshot,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let db = unsafe { shared(db, "db")? };
        let open = || Ok(azk_snapshot { snapshot: db.db.snapshot()?, value: Vec::new() });
        // SAFETY: CAPI-2.
        unsafe { put_new(snapshot, "snapshot", open) }
    })
}

/// Reads the value at a key in a snapshot. Sets `found` to 1 if there is a row, otherwise to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_get(
    snapshot: *mut azk_snapshot,
    table: *const c_char,
    key: azk_slice,
    value: *mut azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (from, table) = unsafe { (handle(snapshot, "snapshot")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let key = unsafe { bytes(key, "key")? };
        let read = from.snapshot.table(&TableDefinition::raw(table))?.get(key)?;
        // SAFETY: CAPI-2.
        unsafe { deliver(read, &mut from.value, value, found) }
    })
}

/// Closes a snapshot and frees the handle; null is allowed. Cursors on it stay valid.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_close(snapshot: *mut azk_snapshot) {
    // SAFETY: CAPI-1.
    unsafe { free(snapshot) }
}
