//! Reads and insertions of many rows by one call.

use azekura::{Error, Table};

use super::Row;

/// Number of keys of one call that are announced to the store at once.
const PREFETCHED_KEYS: usize = 256;

/// Inserts rows, and announces the keys of each part of them before.
pub(super) fn insert_all(table: &Table<'_, [u8], [u8]>, rows: &[Row]) -> Result<(), Error> {
    rows.chunks(PREFETCHED_KEYS).try_for_each(|part| {
        table.prefetch(part.iter().map(|(key, _)| key))?;
        part.iter().try_for_each(|(key, value)| table.insert(key, value))
    })
}

/// Returns the results of `get` at `keys`, and calls `prefetch` for each part of the keys before.
pub(super) fn get_all<T>(
    keys: &[Vec<u8>],
    prefetch: impl Fn(&[Vec<u8>]) -> Result<usize, Error>,
    get: impl Fn(&[u8]) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut values = Vec::with_capacity(keys.len());
    for part in keys.chunks(PREFETCHED_KEYS) {
        prefetch(part)?;
        values.extend(part.iter().map(|key| get(key)).collect::<Result<Vec<_>, _>>()?);
    }
    Ok(values)
}
