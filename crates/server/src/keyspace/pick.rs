//! The choice of a random key.

use std::ops::{Bound, ControlFlow};

use super::{KeyRange, Keyspace, Walk};
use crate::error::Failure;

/// Returns a random existing key. `choose(n)` returns a number below `n`; `end_of` returns the first key of a
/// walk over a range.
///
/// Extends a prefix from the first byte at which keys differ. Each next byte is chosen between the least and
/// the greatest byte that occurs there. So each key can be chosen, but keys with few neighbors are chosen
/// more often. Costs two or three lookups for each chosen byte.
pub(crate) fn random_key<E>(
    mut end_of: impl FnMut(&KeyRange, Walk) -> Result<Option<Vec<u8>>, E>,
    mut choose: impl FnMut(usize) -> usize,
) -> Result<Option<Vec<u8>>, E> {
    let Some(mut first) = end_of(&KeyRange::ALL, Walk::KeysForward)? else { return Ok(None) };
    let mut range = KeyRange::ALL;
    while let Some(last) = end_of(&range, Walk::Backward)?
        && first != last
    {
        let shared = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
        let ends_here = first.len() == shared;
        let second = if ends_here {
            end_of(&range.clone().after(first.clone()), Walk::KeysForward)?.unwrap_or_else(|| last.clone())
        } else {
            first.clone()
        };
        // Concurrent insertions and removals may make the two bounds inconsistent.
        let (Some(&low), Some(&high)) = (second.get(shared), last.get(shared)) else { break };
        let bytes = low..=high;
        let mut chosen = choose(bytes.len() + usize::from(ends_here));
        if ends_here {
            let Some(behind) = chosen.checked_sub(1) else { break };
            chosen = behind;
        }
        let mut from = first[..shared].to_vec();
        from.extend(bytes.clone().nth(chosen).or(bytes.last()));
        let above = KeyRange { lower: Bound::Included(from), upper: Bound::Included(last) };
        let Some(next) = end_of(&above, Walk::KeysForward)? else { break };
        range = KeyRange::prefix(next.get(..=shared).unwrap_or(&next));
        first = next;
    }
    Ok(Some(first))
}

impl Keyspace<'_> {
    /// Returns a random existing key; `choose(n)` returns a number below `n`.
    pub(crate) fn random_key(&self, choose: impl FnMut(usize) -> usize) -> Result<Option<Vec<u8>>, Failure> {
        random_key(|range, walk| self.end_of(range, walk), choose)
    }

    /// Returns the first live key of a walk over `range`.
    fn end_of(&self, range: &KeyRange, walk: Walk) -> Result<Option<Vec<u8>>, Failure> {
        let mut found = None;
        self.walk(range, walk, usize::MAX, |key, _| {
            found = Some(key.to_vec());
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }
}
