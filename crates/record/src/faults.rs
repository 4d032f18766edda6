//! Names the functions of page faults.

use crate::frames;
use crate::name::Sites;
use crate::symbols::Symbols;
use azekura_trace::file::{CpuSample, Name, Trace};
use std::collections::BTreeMap;

/// Assigns each page fault to the site of its function, and adds up the faults of each thread and site.
pub(crate) fn name(trace: &mut Trace, symbols: &Symbols, sites: &mut Sites) {
    let mut joined: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    // A function is named by the line of its most frequent fault, so that fault is processed first.
    let mut order: Vec<CpuSample> = std::mem::take(&mut trace.faults);
    order.sort_by_key(|fault| (std::cmp::Reverse(fault.count), fault.address, fault.tag));
    let mut lines: BTreeMap<(String, String), u32> = BTreeMap::new();
    for fault in order {
        let place = frames::own(&symbols.frames(fault.address));
        let line = *lines.entry((place.function.clone(), place.file.clone())).or_insert(place.line);
        let name = Name { name: format!("page fault in {}", place.function), file: place.file, line };
        *joined.entry((fault.tag, sites.id(name))).or_default() += fault.count;
    }
    let fault = |((tag, site), count)| CpuSample { tag, address: 0, site, count };
    trace.faults = joined.into_iter().map(fault).collect();
}
