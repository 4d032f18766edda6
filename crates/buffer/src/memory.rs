//! The pool's memory: one run of words, zero until pages come, never given back before the pool goes.

// The words of pages are std's atomics in models too; see `azekura_base::page`.
use std::sync::atomic::AtomicU64;

/// `count` zero words. Large runs are asked for in huge pages, where the system has them: fewer address translations are missed.
pub(crate) fn zeroed_words(count: usize) -> Box<[AtomicU64]> {
    let words = Box::<[AtomicU64]>::new_zeroed_slice(count);
    // SAFETY: an `AtomicU64` of zero bytes is a valid value. Asking for zeroed memory keeps a large pool untouched until its
    // pages come.
    let words = unsafe { words.assume_init() };
    advise_huge_pages(&words);
    words
}

#[cfg(all(target_os = "linux", not(loom), not(miri)))]
fn advise_huge_pages(words: &[AtomicU64]) {
    use rustix::mm::{Advice, madvise};
    const HUGE: usize = 2 << 20;

    let start = words.as_ptr().addr().next_multiple_of(HUGE);
    let end = (words.as_ptr().addr() + size_of_val(words)) / HUGE * HUGE;
    if start < end {
        let first = words.as_ptr().with_addr(start).cast_mut().cast();
        // SAFETY: the range lies within `words`, and the advice changes how memory is backed, not what it holds.
        // A refusal changes nothing, so it is ignored.
        let _ = unsafe { madvise(first, end - start, Advice::LinuxHugepage) };
    }
}

#[cfg(not(all(target_os = "linux", not(loom), not(miri))))]
fn advise_huge_pages(_words: &[AtomicU64]) {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn memory_of_any_size_is_zero() {
        for bytes in [4096, (2 << 20) - 8, 2 << 20, 9 << 20] {
            let words = zeroed_words(bytes / 8);
            assert!(words.len() == bytes / 8 && words.iter().all(|word| word.load(Relaxed) == 0));
        }
    }
}
