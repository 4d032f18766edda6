//! Calibration: the fixed cost of a fault, which is the time of a fault without the time of its handler. It
//! is measured once, before the program uses the region.
//!
//! The pager clears the reference bit of the first page. Another thread then accesses the page and measures
//! how long it waits. This is repeated several times. A simple policy replaces the region's policy during the
//! measurement. The policy and the counters are restored afterward.

use super::open::Open;
use super::{Core, Meter};
use crate::replace::{Replacement, Shape, Simple};
use crate::stats::FarStats;
use std::time::Duration;

/// State that the calibration must restore.
pub(in crate::pager) struct Before {
    policy: Option<Box<dyn Replacement>>,
    stats: FarStats,
    open: Open,
}

/// One measured access to the page after its bit was cleared. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pager) struct Lap {
    /// Time for clearing the bit.
    cleared_ns: u64,
    /// Time of the fault handler.
    answer_ns: u64,
    /// Time that the accessing thread waited.
    whole_ns: u64,
}

impl Core {
    pub(in crate::pager) fn begin_calibration(&mut self) -> Before {
        #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
        let shape = Shape { pages: self.pages.len() as u32, frames: self.limit as u32 };
        let policy = self.policy.replace(Box::new(Simple::new(shape)));
        Before { policy, stats: self.stats, open: std::mem::replace(&mut self.open, Open::none()) }
    }

    /// Clears the bit of the first page, which is local.
    pub(in crate::pager) fn begin_lap(&mut self) -> Lap {
        let before = self.meter.cleared_ns();
        self.arm(0);
        Lap { cleared_ns: self.meter.cleared_ns() - before, answer_ns: self.meter.set_ns(), whole_ns: 0 }
    }

    /// Ends a measurement: the page was accessed, and the access took `whole`.
    pub(in crate::pager) fn end_lap(&mut self, lap: Lap, whole: Duration) -> Lap {
        let whole_ns = u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX);
        Lap { answer_ns: self.meter.set_ns() - lap.answer_ns, whole_ns, ..lap }
    }

    pub(in crate::pager) fn end_calibration(&mut self, before: Before, laps: &mut [Lap]) {
        self.discard(0, 1);
        self.policy = before.policy;
        self.stats = before.stats;
        self.open = before.open;
        self.meter = meter_of(laps);
    }
}

/// Computes the costs from medians, because other work may have delayed some of the measurements.
fn meter_of(laps: &mut [Lap]) -> Meter {
    let mut median = |of: fn(&Lap) -> u64| {
        laps.sort_by_key(of);
        laps.get(laps.len() / 2).map_or(0, of) as f64
    };
    let way = median(|lap| lap.whole_ns.saturating_sub(lap.answer_ns));
    Meter::calibrated(way, median(|lap| lap.cleared_ns) + median(|lap| lap.whole_ns.max(lap.answer_ns)))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_disturbed_lap_does_not_count() {
        let lap = |cleared_ns, answer_ns, whole_ns| Lap { cleared_ns, answer_ns, whole_ns };
        let mut laps =
            [lap(5, 10, 40), lap(900_000, 10, 45), lap(6, 800_000, 900_000), lap(5, 12, 41), lap(7, 10, 42)];
        let spent = meter_of(&mut laps).spent();
        assert_eq!(spent.bit_ns, 6.0 + 42.0);
        let mut meter = meter_of(&mut laps);
        let took = meter.set(std::time::Instant::now());
        assert_eq!(meter.spent().bits_ns, took as f64 + 32.0);
    }
}
