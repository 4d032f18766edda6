//! Source of the lab's pages: memory, where every page is generated, or a sparse file, read in one of two
//! ways.

use azekura_base::page::PageWord;
use azekura_base::sync::Mutex;
use azekura_base::{PageBuf, PageId, PageWords};
use azekura_buffer::{PageStore, StoreError, read_and_copy};
use azekura_io::{Fs, OpenOptions, OsFs};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Page size in bytes, as in the paper.
pub const PAGE_BYTES: usize = 8192;

/// Method of reading pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// No reading: pages are generated in memory.
    Memory,
    /// `lseek` and `read`, under one lock that is held for both calls.
    Blocking,
    /// `pread`, by any number of threads at once.
    Optimistic,
}

impl Reading {
    /// Returns the number of system calls that reading a page takes.
    #[must_use]
    pub const fn calls_per_page(self) -> u64 {
        match self {
            Self::Memory => 0,
            Self::Optimistic => 1,
            Self::Blocking => 2,
        }
    }
}

/// The source of the pages. Page `p` is read at `p` modulo the number of pages in the file, because the
/// content does not matter. The short file stays in the operating system's cache, so that the compared cache
/// is measured and not the disk.
#[derive(Debug)]
pub struct Device {
    reading: Reading,
    file: Option<Pages>,
}

#[derive(Debug)]
struct Pages {
    positioned: Arc<dyn azekura_io::File>,
    seeking: Mutex<File>,
    count: u64,
    path: Arc<Path>,
}

impl Device {
    /// Returns a device that generates pages in memory.
    #[must_use]
    pub const fn memory() -> Self {
        Self { reading: Reading::Memory, file: None }
    }

    /// Creates a sparse file of `bytes` bytes in `dir`. The file is unlinked at once; its space is freed when
    /// the device is dropped.
    ///
    /// # Errors
    ///
    /// The operating system's error if the file cannot be created.
    pub fn file(dir: &Path, bytes: u64, reading: Reading) -> io::Result<Self> {
        let path = dir.join(format!("nb-gclock-lab-{}", std::process::id()));
        let positioned = OsFs::new().open(&path, OpenOptions::new().create(true))?;
        let opened = File::open(&path);
        std::fs::remove_file(&path)?;
        let count = (bytes / PAGE_BYTES as u64).max(1);
        positioned.set_len(count * PAGE_BYTES as u64)?;
        let file = Pages { positioned, seeking: Mutex::new(opened?), count, path: path.into() };
        Ok(Self { reading, file: Some(file) })
    }

    /// Returns whether only one thread reads at a time.
    #[must_use]
    pub const fn is_blocking(&self) -> bool {
        matches!(self.reading, Reading::Blocking)
    }

    /// Reads a page and writes the page number into its second word.
    fn read(&self, page: u64, out: &mut [u8]) -> io::Result<()> {
        if let Some(file) = &self.file {
            let offset = page % file.count * PAGE_BYTES as u64;
            match self.reading {
                Reading::Memory => {}
                Reading::Optimistic => whole(out.len(), file.positioned.read_at(offset, out))?,
                Reading::Blocking => {
                    let mut seeking = file.seeking.lock();
                    seeking.seek(SeekFrom::Start(offset))?;
                    seeking.read_exact(out)?;
                }
            }
        }
        out[8..16].copy_from_slice(&page.to_le_bytes());
        Ok(())
    }
}

/// Checks that a read returned `bytes` bytes.
fn whole(bytes: usize, read: io::Result<usize>) -> io::Result<()> {
    if read? == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

impl Device {
    fn checked(&self, id: PageId, read: io::Result<()>) -> Result<(), StoreError> {
        read.map_err(|source| StoreError::Io {
            action: "read",
            path: self
                .file
                .as_ref()
                .map_or_else(|| Path::new("memory").into(), |file| Arc::clone(&file.path)),
            page: Some(id),
            offset: id.0 * PAGE_BYTES as u64,
            source: Arc::new(source),
        })
    }
}

impl PageStore for Device {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        self.checked(id, self.read(id.0, out))
    }

    /// Reads a single page by `pread` directly into its frame. Generated pages are copied into the frame: the
    /// copy represents the cost of such a miss.
    fn read_words(&self, first: PageId, out: &[PageWords<'_>]) -> Result<(), StoreError> {
        let (Some(file), Reading::Optimistic, [page]) = (&self.file, self.reading, out) else {
            return read_and_copy(self, first, out);
        };
        let words: &[PageWord] = page.atomics();
        let read = file.positioned.read_words_at(first.0 % file.count * PAGE_BYTES as u64, &[words]);
        words[1].store(first.0.to_le(), Relaxed); // Relaxed: the caller publishes the page afterward
        self.checked(first, whole(PAGE_BYTES, read))
    }

    /// Does nothing, because no page is ever changed.
    fn write_pages(&self, _batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_reading_gives_the_page_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        for device in [
            Device::memory(),
            Device::file(dir.path(), 1 << 20, Reading::Blocking).unwrap(),
            Device::file(dir.path(), 1 << 20, Reading::Optimistic).unwrap(),
        ] {
            let mut page = PageBuf::zeroed(PAGE_BYTES);
            for id in [0, 5, 127, 128, 3_999_999] {
                device.read_page(PageId(id), &mut page).unwrap();
                assert_eq!(page[8..16], id.to_le_bytes());
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no file is left behind");
    }
}
