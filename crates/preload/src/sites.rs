//! A name for each call site, found without a lock.
//!
//! A site is what was called and the address it was called from. The table has one slot per site, claimed by
//! CAS and never given back; its entries live as long as the process. A full table gives all further sites
//! one name.
//!
//! - **SITES-1** A slot is null or points at an entry that is never changed or freed.

use azekura_trace::{Operation, Site};
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};
use std::{iter, ptr};

/// Slots; a power of two. Large programs have some hundred sites at which they ever wait.
const SLOTS: usize = 1 << 13;

/// A name that stands for an address: [`Site`] or [`Operation`].
pub(crate) trait Named: 'static {
    fn at(what: &'static str, address: &'static str) -> Self;
}

impl Named for Site {
    fn at(what: &'static str, address: &'static str) -> Self {
        Self::at(what, address, 0)
    }
}

impl Named for Operation {
    fn at(what: &'static str, address: &'static str) -> Self {
        Self::at(what, address, 0)
    }
}

struct Entry<N> {
    what: &'static str,
    address: usize,
    named: N,
}

/// Names by address.
pub(crate) struct Table<N: Named> {
    slots: [AtomicPtr<Entry<N>>; SLOTS],
    /// For all that comes when the table is full.
    rest: N,
}

pub(crate) static SITES: Table<Site> = Table::new(Site::at("more call sites", "", 0));
pub(crate) static STARTS: Table<Operation> = Table::new(Operation::at("more threads", "", 0));

impl<N: Named> Table<N> {
    const fn new(rest: N) -> Self {
        Self { slots: [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS], rest }
    }

    /// The name of `what`, called from (or starting at) `address`.
    pub(crate) fn of(&'static self, what: &'static str, address: usize) -> &'static N {
        for index in probes(what, address) {
            // Acquire: pairs with the Release in `claim`; the entry's content is visible.
            let mut entry = self.slots[index].load(Acquire);
            if entry.is_null() {
                entry = self.claim(index, what, address);
            }
            // SAFETY: SITES-1.
            let entry: &'static Entry<N> = unsafe { &*entry };
            if entry.address == address && ptr::eq(entry.what, what) {
                return &entry.named;
            }
        }
        &self.rest
    }

    /// Puts a new entry into an empty slot, and gives back the one that is there then.
    #[cold]
    fn claim(&self, index: usize, what: &'static str, address: usize) -> *mut Entry<N> {
        // The analyzer's side knows addresses by this sign; see crates/record.
        let place: &'static str = Box::leak(format!("@{address:x}").into_boxed_str());
        let entry = Box::into_raw(Box::new(Entry { what, address, named: N::at(what, place) }));
        // Release: pairs with the Acquire in `of`; on failure Acquire, for the other's entry.
        match self.slots[index].compare_exchange(ptr::null_mut(), entry, Release, Acquire) {
            Ok(_) => entry,
            Err(theirs) => {
                // SAFETY: made above, and nobody else has seen it. The place's few bytes stay.
                drop(unsafe { Box::from_raw(entry) });
                theirs
            }
        }
    }
}

/// Slots to look at, in order.
fn probes(what: &'static str, address: usize) -> impl Iterator<Item = usize> {
    const MOST: usize = 64;
    let key = (address ^ (what.as_ptr().addr() << 20)) as u64;
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    iter::successors(Some(hash as usize % SLOTS), |index| Some((index + 1) % SLOTS)).take(MOST)
}
