//! Whether the next flush had better wait a moment for those whom the last one has just let go.
//!
//! Committers that wait come again in a body: a flush wakes all of its group, and each of them soon has
//! another commit. If the first to come back begins the next flush at once, it goes with one record, and the
//! others wait for that flush and for their own: groups split, and each commit takes two flushes. Waiting
//! until the group is complete costs its return, and saves nearly a flush for each of the others. So it pays
//! as long as they are back sooner than a flush takes; three quarters of one are waited:
//!
//! | after the end of a flush | the next committer |
//! |---|---|
//! | everybody who slept over it, or for the next one, and its leader, is there | leads: the last to come, without a switch of threads |
//! | some are missing, for less than that | sleeps: the first of them, the **guardian**, with that time limit, and then it leads |
//! | some are missing for longer | leads, and for a while nobody is waited for |
//!
//! A lone committer waits for nobody. Groups that do not come back in time (many threads on few processors, a
//! device quicker than threads are woken, clients with other things to do) are waited for once in a while
//! only: after each miss in a row twice as rarely.
//!
//! All that is only good where committers lead. In a crowd, who leads and is a client at the same time has
//! other things to do when its flush has ended (wake the others, answer, run the next transaction), while the
//! device is idle; and where a flush is quicker than threads are woken, each client that comes back would
//! write its record alone. So a crowd leaves the flushes to the log's own **thread**, if it has one, unless
//! it is proven to be better off without; two committers lead by themselves, unless they are proven to be
//! better off with it ([`manner`](crate::manner)).

use std::time::Duration;

use azekura_base::sync::time::Instant;

use crate::crowd::Crowd;
use crate::manner::{Judge, Manner};

/// Flushes without waiting after misses in a row, at most.
const MOST_SKIPPED: u32 = 127;
/// Committers that leave their flushes to the thread, unless trials say otherwise. Two do them by themselves,
/// unless trials say otherwise; one does always.
const CROWD: u32 = 3;

/// What a committer that finds no flush going on had better do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Write at once, for whoever is there.
    Lead,
    /// Wait so long for the others.
    Wait(Duration),
}

/// What models ask for, for whom time is no matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Always {
    /// Waits for whoever is expected.
    Wait,
    /// Leaves every other flush to the thread.
    ByTurns,
}

/// What a gate knows about the committers of its last flush.
#[derive(Debug)]
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
    crowd: Crowd,
    /// Who leads the flushes of two, and of a crowd.
    of_two: Judge,
    of_crowd: Judge,
    always: Option<Always>,
    /// With [`Always::ByTurns`]: the next flush is the thread's.
    is_threads_turn: bool,
}

impl Default for Gathering {
    fn default() -> Self {
        Self {
            expected: 0,
            leader_commits: false,
            began: None,
            ended: None,
            took: Duration::ZERO,
            left: 0,
            skipped: 0,
            crowd: Crowd::default(),
            of_two: Judge::at_home(Manner::Among),
            of_crowd: Judge::at_home(Manner::ByThread),
            always: None,
            is_threads_turn: false,
        }
    }
}

impl Gathering {
    /// Waits for whoever is expected, for ever so long.
    pub(crate) fn always() -> Self {
        Self { always: Some(Always::Wait), ..Self::default() }
    }

    /// Every other flush is the thread's.
    pub(crate) fn by_turns() -> Self {
        Self { always: Some(Always::ByTurns), ..Self::default() }
    }

    /// Whether committers had better not lead, nor sleep as those that may, if there is a thread to do it.
    pub(crate) fn leaves_it_to_the_thread(&mut self) -> bool {
        match self.always {
            None => self.judge().is_some_and(|judge| judge.manner() == Manner::ByThread),
            Some(_) => self.is_threads_turn,
        }
    }

    /// Who decides who leads the flushes of those who commit now; for one alone there is nothing to decide.
    fn judge(&mut self) -> Option<&mut Judge> {
        match self.crowd.size() {
            0 | 1 => None,
            2..CROWD => Some(&mut self.of_two),
            CROWD.. => Some(&mut self.of_crowd),
        }
    }

    /// A thread comes with a commit.
    pub(crate) fn comes(&mut self, thread: usize, now: Instant) {
        let size = self.crowd.size();
        self.crowd.note(thread, self.took, now);
        if size.min(CROWD) != self.crowd.size().min(CROWD) {
            self.of_two.interrupt();
            self.of_crowd.interrupt();
        } else if let Some(judge) = self.judge() {
            judge.commit();
        }
    }

    /// What a committer had better do, with whom `present` are there.
    pub(crate) fn advise(&mut self, present: u32, now: Instant) -> Advice {
        if present >= self.expected {
            if self.expected > 1 && self.left == 0 {
                self.skipped /= 2;
            }
            return Advice::Lead;
        }
        match self.always {
            None => {}
            Some(Always::Wait) => return Advice::Wait(Duration::from_secs(1)),
            Some(Always::ByTurns) => return Advice::Lead,
        }
        if self.left == 0 {
            let since = self.ended.map_or(Duration::MAX, |ended| now.saturating_duration_since(ended));
            let left = (self.took * 3 / 4).saturating_sub(since);
            if !left.is_zero() {
                return Advice::Wait(left);
            }
            self.missed();
        }
        Advice::Lead
    }

    /// Some did not come in time.
    pub(crate) fn missed(&mut self) {
        self.skipped = (2 * self.skipped + 1).min(MOST_SKIPPED);
        self.left = self.skipped;
    }

