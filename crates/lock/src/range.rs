//! Range locks: a scan locks a run of keys by one entry with its owner, not by a request for each key.
//!
//! 1. The scan raises a *range count* (once per transaction and count): the count of the tree and the first 8
//!    or 4 bytes of the keys, if all keys of the range have the same ones, or the count of the tree. It
//!    stores an entry with tree, bounds and mode with its owner, under the owner's mutex. A full fence
//!    follows.
//! 2. It reads the *exclusive count* of each key's stripe: the number of requests in the stripe, held or
//!    waiting, that conflict with a scan. If the count is 0, the key is locked. Otherwise an ordinary request
//!    locks the key; if that is refused, the scan removes the entry.
//! 3. A request that conflicts with a scan raises the exclusive count of its stripe, under the stripe's
//!    latch, and a full fence follows. If another transaction has raised one of the three range counts that
//!    the key belongs to, the request checks all owners. For each entry that contains the key, an ordinary
//!    held request of that owner is made (the key is *shared*). Then the request queues as usual.
//! 4. At its end a transaction removes its entries; keys that were shared are released as requests.
//!
//! - **KEYRANGE-1** While a request that conflicts with a scan holds a key, or waits for it, each transaction
//!   that has the key in a range has an ordinary request on it, except by KEYRANGE-2. So the queue's rules
//!   and the deadlock search include all holders.
//! - **KEYRANGE-2** Each key that existed when its range was entered is locked. The range also contains keys
//!   that did not exist. Another transaction may hold an exclusive lock on such a key, because it removed the
//!   key or read it for update. Then the key is not shared, and the range does not lock it: the scan relies
//!   on the gap above the key. If the scan was refused that gap, the key may be inserted later. So while a
//!   conflicting request exists, the owner of the range holds the key only if it has a request on it.
//! - **KEYRANGE-3** A shared key is in the owner's list from the moment when its request is made, until the
//!   transaction adopts the request (a grant) or releases it.
//!
//! Proof of KEYRANGE-1 for a scan S and a request R. One of the two fences comes first. If it is the fence of
//! S, R reads the raised range count, a number of owners that includes S's owner, and the owner's flag. So R
//! visits the owner and finds the entry. If the fence of R comes first, S reads the raised exclusive count.
//! So S detects R, or R finds the entry. If both happen, S makes an ordinary request for the key, too, and
//! one of them waits for the other.
//!
//! A key is shared only while its owner runs, or before the request that shares it begins to wait. The shared
//! request blocks no request that waits already, because none of them conflicts with it. So the proof in
//! `deadlock` holds: the wait that begins last finds the cycle.

use std::sync::OnceLock;

use azekura_base::sync::atomic::{
    AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};
use azekura_base::{Lsn, TreeId};

use crate::cell::StripeGuard;
use crate::id::{KeyRef, LockId};
use crate::mode::KeyMode;
use crate::mode_bits::{self, Family, ModeBits};
use crate::queue::Wakes;
use crate::stripe::NONE;
use crate::table::{Attempt, LockTable};
use crate::txn::TxnLocks;

/// Mode bits that conflict with a scan: record X, gap I and gap X.
pub(crate) const EXCLUSIVE: ModeBits = mode_bits::conflicts(Family::Key, mode_bits::of_key(KeyMode::SCAN));

/// Largest number of ranges of one transaction. A further scan locks its keys one by one, because a request
/// that conflicts with scans reads all ranges.
const MOST: usize = 64;

/// The keys from `from` to below `to`; a `to` of `None` is the end of the tree.
#[derive(Debug)]
struct Range {
    tree: TreeId,
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    mode_bits: ModeBits,
}

impl Range {
    fn contains(&self, tree: TreeId, key: &[u8]) -> bool {
        self.tree == tree && *self.from <= *key && self.to.as_deref().is_none_or(|to| key < to)
    }

    fn contains_range(&self, tree: TreeId, from: &[u8], to: Option<&[u8]>) -> bool {
        let reaches = |end: &Vec<u8>| to.is_some_and(|to| *to <= **end);
        self.tree == tree && *self.from <= *from && self.to.as_ref().is_none_or(reaches)
    }
}

/// The ranges of one owner, under the owner's mutex. Only the owner's thread changes the entries; other
/// threads add shared keys.
#[derive(Debug)]
pub(crate) struct Ranges {
    all: Vec<Range>,
    /// Requests that were made for keys of the ranges (KEYRANGE-3).
    shared: Vec<(LockId, u32)>,
    /// Total number of ranges locked here.
    pub(crate) acquisitions: u64,
}

/// The change that entered a range, which is needed to undo it.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// No change: a range contains the new one already.
    Nothing,
    Added,
    /// The last range was extended at its upper end.
    Above,
    /// The last range was extended at its lower end.
    Below,
}

