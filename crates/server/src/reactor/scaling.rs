//! The number of reactors in use: the smallest number that serves the most requests per second, found by
//! trials.
//!
//! With one reactor for all connections the turns are largest: one poll, one log flush for all writers, warm
//! caches. A second reactor uses a second processor, but its turns are smaller, flushes wait for each other,
//! and clients on the same machine may need that processor. The better number depends on the load, the device
//! and other programs, so it is found by trial. The measure is requests per second over a *stretch*.
//!
//! | state | next state |
//! |---|---|
//! | settled with `n` | after the pause: a trial with `2 n` or `n / 2`, alternating |
//! | trial | after one stretch back to `n`; a win is repeated, then kept; a loss doubles the pause |
//!
//! - **SCALING-1** Doubling the reactors must raise the rate by a quarter; halving may cost a tenth. So a
//!   load that one reactor can serve uses one.
//! - **SCALING-2** A trial is kept only after [`WINS`] wins in a row, each compared with a new stretch at the
//!   old number. So noise does not raise the number.
//! - **SCALING-3** A trial that is lost, or interrupted by a pause of the clients, restores the old number.
//!   The next trial has the other direction.
//! - **SCALING-4** Each loss doubles the pause, up to a bound, so useless trials become rare. A win, or a
//!   lasting change of the rate, resets the pause.
//! - **SCALING-5** A stretch during which the clients paused is discarded. After a change the next stretch
//!   begins only when connections have had time to move.

use std::time::{Duration, Instant};

use super::known_rate::KnownRate;

/// Least duration and least number of requests of a stretch.
const STRETCH: Duration = Duration::from_millis(20);
const REQUESTS: u64 = 1000;
/// A stretch that takes longer than this contained a pause of the clients.
const GAP: Duration = Duration::from_millis(200);
/// Time between a change and the next stretch: connections move, and turns reach their new size.
const SETTLING: Duration = Duration::from_millis(5);
/// Factors of the request rate that a trial must reach: with more reactors, and with fewer.
const MORE: f64 = 1.25;
const FEWER: f64 = 0.9;
/// Wins in a row after which a trial is kept.
const WINS: u32 = 3;
/// Least and largest number of stretches between trials.
const PAUSES: (u32, u32) = (1, 256);
/// Stretches in a row with a different rate after which the load counts as changed.
const DRIFT_STRETCHES: u32 = 5;

/// A running trial.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: usize,
    /// Rate of the stretch before the trial.
    rate: f64,
}

/// Chooses the number of reactors; see the module's head.
#[derive(Debug)]
pub(super) struct Scaling {
    in_use: usize,
    most: usize,
    trial: Option<Trial>,
    wins: u32,
    /// The next trial uses more reactors.
    upwards: bool,
    /// Rate with the settled number.
    known: KnownRate,
    pause: u32,
    to_go: u32,
    /// Start of the current stretch, which may be in the future; `before`: the request count at that time.
    since: Option<Instant>,
    before: u64,
}

