//! Parts of values, read without a copy of the whole value.

use azekura::{Error, ValueRef};

/// Returns at most `length` bytes of a value, from `offset` on.
pub(super) fn part_of(value: &ValueRef<'_>, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
    let rest = usize::try_from(value.len().saturating_sub(offset)).unwrap_or(usize::MAX);
    let mut part = vec![0; length.min(rest)];
    let read = value.read_at(offset, &mut part)?;
    part.truncate(read);
    Ok(part)
}
