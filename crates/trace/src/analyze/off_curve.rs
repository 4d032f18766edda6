//! Preempted time of a thread up to any instant, from the kernel's records of context switches.

use crate::file::OffCpu;

/// Preempted time as a function of time; empty without the kernel's records.
#[derive(Debug, Default)]
pub(crate) struct OffCurve {
    /// (begin, end, preempted time before it), ns, in order of time.
    preempted: Vec<(u64, u64, u64)>,
}

impl OffCurve {
    pub(crate) fn new(off: &[OffCpu]) -> Self {
        let (mut preempted, mut before) = (Vec::new(), 0);
        let mut reached = 0;
        for off in off.iter().filter(|off| off.preempted) {
            // A faulty file may have overlapping intervals, which count once.
            let (begin, end) = (off.begin_ns.max(reached), off.end_ns);
            if begin < end {
                preempted.push((begin, end, before));
                before += end - begin;
                reached = end;
            }
        }
        Self { preempted }
    }

    /// Returns the preempted time between two instants.
    pub(crate) fn between(&self, begin: u64, end: u64) -> u64 {
        if self.preempted.is_empty() { 0 } else { self.until(end).saturating_sub(self.until(begin)) }
    }

    fn until(&self, ns: u64) -> u64 {
        let after = self.preempted.partition_point(|p| p.0 <= ns);
        let Some((begin, end, before)) = after.checked_sub(1).map(|i| self.preempted[i]) else { return 0 };
        before + ns.min(end) - begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preempted_time_between_two_instants() {
        let off = |begin_ns, end_ns, preempted| OffCpu { begin_ns, end_ns, preempted };
        let curve =
            OffCurve::new(&[off(10, 20, true), off(30, 50, false), off(60, 70, true), off(65, 80, true)]);
        assert_eq!((curve.between(0, 100), curve.between(15, 25), curve.between(20, 60)), (30, 5, 0));
        assert_eq!((curve.between(12, 12), curve.between(62, 64), curve.between(0, 5)), (0, 2, 0));
        assert_eq!(OffCurve::default().between(0, 100), 0);
    }
}
