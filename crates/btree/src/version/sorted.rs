//! Versions of adjacent rows of one tree: in the order of their rows, each row's oldest version first.
//!
//! A version is added to a short list of recent versions, without a search. The recent versions move to the
//! ordered sequence together, once they are an eighth of it: this reads the versions of the changed rows at
//! the same time, and drops those that no snapshot needs. Eight bytes of each key, its *prefix*, are stored
//! beside its pointer. A search reads a version only if these bytes equal those of the searched key.
//!
//! - **SORTED-1** All keys of a sequence, and all keys that are searched in it, begin with the same `skip`
//!   bytes. The prefix of a key is the eight bytes after these, so prefixes have the order of their keys.

use std::cmp::Ordering as Order;
use std::iter::Peekable;

use azekura_base::striped::stripe_count;

use super::row::Version;
use super::store::{Dropped, OpenSnapshots};

/// There are at most as many recent versions as ordered ones divided by this number, or
/// [`fewest_recent`]. So memory for versions that no snapshot needs is at most this part of all versions and
/// these few for each group, and each addition moves this number of ordered versions.
const RECENT_SHARE: usize = 8;

/// Returns the number of recent versions that are never too many. Ordering them reads the slots of all
/// openers, a cache line for each stripe of threads. The number is small in models and tests, so that these
/// order the versions too.
fn fewest_recent() -> usize {
    if cfg!(any(loom, test)) { 2 } else { stripe_count() }
}

/// Number of bytes of the prefixes that must be able to differ between the rows of a sequence. Three bytes
/// distinguish the rows of a group if they are digits.
const DISTINCT: usize = 4;

/// Returns the first eight bytes of `key` as a number in the same order.
fn prefix_of(key: &[u8]) -> u64 {
    let first = key.first_chunk().copied().unwrap_or_else(|| {
        let mut padded = [0; 8];
        padded[..key.len()].copy_from_slice(key);
        padded
    });
    u64::from_be_bytes(first)
}

/// The key of a row, with its first bytes as a number in the same order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key<'a> {
    prefix: u64,
    key: &'a [u8],
}

impl<'a> Key<'a> {
    pub(super) fn new(key: &'a [u8]) -> Self {
        Self { prefix: prefix_of(key), key }
    }

    /// Returns the key with the prefix after its first `skip` bytes (SORTED-1).
    fn after(self, skip: usize) -> Self {
        let rest = self.key.get(skip..);
        debug_assert!(rest.is_some(), "a key of {} bytes without the shared {skip}", self.key.len());
        Self { prefix: prefix_of(rest.unwrap_or_default()), key: self.key }
    }

    pub(super) fn prefix(&self) -> u64 {
        self.prefix
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.key
    }
}

/// A version, with the prefix of its key.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    prefix: u64,
    version: Version,
}

impl Entry {
    /// Compares the entry's row with another row of the same tree.
    pub(super) fn order(&self, key: Key<'_>) -> Order {
        self.prefix.cmp(&key.prefix).then_with(|| self.read_key().cmp(key.key))
    }

    /// Compares the entry's row with that of another entry. Reads the versions only if the prefixes are
    /// equal.
    pub(super) fn order_of_rows(&self, other: &Self) -> Order {
        self.prefix.cmp(&other.prefix).then_with(|| self.read_key().cmp(other.read_key()))
    }

    /// Reads the key from the version, for a comparison that the prefix does not decide.
    fn read_key(&self) -> &[u8] {
        #[cfg(all(test, not(loom)))]
        tests::KEYS_READ.set(tests::KEYS_READ.get() + 1);
        self.version.key()
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }
}

/// A sequence of versions.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    ordered: Vec<Entry>,
    /// The versions that were added since the last ordering, in the order of the additions. A row's versions
    /// in this list are newer than those in `ordered`.
    recent: Vec<Entry>,
    /// Number of bytes with which all keys begin (SORTED-1).
    skip: usize,
}

/// Versions that will be recent versions of a sequence, in the order of their additions.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    recent: Vec<Entry>,
    /// The `skip` of the sequence (SORTED-1).
    skip: usize,
}

impl Inbox {
    /// Adds the newest version of its row.
    pub(super) fn push(&mut self, key: Key<'_>, version: Version) {
        self.recent.push(Entry { prefix: key.after(self.skip).prefix, version });
    }

    pub(super) fn len(&self) -> usize {
        self.recent.len()
    }
}

/// Returns a filter for the versions of one row, oldest first, which passes the versions that a snapshot
/// needs. An image is needed by snapshots from the timestamp of the change that wrote it up to the timestamp
/// of the change that replaced it. Of adjacent versions of one transaction, only the first is needed
/// (VERSION-7).
pub(super) fn needed(open: &OpenSnapshots) -> impl FnMut(&Version) -> bool {
    let (mut from, mut previous) = (0, None);
    move |version| {
        let writer = Some(version.writer());
        if std::mem::replace(&mut previous, writer) == writer {
            return false;
        }
        let Some(until) = version.status().ended() else { return true };
        let is_needed = from < until && open.need(from, until);
        from = until.max(from);
        is_needed
    }
}

