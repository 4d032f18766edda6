//! One half of the serial buffer: many threads copy their bytes into it at the same time, each into its own
//! range.
//!
//! - **FILL-1** Ranges are reserved under the buffer's latch, so no two overlap; only the reserving thread
//!   writes its range.
//! - **FILL-2** An inserter adds its length to `filled` (Release) once, after the copy. Only the leader of
//!   the flush that took the half reads its bytes, and only after `filled` (Acquire) has reached the reserved
//!   length. Then no writer is left.
//! - **FILL-3** The half is used again only after that flush has read it, and `filled` is 0 again.

use std::cell::UnsafeCell;

use azekura_base::Backoff;
use azekura_base::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use azekura_base::sync::{WaitWord, machine};
use azekura_trace::{Site, WaitKind};

static FILL_WAIT: Site = Site::new("wal insertion copy");

/// Bit of `filled` that is set while the leader of the flush sleeps on `filled`.
const ASLEEP: u32 = 1 << 31;

/// One half of the buffer.
#[derive(Debug)]
pub(super) struct Half {
    bytes: Box<[UnsafeCell<u8>]>,
    /// Number of bytes copied so far. Written by inserters, read by the leader of the flush that took the
    /// half.
    filled: WaitWord,
    /// Detects, in a model, unordered use of a byte by two threads.
    #[cfg(loom)]
    witnesses: Box<[loom::cell::UnsafeCell<()>]>,
}

// SAFETY: only `bytes` is not `Sync` by itself. FILL-1 gives each byte one writer, FILL-2 orders the writers
// before the reader.
unsafe impl Sync for Half {}

impl Half {
    pub(super) fn new(capacity_bytes: usize) -> Self {
        Self {
            bytes: (0..capacity_bytes).map(|_| UnsafeCell::new(0)).collect(),
            filled: WaitWord::new(0),
            #[cfg(loom)]
            witnesses: (0..capacity_bytes).map(|_| loom::cell::UnsafeCell::new(())).collect(),
        }
    }

    /// Copies `parts`, one after the other, to `at`.
    ///
    /// # Safety
    ///
    /// The caller has reserved the range (FILL-1) and has not yet passed it to [`Half::add_filled`].
    ///
    /// # Panics
    ///
    /// If the range is not inside the half.
    pub(super) unsafe fn copy_in(&self, mut at: usize, parts: [&[u8]; 2]) {
        for part in parts {
            let range = &self.bytes[at..at + part.len()];
            machine::writes(range); // the leader reads them
            #[cfg(loom)]
            self.witnesses[at..at + part.len()].iter().for_each(|byte| byte.with_mut(|_| ()));
            // SAFETY: `range` is as long as `part`, and its cells may be written through a shared reference;
            // by FILL-1 no other thread uses them now. `part` cannot overlap cells without any reference to
            // them.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), range.as_ptr().cast_mut().cast(), part.len());
            }
            at += part.len();
        }
    }

    /// Adds `len` copied bytes to the count, and wakes the leader if it sleeps.
    pub(super) fn add_filled(&self, len: usize) {
        // Release: pairs with the Acquire in `wait_filled`; the reader sees the bytes.
        let before = self.filled.word().fetch_add(len as u32, Release);
        if before & ASLEEP != 0 {
            self.filled.wake_one();
        }
    }

    /// Blocks until `reserved` bytes are copied, that is, until other threads finish their copies.
    pub(super) fn wait_filled(&self, reserved: usize) {
        let mut backoff = Backoff::new();
        loop {
            // Acquire: pairs with the Release in `add_filled` (all adders are one release sequence).
            let seen = self.filled.word().load(Acquire);
            if seen & !ASLEEP == reserved as u32 {
                return;
            }
            debug_assert!(
                (seen & !ASLEEP) < reserved as u32,
                "FILL-3: the half was empty when it came to the front"
            );
            if !cfg!(loom) && !backoff.is_exhausted() {
                backoff.pause();
                continue;
            }
            // Relaxed: the loop reads the value again. An adder before the exchange changes the word and
            // makes the exchange fail; an adder after it reads the flag and wakes the leader.
            let flagged = self.filled.word().compare_exchange(seen, seen | ASLEEP, Relaxed, Relaxed);
            if flagged.is_ok() {
                let _wait = azekura_trace::wait(&FILL_WAIT, std::ptr::from_ref(self).addr(), WaitKind::Log);
                self.filled.wait(seen | ASLEEP, None);
            }
        }
    }

    /// Makes the half empty (FILL-3). Relaxed: no other thread uses the half now, and the latch publishes the
    /// change.
    pub(super) fn reset(&self) {
        self.filled.word().store(0, Relaxed);
    }

    /// Passes the first `len` bytes to `read`.
    ///
    /// # Safety
    ///
    /// The caller leads the flush that took the half, and [`Half::wait_filled`] has returned for it (FILL-2).
    ///
    /// # Panics
    ///
    /// If the half is shorter.
    pub(super) unsafe fn with_bytes<T>(&self, len: usize, read: impl FnOnce(&[u8]) -> T) -> T {
        let range = &self.bytes[..len];
        #[cfg(loom)]
        self.witnesses[..len].iter().for_each(|byte| byte.with(|_| ()));
        // SAFETY: `range` is `len` initialized bytes, and by FILL-2 and FILL-3 no thread writes them during
        // the read.
        read(unsafe { std::slice::from_raw_parts(range.as_ptr().cast(), len) })
    }
}
