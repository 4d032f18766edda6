//! Over how many reactors the connections are spread: over as few as serve the most.
//!
//! One reactor for all connections makes the largest turns: one poll, one flush of the log for all writers,
//! warm caches. A second one brings a second processor, and costs smaller turns, flushes that wait for each
//! other, and that processor's time, which clients on the same machine may need. The better number depends on
//! the load, on the device and on other programs, so it is found by trial: the measure is requests per second
//! over a *stretch*.
//!
//! | state | leaves it when |
//! |---|---|
//! | settled with `n` | the pause is over: tries `2 n`, or `n / 2`, by turns |
//! | trying | that stretch is over: goes back, and if it was better, tries again after one stretch; what is better some times in a row is kept, else the pause doubles |
//!
//! - **SPREAD-1** More reactors must bring a quarter more requests per second each time they are doubled,
//!   fewer may cost a tenth: so a load that one can serve is gathered there.
//! - **SPREAD-2** A trial is kept only if it was won [`WINS`] times in a row, each time beside a new stretch
//!   of what there was: noise does not spread a load.
//! - **SPREAD-3** A trial that was lost, or during which clients paused, restores the state before it, and
//!   the next one goes in the other direction.
//! - **SPREAD-4** Each loss doubles the pause, up to a bound: trials that bring nothing become rare. A win,
//!   and rates that have changed for good, make it short again.
//! - **SPREAD-5** A stretch in which the clients paused says nothing, and is begun anew; after a change none
//!   begins before connections have had the time to move.

use std::time::{Duration, Instant};

use azekura_base::drift::Known;

/// Time and requests of a stretch, at least.
const STRETCH: Duration = Duration::from_millis(20);
const REQUESTS: u64 = 1000;
/// A stretch that is not over by then had a pause in it.
const GAP: Duration = Duration::from_millis(200);
/// After a change connections have to move, and turns to find their size, before a stretch begins.
const SETTLING: Duration = Duration::from_millis(5);
/// Factors of the request rate that more and fewer reactors must reach: another processor must bring at least
/// a quarter.
const MORE: f64 = 1.25;
const FEWER: f64 = 0.9;
/// Trials in a row that must have been won.
const WINS: u32 = 3;
/// Stretches between trials, least and most.
const PAUSES: (u32, u32) = (1, 256);
/// So many stretches in a row with rates far from the known are of another load.
const DRIFT_STRETCHES: u32 = 5;

/// Kind of trial.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: usize,
    /// Of the stretch before it.
    rate: f64,
}

/// Decides how many reactors to use; see the module's head.
#[derive(Debug)]
pub(super) struct Spread {
    in_use: usize,
    most: usize,
    trial: Option<Trial>,
    wins: u32,
    /// The next trial is of more.
    upwards: bool,
    /// Rate of what it has settled for.
    known: Known,
    pause: u32,
    to_go: u32,
    /// The stretch going on: when it began or will begin, and the requests before it.
    since: Option<Instant>,
    before: u64,
}

impl Spread {
    /// Of up to so many; one at first.
    pub(super) const fn new(most: usize) -> Self {
        Self {
            in_use: 1,
            most,
            trial: None,
            wins: 0,
            upwards: true,
            known: Known::new(DRIFT_STRETCHES, 0.25),
            pause: PAUSES.0,
            to_go: PAUSES.0,
            since: None,
            before: 0,
        }
    }

    /// So many requests were served since the beginning. The number to use from now on, if it is another.
    pub(super) fn look(&mut self, requests: u64, now: Instant) -> Option<usize> {
        let time = self.since.map(|since| now.saturating_duration_since(since));
        let Some(time) = time.filter(|&time| time < GAP) else {
            let was = self.in_use;
            self.interrupt(now, requests);
            return (was != self.in_use).then_some(self.in_use);
        };
        if time.is_zero() {
            self.before = requests; // not before the stretch begins
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

    /// Forgets the measurements so far.
    fn interrupt(&mut self, now: Instant, requests: u64) {
        if let Some(trial) = self.trial.take() {
            self.in_use = trial.from;
        }
        (self.since, self.before) = (Some(now), requests);
    }

    /// A trial is over.
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
            // Once more, beside a new stretch of what there was.
            (self.in_use, self.to_go) = (trial.from, 1);
            return;
        }
        // And on in the same direction.
        self.rest(PAUSES.0);
        self.known.set(rate);
    }