/// Passes the versions of the first row of `entries` to `take`.
fn take_row(entries: &mut Peekable<impl Iterator<Item = Entry>>, mut take: impl FnMut(Entry)) {
    while let Some(entry) = entries.next() {
        let is_last = entries.peek().is_none_or(|next| next.order_of_rows(&entry).is_ne());
        take(entry);
        if is_last {
            return;
        }
    }
}

impl Sorted {
    pub(super) fn is_empty(&self) -> bool {
        self.ordered.is_empty() && self.recent.is_empty()
    }

    /// Returns the number of versions, without the recent ones.
    pub(super) fn len(&self) -> usize {
        self.ordered.len()
    }

    /// Takes the prefixes from later bytes if too few bytes of them can differ. All keys begin with the same
    /// `shared` bytes from now on.
    pub(super) fn share(&mut self, shared: usize) {
        if shared <= self.skip + size_of::<u64>() - DISTINCT {
            return;
        }
        self.skip = shared;
        self.ordered.iter().chain(&self.recent).for_each(|entry| entry.version.prefetch());
        for entry in self.ordered.iter_mut().chain(&mut self.recent) {
            entry.prefix = Key::new(entry.version.key()).after(shared).prefix;
        }
    }

    /// Returns an empty inbox for versions of these rows.
    pub(super) fn inbox(&self) -> Inbox {
        Inbox { recent: Vec::new(), skip: self.skip }
    }

    /// Adds the versions of an inbox, the newest ones of their rows, to the recent versions.
    pub(super) fn absorb(&mut self, inbox: &mut Inbox) {
        debug_assert_eq!(inbox.skip, self.skip, "the inbox is of these rows");
        self.recent.append(&mut inbox.recent);
    }

    /// Returns the number of versions in the inbox from which the recent versions should be ordered.
    pub(super) fn most_new(&self) -> usize {
        let most = fewest_recent().max(self.ordered.len() / RECENT_SHARE);
        most.saturating_sub(self.recent.len()).max(1)
    }

    /// Orders the recent versions. Drops versions of their rows that no snapshot needs.
    pub(super) fn order_recent(&mut self, open: impl FnOnce() -> OpenSnapshots) -> Dropped {
        match self.recent.is_empty() {
            true => Dropped::default(),
            false => self.rebuild(&open(), false),
        }
    }

    /// Orders the recent versions, and drops the versions of all rows that no snapshot needs.
    pub(super) fn prune(&mut self, open: &OpenSnapshots) -> Dropped {
        self.rebuild(open, true)
    }

    fn rebuild(&mut self, open: &OpenSnapshots, of_all_rows: bool) -> Dropped {
        // Stable: the versions of a row stay in the order of their additions.
        self.recent.sort_by(Entry::order_of_rows);
        self.prefetch(of_all_rows);
        let mut dropped = Dropped::default();
        let mut merged = Vec::with_capacity(self.ordered.len() + self.recent.len());
        let mut ordered = std::mem::take(&mut self.ordered).into_iter().peekable();
        let mut recent = self.recent.drain(..).peekable(); // The list keeps its memory.
        loop {
            let order = match (ordered.peek(), recent.peek()) {
                (None, None) => break,
                (Some(_), None) => Order::Less,
                (None, Some(_)) => Order::Greater,
                (Some(old), Some(new)) => old.order_of_rows(new),
            };
            if order.is_lt() && !of_all_rows {
                merged.extend(ordered.next()); // The row has no recent version.
                continue;
            }
            let mut is_needed = needed(open);
            let mut take = |entry: Entry| match is_needed(&entry.version) {
                true => merged.push(entry),
                false => dropped.add(entry),
            };
            if order.is_le() {
                take_row(&mut ordered, &mut take);
            }
            if order.is_ge() {
                take_row(&mut recent, &mut take);
            }
        }
        drop(recent);
        if of_all_rows {
            merged.shrink_to_fit();
        }
        self.ordered = merged;
        dropped
    }

    /// Prefetches the versions of the rows that [`rebuild`](Self::rebuild) examines, so that they are loaded
    /// at the same time, not one after the other.
    fn prefetch(&self, of_all_rows: bool) {
        let (mut recent, mut prefix) = (self.recent.iter(), None);
        for entry in &self.ordered {
            while prefix.is_some_and(|prefix| prefix < entry.prefix) || prefix.is_none() && recent.len() > 0 {
                prefix = recent.next().map(|recent| recent.prefix);
            }
            if of_all_rows || prefix == Some(entry.prefix) {
                entry.version.prefetch();
            }
        }
    }

