//! Multimap tables: an ordered set of values for each key.
//!
//! A multimap table is stored as a table with the pair of key and value as its key. The functions here encode
//! and decode the pair. Keys and values are bytes: the table is a `MultimapTableDefinition<[u8], [u8]>` of a
//! Rust program.

use std::ffi::{c_char, c_int};
use std::ops::Bound;
use std::sync::Arc;

use azekura::{EncodeKey, Error, Key, MultimapTableDefinition, TableDefinition, Value};

use super::cursor::open_cursor;
use super::{
    Source, azk_cursor, azk_error, azk_slice, azk_snapshot, azk_status, azk_tx, bytes, guarded, handle,
    optional, put, text, with_tx,
};

type Pair = (Vec<u8>, Vec<u8>);

fn multimap(name: &str) -> MultimapTableDefinition<[u8], [u8]> {
    MultimapTableDefinition::named(name)
}

/// Returns the table that stores a multimap table, with encoded pairs as its keys.
pub(crate) fn pairs_of(name: &str) -> TableDefinition<[u8], [u8]> {
    TableDefinition::encoded(name, &<Pair as Key>::type_name(), &<() as Value>::type_name())
}

/// Decodes a pair of the table `name`.
pub(crate) fn pair_from(encoded: &[u8], name: &str) -> Result<Pair, Error> {
    <Pair as Key>::decode(encoded).map_err(|source| Error::Decode { table: name.to_owned(), source })
}

/// Encodes a pair.
pub(crate) fn encoded_pair(key: &[u8], value: &[u8]) -> Vec<u8> {
    [first_part(key), value.to_vec()].concat()
}

/// Encodes the key of a pair: the least possible pair of this key.
fn first_part(key: &[u8]) -> Vec<u8> {
    let mut part = Vec::new();
    <[u8] as EncodeKey<[u8]>>::encode_part(key, &mut part);
    part
}

/// Returns the bounds of the pairs with keys from `low` to `high`.
unsafe fn pairs_between(
    low: *const azk_slice,
    high: *const azk_slice,
) -> Result<(Bound<Vec<u8>>, Bound<Vec<u8>>), Error> {
    // SAFETY: CAPI-2.
    let (low, high) = unsafe { (optional(low, "low")?, optional(high, "high")?) };
    let (low, high) = (low.map(first_part), high.map(first_part));
    Ok((low.map_or(Bound::Unbounded, Bound::Included), high.map_or(Bound::Unbounded, Bound::Excluded)))
}

/// Returns the bounds of the pairs with this key. No key is between `key` and `key` with a zero byte.
unsafe fn pairs_with(key: azk_slice) -> Result<(Bound<Vec<u8>>, Bound<Vec<u8>>), Error> {
    // SAFETY: CAPI-2.
    let key = unsafe { bytes(key, "key")? };
    Ok((Bound::Included(first_part(key)), Bound::Excluded(first_part(&[key, &[0]].concat()))))
}

/// Adds `value` to the set of values of a key. Sets `added`, unless it is null, to 1 if the set did not have
/// it, otherwise to 0. The table is created with its first value. Key and value together have at most
/// `azk_max_key_bytes` bytes in their encoding: 2 bytes more, and 1 for each zero byte of the key.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_multimap_insert(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: azk_slice,
    added: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1, CAPI-2.
    unsafe {
        with_pair((tx, table), key, value, added, error, |tx, table, key, value| {
            tx.multimap_table(table)?.insert(key, value)
        })
    }
}

/// Removes `value` from the set of values of a key. Sets `found`, unless it is null, to 1 if the set had it,
/// otherwise to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_multimap_remove(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1, CAPI-2.
    unsafe {
        with_pair((tx, table), key, value, found, error, |tx, table, key, value| {
            tx.multimap_table(table)?.remove(key, value)
        })
    }
}

/// Sets `found`, unless it is null, to 1 if `value` is in the set of values of a key, otherwise to 0.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_multimap_contains(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    value: azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    // SAFETY: CAPI-1, CAPI-2.
    unsafe {
        with_pair((tx, table), key, value, found, error, |tx, table, key, value| {
            tx.multimap_table(table)?.contains(key, value)
        })
    }
}

