//! Groups of rows with adjacent keys. One mutex protects the versions of a group.
//!
//! Each tree with versions is divided into ranges of keys, its groups. A group begins with all keys that no
//! other group has, and is divided when it has many versions. So the rows of one leaf are in one group or in
//! a few adjacent ones, whatever the leaves of the tree do, and no version moves when a leaf is split or
//! merged. For each page a *hint* has the number of the group that was used last for it, so that most
//! look-ups lock only this group.
//!
//! - **GROUP-1** The ranges of the groups of a tree are disjoint. The range of a group changes only while the
//!   directory is locked exclusively, and under the mutexes of the group and of its inbox. So a thread that
//!   has locked a group that covers a key has all versions of the row.
//! - **GROUP-2** If a thread finds no version of a row, and a transaction stores one later, then all that the
//!   thread did before happens before the transaction's next steps. Both lock the directory or the inbox of
//!   the same group, or of groups that follow from each other under these locks.
//! - **GROUP-3** A group is never freed, only used again for another range. So a thread can lock the group of
//!   any hint, and the range tells whether it is the right one.
//!
//! - **GROUP-4** A writer adds its version to the *inbox* of a group, under a mutex that is held for a few
//!   instructions only. Each thread that locks the group then moves the versions from the inbox to the other
//!   versions of the group. So a writer, which holds a row lock and a latch, does not wait for a scan that
//!   reads the group, also if the scan has lost its processor. The inbox has the range of its group.
//!
//! Order of locks: directory, group, inbox.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

// The atomic type of std: no protocol depends on the number, and a model has no step for it.
use std::sync::atomic::AtomicUsize as MostNew;

use azekura_base::striped::stripe_count;
use azekura_base::sync::atomic::{
    AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use azekura_base::sync::{Mutex, MutexGuard, RwLock};
use azekura_base::{CachePadded, PageId, TreeId};

use super::row::Version;
use super::sorted::{Inbox, Key, Sorted};

/// Number of versions beyond which a group is divided. With fewer groups, the rows of more leaves are in one
/// group, so hints and scans find one group for a leaf.
const MOST: usize = if cfg!(test) { 60 } else { 1024 };
/// The same number while there are fewer groups than stripes of threads, so that few versions also spread
/// over many mutexes.
const FEW: usize = if cfg!(test) { 40 } else { 128 };
/// Memory for versions per hint, in bytes. The default limit for versions is a quarter of the cache, so there
/// is about one hint for a page of 16 KiB.
const BYTES_PER_HINT: u64 = 4 << 10;
/// Smallest and largest number of hints. A model has one.
const HINTS: (u64, u64) = if cfg!(loom) { (1, 1) } else { (64, 1 << 18) };
/// Number of groups that are removed while the directory stays locked.
const REMOVED_AT_ONCE: usize = if cfg!(test) { 2 } else { 64 };
/// Number of groups that are allocated first: a power of two.
const FIRST: u32 = if cfg!(loom) { 1 } else { 16 };
/// Number of allocations of groups; each one doubles their number.
const ALLOCATIONS: usize = 28;

/// A range of keys of a tree.
#[derive(Debug)]
struct Range {
    tree: TreeId,
    lower: Box<[u8]>,
    /// The first key after the range; `None` if the range includes all larger keys.
    upper: Option<Box<[u8]>>,
    /// The prefixes of the bounds: most comparisons need only these.
    prefixes: (u64, u64),
}

impl Range {
    fn new(tree: TreeId, lower: &[u8], upper: Option<&[u8]>) -> Self {
        let prefixes = (Key::new(lower).prefix(), upper.map_or(u64::MAX, |upper| Key::new(upper).prefix()));
        Self { tree, lower: lower.into(), upper: upper.map(Into::into), prefixes }
    }

    fn covers(&self, tree: TreeId, key: Key<'_>) -> bool {
        let (prefix, (lower, upper)) = (key.prefix(), self.prefixes);
        self.tree == tree
            && (lower < prefix || lower == prefix && *self.lower <= *key.bytes())
            && (prefix < upper || self.upper.as_ref().is_none_or(|upper| key.bytes() < &**upper))
    }

    /// Returns the number of bytes with which all keys of the range begin: the first bytes that the bounds
    /// share. A key without these bytes is below the lower bound or not below the upper one.
    fn shared(&self) -> usize {
        let upper = self.upper.as_deref().unwrap_or_default();
        self.lower.iter().zip(upper).take_while(|(a, b)| a == b).count()
    }

    /// Returns `true` if no key below `to` comes after the range.
    fn reaches(&self, to: Option<Key<'_>>) -> bool {
        self.upper.as_ref().is_none_or(|upper| to.is_some_and(|to| to.bytes() <= &**upper))
    }
}

/// The versions of a group.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// `None` while the group is not in use.
    range: Option<Arc<Range>>,
    pub(super) sorted: Sorted,
    /// Changes of the number and the memory of versions that are not in the totals yet.
    pub(super) unreported: (i64, i64),
    /// `true` if the group had no version at the last sweep.
    was_empty: bool,
    /// `true` if the next writer should divide the group.
    pub(super) is_large: bool,
}

