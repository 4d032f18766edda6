//! Cursors of `SCAN`: numbers, because clients read them as such, that stand for the last key handed out.
//!
//! A cursor may be used several times. The newest of them are remembered; an older one, or one of another run of the server, is refused rather
//! than taken for something else: numbers are not used twice, and each run begins somewhere else.

use std::collections::{BTreeMap, hash_map::RandomState};
use std::hash::{BuildHasher, Hasher};

use parking_lot::Mutex;

/// Cursors remembered.
const MAX_CURSORS: usize = 16 << 10;
/// Bytes of keys remembered.
const MAX_BYTES: usize = 4 << 20;

/// Where scans go on.
#[derive(Debug)]
pub(crate) struct Cursors {
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    next: u64,
    bytes: usize,
    last_keys: BTreeMap<u64, Vec<u8>>,
}

impl Cursors {
    pub(crate) fn new() -> Self {
        // The standard library's hasher is seeded anew each time: all that is wanted of it here. 2^62 leaves room below i64::MAX.
        let first = (RandomState::new().build_hasher().finish() >> 2) | 1;
        Self { known: Mutex::new(Known { next: first, bytes: 0, last_keys: BTreeMap::new() }) }
    }

    /// A cursor for the keys after `last_key`.
    pub(crate) fn after(&self, last_key: Vec<u8>) -> u64 {
        let mut known = self.known.lock();
        let cursor = known.next;
        known.next += 1;
        known.bytes += last_key.len();
        known.last_keys.insert(cursor, last_key);
        while known.last_keys.len() > MAX_CURSORS || known.bytes > MAX_BYTES {
            let Some((_, oldest)) = known.last_keys.pop_first() else { break };
            known.bytes -= oldest.len();
        }
        cursor
    }

    /// The key that `cursor` stands for.
    pub(crate) fn last_key(&self, cursor: u64) -> Option<Vec<u8>> {
        self.known.lock().last_keys.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_cursors_are_forgotten_and_never_mistaken() {
        let cursors = Cursors::new();
        let first = cursors.after(b"first".to_vec());
        assert_eq!(cursors.last_key(first), Some(b"first".to_vec()));
        let later: Vec<u64> = (0..MAX_CURSORS).map(|i| cursors.after(i.to_string().into_bytes())).collect();
        assert_eq!(cursors.last_key(first), None);
        assert_eq!(cursors.last_key(later[0]), Some(b"0".to_vec()));
        assert_eq!(cursors.last_key(0), None);
    }
}
