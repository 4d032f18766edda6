//! Before-images of rows, by key: read by a snapshot in place of a row that changed after it.
//!
//! A chain of versions belongs to one key, oldest first. Each version names the transaction that replaced the
//! image. A key has one stripe; a stripe holds its keys in order, so that scans find the keys of a range.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use azekura_base::{CachePadded, TreeId, striped::stripe_count};

use super::status::{Status, Visibility};
use crate::node::Cell;

/// An earlier state of a row: `None` if the key was absent.
pub(crate) type Image = Option<(u16, Box<[u8]>)>;

/// Bytes of a version besides its key and value: its part of a map node that is two thirds full (72), the
/// vector's memory for one version (32), the status (24), and the allocation headers of these, the key and
/// the value (4 of 16).
const VERSION_OVERHEAD: u64 = 192;

#[derive(Debug)]
struct Version {
    writer: Arc<Status>,
    before: Image,
}

type Key = (TreeId, Box<[u8]>);

#[derive(Debug, Default)]
struct Stripe {
    /// Keys with versions. Read without the mutex: a stripe without keys is skipped (VERSION-3).
    keys: AtomicUsize,
    chains: Mutex<BTreeMap<Key, Vec<Version>>>,
}

/// The state of a row in a snapshot, relative to the row in the leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// The row in the leaf.
    AsInLeaf,
    /// This image.
    Image(Image),
}

/// All before-images of a store.
#[derive(Debug)]
pub(crate) struct VersionStore {
    /// Made before versions are turned on for the first time; until then no image exists.
    stripes: OnceLock<Box<[CachePadded<Stripe>]>>,
    bytes: AtomicU64,
    versions: AtomicU64,
    /// Readers push timestamps; `false` only in tests of the tests.
    pub(super) pushes: bool,
}

pub(super) fn size_of(key: &[u8], before: &Image) -> u64 {
    VERSION_OVERHEAD + (key.len() + before.as_ref().map_or(0, |(_, value)| value.len())) as u64
}

/// Returns the state of the newest change that snapshot `timestamp` sees, by a chain of versions.
fn resolve(chain: &[Version], timestamp: u64, pushes: bool) -> Resolved {
    let mut resolved = None;
    for version in chain.iter().rev() {
        let visibility = match pushes {
            true => version.writer.visibility(timestamp),
            false => version.writer.visibility_without_push(timestamp),
        };
        match visibility {
            Visibility::Visible => break,
            Visibility::Hidden => resolved = Some(&version.before),
            Visibility::RolledBack => {}
        }
    }
    resolved.map_or(Resolved::AsInLeaf, |image| Resolved::Image(image.clone()))
}

/// The snapshots that were open at one moment.
#[derive(Debug)]
pub(crate) struct OpenSnapshots {
    /// In ascending order.
    pub(crate) timestamps: Vec<u64>,
    /// The clock at that moment: snapshots that were opened since have this timestamp or a larger one.
    pub(crate) clock: u64,
}

impl OpenSnapshots {
    /// Returns whether a snapshot may need the image that was replaced at `until` and had been written at
    /// `from`: an open one, or one that was opened since. A transaction with a timestamp above `clock`
    /// committed after such an opening.
    pub(crate) fn need(&self, from: u64, until: u64) -> bool {
        let first = self.timestamps.partition_point(|&timestamp| timestamp < from);
        until > self.clock || self.timestamps.get(first).is_some_and(|&timestamp| timestamp < until)
    }
}

impl VersionStore {
    #[cfg_attr(not(loom), expect(clippy::missing_const_for_fn, reason = "a model's atomics are not const"))]
    pub(crate) fn new() -> Self {
        Self { stripes: OnceLock::new(), bytes: AtomicU64::new(0), versions: AtomicU64::new(0), pushes: true }
    }

    fn stripe(&self, tree: TreeId, key: &[u8]) -> &Stripe {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((tree.0, key));
        let stripes = self.made();
        &stripes[hash as usize % stripes.len()]
    }

    /// The stripes, made if there are none.
    fn made(&self) -> &[CachePadded<Stripe>] {
        self.stripes.get_or_init(|| (0..stripe_count()).map(|_| CachePadded::default()).collect())
    }

    /// Makes the stripes, if there are none.
    pub(super) fn make(&self) {
        self.made();
    }

    fn all(&self) -> &[CachePadded<Stripe>] {
        self.stripes.get().map_or(&[], |stripes| stripes)
    }

    /// Adds the image that `writer` is about to replace, unless its newest version is of the same writer.
    /// Drops the versions of this key that no snapshot of `open` needs. Adds nothing if `is_current` returns
    /// `false`; it is called under the mutex of the stripe.
    pub(crate) fn install(
        &self,
        (tree, key): (TreeId, &[u8]),
        writer: &Arc<Status>,
        is_current: impl FnOnce() -> bool,
        before: impl FnOnce() -> Image,
        open: impl FnOnce() -> OpenSnapshots,
    ) {
        let stripe = self.stripe(tree, key);
        let mut chains = stripe.chains.lock();
        if !is_current() {
            return;
        }
        let chain = chains.entry((tree, key.into())).or_insert_with(|| Vec::with_capacity(1));
        if chain.last().is_some_and(|newest| Arc::ptr_eq(&newest.writer, writer)) {
            return;
        }
        if chain.is_empty() {
            // SeqCst: VERSION-3; before the page shows the change.
            stripe.keys.fetch_add(1, SeqCst);
        } else {
            self.prune_chain(key, chain, &open());
        }
        let before = before();
        self.count(1, size_of(key, &before));
        chain.push(Version { writer: Arc::clone(writer), before });
    }

