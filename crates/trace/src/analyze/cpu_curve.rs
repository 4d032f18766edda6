//! A thread's CPU time at every one of its events, from its anchors.
//!
//! A *segment* is a sequence of events without a switch between them. The thread runs during the whole
//! segment, so its CPU time is the clock plus a constant, which one anchor anywhere in the segment gives. If
//! the thread left its CPU before it took an anchor, the constant is interpolated: the CPU time between the
//! neighboring anchors that no segment explains is distributed evenly over the gaps between segments. A gap
//! has at most its own length of it, so that a short wait does not get the time of a long computation.

use super::nearby::partition_point_from;
use crate::event::{Event, EventKind};
use crate::file::Calibration;
use std::iter;

/// CPU time as a function of time; empty if CPU time was not recorded.
#[derive(Debug, Default)]
pub(crate) struct CpuCurve {
    /// (time, CPU time) of each event in nanoseconds; neither decreases. The last point of the previous
    /// window precedes them.
    points: Vec<(u64, u64)>,
    /// Number of points before that of the first event.
    shift: usize,
    /// Number of segments without an anchor.
    pub(crate) interpolated: u64,
}

/// Events `first..=last` of one segment; CPU time is time plus `offset`.
#[derive(Debug)]
struct Segment {
    first: usize,
    last: usize,
    offset: Option<i64>,
}

/// State of the curve between two windows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CpuCarried {
    /// The last point.
    last: Option<(u64, u64)>,
    /// CPU time less time, in the last segment, which may continue.
    offset: Option<i64>,
}

impl CpuCurve {
    /// Returns the curve of one window's events, which continues the previous window's curve.
    pub(crate) fn new(events: &[Event], calibration: &Calibration, carried: &mut CpuCarried) -> Self {
        let ns = |i: usize| calibration.ns(events[i].ticks) as i64;
        let mut segments = segments(events, &ns);
        if let Some(first) = segments.first_mut()
            && !breaks(&events[first.first])
        {
            // The last segment of the previous window continues.
            first.offset = first.offset.or(carried.offset);
        }
        if carried.last.is_none() && segments.iter().all(|s| s.offset.is_none()) {
            return Self::default();
        }
        let interpolated = segments.iter().filter(|s| s.offset.is_none()).count() as u64;
        interpolate(&mut segments, &ns, carried.last);
        let mut points = Vec::with_capacity(events.len() + 1);
        let mut highest = carried.last.unwrap_or((0, 0));
        let shift = carried.last.iter().len();
        points.extend(carried.last);
        for segment in &segments {
            for i in segment.first..=segment.last {
                let cpu = ns(i) + segment.offset.unwrap_or_default();
                highest = (highest.0.max(ns(i) as u64), highest.1.max(cpu.max(0) as u64));
                points.push(highest);
            }
        }
        if let Some(last) = segments.last() {
            *carried = CpuCarried { last: Some(highest), offset: last.offset };
        }
        Self { points, shift, interpolated }
    }

    /// Returns `true` if CPU time is known.
    pub(crate) fn is_known(&self) -> bool {
        !self.points.is_empty()
    }

    /// Returns the CPU time at the `i`-th event.
    pub(crate) fn at_event(&self, i: usize) -> u64 {
        self.points.get(i + self.shift).map_or(0, |p| p.1)
    }

    /// Returns the CPU time at an instant between events; constant outside of them. `near` is the position of
    /// the last lookup.
    pub(crate) fn at(&self, ns: u64, near: &mut usize) -> u64 {
        let after = partition_point_from(&self.points, near, |p| p.0 <= ns);
        let (Some(&before), Some(&after)) =
            (after.checked_sub(1).and_then(|i| self.points.get(i)), self.points.get(after))
        else {
            return self.points.get(after.saturating_sub(1)).map_or(0, |p| p.1);
        };
        let (passed, ran, length) = (ns - before.0, after.1 - before.1, (after.0 - before.0).max(1));
        let part = match passed.checked_mul(ran) {
            Some(product) => product / length, // the usual case
            None => (u128::from(passed) * u128::from(ran) / u128::from(length)) as u64,
        };
        before.1 + part
    }

