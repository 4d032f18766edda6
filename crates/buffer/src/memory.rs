//! The pool's memory: one array of words, zero until pages are loaded, freed only with the pool.

use std::io;
use std::ops::Range;
// The words of pages are atomics of `std`, in models too; see `azekura_base::page`.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use azekura_base::PageWords;

use crate::index_stack::Below;
use azekura_base::zeroed::ZeroedArray;

/// Alignment of buffers, in bytes: enough for direct reads.
const ALIGNMENT: usize = 4096;

/// The words of all buffers, from a multiple of [`ALIGNMENT`] on.
pub(crate) struct PageMemory {
    words: ZeroedArray<AtomicU64>,
    first: usize,
    page_words: usize,
}

impl std::fmt::Debug for PageMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageMemory").field("page_words", &self.page_words).finish_non_exhaustive()
    }
}

impl PageMemory {
    /// Allocates this number of buffers, filled with zero words.
    pub(crate) fn zeroed(buffers: usize, page_size: usize) -> Self {
        Self::try_zeroed(buffers, page_size).expect("memory for a few pages")
    }

    /// Allocates this number of buffers, or returns an error.
    ///
    /// # Errors
    ///
    /// The error of the system, if it has no memory.
    pub(crate) fn try_zeroed(buffers: usize, page_size: usize) -> io::Result<Self> {
        let words = zeroed_words(buffers * page_size / 8 + ALIGNMENT / 8)?;
        let start = words.as_ptr().addr();
        let first = (start.next_multiple_of(ALIGNMENT) - start) / 8;
        Ok(Self { words, first, page_words: page_size / 8 })
    }

    /// Returns the number of buffers.
    pub(crate) fn buffers(&self) -> usize {
        (self.words.len() - ALIGNMENT / 8) / self.page_words
    }

    /// Returns the size of a buffer.
    pub(crate) const fn page_bytes(&self) -> usize {
        self.page_words * 8
    }

    /// Makes the system provide the memory of these buffers now, as the first use of each buffer does.
    /// Changes no content. Returns `false` if the system does not know the call.
    pub(crate) fn touch(&self, buffers: Range<u32>) -> bool {
        let first = self.first + buffers.start as usize * self.page_words;
        touch(&self.words[first..][..buffers.len() * self.page_words])
    }

    /// Returns the words of a buffer.
    #[inline]
    pub(crate) fn buffer(&self, number: u32) -> &[AtomicU64] {
        &self.words[self.first + number as usize * self.page_words..][..self.page_words]
    }
}

/// Bytes of a page that are prefetched: its header and the slots of 64 rows, which a binary search visits in
/// an order that no processor predicts. Measured with random reads of 1 M rows of 108 bytes in 8 KiB pages,
/// relative to one cache line: 17 lines take 0.78–0.83 of the time in a snapshot and 0.81–0.90 in a
/// transaction; 5 and 10 lines take 0.81–0.92.
pub(crate) const PREFETCHED_BYTES: usize = 17 * 64;

impl PageMemory {
    /// Prefetches the first `len` bytes of a buffer without waiting. A hint.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32, len: usize) {
        PageWords::new(self.buffer(number)).prefetch(0, len);
    }
}

/// The first word of a spare buffer holds the number of the next spare buffer.
impl Below for PageMemory {
    fn below(&self, number: u32) -> u32 {
        self.buffer(number)[0].load(Relaxed) as u32 // Relaxed: a hint; may be the word of a page by now
    }

    fn set_below(&self, number: u32, below: u32) {
        self.buffer(number)[0].store(below.into(), Relaxed);
    }
}

