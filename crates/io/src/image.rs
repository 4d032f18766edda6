//! `Image`: the bytes of one file in memory, in blocks that copies share until one of the copies is written
//! (copy-on-write).
//!
//! A copy costs one reference count. The first write to a copy copies the table of blocks, and the first
//! write to a block copies that block. So the image of a crashed disk costs as much as the crash changes,
//! regardless of the size of the disk.
//!
//! - **IMAGE-1** Bytes of a block beyond the file's length are zero, so that an extended file reads as zero
//!   there.
//! - **IMAGE-2** A missing block is a hole: it reads as zero, and a write there needs space.

use std::sync::{Arc, LazyLock};

/// Size of one block in bytes.
pub(crate) const BLOCK_BYTES: usize = 16 << 10;
/// Largest length of a file in memory, in bytes. Bounds the table of blocks.
pub(crate) const MAX_LEN: u64 = 1 << 36;

type Block = [u8; BLOCK_BYTES];

static ZERO_BLOCK: LazyLock<Arc<Block>> = LazyLock::new(|| Arc::new([0; BLOCK_BYTES]));

/// The bytes of one file.
#[derive(Clone, Default)]
pub(crate) struct Image {
    len: u64,
    blocks: Arc<Vec<Option<Arc<Block>>>>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes)", self.len)
    }
}

/// The part of a range that is in one block.
struct Part {
    block: usize,
    at: usize,
    len: usize,
}

/// Splits a range at block boundaries.
fn parts(mut offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    std::iter::from_fn(move || {
        (offset < end).then(|| {
            let at = (offset % BLOCK_BYTES as u64) as usize;
            let len = (end - offset).min((BLOCK_BYTES - at) as u64) as usize;
            let block = (offset / BLOCK_BYTES as u64) as usize;
            offset += len as u64;
            Part { block, at, len }
        })
    })
}

