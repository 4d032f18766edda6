//! The gate before a stream: who writes it next, and who sleeps until when.
//!
//! Greedy group commit without timers or counts: whoever needs a flush and finds none going on leads one,
//! which takes everything buffered so far; whoever comes meanwhile sleeps until the flush that covers its
//! record has ended. A lone committer so does one device write and no thread switch; many committers make
//! groups as large as what arrives during one device write.
//!
//! Flushes of a stream are numbered. Threads that the running flush *n* covers sleep on one wait word, those
//! that need flush *n + 1* on the other, so that the end of *n* wakes its group with one system call and
//! nobody else, except one **heir** of the other word, which goes on at once with *n + 1*.
//!
//! | state | who may leave it |
//! |---|---|
//! | idle | any thread that needs a flush: it leads |
//! | flushing *n* | its leader only |
//!
//! - **GATE-1** At most one thread leads. A [`Lead`] is the proof.
//! - **GATE-2** If threads sleep, then a flush is going on, or a thread is on its way to the gate's mutex
//!   that will lead, or find the flush needless and *pass the wake-up on*. So no wake-up is lost.
//! - **GATE-3** What a flush takes is settled while the mutex is held, so a thread that arrives knows exactly
//!   which flush covers it.
//!
//! Committers that wait **join**: the first that is back from a flush may wait a little for those that were
//! woken with it, see `gathering`. It sleeps among them with a time limit, as their guardian; the last to
//! come leads.
//!
//! - **GATE-5** While threads sleep with no flush going on, waiting for others to come, one of them is the
//!   guardian. So somebody leads at the time limit at the latest. Whoever leads sooner, a committer or not,
//!   takes the guardian's duty from it.
//!
//! An heir need not win: a running thread may take the lead before it has woken up. That is not unfair,
//! because every flush takes everything that was buffered before it; the heir's record goes along, and it
//! sleeps on.
//!
//! Threads that must not write, because a commit thread does it for all (Aether's flush pipelining),
//! **follow**: they sleep on words of their own until the flush that covers them has ended. So do committers
//! that had better not write themselves, when there is a thread to do it (`gathering` says when). Both kinds
//! may be there at the same time: a flush wakes all that it covers, whoever leads it.
//!
//! - **GATE-4** A follower first registers, then asks for the flush. So a thread that leads comes after it,
//!   or finds the flush needless and wakes it.
//! - **GATE-6** Who has slept as one that may lead never follows. It may be the heir, and the thread that it
//!   would ask may sleep here as well, for the heir's flush.
//!
//! Who must lead **claims** the next flush: `lead`, GATE-7 and GATE-8.
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

use crate::bell::Bell;
use crate::gathering::{Advice, Gathering};

pub use lead::Lead;

static GATE_MUTEX: Site = Site::new("wal commit gate");
static FLUSH_WAIT: Site = Site::new("wal flush");

#[derive(Debug, Default)]
struct State {
    flushing: bool,
    /// Of the flush going on, or of the last one.
    number: u64,
    /// The flush going on holds every record of the stream with an LSN below this that was not durable
    /// before.
    covers: u64,
    /// Who leads the flush going on: for whom the others wait.
    leader: ThreadTag,
    /// Registered sleepers per wait word.
    waiting: [u32; 2],
    /// Registered followers per word of theirs; a flush wakes all of its group, so too many counted cost a
    /// system call only.
    following: [u32; 2],
    gathering: Gathering,
    /// A sleeper for the next flush sleeps with a time limit (GATE-5). Set and cleared by it, cleared by who
    /// leads.
    has_guardian: bool,
    /// Threads that claim the next flush (GATE-7).
    claims: u32,
}

/// The gate of one stream.
#[derive(Debug)]
pub struct CommitGate {
    state: TracedMutex<State>,
    /// Changed under the mutex; a flush's word is that of its number's parity.
    words: [WaitWord; 2],
    /// The same for followers.
    follower_words: [WaitWord; 2],
    /// The same for claimants.
    claim_word: WaitWord,
    /// Number of the last flush that ended. Written under the mutex, read by who wakes up.
    finished: AtomicU64,
}

