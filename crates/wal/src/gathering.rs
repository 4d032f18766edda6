//! Whether the next flush had better wait a moment for those whom the last one has just let go.
//!
//! Committers that wait come again in a body: a flush wakes all of its group, and each of them soon has another commit. If the first to
//! come back begins the next flush at once, it goes with one record, and the others wait for that flush and for their own: groups
//! split, and each commit takes two flushes. Waiting until the group is complete costs its return, and saves nearly a flush for
//! each of the others. So it pays as long as they are back sooner than a flush takes; three quarters of one are waited:
//!
//! | after the end of a flush | the next committer |
//! |---|---|
//! | everybody who slept over it, or for the next one, and its leader, is there | leads: the last to come, without a switch of threads |
//! | some are missing, for less than that | sleeps: the first of them, the **guardian**, with that time limit, and then it leads |
//! | some are missing for longer | leads, and for a while nobody is waited for |
//!
//! A lone committer waits for nobody. Groups that do not come back in time (many threads on few processors, a device quicker than
//! threads are woken, clients with other things to do) are waited for once in a while only: after each miss in a row twice as rarely.
//!
//! In between, those of a group of a few and more leave the flushes to the log's own **thread**, if it has one. Who leads and is a client at the
//! same time has other things to do when its flush has ended (wake the others, answer, run the next transaction), while the device
//! is idle; and where a flush is quicker than threads are woken, each client that comes back would write its record alone. The thread writes again
//! at once, with whoever is back. Two committers are better off without: each commit would wait for one more thread to be woken.
//!
//! A group that is small may be all there is, or what is left of many who miss each other. So the gate knows its **crowd**: how many threads
//! the last commits came from, if they came one after the other and not once in a while.

use std::time::Duration;

use azekura_base::sync::time::Instant;

/// Flushes without waiting after misses in a row, at most.
const MOST_SKIPPED: u32 = 127;
/// Committers whose flushes the thread does, if they do not come back in time; fewer do them by themselves.
const CROWD: u32 = 3;
/// Commits that are looked at to know the crowd.
const LOOKED_AT: u32 = 64;
/// They must come so densely that one flush lasts as long as from one of them to the next, or half as long.
const SPARSE: u32 = 2;

/// What a committer that finds no flush going on had better do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Write at once, for whoever is there.
    Lead,
    /// Wait so long for the others.
    Wait(Duration),
    /// Have the thread write.
    Follow,
}

/// How many threads commit.
#[derive(Debug, Default)]
struct Crowd {
    /// As last counted; 0 if they come once in a while only.
    size: u32,
    /// Commits of the count going on, a bit for each of 64 classes of threads, and when the count began.
    commits: u32,
    threads: u64,
    since: Option<Instant>,
}

impl Crowd {
    fn note(&mut self, thread: usize, flush: Duration, now: Instant) {
        let since = *self.since.get_or_insert(now);
        self.threads |= 1 << (thread % 64);
        self.commits += 1;
        if self.commits == LOOKED_AT {
            let is_dense = now.saturating_duration_since(since) <= flush * (LOOKED_AT * SPARSE);
            let size = if is_dense { self.threads.count_ones() } else { 0 };
            *self = Self { size, since: Some(now), ..Self::default() };
        }
    }
}

/// What a gate knows about the committers of its last flush.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// How many committers the last flush let come back, with those that slept for the next one already.
    expected: u32,
    /// The leader of the flush going on, or of the last one, is a committer, who comes back as well.
    leader_commits: bool,
    began: Option<Instant>,
    ended: Option<Instant>,
    /// How long a flush takes: a moving average.
    took: Duration,
    /// Flushes to go without waiting, and how many there were to go after the last miss.
    left: u32,
    skipped: u32,
    /// Flushes are the thread's.
    by_thread: bool,
    crowd: Crowd,
    /// Time is no matter: for models.
    always: Option<Advice>,
}

impl Gathering {
    /// Waits for whoever is expected, for ever so long.
    pub(crate) fn always() -> Self {
        Self { always: Some(Advice::Wait(Duration::from_secs(1))), ..Self::default() }
    }

