//! Counts the waiting threads of this process by object, in a table without a lock.
//!
//! Most signals wake no thread, and are not recorded. Objects may share a count. A thread that was canceled
//! while it waited, left the wait by `siglongjmp`, or waited when its process forked, stays counted. In these
//! cases, signals are recorded that wake no thread.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const PLACES: usize = 4096;
static COUNTS: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

/// Returns the counter of an object.
#[inline]
fn count(object: usize) -> &'static AtomicU32 {
    let hash = (object as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    &COUNTS[hash as usize % PLACES]
}

// Relaxed in all functions: the counts are hints. The program itself orders a signal after the begin of the
// wait that it ends.

/// Counts the calling thread as a waiter for the object.
pub(super) fn enter(object: usize) {
    count(object).fetch_add(1, Relaxed);
}

/// Removes the calling thread from the waiters for the object.
pub(super) fn leave(object: usize) {
    count(object).fetch_sub(1, Relaxed);
}

/// Returns `true` if a thread waits for the object; may return `true` without a waiter.
#[inline]
pub(super) fn are_at(object: usize) -> bool {
    count(object).load(Relaxed) != 0
}
