//! Tables: names, removal, renaming.

use std::ffi::{c_char, c_int};
use std::ops::Bound;

use azekura::TableInfo;

use super::{
    Source, azk_cursor, azk_db, azk_error, azk_snapshot, azk_status, azk_tx, guarded, handle, put, put_new,
    shared, text, with_tx,
};

/// Opens a cursor over the tables of the store, in byte order of their names. The key of each row of the
/// cursor is the name of a table, and the value is a text with the types of the table's keys and values.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_tables(
    db: *mut azk_db,
    cursor: *mut *mut azk_cursor,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let db = unsafe { shared(db, "db")? };
        // SAFETY: CAPI-2.
        unsafe { put_new(cursor, "cursor", || db.db.tables().map(cursor_over)) }
    })
}

/// Opens a cursor as `azk_tables` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_tables(
    snapshot: *mut azk_snapshot,
    cursor: *mut *mut azk_cursor,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let snapshot = unsafe { handle(snapshot, "snapshot")? };
        // SAFETY: CAPI-2.
        unsafe { put_new(cursor, "cursor", || snapshot.snapshot.tables().map(cursor_over)) }
    })
}

fn cursor_over(tables: Vec<TableInfo>) -> azk_cursor {
    let row = |table: TableInfo| (table.name.into_bytes(), table.types.to_string().into_bytes());
    azk_cursor {
        source: Source::None,
        table: String::new(),
        is_multimap: false,
        low: Bound::Unbounded,
        high: Bound::Unbounded,
        is_reverse: false,
        is_done: true,
        rows: tables.into_iter().rev().map(row).collect(),
        row: (Vec::new(), Vec::new()),
    }
}

/// Sets `found` to 1 if there is a table with this name, otherwise to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_table_exists(
    tx: *mut azk_tx,
    table: *const c_char,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        let exists = with_tx(&tx.tx, |open| open.table_exists(table))?;
        // SAFETY: CAPI-2.
        unsafe { put(found, c_int::from(exists), "found") }
    })
}

/// Renames a table. Sets `found`, unless it is null, to 1 if there was a table `from`, otherwise to 0. If
/// there is a table `to`, the call fails with `AZK_INVALID`.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_rename_table(
    tx: *mut azk_tx,
    from: *const c_char,
    to: *const c_char,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, from, to) = unsafe { (handle(tx, "tx")?, text(from, "from")?, text(to, "to")?) };
        let was = with_tx(&tx.tx, |open| open.rename_table(from, to))?;
        // SAFETY: CAPI-2.
        if found.is_null() { Ok(()) } else { unsafe { put(found, c_int::from(was), "found") } }
    })
}

/// Removes a table with all its rows. Sets `found`, unless it is null, to 1 if there was a table, otherwise
/// to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_drop_table(
    tx: *mut azk_tx,
    table: *const c_char,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        let was = with_tx(&tx.tx, |open| open.drop_table(table))?;
        // SAFETY: CAPI-2.
        if found.is_null() { Ok(()) } else { unsafe { put(found, c_int::from(was), "found") } }
    })
}
