//! Stores to many words of a page. Each word is stored once, atomically and Relaxed: the caller publishes the
//! words, usually by the Release of the latch's unlock.
//!
//! The compiler may not combine atomic stores, so a loop takes a cycle for each word. The string instructions
//! of x86-64 take about a fifth of that for a page of 8 KiB.

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
use std::sync::atomic::Ordering::Relaxed;

use super::PageWord;

/// Stores zero in each word.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
pub fn zero_words(words: &[PageWord]) {
    // SAFETY: the instruction stores `words.len()` aligned quadwords, which x86-64 does as relaxed stores of
    // an `AtomicU64`. The words may be shared, as atomics may. The instruction leaves the stack and the flags
    // unchanged, and the ABI guarantees that the direction flag is clear.
    unsafe {
        std::arch::asm!(
            "rep stosq",
            inout("rcx") words.len() => _,
            inout("rdi") words.as_ptr() => _,
            in("rax") 0_u64,
            options(nostack, preserves_flags)
        );
    }
}

/// Stores zero in each word, without the instruction.
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
pub fn zero_words(words: &[PageWord]) {
    words.iter().for_each(|word| word.store(0, Relaxed)); // Relaxed: the caller publishes the words
}

/// Copies words that no other thread changes. The slices do not overlap.
///
/// # Panics
///
/// If the lengths differ.
pub(super) fn copy_words(target: &[PageWord], source: &[PageWord]) {
    assert_eq!(target.len(), source.len(), "a copy of another length");
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: `source` has `target.len()` words, and is borrowed.
    unsafe {
        move_to(target, source.as_ptr().cast());
    }
    // Relaxed: no other thread changes `source`, and the caller publishes `target`.
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    target.iter().zip(source).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
}

/// Stores a page's bytes into its words.
///
/// # Panics
///
/// If the lengths differ.
pub fn store_words(words: &[PageWord], bytes: &[u8]) {
    assert_eq!(bytes.len(), size_of_val(words), "a page fills its buffer");
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: `bytes` has `words.len()` quadwords, and is borrowed.
    unsafe {
        move_to(words, bytes.as_ptr());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    for (word, eight) in words.iter().zip(bytes.as_chunks::<8>().0) {
        word.store(u64::from_le_bytes(*eight), Relaxed); // Relaxed: the caller publishes the words
    }
}

/// Stores as many quadwords as there are words.
///
/// # Safety
///
/// `source` has that many quadwords, which do not overlap the words and do not change.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
unsafe fn move_to(words: &[PageWord], source: *const u8) {
    // SAFETY: the stores are as in `zero_words`; the caller guarantees the source.
    unsafe {
        std::arch::asm!(
            "rep movsq",
            inout("rcx") words.len() => _,
            inout("rsi") source => _,
            inout("rdi") words.as_ptr() => _,
            options(nostack, preserves_flags)
        );
    }
}