    /// Returns the versions of a row, oldest first.
    pub(super) fn of_row<'a>(&'a self, key: Key<'a>) -> impl Iterator<Item = &'a Entry> {
        let key = key.after(self.skip);
        let first = self.ordered.partition_point(|entry| entry.order(key).is_lt());
        let ordered = self.ordered[first..].iter().take_while(move |entry| entry.order(key).is_eq());
        ordered.chain(self.recent.iter().filter(move |entry| entry.order(key).is_eq()))
    }

    /// Returns the versions of the rows from a key up to another one (exclusive). The recent versions have
    /// been ordered.
    pub(super) fn of_range(&self, from: Key<'_>, to: Option<Key<'_>>) -> &[Entry] {
        debug_assert!(self.recent.is_empty(), "the recent versions have been ordered");
        let (from, to) = (from.after(self.skip), to.map(|to| to.after(self.skip)));
        let first = self.ordered.partition_point(|entry| entry.order(from).is_lt());
        let rest = &self.ordered[first..];
        let len = to.map_or(rest.len(), |to| rest.partition_point(|entry| entry.order(to).is_lt()));
        rest[..len].iter().for_each(|entry| entry.version.prefetch());
        &rest[..len]
    }

    /// Returns `true` if the ordered versions are of more than one row.
    pub(super) fn has_several_rows(&self) -> bool {
        let ends = self.ordered.first().zip(self.ordered.last());
        ends.is_some_and(|(first, last)| first.order_of_rows(last).is_ne())
    }

    /// Moves about the upper half of the rows into another sequence; returns its first key. Returns `None` if
    /// all ordered versions are of one row.
    pub(super) fn split_off(&mut self) -> Option<(Box<[u8]>, Self)> {
        let begins_row = |&at: &usize| self.ordered[at - 1].order_of_rows(&self.ordered[at]).is_ne();
        let half = (self.ordered.len() / 2).max(1);
        let at = (half..self.ordered.len()).find(begins_row).or_else(|| (1..half).rev().find(begins_row))?;
        let first: Box<[u8]> = self.ordered[at].version.key().into();
        let key = Key::new(&first).after(self.skip);
        let is_below = |entry: &Entry| entry.order(key).is_lt();
        let (below, recent) = std::mem::take(&mut self.recent).into_iter().partition(is_below);
        self.recent = below;
        let upper = Self { ordered: self.ordered.split_off(at), recent, skip: self.skip };
        Some((first, upper))
    }

    /// Removes the versions of a row for which `is_it` returns `true`.
    pub(super) fn remove(&mut self, key: Key<'_>, is_it: impl Fn(&Version) -> bool) -> Dropped {
        let (mut dropped, key) = (Dropped::default(), key.after(self.skip));
        for list in [&mut self.ordered, &mut self.recent] {
            let is_removed = |entry: &mut Entry| entry.order(key).is_eq() && is_it(&entry.version);
            list.extract_if(.., is_removed).for_each(|entry| dropped.add(entry));
        }
        dropped
    }
}

