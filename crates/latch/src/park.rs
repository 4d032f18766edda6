//! Wait words for threads that wait for a latch. All latches share a few wait words, selected by address.
//!
//! - **PARK-1** A sleeping thread reads its bucket's count, then finds or sets the latch's *parked* bit, then
//!   sleeps while the count is unchanged. The releasing thread clears the bit, then increments the count. So
//!   a sleeper that reads the new count also sees the cleared bit, and any other sleeper is woken at once.
//!
//! | sleeping thread | releasing thread |
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
        // Latches are at least a cache line apart.
        &PARKED[azekura_base::sync::machine::line_of(address) % BUCKETS]
    }
}

#[cfg(loom)]
mod place {
    use super::WaitWord;

    loom::lazy_static! {
        static ref PARKED: WaitWord = WaitWord::new(0);
    }

    /// Returns the same bucket for all latches, so that a model also has wake-ups meant for another latch.
    pub(super) fn of(_address: usize) -> &'static WaitWord {
        &PARKED
    }
}

/// The wait word of a latch. Latches with other addresses may share it.
#[derive(Clone, Copy, Debug)]
pub struct Bucket(&'static WaitWord);

impl Bucket {
    /// Returns the bucket of a latch at this address.
    #[must_use]
    pub fn of(address: usize) -> Self {
        Self(place::of(address))
    }

    /// Returns the count to pass to [`Bucket::sleep`]. Read before the latch's word (PARK-1).
    #[must_use]
    pub fn count(self) -> u32 {
        // Acquire: pairs with the Release in `wake`.
        self.0.word().load(Acquire)
    }

    /// Sleeps until the count differs from `count`; returns at once if it already does.
    pub fn sleep(self, count: u32) {
        self.0.wait(count, None);
    }

    /// Wakes all threads of the bucket. Threads that wait for other latches check and sleep again.
    pub fn wake(self) {
        // Release: a thread that sees the new count sees the parked bit cleared (PARK-1).
        self.0.word().fetch_add(1, Release);
        self.0.wake_all();
    }
}