impl Ranges {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), shared: Vec::new(), acquisitions: 0 }
    }

    /// Enters a range, or extends the last one if the two are adjacent, unless a range contains it. Returns
    /// `None` if there are too many ranges, or ranges with other mode bits: then only a part of the two might
    /// be locked.
    fn enter(&mut self, tree: TreeId, from: &[u8], to: Option<&[u8]>, mode_bits: ModeBits) -> Option<Change> {
        if self.all.first().is_some_and(|range| range.mode_bits != mode_bits) {
            return None;
        }
        if self.all.iter().any(|range| range.contains_range(tree, from, to)) {
            return Some(Change::Nothing);
        }
        if let Some(last) = self.all.last_mut().filter(|last| last.tree == tree) {
            if last.to.as_deref() == Some(from) {
                last.to = to.map(<[u8]>::to_vec);
                self.acquisitions += 1;
                return Some(Change::Above);
            }
            if to == Some(&*last.from) {
                last.from = from.to_vec();
                self.acquisitions += 1;
                return Some(Change::Below);
            }
        }
        if self.all.len() == MOST {
            return None;
        }
        self.all.push(Range { tree, from: from.to_vec(), to: to.map(<[u8]>::to_vec), mode_bits });
        self.acquisitions += 1;
        Some(Change::Added)
    }

    /// Undoes the last change.
    fn take_back(&mut self, change: Change, from: &[u8], to: Option<&[u8]>) {
        match (change, self.all.last_mut()) {
            (Change::Above, Some(last)) => last.to = Some(from.to_vec()),
            (Change::Below, Some(last)) => last.from = to.map(<[u8]>::to_vec).unwrap_or_default(),
            (Change::Added, _) => drop(self.all.pop()),
            (Change::Nothing, _) | (_, None) => {}
        }
    }

    /// Returns the mode bits of all ranges that contain `key`.
    pub(crate) fn find(&self, tree: TreeId, key: &[u8]) -> ModeBits {
        let found = self.all.iter().filter(|range| range.contains(tree, key));
        mode_bits::normal(Family::Key, found.fold(0, |all, range| all | range.mode_bits))
    }

    fn shared(&self, id: LockId) -> u32 {
        self.shared.iter().find(|shared| shared.0 == id).map_or(NONE, |shared| shared.1)
    }
}

/// Lengths of the prefixes of keys that have counts. Few ranges of other transactions then have the counts of
/// a key: with tables of rows by customer or warehouse, for example, those of the same one.
const PREFIXES: [usize; 3] = [8, 4, 0];

/// Number of counts: a power of two. Two places of a few hundred that are in use rarely share a count.
const COUNTS: usize = if cfg!(loom) { 1 } else { 1 << 14 };

/// Largest number of counts that one transaction raises for prefixes; further ranges raise the count of the
/// tree.
const MOST_PLACES: usize = 16;

/// Numbers of transactions with range locks, by hash of the tree and a prefix of the keys. Allocated by the
/// first range lock.
#[derive(Debug)]
pub(crate) struct RangeCounts(OnceLock<Box<[AtomicU32]>>);

impl RangeCounts {
    pub(crate) fn new() -> Self {
        let counts = Self(OnceLock::new());
        if cfg!(loom) {
            counts.all(); // The atomics of a model are made before its threads.
        }
        counts
    }

    fn all(&self) -> &[AtomicU32] {
        self.0.get_or_init(|| (0..COUNTS).map(|_| AtomicU32::new(0)).collect())
    }

    /// Returns `false` if no other transaction has a range lock that contains the key; `own` are the places
    /// of the caller's ranges. A thread that has executed a fence after the fence in `try_lock_range` reads
    /// the counts that were raised before the latter (KEYRANGE-1).
    fn may_have(&self, tree: TreeId, key: &[u8], own: &[u32]) -> bool {
        let Some(counts) = self.0.get() else { return false };
        PREFIXES.into_iter().filter(|&len| len <= key.len()).any(|len| {
            let place = place(tree, &key[..len]);
            // Acquire: pairs with the Release in `release_ranges`. A requester that reads the count without
            // a scan comes after the scan has ended, as if it had received the lock from it.
            counts[place as usize].load(Acquire) > u32::from(own.contains(&place))
        })
    }
}

/// Returns the position of the count for the keys of a tree with this prefix.
fn place(tree: TreeId, prefix: &[u8]) -> u32 {
    (LockId::key(0, tree, KeyRef::Key(prefix)).spread() % COUNTS as u64) as u32
}