/// Runs `call` with a pair, and stores its result in `to`, unless it is null.
unsafe fn with_pair(
    (tx, table): (*mut azk_tx, *const c_char),
    key: azk_slice,
    value: azk_slice,
    to: *mut c_int,
    error: *mut *mut azk_error,
    call: impl FnOnce(
        &azekura::Transaction,
        &MultimapTableDefinition<[u8], [u8]>,
        &[u8],
        &[u8],
    ) -> Result<bool, Error>,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table) = unsafe { (handle(tx, "tx")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let (key, value) = unsafe { (bytes(key, "key")?, bytes(value, "value")?) };
        let is = with_tx(&tx.tx, |open| call(open, &multimap(table), key, value))?;
        // SAFETY: CAPI-2.
        if to.is_null() { Ok(()) } else { unsafe { put(to, c_int::from(is), "found") } }
    })
}

/// Sets `found`, unless it is null, as `azk_multimap_contains` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_multimap_contains(
    snapshot: *mut azk_snapshot,
    table: *const c_char,
    key: azk_slice,
    value: azk_slice,
    found: *mut c_int,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (from, table) = unsafe { (handle(snapshot, "snapshot")?, text(table, "table")?) };
        // SAFETY: CAPI-2.
        let (key, value) = unsafe { (bytes(key, "key")?, bytes(value, "value")?) };
        let is = from.snapshot.multimap_table(&multimap(table))?.contains(key, value)?;
        // SAFETY: CAPI-2.
        if found.is_null() { Ok(()) } else { unsafe { put(found, c_int::from(is), "found") } }
    })
}

/// Removes all values of a key. Sets `removed`, unless it is null, to their number. After an error the
/// transaction is as before the call, or was rolled back.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_multimap_remove_all(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    removed: *mut u64,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1, CAPI-2.
        let (tx, table, key) = unsafe { (handle(tx, "tx")?, text(table, "table")?, bytes(key, "key")?) };
        let values = with_tx(&tx.tx, |open| open.multimap_table(&multimap(table))?.remove_all(key))?;
        // SAFETY: CAPI-2.
        if removed.is_null() { Ok(()) } else { unsafe { put(removed, values, "removed") } }
    })
}

/// Opens a cursor over the keys of a multimap table from `low` (inclusive) to `high` (exclusive). The cursor
/// returns each key once with each of its values, in order of the keys and then of the values. Otherwise as
/// `azk_range`. `azk_count` and `azk_snapshot_count` count the values of all keys.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_multimap_range(
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
        unsafe { open_cursor(source, (table, true), pairs_between(low, high)?, flags, cursor) }
    })
}

/// Opens a cursor as `azk_multimap_range` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_multimap_range(
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
        unsafe { open_cursor(source, (table, true), pairs_between(low, high)?, flags, cursor) }
    })
}

/// Opens a cursor over the values of one key, in order. The cursor returns the key with each value.
/// Otherwise as `azk_range`.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_multimap_values(
    tx: *mut azk_tx,
    table: *const c_char,
    key: azk_slice,
    flags: u32,
    cursor: *mut *mut azk_cursor,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let source = Source::Transaction(Arc::clone(&unsafe { handle(tx, "tx")? }.tx));
        // SAFETY: CAPI-2.
        unsafe { open_cursor(source, (table, true), pairs_with(key)?, flags, cursor) }
    })
}

/// Opens a cursor as `azk_multimap_values` does, but in a snapshot.
///
/// # Safety
///
/// CAPI-1 and CAPI-2 hold.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn azk_snapshot_multimap_values(
    snapshot: *mut azk_snapshot,
    table: *const c_char,
    key: azk_slice,
    flags: u32,
    cursor: *mut *mut azk_cursor,
    error: *mut *mut azk_error,
) -> azk_status {
    guarded(error, || {
        // SAFETY: CAPI-1.
        let source = Source::Snapshot(unsafe { handle(snapshot, "snapshot")? }.snapshot.clone());
        // SAFETY: CAPI-2.
        unsafe { open_cursor(source, (table, true), pairs_with(key)?, flags, cursor) }
    })
}
