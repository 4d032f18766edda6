//! Reads from the device: raw, and through the pool.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use azekura_base::durable::NoLog;
use azekura_base::page::PageWord;
use azekura_base::{PageBuf, PageId, PageWords};
use azekura_buffer::{BufferPool, PageStore, PoolOptions, StoreError};
use azekura_io::{File, Fs, OpenOptions, OsFs};
use azekura_lab::lab::nb_gclock::device::PAGE_BYTES;

const FILE: &str = "cache-rows-disk";
const CHUNK_PAGES: usize = 64;
/// Number of scanning threads, each on a part of the file. More than there are processors, because a thread
/// either waits for the device or copies.
pub(super) const SCANS: usize = 8;
/// Number of pages that each scanning thread reads ahead. The sum over all threads is smaller than the
/// probation ring of a pool with 32,768 frames.
pub(super) const AHEAD: usize = 32;

/// A file of pages on the device, read with direct I/O if possible. The file is unlinked when it is opened.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    file: Arc<dyn File>,
    pages: u64,
    path: Arc<Path>,
}

impl Disk {
    /// Writes a file of `pages` pages, each with its number in its second word.
    pub(super) fn create(dir: &Path, pages: u64) -> Result<Self> {
        let (fs, path) = (OsFs::new(), dir.join(format!("{FILE}-{}", std::process::id())));
        let making = || format!("make a file of {pages} pages to read, {}", path.display());
        let options = OpenOptions::new().create(true).direct(true);
        let file = fs.open(&path, options).with_context(making)?;
        fs.remove_file(&path).with_context(making)?;
        let mut chunk = PageBuf::zeroed(CHUNK_PAGES * PAGE_BYTES);
        for first in (0..pages).step_by(CHUNK_PAGES) {
            for (page, bytes) in (first..pages).zip(chunk.chunks_exact_mut(PAGE_BYTES)) {
                // Incompressible content
                let word = page.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
                bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|eight| *eight = word);
                bytes[8..16].copy_from_slice(&page.to_le_bytes());
            }
            let bytes = (pages - first).min(CHUNK_PAGES as u64) as usize * PAGE_BYTES;
            file.write_at(first * PAGE_BYTES as u64, &chunk[..bytes]).with_context(making)?;
        }
        file.sync().with_context(making)?;
        Ok(Self { file, pages, path: path.into() })
    }

    /// Returns whether reads bypass the system's cache.
    pub(super) fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    fn read(&self, first: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        let offset = first.0 * PAGE_BYTES as u64;
        self.whole(first, out.len(), self.file.read_at(offset, out))
    }

    /// Returns an error if a read failed or returned fewer than `bytes` bytes.
    fn whole(&self, first: PageId, bytes: usize, done: std::io::Result<usize>) -> Result<(), StoreError> {
        let done =
            done.and_then(
                |read| {
                    if read == bytes { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
                },
            );
        done.map_err(|source| StoreError::Io {
            action: "read",
            path: Arc::clone(&self.path),
            page: Some(first),
            offset: first.0 * PAGE_BYTES as u64,
            source: Arc::new(source),
        })
    }

    /// Returns a pool over the file.
    pub(super) fn pool(&self, frames: usize) -> Result<BufferPool> {
        let options = PoolOptions {
            page_size: PAGE_BYTES,
            capacity_bytes: frames * PAGE_BYTES,
            ..PoolOptions::default()
        };
        Ok(BufferPool::new(options, Arc::new(self.clone()), Arc::new(NoLog))?)
    }

    /// Reads random pages with this number of threads; returns the pages per second.
    pub(super) fn random_raw(&self, threads: usize, seed: u64, time: Duration) -> f64 {
        per_second(during(threads, time, |thread, is_over| {
            let (mut page, mut read) = (PageBuf::zeroed(PAGE_BYTES), 0);
            for id in self.random(seed + thread as u64) {
                self.read(PageId(id), &mut page).expect("the file can be read");
                assert_eq!(page[8..16], id.to_le_bytes(), "another page");
                read += 1;
                if is_over.load(Relaxed) {
                    break;
                }
            }
            read
        }))
    }

    /// Reads random pages through a pool; returns the pages that the pool read per second.
    pub(super) fn random_pool(&self, pool: &BufferPool, threads: usize, seed: u64, time: Duration) -> f64 {
        let before = pool.stats().misses;
        let (_, seconds) = during(threads, time, |thread, is_over| {
            for id in self.random(seed + thread as u64) {
                visit(pool, id);
                if is_over.load(Relaxed) {
                    break;
                }
            }
            0
        });
        (pool.stats().misses - before) as f64 / seconds
    }

    /// Scans the file in parts, without a pool but with reads of the same size; returns the pages per second.
    pub(super) fn scan_raw(&self, ahead: usize, time: Duration) -> f64 {
        per_second(during(SCANS, time, |thread, is_over| {
            let (mut chunk, mut read) = (PageBuf::zeroed(ahead * PAGE_BYTES), 0);
            for first in self.part(thread, ahead) {
                self.read(PageId(first), &mut chunk).expect("the file can be read");
                for (id, page) in (first..).zip(chunk.chunks_exact(PAGE_BYTES)) {
                    assert_eq!(page[8..16], id.to_le_bytes(), "another page");
                }
                read += ahead as u64;
                if is_over.load(Relaxed) {
                    break;
                }
            }
            read
        }))
    }

    /// Scans the file in parts through a pool that reads ahead; returns the pages per second.
    pub(super) fn scan_pool(&self, pool: &BufferPool, ahead: usize, time: Duration) -> f64 {
        per_second(during(SCANS, time, |thread, is_over| {
            let mut read = 0;
            for first in self.part(thread, ahead) {
                read += pool.read_ahead(PageId(first), ahead) as u64;
                (first..first + ahead as u64).for_each(|id| visit(pool, id));
                if is_over.load(Relaxed) {
                    break;
                }
            }
            read
        }))
    }

    fn random(&self, seed: u64) -> impl Iterator<Item = u64> + use<> {
        let (mut state, pages) = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), self.pages);
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % pages
        })
    }

    /// Returns the first pages of a thread's chunks, repeated without end.
    fn part(&self, thread: usize, ahead: usize) -> impl Iterator<Item = u64> + use<> {
        let part = self.pages / SCANS as u64 / ahead as u64;
        (0..part).cycle().map(move |chunk| (thread as u64 * part + chunk) * ahead as u64)
    }
}

