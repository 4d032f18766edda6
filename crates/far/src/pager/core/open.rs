//! Open spans: while memory is free, the system allocates pages on first touch, as for any program.
//!
//! The first touch of a span with only empty pages opens the span: the system allocates its pages without
//! faults to the pager, and the span reserves frames for all of them. So a program that fits into its local
//! memory has one fault per span, and otherwise runs at full speed. When memory is short, all spans are
//! closed: touches cause faults again, and the system reports which pages exist. These pages are added to the
//! policy. The others are empty as before, and their frames are free.
//!
//! | a span is | its pages | allocated by | next state |
//! |---|---|---|---|
//! | not open | any but `Open` | the pager, each at its touch | a touch of empty pages that fit → open |
//! | open | all `Open` | the system | memory is short, or the process forks → not open |
//!
//! Closing an open span makes its existing pages `Resident` and the others `Empty`.
//!
//! - **OPEN-1** All pages of an open span count as local, whether they exist or not. So touches that are not
//!   tracked stay within the budget (PAGER-1).
//! - **OPEN-2** A victim is chosen only while no span is open, when the policy has all existing pages.
//! - **OPEN-3** Touches cause faults again before the existing pages are listed, and such a fault waits for
//!   the pager's lock. So a page that does not exist in the list is empty, and its first touch causes a
//!   fault.
//! - **OPEN-4** A page that was allocated without a fault counts as written. Its missing parts are zeros, and
//!   are filled when they are touched (`Backend::mend`).
//!
//! A span that a sequential stream reached is *swept*: its pages become runs, as the stream would have made
//! them (RUN-2). The pages of other spans are tracked one by one.
//!
//! *Rejected*: allocating all pages of a span at once, which costs memory and zeroing that the program may
//! never need.

use super::Core;
use crate::error::Loss;
use crate::pager::state::State;
use crate::replace::{Access, PageNo};
use std::ops::Range;

/// Divisor of the number of local pages: a span has this part of them, but at least one run. So there are few
/// spans, and few mappings in the kernel.
const PARTS: usize = 256;

/// Open spans.
#[derive(Debug)]
pub(super) struct Open {
    /// Number of pages of a span; 0 if no span may be opened.
    span: usize,
    /// Largest number of local pages after opening one more span. It is lowered after the first shortage, so
    /// that a program that almost fits does not open and close spans again and again.
    most: usize,
    spans: Vec<Span>,
}

#[derive(Debug)]
struct Span {
    pages: Range<u32>,
    swept: bool,
}

impl Open {
    /// Returns the initial state for a local limit of `limit` pages and runs of `run` pages. No span is open.
    pub(super) fn new(limit: usize, run: usize) -> Self {
        Self { span: (limit / PARTS).next_multiple_of(run).max(run), most: limit, spans: Vec::new() }
    }

    /// Returns a state in which no span is ever opened.
    pub(super) fn none() -> Self {
        Self { span: 0, most: 0, spans: Vec::new() }
    }

    /// Lowers the largest number of local pages.
    pub(super) fn shrink(&mut self, limit: usize) {
        self.most = self.most.min(limit);
    }

    fn span_of(&self, page: u32, pages: usize) -> Option<Range<u32>> {
        let first = page as usize / self.span.max(1) * self.span;
        #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
        (self.span > 0).then(|| first as u32..(first + self.span).min(pages) as u32)
    }
}

impl Core {
    /// Opens the span of an empty page that was touched, if it fits. Threads that wait for its pages then
    /// continue.
    pub(super) fn open(&mut self, page: u32) -> bool {
        let Some(span) = self.open.span_of(page, self.pages.len()) else { return false };
        let fits = self.local + span.len() <= self.open.most.min(self.limit);
        let is_empty = span.clone().all(|page| self.is_empty(page));
        if !fits || !is_empty || !self.backend.leave(span.clone()) {
            return false;
        }
        for page in span.clone() {
            self.pages[page as usize].state = State::Open;
        }
        self.local += span.len();
        self.stats.zero_fills += span.len() as u64;
        let guess = self.follow(page);
        if let Some(prefetch) = &mut self.prefetch {
            prefetch.came_with(page, span.clone());
        }
        let swept = guess.is_some_and(|guess| guess.stride.abs() == 1);
        self.look_ahead(guess.map(|guess| guess.behind(span.clone())));
        self.open.spans.push(Span { pages: span, swept });
        true
    }

    /// Closes all spans. Returns `true` if any span was open.
    pub(in crate::pager) fn close_all(&mut self) -> bool {
        let spans = std::mem::take(&mut self.open.spans);
        self.open.most = if spans.is_empty() { self.open.most } else { self.limit / 2 };
        spans.iter().for_each(|span| self.close(span));
        !spans.is_empty()
    }