impl Default for CommitGate {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Whether a flush goes on, or is claimed (GATE-7).
    const fn is_taken(&self) -> bool {
        self.flushing || self.claims > 0
    }

    /// Number of the flush that covers `lsn`: the one going on, or the next.
    fn covering(&self, lsn: u64) -> u64 {
        self.number + u64::from(!self.flushing || lsn >= self.covers)
    }

    /// What the caller, a committer that is not counted yet, had better do while no flush goes on.
    fn advise(&mut self) -> Advice {
        let next = parity(self.number + 1);
        let present = self.waiting[next] + self.following[next] + 1;
        self.gathering.advise(present, now())
    }

    /// Begins a flush; returns its number.
    fn lead(&mut self, who: Who, covers: u64) -> u64 {
        (self.flushing, self.number, self.covers) = (true, self.number + 1, covers);
        self.leader = thread_tag();
        self.has_guardian = false; // GATE-5
        self.gathering.begin(who == Who::Committer, now());
        self.number
    }

    /// The guardian for flush `target` has woken up before that one ended.
    fn guarded(&mut self, target: u64) {
        if !self.flushing && self.number + 1 == target {
            self.has_guardian = false;
            self.gathering.missed();
        }
    }
}

/// What became of a wish for a flush.
#[derive(Debug)]
pub enum Turn<'g, T> {
    /// The caller leads: write what `T` holds, then [`Lead::finish`].
    Lead(Lead<'g>, T),
    /// A flush that covers the wish has ended (perhaps with an error), or it is worth a look whether one has.
    Finished,
    /// The flush is not needed any more.
    NotNeeded,
}

/// Who asks for a flush.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// A committer, which may have company.
    Committer,
    /// The log, on behalf of others.
    Log,
}

const fn parity(number: u64) -> usize {
    (number & 1) as usize
}