    /// Every other flush is the thread's.
    pub(crate) fn by_turns() -> Self {
        Self { always: Some(Advice::Follow), ..Self::default() }
    }

    /// Whether committers had better not lead, nor sleep as those that may.
    pub(crate) const fn leaves_it_to_the_thread(&self) -> bool {
        self.by_thread
    }

    /// A thread comes with a commit.
    pub(crate) fn comes(&mut self, thread: usize, now: Instant) {
        self.crowd.note(thread, self.took, now);
    }

    /// What a committer had better do, with whom `present` are there; there may be a thread to do it.
    pub(crate) fn advise(&mut self, present: u32, has_thread: bool, now: Instant) -> Advice {
        if self.always == Some(Advice::Follow) {
            return Advice::Lead; // the thread's turn is known before
        }
        let is_complete = present >= self.expected;
        let is_split = has_thread && self.crowd.size >= CROWD.max(2 * self.expected);
        if is_complete && !is_split {
            if self.expected > 1 && self.left == 0 {
                self.skipped /= 2;
            }
            return Advice::Lead;
        }
        if let Some(always) = self.always {
            return always;
        }
        if self.left == 0 {
            let since = self.ended.map_or(Duration::MAX, |ended| now.saturating_duration_since(ended));
            let left = (self.took * 3 / 4).saturating_sub(since);
            if !is_complete && !left.is_zero() {
                return Advice::Wait(left);
            }
            self.missed();
        }
        self.by_thread = has_thread && self.expected.max(self.crowd.size) >= CROWD;
        if self.by_thread { Advice::Follow } else { Advice::Lead }
    }

    /// Some did not come in time.
    pub(crate) fn missed(&mut self) {
        self.skipped = (2 * self.skipped + 1).min(MOST_SKIPPED);
        self.left = self.skipped;
    }

    /// A flush begins.
    pub(crate) const fn begin(&mut self, leader_commits: bool, now: Instant) {
        self.leader_commits = leader_commits;
        self.began = Some(now);
    }

