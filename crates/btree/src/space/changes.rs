//! Records the pages that are allocated or freed while a check of the whole store runs, or while a release of
//! free pages waits for a checkpoint.

use std::collections::HashMap;
use std::sync::Arc;

use azekura_base::PageId;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use super::{Space, map_of};
use crate::change::PageOp;

/// The running recordings.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    count: AtomicUsize,
    /// `true` if all recordings have a change, so that a change of rows adds nothing.
    has_any: AtomicBool,
    all: Mutex<Vec<(u64, Changes)>>,
}

#[derive(Debug, Default)]
struct Changes {
    /// `true` if any page was changed.
    is_any: bool,
    /// For each map, one bit for each page of its group.
    pages: HashMap<PageId, Vec<u64>>,
}

impl Changes {
    fn add(&mut self, map: PageId, first: u32, count: u32) {
        let bits = self.pages.entry(map).or_default();
        for bit in first..first + count {
            let at = (bit / 64) as usize;
            if bits.len() <= at {
                bits.resize(at + 1, 0);
            }
            bits[at] |= 1 << (bit % 64);
        }
    }
}

/// A recording of the pages that are allocated and freed, which ends with its drop.
///
/// A change is recorded if the recording thread latched the changed page before: that latch orders the start
/// of the recording before the change.
#[derive(Debug)]
pub(crate) struct Recording {
    recordings: Arc<Recordings>,
    page_size: usize,
    number: u64,
}

impl Drop for Recording {
    fn drop(&mut self) {
        let mut all = self.recordings.all.lock();
        all.retain(|&(number, _)| number != self.number);
        // Relaxed: see `is_recorded`.
        self.recordings.count.store(all.len(), Relaxed);
    }
}

impl Recording {
    fn of<T>(&self, look: impl FnOnce(&Changes) -> T) -> Option<T> {
        let all = self.recordings.all.lock();
        all.iter().find(|&&(number, _)| number == self.number).map(|(_, changes)| look(changes))
    }

    /// Returns `true` if the page was allocated or freed.
    pub(crate) fn is_changed(&self, page_id: PageId) -> bool {
        let (map, bit) = map_of(page_id, self.page_size);
        let is_set =
            |bits: &Vec<u64>| bits.get((bit / 64) as usize).is_some_and(|w| w >> (bit % 64) & 1 == 1);
        self.of(|changes| changes.pages.get(&map).is_some_and(is_set)).unwrap_or(false)
    }

    /// Returns one bit for each page of a group, lowest first: set if the page was allocated or freed. Bits
    /// that are not there are clear.
    pub(crate) fn changed_bits(&self, map: PageId) -> Vec<u64> {
        self.of(|changes| changes.pages.get(&map).cloned()).flatten().unwrap_or_default()
    }

    /// Returns `true` if any page was changed.
    pub(crate) fn is_any_changed(&self) -> bool {
        self.of(|changes| changes.is_any).unwrap_or(true)
    }
}

impl Space {
    /// Starts a recording.
    pub(crate) fn record(&self) -> Recording {
        let recordings = Arc::clone(&self.recordings);
        let mut all = recordings.all.lock();
        let number = all.last().map_or(0, |&(last, _)| last + 1);
        all.push((number, Changes::default()));
        // Relaxed: see `is_recorded`.
        recordings.has_any.store(false, Relaxed);
        recordings.count.store(all.len(), Relaxed);
        drop(all);
        Recording { recordings, page_size: self.page_size, number }
    }

    /// Returns `true` if a recording is running.
    pub(crate) fn is_recorded(&self) -> bool {
        // Relaxed: the caller has latched the pages that it changes. If the thread that started the recording
        // latched one of them before, that latch makes its store visible here.
        self.recordings.count.load(Relaxed) != 0
    }

    /// Adds a change to all recordings. `ops` holds the operations with their pages, which are still latched.
    #[cold]
    pub(crate) fn note_change<'a>(&self, ops: impl Iterator<Item = (PageId, &'a PageOp<'a>)> + Clone) {
        let is_of_maps = |op: &PageOp<'_>| {
            matches!(op, PageOp::SpaceSet { .. } | PageOp::SpaceClear { .. } | PageOp::SpaceMake { .. })
        };
        // Relaxed: as in `is_recorded`. Stored under the mutex, after the recordings got a change.
        if self.recordings.has_any.load(Relaxed) && !ops.clone().any(|(_, op)| is_of_maps(op)) {
            return;
        }
        let mut all = self.recordings.all.lock();
        self.recordings.has_any.store(true, Relaxed);
        for (_, changes) in all.iter_mut() {
            changes.is_any = true;
            for (map, op) in ops.clone() {
                match *op {
                    PageOp::SpaceSet { first, count } | PageOp::SpaceClear { first, count } => {
                        changes.add(map, first, count);
                    }
                    PageOp::SpaceMake { used } => changes.add(map, 0, used + 1),
                    _ => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recording_has_the_changes_of_its_time() {
        let space = Space::new(4096, 1 << 20);
        let take = [(PageId(0), PageOp::SpaceSet { first: 63, count: 2 })];
        let note = |ops: &[(PageId, PageOp<'_>)]| space.note_change(ops.iter().map(|(map, op)| (*map, op)));
        let first = space.record();
        assert!(!first.is_any_changed() && space.is_recorded());
        note(&take);
        let second = space.record();
        assert!([63, 64].iter().all(|&page| first.is_changed(PageId(page))) && !first.is_changed(PageId(65)));
        assert!(!second.is_any_changed() && !second.is_changed(PageId(63)));
        drop(first);
        note(&[(PageId(32512), PageOp::SpaceMake { used: 1 })]);
        assert!([32512, 32513].iter().all(|&page| second.is_changed(PageId(page))));
        assert!(!second.is_changed(PageId(32514)) && !second.is_changed(PageId(63)));
        drop(second);
        assert!(!space.is_recorded());
    }
}