/// The time; models have none.
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
    /// An idle gate.
    #[must_use]
    pub fn new() -> Self {
        Self {
            state: TracedMutex::new(&GATE_MUTEX, State::default()),
            words: [WaitWord::new(0), WaitWord::new(0)],
            follower_words: [WaitWord::new(0), WaitWord::new(0)],
            claim_word: WaitWord::new(0),
            finished: AtomicU64::new(0),
        }
    }

    /// A gate whose committers always wait for each other, whatever time it takes; for models.
    #[doc(hidden)]
    #[must_use]
    pub fn with_company_always() -> Self {
        let gate = Self::new();
        gate.lock().gathering = Gathering::always();
        gate
    }

    /// A gate whose committers leave every other flush to the thread; for models.
    #[doc(hidden)]
    #[must_use]
    pub fn with_thread_by_turns() -> Self {
        let gate = Self::new();
        gate.lock().gathering = Gathering::by_turns();
        gate
    }

    /// From now on committers leave the next flush to the thread, if there is one, and then every other.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn leave_it_to_the_thread(&self) {
        let mut state = self.lock();
        state.gathering = Gathering::by_turns();
        state.gathering.end(0, now());
    }

    fn lock(&self) -> TracedGuard<'_, State> {
        self.state.lock()
    }

    /// Asks for a flush of everything up to `lsn`: leads it, or sleeps until one that covers `lsn` has ended.
    ///
    /// Both functions run under the gate's mutex. `is_needed` tells whether the stream still holds records up
    /// to `lsn` that are not durable; `begin` takes what is buffered and returns the LSN below which the
    /// flush then holds everything.
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
            if !state.is_taken() {
                return self.take_the_lead(state, Who::Log, begin);
            }
            let target = state.covering(lsn);
            match self.sleep(state, target, None) {
                Some(still_needed) => state = still_needed,
                None => return Turn::Finished,
            }
        }
    }

    /// The same for a committer: it may wait a moment for those of the last flush that are on their way to
    /// the next, or, if there is a `thread` that writes when asked, leave the flush to it.
    pub fn join<T>(
        &self,
        lsn: u64,
        thread: Option<&Bell>,
        is_needed: impl Fn() -> bool,
        begin: impl FnOnce() -> (u64, T),
    ) -> Turn<'_, T> {
        let now = now();
        let mut state = self.lock();
        state.gathering.comes(azekura_base::striped::thread_stripe(), now);
        let (mut may_wait, mut thread) = (true, thread);
        loop {
            if !is_needed() {
                self.pass_on(state);
                return Turn::NotNeeded;
            }
            if let Some(thread) = thread
                && state.gathering.leaves_it_to_the_thread()
            {
                self.sleep_as_follower(state, lsn, || thread.request());
                return Turn::Finished;
            }
            let (target, limit) = if state.is_taken() {
                (state.covering(lsn), None)
            } else {
                match if may_wait { state.advise() } else { Advice::Lead } {
                    Advice::Lead => return self.take_the_lead(state, Who::Committer, begin),
                    Advice::Wait(patience) => {
                        // GATE-5
                        let guards = !std::mem::replace(&mut state.has_guardian, true);
                        (state.number + 1, guards.then_some(patience))
                    }
                }
            };
            match self.sleep(state, target, limit) {
                Some(still_needed) => state = still_needed,
                None => return Turn::Finished,
            }
            thread = None; // GATE-6
            if limit.is_some() {
                state.guarded(target);
                may_wait = false;
            }
        }
    }

    fn take_the_lead<T>(
        &self,
        mut state: TracedGuard<'_, State>,
        who: Who,
        begin: impl FnOnce() -> (u64, T),
    ) -> Turn<'_, T> {
        let (covers, taken) = begin();
        let number = state.lead(who, covers);
        Turn::Lead(Lead { gate: self, number }, taken)
    }

    /// Sleeps until a flush that covers `lsn` has ended, without ever leading one; `request` has one led. May
    /// return early.
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
        // Relaxed: the word changes under the mutex, which we hold.
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

    /// Sleeps until flush `target` has ended (`None`), or until the caller is the heir, or its time is over,
    /// and it must look again.
    fn sleep<'g>(
        &'g self,
        mut state: TracedGuard<'g, State>,
        target: u64,
        limit: Option<Duration>,
    ) -> Option<TracedGuard<'g, State>> {
        let word = &self.words[parity(target)];
        state.waiting[parity(target)] += 1;
        // Relaxed: the word changes under the mutex, which we hold.
        let expected = word.word().load(Relaxed);
        let leader = state.leader;
        drop(state);
        {
            let address = std::ptr::from_ref(self).addr();
            let _wait = azekura_trace::wait_for(&FLUSH_WAIT, address, WaitKind::Log, leader);
            blocking::announce();
            if cfg!(loom) && limit.is_some() {
                azekura_base::sync::thread::yield_now(); // in a model any time is over at once
            } else {
                word.wait(expected, limit);
            }
        }
        // Acquire: pairs with the Release in `finish`; what the flush made durable is seen to be.
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

    /// Wakes another sleeper in the place of the caller, who came to lead and need not (GATE-2), and the
    /// followers, who wait for a flush that may not come (GATE-4).
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

    /// Lets the followers of a word go: tells whether to wake them. The caller holds the mutex.
    fn release_followers(&self, state: &mut State, which: usize) -> bool {
        let any = std::mem::take(&mut state.following[which]) > 0;
        if any {
            self.follower_words[which].word().fetch_add(1, Release);
        }
        any
    }

    /// Changes a wait word, so that who is about to sleep on it does not. The caller holds the mutex.
    fn change(&self, which: usize) {
        self.words[which].word().fetch_add(1, Release);
    }

    /// Wakes everybody to look again: the log failed.
    pub fn wake_everyone(&self) {
        let mut state = self.lock();
        for which in 0..2 {
            self.change(which);
            self.release_followers(&mut state, which);
        }
        drop(state);
        self.words.iter().chain(&self.follower_words).for_each(WaitWord::wake_all);
    }

    /// Whether a flush is going on.
    #[must_use]
    pub fn is_flushing(&self) -> bool {
        self.lock().flushing
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_second_to_come_is_covered_by_the_next_flush() {
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
        assert!(!gate.is_flushing());
    }

    #[test]
    fn who_sleeps_over_a_flush_tells_the_tracer_who_leads_it() {
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
    fn one_flush_wakes_its_whole_group_and_nobody_leads_in_vain() {
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