    /// Drops the newest version of a key if it belongs to `writer` (V6).
    #[cold]
    pub(crate) fn forget(&self, (tree, key): (TreeId, &[u8]), writer: &Arc<Status>) {
        let mut chains = self.stripe(tree, key).chains.lock();
        let Some(chain) = chains.get_mut(&(tree, Box::from(key))) else { return };
        if let Some(newest) = chain.pop_if(|newest| Arc::ptr_eq(&newest.writer, writer)) {
            self.uncount(1, size_of(key, &newest.before));
        }
    }

    fn count(&self, versions: u64, bytes: u64) {
        // Relaxed: statistics and a limit that is checked again.
        self.versions.fetch_add(versions, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn uncount(&self, versions: u64, bytes: u64) {
        // Relaxed: as in `count`.
        self.versions.fetch_sub(versions, Relaxed);
        self.bytes.fetch_sub(bytes, Relaxed);
    }

    /// Returns whether a snapshot of `open` needs a value that has been replaced. Several versions can have
    /// it: a transaction that changed the row and undid the change, by a savepoint, has one too. A version
    /// that was dropped was not needed.
    pub(crate) fn is_value_needed(
        &self,
        (tree, key): (TreeId, &[u8]),
        value: &[u8],
        open: &OpenSnapshots,
    ) -> bool {
        let chains = self.stripe(tree, key).chains.lock();
        let mut from = 0;
        chains.get(&(tree, Box::from(key))).into_iter().flatten().any(|version| {
            let until = version.writer.ended();
            let has_value = version.before.as_ref().is_some_and(|(_, before)| **before == *value);
            let is_needed = has_value && until.is_none_or(|until| open.need(from, until));
            from = until.unwrap_or(0).max(from);
            is_needed
        })
    }

    /// Drops versions that no open snapshot needs. An image is needed by snapshots from the timestamp of the
    /// change before it up to the one of the change that replaced it.
    fn prune_chain(&self, key: &[u8], chain: &mut Vec<Version>, open: &OpenSnapshots) {
        let mut from = 0;
        chain.retain(|version| {
            let Some(until) = version.writer.ended() else { return true };
            let keep = open.need(from, until);
            from = until.max(from);
            if !keep {
                self.uncount(1, size_of(key, &version.before));
            }
            keep
        });
    }

    /// Drops all versions that no open snapshot needs.
    pub(crate) fn prune(&self, open: &OpenSnapshots) {
        for stripe in self.all() {
            // SeqCst: see VERSION-3; a stripe that is filled meanwhile is pruned next time.
            if stripe.keys.load(SeqCst) == 0 {
                continue;
            }
            let mut chains = stripe.chains.lock();
            chains.retain(|(_, key), chain| {
                self.prune_chain(key, chain, open);
                if chain.is_empty() {
                    stripe.keys.fetch_sub(1, SeqCst); // SeqCst: as in `install`
                }
                !chain.is_empty()
            });
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        // Every stripe, even an empty one: a later writer sees the mode that the caller set.
        self.all().iter().for_each(|stripe| {
            let mut chains = stripe.chains.lock();
            for ((_, key), chain) in std::mem::take(&mut *chains) {
                chain.iter().for_each(|version| self.uncount(1, size_of(&key, &version.before)));
            }
            stripe.keys.store(0, SeqCst); // SeqCst: as in `install`
        });
    }

    /// The state of one row in a snapshot.
    pub(crate) fn resolve(&self, tree: TreeId, key: &[u8], timestamp: u64) -> Resolved {
        let stripe = self.stripe(tree, key);
        // SeqCst: VERSION-3.
        if stripe.keys.load(SeqCst) == 0 {
            return Resolved::AsInLeaf;
        }
        let chains = stripe.chains.lock();
        chains
            .get(&(tree, Box::from(key)))
            .map_or(Resolved::AsInLeaf, |chain| resolve(chain, timestamp, self.pushes))
    }

    /// Returns the rows of a range that differ in a snapshot from the leaf, in ascending order of keys.
    pub(crate) fn resolve_range(
        &self,
        tree: TreeId,
        from: &[u8],
        to: Option<&[u8]>,
        timestamp: u64,
    ) -> Vec<(Box<[u8]>, Image)> {
        let mut found = Vec::new();
        for stripe in self.all() {
            // SeqCst: VERSION-3.
            if stripe.keys.load(SeqCst) == 0 {
                continue;
            }
            let chains = stripe.chains.lock();
            let lower = Bound::Included((tree, Box::from(from)));
            let is_inside = |key: &[u8]| to.is_none_or(|to| key < to);
            let of_range = chains.range((lower, Bound::Unbounded));
            for ((_, key), chain) in of_range.take_while(|((id, key), _)| *id == tree && is_inside(key)) {
                if let Resolved::Image(image) = resolve(chain, timestamp, self.pushes) {
                    found.push((key.clone(), image));
                }
            }
        }
        found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// Number of versions, and their memory in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.versions.load(Relaxed), self.bytes.load(Relaxed)) // Relaxed: statistics
    }
}

/// Copies a cell as an image.
pub(crate) fn image_of(cell: Cell<'_>) -> Image {
    Some((cell.flags, cell.value.into()))
}
