//! Pointer pages (section 3.1, figure 2): the locations of the copies of index pages that are not at this PE
//! alone.

use serde::{Deserialize, Serialize};

use crate::id::{LogicalPageId, PageNo, PeId, Pointer};
use crate::ranges::Ranges;

/// A page at some PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PageCopy {
    /// The PE.
    pub pe: PeId,
    /// The page at that PE; the root of its index if only the PE is known.
    pub page: PageNo,
}

/// Locations of the copies of one index page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PointerEntry {
    /// Copy at this PE.
    pub(crate) local: Option<PageNo>,
    /// The copy to use for each key: the one of the PE that owns the key's leaf, which always has a copy.
    pub(crate) holders: Ranges<PageCopy>,
    /// All copies, in the order of their PEs. Only the paper's protocols keep this list up to date.
    pub(crate) copies: Vec<PageCopy>,
}

/// Entries of a pointer page of 4 KiB, in the units of figure 3's offset field.
const ENTRIES_PER_PAGE: usize = 256;

/// The pointer pages of a PE.
#[derive(Clone, Debug, Default)]
pub(crate) struct PointerPages {
    entries: Vec<Option<PointerEntry>>,
    free: Vec<usize>,
}

impl PointerPages {
    pub(crate) fn add(&mut self, entry: PointerEntry) -> LogicalPageId {
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[number] = Some(entry);
                number
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() - 1
            }
        };
        LogicalPageId::copies((number / ENTRIES_PER_PAGE) as u64, (number % ENTRIES_PER_PAGE) as u16)
    }

    /// Returns the entry that `id` points to; `None` if `id` points to a page.
    pub(crate) fn get(&self, id: LogicalPageId) -> Option<&PointerEntry> {
        self.entries.get(number(id)?)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: LogicalPageId) -> Option<&mut PointerEntry> {
        self.entries.get_mut(number(id)?)?.as_mut()
    }

    pub(crate) fn remove(&mut self, id: LogicalPageId) -> Option<PointerEntry> {
        let number = number(id)?;
        let entry = self.entries.get_mut(number)?.take();
        if entry.is_some() {
            self.free.push(number);
        }
        entry
    }

    /// Returns the versions of all holders.
    pub(crate) fn versions(&self) -> impl Iterator<Item = u64> {
        let entries = self.entries.iter().flatten();
        entries.flat_map(|entry| entry.holders.pieces()).map(|piece| piece.version)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }
}

fn number(id: LogicalPageId) -> Option<usize> {
    match id.pointer() {
        Pointer::Page(..) => None,
        Pointer::Copies { page, offset } => Some(page as usize * ENTRIES_PER_PAGE + usize::from(offset)),
    }
}
