//! The number of streams in use follows the device by itself.
//!
//! More streams write more at a time, but a commit waits for all of them. With `n` greedy streams whose
//! flushes take `t` a commit waits for the longest rest of `n` flushes under way, on average `n / (n + 1)` of
//! `t`, and then for its own: for `(1 + n / (n + 1)) t` in all. How `t` changes with `n` is the device's
//! matter: half of it where flushes are parallel and large, thrice where they slow each other down; and
//! processors that have other things to do add to it. So it is tried, and what counts is how long records
//! waited to be durable. That is not timed record by record: by Little's law it is the number of records that
//! wait, looked at every now and then, over the rate at which they become durable. So the few that wait very
//! long count as they should.
//!
//! | state | leaves it when |
//! |---|---|
//! | settled with `n` | the pause is over and groups are large enough: tries `2 n`, or `n / 2`, in turns |
//! | trying | there were enough looks: keeps more if they were plainly better three times, each time beside fewer, and fewer unless they are worse |
//!
//! More streams cannot bring anything where a stream has nothing to write part of the time: then processors,
//! or clients that are yet to come back, are what commits wait for. So more are tried only while the streams
//! in use are **busy** writing. That spares fast devices the trials.
//!
//! A flush has two ends that a thread waits for: the device's, and that of its wait for a processor when the
//! device has woken it. Where many more threads run than there are processors the second takes longer than
//! the first, and two streams have two threads that wait. How long it is the policy's own thread sees by
//! itself: it sleeps for a set time between its looks, and what it wakes up **late**, a flush's thread did
//! too. So much of each flush does not count as busy. And where the process leaves next to nothing of its
//! processors **idle**, a commit costs what it computes: two streams have more threads to wake, and smaller
//! writes, for the same records.
//!
//! A trial costs all who commit meanwhile where more streams are worse. Nothing is known of the device at
//! first but, perhaps, the number that an earlier run has settled for. So more are tried late, and not often:
//! the [doubtful](StreamPolicy::doubting) pause. And in a long pause there are fewer looks, each of
//! which wakes a processor.
//!
//! A trial that brought nothing doubles the pause before the next; when records come to wait much longer, or
//! shorter, than they did (the device has drifted, or the load), the pause is an eighth of what it was. Where
//! other programs and the host's other guests come and go, costs differ by half from one stretch to the next:
//! one trial in three was won by chance, and more streams kept for nothing.
//!
//! The flush policy needs no adapting: greedy means that a lone committer's record is written at once, and
//! that many committers' records share a write as long as the write before it.

mod seen;

use std::time::Duration;

use azekura_base::drift::Known;

pub(crate) use seen::{Seen, Time};

/// Between two looks; and in a pause of so many judgements or more.
const PERIOD: Duration = Duration::from_millis(2);
const LAZY_PERIOD: Duration = Duration::from_millis(8);
const LAZY_PAUSE: u32 = 8;
/// Fewer looks than this say nothing.
const FEWEST_LOOKS: u64 = 12;
/// Records that a flush must hold on average before more streams are tried: fewer are as well off together.
const LEAST_GROUP: f64 = 64.0;
/// Part of the time that the streams in use must be busy on average before more are tried.
const BUSY: f64 = 0.5;
/// Processors that the process must leave idle on average before more streams are tried.
const IDLE: f64 = 0.2;
/// What a trial of more must bring, and what one of fewer may cost: fewer streams write fewer and fuller
/// chunks, and wake fewer threads.
const BETTER: f64 = 0.92;
const NO_WORSE: f64 = 1.03;
/// Trials of more in a row that must be won.
const WINS: u32 = 3;
/// A trial that costs this much more is over after so few looks.
const WORSE: f64 = 1.25;
const FEWEST_LOOKS_AT_WORSE: u64 = 4;
/// So many costs in a row that are far from the known are a drift.
const DRIFT_TIMES: u32 = 3;
/// Times that so many looks were had between two trials, least and most; and after a trial that was won.
const PAUSES: (u32, u32) = (4, 64);
const AFTER_WIN: u32 = 1;
/// The least where something speaks against more.
const DOUBTFUL_PAUSE: u32 = LAZY_PAUSE;