impl PageStore for Disk {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        self.read(id, out)
    }
    fn read_pages(&self, first: PageId, _page_size: usize, out: &mut [u8]) -> Result<(), StoreError> {
        self.read(first, out)
    }
    fn read_words(&self, first: PageId, out: &[PageWords<'_>]) -> Result<(), StoreError> {
        let words: Vec<&[PageWord]> = out.iter().map(|page| page.atomics()).collect();
        let offset = first.0 * PAGE_BYTES as u64;
        let done = self.file.read_words_at(offset, &words);
        self.whole(first, out.len() * PAGE_BYTES, done)
    }
    /// Does nothing: pages are never changed here.
    fn write_pages(&self, _batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        Ok(())
    }
    fn sync(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn visit(pool: &BufferPool, id: u64) {
    let page = pool.fix(PageId(id)).expect("the file can be read, and frames are enough");
    let found = page.peek().map(|page| page.words().word(1));
    assert_eq!(found, Some(id), "another page");
}

fn per_second((done, seconds): (u64, f64)) -> f64 {
    done as f64 / seconds
}

/// Runs `work` on this number of threads until the time is over. Returns the sum of the results, and the
/// seconds taken.
fn during(threads: usize, time: Duration, work: impl Fn(usize, &AtomicBool) -> u64 + Sync) -> (u64, f64) {
    let (is_over, start, done) = (AtomicBool::new(false), Barrier::new(threads + 1), AtomicU64::new(0));
    let began = std::thread::scope(|s| {
        for thread in 0..threads {
            let (work, is_over, start, done) = (&work, &is_over, &start, &done);
            s.spawn(move || {
                start.wait();
                done.fetch_add(work(thread, is_over), Relaxed);
            });
        }
        start.wait();
        let began = Instant::now();
        std::thread::sleep(time);
        is_over.store(true, Relaxed); // a flag that publishes no other data
        began
    });
    (done.load(Relaxed), began.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_and_through_the_pool_every_page_is_the_one_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::create(dir.path(), 1000).unwrap();
        let (pool, time) = (disk.pool(400).unwrap(), Duration::from_millis(20));
        assert!(disk.random_raw(3, 1, time) > 0.0);
        assert!(disk.random_pool(&pool, 3, 1, time) > 0.0);
        assert!(disk.scan_raw(8, time) > 0.0);
        assert!(disk.scan_pool(&pool, 8, time) > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no file is left behind");
    }
}
