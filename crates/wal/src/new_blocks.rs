//! New blocks of a segment: filled with zeroes before small chunks, written once by streams of large ones.
//!
//! The blocks of a new segment are allocated and not written. The first write of a block makes the file
//! system change its metadata, and a synchronous write waits for that change, which makes the write take 1.2
//! to 1.6 times as long (`docs/decisions/044-new-log-segments-are-filled.md`).
//!
//! - **SEGMENT-5** Before a small chunk the leader fills the next [`FILL_BYTES`] with zeroes, so the chunks
//!   after it are written to existing blocks. A chunk of [`STREAM_BYTES`] or more is written without a fill,
//!   so a load writes its log once (`docs/decisions/057-streams-write-new-log-blocks-once.md`). A recycled
//!   segment is treated as one without new blocks, although its end may never have been written.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use azekura_io::File;

/// Number of zero bytes that are written before a small chunk in new blocks.
const FILL_BYTES: u64 = 256 << 10;
/// Size in bytes from which a chunk is written without a fill. The chunk's own write then waits for the
/// metadata.
const STREAM_BYTES: u64 = 64 << 10;

/// A segment that can be written.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) bytes: u64,
    /// End of the blocks that have been written before, at least once (SEGMENT-5).
    pub(crate) filled: u64,
}

impl Segment {
    /// Fills blocks for a chunk of `len` bytes at `offset` and for small chunks after it (SEGMENT-5). Blocks
    /// that a large chunk is about to write count as filled.
    pub(crate) fn fill_for(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset + len;
        if end <= self.filled {
            return Ok(());
        }
        let from = self.filled.max(offset);
        self.filled = end;
        if len < STREAM_BYTES {
            let to = (from + FILL_BYTES).min(self.bytes);
            self.file.write_zeroes(from, to - from)?;
            self.filled = to;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use azekura_io::{CountingFs, Fs, MemFs, OpenOptions};

    use super::*;

    /// Returns the bytes written for `chunks` in a segment of `bytes` bytes with `filled` filled ones, and
    /// the end of the chunks.
    fn written(bytes: u64, filled: u64, chunks: impl IntoIterator<Item = u64>) -> (u64, u64) {
        let fs = CountingFs::new(Arc::new(MemFs::new()));
        let file = fs.open("/segment".as_ref(), OpenOptions::new().create_new(true)).expect("creates");
        file.allocate(0, bytes).expect("allocates");
        let mut segment = Segment { number: 0, path: "/segment".into(), file, bytes, filled };
        let mut offset = 0;
        for len in chunks {
            segment.fill_for(offset, len).expect("fills");
            offset += len;
            assert!(segment.filled >= offset && segment.filled <= bytes);
        }
        (fs.counts().bytes_written, offset)
    }

    #[test]
    fn small_chunks_find_filled_blocks_and_large_ones_fill_nothing() {
        const MIB: u64 = 1 << 20;
        assert_eq!(written(MIB, 0, [4096]), (FILL_BYTES, 4096));
        assert_eq!(written(MIB, 0, [4096; 64]), (FILL_BYTES, 64 * 4096));
        assert_eq!(written(MIB, 0, [4096; 65]), (2 * FILL_BYTES, 65 * 4096));
        assert_eq!(written(MIB, 0, [4096; 256]), (MIB, MIB), "to its end, and not beyond");
        assert_eq!(written(MIB, 0, [STREAM_BYTES; 16]), (0, MIB));
        assert_eq!(written(MIB, 0, [5 * STREAM_BYTES, 4096, 8192, STREAM_BYTES]).0, FILL_BYTES);
        assert_eq!(written(MIB, MIB, [4096; 256]), (0, MIB), "recycled");
        assert_eq!(written(MIB, 0, [MIB - 8192, 8192]), (8192, MIB));
        // A small chunk that begins in filled blocks and ends after them.
        assert_eq!(written(MIB, 4096, [8192]).0, FILL_BYTES);
    }
}
