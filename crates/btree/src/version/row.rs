//! One version of a row: the key, the image that a transaction replaced, and the transaction.
//!
//! A version is one allocation. The first version that a transaction stores has the transaction's [`Status`],
//! and its other versions share this status. Most transactions store few versions, so a separate allocation
//! for each status would be a third of the memory of a version.

use azekura_base::SharedBlock;

use super::status::Status;
use crate::node::Cell;

/// Flags of the image of a key that was absent: no cell has all flags.
const ABSENT: u16 = u16::MAX;

/// Memory of a version besides its allocation, in bytes: its entry in the vector of its group, which is two
/// thirds full.
pub(super) const INDEX_BYTES: usize = 25;

#[derive(Clone, Copy, Debug)]
struct Head {
    key_len: u16,
    flags: u16,
}

/// A reference to a version. Only the status of a version ever changes.
#[derive(Clone, Debug)]
pub(crate) struct Version(SharedBlock<Status, Head>);

/// Returns the memory of a version with `bytes` bytes of key and value: its allocation, rounded up as
/// allocators do, and its part of the index.
fn memory(bytes: usize) -> u64 {
    const HEADER: usize = 8; // Header of an allocation.
    ((SharedBlock::<Status, Head>::size(bytes) + HEADER).next_multiple_of(16) + INDEX_BYTES) as u64
}

/// Returns the memory of the version of a row, in bytes.
pub(super) fn memory_of(key: &[u8], before: Option<Cell<'_>>) -> u64 {
    memory(key.len() + before.map_or(0, |cell| cell.value.len()))
}

impl Version {
    /// Returns a version without a row, which only holds the status of its transaction.
    pub(super) fn without_row(status: Status) -> Self {
        Self::new(b"", None, Ok(status))
    }

    /// Returns a version with the image before a change. `writer` is the new status of its transaction, or a
    /// version of the same transaction.
    pub(super) fn new(key: &[u8], before: Option<Cell<'_>>, writer: Result<Status, &Self>) -> Self {
        let key_len = u16::try_from(key.len()).expect("a key fits a page");
        let (flags, value) = before.map_or((ABSENT, &[][..]), |cell| (cell.flags, cell.value));
        let (head, parts) = (Head { key_len, flags }, [key, value]);
        Self(match writer {
            Ok(status) => SharedBlock::with_value(status, head, parts),
            Err(other) => SharedBlock::beside(&other.0, head, parts),
        })
    }

    /// Prefetches the status and the first bytes of the key. A hint; does not wait.
    pub(super) fn prefetch(&self) {
        self.0.prefetch();
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.0.bytes()[..self.0.head().key_len.into()]
    }

    /// Returns the row before the change; `None` if the key was absent.
    pub(super) fn before(&self) -> Option<Cell<'_>> {
        let Head { key_len, flags, .. } = self.0.head();
        (flags != ABSENT).then(|| Cell { flags, value: &self.0.bytes()[key_len.into()..] })
    }

    /// Returns the memory of the version, in bytes.
    pub(super) fn memory(&self) -> u64 {
        memory(self.0.bytes().len())
    }

    /// Returns the status of the transaction that replaced the image.
    pub(super) fn status(&self) -> &Status {
        self.0.value()
    }

    /// Returns a number that versions of one transaction share, and no other versions at the same time.
    pub(super) fn writer(&self) -> usize {
        std::ptr::from_ref(self.status()).addr()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_its_key_and_image_and_shares_the_status_of_its_writer() {
        let cell = Cell { flags: 7, value: b"value" };
        let first = Version::new(b"key", Some(cell), Ok(Status::active(0)));
        let second = Version::new(b"", None, Err(&first));
        let third = Version::new(b"k", Some(Cell { flags: 0, value: b"" }), Err(&second));
        let other = Version::without_row(Status::active(0));
        assert_eq!(first.key(), b"key");
        assert_eq!(first.before().map(|cell| (cell.flags, cell.value)), Some((7, &b"value"[..])));
        assert!(second.before().is_none() && third.before().is_some_and(|cell| cell.value.is_empty()));
        assert!(first.writer() == third.writer() && third.writer() == second.writer());
        assert_ne!(other.writer(), first.writer());
        first.status().roll_back();
        drop(first);
        assert_eq!((third.status().ended(), other.status().ended()), (Some(0), None));
    }

    #[test]
    fn a_version_takes_at_most_72_bytes_besides_key_and_value() {
        for bytes in 0..3000 {
            assert!(memory(bytes) - bytes as u64 <= 72, "{bytes}: {}", memory(bytes));
        }
        assert_eq!(memory(108), 108 + 61, "a key of 8 bytes and a value of 100");
    }
}
