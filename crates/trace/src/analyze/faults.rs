//! Page faults that waited for a device.

use super::{OperationRow, Work};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Largest mean time off the processor per page fault that the faults explain: several times a read from
/// flash memory. A larger value would blame the faults of a program's start for later waits.
const LONGEST_NS: u64 = 2_000_000;

/// Page faults in one function.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FaultRow {
    /// The site's label.
    pub site: String,
    /// Number of page faults that waited for a device (major faults): reads of mapped files, or of swapped
    /// memory.
    pub count: u64,
}

impl Work<'_> {
    /// Returns the page faults by function, in descending order of their number.
    pub(super) fn fault_rows(&self) -> Vec<FaultRow> {
        let mut by_site: BTreeMap<String, u64> = BTreeMap::new();
        for fault in &self.trace.faults {
            *by_site.entry(self.names.site(fault.site)).or_default() += fault.count;
        }
        let mut rows: Vec<FaultRow> =
            by_site.into_iter().map(|(site, count)| FaultRow { site, count }).collect();
        rows.sort_by_key(|row| Reverse(row.count));
        rows
    }
}

/// Returns `true` if there are so many page faults that they explain the time off the processor without a
/// reason of all operations together. The kernel records no duration of a fault.
pub(super) fn explain(faults: &[FaultRow], total: &OperationRow) -> bool {
    let count: u64 = faults.iter().map(|row| row.count).sum();
    count > 0 && total.other_ns.is_some_and(|ns| ns / count <= LONGEST_NS)
}