    /// Closes the spans that contain one of these pages.
    pub(super) fn close_within(&mut self, pages: &Range<u32>) {
        let meets = |span: &Span| span.pages.start < pages.end && pages.start < span.pages.end;
        let (meeting, others) = std::mem::take(&mut self.open.spans).into_iter().partition(meets);
        self.open.spans = others;
        let meeting: Vec<Span> = meeting;
        meeting.iter().for_each(|span| self.close(span));
    }

    fn close(&mut self, Span { pages, swept }: &Span) {
        let there = match self.backend.take_back(pages.clone()) {
            Ok(there) => there,
            Err(source) => self.stop_program(&Loss::Map { page: pages.start, how: "back", source }),
        };
        let mut leads: Vec<u32> = Vec::new();
        for (page, is_there) in pages.clone().zip(there) {
            let before = page.checked_sub(1).filter(|before| *swept && pages.contains(before));
            let joined = before.filter(|&before| self.is_of_same_block(before, page)).and_then(|before| {
                let entry = &self.pages[before as usize];
                matches!(entry.state, State::Resident { .. }).then_some(entry.lead)
            });
            let entry = &mut self.pages[page as usize];
            if is_there {
                entry.state = State::Resident { writable: true, dirty: true };
                entry.lead = joined.unwrap_or(page);
                self.resident += 1;
                leads.extend((entry.lead == page).then_some(page));
            } else {
                entry.state = State::Empty;
                self.local -= 1;
                self.stats.zero_fills -= 1;
            }
        }
        for lead in leads {
            self.with_policy(|policy, bits| policy.page_in(PageNo(lead), Access::Write, bits));
        }
    }

    /// Returns the pages of open spans.
    #[cfg(all(test, not(loom)))]
    pub(super) fn open_pages(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.spans.iter().flat_map(|span| span.pages.clone())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::model::{PAGE, machine::Machine};
    use super::super::{Core, Plan};
    use crate::fault::{Backend, Fault};
    use crate::pager::state::State;
    use crate::replace::{Access, Policy, Shape};
    use std::sync::Arc;

    const PAGES: u32 = 16;

    /// Returns the existing pages with their leads, after a program touched `touched` and memory became
    /// short. Returns `None` if the machine did not open all spans, or reported other pages as existing.
    fn leads(seed: u64, touched: &[u32]) -> Option<Vec<(u32, u32)>> {
        let machine = Arc::new(Machine::new(true, PAGES as usize, 40, seed));
        let backend: Arc<dyn Backend> = machine.clone();
        let shape = Shape { pages: PAGES, frames: 32 };
        let plan = Plan {
            pages: PAGES,
            page_bytes: PAGE,
            limit: 32,
            slack: 2,
            frames: 40,
            run: 4,
            cluster: 1,
            policy: Policy::Fifo.build(shape, seed),
            prefetch: true,
            copies: 1,
            compression: crate::compression::Compression::None,
            on_loss: |message| panic!("{message}"),
        };
        let mut core = Core::new(backend, plan);
        for &page in touched {
            if !machine.touch(page, Access::Write, 1) {
                core.answer(Fault { page, access: Access::Write });
                assert!(machine.touch(page, Access::Write, 1));
            }
        }
        let are_open = touched.iter().all(|&page| matches!(core.pages[page as usize].state, State::Open));
        assert!(core.close_all() || !are_open);
        let there = |page: &u32| matches!(core.pages[*page as usize].state, State::Resident { .. });
        let leads: Vec<(u32, u32)> =
            (0..PAGES).filter(there).map(|page| (page, core.pages[page as usize].lead)).collect();
        // The simulated machine sometimes does not report which pages exist.
        (are_open && leads.len() == touched.len()).then_some(leads)
    }

    fn first_leads(touched: &[u32]) -> Vec<(u32, u32)> {
        (0..1000).find_map(|seed| leads(seed, touched)).expect("a machine that makes pages and says which")
    }

    #[test]
    fn pages_of_a_stream_are_kept_as_runs_and_others_singly() {
        let upwards: Vec<u32> = (0..12).collect();
        let lead = |page: u32| if page < 4 { page } else { page / 4 * 4 };
        assert_eq!(first_leads(&upwards), upwards.iter().map(|&page| (page, lead(page))).collect::<Vec<_>>());
        // If the stream skips a page, the page is inside the span but does not exist.
        assert_eq!(
            first_leads(&[0, 1, 2, 3, 4, 6, 7]),
            [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (6, 6), (7, 6)]
        );
        assert_eq!(first_leads(&[9, 2, 14]), [(2, 2), (9, 9), (14, 14)]);
    }
}
