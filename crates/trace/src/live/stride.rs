//! Sampling of executions: long operations are timed in every execution, short ones in one random execution
//! per *stride*.
//!
//! Two clock reads and an event are negligible for an operation of a millisecond, but they are a tenth of an
//! operation of 200 ns. So each thread keeps the mean duration of each operation and times one execution per
//! stride. The stride is chosen so that timing takes less than a sixth of a percent of the operation's time.
//! The position within the stride is random, so it is independent of any period in the program. The timed
//! execution represents the whole stride.
//!
//! | executions of one thread | or of all threads | largest stride |
//! |---|---|---|
//! | the first 128 | the first 1,024 | 1 |
//! | up to 1,024 | up to 8,192 | 8 |
//! | up to 8,192 | up to 65,536 | 64 |
//! | further | further | the configured one (256) |
//!
//! The lower of the two rows applies, and never more than the configured stride. The first eight executions
//! of each thread are all timed, to measure the duration.
//!
//! Contended waits are recorded in every execution: their sums are exact. The timed executions provide the
//! time *between* waits.

use super::sample_counts::{ACCOUNTS, SampleCounts};
use crate::event::SAMPLED;
use std::sync::Arc;

/// An operation with at least this mean duration is always timed; one with half of it, every second time.
pub(super) const LONG_NS: u64 = 40_000;

/// Number of first executions of which a thread times each.
const FIRST: u32 = 8;
/// Rows of the table: the number of one thread's executions up to which the row applies, and the logarithm of
/// its stride. For all threads together, the number is [`ALL`] times as large.
const ROWS: [(u32, u32); 3] = [(128, 0), (1_024, 3), (8_192, 6)];
const ALL: u32 = 8;

/// One thread's accounts. If two operations share an account ([`ACCOUNTS`]), a stride covers both, and a
/// sampled execution represents executions of both.
#[derive(Debug)]
pub(super) struct Strides {
    /// By account: number of executions up to and including the next sampled one. Kept separately from the
    /// accounts, because most executions access only this number.
    until: [u32; ACCOUNTS],
    accounts: Box<[Account; ACCOUNTS]>,
    /// The logarithm of the longest stride.
    most_log: u32,
    /// Ticks of [`LONG_NS`].
    long: u64,
    random: u64,
    of_all: Arc<SampleCounts>,
}

#[derive(Debug, Clone, Copy)]
struct Account {
    /// Number of executions of the current stride after the next sampled one.
    rest: u32,
    /// The logarithm of that stride.
    log: u32,
    /// Number of executions up to the end of that stride.
    begun: u32,
    /// Moving average of an execution's ticks, times 16; 0 before the first execution.
    usual: u64,
}

impl Strides {
    /// Returns strides of at most `most` executions (a power of two); `long` is [`LONG_NS`] in ticks.
    pub(super) fn new(most: u32, long: u64, seed: u64, of_all: Arc<SampleCounts>) -> Self {
        let account = Account { rest: 0, log: 0, begun: 1, usual: 0 };
        let most_log = most.max(1).ilog2().min(super::sampler::MOST_LOG);
        Self {
            until: [1; ACCOUNTS],
            accounts: Box::new([account; ACCOUNTS]),
            most_log,
            long: long.max(1),
            random: seed | 1,
            of_all,
        }
    }

    /// Counts an execution of the operation if it is not timed, and returns `true`. Otherwise the caller must
    /// call [`Strides::is_drawn`].
    #[inline]
    pub(super) fn passes_over(&mut self, operation: u16) -> bool {
        let until = &mut self.until[usize::from(operation) % ACCOUNTS];
        if *until > 1 {
            *until -= 1;
            return true;
        }
        false
    }

    /// Counts an execution of the operation. Returns `true` if it is timed.
    #[inline]
    pub(super) fn is_drawn(&mut self, operation: u16) -> bool {
        let until = &mut self.until[usize::from(operation) % ACCOUNTS];
        *until -= 1;
        *until == 0
    }

    /// Returns the flags of the execution that was just sampled, and chooses the next stride.
    pub(super) fn draw(&mut self, operation: u16) -> u8 {
        let random = self.random();
        let account = &mut self.accounts[usize::from(operation) % ACCOUNTS];
        let flags = if account.log == 0 { 0 } else { SAMPLED | (account.log << 4) as u8 };
        let of_all = &self.of_all.executions[usize::from(operation) % ACCOUNTS];
        let asked = match account.begun.max(of_all.get() / ALL) {
            _ if account.begun < FIRST => 0,
            begun => ROWS.iter().find(|row| begun < row.0).map_or(self.most_log, |row| row.1),
        };
        account.log = account.fitting(self.long).min(asked).min(self.most_log);
        let stride = 1 << account.log;
        let place = random as u32 & (stride - 1);
        self.until[usize::from(operation) % ACCOUNTS] = account.rest + place + 1;
        account.rest = stride - 1 - place;
        account.begun = account.begun.saturating_add(stride);
        of_all.add(stride, ROWS[2].0 * ALL);
        flags
    }

