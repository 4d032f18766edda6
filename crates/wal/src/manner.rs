//! Who writes for those who commit at the same time: one of them, or the log's own thread.
//!
//! | manner | a flush is led by | is better where |
//! |---|---|---|
//! | by the thread | the log's thread, as in a serial log: again at once, with whoever is back | threads take as long to wake as a flush takes, and have other things to do |
//! | among themselves | a committer, who may wait for the others of the last flush (`gathering`) | a flush takes long: all go with each of them, not with every other |
//!
//! Which of the two that is depends on the device, on the processors, and on what clients do between their
//! commits, and differs by up to a factor of two either way. So it is tried, and what counts is commits per
//! second over a *stretch* of flushes. One of the manners is at **home**: the other must be plainly better,
//! and it only as good. A crowd's home is the thread, so that nobody is worse off than with a serial log,
//! whose commit thread does the same; two committers' is themselves, for by the thread each commit waits for
//! one more thread to be woken.
//!
//! | state | leaves it when |
//! |---|---|
//! | at home | so many stretches are over: tries the other manner for one |
//! | trying the other | that stretch is over: goes back, and if it was plainly better, tries once more after one stretch; who is better some times in a row is kept. Else the next trial comes after twice as many stretches |
//! | away | so many stretches are over: tries home for one |
//! | trying home | that stretch is over: keeps it if it is about as good, else goes back for twice as many stretches |
//!
//! On a machine that is busy with other things, rates of stretches differ by more than the manners do. So one
//! good stretch is not enough to leave home, and one bad stretch is enough to come back, which is looked for
//! often. Rates that have changed for good (another device, another load) make the pauses short again. A
//! stretch in which nobody committed for a while says nothing and begins anew.
//!
//! A trial of what is worse costs all who commit meanwhile. So one that is plainly lost is over after a third
//! of a stretch, and the first comes after some stretches at home.

use std::time::Duration;

use azekura_base::drift::Known;
use azekura_base::sync::time::Instant;

/// Who leads the flushes of a crowd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The log's thread.
    ByThread,
    /// The committers.
    Among,
}

impl Manner {
    const fn other(self) -> Self {
        match self {
            Self::ByThread => Self::Among,
            Self::Among => Self::ByThread,
        }
    }
}

/// How many times the other one's rate a manner must have to be kept: at home, and away.
const NEEDED: [f64; 2] = [0.97, 1.1];
/// Flushes of a stretch at least, and its time at least.
const FLUSHES: u32 = 24;
const TIME: Duration = Duration::from_millis(4);
/// A trial with less than this part of the other manner's rate is over after this part of a stretch.
const PLAINLY_WORSE: f64 = 0.85;
const PART_AT_WORSE: u32 = 3;
/// Stretches between two trials, at first and most, at home and away: nobody stays away long unproven.
const FIRST_PAUSES: [u32; 2] = [8, 1];
const LONGEST_PAUSES: [u32; 2] = [256, 16];
/// Times in a row that the other manner must have been better before home is left.
const WINS: u32 = 3;
/// So many stretches in a row with rates far from the known are of another device or load.
const DRIFT_STRETCHES: u32 = 5;
/// Nobody wrote for so many flushes' time, and at least so long: the load had a pause.
const GAP_FLUSHES: u32 = 8;
const GAP: Duration = Duration::from_millis(2);

/// Decides who leads.
#[derive(Debug)]
pub(crate) struct Judge {
    home: Manner,
    manner: Manner,
    /// The rate of the manner that was left for a trial.
    left_rate: Option<f64>,
    /// Trials in a row that were better.
    wins: u32,
    /// Rate of the manner settled for.
    known: Known,
    /// Stretches between trials of the other manner, at home and away; and those still to go.
    pauses: [u32; 2],
    to_go: u32,
    /// The stretch going on.
    commits: u32,
    flushes: u32,
    since: Option<Instant>,
}

impl Judge {
    pub(crate) fn at_home(home: Manner) -> Self {
        Self {
            home,
            manner: home,
            left_rate: None,
            wins: 0,
            known: Known::new(DRIFT_STRETCHES, 0.25),
            pauses: FIRST_PAUSES,
            to_go: FIRST_PAUSES[0],
            commits: 0,
            flushes: 0,
            since: None,
        }
    }