impl Scaling {
    /// Creates the state for at most `most` reactors. One reactor is in use at first.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            in_use: 1,
            most,
            trial: None,
            wins: 0,
            upwards: true,
            known: KnownRate::new(DRIFT_STRETCHES, 0.25),
            pause: PAUSES.0,
            to_go: PAUSES.0,
            since: None,
            before: 0,
        }
    }

    /// Evaluates the stretch, given the total of requests served. Returns the new number of reactors if it
    /// changes.
    pub(super) fn update(&mut self, requests: u64, now: Instant) -> Option<usize> {
        let time = self.since.map(|since| now.saturating_duration_since(since));
        let Some(time) = time.filter(|&time| time < GAP) else {
            let was = self.in_use;
            self.interrupt(now, requests);
            return (was != self.in_use).then_some(self.in_use);
        };
        if time.is_zero() {
            self.before = requests; // the stretch begins now
        }
        let count = requests - self.before;
        if time < STRETCH || count < REQUESTS {
            return None;
        }
        let rate = count as f64 / time.as_secs_f64();
        let was = self.in_use;
        match self.trial.take() {
            Some(trial) => self.judge(trial, rate),
            None => self.consider(rate),
        }
        let changed = was != self.in_use;
        self.since = Some(if changed { now + SETTLING } else { now });
        self.before = requests;
        changed.then_some(self.in_use)
    }

    /// Discards the current stretch and the current trial.
    fn interrupt(&mut self, now: Instant, requests: u64) {
        if let Some(trial) = self.trial.take() {
            self.in_use = trial.from;
        }
        (self.since, self.before) = (Some(now), requests);
    }

    /// Evaluates a finished trial.
    fn judge(&mut self, trial: Trial, rate: f64) {
        let needed = if self.in_use > trial.from { MORE } else { FEWER };
        if rate < needed * trial.rate {
            self.in_use = trial.from;
            self.upwards = !self.upwards;
            self.rest_longer();
            return;
        }
        self.wins += 1;
        if self.wins < WINS {
            // Repeats the trial after a new stretch with the old number.
            (self.in_use, self.to_go) = (trial.from, 1);
            return;
        }
        // Continue in the same direction.
        self.rest(PAUSES.0);
        self.known.set(rate);
    }

    /// Evaluates a finished stretch outside a trial.
    fn consider(&mut self, rate: f64) {
        if self.known.note(rate) {
            self.rest(PAUSES.0);
        }
        self.to_go = self.to_go.saturating_sub(1);
        if self.to_go == 0
            && let Some(next) = self.candidate()
        {
            self.trial = Some(Trial { from: self.in_use, rate });
            self.in_use = next;
        }
    }

    /// Returns the number to try, if there is one.
    fn candidate(&mut self) -> Option<usize> {
        let up = (self.in_use < self.most).then(|| (2 * self.in_use).min(self.most));
        let down = (self.in_use > 1).then(|| self.in_use.div_ceil(2));
        // Successful trials continue in their direction.
        self.upwards = if self.upwards { up.is_some() } else { down.is_none() };
        if self.upwards { up } else { down }
    }

    fn rest(&mut self, pause: u32) {
        (self.pause, self.to_go, self.wins) = (pause, pause, 0);
    }

    fn rest_longer(&mut self) {
        self.rest((2 * self.pause).min(PAUSES.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a load for `ms` milliseconds; `rate`: its requests per second by the number of reactors.
    /// Returns the milliseconds for which each number of reactors was in use.
    fn run(
        scaling: &mut Scaling,
        at: &mut (Instant, u64),
        ms: u64,
        rate: impl Fn(usize) -> u64,
    ) -> Vec<usize> {
        let mut used = vec![0; 17];
        for _ in 0..ms {
            used[scaling.in_use] += 1;
            at.0 += Duration::from_millis(1);
            at.1 += rate(scaling.in_use) / 1000;
            scaling.update(at.1, at.0);
        }
        used
    }

    #[test]
    fn a_load_that_one_reactor_serves_stays_there() {
        let (mut scaling, mut at) = (Scaling::new(4), (Instant::now(), 0));
        let used = run(&mut scaling, &mut at, 20_000, |_| 100_000);
        assert!(used[1] > 18_500, "{used:?}");
        let used = run(&mut scaling, &mut at, 20_000, |n| if n == 1 { 100_000 } else { 115_000 });
        assert!(used[1] > 19_000, "a little more is no reason: {used:?}");
    }

    #[test]
    fn reactors_are_taken_as_long_as_they_bring_something() {
        let (mut scaling, mut at) = (Scaling::new(16), (Instant::now(), 0));
        run(&mut scaling, &mut at, 2_000, |n| 100_000 * n.min(8) as u64);
        let used = run(&mut scaling, &mut at, 20_000, |n| 100_000 * n.min(8) as u64);
        assert!(used[8] > 17_000, "{used:?}");
    }

    #[test]
    fn three_reactors_are_reached_and_left() {
        let (mut scaling, mut at) = (Scaling::new(3), (Instant::now(), 0));
        run(&mut scaling, &mut at, 2_000, |n| 100_000 * n as u64);
        assert_eq!(scaling.trial.map_or(scaling.in_use, |trial| trial.from), 3);
        run(&mut scaling, &mut at, 30_000, |_| 100_000);
        assert_eq!(scaling.trial.map_or(scaling.in_use, |trial| trial.from), 1);
    }

    #[test]
    fn a_changed_load_starts_new_trials() {
        let (mut scaling, mut at) = (Scaling::new(2), (Instant::now(), 0));
        run(&mut scaling, &mut at, 60_000, |_| 50_000);
        let used = run(&mut scaling, &mut at, 3_000, |n| 100_000 * n as u64);
        assert!(used[2] > 2_000, "{used:?}");
        let used = run(&mut scaling, &mut at, 3_000, |n| 60_000 / n as u64);
        assert!(used[1] > 2_000, "{used:?}");
    }

    #[test]
    fn trials_that_bring_nothing_become_rare() {
        let (mut scaling, mut at) = (Scaling::new(2), (Instant::now(), 0));
        run(&mut scaling, &mut at, 60_000, |n| 100_000 / n as u64);
        let used = run(&mut scaling, &mut at, 60_000, |n| 100_000 / n as u64);
        assert!(used[2] > 0 && used[2] < 600, "{used:?}");
    }

    #[test]
    fn a_trial_in_which_clients_pause_is_taken_back() {
        let (mut scaling, mut at) = (Scaling::new(2), (Instant::now(), 0));
        while scaling.update(at.1, at.0) != Some(2) {
            at = (at.0 + Duration::from_millis(1), at.1 + 100);
        }
        at.0 += GAP + SETTLING;
        assert_eq!(scaling.update(at.1, at.0), Some(1));
        assert!(scaling.trial.is_none());
    }

    /// Runs until the end of a stretch; returns its number of reactors.
    fn stretch(scaling: &mut Scaling, at: &mut (Instant, u64), rate: impl Fn(usize) -> u64) -> usize {
        let (in_use, since) = (scaling.in_use, scaling.since);
        while scaling.since == since {
            at.0 += Duration::from_millis(1);
            at.1 += rate(in_use) / 1000;
            scaling.update(at.1, at.0);
        }
        in_use
    }

    fn begin(most: usize) -> (Scaling, (Instant, u64)) {
        let (mut scaling, at) = (Scaling::new(most), (Instant::now(), 0));
        assert_eq!(scaling.update(at.1, at.0), None);
        (scaling, at)
    }

    /// SCALING-2: a trial is kept after consecutive wins; one loss restarts the count.
    #[test]
    fn a_trial_is_kept_once_it_was_won_in_a_row_each_time_beside_a_new_stretch() {
        let (mut scaling, mut at) = begin(2);
        let wins = |n: usize| 100_000 * n as u64;
        let used: Vec<usize> = (0..7).map(|_| stretch(&mut scaling, &mut at, wins)).collect();
        assert_eq!(used, [1, 2, 1, 2, 1, 2, 2]);

        let (mut scaling, mut at) = begin(2);
        let chance = [1, 2, 1, 2, 1, 1, 1, 1, 2, 1, 2, 1, 2, 2];
        let used: Vec<usize> =
            chance.iter().map(|&rate| stretch(&mut scaling, &mut at, |_| 100_000 * rate)).collect();
        assert_eq!(
            used,
            [1, 2, 1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 2, 2],
            "the third was lost, then three were won"
        );
    }

    /// SCALING-3: the trial after a loss has the other direction.
    #[test]
    fn after_a_lost_trial_the_other_direction_is_tried() {
        let (mut scaling, mut at) = begin(4);
        let best_is_two = |n: usize| if n == 2 { 200_000 } else { 100_000 };
        let tried: Vec<usize> = (0..400)
            .map(|_| stretch(&mut scaling, &mut at, best_is_two))
            .skip(6)
            .filter(|&n| n != 2)
            .collect();
        assert!(tried.len() > 6, "{tried:?}");
        assert!(tried.iter().zip(&tried[1..]).all(|(a, b)| a != b), "{tried:?}");
    }

    /// SCALING-4: losses lengthen the pause up to a bound, and a win resets it.
    #[test]
    fn pauses_grow_to_a_bound_and_are_short_again_after_a_win() {
        let (mut scaling, mut at) = begin(2);
        let used: Vec<usize> = (0..3000).map(|_| stretch(&mut scaling, &mut at, |_| 100_000)).collect();
        let trials = |used: &[usize]| used.iter().filter(|&&n| n == 2).count();
        assert!((7..=8).contains(&trials(&used[1000..])), "{}", trials(&used[1000..]));
        // The gain is too small to count as a change of the load.
        let better = |n: usize| if n == 2 { 130_000 } else { 100_000 };
        let mut used = Vec::new();
        while !used.ends_with(&[2, 2]) {
            used.push(stretch(&mut scaling, &mut at, better));
            assert!(used.len() < 300, "it is never kept");
        }
        assert_eq!(stretch(&mut scaling, &mut at, better), 1, "the next trial");
    }

    /// SCALING-5: requests that are served while connections move belong to no stretch.
    #[test]
    fn requests_served_while_connections_move_count_for_no_interval() {
        let (mut scaling, mut at) = begin(2);
        for _ in 0..20 {
            stretch(&mut scaling, &mut at, |_| 100_000);
            // The requests that waited during the move arrive at once.
            at = (at.0 + SETTLING, at.1 + if scaling.trial.is_some() { 5000 } else { 0 });
            scaling.update(at.1, at.0);
        }
        assert_eq!((scaling.wins, scaling.trial.map_or(scaling.in_use, |trial| trial.from)), (0, 1));
    }

    #[test]
    fn one_reactor_starts_no_trial() {
        let (mut scaling, mut at) = (Scaling::new(1), (Instant::now(), 0));
        let used = run(&mut scaling, &mut at, 5_000, |_| 100_000);
        assert_eq!(used[1], 5_000);
    }
}
