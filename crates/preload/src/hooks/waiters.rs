//! Counts of the threads of this process that wait, by object, in a table without a lock.
//!
//! Most signals wake nobody, and are not recorded. Objects may share a count, and a thread that was canceled
//! while it waited, or that waited when its process forked, stays counted: then signals are recorded that
//! woke nobody.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const PLACES: usize = 4096;
static COUNTS: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

/// The count of an object.
#[inline]
fn count(object: usize) -> &'static AtomicU32 {
    let hash = (object as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    &COUNTS[hash as usize % PLACES]
}

// Relaxed, all of them: a hint. A signal that is to wake a waiter is ordered behind the beginning of its wait
// by the program.

/// Counts the calling thread as a waiter.
pub(super) fn enter(object: usize) {
    count(object).fetch_add(1, Relaxed);
}

/// Removes the calling thread from the count.
pub(super) fn leave(object: usize) {
    count(object).fetch_sub(1, Relaxed);
}

/// Returns `true` if a thread waits at the object; may return `true` without one.
#[inline]
pub(super) fn are_at(object: usize) -> bool {
    count(object).load(Relaxed) != 0
}