    pub(crate) const fn manner(&self) -> Manner {
        self.manner
    }

    /// A committer comes.
    pub(crate) const fn commit(&mut self) {
        self.commits += 1;
    }

    /// A flush begins, so long after the last one ended; one takes `took`.
    pub(crate) fn begin(&mut self, idle: Duration, took: Duration) {
        if idle > GAP.max(GAP_FLUSHES * took) {
            self.restart(None);
        }
    }

    /// A flush has ended.
    pub(crate) fn end(&mut self, now: Instant) {
        let Some(since) = self.since else { return self.restart(Some(now)) };
        self.flushes += 1;
        let time = now.saturating_duration_since(since);
        let rate = f64::from(self.commits) / time.as_secs_f64();
        if !self.is_over(time, rate) {
            return;
        }
        match self.left_rate.take() {
            Some(left) => self.judge(left, rate),
            None => self.consider(rate),
        }
        self.restart(Some(now));
    }

    /// Whether the stretch going on has seen enough, in this time and with this rate so far.
    fn is_over(&self, time: Duration, rate: f64) -> bool {
        let has_seen = |part| self.flushes >= FLUSHES / part && time >= TIME / part;
        let is_lost = self.left_rate.is_some_and(|left| rate < PLAINLY_WORSE * left);
        has_seen(1) || is_lost && has_seen(PART_AT_WORSE)
    }

    /// Those who commit are others now: what was seen so far is of no use.
    pub(crate) fn interrupt(&mut self) {
        if self.left_rate.take().is_some() {
            self.manner = self.manner.other();
        }
        self.to_go = self.pauses[self.place()];
        self.restart(None);
    }

    /// 0 at home, 1 away.
    fn place(&self) -> usize {
        usize::from(self.manner != self.home)
    }

    fn restart(&mut self, since: Option<Instant>) {
        (self.commits, self.flushes, self.since) = (0, 0, since);
    }

    /// A trial is over.
    fn judge(&mut self, left: f64, rate: f64) {
        let is_better = rate >= NEEDED[self.place()] * left;
        let is_away = self.manner != self.home;
        self.wins = if is_better { self.wins + 1 } else { 0 };
        if is_away && is_better && self.wins < WINS {
            // Once more, beside a new stretch at home.
            (self.manner, self.to_go) = (self.home, 1);
            return;
        }
        let left_home_rightly = is_away && is_better;
        let rate = if is_better {
            rate
        } else {
            self.manner = self.manner.other();
            left
        };
        // Who was away for nothing comes home to a longer pause, so that two manners that are alike do not
        // take turns.
        let pause = if left_home_rightly { 1 } else { 2 * self.pauses[self.place()] };
        self.settle(pause, rate);
    }

    fn settle(&mut self, pause: u32, rate: f64) {
        let place = self.place();
        self.to_go = pause.min(LONGEST_PAUSES[place]);
        self.pauses[place] = self.to_go;
        self.wins = 0;
        self.known.set(rate);
    }