/// Where it came from, and what a commit cost there.
#[derive(Clone, Copy, Debug)]
struct Trial {
    from: usize,
    cost: f64,
}

/// Decides how many streams to use.
#[derive(Debug)]
pub(crate) struct StreamPolicy {
    in_use: usize,
    most: usize,
    trial: Option<Trial>,
    /// Cost at the number settled for, as it was when it settled.
    known: Known,
    /// Not judged yet.
    seen: Seen,
    pause: u32,
    left: u32,
    /// The least pause after a trial that was lost, or when costs have drifted.
    least_pause: u32,
    /// The next trial is of more.
    upwards: bool,
    /// Trials of more that were won in a row.
    wins: u32,
}

impl StreamPolicy {
    /// With so many in use, of so many.
    pub(crate) fn new(in_use: usize, most: usize) -> Self {
        let (pause, _) = PAUSES;
        Self {
            in_use,
            most,
            trial: None,
            known: Known::new(DRIFT_TIMES, 0.0),
            seen: Seen::default(),
            pause,
            left: pause,
            least_pause: pause,
            upwards: true,
            wins: 0,
        }
    }

    /// The same where something speaks for the number in use already, so that others are tried late.
    pub(crate) fn doubting(self) -> Self {
        Self { pause: DOUBTFUL_PAUSE, left: DOUBTFUL_PAUSE, least_pause: DOUBTFUL_PAUSE, ..self }
    }

    /// How long to wait before the next look.
    pub(crate) const fn period(&self) -> Duration {
        if self.trial.is_none() && self.pause >= LAZY_PAUSE { LAZY_PERIOD } else { PERIOD }
    }

    /// Tells what was seen since the last look; answers with the number to use from now on, if it is another.
    pub(crate) fn look(&mut self, seen: Seen) -> Option<usize> {
        self.seen = self.seen.plus(seen);
        if self.seen.looks < FEWEST_LOOKS && !self.is_plainly_worse() {
            return None;
        }
        let seen = std::mem::take(&mut self.seen);
        self.left = self.left.saturating_sub(1);
        let cost = seen.cost();
        match self.trial.take() {
            Some(trial) => self.judge(trial, cost),
            None => self.consider(seen, cost),
        }
    }

    /// The caller could not change the number, or something else was in the way: nothing was tried.
    pub(crate) fn stayed(&mut self, in_use: usize) {
        self.in_use = in_use;
        self.trial = None;
        self.wins = 0;
        self.rest_longer();
    }

    fn is_plainly_worse(&self) -> bool {
        let worse = self.trial.is_some_and(|trial| self.seen.cost() > WORSE * trial.cost);
        worse && self.seen.looks >= FEWEST_LOOKS_AT_WORSE
    }

    fn judge(&mut self, trial: Trial, cost: f64) -> Option<usize> {
        let is_of_more = self.in_use > trial.from;
        if cost < trial.cost * if is_of_more { BETTER } else { NO_WORSE } {
            self.wins += 1;
            self.rest_shortly(); // and on in the same direction
            if !is_of_more || self.wins == WINS {
                self.wins = 0;
                self.known.set(cost);
                return None;
            }
        } else {
            self.wins = 0;
            self.upwards = !self.upwards;
            self.rest_longer();
        }
        self.known.set(trial.cost);
        self.in_use = trial.from;
        Some(trial.from)
    }

    fn consider(&mut self, seen: Seen, cost: f64) -> Option<usize> {
        if self.known.note(cost) {
            self.pause = (self.pause / 8).max(self.least_pause);
            self.left = self.left.min(self.pause);
        }
        if self.left > 0 {
            return None;
        }
        let next = self.candidate(seen)?;
        self.trial = Some(Trial { from: self.in_use, cost });
        self.in_use = next;
        Some(next)
    }

