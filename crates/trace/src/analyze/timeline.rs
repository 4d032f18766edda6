//! What each thread did when, in cells of equal time: small enough for a page, whatever the recording's length.

use super::pair::ThreadSpans;
use crate::WaitClass;
use crate::file::Trace;
use serde::Serialize;

/// Cells per thread.
pub const CELLS: usize = 240;

/// All threads over the whole recording.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// Length of a cell.
    pub cell_ns: u64,
    /// Threads in the order of the trace.
    pub threads: Vec<ThreadLine>,
}

/// One thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadLine {
    /// Its name, or its number.
    pub name: String,
    /// Its cells.
    pub cells: Vec<Cell>,
}

/// What a thread did in one cell of time, in thousandths of it; the rest is outside of any operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// In an operation and not waiting.
    pub working: u16,
    /// Waiting for a lock (a wait inside a wait counts as the outer one).
    pub lock: u16,
    /// Waiting for I/O.
    pub io: u16,
    /// Waiting for work.
    pub idle: u16,
}

pub(super) fn timeline(trace: &Trace, threads: &[ThreadSpans], duration: u64) -> Timeline {
    let cell_ns = duration.div_ceil(CELLS as u64).max(1);
    let lines = trace.threads.iter().zip(threads).map(|(thread, spans)| ThreadLine {
        name: match thread.name.as_str() {
            "" => format!("thread {}", thread.tag),
            name => format!("{name} ({})", thread.tag),
        },
        cells: cells(spans, cell_ns),
    });
    Timeline { cell_ns, threads: lines.collect() }
}

fn cells(spans: &ThreadSpans, cell_ns: u64) -> Vec<Cell> {
    let mut ns = vec![[0u64; 4]; CELLS];
    for op in spans.ops.iter().filter(|s| s.parent.is_none()) {
        let end = op.end.unwrap_or(spans.last);
        // Of those drawn by lot each stands for its like nearby.
        (0..op.weight).for_each(|_| spread(&mut ns, 0, op.begin, end, cell_ns));
    }
    for wait in spans.waits.iter().filter(|w| w.parent.is_none()) {
        let class = match wait.kind.class() {
            WaitClass::Lock => 1,
            WaitClass::Io => 2,
            WaitClass::Idle => 3,
        };
        spread(&mut ns, class, wait.begin, wait.end.unwrap_or(spans.last), cell_ns);
    }
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

/// Adds a span to the cells that it covers.
fn spread(cells: &mut [[u64; 4]], class: usize, begin: u64, end: u64, cell_ns: u64) {
    let mut at = begin;
    while at < end {
        let cell = (at / cell_ns) as usize;
        let Some(slot) = cells.get_mut(cell) else { return };
        let until = end.min((cell as u64 + 1).saturating_mul(cell_ns));
        slot[class] += until - at;
        at = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_spread_over_the_cells_it_covers() {
        let mut cells = vec![[0; 4]; 4];
        spread(&mut cells, 1, 5, 27, 10);
        assert_eq!(cells.iter().map(|c| c[1]).collect::<Vec<_>>(), [5, 10, 7, 0]);
        spread(&mut cells, 1, 35, 99, 10);
        assert_eq!(cells[3][1], 5, "what lies beyond the end is left out");
    }
}