/// The versions that writers have added to a group since it was locked last.
#[derive(Debug, Default)]
pub(super) struct New {
    range: Option<Arc<Range>>,
    inbox: Inbox,
    pub(super) unreported: (i64, i64),
}

fn covers(range: Option<&Arc<Range>>, tree: TreeId, key: Key<'_>) -> bool {
    range.is_some_and(|range| range.covers(tree, key))
}

impl New {
    /// Adds a version.
    pub(super) fn push(&mut self, key: Key<'_>, version: Version) {
        self.inbox.push(key, version);
    }
}

#[derive(Debug, Default)]
pub(super) struct Group {
    rows: Mutex<Rows>,
    new: Mutex<New>,
    /// Number of versions in the inbox from which a writer orders the versions of the group.
    most_new: MostNew,
}

/// A locked group, which has the versions of its inbox.
pub(super) struct LockedGroup<'a> {
    group: &'a Group,
    rows: MutexGuard<'a, Rows>,
}

impl Group {
    fn lock(&self) -> LockedGroup<'_> {
        LockedGroup::of(self, self.rows.lock())
    }

    /// Locks the group, unless another thread has locked it.
    pub(super) fn try_lock(&self) -> Option<LockedGroup<'_>> {
        self.rows.try_lock().map(|rows| LockedGroup::of(self, rows))
    }
}

impl Drop for LockedGroup<'_> {
    fn drop(&mut self) {
        let most = if self.rows.is_large { 1 } else { self.rows.sorted.most_new() };
        self.group.most_new.store(most, Relaxed); // Relaxed: only selects the writer that orders
    }
}

impl<'a> LockedGroup<'a> {
    fn of(group: &'a Group, mut rows: MutexGuard<'a, Rows>) -> Self {
        absorb(&mut rows, &mut group.new.lock());
        Self { group, rows }
    }

    fn covers(&self, tree: TreeId, key: Key<'_>) -> bool {
        covers(self.range.as_ref(), tree, key)
    }

    /// Calls `change`, which may replace the range of the group, while no writer can add a version. The
    /// directory is locked exclusively (GROUP-1).
    fn change<R>(&mut self, change: impl FnOnce(&mut Rows) -> R) -> R {
        let (mut new, rows) = (self.group.new.lock(), &mut *self.rows);
        absorb(rows, &mut new);
        let result = change(rows);
        if let Some(range) = &rows.range {
            rows.sorted.share(range.shared());
        }
        new.range.clone_from(&rows.range);
        new.inbox = rows.sorted.inbox();
        result
    }
}

/// Moves the versions of the inbox to the other versions.
fn absorb(rows: &mut Rows, new: &mut New) {
    rows.sorted.absorb(&mut new.inbox);
    let (versions, bytes) = std::mem::take(&mut new.unreported);
    rows.unreported = (rows.unreported.0 + versions, rows.unreported.1 + bytes);
}