    /// Adds a timed execution of `ticks`.
    #[inline]
    pub(super) fn took(&mut self, operation: u16, ticks: u64) {
        // An occasional long wait does not make the operation a long one.
        let ticks = ticks.min(2 * self.long);
        let account = &mut self.accounts[usize::from(operation) % ACCOUNTS];
        account.usual =
            if account.usual == 0 { ticks << 4 } else { account.usual - (account.usual >> 4) + ticks };
    }

    /// Returns the next number of a xorshift generator.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random >> 20
    }
}

impl Account {
    /// Returns the logarithm of the stride for the mean duration.
    fn fitting(&self, long: u64) -> u32 {
        let usual = (self.usual >> 4).max(1);
        (long / usual).max(1).next_power_of_two().ilog2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: u64 = 26_000;

    /// Returns the number of samples and the executions that they represent, for executions of `ticks` each.
    fn drawn(strides: &mut Strides, operation: u16, executions: u32, ticks: u64) -> (u32, u32) {
        let (mut drawn, mut stand_for) = (0, 0);
        for _ in 0..executions {
            if strides.is_drawn(operation) {
                let flags = strides.draw(operation);
                strides.took(operation, ticks);
                drawn += 1;
                stand_for += 1 << (flags >> 4);
            }
        }
        (drawn, stand_for)
    }

    #[test]
    fn a_long_operation_is_timed_always_and_a_short_one_stands_for_all() {
        let mut strides = Strides::new(64, LONG, 7, Arc::default());
        assert_eq!(drawn(&mut strides, 1, 10_000, LONG), (10_000, 10_000));
        let (few, all) = drawn(&mut strides, 2, 100_000, 300);
        assert!((1_500..2_100).contains(&few), "128, 112, and one of 64: {few}");
        assert!(all.abs_diff(100_000) < 128, "whole strides, but for the last: {all}");
        let (half, all) = drawn(&mut strides, 3, 10_000, LONG / 2);
        assert!((4_900..5_200).contains(&half) && all.abs_diff(10_000) < 4, "{half}, {all}");
    }

    #[test]
    fn with_many_threads_each_times_fewer_of_its_first_and_they_stand_for_all() {
        let of_all = Arc::<SampleCounts>::default();
        let mut totals = (0, 0);
        for seed in 0..32 {
            let mut strides = Strides::new(64, LONG, seed + 1, Arc::clone(&of_all));
            let (few, all) = drawn(&mut strides, 2, 4_096, 300);
            assert!(few >= FIRST, "{few}");
            totals = (totals.0 + few, totals.1 + all);
        }
        // A single thread times 290 of as many executions; 32 separate threads time 9,300.
        assert!((2_300..4_000).contains(&totals.0), "{totals:?}");
        assert!(totals.1.abs_diff(32 * 4_096) < 32 * 64, "{totals:?}");
    }

    #[test]
    fn asked_for_all_none_is_left_out() {
        let mut strides = Strides::new(1, LONG, 7, Arc::default());
        assert_eq!(drawn(&mut strides, 9, 5_000, 10), (5_000, 5_000));
    }

    /// Sampling is independent of a program's period: if every fourth execution is longer, all four are
    /// sampled equally often.
    #[test]
    fn sampling_is_not_correlated_with_the_program() {
        let mut strides = Strides::new(64, LONG, 11, Arc::default());
        let mut phases = [0_u32; 4];
        for i in 0..400_000_u32 {
            if strides.is_drawn(5) {
                strides.draw(5);
                strides.took(5, 100);
                phases[i as usize % 4] += u32::from(i > 2_000);
            }
        }
        // The expected number is 1,550 each.
        assert!(phases.iter().all(|p| (1_350..1_750).contains(p)), "{phases:?}");
    }

    #[test]
    fn two_operations_in_one_account_are_both_recorded() {
        let mut strides = Strides::new(64, LONG, 13, Arc::default());
        let mut drawn = [0_u32; 2];
        for i in 0..300_000_u32 {
            let which = usize::from(i % 3 == 0);
            let operation = 1 + 64 * which as u16;
            if strides.is_drawn(operation) {
                drawn[which] += 1 << (strides.draw(operation) >> 4);
                strides.took(operation, 200);
            }
        }
        assert!(drawn[0].abs_diff(200_000) < 12_000 && drawn[1].abs_diff(100_000) < 12_000, "{drawn:?}");
    }
}
