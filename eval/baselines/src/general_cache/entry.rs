//! Storage of one key with its value.

use std::cell::UnsafeCell;

use azekura_buffer::parts::Evicted;

/// The place of one entry. CACHE-1 states the rules of its use.
#[derive(Debug)]
pub(super) struct Entry<K, V> {
    held: UnsafeCell<Option<(K, V)>>,
    /// Lets a model detect a read of the entry during a store or a removal.
    #[cfg(loom)]
    witness: loom::cell::UnsafeCell<()>,
}

// SAFETY: CACHE-1: only the owner of an evicted frame writes the entry, there is one owner (FRAME-2), and no
// thread has a pin then. The orderings of the pin word make the owner's writes visible to pinners, and
// readers' accesses to the next owner. Entries are inserted by one thread and dropped by another (Send), and
// read by several at once (Sync).
unsafe impl<K: Send + Sync, V: Send + Sync> Sync for Entry<K, V> {}

impl<K, V> Entry<K, V> {
    pub(super) fn empty() -> Self {
        Self {
            held: UnsafeCell::new(None),
            #[cfg(loom)]
            witness: loom::cell::UnsafeCell::new(()),
        }
    }

    /// Stores an entry in an empty place.
    pub(super) fn put(&self, _owner: &Evicted, entry: (K, V)) {
        #[cfg(loom)]
        self.witness.with_mut(|_| ());
        // SAFETY: CACHE-1; `_owner` proves the ownership. The old value was removed, so nothing is dropped.
        unsafe { *self.held.get() = Some(entry) };
    }

    /// Removes the entry.
    pub(super) fn take(&self, _owner: &Evicted) -> Option<(K, V)> {
        #[cfg(loom)]
        self.witness.with_mut(|_| ());
        // SAFETY: CACHE-1; `_owner` proves the ownership.
        unsafe { (*self.held.get()).take() }
    }

    /// Returns the entry.
    ///
    /// # Safety
    ///
    /// The caller has pinned the frame, and keeps the pin as long as it uses the reference.
    ///
    /// # Panics
    ///
    /// Never: a frame is published after its entry was stored.
    pub(super) unsafe fn get(&self) -> &(K, V) {
        #[cfg(loom)]
        self.witness.with(|_| ());
        // SAFETY: CACHE-1; the frame is pinned, by the caller's contract.
        unsafe { (*self.held.get()).as_ref() }.expect("published with its entry")
    }
}
