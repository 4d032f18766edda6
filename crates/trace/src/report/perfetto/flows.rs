//! The flows of a Perfetto export: which thread ended a wait.
//!
//! The waker is the other thread with the last release of the object during the wait: a `Release` event, or
//! the end of a recorded hold. If holds are sampled, an unrecorded hold may have followed a recorded one, so
//! a hold counts only if it ended shortly before the wait. A waker that recorded its release after the end
//! of the wait is not known. A flow has two ends in one window of events; a wait that is woken in one window
//! and ends in the next one has no flow.

use super::Open;
use crate::analyze::WAKE_UP_NS;
use crate::event::{Event, EventKind, UNWOKEN};
use crate::file::Calibration;
use std::collections::{HashMap, HashSet};

/// The numbers of the flows at an event, by thread and index of the event in the window.
pub(super) type FlowEnds = HashMap<(usize, usize), Vec<u64>>;

/// Finds the flows of a recording, window by window.
#[derive(Debug)]
pub(super) struct Flows {
    /// By thread: its open operations and waits with their begins, as the export has them.
    open: Vec<Vec<(Open, u64)>>,
    hold_sampling: u32,
    /// Number of flows so far.
    count: u64,
}

/// A release of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Release {
    ns: u64,
    thread: usize,
    at: usize,
    is_hold: bool,
}

impl Flows {
    pub(super) fn new(threads: usize, hold_sampling: u32) -> Self {
        Self { open: (0..threads).map(|_| Vec::new()).collect(), hold_sampling, count: 0 }
    }

    /// Returns the ends of the flows in the next window.
    pub(super) fn window(&mut self, events: &[&[Event]], calibration: &Calibration) -> FlowEnds {
        let mut releases: HashMap<u64, Vec<Release>> = HashMap::new();
        // Begins of the holds after a wait that was ended without a wake-up of its own object.
        let mut taken: HashSet<(usize, u64, u64)> = HashSet::new();
        for (thread, events) in events.iter().enumerate() {
            for (at, event) in events.iter().enumerate() {
                let is_hold = event.kind == EventKind::Hold;
                if event.object == 0 || !is_hold && event.kind != EventKind::Release {
                    continue;
                }
                let ns = calibration.ns(event.ticks);
                releases.entry(event.object).or_default().push(Release { ns, thread, at, is_hold });
                if is_hold {
                    taken.insert((thread, event.object, event.ticks.saturating_sub(event.argument)));
                }
            }
        }
        releases.values_mut().for_each(|list| list.sort_unstable());
        let mut ends = FlowEnds::new();
        for (thread, events) in events.iter().enumerate() {
            for (at, event) in events.iter().enumerate() {
                let ns = calibration.ns(event.ticks);
                let Some(begin) = self.ended_wait(thread, event, ns) else { continue };
                // A lock with an object for each waiter has this flag at all waits. Its waits that got the
                // lock are followed by a hold.
                let is_in_vain = event.flags & UNWOKEN != 0;
                if is_in_vain && !taken.contains(&(thread, event.object, event.ticks)) {
                    continue;
                }
                let Some(list) = releases.get(&event.object) else { continue };
                let before = list.partition_point(|release| release.ns < ns);
                let mut during = list[..before].iter().rev().take_while(|release| release.ns >= begin);
                let is_known = |release: &&Release| {
                    !release.is_hold || self.hold_sampling <= 1 || ns - release.ns <= WAKE_UP_NS
                };
                let waker = during.find(|release| release.thread != thread).filter(is_known);
                if let Some(waker) = waker {
                    self.count += 1;
                    ends.entry((waker.thread, waker.at)).or_default().push(self.count);
                    ends.entry((thread, at)).or_default().push(self.count);
                }
            }
        }
        ends
    }

    /// Takes the next event of a thread. If it ends a wait, returns the begin of this wait.
    fn ended_wait(&mut self, thread: usize, event: &Event, ns: u64) -> Option<u64> {
        let open = &mut self.open[thread];
        let wait = Open::Wait(event.site, event.object);
        let closed = match event.kind {
            EventKind::Enter => {
                open.push((Open::Operation(event.operation), ns));
                return None;
            }
            EventKind::WaitBegin => {
                open.push((wait, ns));
                return None;
            }
            EventKind::Exit => Open::Operation(event.operation),
            EventKind::WaitEnd => wait,
            EventKind::Lost => {
                open.clear();
                return None;
            }
            _ => return None,
        };
        let depth = open.iter().rposition(|(which, _)| *which == closed)?;
        let begin = open[depth].1;
        open.truncate(depth);
        (event.kind == EventKind::WaitEnd).then_some(begin)
    }
}