impl Image {
    /// Returns the length in bytes.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    /// Returns the bytes of all blocks, without the holes.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.blocks.iter().flatten().count() as u64 * BLOCK_BYTES as u64
    }

    /// Reads at `offset` until `buf` is full or the file ends. Returns the number of bytes.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let count = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut rest = &mut buf[..count];
        for part in parts(offset, count as u64) {
            let (out, after) = rest.split_at_mut(part.len);
            match self.blocks.get(part.block) {
                Some(Some(block)) => out.copy_from_slice(&block[part.at..part.at + part.len]),
                _ => out.fill(0),
            }
            rest = after;
        }
        count
    }

    /// Returns all bytes.
    #[cfg(feature = "test-fs")]
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// Writes `bytes` at `offset`, and extends the file if necessary. Empty `bytes` change nothing.
    pub(crate) fn write(&mut self, offset: u64, mut bytes: &[u8]) {
        for part in parts(offset, bytes.len() as u64) {
            let (piece, after) = bytes.split_at(part.len);
            self.block_mut(part.block)[part.at..part.at + part.len].copy_from_slice(piece);
            self.len = self.len.max((part.block * BLOCK_BYTES + part.at + part.len) as u64);
            bytes = after;
        }
    }

    /// Writes zero bytes, not a hole.
    pub(crate) fn write_zeroes(&mut self, offset: u64, len: u64) {
        for part in parts(offset, len) {
            if part.len == BLOCK_BYTES {
                *self.slot_mut(part.block) = Some(Arc::clone(&ZERO_BLOCK));
            } else {
                self.block_mut(part.block)[part.at..part.at + part.len].fill(0);
            }
        }
        if len > 0 {
            self.len = self.len.max(offset + len);
        }
    }

    /// Makes the part of the range inside the file a hole: drops blocks that are entirely in the range, and
    /// zeroes the rest.
    pub(crate) fn discard(&mut self, offset: u64, len: u64) {
        let len = len.min(self.len.saturating_sub(offset));
        for part in parts(offset, len) {
            if !matches!(self.blocks.get(part.block), Some(Some(_))) {
                continue; // a hole already
            }
            if part.len == BLOCK_BYTES {
                *self.slot_mut(part.block) = None;
            } else {
                self.block_mut(part.block)[part.at..part.at + part.len].fill(0);
            }
        }
    }

    /// Truncates the file, or extends it by a hole.
    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let whole = len.div_ceil(BLOCK_BYTES as u64) as usize;
            let blocks = Arc::make_mut(&mut self.blocks);
            blocks.truncate(whole);
            // IMAGE-1: zeroes the rest of the last block.
            let at = (len % BLOCK_BYTES as u64) as usize;
            if at > 0
                && let Some(Some(last)) = blocks.get_mut(whole - 1)
            {
                Arc::make_mut(last)[at..].fill(0);
            }
        }
        self.len = len;
    }

    /// Returns `true` if a write there needs space on the disk: it touches a hole, or extends the file.
    #[cfg(feature = "test-fs")]
    pub(crate) fn needs_space(&self, offset: u64, len: u64) -> bool {
        len > 0
            && (offset + len > self.len
                || parts(offset, len).any(|part| !matches!(self.blocks.get(part.block), Some(Some(_)))))
    }

    fn slot_mut(&mut self, index: usize) -> &mut Option<Arc<Block>> {
        let blocks = Arc::make_mut(&mut self.blocks);
        if blocks.len() <= index {
            blocks.resize(index + 1, None);
        }
        &mut blocks[index]
    }

    fn block_mut(&mut self, index: usize) -> &mut Block {
        Arc::make_mut(self.slot_mut(index).get_or_insert_with(|| Arc::clone(&ZERO_BLOCK)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const B: u64 = BLOCK_BYTES as u64;

    #[test]
    fn a_copy_keeps_its_bytes_when_the_other_writes() {
        let mut one = Image::default();
        one.write(B - 3, b"abcdef");
        let other = one.clone();
        one.write(B - 1, b"XY");
        assert_eq!(&one.to_vec()[B as usize - 3..], b"abXYef");
        assert_eq!(&other.to_vec()[B as usize - 3..], b"abcdef");
    }

    #[test]
    fn truncated_bytes_read_as_zero_when_the_file_grows_again() {
        for cut in [0, 5, B, B + 5] {
            let mut image = Image::default();
            image.write(0, &vec![7; 3 * B as usize]);
            image.set_len(cut);
            image.set_len(3 * B);
            let bytes = image.to_vec();
            assert!(bytes[..cut as usize].iter().all(|&b| b == 7), "cut at {cut}");
            assert!(bytes[cut as usize..].iter().all(|&b| b == 0), "cut at {cut}");
        }
    }

    #[test]
    fn zeroes_take_space_and_holes_do_not() {
        let mut image = Image::default();
        image.set_len(4 * B);
        assert!(image.needs_space(B, 1));
        image.write_zeroes(B / 2, 2 * B);
        assert!(!image.needs_space(0, 3 * B), "blocks touched in part are there too");
        assert!(image.needs_space(3 * B, 1));
        assert!(image.needs_space(0, 4 * B + 1));
        assert_eq!(image.len(), 4 * B);
        assert_eq!(image.read(4 * B - 2, &mut [1; 9]), 2);
        assert_eq!(image.read(9 * B, &mut [1; 9]), 0);
    }

    #[test]
    fn discarded_ranges_read_as_zero_and_need_space_again() {
        let mut image = Image::default();
        image.write(0, &vec![7; 3 * B as usize]);
        image.discard(B / 2, 100 * B);
        let bytes = image.to_vec();
        assert_eq!(bytes.len(), 3 * B as usize);
        assert!(bytes[..B as usize / 2].iter().all(|&b| b == 7));
        assert!(bytes[B as usize / 2..].iter().all(|&b| b == 0));
        assert!(image.needs_space(B, 1) && !image.needs_space(0, B));
        image.discard(u64::MAX - 5, 3);
    }

    #[test]
    fn a_write_of_nothing_does_not_grow_the_file() {
        let mut image = Image::default();
        image.write(100, b"");
        image.write_zeroes(100, 0);
        assert_eq!(image.len(), 0);
    }
}
