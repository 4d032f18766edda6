//! The locks of one transaction.

use std::time::Duration;

use azekura_base::TxnId;

use crate::id::LockId;
use crate::mode_bits::{self, Family, ModeBits};
use crate::stripe::NONE;

/// One lock in the list of its holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) id: LockId,
    /// The request in the lock's stripe; for a noted intent, the note's number.
    pub(crate) request: u32,
    pub(crate) mode_bits: ModeBits,
    /// `true` for a noted intent, which is not a request: see `intent`.
    pub(crate) is_note: bool,
    /// `true` if the table's strong count was raised for this lock.
    pub(crate) is_strong: bool,
}

/// The locks of one transaction, and its owner entry in the lock table.
///
/// Made by [`LockTable::begin`](crate::LockTable::begin). Passed to
/// [`LockTable::release_all`](crate::LockTable::release_all), or emptied by
/// [`LockTable::release`](crate::LockTable::release) and reused. A drop without either leaves its locks held
/// until the table is dropped, so its owner must release it in its own drop. The value can move between
/// threads; one thread uses it at a time.
#[derive(Debug)]
#[must_use = "the locks stay held until `release_all`"]
pub struct TxnLocks {
    pub(crate) owner: u32,
    pub(crate) txn: TxnId,
    pub(crate) timeout: Option<Duration>,
    pub(crate) is_nowait: bool,
    /// The owner's home as last written (HOME-1).
    pub(crate) home: u32,
    pub(crate) is_detached: bool,
    /// `has_strong`: a lock stronger than an intent is held on some table. `closes_gaps`: a gap is held in S
    /// or X. Most transactions have neither, and need not search for them.
    has_strong: bool,
    closes_gaps: bool,
    /// Positions of the range counts that the transaction has raised.
    pub(crate) range_places: Vec<u32>,
    held: Vec<Held>,
    /// A hash index over `held` by name, with open addressing. Empty while a linear search of `held` is
    /// cheaper.
    index: Vec<u32>,
}

/// Number of locks up to which the list is searched linearly.
const SEARCHED: usize = 8;
/// Number of locks above which a list is not kept for the next transaction.
const KEPT: usize = 4096;

impl TxnLocks {
    pub(crate) const fn new(owner: u32) -> Self {
        Self {
            owner,
            txn: TxnId(0),
            timeout: None,
            is_nowait: false,
            home: 0,
            is_detached: false,
            has_strong: false,
            closes_gaps: false,
            range_places: Vec::new(),
            held: Vec::new(),
            index: Vec::new(),
        }
    }

    /// Returns the transaction.
    #[must_use]
    pub const fn txn(&self) -> TxnId {
        self.txn
    }

    /// Returns the number of held locks, without ranges. Each lock needs about 100 bytes. A caller may prefer
    /// one lock on the table to a million locks on its keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns `true` if no lock is held.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.held.is_empty() && self.range_places.is_empty()
    }

    /// Sets the bound of each later wait of this transaction; `None`: no bound (deadlocks are detected
    /// anyway).
    pub const fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Enables or disables failing instead of waiting. If enabled, later requests of this transaction that
    /// would wait fail with [`LockError::WouldBlock`](crate::LockError::WouldBlock) and change nothing. Such
    /// a transaction never waits, so it cannot deadlock.
    pub const fn set_nowait(&mut self, nowait: bool) {
        self.is_nowait = nowait;
    }

    /// Returns `true` if later requests fail instead of waiting; see [`set_nowait`](Self::set_nowait).
    #[must_use]
    pub const fn is_nowait(&self) -> bool {
        self.is_nowait
    }

    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    #[inline]
    pub(crate) fn find(&self, id: LockId) -> Option<usize> {
        if self.index.is_empty() {
            return self.held.iter().position(|h| h.id == id);
        }
        let mask = self.index.len() - 1;
        let mut at = id.spread() as usize & mask;
        loop {
            match self.index[at] {
                NONE => return None,
                found if self.held[found as usize].id == id => return Some(found as usize),
                _ => at = (at + 1) & mask,
            }
        }
    }

    pub(crate) fn get(&self, id: LockId) -> Option<&Held> {
        self.find(id).map(|at| &self.held[at])
    }

    /// Returns `true` if the transaction holds a table lock that is stronger than an intent.
    pub(crate) const fn has_strong(&self) -> bool {
        self.has_strong
    }

    /// Returns `true` if the transaction holds a gap in S or X.
    pub(crate) const fn closes_gaps(&self) -> bool {
        self.closes_gaps
    }

    /// Returns `true` if the transaction has range locks.
    #[inline]
    pub(crate) const fn has_ranges(&self) -> bool {
        !self.range_places.is_empty()
    }

    /// Records that key locks with these mode bits are held.
    pub(crate) const fn note_gap(&mut self, mode_bits: ModeBits) {
        self.closes_gaps |= mode_bits::closes_gap(mode_bits);
    }

    pub(crate) fn mode_bits(&self, id: LockId) -> ModeBits {
        self.get(id).map_or(0, |h| h.mode_bits)
    }

    /// Adds a lock, or replaces its entry.
    #[inline]
    pub(crate) fn put(&mut self, held: Held) {
        self.has_strong |= held.is_strong;
        if held.id.family() == Family::Key {
            self.note_gap(held.mode_bits);
        }
        if let Some(at) = self.find(held.id) {
            self.held[at] = held;
            return;
        }
        self.held.push(held);
        if self.held.len() > SEARCHED {
            if self.index.len() < self.held.len() * 2 {
                self.rebuild_index();
            } else {
                self.add_to_index(self.held.len() - 1);
            }
        }
    }

    fn add_to_index(&mut self, position: usize) {
        let mask = self.index.len() - 1;
        let mut at = self.held[position].id.spread() as usize & mask;
        while self.index[at] != NONE {
            at = (at + 1) & mask;
        }
        self.index[at] = position as u32;
    }

    #[cold]
    fn rebuild_index(&mut self) {
        let size = (self.held.len() * 4).next_power_of_two();
        self.index.clear();
        self.index.resize(size, NONE);
        for position in 0..self.held.len() {
            self.add_to_index(position);
        }
    }

    /// Removes all locks; keeps memory of ordinary size for the next transaction.
    pub(crate) fn reset(&mut self) {
        (self.has_strong, self.closes_gaps) = (false, false);
        self.held.clear();
        self.index.clear();
        if self.held.capacity() > KEPT {
            (self.held, self.index) = (Vec::new(), Vec::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_base::TreeId;

    #[test]
    fn finds_inserted_entries_at_every_size() {
        let mut locks = TxnLocks::new(0);
        for round in 0..2 {
            for n in 0..500 {
                let id = LockId::table(TreeId(n * 64));
                assert!(locks.find(id).is_none(), "round {round}");
                for mode_bits in [1, 2] {
                    locks.put(Held { id, request: n, mode_bits, is_note: false, is_strong: false });
                }
                assert_eq!(locks.len(), n as usize + 1);
                assert!(
                    (0..=n).all(|m| locks.get(LockId::table(TreeId(m * 64))).map(|h| h.request) == Some(m))
                );
            }
            assert_eq!(locks.mode_bits(LockId::table(TreeId(64))), 2);
            locks.reset();
        }
    }
}