impl Deref for LockedGroup<'_> {
    type Target = Rows;

    fn deref(&self) -> &Rows {
        &self.rows
    }
}

impl DerefMut for LockedGroup<'_> {
    fn deref_mut(&mut self) -> &mut Rows {
        &mut self.rows
    }
}

/// The numbers of the groups of a tree, by their lower bounds.
type OfTree = BTreeMap<Box<[u8]>, u32>;

/// The groups in use.
#[derive(Debug, Default)]
struct Directory {
    trees: BTreeMap<TreeId, OfTree>,
    /// Numbers of groups that are not in use any more.
    unused: Vec<u32>,
    /// Number of groups that were ever in use.
    made: u32,
}

impl Directory {
    fn all(&self) -> impl Iterator<Item = u32> {
        self.trees.values().flat_map(OfTree::values).copied()
    }
}

/// All groups of a store.
#[derive(Debug)]
pub(super) struct Groups {
    directory: RwLock<Directory>,
    /// The groups by number; see [`place_of`]. Written with the directory locked exclusively.
    groups: [OnceLock<Box<[CachePadded<Group>]>>; ALLOCATIONS],
    /// The number of the group that was used last for a page, by page number. A hint may name any group
    /// (GROUP-3).
    hints: OnceLock<Box<[AtomicU32]>>,
    /// Number of groups in use; with 0, no row has versions. Read without locks (VERSION-3).
    len: AtomicUsize,
}

/// Returns the allocation of a group, and the group's index in it.
fn place_of(number: u32) -> (usize, usize) {
    let allocation = (number + FIRST).ilog2() - FIRST.ilog2();
    (allocation as usize, (number + FIRST - (FIRST << allocation)) as usize)
}

/// Returns the last group that begins at the key or before it.
fn covering(of_tree: &OfTree, key: &[u8]) -> Option<u32> {
    of_tree.range::<[u8], _>((Unbounded, Included(key))).next_back().map(|(_, group)| *group)
}

impl Groups {
    pub(super) fn new() -> Self {
        Self {
            directory: RwLock::default(),
            groups: [const { OnceLock::new() }; ALLOCATIONS],
            hints: OnceLock::new(),
            len: AtomicUsize::new(0),
        }
    }

    /// Allocates the hints for a store that may use `limit_bytes` for versions.
    pub(super) fn make(&self, limit_bytes: u64) {
        let count = (limit_bytes / BYTES_PER_HINT).clamp(HINTS.0, HINTS.1).next_power_of_two();
        self.hints.get_or_init(|| (0..count).map(|_| AtomicU32::new(0)).collect());
    }

    fn hint(&self, page: Option<PageId>) -> Option<&AtomicU32> {
        let hints = self.hints.get()?;
        hints.get(page?.0 as usize & (hints.len() - 1))
    }

    /// Returns the group with a number, if it was ever in use.
    fn group(&self, number: u32) -> Option<&Group> {
        let (allocation, index) = place_of(number);
        self.groups.get(allocation)?.get()?.get(index).map(|group| &**group)
    }

    /// Returns the group that a hint names.
    fn hinted(&self, hint: Option<&AtomicU32>) -> Option<&Group> {
        self.group(hint?.load(Relaxed)) // Relaxed: any number will do (GROUP-3)
    }

    fn listed(&self, number: u32) -> &Group {
        self.group(number).expect("a listed group was made")
    }

    /// Puts a group into use, with the directory locked exclusively.
    fn put(&self, directory: &mut Directory, range: Range, sorted: Sorted) -> u32 {
        let number = directory.unused.pop().unwrap_or_else(|| {
            directory.made += 1;
            directory.made - 1
        });
        let (allocation, index) = place_of(number);
        let len = FIRST << allocation;
        let groups =
            self.groups[allocation].get_or_init(|| (0..len).map(|_| CachePadded::default()).collect());
        groups[index].lock().change(|rows| {
            *rows = Rows { range: Some(Arc::new(range)), sorted, ..Rows::default() };
        });
        // Relaxed: before the transaction's change and the fence of its commit (VERSION-3).
        self.len.fetch_add(1, Relaxed);
        number
    }

