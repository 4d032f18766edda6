//! Parts of values, read without a copy of the whole value, and insertions of many rows.

use azekura::{Error, Table, ValueRef};

use super::Row;

/// Returns at most `length` bytes of a value, from `offset` on.
pub(super) fn part_of(value: &ValueRef<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
    let rest = usize::try_from(value.len().saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut part = vec![0; length.min(rest)];
    let read = value.read_at(offset, &mut part)?;
    part.truncate(read);
    Ok(part)
}

/// Number of keys of one call that are announced to the store at once.
pub(super) const PREFETCHED_KEYS: usize = 256;

/// Inserts rows, and announces the keys of each part of them before.
pub(super) fn insert_all(table: &Table<'_, [u8], [u8]>, rows: &[Row]) -> Result<(), Error> {
    rows.chunks(PREFETCHED_KEYS).try_for_each(|part| {
        table.prefetch(part.iter().map(|(key, _)| key))?;
        part.iter().try_for_each(|(key, value)| table.insert(key, value))
    })
}
