//! The gate before a stream: selects the thread that writes next, and holds the threads that wait for it.
//!
//! Greedy group commit: a thread that needs a flush and finds none in progress leads one, which takes
//! everything buffered so far. Threads that arrive meanwhile sleep until the flush that covers their records
//! has ended. A lone committer does one device write without a thread switch. Many committers form groups:
//! all that arrive during one device write share the next one.
//!
//! The flushes of a stream are numbered. Threads that the running flush *n* covers sleep on one wait word.
//! Threads that need flush *n + 1* sleep on the other. The end of *n* wakes the group of *n* with one system
//! call. It also wakes one sleeper of the other word, the **next leader**, which leads *n + 1* at once.
//!
//! | state | left by |
//! |---|---|
//! | idle | any thread that needs a flush: it leads |
//! | flushing *n* | its leader only |
//!
//! - **GATE-1** At most one thread leads. A [`Lead`] is the proof.
//! - **GATE-2** If threads sleep, then a flush is in progress, or a thread is about to lock the gate's mutex.
//!   That thread leads a flush, or finds the flush needless and *passes the wake-up on*. So no wake-up is
//!   lost.
//! - **GATE-3** The content of a flush is fixed while the mutex is held, so the number of the flush that
//!   covers an arriving thread is exact.
//!
//! Committers **join**. The first committer that returns after a flush may wait for the others that the flush
//! released (`wal::commit_delay`). It sleeps with a time limit, as the **fallback leader**. The last
//! committer to arrive leads.
//!
//! - **GATE-5** While threads wait for others to arrive, with no flush in progress, one of the waiting
//!   threads is the fallback leader. So a thread leads at the time limit at the latest. If a thread leads
//!   sooner, there is none until the next delay.
//!
//! A running thread may lead before the next leader has woken up. This is fair, because each flush takes
//! everything that was buffered before the flush. The record of the woken thread is then in that flush, and
//! the woken thread sleeps until the flush ends.
//!
//! Threads that must not write, because the flusher writes for all (Aether's flush pipelining), **follow**:
//! they sleep on separate words until the flush that covers them has ended. Committers follow, too, when the
//! flusher leads (`wal::committer_count`). Both kinds may wait at the same time: a flush wakes all threads
//! that it covers, whichever thread leads.
//!
//! - **GATE-4** A follower first registers, then requests the flush. So the leading thread locks the gate
//!   after the registration. It covers the follower, or finds the flush needless and wakes the follower.
//! - **GATE-6** A thread that has slept as a possible leader never follows. That thread may be the next
//!   leader, and the flusher may itself sleep in the gate until the flush of the next leader.
//!
//! Model: `tests/loom_gate.rs`.

mod lead;

use std::time::Duration;

use azekura_base::blocking;
use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{AtomicU64, Ordering::*};
use azekura_base::sync::time::Instant;
use azekura_latch::{TracedGuard, TracedMutex};
use azekura_trace::{Site, ThreadTag, WaitKind, thread_tag};

use crate::commit_delay::{Advice, CommitDelay};
use crate::committer_count::{CommitterCount, FlushLeader};
use crate::notifier::Notifier;

pub use lead::Lead;

static GATE_MUTEX: Site = Site::new("wal commit gate");
static FLUSH_WAIT: Site = Site::new("wal flush");

#[derive(Debug, Default)]
struct State {
    flushing: bool,
    /// Number of the current flush, or of the last one.
    number: u64,
    /// The current flush holds every record of the stream below this LSN that was not durable before.
    covers: u64,
    /// The thread that leads the current flush, for the tracer.
    leader: ThreadTag,
    /// Registered sleepers per wait word.
    waiting: [u32; 2],
    /// Registered followers per follower word. A flush wakes all of its group, so a count that is too high
    /// costs only a system call.
    following: [u32; 2],
    commit_delay: CommitDelay,
    committers: CommitterCount,
    /// `true` if a sleeper for the next flush has a time limit (GATE-5). Set and cleared by that sleeper,
    /// cleared by the next leader.
    has_fallback_leader: bool,
    /// In models, which have no time: the leader of the next flush. The leaders alternate.
    alternating: Option<FlushLeader>,
}

/// The gate of one stream.
#[derive(Debug)]
pub struct CommitGate {
    state: TracedMutex<State>,
    /// Wait words, changed under the mutex. The parity of a flush's number selects its word.
    words: [WaitWord; 2],
    /// The followers' wait words, selected in the same way.
    follower_words: [WaitWord; 2],
    /// Number of the last flush that ended. Written under the mutex, read by threads that wake up.
    finished: AtomicU64,
}

