//! Activity of each thread over time, in cells of equal duration. The number of cells is small enough for a
//! page, and independent of the length of the recording.

use super::pair::ThreadSpans;
use crate::WaitClass;
use crate::file::Trace;
use serde::Serialize;
use std::ops::Range;

/// Number of cells per thread.
pub const CELLS: usize = 240;

/// The activity of all threads over the whole recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// Duration of a cell.
    pub cell_ns: u64,
    /// Threads in the order of the trace.
    pub threads: Vec<ThreadLine>,
}

/// The activity of one thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadLine {
    /// Name of the thread, or its number.
    pub name: String,
    /// The thread's cells.
    pub cells: Vec<Cell>,
}

/// Activity of a thread in one cell of time, in thousandths of the cell. The rest is outside of any
/// operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// Time in an operation without waiting.
    pub working: u16,
    /// Time waiting for a lock (a nested wait counts as the outer one).
    pub lock: u16,
    /// Time waiting for I/O.
    pub io: u16,
    /// Time waiting for work.
    pub idle: u16,
}

/// The sums for a thread's cells: nanoseconds in operations, and in waits of each class.
#[derive(Debug)]
pub(crate) struct Line(Vec<[u64; 4]>);

impl Default for Line {
    fn default() -> Self {
        Self(vec![[0; 4]; CELLS])
    }
}

/// Returns the duration of a cell.
pub(super) fn cell_ns(duration: u64) -> u64 {
    duration.div_ceil(CELLS as u64).max(1)
}

pub(super) fn timeline<'l>(trace: &Trace, lines: impl Iterator<Item = &'l Line>, duration: u64) -> Timeline {
    let cell_ns = cell_ns(duration);
    let lines = trace.threads.iter().zip(lines).map(|(thread, line)| ThreadLine {
        name: match thread.name.as_str() {
            "" => format!("thread {}", thread.tag),
            name => format!("{name} ({})", thread.tag),
        },
        cells: cells(&line.0, cell_ns),
    });
    Timeline { cell_ns, threads: lines.collect() }
}

impl Line {
    /// Adds a window's spans. An open span is added in the window in which it ends.
    pub(super) fn add(&mut self, spans: &ThreadSpans, cell_ns: u64) {
        let outermost =
            (0..).zip(&spans.ops).filter(|(at, s)| s.parent.is_none() && !spans.ongoing.contains(at));
        for (_, op) in outermost {
            let end = op.end.unwrap_or(spans.last);
            // A sampled execution represents the unsampled ones nearby.
            spread(&mut self.0, 0, op.begin..end, cell_ns, op.weight.into());
        }
        let outermost = (0..).zip(&spans.waits);
        for (_, wait) in outermost.filter(|(at, w)| w.parent.is_none() && !spans.ongoing_waits.contains(at)) {
            let class = match wait.kind.class() {
                WaitClass::Lock => 1,
                WaitClass::Io => 2,
                WaitClass::Idle => 3,
            };
            spread(&mut self.0, class, wait.begin..wait.end.unwrap_or(spans.last), cell_ns, 1);
        }
    }
}

fn cells(ns: &[[u64; 4]], cell_ns: u64) -> Vec<Cell> {
    let part = |ns: u64| (u128::from(ns) * 1000 / u128::from(cell_ns)).min(1000) as u16;
    ns.iter()
        .map(|[op, lock, io, idle]| Cell {
            working: part(op.saturating_sub(lock + io + idle)),
            lock: part(*lock),
            io: part(*io),
            idle: part(*idle),
        })
        .collect()
}

/// Adds a span, `weight` times, to the cells that it covers.
fn spread(cells: &mut [[u64; 4]], class: usize, span: Range<u64>, cell_ns: u64, weight: u64) {
    let (mut at, end) = (span.start, span.end);
    while at < end {
        let cell = (at / cell_ns) as usize;
        let Some(slot) = cells.get_mut(cell) else { return };
        let until = end.min((cell as u64 + 1).saturating_mul(cell_ns));
        slot[class] = slot[class].saturating_add((until - at).saturating_mul(weight));
        at = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_spread_over_the_cells_it_covers() {
        let mut cells = vec![[0; 4]; 4];
        spread(&mut cells, 1, 5..27, 10, 1);
        assert_eq!(cells.iter().map(|c| c[1]).collect::<Vec<_>>(), [5, 10, 7, 0]);
        spread(&mut cells, 1, 35..99, 10, 1);
        assert_eq!(cells[3][1], 5, "what lies beyond the end is left out");
    }
}
