//! The right to write a stream, and the end of a flush.

use azekura_base::sync::atomic::Ordering::*;

use super::{CommitGate, now, parity};

/// The exclusive right to write the stream now, and the duty to end the flush.
#[derive(Debug)]
#[must_use = "dropping it ends the flush"]
pub struct Lead<'g> {
    pub(super) gate: &'g CommitGate,
    pub(super) number: u64,
}

impl Lead<'_> {
    /// Ends the flush. First wakes the next leader, so that the device does not become idle. Then wakes the
    /// group. The caller has advanced the durable marks. Returns the number of threads in the group.
    pub fn finish(self) -> u32 {
        let gate = self.gate;
        let number = self.number;
        std::mem::forget(self);
        gate.end(number)
    }
}

impl Drop for Lead<'_> {
    /// Ends the flush if the leader fails or panics. The caller has poisoned the log before.
    fn drop(&mut self) {
        self.gate.end(self.number);
    }
}

impl CommitGate {
    fn end(&self, number: u64) -> u32 {
        let (group, next) = (parity(number), parity(number + 1));
        let mut state = self.lock();
        debug_assert!(state.flushing && state.number == number, "GATE-1");
        state.flushing = false;
        // Release: pairs with the Acquire in `sleep`.
        self.finished.store(number, Release);
        let woken = std::mem::take(&mut state.waiting[group]);
        if woken > 0 {
            self.change(group);
        }
        let followers = state.following[group];
        let asleep = woken + state.waiting[next] + followers + state.following[next];
        state.flush_ended(asleep, now());
        let has_next_leader = state.waiting[next] > 0;
        if has_next_leader {
            self.change(next);
        }
        self.release_followers(&mut state, group);
        drop(state);
        if has_next_leader {
            self.words[next].wake_one();
        }
        if woken > 0 {
            self.words[group].wake_all();
        }
        if followers > 0 {
            self.follower_words[group].wake_all();
        }
        woken + followers
    }
}
