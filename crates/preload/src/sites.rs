//! Numbers for call sites and for the functions that threads begin with, found without a lock.
//!
//! The tables are in the area, so the recorder reads there what a number means. An entry is claimed by CAS
//! and never freed. When a table is full, all further keys share its first entry.

use azekura_trace::area::{Area, Called, OPERATIONS, SITES, site_key};
use std::iter;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the number of a call site: the called function, and the address of the call.
pub(crate) fn site(area: &Area, called: Called, from: usize) -> u32 {
    place(site_key(called, from), SITES, |index| area.site(index)) as u32 + 1
}

/// Returns the number of the operation that begins with this function.
pub(crate) fn operation(area: &Area, function: u64) -> u16 {
    place(function, OPERATIONS, |index| area.operation(index)) as u16 + 1
}

/// Returns the index of `key`, which must not be 0; returns 0 if the table has no free entry for it.
fn place(key: u64, places: usize, table: impl Fn(usize) -> &'static AtomicU64) -> usize {
    const MOST_PROBES: usize = 64;
    let hash = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    let next = |index: &usize| Some((index + 1) % places);
    let probes = iter::successors(Some(hash % places), next).filter(|index| *index != 0);
    for index in probes.take(MOST_PROBES) {
        // Relaxed: the key publishes no other data.
        let mut found = table(index).load(Relaxed);
        if found == 0 {
            found = table(index).compare_exchange(0, key, Relaxed, Relaxed).err().unwrap_or(key);
        }
        if found == key {
            return index;
        }
    }
    0
}