impl Default for CommitGate {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Returns the number of the flush that covers `lsn`: the current one, or the next.
    const fn covering(&self, lsn: u64) -> u64 {
        self.number + (!self.flushing || lsn >= self.covers) as u64
    }

    /// Counts a commit of the calling thread.
    fn note_commit(&mut self, now: Instant) {
        let flush_time = self.commit_delay.flush_time();
        self.committers.note(azekura_base::striped::thread_stripe(), flush_time, now);
    }

    fn flush_leader(&self) -> FlushLeader {
        self.alternating.unwrap_or_else(|| self.committers.flush_leader())
    }

    /// Decides whether the calling committer, which is not in `waiting`, leads or waits. No flush is in
    /// progress.
    fn advise(&mut self) -> Advice {
        if self.alternating.is_some() {
            return Advice::Lead;
        }
        let next = parity(self.number + 1);
        let present = self.waiting[next] + self.following[next] + 1;
        self.commit_delay.advise(present, now())
    }

    /// Records the begin of a flush; returns its number.
    fn lead(&mut self, leader: FlushLeader, covers: u64) -> u64 {
        (self.flushing, self.number, self.covers) = (true, self.number + 1, covers);
        self.leader = thread_tag();
        self.has_fallback_leader = false; // GATE-5
        self.commit_delay.begin(leader == FlushLeader::Committer, now());
        self.number
    }

    /// Records the end of a flush; `asleep` committers slept until then, or sleep for the next flush.
    fn flush_ended(&mut self, asleep: u32, now: Instant) {
        self.commit_delay.end(asleep, now);
        self.alternating = self.alternating.map(|leader| match leader {
            FlushLeader::Committer => FlushLeader::Flusher,
            FlushLeader::Flusher => FlushLeader::Committer,
        });
    }

    /// Records that the fallback leader of flush `target` woke up before that flush began.
    fn end_fallback(&mut self, target: u64) {
        if !self.flushing && self.number + 1 == target {
            self.has_fallback_leader = false;
            self.commit_delay.missed();
        }
    }
}

/// The result of a request for a flush.
#[derive(Debug)]
pub enum Turn<'g, T> {
    /// The caller leads. It writes the batches in `T`, then calls [`Lead::finish`].
    Lead(Lead<'g>, T),
    /// A flush that covers the request has ended (perhaps with an error), or may have ended. The caller must
    /// check again.
    Finished,
    /// The flush is not needed any more.
    NotNeeded,
}

const fn parity(number: u64) -> usize {
    (number & 1) as usize
}

/// Returns the time; in a model, always the same time.
fn now() -> Instant {
    #[cfg(not(loom))]
    return Instant::now();
    #[cfg(loom)]
    return *{
        static NOW: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        NOW.get_or_init(Instant::now)
    };
}

