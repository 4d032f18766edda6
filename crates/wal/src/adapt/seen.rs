//! What the log did between two looks at it, and what that says.

use std::time::Duration;

/// A sleep may take so much longer than asked though a processor is free: timers are rounded up, and a
/// sleeping processor wakes up.
const TIMER: Duration = Duration::from_micros(150);

/// What the log did between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Flushes that wrote something.
    pub(crate) flushes: u64,
    /// Their records.
    pub(crate) records: u64,
    /// Nanoseconds that all streams together were busy writing.
    pub(crate) busy_ns: u64,
    /// Looks at the records that waited, and the nanoseconds between them.
    pub(crate) looks: u64,
    pub(crate) looked_ns: u64,
    /// Nanoseconds that all records together waited: how many did, times the time between two looks.
    pub(crate) waiting_ns: u64,
    /// Nanoseconds that the looks came too late, all together.
    pub(crate) late_ns: u64,
    /// Nanoseconds that processors were not this process's, all of them together.
    pub(crate) idle_ns: u64,
}

/// A time between two looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Time {
    /// What it should have been.
    pub(crate) asked: Duration,
    pub(crate) passed: Duration,
    /// Processor time of the whole process in it.
    pub(crate) processors: Duration,
}

impl Seen {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            flushes: self.flushes + other.flushes,
            records: self.records + other.records,
            busy_ns: self.busy_ns + other.busy_ns,
            looks: self.looks + other.looks,
            looked_ns: self.looked_ns + other.looked_ns,
            waiting_ns: self.waiting_ns + other.waiting_ns,
            late_ns: self.late_ns + other.late_ns,
            idle_ns: self.idle_ns + other.idle_ns,
        }
    }

    /// With one look: so many records waited at the beginning of this time, on so many processors.
    pub(crate) fn waited(self, records: u64, time: Time, processors: u64) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let ns = nanoseconds(time.passed);
        let looks = u64::from(self.records > 0 || records > 0);
        let late = nanoseconds(time.passed.saturating_sub(time.asked + TIMER));
        let idle = ns.saturating_mul(processors).saturating_sub(nanoseconds(time.processors));
        Self {
            looks: self.looks + looks,
            looked_ns: self.looked_ns + looks * ns,
            waiting_ns: self.waiting_ns.saturating_add(ns.saturating_mul(records)),
            late_ns: self.late_ns.saturating_add(looks * late),
            idle_ns: self.idle_ns.saturating_add(looks * idle),
            ..self
        }
    }

    /// What came after `before`.
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            flushes: self.flushes.saturating_sub(before.flushes),
            records: self.records.saturating_sub(before.records),
            busy_ns: self.busy_ns.saturating_sub(before.busy_ns),
            looks: self.looks.saturating_sub(before.looks),
            looked_ns: self.looked_ns.saturating_sub(before.looked_ns),
            waiting_ns: self.waiting_ns.saturating_sub(before.waiting_ns),
            late_ns: self.late_ns.saturating_sub(before.late_ns),
            idle_ns: self.idle_ns.saturating_sub(before.idle_ns),
        }
    }

    /// Mean nanoseconds that a record waited.
    pub(super) fn cost(self) -> f64 {
        self.waiting_ns as f64 / self.records.max(1) as f64
    }

    /// Part of the time that each of so many streams wrote, on average, without the waits of its flushes for
    /// a processor.
    pub(super) fn busy(self, streams: usize) -> f64 {
        let late_ns = self.late_ns as f64 / self.looks.max(1) as f64;
        let busy_ns = (self.busy_ns as f64 - late_ns * self.flushes as f64).max(0.0);
        busy_ns / (self.looked_ns.max(1) as f64 * streams as f64)
    }

    /// Processors that were idle, on average, as far as this process goes.
    pub(super) fn idle(self) -> f64 {
        self.idle_ns as f64 / self.looked_ns.max(1) as f64
    }

    pub(super) fn group(self) -> f64 {
        self.records as f64 / self.flushes.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapt::{LAZY_PERIOD, PERIOD};

    #[test]
    fn a_look_is_late_by_what_it_takes_longer_than_a_timer_may() {
        let time = |passed| Time { asked: PERIOD, passed, processors: Duration::ZERO };
        let late = |passed| Seen { records: 1, ..Seen::default() }.waited(1, time(passed), 2).late_ns;
        assert_eq!((late(PERIOD / 2), late(PERIOD), late(PERIOD + TIMER)), (0, 0, 0));
        assert_eq!(late(PERIOD + TIMER + Duration::from_micros(700)), 700_000);
        let lazy = Time { asked: LAZY_PERIOD, ..time(LAZY_PERIOD) };
        assert_eq!(
            Seen { records: 1, ..Seen::default() }.waited(1, lazy, 2).late_ns,
            0,
            "it was to take so long"
        );
        let quiet = Seen::default().waited(0, time(Duration::from_secs(1)), 2);
        assert_eq!((quiet.looks, quiet.late_ns, quiet.idle_ns), (0, 0, 0), "nothing was logged meanwhile");
    }
}
