//! The right to write a stream: how it is claimed, and what its end does.
//!
//! Who must lead, to change what the stream writes, **claims** the next flush. Else a flusher with a request
//! after every flush would be back before the claimant has woken up, again and again.
//!
//! - **GATE-7** While a claim stands nobody else begins a flush: who comes sleeps over the claimant's, which
//!   writes all that was buffered before it began. The end of a flush wakes a claimant in the heir's place,
//!   and that is GATE-2's thread on its way.
//!
//! - **GATE-8** The claimant takes what is buffered after it has begun to lead, so its flush may hold records
//!   of followers that wait for the next one. A flusher that they have asked finds it needless while the
//!   claimant still leads, and has nobody to wake; so the end of a claimed flush lets all followers look
//!   again.

use azekura_base::blocking;
use azekura_base::sync::atomic::Ordering::*;
use azekura_trace::WaitKind;

use super::{CommitGate, FLUSH_WAIT, Who, now, parity};

/// What a claimed flush covers, for who comes while it goes on (GATE-8).
const COVERS_NOBODY: u64 = 0;

/// The right, and the duty, to write the stream now.
#[derive(Debug)]
#[must_use = "dropping it ends the flush"]
pub struct Lead<'g> {
    pub(super) gate: &'g CommitGate,
    pub(super) number: u64,
}

impl Lead<'_> {
    /// Ends the flush: wakes the heir first, so that the device is not idle, then the group. Call it after
    /// the marks have moved. Returns the number of threads that the group had.
    pub fn finish(self) -> u32 {
        let gate = self.gate;
        let number = self.number;
        std::mem::forget(self);
        gate.end(number)
    }
}

impl Drop for Lead<'_> {
    /// A leader that panics must not leave the others asleep; the caller poisons the log first.
    fn drop(&mut self) {
        self.gate.end(self.number);
    }
}

impl CommitGate {
    /// Leads the next flush, as soon as the one going on has ended, if there is one; nobody comes between
    /// (GATE-7). It covers nobody who comes later, and must write all that is buffered.
    pub fn claim(&self) -> Lead<'_> {
        let mut state = self.lock();
        while state.flushing {
            state.claims += 1;
            // Relaxed: the word changes under the mutex, which we hold.
            let expected = self.claim_word.word().load(Relaxed);
            let leader = state.leader;
            drop(state);
            {
                let address = std::ptr::from_ref(self).addr();
                let _wait = azekura_trace::wait_for(&FLUSH_WAIT, address, WaitKind::Log, leader);
                blocking::announce();
                self.claim_word.wait(expected, None);
            }
            state = self.lock();
            state.claims -= 1;
        }
        let number = state.lead(Who::Log, COVERS_NOBODY);
        Lead { gate: self, number }
    }

    fn end(&self, number: u64) -> u32 {
        let (group, heirs) = (parity(number), parity(number + 1));
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
        let asleep = woken + state.waiting[heirs] + followers + state.following[heirs];
        state.gathering.end(asleep, now());
        // GATE-7
        let has_claimant = state.claims > 0;
        let has_heir = !has_claimant && state.waiting[heirs] > 0;
        if has_claimant {
            self.claim_word.word().fetch_add(1, Release);
        }
        if has_heir {
            self.change(heirs);
        }
        self.release_followers(&mut state, group);
        // GATE-8
        let late = state.covers == COVERS_NOBODY && self.release_followers(&mut state, heirs);
        drop(state);
        if late {
            self.follower_words[heirs].wake_all();
        }
        if has_claimant {
            self.claim_word.wake_one();
        }
        if has_heir {
            self.words[heirs].wake_one();
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Turn;
    use super::*;

    #[test]
    fn while_a_claim_stands_nobody_else_begins_a_flush() {
        let gate = CommitGate::new();
        gate.lock().claims = 1; // of a thread that has not woken up yet
        let led = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            for commits in [false, true] {
                let (gate, led) = (&gate, &led);
                s.spawn(move || {
                    let turn = if commits {
                        gate.join(1, None, || true, || (2, ()))
                    } else {
                        gate.enter(1, || true, || (2, ()))
                    };
                    led.fetch_or(!matches!(turn, Turn::Finished), SeqCst);
                });
            }
            while gate.lock().waiting != [0, 2] && !led.load(SeqCst) {
                std::thread::yield_now();
            }
            assert!(!gate.is_flushing(), "GATE-7");
            let mut state = gate.lock();
            state.claims = 0;
            let number = state.lead(Who::Log, COVERS_NOBODY);
            drop(state);
            assert_eq!(Lead { gate: &gate, number }.finish(), 2);
        });
        assert!(!led.load(SeqCst), "GATE-7");
    }

    #[test]
    fn who_claims_the_next_flush_leads_it_and_who_runs_already_does_not() {
        let gate = CommitGate::new();
        let Turn::Lead(lead, ()) = gate.enter(1, || true, || (2, ())) else { panic!("nobody leads yet") };
        let overtook = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                let claimed = gate.claim();
                assert_eq!(claimed.number, 2, "GATE-7");
                while gate.state.lock().waiting == [0; 2] && !overtook.load(SeqCst) {
                    std::thread::yield_now();
                }
                claimed.finish();
            });
            while gate.state.lock().claims == 0 {
                std::thread::yield_now();
            }
            lead.finish();
            // The claimant has most likely not woken up.
            match gate.enter(2, || true, || (3, ())) {
                Turn::Finished => {}
                Turn::Lead(lead, ()) => {
                    overtook.store(lead.number == 2, SeqCst);
                    assert_eq!(lead.number, 3, "GATE-7");
                }
                Turn::NotNeeded => unreachable!("it is"),
            }
        });
        assert!(!gate.is_flushing() && !gate.lock().is_taken());
    }
}