    /// Returns the CPU time between two instants, as [`CpuCurve::at`] has it.
    pub(crate) fn between(&self, begin: u64, end: u64, near: &mut usize) -> u64 {
        let before = self.at(begin, near);
        self.at(end, near) - before
    }

    /// Returns the total CPU time.
    pub(crate) fn total(&self) -> u64 {
        match (self.points.first(), self.points.last()) {
            (Some(first), Some(last)) => last.1 - first.1,
            _ => 0,
        }
    }
}

/// Returns `true` if a segment begins with the event. Lost events may include a switch.
fn breaks(event: &Event) -> bool {
    event.is_switched() || event.kind == EventKind::Lost
}

fn segments(events: &[Event], ns: &impl Fn(usize) -> i64) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (i, event) in events.iter().enumerate() {
        match segments.last_mut() {
            Some(open) if !breaks(event) => open.last = i,
            _ => segments.push(Segment { first: i, last: i, offset: None }),
        }
        if event.kind == EventKind::Anchor
            && let Some(open) = segments.last_mut()
            && open.offset.is_none()
        {
            open.offset = Some(event.object as i64 - ns(i));
        }
    }
    segments
}

/// Sets the offset of each segment without one. `before` is the last point of the previous window.
fn interpolate(segments: &mut [Segment], ns: &impl Fn(usize) -> i64, before: Option<(u64, u64)>) {
    let mut at = 0;
    while at < segments.len() {
        if segments[at].offset.is_some() {
            at += 1;
            continue;
        }
        let until = (at..segments.len()).find(|&i| segments[i].offset.is_some()).unwrap_or(segments.len());
        fill(segments, at, until, ns, before);
        at = until;
    }
}

/// Sets the offsets of the segments `from..until` from the neighboring segments, which are known or do not
/// exist.
fn fill(
    segments: &mut [Segment],
    from: usize,
    until: usize,
    ns: &impl Fn(usize) -> i64,
    before: Option<(u64, u64)>,
) {
    let length = |s: &Segment| ns(s.last) - ns(s.first);
    let ran: i64 = segments[from..until].iter().map(length).sum();
    // Time and CPU time.
    let end_before = match from.checked_sub(1).map(|i| &segments[i]) {
        Some(s) => s.offset.map(|offset| (ns(s.last), ns(s.last) + offset)),
        None => before.map(|(time, cpu)| (time as i64, cpu as i64)),
    };
    let begin_after = segments.get(until).and_then(|s| Some((ns(s.first), ns(s.first) + s.offset?)));
    // The CPU time of each gap; there is one gap more than segments.
    let gaps = match (end_before, begin_after) {
        (Some(before), Some(after)) => {
            let ends = iter::once(before.0).chain(segments[from..until].iter().map(|s| ns(s.last)));
            let begins = segments[from..until].iter().map(|s| ns(s.first)).chain([after.0]);
            let lengths = begins.zip(ends).map(|(begin, end)| begin.saturating_sub(end).max(0));
            let lengths: Vec<i64> = lengths.collect();
            divided((after.1 - before.1 - ran).max(0), &lengths)
        }
        _ => vec![0; until - from],
    };
    let mut cpu = match (end_before, begin_after) {
        (Some(before), _) => before.1,
        (None, Some(after)) => after.1 - ran,
        (None, None) => 0,
    };
    for (segment, gap) in segments[from..until].iter_mut().zip(gaps) {
        cpu += gap;
        segment.offset = Some(cpu - ns(segment.first));
        cpu += ns(segment.last) - ns(segment.first);
    }
}