    /// It has ended, and so many committers slept over it, or sleep for the next one.
    pub(crate) fn end(&mut self, asleep: u32, now: Instant) {
        let took = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        self.took = if self.took.is_zero() { took } else { (7 * self.took + took) / 8 };
        self.expected = asleep + u32::from(self.leader_commits);
        self.ended = Some(now);
        let committers = self.expected.max(self.crowd.size);
        if committers > 1 {
            self.left = self.left.saturating_sub(1);
        }
        match self.always {
            None => self.by_thread &= self.left > 0 && committers >= CROWD,
            Some(always) => self.by_thread = always == Advice::Follow && !self.by_thread,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(100);

    /// A gathering after a flush of `FLUSH`, led by a committer, over which `asleep` others slept; and when it ended.
    fn after_a_flush(asleep: u32) -> (Gathering, Instant) {
        let (mut gathering, began) = (Gathering::default(), Instant::now());
        gathering.begin(true, began);
        gathering.end(asleep, began + FLUSH);
        (gathering, began + FLUSH)
    }

    /// What a committer is told that comes to so many others, with no thread to ask.
    fn told(gathering: &mut Gathering, present: u32, now: Instant) -> Advice {
        gathering.advise(present, false, now)
    }

    #[test]
    fn a_lone_committer_waits_for_nobody() {
        let (mut gathering, now) = after_a_flush(0);
        assert_eq!(told(&mut gathering, 1, now), Advice::Lead);
        assert_eq!(told(&mut Gathering::default(), 1, now), Advice::Lead, "nor does the first of all");
    }

    #[test]
    fn the_first_to_come_back_waits_for_the_others_and_the_last_leads() {
        let (mut gathering, now) = after_a_flush(2);
        assert_eq!(told(&mut gathering, 1, now + FLUSH / 4), Advice::Wait(FLUSH / 2));
        assert_eq!(told(&mut gathering, 2, now + FLUSH / 2), Advice::Wait(FLUSH / 4));
        assert_eq!(told(&mut gathering, 3, now + FLUSH / 2), Advice::Lead);
    }

    #[test]
    fn nobody_is_waited_for_longer_than_three_quarters_of_a_flush() {
        let (mut gathering, now) = after_a_flush(2);
        assert_eq!(told(&mut gathering, 1, now + FLUSH * 3 / 4), Advice::Lead);
    }

    #[test]
    fn a_leader_that_does_not_commit_is_not_expected() {
        let (mut gathering, began) = (Gathering::default(), Instant::now());
        gathering.begin(false, began);
        gathering.end(1, began + FLUSH);
        assert_eq!(told(&mut gathering, 1, began + FLUSH), Advice::Lead);
    }

    /// A flush over which `asleep` others sleep, and after which nobody else comes back in time; whether they are waited for.
    fn miss(gathering: &mut Gathering, asleep: u32, has_thread: bool, now: &mut Instant) -> Advice {
        gathering.begin(true, *now);
        *now += FLUSH;
        gathering.end(asleep, *now);
        if gathering.leaves_it_to_the_thread() {
            return Advice::Follow;
        }
        let advice = gathering.advise(1, has_thread, *now);
        if let Advice::Wait(left) = advice {
            *now += left;
            gathering.missed();
        }
        advice
    }

    #[test]
    fn groups_that_do_not_come_back_are_waited_for_ever_more_rarely() {
        for has_thread in [false, true] {
            let (mut gathering, mut now) = (Gathering::default(), Instant::now());
            let told: Vec<_> = (0..1000).map(|_| miss(&mut gathering, 7, has_thread, &mut now)).collect();
            let waited = told.iter().filter(|told| matches!(told, Advice::Wait(_))).count();
            assert!((6..=24).contains(&waited), "{waited} of 1000");
            // In between the thread has them, if there is one; and two are too few for that.
            let others = if has_thread { Advice::Follow } else { Advice::Lead };
            assert_eq!(told.iter().filter(|&&told| told == others).count(), 1000 - waited);
            let of_two: Vec<_> = (0..1000).map(|_| miss(&mut gathering, 1, has_thread, &mut now)).collect();
            assert!(!of_two.contains(&Advice::Follow));
            // They come back after all: the next time that they are waited for, and then every time.
            for round in 0..1000 {
                gathering.begin(true, now);
                now += FLUSH;
                gathering.end(7, now);
                if gathering.leaves_it_to_the_thread() {
                    continue;
                }
                let waits = matches!(gathering.advise(1, has_thread, now), Advice::Wait(_));
                assert!(waits || round <= 2 * MOST_SKIPPED, "round {round}");
                if waits {
                    assert_eq!(gathering.advise(8, has_thread, now), Advice::Lead);
                }
            }
        }
    }

    /// So many threads commit in turns, `every` so often; each flush takes `FLUSH` and has one of them.
    fn one_by_one(threads: usize, every: Duration) -> Advice {
        let (mut gathering, mut now) = (Gathering::default(), Instant::now());
        let mut last = Advice::Lead;
        for n in 0..1000 {
            gathering.comes(n % threads, now);
            last = if gathering.leaves_it_to_the_thread() {
                Advice::Follow
            } else {
                gathering.advise(1, true, now)
            };
            gathering.begin(last == Advice::Lead, now);
            gathering.end(u32::from(last != Advice::Lead), now + FLUSH);
            now += every;
        }
        last
    }

    #[test]
    fn many_that_miss_each_other_leave_it_to_the_thread() {
        assert_eq!(one_by_one(8, FLUSH), Advice::Follow);
        assert_eq!(one_by_one(3, FLUSH), Advice::Follow);
    }

    #[test]
    fn few_do_not_nor_many_that_come_once_in_a_while() {
        assert_eq!(one_by_one(1, FLUSH), Advice::Lead);
        assert_eq!(one_by_one(2, FLUSH), Advice::Lead);
        assert_eq!(one_by_one(64, 5 * FLUSH), Advice::Lead);
    }
}
