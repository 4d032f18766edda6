//! Pool of page buffers of the process that no write uses now.
//!
//! A log flush, or a batch of a cleaner, takes buffers for one write and gives them back. The buffers belong
//! to the process and not to a store: an idle store keeps none, and a busy store gets buffers that are in the
//! processor's cache.

use std::sync::{Mutex, TryLockError};

use super::{MIN_PAGE_SIZE, PageBuf};

/// Largest total size of the kept buffers in bytes: four batches of a cleaner at the default page size, and a
/// flush of each of four log streams (`docs/decisions/095-half-full-log-buffers-are-written.md`).
const KEPT_BYTES: usize = 8 << 20;
/// Number of buffer sizes: buffers of 4 KiB, 8 KiB, ..., 4 MiB are kept, and larger ones are freed.
const CLASSES: usize = 11;

#[derive(Debug)]
struct Spare {
    classes: [Vec<PageBuf>; CLASSES],
    bytes: usize,
}

/// std's mutex, only used with `try_lock`: a thread never waits for it, so no model and no simulated machine
/// needs to see it. If the lock is held, the thread allocates or frees instead.
static SPARE: Mutex<Spare> = Mutex::new(Spare { classes: [const { Vec::new() }; CLASSES], bytes: 0 });

fn class(bytes: usize) -> usize {
    bytes.max(1).div_ceil(MIN_PAGE_SIZE).next_power_of_two().trailing_zeros() as usize
}

fn with_spare<T>(change: impl FnOnce(&mut Spare) -> T) -> Option<T> {
    match SPARE.try_lock() {
        Ok(mut spare) => Some(change(&mut spare)),
        Err(TryLockError::Poisoned(poisoned)) => Some(change(&mut poisoned.into_inner())),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Takes a buffer of `bytes` bytes, rounded up to a power of two, at least 4 KiB. Its content is arbitrary.
#[must_use]
pub fn take(bytes: usize) -> PageBuf {
    let class = class(bytes);
    let kept = with_spare(|spare| {
        let taken = spare.classes.get_mut(class)?.pop()?;
        spare.bytes -= taken.len();
        Some(taken)
    });
    kept.flatten().unwrap_or_else(|| PageBuf::zeroed(MIN_PAGE_SIZE << class))
}

/// Gives back buffers of [`take`].
pub fn give(buffers: impl IntoIterator<Item = PageBuf>) {
    let mut buffers = buffers.into_iter().peekable();
    if buffers.peek().is_none() {
        return;
    }
    with_spare(|spare| buffers.for_each(|buffer| spare.keep(buffer)));
}

impl Spare {
    /// Keeps a buffer. If the kept buffers then have too many bytes, frees buffers of the class with the most
    /// bytes, so that many small buffers do not displace the large ones.
    fn keep(&mut self, buffer: PageBuf) {
        let Some(of_class) = self.classes.get_mut(class(buffer.len())) else { return };
        self.bytes += buffer.len();
        of_class.push(buffer);
        while self.bytes > KEPT_BYTES {
            let bytes = |class: &Vec<PageBuf>| class.first().map_or(0, |buffer| class.len() * buffer.len());
            let largest = self.classes.iter_mut().max_by_key(|class| bytes(class));
            let Some(freed) = largest.and_then(Vec::pop) else { return };
            self.bytes -= freed.len();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn buffers_have_the_size_that_was_asked_for_and_little_is_kept() {
        for (asked, got) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (3 << 20, 4 << 20)] {
            assert_eq!(take(asked).len(), got);
        }
        give((0..3000).map(|_| PageBuf::zeroed(4096)));
        give([PageBuf::zeroed(2 << 20)]);
        let (sum, bytes) = with_spare(|spare| {
            let sizes = spare.classes.iter().flatten().map(|buffer| buffer.len());
            (sizes.sum::<usize>(), spare.bytes)
        })
        .expect("no other test uses it");
        assert_eq!((sum, bytes), (KEPT_BYTES, KEPT_BYTES));
        let of_class = |bytes| with_spare(|spare| spare.classes[class(bytes)].len());
        assert_eq!(
            (of_class(2 << 20), of_class(4096)),
            (Some(1), Some(1536)),
            "the large one replaces small ones"
        );
        assert!((0..3000).all(|_| take(4096).len() == 4096));
    }
}