    /// The number to try, if there is one.
    fn candidate(&mut self, seen: Seen) -> Option<usize> {
        let would_pay = seen.group() >= LEAST_GROUP && seen.busy(self.in_use) >= BUSY && seen.idle() >= IDLE;
        let up = (self.in_use < self.most && would_pay).then(|| (2 * self.in_use).min(self.most));
        let down = (self.in_use > 1).then_some(self.in_use / 2);
        if self.upwards { up.or(down) } else { down.or(up) }
    }

    fn rest_shortly(&mut self) {
        (self.pause, self.left) = (AFTER_WIN, AFTER_WIN);
    }

    fn rest_longer(&mut self) {
        self.pause = (2 * self.pause).clamp(self.least_pause, PAUSES.1);
        self.left = self.pause;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use azekura_io::device::{DeviceModel, DeviceState};

    use super::*;

    /// A log in virtual time: committers that wait, `streams` that flush greedily. What it did in 10 ms;
    /// records wait as the head says.
    fn simulate(
        device: &mut DeviceState,
        now: &mut u64,
        streams: usize,
        committers: u64,
        bytes: u64,
    ) -> Seen {
        let end = *now + 10_000_000;
        let mut seen = Seen::default();
        // Committers that wait for each stream's next flush, and when it may begin.
        let mut waiting = vec![committers / streams as u64; streams];
        let mut free = vec![*now; streams];
        while *now < end {
            let Some(stream) = (0..streams).min_by_key(|&s| free[s]) else { break };
            *now = free[stream];
            let records = std::mem::take(&mut waiting[stream]).max(1);
            let written = device.write(*now, records * bytes);
            let done = device.flush(written);
            let others = streams as f64 / (streams as f64 + 1.0);
            let wait_ns = ((1.0 + others) * (done - *now) as f64) as u64;
            let waiting_ns = records * wait_ns;
            let looks = FEWEST_LOOKS;
            seen = seen.plus(Seen {
                flushes: 1,
                records,
                busy_ns: done - *now,
                looks,
                waiting_ns,
                ..Seen::default()
            });
            // They come again while others are written.
            waiting[stream] = records;
            free[stream] = done + 2_000;
        }
        Seen { looked_ns: 10_000_000, idle_ns: 10_000_000, ..seen }
    }

    /// A log with one stream that has something to write all the time.
    const BUSY_LOG: Seen = Seen {
        flushes: 100,
        records: 10_000,
        busy_ns: 10_000_000,
        looks: 100,
        looked_ns: 10_000_000,
        waiting_ns: 10_000_000,
        late_ns: 0,
        idle_ns: 10_000_000,
    };

    fn run(
        policy: &mut StreamPolicy,
        device: &mut DeviceState,
        now: &mut u64,
        looks: usize,
        bytes: u64,
    ) -> Vec<usize> {
        let mut used = Vec::new();
        for _ in 0..looks {
            let seen = simulate(device, now, policy.in_use, 256, bytes);
            policy.look(seen);
            used.push(policy.in_use);
        }
        used
    }

    /// The number that was used most in the last looks.
    fn usual(used: &[usize]) -> usize {
        let tail = &used[used.len() - 200..];
        (1..=16).max_by_key(|n| tail.iter().filter(|&u| u == n).count()).unwrap_or(0)
    }

    #[test]
    fn one_stream_is_used_where_flushes_slow_each_other_down() {
        let mut device = DeviceState::new(DeviceModel::cloud());
        let used = run(&mut StreamPolicy::new(4, 8), &mut device, &mut 0, 600, 100);
        assert_eq!(usual(&used), 1, "{used:?}");
    }

    #[test]
    fn several_are_used_where_large_flushes_are_parallel() {
        // Channels of 200 MiB/s each, 16 at once: one stream gets a sixteenth.
        let slow =
            DeviceModel { channel_bytes_per_s: 200 << 20, bytes_per_s: 3200 << 20, ..DeviceModel::plp() };
        let mut device = DeviceState::new(DeviceModel { channels: 16, ..slow });
        let used = run(&mut StreamPolicy::new(1, 8), &mut device, &mut 0, 600, 2000);
        assert_eq!(usual(&used), 8, "{used:?}");
    }

    #[test]
    fn a_device_that_drifts_is_tried_anew() {
        let parallel = DeviceModel {
            channels: 16,
            channel_bytes_per_s: 200 << 20,
            bytes_per_s: 3200 << 20,
            ..DeviceModel::plp()
        };
        let (mut device, mut now) = (DeviceState::new(parallel), 0);
        let mut policy = StreamPolicy::new(1, 8);
        assert_eq!(usual(&run(&mut policy, &mut device, &mut now, 600, 2000)), 8);
        device.change(DeviceModel::ssd());
        let used = run(&mut policy, &mut device, &mut now, 600, 2000);
        assert_eq!(usual(&used), 1, "{used:?}");
        device.change(parallel);
        assert_eq!(usual(&run(&mut policy, &mut device, &mut now, 600, 2000)), 8);
    }

    #[test]
    fn trials_become_rare_when_they_bring_nothing() {
        let mut device = DeviceState::new(DeviceModel::cloud());
        let mut policy = StreamPolicy::new(1, 8);
        let mut trials = 0;
        let mut now = 0;
        for _ in 0..2000 {
            let seen = simulate(&mut device, &mut now, policy.in_use, 256, 100);
            trials += usize::from(policy.look(seen).is_some());
        }
        let (_, longest) = PAUSES;
        assert!(trials > 2 && trials < 2 * (2000 / longest as usize + 5), "{trials} changes in 2000 looks");
    }

    #[test]
    fn a_lone_committer_is_left_alone_with_one_stream() {
        let mut policy = StreamPolicy::new(1, 8);
        for _ in 0..1000 {
            assert_eq!(policy.look(Seen { records: 100, ..BUSY_LOG }), None);
        }
        assert_eq!(policy.look(Seen::default()), None, "and a quiet log too");
    }

    #[test]
    fn no_more_streams_are_tried_where_one_often_has_nothing_to_write() {
        let mut policy = StreamPolicy::new(1, 8);
        for _ in 0..1000 {
            assert_eq!(policy.look(Seen { busy_ns: 4_000_000, ..BUSY_LOG }), None);
        }
        assert_eq!((0..1000).find_map(|_| policy.look(BUSY_LOG)), Some(2), "but once it is busy");
    }

    #[test]
    fn no_more_streams_are_tried_where_flushes_wait_for_processors() {
        // Each look comes half as late as a flush takes, and then as late.
        for (late_us, tries) in [(49, true), (51, false), (100, false)] {
            let seen = Seen { late_ns: BUSY_LOG.looks * late_us * 1_000, ..BUSY_LOG };
            let mut policy = StreamPolicy::new(1, 8);
            let tried = (0..1000).find_map(|_| policy.look(seen));
            assert_eq!(tried, tries.then_some(2), "{late_us} µs late");
        }
    }

    #[test]
    fn no_more_streams_are_tried_where_no_processor_is_left_over() {
        // Of two processors the process leaves so much to others.
        for (idle, tries) in [(2.0, true), (0.21, true), (0.19, false), (0.0, false)] {
            let passed = Duration::from_millis(100);
            let time = Time { asked: passed, passed, processors: passed.mul_f64(2.0 - idle) };
            let Seen { idle_ns, looked_ns, .. } = Seen { records: 1, ..Seen::default() }.waited(1, time, 2);
            let idle_ns = (BUSY_LOG.looked_ns as f64 * idle_ns as f64 / looked_ns as f64) as u64;
            let mut policy = StreamPolicy::new(1, 8);
            let tried = (0..1000).find_map(|_| policy.look(Seen { idle_ns, ..BUSY_LOG }));
            assert_eq!(tried, tries.then_some(2), "{idle} of two processors");
        }
    }

    #[test]
    fn of_two_numbers_that_are_alike_the_smaller_is_kept() {
        for (cost, kept) in [(0.5, 2), (1.0, 2), (1.02, 2), (1.04, 4), (2.0, 4)] {
            let mut policy = StreamPolicy::new(4, 4);
            let quiet = Seen { busy_ns: 0, ..BUSY_LOG };
            assert_eq!((0..1000).find_map(|_| policy.look(quiet)), Some(2), "there are no more to try");
            let waiting_ns = (BUSY_LOG.waiting_ns as f64 * cost) as u64;
            policy.look(Seen { waiting_ns, ..quiet });
            assert_eq!(policy.in_use, kept, "at {cost} of the cost");
        }
    }

    #[test]
    fn more_are_kept_when_three_trials_in_a_row_were_won() {
        for (costs, kept) in
            [([0.5, 0.5, 0.5], 2), ([0.5, 0.5, 1.0], 1), ([0.5, 1.0, 0.5], 1), ([1.0, 0.5, 0.5], 1)]
        {
            let (mut policy, mut trials) = (StreamPolicy::new(1, 2), costs.iter());
            while !trials.as_slice().is_empty() {
                let cost = if policy.trial.is_some() { trials.next().copied() } else { None };
                let waiting_ns = (BUSY_LOG.waiting_ns as f64 * cost.unwrap_or(1.0)) as u64;
                policy.look(Seen { waiting_ns, ..BUSY_LOG });
            }
            assert_eq!(policy.in_use, kept, "{costs:?}");
        }
    }

    /// Looks, each enough for a judgement, before each of the first trials of more, all of which are lost.
    fn pauses_before_lost_trials(mut policy: StreamPolicy, trials: usize) -> Vec<u32> {
        let mut pauses = vec![0; trials];
        for pause in &mut pauses {
            while policy.trial.is_none() {
                policy.look(BUSY_LOG);
                *pause += 1;
            }
            policy.look(Seen { waiting_ns: 2 * BUSY_LOG.waiting_ns, ..BUSY_LOG });
        }
        pauses
    }

    #[test]
    fn where_something_speaks_against_more_they_are_tried_late() {
        assert_eq!(pauses_before_lost_trials(StreamPolicy::new(1, 2), 6), [4, 8, 16, 32, 64, 64]);
        assert_eq!(pauses_before_lost_trials(StreamPolicy::new(1, 2).doubting(), 4), [8, 16, 32, 64]);
    }

    #[test]
    fn in_a_long_pause_looks_are_rare_and_in_a_trial_they_are_not() {
        let mut policy = StreamPolicy::new(1, 2).doubting();
        assert_eq!(policy.period(), LAZY_PERIOD);
        assert_eq!((0..100).find_map(|_| policy.look(BUSY_LOG)), Some(2));
        assert_eq!(policy.period(), PERIOD, "on trial");
        assert_eq!(StreamPolicy::new(1, 2).period(), PERIOD, "where nothing speaks against more");
    }

    #[test]
    fn neither_a_trial_won_by_chance_nor_a_drift_brings_the_next_sooner_than_the_first() {
        for (first, mut policy) in [(4, StreamPolicy::new(1, 2)), (8, StreamPolicy::new(1, 2).doubting())] {
            let mut tried = (1..).find(|_| policy.look(BUSY_LOG).is_some());
            assert_eq!(tried, Some(first));
            policy.look(Seen { waiting_ns: BUSY_LOG.waiting_ns / 2, ..BUSY_LOG });
            assert_eq!(
                (policy.in_use, policy.look(BUSY_LOG)),
                (1, Some(2)),
                "won once, so once more at once"
            );
            policy.look(Seen { waiting_ns: 2 * BUSY_LOG.waiting_ns, ..BUSY_LOG });
            // Everything takes twice as long from now on.
            let slow = Seen { waiting_ns: 2 * BUSY_LOG.waiting_ns, ..BUSY_LOG };
            tried = (1..).find(|_| policy.look(slow).is_some());
            assert!(tried >= Some(first), "after {tried:?} of {first}");
        }
    }

    #[test]
    fn a_change_that_could_not_be_made_is_not_judged() {
        let mut policy = StreamPolicy::new(1, 4);
        let tried = (0..100).find_map(|_| policy.look(BUSY_LOG));
        assert_eq!(tried, Some(2));
        policy.stayed(1);
        assert!(policy.trial.is_none() && policy.in_use == 1);
    }
}