/// Returns `count` zero words. Large arrays use huge pages if the system has them, which reduces misses of
/// address translation.
fn zeroed_words(count: usize) -> io::Result<ZeroedArray<AtomicU64>> {
    let words = ZeroedArray::try_new(count, || AtomicU64::new(0))?;
    advise_huge_pages(&words);
    Ok(words)
}

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
fn advise_huge_pages(words: &[AtomicU64]) {
    use rustix::mm::{Advice, madvise};
    const HUGE: usize = 2 << 20;
    /// Bytes at the start of the memory that are not in huge pages, so that a pool with few pages uses little
    /// memory.
    const SMALL_PAGES: usize = 1 << 20;

    let start = (words.as_ptr().addr() + SMALL_PAGES).next_multiple_of(HUGE);
    let end = (words.as_ptr().addr() + size_of_val(words)) / HUGE * HUGE;
    if start < end {
        let first = words.as_ptr().with_addr(start).cast_mut().cast();
        // SAFETY: the range lies within `words`, and the advice changes the backing of memory, not its
        // content. A refusal changes nothing, so it is ignored.
        let _ = unsafe { madvise(first, end - start, Advice::LinuxHugepage) };
    }
}

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
fn touch(words: &[AtomicU64]) -> bool {
    use rustix::mm::{Advice, madvise};
    /// Bytes of a call, the size of a huge page. A thread that maps memory waits for the end of a call.
    const PIECE_BYTES: usize = 2 << 20;
    words.chunks(PIECE_BYTES / size_of::<AtomicU64>()).all(|piece| {
        let first = piece.as_ptr().cast_mut().cast();
        // SAFETY: the range is that of `piece`. This advice (since Linux 5.14) provides memory as a write
        // does, but changes no content.
        unsafe { madvise(first, size_of_val(piece), Advice::LinuxPopulateWrite) }.is_ok()
    })
}

#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
fn advise_huge_pages(_words: &[AtomicU64]) {}

#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
fn touch(_words: &[AtomicU64]) -> bool {
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use azekura_base::page::store_words;

    #[test]
    fn bytes_come_into_their_words_in_order_and_nowhere_else() {
        let words = zeroed_words(1026).expect("memory");
        let bytes: Vec<u8> = (0..8192u32).map(|n| (n * 7 + n / 256) as u8).collect();
        store_words(&words[1..1025], &bytes);
        for (word, eight) in words[1..1025].iter().zip(bytes.as_chunks::<8>().0) {
            assert_eq!(word.load(Relaxed).to_le_bytes(), *eight);
        }
        assert_eq!((words[0].load(Relaxed), words[1025].load(Relaxed)), (0, 0));
        store_words(&words[..0], &[]);
    }

    #[test]
    #[should_panic(expected = "a page fills its buffer")]
    fn bytes_that_do_not_fill_the_words_are_refused() {
        store_words(&zeroed_words(2).expect("memory"), &[0; 8]);
    }

    #[test]
    fn pages_begin_where_direct_reads_may_go() {
        for (buffers, page_size) in [(1, 4096), (3, 4096), (2, 8192), (144, 65_536)] {
            let memory = PageMemory::zeroed(buffers, page_size);
            assert_eq!(memory.buffers(), buffers);
            for number in 0..buffers as u32 {
                let words = memory.buffer(number);
                assert!(words.as_ptr().addr().is_multiple_of(ALIGNMENT) && words.len() == page_size / 8);
            }
        }
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn touched_buffers_have_memory_and_keep_their_content() {
        use std::os::unix::fs::FileExt;
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("opens");
        let memory = PageMemory::zeroed(64, 8192);
        let is_present = |number: u32| {
            let mut entry = [0; 8];
            let page = memory.buffer(number).as_ptr().addr() / 4096;
            pagemap.read_exact_at(&mut entry, page as u64 * 8).expect("reads");
            entry[7] & 0x80 != 0
        };
        let word = |number: u32| &memory.buffer(number)[5];
        word(20).store(9, Relaxed); // Relaxed: one thread
        let is_touched = memory.touch(16..50);
        assert!(!is_touched || (16..50).all(is_present));
        assert_eq!([20, 40].map(|number| word(number).load(Relaxed)), [9, 0]); // Relaxed: one thread
    }

    #[test]
    fn memory_of_any_size_is_zero() {
        for bytes in [4096, (2 << 20) - 8, 2 << 20, 9 << 20] {
            let words = zeroed_words(bytes / 8).expect("memory");
            assert!(words.len() == bytes / 8 && words.iter().all(|word| word.load(Relaxed) == 0));
        }
    }
}
