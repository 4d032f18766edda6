//! Content of existing memory of the program, kept while the memory becomes far memory. Only pieces for which
//! the system has allocated memory are read, so an untouched array of gigabytes costs nothing.

use crate::descriptors::{self, Hidden, with_room};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr;

const PIECE: usize = 4096;
/// Bits of an entry of `/proc/self/pagemap`: the page is in memory (63) or swapped out (62).
const THERE: u64 = 3 << 62;

/// The page table of this process. It is opened when the process has one thread: a descriptor that is opened
/// later gets the lowest free number for a moment, and another thread may expect this number for a file of
/// the program.
#[derive(Debug)]
pub(crate) struct PageTable(Hidden<File>);

impl PageTable {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self(Hidden::new(with_room(|| File::open("/proc/self/pagemap"))?)))
    }

    /// Closes the descriptor of the parent in a child process, which never uses it.
    pub(crate) fn abandon(&self) {
        descriptors::close(self.0.as_raw_fd());
    }

    /// Returns, for each piece of a range, whether the system has allocated memory for it. The range begins
    /// and ends at a multiple of [`PIECE`].
    pub(crate) fn there(&self, range: Range<usize>) -> io::Result<Vec<bool>> {
        let mut entries = vec![0; range.len() / PIECE * 8];
        self.0.read_exact_at(&mut entries, (range.start / PIECE * 8) as u64)?;
        let is_there = |entry: &[u8]| u64::from_le_bytes(entry.try_into().unwrap_or_default()) & THERE != 0;
        Ok(entries.chunks_exact(8).map(is_there).collect())
    }
}

/// Content of the pieces that are not all zeros, by address.
#[derive(Debug)]
pub(crate) struct Kept(Vec<(usize, Box<[u8]>)>);

impl Kept {
    /// Copies the content of ranges that begin and end at a multiple of [`PIECE`].
    pub(crate) fn of(ranges: &[Range<usize>]) -> io::Result<Self> {
        let mut kept = Vec::new();
        if ranges.is_empty() {
            return Ok(Self(kept));
        }
        let table = PageTable::open()?;
        for range in ranges {
            let there = table.there(range.clone())?;
            for (index, _) in there.iter().enumerate().filter(|(_, there)| **there) {
                let at = range.start + index * PIECE;
                // SAFETY: memory of the program that can be read (contract of `FarMemoryBuilder::adopt`).
                let bytes =
                    unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(at), PIECE) };
                if bytes.iter().any(|&byte| byte != 0) {
                    kept.push((at, bytes.into()));
                }
            }
        }
        Ok(Self(kept))
    }

    /// Writes the pieces back to their addresses.
    ///
    /// # Safety
    ///
    /// The ranges can be written, and no other thread uses them.
    pub(crate) unsafe fn put_back(self) {
        for (at, bytes) in self.0 {
            // SAFETY: the caller keeps this function's contract.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), ptr::with_exposed_provenance_mut(at), bytes.len())
            };
        }
    }
}