    /// A flush begins.
    pub(crate) fn begin(&mut self, leader_commits: bool, now: Instant) {
        self.leader_commits = leader_commits;
        self.began = Some(now);
        let idle = self.ended.map_or(Duration::ZERO, |ended| now.saturating_duration_since(ended));
        let took = self.took;
        if let Some(judge) = self.judge() {
            judge.begin(idle, took);
        }
    }

    /// It has ended, and so many committers slept over it, or sleep for the next one.
    pub(crate) fn end(&mut self, asleep: u32, now: Instant) {
        let took = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        self.took = if self.took.is_zero() { took } else { (7 * self.took + took) / 8 };
        self.expected = asleep + u32::from(self.leader_commits);
        self.ended = Some(now);
        if self.expected > 1 {
            self.left = self.left.saturating_sub(1);
        }
        if let Some(judge) = self.judge() {
            judge.end(now);
        }
        self.is_threads_turn = self.always == Some(Always::ByTurns) && !self.is_threads_turn;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(100);

    /// A gathering after a flush of `FLUSH`, led by a committer, over which `asleep` others slept; and when
    /// it ended.
    fn after_a_flush(asleep: u32) -> (Gathering, Instant) {
        let (mut gathering, began) = (Gathering::default(), Instant::now());
        gathering.begin(true, began);
        gathering.end(asleep, began + FLUSH);
        (gathering, began + FLUSH)
    }

    #[test]
    fn a_lone_committer_waits_for_nobody() {
        let (mut gathering, now) = after_a_flush(0);
        assert_eq!(gathering.advise(1, now), Advice::Lead);
        assert_eq!(Gathering::default().advise(1, now), Advice::Lead, "nor does the first of all");
    }

    #[test]
    fn the_first_to_come_back_waits_for_the_others_and_the_last_leads() {
        let (mut gathering, now) = after_a_flush(2);
        assert_eq!(gathering.advise(1, now + FLUSH / 4), Advice::Wait(FLUSH / 2));
        assert_eq!(gathering.advise(2, now + FLUSH / 2), Advice::Wait(FLUSH / 4));
        assert_eq!(gathering.advise(3, now + FLUSH / 2), Advice::Lead);
    }

    #[test]
    fn nobody_is_waited_for_longer_than_three_quarters_of_a_flush() {
        let (mut gathering, now) = after_a_flush(2);
        assert_eq!(gathering.advise(1, now + FLUSH * 3 / 4), Advice::Lead);
    }

    #[test]
    fn a_leader_that_does_not_commit_is_not_expected() {
        let (mut gathering, began) = (Gathering::default(), Instant::now());
        gathering.begin(false, began);
        gathering.end(1, began + FLUSH);
        assert_eq!(gathering.advise(1, began + FLUSH), Advice::Lead);
    }

    /// A flush over which `asleep` others sleep, and after which nobody else comes back in time; whether they
    /// are waited for.
    fn miss(gathering: &mut Gathering, asleep: u32, now: &mut Instant) -> Advice {
        gathering.begin(true, *now);
        *now += FLUSH;
        gathering.end(asleep, *now);
        let advice = gathering.advise(1, *now);
        if let Advice::Wait(left) = advice {
            *now += left;
            gathering.missed();
        }
        advice
    }

    #[test]
    fn groups_that_do_not_come_back_are_waited_for_ever_more_rarely() {
        let (mut gathering, mut now) = (Gathering::default(), Instant::now());
        let told: Vec<_> = (0..1000).map(|_| miss(&mut gathering, 7, &mut now)).collect();
        let waited = told.iter().filter(|told| matches!(told, Advice::Wait(_))).count();
        assert!((6..=24).contains(&waited), "{waited} of 1000");
        // They come back after all: the next time that they are waited for, and then every time.
        for round in 0..1000 {
            gathering.begin(true, now);
            now += FLUSH;
            gathering.end(7, now);
            let waits = matches!(gathering.advise(1, now), Advice::Wait(_));
            assert!(waits || round <= 2 * MOST_SKIPPED, "round {round}");
            if waits {
                assert_eq!(gathering.advise(8, now), Advice::Lead);
            }
        }
    }

    /// So many threads commit in turns, `every` so often, each with a flush of its own; how many of the last
    /// flushes were the thread's.
    fn one_by_one(threads: usize, every: Duration) -> usize {
        let (mut gathering, mut now) = (Gathering::default(), Instant::now());
        let mut of_thread = 0;
        for n in 0..2000 {
            gathering.comes(n % threads, now);
            let by_thread = gathering.leaves_it_to_the_thread();
            of_thread += usize::from(by_thread && n >= 1000);
            gathering.begin(!by_thread, now);
            gathering.end(u32::from(by_thread), now + FLUSH);
            now += every;
        }
        of_thread
    }

    #[test]
    fn a_crowd_leaves_it_to_the_thread() {
        // But for trials, which bring nothing here.
        assert!(one_by_one(8, FLUSH) > 800);
        assert!(one_by_one(3, FLUSH) > 800);
    }

    #[test]
    fn few_do_not_nor_many_that_come_once_in_a_while() {
        assert_eq!(one_by_one(1, FLUSH), 0);
        assert!(one_by_one(2, FLUSH) < 200, "but for trials");
        assert_eq!(one_by_one(64, 5 * FLUSH), 0);
    }
}
