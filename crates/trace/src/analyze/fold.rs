//! Sums over all windows of a recording.
//!
//! A short recording is one window. A long recording is analyzed window by window, so that only one window is
//! in memory. Spans that are open at the end of a window continue in the next one. The result differs little
//! from an analysis of the whole: if a wait crosses the border of a window, its holder in the previous window
//! is unknown. This affects one wait of each thread per million events.

use super::Names;
use super::attribute::{Attribution, ThreadAccount};
use super::blame::{Blame, blame};
use super::by_object::ByObject;
use super::pair::{Carried, OpenSpan, ThreadSpans, pair};
use super::stations::Uses;
use super::timeline::{Line, cell_ns};
use super::what_if::ThreadTotals;
use crate::event::Event;
use crate::file::{Calibration, Trace};

/// Sums for the rows of a report.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) attribution: Attribution,
    pub(crate) uses: Uses,
    pub(crate) blame: Blame,
    /// Sums by thread, in the order of the trace.
    pub(crate) thread_totals: Vec<ThreadTotals>,
    pub(crate) lines: Vec<Line>,
    /// Open spans of each thread at the end.
    pub(crate) open: Vec<(u32, OpenSpan)>,
    pub(crate) unmatched: u64,
    pub(crate) interpolated: u64,
    /// Time of the last event.
    pub(crate) last: u64,
    accounts: Vec<ThreadAccount>,
    carried: Vec<Carried>,
}

/// The data of a recording that do not change from window to window.
pub(crate) struct Frame<'t> {
    /// The recording, possibly without its threads' events.
    pub(crate) trace: &'t Trace,
    pub(crate) names: &'t Names<'t>,
    pub(crate) calibration: Calibration,
    pub(crate) duration: u64,
}

impl Totals {
    /// Returns `true` if the thread at this index has executed the operation, or if no operation is given.
    pub(crate) fn has_executed(&self, thread: usize, operation: u16) -> bool {
        operation == 0 || self.accounts.get(thread).is_some_and(|account| account.has_executed(operation))
    }

    /// Adds a window with the events of each thread. `is_last` means that open spans will not end.
    pub(crate) fn add(&mut self, frame: &Frame<'_>, events: &[&[Event]], is_last: bool) {
        let count = frame.trace.threads.len();
        self.carried.resize_with(count, Carried::default);
        let threads = frame.trace.threads.iter().zip(events).zip(&mut self.carried);
        let spans = threads.map(|((thread, events), carried)| {
            frame.names.merged(pair(thread, events, &frame.calibration, carried, is_last))
        });
        let spans: Vec<ThreadSpans> = spans.collect();
        let by_object = ByObject::new(&spans);
        self.add_others(frame, &spans, &by_object);
        blame((&spans, &by_object), frame.trace.session.hold_sampling, &mut self.blame);
    }

    /// Adds all sums of a window but the rows of blame.
    fn add_others(&mut self, frame: &Frame<'_>, spans: &[ThreadSpans], by_object: &ByObject) {
        let count = spans.len();
        self.accounts.resize_with(count, ThreadAccount::default);
        self.thread_totals.resize_with(count, ThreadTotals::default);
        self.lines.resize_with(count, Line::default);
        let cell = cell_ns(frame.duration);
        for (at, thread) in spans.iter().enumerate() {
            self.attribution.add(thread, &mut self.accounts[at], frame.duration);
            self.thread_totals[at].add(thread);
            self.lines[at].add(thread, cell);
            self.open.extend(thread.open.iter().map(|open| (thread.tag, *open)));
            self.unmatched += thread.unmatched;
            self.interpolated += thread.cpu.interpolated;
            self.last = self.last.max(thread.last);
        }
        self.uses.add(spans, by_object);
    }
}
