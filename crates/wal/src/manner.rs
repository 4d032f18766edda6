//! Who writes for a crowd of committers: one of them, or the log's own thread.
//!
//! | manner | a flush is led by | is better where |
//! |---|---|---|
//! | by the thread | the log's thread, as in a serial log: again at once, with whoever is back | threads take as long to wake as a flush takes, and have other things to do |
//! | among themselves | a committer, who may wait for the others of the last flush (`gathering`) | a flush takes long: all go with each of them, not with every other |
//!
//! Which of the two that is depends on the device, on the processors, and on what clients do between their commits, and differs by up to a
//! factor of two either way. So it is tried, and what counts is commits per second over a *stretch* of flushes. The thread is at home: the other
//! manner must be plainly better, and the thread only as good, so that nobody is worse off than with a serial log, whose commit thread does the same.
//!
//! | state | leaves it when |
//! |---|---|
//! | settled | so many stretches are over: tries the other manner for one |
//! | trying | that stretch is over: keeps it, or goes back and waits twice as long before the next trial |
//!
//! A rate that changes much (another device, another load) makes the pause short again. A stretch in which nobody committed for a while says nothing and
//! begins anew.

use std::time::Duration;

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

    /// How many times the other one's rate it must have to be kept.
    const fn needed(self) -> f64 {
        match self {
            Self::ByThread => 0.97,
            Self::Among => 1.1,
        }
    }
}

/// Flushes of a stretch at least, and its time at least.
const FLUSHES: u32 = 24;
const TIME: Duration = Duration::from_millis(4);
/// Stretches between two trials, most.
const LONGEST_PAUSE: u32 = 256;
/// Rates that differ by more than this are of another device or load.
const DRIFT: f64 = 1.6;
/// Nobody wrote for so many flushes' time, and at least so long: the load had a pause.
const GAP_FLUSHES: u32 = 8;
const GAP: Duration = Duration::from_millis(2);

/// Decides who leads.
#[derive(Debug)]
pub(crate) struct Judge {
    manner: Manner,
    /// The rate of the manner that was left for a trial.
    left_rate: Option<f64>,
    /// That of the manner settled for.
    known: Option<f64>,
    /// Stretches between trials of the other manner, with each; and those still to go.
    pauses: [u32; 2],
    to_go: u32,
    /// The stretch going on.
    commits: u32,
    flushes: u32,
    since: Option<Instant>,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            manner: Manner::ByThread,
            left_rate: None,
            known: None,
            pauses: [1; 2],
            to_go: 1,
            commits: 0,
            flushes: 0,
            since: None,
        }
    }
}

impl Judge {
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
        if self.flushes < FLUSHES || time < TIME {
            return;
        }
        let rate = f64::from(self.commits) / time.as_secs_f64();
        match self.left_rate.take() {
            Some(left) => self.judge(left, rate),
            None => self.consider(rate),
        }
        self.restart(Some(now));
    }

    /// The crowd has come, or gone: what was seen so far is of no use.
    pub(crate) fn interrupt(&mut self) {
        if self.left_rate.take().is_some() {
            self.manner = self.manner.other();
        }
        self.to_go = self.pauses[self.manner as usize];
        self.restart(None);
    }

    fn restart(&mut self, since: Option<Instant>) {
        (self.commits, self.flushes, self.since) = (0, 0, since);
    }

    fn judge(&mut self, left: f64, rate: f64) {
        let is_kept = rate >= self.manner.needed() * left;
        if !is_kept {
            self.manner = self.manner.other();
        }
        self.known = Some(if is_kept { rate } else { left });
        let pause = &mut self.pauses[self.manner as usize];
        // Who left the thread for nothing comes back to a longer pause, so that two manners that are alike do not take turns.
        *pause = match (is_kept, self.manner) {
            (true, Manner::Among) => 1,
            _ => (2 * *pause).min(LONGEST_PAUSE),
        };
        self.to_go = *pause;
    }

    fn consider(&mut self, rate: f64) {
        if self.known.is_some_and(|known| rate > DRIFT * known || rate * DRIFT < known) {
            (self.pauses, self.to_go) = ([1; 2], 1);
        }
        self.known = Some(rate);
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
        let (mut judge, mut now) = (Judge::default(), Instant::now());
        let among = run(&mut judge, &mut now, 100_000, 100, 150);
        assert!(among > 98_000, "{among}");
        let (mut judge, mut now) = (Judge::default(), Instant::now());
        let among = run(&mut judge, &mut now, 100_000, 150, 100);
        assert!(among < 1_000, "{among}");
    }

    #[test]
    fn what_is_no_better_than_the_thread_is_tried_ever_more_rarely() {
        for among in [80, 100, 105] {
            let (mut judge, mut now) = (Judge::default(), Instant::now());
            let tried = run(&mut judge, &mut now, 100_000, 100, among);
            assert!(tried > 0 && tried < 1_000, "{tried}");
            let later = run(&mut judge, &mut now, 100_000, 100, among);
            assert!(later < tried, "{later} after {tried}");
        }
    }

    #[test]
    fn who_has_left_the_thread_goes_back_when_it_becomes_better() {
        let (mut judge, mut now) = (Judge::default(), Instant::now());
        run(&mut judge, &mut now, 100_000, 100, 200);
        assert_eq!(judge.manner(), Manner::Among);
        let among = run(&mut judge, &mut now, 100_000, 100, 40);
        assert!(among < 40_000, "{among}");
        assert!(run(&mut judge, &mut now, 10_000, 100, 40) < 1_000);
    }

    #[test]
    fn a_pause_of_the_load_is_not_judged() {
        let (mut judge, mut now) = (Judge::default(), Instant::now());
        let mut tried = 0;
        for _ in 0..1_000 {
            tried += run(&mut judge, &mut now, FLUSHES as usize / 2, 100, 200);
            now += Duration::from_secs(1);
            judge.begin(Duration::from_secs(1), FLUSH);
        }
        assert_eq!(tried, 0, "no stretch was ever complete");
    }
}
