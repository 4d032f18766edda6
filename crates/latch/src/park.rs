//! Where threads sleep that wait for a latch: a few wait words, shared by all latches by address.
//!
//! - **PARK-1** A sleeper reads its bucket's count, then finds or sets the latch's *parked* bit, then sleeps
//!   while the count is what it read. Who clears the bit moves the count afterwards. So if the sleeper read
//!   the moved count, it also sees the cleared bit, and if it did not, its sleep ends at once.
//!
//! | sleeper | who lets go |
//! |---|---|
//! | count := 7 (Acquire) | |
//! | parked bit set | |
//! | | bit cleared, was set |
//! | | count := 8 (Release), wake |
//! | sleep while the count is 7: returns | |

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::Ordering::{Acquire, Release};

#[cfg(not(loom))]
mod place {
    use super::WaitWord;
    use azekura_base::CachePadded;

    const BUCKETS: usize = 64;
    static PARKED: [CachePadded<WaitWord>; BUCKETS] = [const { CachePadded::new(WaitWord::new(0)) }; BUCKETS];

    pub(super) fn of(address: usize) -> &'static WaitWord {
        // Latches stand a cache line apart or more.
        &PARKED[azekura_base::sync::machine::line_of(address) % BUCKETS]
    }
}

#[cfg(loom)]
mod place {
    use super::WaitWord;

    loom::lazy_static! {
        static ref PARKED: WaitWord = WaitWord::new(0);
    }

    /// One bucket for all, so that a model also meets wake-ups meant for another latch.
    pub(super) fn of(_address: usize) -> &'static WaitWord {
        &PARKED
    }
}

/// The place where the waiters of one latch sleep.
#[derive(Clone, Copy)]
pub(crate) struct Bucket(&'static WaitWord);

impl Bucket {
    pub(crate) fn of(address: usize) -> Self {
        Self(place::of(address))
    }

    /// The count to hand to [`Bucket::sleep`]; read before the latch's word is (PARK-1).
    pub(crate) fn count(self) -> u32 {
        // Acquire: pairs with the Release in `wake`.
        self.0.word().load(Acquire)
    }

    pub(crate) fn sleep(self, count: u32) {
        self.0.wait(count, None);
    }

    /// Ends every sleep in the bucket, also of those who wait for other latches: they look again and sleep
    /// on.
    pub(crate) fn wake(self) {
        // Release: who sees the new count sees the parked bit cleared (PARK-1).
        self.0.word().fetch_add(1, Release);
        self.0.wake_all();
    }
}