    /// A stretch is over that was no trial.
    fn consider(&mut self, rate: f64) {
        if self.known.note(rate) {
            (self.pauses, self.to_go) = (FIRST_PAUSES, FIRST_PAUSES[self.place()]);
        }
        self.to_go = self.to_go.saturating_sub(1);
        if self.to_go == 0 {
            self.left_rate = Some(rate);
            self.manner = self.manner.other();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(200);

    fn of_a_crowd() -> Judge {
        Judge::at_home(Manner::ByThread)
    }

    /// Flushes with so many commits each, by the thread and among themselves; how many were among themselves.
    fn run(judge: &mut Judge, now: &mut Instant, flushes: usize, by_thread: u32, among: u32) -> usize {
        let mut of_among = 0;
        for _ in 0..flushes {
            let commits = if judge.manner() == Manner::Among { among } else { by_thread };
            of_among += usize::from(judge.manner() == Manner::Among);
            (0..commits).for_each(|_| judge.commit());
            judge.begin(Duration::ZERO, FLUSH);
            *now += FLUSH;
            judge.end(*now);
        }
        of_among
    }

    #[test]
    fn the_better_manner_is_found_and_kept() {
        let (mut judge, mut now) = (of_a_crowd(), Instant::now());
        let among = run(&mut judge, &mut now, 100_000, 100, 150);
        assert!(among > 90_000, "{among}");
        let (mut judge, mut now) = (of_a_crowd(), Instant::now());
        let among = run(&mut judge, &mut now, 100_000, 150, 100);
        assert!(among < 1_000, "{among}");
    }

    #[test]
    fn where_home_is_decides_nothing_but_who_has_to_be_better() {
        for (at_home, away) in [(100, 150), (150, 100), (100, 105), (100, 200)] {
            let (mut crowd, mut two) = (of_a_crowd(), Judge::at_home(Manner::Among));
            let (mut now_of_crowd, mut now_of_two) = (Instant::now(), Instant::now());
            for _ in 0..20_000 {
                let was_away = run(&mut crowd, &mut now_of_crowd, 1, at_home, away) == 1;
                let stayed = run(&mut two, &mut now_of_two, 1, away, at_home) == 1;
                assert_ne!(was_away, stayed, "{at_home} at home, {away} away: {crowd:?} {two:?}");
            }
        }
    }

    #[test]
    fn what_is_no_better_than_the_thread_is_tried_ever_more_rarely() {
        for among in [80, 100, 105] {
            let (mut judge, mut now) = (of_a_crowd(), Instant::now());
            let tried = run(&mut judge, &mut now, 100_000, 100, among);
            assert!(tried > 0 && tried < 1_000, "{tried}");
            let later = run(&mut judge, &mut now, 100_000, 100, among);
            assert!(later < tried, "{later} after {tried}");
        }
    }

    #[test]
    fn who_has_left_the_thread_goes_back_when_it_becomes_better() {
        let (mut judge, mut now) = (of_a_crowd(), Instant::now());
        run(&mut judge, &mut now, 100_000, 100, 200);
        assert_eq!(judge.manner(), Manner::Among);
        let among = run(&mut judge, &mut now, 100_000, 100, 40);
        assert!(among < 40_000, "{among}");
        assert!(run(&mut judge, &mut now, 10_000, 100, 40) < 1_000);
    }

    #[test]
    fn noise_is_no_reason_to_leave_the_thread() {
        for seed in 1..20_u64 {
            let (mut judge, mut now, mut random) = (of_a_crowd(), Instant::now(), seed);
            let mut among = 0;
            for _ in 0..4_000 {
                // A stretch, each with up to four times as many commits as another.
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let commits = 50 + (random >> 33) as u32 % 150;
                among += run(&mut judge, &mut now, FLUSHES as usize, commits, commits);
            }
            assert!(among < 4_000 * FLUSHES as usize / 8, "seed {seed}: {among}");
        }
    }

    /// A stretch with so many commits to a flush; in whose manner it was.
    fn stretch(judge: &mut Judge, now: &mut Instant, by_thread: u32, among: u32) -> Manner {
        let manner = judge.manner();
        run(judge, now, FLUSHES as usize, by_thread, among);
        manner
    }

    /// Goes on with these rates until it has settled for a manner.
    fn settle(judge: &mut Judge, now: &mut Instant, by_thread: u32, among: u32, manner: Manner) {
        for _ in 0..10_000 {
            stretch(judge, now, by_thread, among);
            if judge.manner() == manner && judge.left_rate.is_none() {
                return;
            }
        }
        panic!("not settled for {manner:?}: {judge:?}");
    }

    #[test]
    fn two_good_trials_of_three_are_not_enough() {
        let (mut judge, mut now, mut trials) = (of_a_crowd(), Instant::now(), 0);
        run(&mut judge, &mut now, 1, 100, 100); // the first stretch begins
        let mut before = Manner::ByThread;
        for _ in 0..2_000 {
            let among = if trials % 3 == 2 { 90 } else { 150 }; // not so bad that the stretch is cut short
            let manner = stretch(&mut judge, &mut now, 100, among);
            trials += u32::from(manner == Manner::Among);
            assert!((before, manner) != (Manner::Among, Manner::Among), "settled after {trials} trials");
            before = manner;
        }
        assert!(trials > 10, "{trials}");
    }

    #[test]
    fn who_has_left_the_thread_goes_back_when_it_is_as_good_and_stays_there_longer_each_time() {
        let (mut judge, mut now, mut pauses) = (of_a_crowd(), Instant::now(), Vec::new());
        for _ in 0..4 {
            // Not so much better that it looks like another device.
            settle(&mut judge, &mut now, 100, 140, Manner::Among);
            run(&mut judge, &mut now, 100 * FLUSHES as usize, 100, 140);
            settle(&mut judge, &mut now, 100, 100, Manner::ByThread);
            pauses.push(judge.pauses[0]);
        }
        assert!(pauses.is_sorted() && pauses[0] > 1 && pauses[3] >= 8 * pauses[0], "{pauses:?}");
    }

    #[test]
    fn another_device_or_load_makes_the_pauses_short_again() {
        let (mut judge, mut now) = (of_a_crowd(), Instant::now());
        run(&mut judge, &mut now, 100_000, 100, 80);
        assert!(judge.pauses[0] > 100, "{judge:?}");
        let stretches = (DRIFT_STRETCHES + FIRST_PAUSES[0] + 2) as usize;
        let among = run(&mut judge, &mut now, stretches * FLUSHES as usize, 300, 600);
        assert!(among >= FLUSHES as usize, "tried soon: {judge:?}");
    }

    #[test]
    fn a_trial_that_is_plainly_lost_is_cut_short_and_one_that_is_not_is_not() {
        let third = FLUSHES as usize / PART_AT_WORSE as usize;
        for (among, flushes) in [(50, third), (84, third), (86, FLUSHES as usize), (109, FLUSHES as usize)] {
            let (mut judge, mut now) = (of_a_crowd(), Instant::now());
            while judge.manner() == Manner::ByThread {
                run(&mut judge, &mut now, 1, 100, among);
            }
            let of_trial = (1..).find(|_| {
                run(&mut judge, &mut now, 1, 100, among);
                judge.manner() == Manner::ByThread
            });
            assert_eq!(of_trial, Some(flushes), "with {among} of 100");
        }
    }

    #[test]
    fn the_first_trial_comes_after_some_stretches_by_the_thread() {
        let (mut judge, mut now) = (of_a_crowd(), Instant::now());
        run(&mut judge, &mut now, 1, 100, 100); // the first stretch begins
        let first = (1..).find(|_| {
            stretch(&mut judge, &mut now, 100, 100);
            judge.manner() == Manner::Among
        });
        assert_eq!(first, Some(FIRST_PAUSES[0]));
    }

    #[test]
    fn when_the_crowd_goes_its_trial_and_its_stretch_are_void() {
        let (mut judge, mut now) = (of_a_crowd(), Instant::now());
        while judge.manner() == Manner::ByThread {
            run(&mut judge, &mut now, 1, 100, 100);
        }
        run(&mut judge, &mut now, 3, 100, 1_000);
        judge.interrupt();
        assert_eq!((judge.manner(), judge.left_rate), (Manner::ByThread, None));
        assert_eq!((judge.commits, judge.flushes, judge.since), (0, 0, None));
    }

    #[test]
    fn a_stretch_has_enough_flushes_and_enough_time() {
        for (flush, flushes) in [(Duration::from_micros(1), TIME.as_micros() as u32), (2 * TIME, FLUSHES)] {
            let (mut judge, mut now, mut ended) = (of_a_crowd(), Instant::now(), 0);
            judge.end(now);
            while judge.manner() == Manner::ByThread {
                judge.commit();
                now += flush;
                judge.end(now);
                ended += 1;
            }
            let stretches = FIRST_PAUSES[0];
            assert_eq!(ended, stretches * flushes, "{stretches} stretches, of flushes of {flush:?}");
        }
    }

    #[test]
    fn a_pause_of_the_load_is_not_judged() {
        let (mut judge, mut now) = (of_a_crowd(), Instant::now());
        let mut tried = 0;
        for _ in 0..1_000 {
            tried += run(&mut judge, &mut now, FLUSHES as usize / 2, 100, 200);
            now += Duration::from_secs(1);
            judge.begin(Duration::from_secs(1), FLUSH);
        }
        assert_eq!(tried, 0, "no stretch was ever complete");
    }
}