    /// Returns the number of groups.
    pub(super) fn len(&self) -> usize {
        self.len.load(Relaxed) // Relaxed: a statistic
    }

    /// Returns `true` if the group should be divided, and has versions of several rows.
    pub(super) fn is_large(&self, rows: &Rows) -> bool {
        let most = if self.len() < stripe_count() { FEW } else { MOST };
        rows.sorted.len() > most && rows.sorted.has_several_rows()
    }

    /// Returns `true` if no row has versions.
    pub(super) fn is_empty(&self) -> bool {
        // Acquire: pairs with the Release in `remove_unused` and `clear`. If a snapshot needed a version that
        // was dropped, its reader then finds that the snapshot is too old. The fence of the opener orders the
        // rest (VERSION-3).
        self.len.load(Acquire) == 0
    }

    /// Calls `act` with the group of a row, locked; returns `None` if there is none. `page` is the
    /// row's leaf.
    pub(super) fn with<R>(
        &self,
        tree: TreeId,
        key: Key<'_>,
        page: Option<PageId>,
        act: impl FnOnce(&mut Rows) -> R,
    ) -> Option<R> {
        let hint = self.hint(page);
        if let Some(group) = self.hinted(hint) {
            let mut rows = group.lock();
            if rows.covers(tree, key) {
                return Some(act(&mut rows));
            }
        }
        let directory = self.directory.read();
        let number = covering(directory.trees.get(&tree)?, key.bytes())?;
        let mut rows = self.listed(number).lock();
        if !rows.covers(tree, key) {
            return None;
        }
        if let Some(hint) = hint {
            hint.store(number, Relaxed); // Relaxed: as in `hinted`
        }
        Some(act(&mut rows))
    }

