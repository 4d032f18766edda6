//! `Head`: the first block of the page file, with the id of its store and its age.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | `AZKPAGE` and 01 |
//! | 8..12 | CRC over bytes 12..4096 |
//! | 12..16 | page size |
//! | 16..24 | database id |
//! | 24..32 | *last_finished*: every batch of page writes up to this number is in the page file |
//! | 32..4096 | zero |
//!
//! The head is overwritten in the same block. All fields are in one sector of 512 bytes, which a disk writes
//! completely or not at all.

use azekura_base::PageBuf;
use azekura_base::bytes::{u32_at, u64_at};

use super::area::{HEAD_BYTES, Misfit, check_head, seal_head};

const MAGIC: [u8; 8] = *b"AZKPAGE\x01";
/// Bound of batch numbers that no store reaches: a head with a larger number is invalid.
const MAX_FINISHED: u64 = 1 << 62;

/// The content of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) page_size: usize,
    pub(super) database_id: u64,
    pub(super) last_finished: u64,
}

impl Head {
    pub(super) fn to_bytes(self) -> PageBuf {
        let mut head = PageBuf::zeroed(HEAD_BYTES);
        head[12..16].copy_from_slice(&(self.page_size as u32).to_le_bytes());
        head[16..24].copy_from_slice(&self.database_id.to_le_bytes());
        head[24..32].copy_from_slice(&self.last_finished.to_le_bytes());
        seal_head(&mut head, MAGIC);
        head
    }

    /// Parses the head in these bytes; an error if it is not the head of a file with pages of this size.
    pub(super) fn parse(head: &[u8], page_size: usize) -> Result<Self, Misfit> {
        check_head(head, MAGIC)?;
        let found = u32_at(head, 12);
        if u64::from(found) != page_size as u64 {
            return Err(("page size", found.into(), page_size as u64));
        }
        let last_finished = u64_at(head, 24);
        if last_finished > MAX_FINISHED {
            return Err(("number of batches", last_finished, MAX_FINISHED));
        }
        Ok(Self { page_size, database_id: u64_at(head, 16), last_finished })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_head_round_trips_and_a_changed_one_is_refused() {
        let head = Head { page_size: 8192, database_id: u64::MAX - 5, last_finished: 1 << 40 };
        assert_eq!(Head::parse(&head.to_bytes(), 8192), Ok(head));
        assert_eq!(Head::parse(&head.to_bytes(), 4096), Err(("page size", 8192, 4096)));
        for byte in 0..HEAD_BYTES {
            let mut bytes = head.to_bytes();
            bytes[byte] ^= 0x20;
            assert!(Head::parse(&bytes, 8192).is_err(), "byte {byte}");
        }
        assert!(Head::parse(&PageBuf::zeroed(HEAD_BYTES), 4096).is_err());
    }
}