#[cfg(all(test, not(loom)))]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::super::row::INDEX_BYTES;
    use super::super::status::Status;
    use super::*;
    use crate::node::Cell;

    std::thread_local! {
        /// Number of keys that comparisons have read from versions.
        pub(in crate::version) static KEYS_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    const NONE_OPEN: OpenSnapshots = OpenSnapshots { timestamps: Vec::new(), last_commit: 0 };

    fn number(version: &Version) -> u64 {
        let value = version.before().expect("has a value").value;
        u64::from_le_bytes(value.try_into().expect("8 bytes"))
    }

    /// Adds a version as a writer does; returns `true` if the recent versions should be ordered.
    fn push(sorted: &mut Sorted, key: &[u8], version: Version) -> bool {
        let (mut inbox, most) = (sorted.inbox(), sorted.most_new());
        inbox.push(Key::new(key), version);
        let is_due = inbox.len() >= most;
        sorted.absorb(&mut inbox);
        is_due
    }

    fn add(sorted: &mut Sorted, key: &[u8], value: u64) -> Version {
        let cell = Cell { flags: 0, value: &value.to_le_bytes() };
        let version = Version::new(key, Some(cell), Ok(Status::active(0)));
        if push(sorted, key, version.clone()) {
            sorted.order_recent(|| NONE_OPEN);
        }
        version
    }

    /// The sequence holds the same versions as a map of lists.
    #[test]
    fn it_does_what_a_map_of_lists_does() {
        let (mut sorted, mut model) = (Sorted::default(), BTreeMap::<u8, Vec<(u64, Version)>>::new());
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        // Many keys differ only after the prefix, and some keys are shorter than the prefix.
        let mut keys: Vec<_> = (0..40).map(|key| [&[7; 9][..5 + key / 10], &[key as u8]].concat()).collect();
        keys.sort_unstable();
        for step in 0..20_000_u64 {
            let key = random(40) as u8;
            let row = Key::new(&keys[key as usize]);
            match random(60) {
                0..50 => {
                    let version = add(&mut sorted, row.key, step);
                    model.entry(key).or_default().push((step, version));
                }
                50..55 => {
                    let rest = random(10);
                    let dropped = sorted.remove(row, |version| number(version) % 10 == rest);
                    let of_row = model.entry(key).or_default();
                    let removed = of_row.extract_if(.., |(number, _)| *number % 10 == rest).count();
                    assert_eq!(dropped.versions.len(), removed);
                }
                // The versions of transactions that rolled back are dropped.
                55..59 => {
                    let rest = random(4);
                    let of_row = model.entry(key).or_default();
                    for (_, version) in of_row.extract_if(.., |(number, _)| *number % 4 != rest) {
                        version.status().roll_back();
                    }
                    sorted.prune(&NONE_OPEN);
                }
                _ => {
                    let from = random(40) as usize;
                    let to = (from + random(10) as usize).min(39);
                    sorted.order_recent(|| NONE_OPEN);
                    let range = sorted.of_range(Key::new(&keys[from]), Some(Key::new(&keys[to])));
                    let expected = model.range(from as u8..to as u8).flat_map(|(_, of_row)| of_row);
                    let found = range.iter().map(|entry| number(entry.version()));
                    assert!(found.eq(expected.map(|(number, _)| *number)));
                    if random(8) == 0
                        && let Some((first, upper)) = sorted.split_off()
                    {
                        let at = keys.partition_point(|key| **key < *first) as u8;
                        let of = |half: &Sorted| half.ordered.iter().chain(&half.recent).count();
                        let expected = model.range(at..).map(|(_, of_row)| of_row.len()).sum::<usize>();
                        assert!(of(&upper) == expected && of(&sorted) > 0 && expected > 0);
                        sorted.ordered.extend(upper.ordered);
                        sorted.recent.extend(upper.recent);
                    }
                }
            }
            assert_eq!(sorted.is_empty(), model.values().all(Vec::is_empty));
            let of_row = sorted.of_row(row).map(|entry| number(entry.version()));
            assert!(of_row.eq(model.entry(key).or_default().iter().map(|(number, _)| *number)));
        }
        assert_eq!(sorted.ordered.len() + sorted.recent.len(), model.values().map(Vec::len).sum::<usize>());
    }

    /// Versions that no snapshot needs are at most an eighth of all versions, whatever the order of changes.
    #[test]
    fn a_row_that_changes_often_keeps_few_versions() {
        let mut sorted = Sorted::default();
        let (open, mut most) = (|| OpenSnapshots { timestamps: vec![5], last_commit: 9 }, 0);
        for change in 0..1_000_u64 {
            let version = Version::new(b"key", None, Ok(Status::active(0)));
            version.status().commit_at(7 + change / 500);
            if push(&mut sorted, b"key", version) {
                sorted.order_recent(open);
                assert_eq!(sorted.len(), 1, "the snapshot needs the first image only");
            }
            most = most.max(sorted.of_row(Key::new(b"key")).count());
        }
        assert!(most <= fewest_recent() + 1, "{most}");
    }

    /// A transaction that changes a row again and again keeps the first image only.
    #[test]
    fn of_one_transaction_the_first_image_stays() {
        let mut sorted = Sorted::default();
        let first = add(&mut sorted, b"key", 0);
        for value in 1..50_u64 {
            let cell = Cell { flags: 0, value: &value.to_le_bytes() };
            if push(&mut sorted, b"key", Version::new(b"key", Some(cell), Err(&first))) {
                sorted.order_recent(|| NONE_OPEN);
            }
        }
        sorted.order_recent(|| NONE_OPEN);
        let images: Vec<_> = sorted.of_row(Key::new(b"key")).map(|entry| number(entry.version())).collect();
        assert_eq!(images, [0]);
    }

    /// The index takes no more bytes for a version than its memory counts.
    #[test]
    fn the_index_takes_as_many_bytes_of_a_version_as_its_memory_counts() {
        let mut sorted = Sorted::default();
        for key in 1..5_000_u64 {
            let random = key.wrapping_mul(6_364_136_223_846_793_005).rotate_left(29);
            drop(add(&mut sorted, &random.to_be_bytes(), 0));
            let bytes = size_of::<Entry>() * (sorted.ordered.capacity() + sorted.recent.capacity());
            assert!(bytes <= INDEX_BYTES * key as usize + 256, "{bytes} for {key}");
        }
    }
}