    /// A stretch is over that was no trial.
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

    /// The number to try, if there is one.
    fn candidate(&mut self) -> Option<usize> {
        let up = (self.in_use < self.most).then(|| (2 * self.in_use).min(self.most));
        let down = (self.in_use > 1).then(|| self.in_use.div_ceil(2));
        // A row of trials goes on in its direction.
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

    /// A load that so many requests a second of are served, by the number of reactors; what was in use for
    /// how many of its milliseconds.
    fn run(spread: &mut Spread, at: &mut (Instant, u64), ms: u64, rate: impl Fn(usize) -> u64) -> Vec<usize> {
        let mut used = vec![0; 17];
        for _ in 0..ms {
            used[spread.in_use] += 1;
            at.0 += Duration::from_millis(1);
            at.1 += rate(spread.in_use) / 1000;
            spread.look(at.1, at.0);
        }
        used
    }

    #[test]
    fn a_load_that_one_reactor_serves_stays_there() {
        let (mut spread, mut at) = (Spread::new(4), (Instant::now(), 0));
        let used = run(&mut spread, &mut at, 20_000, |_| 100_000);
        assert!(used[1] > 18_500, "{used:?}");
        let used = run(&mut spread, &mut at, 20_000, |n| if n == 1 { 100_000 } else { 115_000 });
        assert!(used[1] > 19_000, "a little more is no reason: {used:?}");
    }

    #[test]
    fn reactors_are_taken_as_long_as_they_bring_something() {
        let (mut spread, mut at) = (Spread::new(16), (Instant::now(), 0));
        run(&mut spread, &mut at, 2_000, |n| 100_000 * n.min(8) as u64);
        let used = run(&mut spread, &mut at, 20_000, |n| 100_000 * n.min(8) as u64);
        assert!(used[8] > 17_000, "{used:?}");
    }

    #[test]
    fn a_number_that_is_no_power_of_two_is_reached_and_left() {
        let (mut spread, mut at) = (Spread::new(3), (Instant::now(), 0));
        run(&mut spread, &mut at, 2_000, |n| 100_000 * n as u64);
        assert_eq!(spread.trial.map_or(spread.in_use, |trial| trial.from), 3);
        run(&mut spread, &mut at, 30_000, |_| 100_000);
        assert_eq!(spread.trial.map_or(spread.in_use, |trial| trial.from), 1);
    }

    #[test]
    fn another_load_is_tried_anew() {
        let (mut spread, mut at) = (Spread::new(2), (Instant::now(), 0));
        run(&mut spread, &mut at, 60_000, |_| 50_000);
        let used = run(&mut spread, &mut at, 3_000, |n| 100_000 * n as u64);
        assert!(used[2] > 2_000, "{used:?}");
        let used = run(&mut spread, &mut at, 3_000, |n| 60_000 / n as u64);
        assert!(used[1] > 2_000, "{used:?}");
    }

    #[test]
    fn trials_that_bring_nothing_become_rare() {
        let (mut spread, mut at) = (Spread::new(2), (Instant::now(), 0));
        run(&mut spread, &mut at, 60_000, |n| 100_000 / n as u64);
        let used = run(&mut spread, &mut at, 60_000, |n| 100_000 / n as u64);
        assert!(used[2] > 0 && used[2] < 600, "{used:?}");
    }

    #[test]
    fn a_trial_in_which_clients_pause_is_taken_back() {
        let (mut spread, mut at) = (Spread::new(2), (Instant::now(), 0));
        while spread.look(at.1, at.0) != Some(2) {
            at = (at.0 + Duration::from_millis(1), at.1 + 100);
        }
        at.0 += GAP + SETTLING;
        assert_eq!(spread.look(at.1, at.0), Some(1));
        assert!(spread.trial.is_none());
    }

    /// Goes on until a stretch is over; the number that was in use in it.
    fn stretch(spread: &mut Spread, at: &mut (Instant, u64), rate: impl Fn(usize) -> u64) -> usize {
        let (in_use, since) = (spread.in_use, spread.since);
        while spread.since == since {
            at.0 += Duration::from_millis(1);
            at.1 += rate(in_use) / 1000;
            spread.look(at.1, at.0);
        }
        in_use
    }

    fn begin(most: usize) -> (Spread, (Instant, u64)) {
        let (mut spread, at) = (Spread::new(most), (Instant::now(), 0));
        assert_eq!(spread.look(at.1, at.0), None);
        (spread, at)
    }

    /// SPREAD-2.
    #[test]
    fn a_trial_is_kept_once_it_was_won_in_a_row_each_time_beside_a_new_stretch() {
        let (mut spread, mut at) = begin(2);
        let wins = |n: usize| 100_000 * n as u64;
        let used: Vec<usize> = (0..7).map(|_| stretch(&mut spread, &mut at, wins)).collect();
        assert_eq!(used, [1, 2, 1, 2, 1, 2, 2]);

        let (mut spread, mut at) = begin(2);
        let chance = [1, 2, 1, 2, 1, 1, 1, 1, 2, 1, 2, 1, 2, 2];
        let used: Vec<usize> =
            chance.iter().map(|&rate| stretch(&mut spread, &mut at, |_| 100_000 * rate)).collect();
        assert_eq!(
            used,
            [1, 2, 1, 2, 1, 2, 1, 1, 2, 1, 2, 1, 2, 2],
            "the third was lost, then three were won"
        );
    }

    /// SPREAD-3.
    #[test]
    fn after_a_lost_trial_the_other_direction_is_tried() {
        let (mut spread, mut at) = begin(4);
        let best_is_two = |n: usize| if n == 2 { 200_000 } else { 100_000 };
        let tried: Vec<usize> = (0..400)
            .map(|_| stretch(&mut spread, &mut at, best_is_two))
            .skip(6)
            .filter(|&n| n != 2)
            .collect();
        assert!(tried.len() > 6, "{tried:?}");
        assert!(tried.iter().zip(&tried[1..]).all(|(a, b)| a != b), "{tried:?}");
    }

    /// SPREAD-4.
    #[test]
    fn pauses_grow_to_a_bound_and_are_short_again_after_a_win() {
        let (mut spread, mut at) = begin(2);
        let used: Vec<usize> = (0..3000).map(|_| stretch(&mut spread, &mut at, |_| 100_000)).collect();
        let trials = |used: &[usize]| used.iter().filter(|&&n| n == 2).count();
        assert!((7..=8).contains(&trials(&used[1000..])), "{}", trials(&used[1000..]));
        // Not so much more that the load passes for another one.
        let better = |n: usize| if n == 2 { 130_000 } else { 100_000 };
        let mut used = Vec::new();
        while !used.ends_with(&[2, 2]) {
            used.push(stretch(&mut spread, &mut at, better));
            assert!(used.len() < 300, "it is never kept");
        }
        assert_eq!(stretch(&mut spread, &mut at, better), 1, "the next trial");
    }

    /// SPREAD-5.
    #[test]
    fn what_is_served_while_connections_move_counts_for_no_stretch() {
        let (mut spread, mut at) = begin(2);
        for _ in 0..20 {
            stretch(&mut spread, &mut at, |_| 100_000);
            // Those that had waited while they were moved come all at once.
            at = (at.0 + SETTLING, at.1 + if spread.trial.is_some() { 5000 } else { 0 });
            spread.look(at.1, at.0);
        }
        assert_eq!((spread.wins, spread.trial.map_or(spread.in_use, |trial| trial.from)), (0, 1));
    }

    #[test]
    fn where_there_is_one_nothing_is_tried() {
        let (mut spread, mut at) = (Spread::new(1), (Instant::now(), 0));
        let used = run(&mut spread, &mut at, 5_000, |_| 100_000);
        assert_eq!(used[1], 5_000);
    }
}
