//! Cursors: ranges of rows in a transaction or a snapshot, read in batches.

use std::ffi::{c_char, c_int};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use azekura::{Error, RowRef, TableDefinition};

use super::multimap::{encoded_pair, pair_from, pairs_of};
use super::{
    AZK_REVERSE, NO_BYTES, Source, azk_cursor, azk_error, azk_slice, azk_snapshot, azk_status, azk_tx,
    check_flags, free, guarded, handle, null, optional, put, put_new, slice_of, text, with_tx,
};

/// Largest number of rows that a cursor reads at once.
const BATCH_ROWS: usize = 256;
/// Size of a batch in bytes at which a cursor stops reading ahead.
const BATCH_BYTES: usize = 64 << 10;

/// Opens a cursor over the rows from `low` (inclusive) to `high` (exclusive) in a transaction. A null pointer
/// means no bound. `flags` is 0 or `AZK_REVERSE`. A cursor reads up to 256 rows at once. It returns these
/// rows also if the transaction changes them meanwhile, and reads the current rows after them.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_range(
    tx: *mut azk_tx,
    table: *const c_char,
    low: *const azk_slice,
    high: *const azk_slice,
    flags: u32,
    cursor: *mut *mut azk_cursor,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let source = Source::Transaction(Arc::clone(&unsafe { handle(tx, "tx")? }.tx));
        // SAFETY: CAPI-2.
        unsafe { open_cursor(source, (table, false), bounds_of(low, high)?, flags, cursor) }
    })
}

/// Opens a cursor as `azk_range` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_range(
    snapshot: *mut azk_snapshot,
    table: *const c_char,
    low: *const azk_slice,
    high: *const azk_slice,
    flags: u32,
    cursor: *mut *mut azk_cursor,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let source = Source::Snapshot(unsafe { handle(snapshot, "snapshot")? }.snapshot.clone());
        // SAFETY: CAPI-2.
        unsafe { open_cursor(source, (table, false), bounds_of(low, high)?, flags, cursor) }
    })
}

/// Returns the bounds of a range; a null pointer means no bound.
pub(crate) unsafe fn bounds_of<'a>(
    low: *const azk_slice,
    high: *const azk_slice,
) -> Result<(Bound<&'a [u8]>, Bound<&'a [u8]>), Error> {
    // SAFETY: CAPI-2.
    let (low, high) = unsafe { (optional(low, "low")?, optional(high, "high")?) };
    Ok((low.map_or(Bound::Unbounded, Bound::Included), high.map_or(Bound::Unbounded, Bound::Excluded)))
}

/// Opens a cursor over a range of encoded keys of a table, which is a multimap table if `table.1` is `true`.
pub(crate) unsafe fn open_cursor(
    source: Source,
    table: (*const c_char, bool),
    (low, high): (Bound<impl Into<Vec<u8>>>, Bound<impl Into<Vec<u8>>>),
    flags: u32,
    cursor: *mut *mut azk_cursor,
) -> Result<(), Error> {
    check_flags(flags, AZK_REVERSE)?;
    let (table, is_multimap) = table;
    // SAFETY: CAPI-2.
    let table = unsafe { text(table, "table")? }.to_owned();
    let opened = azk_cursor {
        source,
        table,
        is_multimap,
        low: low.map(Into::into),
        high: high.map(Into::into),
        is_reverse: flags & AZK_REVERSE != 0,
        is_done: false,
        rows: Vec::new(),
        row: Default::default(),
    };
    // SAFETY: CAPI-2.
    unsafe { put_new(cursor, "cursor", || Ok(opened)) }
}

/// Moves a cursor to the next row, sets `row` to 1, and sets key and value. After the last row, sets `row` to
/// 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_next(
    cursor: *mut azk_cursor,
    key: *mut azk_slice,
    value: *mut azk_slice,
    row: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let cursor = unsafe { handle(cursor, "cursor")? };
        // A refused call does not move the cursor.
        for (is_null, name) in [(key.is_null(), "key"), (value.is_null(), "value"), (row.is_null(), "row")] {
            if is_null {
                return Err(null(name));
            }
        }
        let is_row = cursor.advance()?;
        let lent =
            if is_row { (slice_of(&cursor.row.0), slice_of(&cursor.row.1)) } else { (NO_BYTES, NO_BYTES) };
        // SAFETY: CAPI-2.
        unsafe {
            put(key, lent.0, "key")?;
            put(value, lent.1, "value")?;
            put(row, c_int::from(is_row), "row")
        }
    })
}

impl azk_cursor {
    fn advance(&mut self) -> Result<bool, Error> {
        if self.rows.is_empty() && !self.is_done {
            self.fill()?;
        }
        let Some(row) = self.rows.pop() else { return Ok(false) };
        self.row = row;
        Ok(true)
    }

    /// Reads the next batch of rows, and removes these rows from the bounds.
    fn fill(&mut self) -> Result<(), Error> {
        let (name, is_multimap) = (self.table.as_str(), self.is_multimap);
        let table = if is_multimap { pairs_of(name) } else { TableDefinition::raw(name) };
        let range = (self.low.clone(), self.high.clone());
        let (mut rows, mut bytes, is_reverse) = (Vec::new(), 0, self.is_reverse);
        let each = |row: RowRef<'_, [u8], [u8]>| {
            let key = row.key()?;
            let row = if is_multimap { pair_from(&key, name)? } else { (key, row.value()?) };
            bytes += row.0.len() + row.1.len();
            rows.push(row);
            let is_full = rows.len() >= BATCH_ROWS || bytes >= BATCH_BYTES;
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        match &self.source {
            Source::Transaction(tx) => with_tx(tx, |open| {
                let table = open.table(&table)?;
                if is_reverse { table.for_each_back(range, each) } else { table.for_each(range, each) }
            })?,
            Source::None => {}
            Source::Snapshot(snapshot) => {
                let table = snapshot.table(&table)?;
                if is_reverse { table.for_each_back(range, each)? } else { table.for_each(range, each)? }
            }
        }
        self.is_done = rows.len() < BATCH_ROWS && bytes < BATCH_BYTES;
        if let Some((key, value)) = rows.last() {
            let past = Bound::Excluded(if is_multimap { encoded_pair(key, value) } else { key.clone() });
            *(if self.is_reverse { &mut self.high } else { &mut self.low }) = past;
        }
        rows.reverse();
        self.rows = rows;
        Ok(())
    }
}

/// Closes a cursor and frees the handle; null is allowed.
///
/// # Safety
///
/// CAPI-1 holds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_cursor_close(cursor: *mut azk_cursor) {
    // SAFETY: CAPI-1.
    unsafe { free(cursor) }
}
