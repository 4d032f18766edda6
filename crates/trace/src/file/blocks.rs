//! The blocks of a trace file, one at a time. After a damaged block, reading continues at the next block.

use super::block;
use super::read::{HEAD, check_block_head, check_head, check_payload};
use crate::error::ReadError;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

/// The bytes of a trace.
pub(super) trait Input: Read + Seek {}

impl<T: Read + Seek> Input for T {}

/// The blocks of a file, one at a time.
pub(super) struct Blocks<'i> {
    /// The file's name for errors.
    path: PathBuf,
    input: Box<dyn Input + 'i>,
    /// Offset of the next block.
    pub(super) offset: u64,
    payload: Vec<u8>,
}

/// The next part of a file.
pub(super) enum Part<'b> {
    /// A block: its kind and its payload.
    Block(u8, &'b [u8]),
    /// Bytes that are no valid block, and the reason.
    Damaged { bytes: u64, error: ReadError },
}

impl<'i> Blocks<'i> {
    /// Checks the head of the file.
    pub(super) fn open(path: PathBuf, input: impl Input + 'i) -> Result<Self, ReadError> {
        let mut blocks = Self { path, input: Box::new(input), offset: HEAD as u64, payload: Vec::new() };
        let mut head = Vec::with_capacity(HEAD);
        let read = blocks.input.by_ref().take(HEAD as u64).read_to_end(&mut head);
        read.map_err(|error| blocks.failed(error))?;
        check_head(&head)?;
        Ok(blocks)
    }

    /// Returns the next part; `None` if the file ends before the next block does.
    pub(super) fn next(&mut self) -> Result<Option<Part<'_>>, ReadError> {
        let mut head = [0; block::HEAD];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let begin = self.offset;
        let len = match check_block_head(&head, begin) {
            Ok(len) => len,
            Err(error) => {
                self.offset = self.next_head(begin + 1)?;
                return Ok(Some(Part::Damaged { bytes: self.offset - begin, error }));
            }
        };
        self.payload.clear();
        // Allocates memory only for existing bytes, because the length may be false.
        let read = self.input.by_ref().take(len as u64).read_to_end(&mut self.payload);
        read.map_err(|error| self.failed(error))?;
        if self.payload.len() < len {
            return Ok(None);
        }
        let bytes = (block::HEAD + len) as u64;
        self.offset += bytes;
        match check_payload(&head, &self.payload, begin) {
            Ok(()) => Ok(Some(Part::Block(head[0], &self.payload))),
            Err(error) => Ok(Some(Part::Damaged { bytes, error })),
        }
    }

    /// Returns the offset of the first valid head of a block from `from` on, and continues reading there; the
    /// length of the file if there is none. Reads less than four times the bytes that it passes over.
    fn next_head(&mut self, from: u64) -> Result<u64, ReadError> {
        /// Fewest and most bytes read at once. There may be many damaged parts, each of a few bytes.
        const CHUNK: (u64, u64) = (64, 1 << 18);
        let failed = |error| ReadError::Io { path: self.path.clone(), source: error };
        let end = self.input.seek(SeekFrom::End(0)).map_err(failed)?;
        let (mut at, mut chunk, mut len) = (from, Vec::new(), CHUNK.0);
        while at + (block::HEAD as u64) <= end {
            self.input.seek(SeekFrom::Start(at)).map_err(failed)?;
            chunk.clear();
            self.input.by_ref().take(len).read_to_end(&mut chunk).map_err(failed)?;
            len = CHUNK.1.min(2 * len);
            if chunk.len() < block::HEAD {
                break; // the file became shorter
            }
            for (head, offset) in chunk.windows(block::HEAD).zip(at..) {
                let is_known = (block::SESSION..=block::BLOCKED).contains(&head[0]);
                if is_known
                    && let Ok(len) = check_block_head(head, offset)
                    && offset + (block::HEAD + len) as u64 <= end
                {
                    self.input.seek(SeekFrom::Start(offset)).map_err(failed)?;
                    return Ok(offset);
                }
            }
            at += (chunk.len() - block::HEAD + 1) as u64;
        }
        self.input.seek(SeekFrom::Start(end)).map_err(failed)?;
        Ok(end)
    }

    /// Fills the buffer. Returns `false` if the file has fewer bytes left.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, ReadError> {
        match self.input.read_exact(buffer) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Io { path: self.path.clone(), source }
    }
}

impl fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("path", &self.path)
            .field("offset", &self.offset)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{ClockSample, CpuSource, Encoder, SessionInfo, TimeSource};
    use std::cell::Cell;
    use std::io::Cursor;

    struct Counted<'c>(Cursor<Vec<u8>>, &'c Cell<usize>);

    impl Read for Counted<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(buffer)?;
            self.1.set(self.1.get() + read);
            Ok(read)
        }
    }

    impl Seek for Counted<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    #[test]
    fn many_small_damaged_parts_cost_little_more_than_their_bytes() {
        let (mut encoder, mut spans) = (Encoder::new(), Vec::new());
        encoder.session(&SessionInfo {
            time: TimeSource::Monotonic,
            cpu: CpuSource::None,
            hold_sampling: 1,
            event_cost_ps: 0,
            ticks_per_second: 1,
            process_id: 1,
            processors: 1,
            started_wall_ns: 0,
            label: String::new(),
        });
        for n in 0..4_000 {
            let begin = encoder.as_bytes().len();
            encoder.clock(&ClockSample { ticks: n, monotonic_ns: n, process_cpu_ns: 0 });
            spans.push(begin..encoder.as_bytes().len());
        }
        let mut bytes = encoder.into_bytes();
        spans.into_iter().skip(1).step_by(2).for_each(|span| bytes[span].fill(0));
        let (len, read) = (bytes.len(), Cell::new(0));
        let mut blocks = Blocks::open("a.trace".into(), Counted(Cursor::new(bytes), &read)).expect("a head");
        let mut parts = [0, 0];
        while let Some(part) = blocks.next().expect("no error of reading") {
            parts[usize::from(matches!(part, Part::Damaged { .. }))] += 1;
        }
        assert_eq!(parts, [2_001, 2_000], "with the session");
        assert!(read.get() < 8 * len, "{} bytes were read of {len}", read.get());
    }
}