impl CommitGate {
    /// Returns an idle gate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: TracedMutex::new(&GATE_MUTEX, State::default()),
            words: [WaitWord::new(0), WaitWord::new(0)],
            follower_words: [WaitWord::new(0), WaitWord::new(0)],
            finished: AtomicU64::new(0),
        }
    }

    /// Returns a gate with a commit delay without a time limit; for models.
    #[doc(hidden)]
    #[must_use]
    pub fn with_unlimited_delay() -> Self {
        let gate = Self::new();
        gate.lock().commit_delay = CommitDelay::without_limit();
        gate
    }

    /// Returns a gate with alternating leaders: a committer first, then the flusher; for models.
    #[doc(hidden)]
    #[must_use]
    pub fn with_alternating_leaders() -> Self {
        let gate = Self::new();
        gate.lock().alternating = Some(FlushLeader::Committer);
        gate
    }

    /// Makes the flusher lead the next flush, and then every second one.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn alternate_leaders_from_flusher(&self) {
        self.lock().alternating = Some(FlushLeader::Flusher);
    }

    fn lock(&self) -> TracedGuard<'_, State> {
        self.state.lock()
    }

    /// Requests a flush of everything up to `lsn`: leads it, or sleeps until a flush that covers `lsn` has
    /// ended.
    ///
    /// Both functions run under the gate's mutex. `is_needed` returns `true` if the stream still holds
    /// records up to `lsn` that are not durable. `begin` takes all buffered records and returns the LSN below
    /// which the flush covers everything.
    pub fn enter<T>(
        &self,
        lsn: u64,
        is_needed: impl Fn() -> bool,
        begin: impl FnOnce() -> (u64, T),
    ) -> Turn<'_, T> {
        let mut state = self.lock();
        loop {
            if !is_needed() {
                self.pass_on(state);
                return Turn::NotNeeded;
            }
            if !state.flushing {
                return self.take_the_lead(state, FlushLeader::Flusher, begin);
            }
            let target = state.covering(lsn);
            match self.sleep(state, target, None) {
                Some(still_needed) => state = still_needed,
                None => return Turn::Finished,
            }
        }
    }

    /// Requests a flush as [`enter`](Self::enter) does, for a committer. The committer may wait for the
    /// commit delay. If there is a `flusher`, which writes when notified, the committer may sleep while the
    /// flusher writes.
    pub fn join<T>(
        &self,
        lsn: u64,
        flusher: Option<&Notifier>,
        is_needed: impl Fn() -> bool,
        begin: impl FnOnce() -> (u64, T),
    ) -> Turn<'_, T> {
        let now = now();
        let mut state = self.lock();
        state.note_commit(now);
        let (mut may_wait, mut flusher) = (true, flusher);
        loop {
            if !is_needed() {
                self.pass_on(state);
                return Turn::NotNeeded;
            }
            if let Some(flusher) = flusher
                && state.flush_leader() == FlushLeader::Flusher
            {
                self.sleep_as_follower(state, lsn, || flusher.request());
                return Turn::Finished;
            }
            let (target, limit) = if state.flushing {
                (state.covering(lsn), None)
            } else {
                match if may_wait { state.advise() } else { Advice::Lead } {
                    Advice::Lead => return self.take_the_lead(state, FlushLeader::Committer, begin),
                    Advice::Wait(delay) => {
                        // GATE-5
                        let is_fallback = !std::mem::replace(&mut state.has_fallback_leader, true);
                        (state.number + 1, is_fallback.then_some(delay))
                    }
                }
            };
            match self.sleep(state, target, limit) {
                Some(still_needed) => state = still_needed,
                None => return Turn::Finished,
            }
            flusher = None; // GATE-6
            if limit.is_some() {
                state.end_fallback(target);
                may_wait = false;
            }
        }
    }

    fn take_the_lead<T>(
        &self,
        mut state: TracedGuard<'_, State>,
        leader: FlushLeader,
        begin: impl FnOnce() -> (u64, T),
    ) -> Turn<'_, T> {
        let (covers, taken) = begin();
        let number = state.lead(leader, covers);
        Turn::Lead(Lead { gate: self, number }, taken)
    }

    /// Sleeps until a flush that covers `lsn` has ended, without ever leading one. `request` must make
    /// another thread lead a flush. May return early.
    ///
    /// `is_needed` runs under the gate's mutex, `request` outside it.
    pub fn follow(&self, lsn: u64, is_needed: impl FnOnce() -> bool, request: impl FnOnce()) {
        let state = self.lock();
        if is_needed() {
            self.sleep_as_follower(state, lsn, request);
        }
    }

    fn sleep_as_follower(&self, mut state: TracedGuard<'_, State>, lsn: u64, request: impl FnOnce()) {
        let target = state.covering(lsn);
        let is_covered = target == state.number;
        let word = &self.follower_words[parity(target)];
        state.following[parity(target)] += 1;
        // Relaxed: the word changes under the mutex, which is held.
        let expected = word.word().load(Relaxed);
        let leader = state.leader;
        drop(state);
        if !is_covered {
            request(); // GATE-4
        }
        let _wait =
            azekura_trace::wait_for(&FLUSH_WAIT, std::ptr::from_ref(self).addr(), WaitKind::Log, leader);
        blocking::announce();
        word.wait(expected, None);
    }

    /// Sleeps until flush `target` has ended (`None`), or until the caller is the next leader or reaches
    /// its time limit, and must check again.
    fn sleep<'g>(
        &'g self,
        mut state: TracedGuard<'g, State>,
        target: u64,
        limit: Option<Duration>,
    ) -> Option<TracedGuard<'g, State>> {
        let word = &self.words[parity(target)];
        state.waiting[parity(target)] += 1;
        // Relaxed: the word changes under the mutex, which is held.
        let expected = word.word().load(Relaxed);
        let leader = state.leader;
        drop(state);
        {
            let address = std::ptr::from_ref(self).addr();
            let _wait = azekura_trace::wait_for(&FLUSH_WAIT, address, WaitKind::Log, leader);
            blocking::announce();
            if cfg!(loom) && limit.is_some() {
                azekura_base::sync::thread::yield_now(); // in a model, a time limit ends at once
            } else {
                word.wait(expected, limit);
            }
        }
        // Acquire: pairs with the Release in `end`; the marks that the flush moved are visible.
        if self.finished.load(Acquire) >= target {
            return None;
        }
        let mut state = self.lock();
        // Relaxed: stored under the mutex.
        if self.finished.load(Relaxed) >= target {
            return None;
        }
        state.waiting[parity(target)] -= 1;
        Some(state)
    }

    /// Wakes another sleeper in place of the caller, which found the flush needless (GATE-2). Also wakes the
    /// followers, because the flush that they wait for may not happen (GATE-4).
    fn pass_on(&self, mut state: TracedGuard<'_, State>) {
        let next = parity(state.number + 1);
        let wake = !state.flushing && state.waiting[next] > 0;
        if wake {
            self.change(next);
        }
        let followers = !state.flushing && self.release_followers(&mut state, next);
        drop(state);
        if wake {
            self.words[next].wake_one();
        }
        if followers {
            self.follower_words[next].wake_all();
        }
    }

    /// Releases the followers of a word; returns `true` if the caller must wake them. The caller holds the
    /// mutex.
    fn release_followers(&self, state: &mut State, which: usize) -> bool {
        let any = std::mem::take(&mut state.following[which]) > 0;
        if any {
            self.follower_words[which].word().fetch_add(1, Release);
        }
        any
    }

    /// Changes a wait word, so that a thread that is about to sleep on it returns at once. The caller holds
    /// the mutex.
    fn change(&self, which: usize) {
        self.words[which].word().fetch_add(1, Release);
    }

    /// Wakes all threads to check again: the log failed.
    pub fn wake_everyone(&self) {
        let mut state = self.lock();
        for which in 0..2 {
            self.change(which);
            self.release_followers(&mut state, which);
        }
        drop(state);
        self.words.iter().chain(&self.follower_words).for_each(WaitWord::wake_all);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_second_to_arrive_is_covered_by_the_next_flush() {
        let gate = CommitGate::new();
        let Turn::Lead(lead, ()) = gate.enter(1, || true, || (2, ())) else { panic!("nobody leads yet") };
        std::thread::scope(|s| {
            let second = s.spawn(|| match gate.enter(2, || true, || (3, ())) {
                Turn::Lead(lead, ()) => lead.finish(),
                other => panic!("{other:?}"),
            });
            while gate.state.lock().waiting != [1, 0] {
                std::thread::yield_now();
            }
            assert_eq!(lead.finish(), 0);
            assert_eq!(second.join().expect("no panic"), 0);
        });
        assert_eq!(gate.finished.load(Relaxed), 2);
        assert!(!gate.lock().flushing);
    }

    #[test]
    fn a_sleeper_reports_the_leader_of_its_flush_to_the_tracer() {
        use azekura_trace::{CpuTime, Options, event::EventKind, start, stop};
        start(Options { cpu: CpuTime::Off, ..Options::default() }).expect("no other test records");
        let gate = CommitGate::new();
        let Turn::Lead(lead, ()) = gate.enter(1, || true, || (2, ())) else { panic!("nobody leads yet") };
        std::thread::scope(|s| {
            s.spawn(|| assert!(matches!(gate.enter(1, || true, || (2, ())), Turn::Finished)));
            while gate.state.lock().waiting != [0, 1] {
                std::thread::yield_now();
            }
            assert_eq!(lead.finish(), 1);
        });
        let trace = stop().expect("it records").trace().expect("it is in memory");
        let object = std::ptr::from_ref(&gate).addr() as u64;
        let is_ours = |e: &&azekura_trace::event::Event| {
            e.kind == EventKind::WaitBegin && e.object == object && e.argument as u8 == WaitKind::Log as u8
        };
        let waits: Vec<_> = trace.threads.iter().flat_map(|t| &t.events).filter(is_ours).collect();
        let holders: Vec<u32> = waits.iter().map(|e| (e.argument >> 32) as u32).collect();
        assert_eq!(holders, [thread_tag().0]);
    }

    #[test]
    fn one_flush_wakes_its_whole_group_and_no_flush_is_needless() {
        let gate = CommitGate::new();
        let Turn::Lead(lead, ()) = gate.enter(1, || true, || (10, ())) else { panic!("nobody leads yet") };
        std::thread::scope(|s| {
            let group: Vec<_> = (2..6)
                .map(|lsn| {
                    s.spawn({
                        let gate = &gate;
                        move || matches!(gate.enter(lsn, || true, || (0, ())), Turn::Finished)
                    })
                })
                .collect();
            while gate.state.lock().waiting != [0, 4] {
                std::thread::yield_now();
            }
            assert_eq!(lead.finish(), 4);
            assert!(group.into_iter().all(|t| t.join().expect("no panic")));
        });
        assert!(matches!(gate.enter(1, || false, || (0, ())), Turn::NotNeeded));
    }
}