    /// Calls `add` with the inbox of the group of a row, locked; `add` returns `true` if it has added a
    /// version. Makes a group if there is none, unless `is_current`, called with the directory locked,
    /// returns `false`. Returns whether a version was added, and the group if its versions should be
    /// ordered. Locks no group (GROUP-4).
    pub(super) fn add(
        &self,
        tree: TreeId,
        key: Key<'_>,
        page: Option<PageId>,
        is_current: impl Fn() -> bool,
        mut add: impl FnMut(&mut New) -> bool,
    ) -> (bool, Option<&Group>) {
        let mut add_to = |group: &'_ Group| {
            let mut new = group.new.lock();
            let is_right = covers(new.range.as_ref(), tree, key);
            // Relaxed: as in the drop of a locked group.
            is_right.then(|| (add(&mut new), new.inbox.len() >= group.most_new.load(Relaxed)))
        };
        let hint = self.hint(page);
        loop {
            if let Some(group) = self.hinted(hint)
                && let Some((is_added, is_due)) = add_to(group)
            {
                return (is_added, Some(group).filter(|_| is_due));
            }
            let directory = self.directory.read();
            let number = directory.trees.get(&tree).and_then(|of_tree| covering(of_tree, key.bytes()));
            if let Some(number) = number
                && let group = self.listed(number)
                && let Some((is_added, is_due)) = add_to(group)
            {
                if let Some(hint) = hint {
                    hint.store(number, Relaxed); // Relaxed: as in `hinted`
                }
                return (is_added, Some(group).filter(|_| is_due));
            }
            drop(directory);
            let mut directory = self.directory.write();
            if !is_current() {
                return (false, None);
            }
            let of_tree = directory.trees.entry(tree).or_default();
            let below = covering(of_tree, key.bytes()).map(|number| {
                let new = self.listed(number).new.lock();
                new.range.as_ref().and_then(|range| range.upper.clone())
            });
            let lower = match below {
                Some(None) => continue, // Another thread has made the group.
                Some(Some(upper)) if key.bytes() < &*upper => continue,
                Some(Some(upper)) => upper,
                None => Box::default(),
            };
            let above = of_tree.range::<[u8], _>((Excluded(key.bytes()), Unbounded)).next();
            let range = Range::new(tree, &lower, above.map(|(lower, _)| &**lower));
            let number = self.put(&mut directory, range, Sorted::default());
            directory.trees.entry(tree).or_default().insert(lower, number);
        }
    }

    /// Calls `act` with each group that covers keys of a range, locked, in ascending order. `page` is the
    /// leaf of the range. `act` receives the part of the range that is in the group, without an upper bound
    /// if this part ends with the group. The result of a call is dropped after the group is unlocked. Locks
    /// one group at a time, and not the directory while `act` runs.
    pub(super) fn for_range<R>(
        &self,
        tree: TreeId,
        (from, to): (Key<'_>, Option<Key<'_>>),
        page: PageId,
        mut act: impl FnMut(&mut Rows, (Key<'_>, Option<Key<'_>>)) -> R,
    ) {
        let hint = self.hint(Some(page));
        let hinted = self.hinted(hint).and_then(|group| {
            let mut rows = group.lock();
            rows.covers(tree, from).then(|| self.part_of(&mut rows, (from, to), &mut act))
        });
        let mut next = match hinted {
            Some((_, next)) => next,
            None => self.first_part(tree, (from, to), hint, &mut act),
        };
        while let Some(from) = next {
            next = self.first_part(tree, (Key::new(&from), to), None, &mut act);
        }
    }

    /// Calls `act` with the first group that covers keys of a range. Returns the key at which the range
    /// continues after this group.
    fn first_part<R>(
        &self,
        tree: TreeId,
        (from, to): (Key<'_>, Option<Key<'_>>),
        hint: Option<&AtomicU32>,
        act: &mut impl FnMut(&mut Rows, (Key<'_>, Option<Key<'_>>)) -> R,
    ) -> Option<Box<[u8]>> {
        let directory = self.directory.read();
        let of_tree = directory.trees.get(&tree)?;
        if let Some(number) = covering(of_tree, from.bytes()) {
            let mut rows = self.listed(number).lock();
            if rows.covers(tree, from) {
                drop(directory);
                if let Some(hint) = hint {
                    hint.store(number, Relaxed); // Relaxed: as in `hinted`
                }
                let (rest, next) = self.part_of(&mut rows, (from, to), act);
                drop(rows);
                drop(rest);
                return next;
            }
        }
        let (lower, _) = of_tree.range::<[u8], _>((Excluded(from.bytes()), Unbounded)).next()?;
        to.is_none_or(|to| **lower < *to.bytes()).then(|| lower.clone())
    }

    /// Calls `act` with a locked group that covers `from`. Returns its result, and the key at which the range
    /// continues after the group.
    fn part_of<R>(
        &self,
        rows: &mut Rows,
        (from, to): (Key<'_>, Option<Key<'_>>),
        act: &mut impl FnMut(&mut Rows, (Key<'_>, Option<Key<'_>>)) -> R,
    ) -> (R, Option<Box<[u8]>>) {
        let range = rows.range.as_ref();
        let next = range.filter(|range| !range.reaches(to)).and_then(|range| range.upper.clone());
        let to = if next.is_some() { None } else { to };
        (act(rows, (from, to)), next)
    }

    /// Divides the group of a row if it is still large.
    #[cold]
    pub(super) fn divide(&self, tree: TreeId, key: Key<'_>) {
        let mut directory = self.directory.write();
        let Some(of_tree) = directory.trees.get(&tree) else { return };
        let Some(number) = covering(of_tree, key.bytes()) else { return };
        let mut rows = self.listed(number).lock();
        if !rows.covers(tree, key) || !self.is_large(&rows) {
            return;
        }
        let divided = rows.change(|rows| {
            let range = rows.range.clone()?;
            let (at, upper) = rows.sorted.split_off()?;
            rows.is_large = false;
            rows.range = Some(Arc::new(Range::new(tree, &range.lower, Some(&at))));
            Some((Range::new(tree, &at, range.upper.as_deref()), at, upper))
        });
        let Some((above, at, upper)) = divided else { return };
        let number = self.put(&mut directory, above, upper);
        directory.trees.entry(tree).or_default().insert(at, number);
    }

    /// Returns `true` if there are versions of rows of this tree.
    pub(super) fn has_any_of(&self, tree: TreeId) -> bool {
        let directory = self.directory.read();
        let has_any = |of_tree: &OfTree| of_tree.values().any(|&n| !self.listed(n).lock().sorted.is_empty());
        directory.trees.get(&tree).is_some_and(has_any)
    }

    /// Calls `act` with each group, locked. Drops the result of a call after the group is unlocked.
    pub(super) fn for_each<R>(&self, mut act: impl FnMut(&mut Rows) -> R) {
        self.for_each_of(&self.numbers(), &mut act);
    }

    /// Returns the numbers of all groups.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.directory.read().all().collect()
    }

    /// Returns the numbers of the groups of a tree.
    pub(super) fn numbers_of(&self, tree: TreeId) -> Vec<u32> {
        self.directory.read().trees.get(&tree).map_or_else(Vec::new, |of| of.values().copied().collect())
    }

    /// Calls `act` as [`for_each`](Self::for_each) does, for the groups with these [numbers](Self::numbers).
    /// A group may have been removed since then, or have another range.
    pub(super) fn for_each_of<R>(&self, numbers: &[u32], mut act: impl FnMut(&mut Rows) -> R) {
        for &number in numbers {
            let rest = act(&mut self.listed(number).lock());
            drop(rest);
        }
    }

    /// Removes the groups that had no version at the last call either. Calls `removed` with each of them.
    /// Locks the directory exclusively only to remove a few groups.
    pub(super) fn remove_unused(&self, mut removed: impl FnMut(&mut Rows)) {
        let mut all = self.numbers();
        all.retain(|&number| {
            let mut rows = self.listed(number).lock();
            let is_empty = rows.sorted.is_empty();
            std::mem::replace(&mut rows.was_empty, is_empty) && is_empty
        });
        for numbers in all.chunks(REMOVED_AT_ONCE) {
            let mut directory = self.directory.write();
            let removals = numbers.iter().filter(|&&n| self.remove(&mut directory, n, &mut removed)).count();
            self.len.fetch_sub(removals, Release); // Release: pairs with the Acquire in `is_empty`
        }
    }

    /// Removes a group, unless another thread has used or removed it.
    fn remove(&self, directory: &mut Directory, number: u32, removed: impl FnOnce(&mut Rows)) -> bool {
        let mut rows = self.listed(number).lock();
        if !rows.was_empty || !rows.sorted.is_empty() {
            return false;
        }
        let range = rows.change(|rows| {
            rows.sorted.is_empty().then(|| removed(rows))?;
            std::mem::take(rows).range
        });
        let Some(range) = range else { return false };
        if let Entry::Occupied(mut of_tree) = directory.trees.entry(range.tree) {
            of_tree.get_mut().remove(&range.lower);
            if of_tree.get().is_empty() {
                of_tree.remove();
            }
        }
        directory.unused.push(number);
        true
    }

    /// Removes all groups. Calls `removed` with each of them, then `at_end`, and returns the results of
    /// `removed`.
    pub(super) fn clear<R>(&self, mut removed: impl FnMut(&mut Rows) -> R, at_end: impl FnOnce()) -> Vec<R> {
        // Exclusively, also without groups: a thread that makes one later reads the mode that the caller has
        // set.
        let mut directory = self.directory.write();
        let all: Vec<_> = directory.all().collect();
        let mut rest = Vec::with_capacity(all.len());
        for &number in &all {
            self.listed(number).lock().change(|rows| {
                rest.push(removed(rows));
                *rows = Rows::default();
            });
        }
        directory.trees.clear();
        directory.unused.extend(&all);
        at_end();
        self.len.fetch_sub(all.len(), Release); // Release: pairs with the Acquire in `is_empty`
        rest
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