/// Divides CPU time evenly between gaps, each of which has at most its own length of it.
fn divided(cpu: i64, lengths: &[i64]) -> Vec<i64> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|gap| lengths[*gap]);
    let (mut parts, mut left) = (vec![0; lengths.len()], cpu);
    for (done, gap) in order.into_iter().enumerate() {
        parts[gap] = lengths[gap].min(left / (lengths.len() - done) as i64);
        left -= parts[gap];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::SWITCHED;
    use crate::file::ClockSample;

    /// Returns a calibration with ticks of a nanosecond.
    fn calibration() -> Calibration {
        let sample = |ticks| ClockSample { ticks, monotonic_ns: ticks, process_cpu_ns: 0 };
        Calibration::new(&sample(0), &sample(1_000_000_000), 1)
    }

    fn event(ns: u64, flags: u8) -> Event {
        Event { flags, ..Event::new(ns, EventKind::Mark) }
    }

    fn anchor(ns: u64, flags: u8, cpu: u64) -> Event {
        Event { flags, object: cpu, ..Event::new(ns, EventKind::Anchor) }
    }

    #[test]
    fn one_anchor_gives_the_cpu_time_of_a_whole_segment() {
        let events = [
            event(100, SWITCHED),
            anchor(150, 0, 1000),
            event(180, 0),
            event(900, SWITCHED),
            anchor(910, 0, 1040),
        ];
        let curve = CpuCurve::new(&events, &calibration(), &mut CpuCarried::default());
        let cpu: Vec<_> = (0..5).map(|i| curve.at_event(i)).collect();
        assert_eq!(cpu, [950, 1000, 1030, 1030, 1040]);
        assert_eq!((curve.total(), curve.interpolated), (90, 0));
        let mut near = 0;
        assert_eq!([150, 165, 0, 5000].map(|ns| curve.at(ns, &mut near)), [1000, 1015, 950, 1040]);
    }

    #[test]
    fn a_segment_without_an_anchor_lies_between_its_neighbors() {
        let events = [
            anchor(100, SWITCHED, 50),
            event(200, SWITCHED), // no anchor: 10 ns long
            event(210, 0),
            anchor(400, SWITCHED, 100),
        ];
        let curve = CpuCurve::new(&events, &calibration(), &mut CpuCarried::default());
        // 100 - 50 - 10 = 40 ns are left for two gaps.
        assert_eq!((0..4).map(|i| curve.at_event(i)).collect::<Vec<_>>(), [50, 70, 80, 100]);
        assert_eq!(curve.interpolated, 1);
    }

    #[test]
    fn a_gap_has_no_more_cpu_time_than_it_is_long() {
        // A wait from 110 to 120 without an anchor at its end, then a computation that is preempted.
        let events =
            [anchor(100, SWITCHED, 50), event(110, 0), event(120, SWITCHED), anchor(5000, SWITCHED, 1060)];
        let curve = CpuCurve::new(&events, &calibration(), &mut CpuCarried::default());
        assert_eq!((0..4).map(|i| curve.at_event(i)).collect::<Vec<_>>(), [50, 60, 70, 1060]);
        assert_eq!(divided(90, &[50, 10, 40]), [40, 10, 40]);
        assert_eq!(divided(90, &[30, 10, 20]), [30, 10, 20], "the clocks differ");
    }

    #[test]
    fn ends_without_anchors_go_on_from_what_is_known() {
        let events = [
            event(5, SWITCHED),
            event(15, 0),
            anchor(100, SWITCHED, 50),
            event(200, SWITCHED),
            event(230, 0),
        ];
        let curve = CpuCurve::new(&events, &calibration(), &mut CpuCarried::default());
        assert_eq!((0..5).map(|i| curve.at_event(i)).collect::<Vec<_>>(), [40, 50, 50, 50, 80]);
    }

    #[test]
    fn without_anchors_nothing_is_known() {
        let curve = CpuCurve::new(&[event(1, 0), event(2, 0)], &calibration(), &mut CpuCarried::default());
        assert!(!curve.is_known());
        assert_eq!((curve.at_event(0), curve.at(7, &mut 0), curve.total()), (0, 0, 0));
    }
}