/// Returns `true` if all keys of `from..to` begin with the first `len` bytes of `from`.
fn has_one_prefix(from: &[u8], to: Option<&[u8]>, len: usize) -> bool {
    let Some(prefix) = from.get(..len) else { return false };
    // The least string above all strings with this prefix; none if the prefix has only the largest bytes.
    let Some(last) = prefix.iter().rposition(|&byte| byte != u8::MAX) else { return true };
    to.is_some_and(|to| {
        to.starts_with(prefix)
            || to.len() == last + 1 && to[..last] == prefix[..last] && to[last] == prefix[last] + 1
    })
}

impl LockTable {
    /// Locks the keys of `from..to` for a scan, if that is possible at once. `keys` are all keys that exist
    /// in the range, in any order. One entry locks them all, except keys in stripes with requests that
    /// conflict with scans. `mode` has neither an exclusive part nor an insert intention.
    ///
    /// Returns the commit LSN that the transaction now depends on (W8). May be called under a page latch.
    ///
    /// # Errors
    ///
    /// The index of a key that another transaction blocks: the range is not locked.
    pub fn try_lock_range<'k>(
        &self,
        t: &mut TxnLocks,
        tree: TreeId,
        (from, to): (&[u8], Option<&[u8]>),
        keys: impl Iterator<Item = &'k [u8]>,
        mode: KeyMode,
    ) -> Result<Lsn, usize> {
        let mode_bits = mode_bits::of_key(mode);
        debug_assert_eq!(mode_bits & EXCLUSIVE, 0, "a scan's mode");
        if self.table_covers(t, tree, mode) {
            return Ok(Lsn(0));
        }
        self.set_home(t);
        let owner = self.owners.get(t.owner);
        let is_shared = |len: &usize| has_one_prefix(from, to, *len) && t.range_places.len() < MOST_PLACES;
        let len = PREFIXES.into_iter().find(is_shared).unwrap_or_default();
        let place = place(tree, &from[..len]);
        if !t.range_places.contains(&place) {
            // Relaxed: ordered by the fence below.
            self.range_counts.all()[place as usize].fetch_add(1, Relaxed);
            t.range_places.push(place);
            owner.set_has_ranges(true);
        }
        let entered = owner.ranges.lock().enter(tree, from, to, mode_bits);
        t.note_gap(mode_bits);
        // SeqCst: pairs with the fence in `share_ranges` (KEYRANGE-1).
        fence(SeqCst);
        let mut newest = Lsn(0);
        for (i, key) in keys.enumerate() {
            let id = self.key_id(tree, KeyRef::Key(key));
            if entered.is_some() && !self.stripe(id).has_exclusive() {
                newest = newest.max(self.depend.find(id, mode_bits)); // DEPEND-1
                continue;
            }
            let in_range = owner.ranges.lock().find(tree, key);
            match self.attempt_id(t, tree, KeyRef::Key(key), (id, in_range), (mode, false)) {
                Attempt::Granted(lsn) => newest = newest.max(lsn),
                Attempt::Refused(_) => {
                    if let Some(change) = entered {
                        owner.ranges.lock().take_back(change, from, to);
                    }
                    return Err(i);
                }
            }
        }
        Ok(newest)
    }

    /// Returns the mode bits of the transaction's ranges on a key.
    #[inline]
    pub(crate) fn mode_bits_in_range(&self, t: &TxnLocks, tree: TreeId, key: KeyRef<'_>) -> ModeBits {
        match key {
            KeyRef::Key(key) if t.has_ranges() => self.owners.get(t.owner).ranges.lock().find(tree, key),
            KeyRef::Key(_) | KeyRef::End => 0,
        }
    }

    /// Makes requests for all ranges of other transactions that contain the key, if `want` conflicts with a
    /// scan. `own` are the places of the requester's ranges, or a part of them. The caller holds the stripe's
    /// latch until the request is in its queue or is withdrawn.
    pub(crate) fn share_ranges(
        &self,
        stripe: &mut StripeGuard<'_>,
        (id, requester, own): (LockId, u32, &[u32]),
        (tree, key): (TreeId, KeyRef<'_>),
        want: ModeBits,
    ) {
        let KeyRef::Key(key) = key else { return }; // Ranges contain keys, not the end of the tree.
        if want & EXCLUSIVE == 0 {
            return;
        }
        stripe.announce_exclusive();
        // SeqCst: pairs with the fence in `try_lock_range` (KEYRANGE-1).
        fence(SeqCst);
        if !self.range_counts.may_have(tree, key, own) {
            return;
        }
        for number in (0..self.owners.len_after_fence()).filter(|&number| number != requester) {
            let owner = self.owners.get(number);
            if owner.has_ranges() {
                let mut ranges = owner.ranges.lock();
                let mode_bits = ranges.find(tree, key);
                if mode_bits != 0 {
                    let request = stripe.share(id, number, mode_bits);
                    ranges.shared.extend(request.map(|request| (id, request)));
                }
            }
        }
    }

    /// Returns the request of the transaction's own range on a key; makes it if there is none. Returns
    /// [`NONE`] in three cases: the range does not contain the key, the range does not lock it (KEYRANGE-2),
    /// or the range has added to a request that the transaction held before. The caller holds the stripe's
    /// latch.
    pub(crate) fn own_shared(
        &self,
        stripe: &mut StripeGuard<'_>,
        owner: u32,
        id: LockId,
        mode_bits: ModeBits,
    ) -> u32 {
        let mut ranges = self.owners.get(owner).ranges.lock();
        let found = ranges.shared(id);
        if found != NONE || mode_bits == 0 {
            return found;
        }
        let made = stripe.share(id, owner, mode_bits);
        ranges.shared.extend(made.map(|request| (id, request)));
        made.unwrap_or(NONE)
    }

    /// Removes a shared key from the list: its request has become an ordinary held lock (KEYRANGE-3).
    pub(crate) fn take_over_shared(&self, t: &TxnLocks, id: LockId) {
        self.owners.get(t.owner).ranges.lock().shared.retain(|shared| shared.0 != id);
    }

    pub(crate) fn release_ranges(&self, t: &mut TxnLocks, wakes: &mut Wakes) {
        let owner = self.owners.get(t.owner);
        let mut ranges = owner.ranges.lock();
        ranges.all.clear();
        let shared = std::mem::take(&mut ranges.shared);
        owner.set_has_ranges(false);
        drop(ranges);
        for place in t.range_places.drain(..) {
            // Release: pairs with the Acquire in `may_have`. A request that still reads the old count finds
            // no entry.
            self.range_counts.all()[place as usize].fetch_sub(1, Release);
        }
        for (id, request) in shared {
            self.stripe(id).lock().release(request, &self.owners, wakes);
        }
        self.wake(wakes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Compares the answer with all strings of three different bytes, up to a length of 3.
    #[test]
    fn a_range_has_one_prefix_only_if_all_its_keys_begin_with_it() {
        let mut all = vec![Vec::new()];
        for length in 0..3 {
            let longer = all.iter().filter(|key: &&Vec<u8>| key.len() == length);
            let longer = longer.flat_map(|key| [0, 1, 255].map(|last| [key.as_slice(), &[last]].concat()));
            all.extend(longer.collect::<Vec<_>>());
        }
        let mut found = [0; 3];
        for (from, to) in all.iter().flat_map(|from| all.iter().map(move |to| (from, to))) {
            for len in 0..3 {
                if from < to && has_one_prefix(from, Some(to), len) {
                    found[len] += 1;
                    let keys = all.iter().filter(|key| (from..to).contains(key));
                    keys.for_each(|key| assert!(key.starts_with(&from[..len]), "{from:?} {to:?} {len}"));
                }
            }
        }
        assert!(found.iter().all(|&ranges| ranges > 50), "{found:?}");
        assert!(has_one_prefix(&[255, 255, 1], None, 2) && !has_one_prefix(&[255, 1], None, 2));
        assert!(has_one_prefix(b"ab", Some(b"ac"), 2), "a prefix scan");
        assert!(!has_one_prefix(b"ab", Some(b"ac\0"), 2), "it contains \"ac\"");
    }

    /// Requests for keys of other prefixes, and of the own range, need not look at the owners.
    #[test]
    fn a_range_has_the_count_of_its_prefix() {
        let table = LockTable::new(crate::LockOptions::default());
        let mut scan = table.begin(azekura_base::TxnId(1));
        let tree = TreeId(1);
        let mut range = |from: &[u8], to: Option<&[u8]>| {
            let locked = table.try_lock_range(&mut scan, tree, (from, to), std::iter::empty(), KeyMode::SCAN);
            assert_eq!(locked, Ok(Lsn(0)));
            scan.range_places.clone()
        };
        let own = range(b"customer1", Some(b"customer5"));
        let may_have = |key: &[u8], own: &[u32]| table.range_counts.may_have(tree, key, own);
        assert!(may_have(b"customer7", &[]) && !may_have(b"customer7", &own));
        assert!(!may_have(b"customerx"[..8].strip_suffix(b"r").expect("a suffix"), &[]), "a shorter key");
        assert!(!may_have(b"custody00", &[]) && !may_have(b"item", &[]));
        range(b"customer5", Some(b"cusu"));
        assert!(may_have(b"custody00", &own) && !may_have(b"item", &[]));
        let own = range(b"d", None);
        assert!(may_have(b"item", &[]) && !may_have(b"item", &own));
        table.release_all(scan, None);
        assert!(!may_have(b"customer7", &[]) && !may_have(b"item", &[]));
    }
}
