//! Call stacks of waits, recorded for a sample of them.

use super::{Names, Work};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Largest number of stacks in a row; the others are summed up.
const STACKS: usize = 200;

/// A call stack of the waits in one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StackRow {
    /// The frames, the innermost first: function, file and line. Empty for the sum of the stacks that have no
    /// row of their own.
    pub frames: Vec<String>,
    /// Number of sampled waits with this stack.
    pub count: u64,
    /// Net time of these waits.
    pub net_ns: u64,
    /// `net_ns` as a fraction of the net time of all sampled waits in the row: the estimated share of the
    /// row's time.
    pub share: f64,
}

impl Work<'_> {
    /// Returns the rows of the sums by stack, in descending order of time.
    pub(super) fn stack_rows(&self, stacks: &BTreeMap<u32, (u64, u64)>) -> Vec<StackRow> {
        // A damaged part of the file may have had the frames.
        let frame = |id: &u32| self.trace.frames.get(id).map_or_else(|| format!("frame {id}"), Names::frame);
        let mut sums: Vec<(u64, u64, u32)> =
            stacks.iter().map(|(id, (count, ns))| (*ns, *count, *id)).collect();
        sums.sort_unstable_by_key(|(ns, count, id)| (Reverse((*ns, *count)), *id));
        let all: u64 = sums.iter().map(|sum| sum.0).sum();
        let row = |frames, (net_ns, count)| StackRow {
            frames,
            count,
            net_ns,
            share: net_ns as f64 / all.max(1) as f64,
        };
        let rest = sums.get(STACKS..).unwrap_or_default();
        let rest = rest.iter().fold((0, 0), |(ns, count), sum| (ns + sum.0, count + sum.1));
        let own = sums.iter().take(STACKS).map(|(ns, count, id)| {
            let frames = self.trace.stacks.get(id).into_iter().flatten().map(frame).collect();
            row(frames, (*ns, *count))
        });
        own.chain((rest.1 > 0).then(|| row(Vec::new(), rest))).collect()
    }
}
