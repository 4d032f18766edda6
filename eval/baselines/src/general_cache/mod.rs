//! A cache for keyed values of any type, made of the frames, the page table and the policies of the buffer
//! pool: the paper's remark in §3 that its method serves caches in general. The product does not use it.
//!
//! **A hit takes no lock**: look up the key's hash, pin the entry by one CAS, compare the key, count the use
//! (no write if the entry is hot), and unpin by one subtraction. A hit returns a borrowed value, without a
//! clone or a reference count of its own. The value stays until the borrow ends, independent of insertions
//! and evictions.
//!
//! The victim is chosen as in the pool: two rings with a sketch by default, so scans and one-time keys
//! displace few entries.
//!
//! ```
//! use azekura_baselines::general_cache::{Cache, Full};
//!
//! let cache: Cache<String, Vec<u8>> = Cache::new(2);
//! let first = cache.insert("a".into(), vec![1])?;
//! assert_eq!(*cache.get("a").expect("inserted"), [1]);
//! let second = cache.get_or_insert_with("b".into(), || vec![2, 2])?;
//! // Both entries are borrowed, so neither can be evicted: the new entry is returned.
//! assert!(matches!(cache.insert("c".into(), vec![3]), Err(Full { value, .. }) if value == [3]));
//! drop((first, second));
//! assert_eq!(cache.insert("c".into(), vec![3])?.len(), 1);
//! # Ok::<(), Full<String, Vec<u8>>>(())
//! ```
//!
//! | frame | mapping | entry | may be used by |
//! |---|---|---|---|
//! | evicted | none | none, or being put in | its owner |
//! | pinned | the hash's, or none yet | there | the thread that has pinned it |
//! | pinned or unpinned | the hash's | there | everybody |
//! | pinned or unpinned | none: removed, replaced, lost its insertion | there | borrows; then the sweep |
//! | leaving | as before, or none | there | nobody |
//!
//! - **CACHE-1** An entry is stored and removed only by the owner of its evicted frame (FRAME-2), and read
//!   only under a pin.
//! - **CACHE-2** A hit is believed only if its frame had the mapping in this generation (its buffer number
//!   says so), or has it now. So no thread sees a value that lost its insertion to another one.
//! - **CACHE-3** Keys are compared. Two keys with one hash (39 bits) cannot be there together: the later one
//!   replaces the earlier.
//!
//! Linearization points: a hit, its read of the table; an insertion, the finish of its word in the table; a
//! removal, the removal of the word.

mod entry;
mod guard;

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};

use azekura_base::{Backoff, CachePadded, PageId, StripedCounter};

use self::entry::Entry;
use azekura_buffer::count::own_rmw;
use azekura_buffer::parts::{
    Evicted, Frame, FrameId, FreeFrames, Inserted, MAX_FRAMES, NO_BUFFER, PageTable, Replacement, Search,
    Sweep,
};
use azekura_buffer::{MAX_PAGE_ID, Policy, PoolError};

pub use self::guard::Ref;

/// A point between two steps that other threads observe: a model switches threads there.
#[inline]
fn step() {
    #[cfg(loom)]
    azekura_buffer::model::step();
}

/// Lets other threads end their borrows.
fn nap() {
    azekura_base::blocking::announce();
    #[cfg(not(loom))]
    azekura_base::sync::thread::sleep(std::time::Duration::from_micros(50));
    #[cfg(loom)]
    azekura_base::sync::thread::yield_now();
}

/// Sweeps before an insertion is refused; each looks at every entry.
const TRIES: usize = if cfg!(loom) { 3 } else { 32 };

/// Behavior of an insertion while every entry is borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenAllPinned {
    /// Returns key and value after some attempts.
    #[default]
    Refuse,
    /// Waits until an entry is free. A thread that holds all borrows itself waits forever.
    Wait,
}

/// Settings of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// The replacement policy.
    pub policy: Policy,
    /// Behavior of an insertion while every entry is borrowed.
    pub when_all_pinned: WhenAllPinned,
}

/// The error that every entry is borrowed; it returns key and value. Drop borrows, or do not cache the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no evictable entry: all {entries} are borrowed")]
pub struct Full<K, V> {
    /// The key of the refused insertion.
    pub key: K,
    /// The value of the refused insertion.
    pub value: V,
    /// Capacity of the cache in entries.
    pub entries: usize,
}

/// A concurrent cache of a fixed number of entries; see the [module](self).
pub struct Cache<K, V, S = RandomState> {
    frames: Box<[Frame]>,
    entries: Box<[Entry<K, V>]>,
    table: PageTable,
    policy: Replacement,
    free: CachePadded<FreeFrames>,
    hasher: S,
    when_all_pinned: WhenAllPinned,
    len: StripedCounter,
    evictions: StripedCounter,
}

impl<K, V, S> std::fmt::Debug for Cache<K, V, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("capacity", &self.frames.len()).finish_non_exhaustive()
    }
}

impl<K: Hash + Eq, V> Cache<K, V> {
    /// Creates a cache of `capacity` entries, with the hasher of std and the default options.
    ///
    /// # Panics
    ///
    /// If the capacity is 0 or above 16,777,215.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with(capacity, CacheOptions::default(), RandomState::new()).expect("a capacity in bounds")
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> Cache<K, V, S> {
    /// Creates a cache of `capacity` entries. The hasher should distribute well; its time is most of the cost
    /// of a hit.
    ///
    /// # Errors
    ///
    /// [`PoolError::Capacity`] for a capacity out of bounds.
    pub fn with(capacity: usize, options: CacheOptions, hasher: S) -> Result<Self, PoolError> {
        if !(1..=MAX_FRAMES).contains(&capacity) {
            return Err(PoolError::Capacity {
                capacity_bytes: capacity * size_of::<(K, V)>(),
                frames: capacity,
                min: 1,
                max: MAX_FRAMES,
            });
        }
        Ok(Self {
            frames: (0..capacity).map(|_| Frame::new()).collect(),
            entries: (0..capacity).map(|_| Entry::empty()).collect(),
            table: PageTable::new(capacity),
            policy: Replacement::new(options.policy, capacity),
            free: CachePadded::new(FreeFrames::all(capacity)),
            hasher,
            when_all_pinned: options.when_all_pinned,
            len: StripedCounter::new(),
            evictions: StripedCounter::new(),
        })
    }

    /// Returns the capacity in entries.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.frames.len()
    }

    /// Returns the approximate number of entries: an entry that was removed while borrowed counts until the
    /// sweep reaches it.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.len.sum() as i64).max(0) as usize
    }

    /// Returns `true` if the cache is empty; approximate under concurrent changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of evictions so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions.sum()
    }

    fn id<Q: Hash + ?Sized>(&self, key: &Q) -> PageId {
        PageId(self.hasher.hash_one(key) & (MAX_PAGE_ID - 1))
    }

    /// Returns the value of a key, borrowed. Never waits; costs one CAS, and one subtraction when the borrow
    /// ends.
    pub fn get<Q>(&self, key: &Q) -> Option<Ref<'_, K, V, S>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let found = self.fix(self.id(key))?;
        (found.key().borrow() == key).then(|| {
            self.frames[found.frame().0 as usize].note_use();
            found
        })
    }

    /// Inserts a value, or replaces the old value of the key; borrows of the old value stay valid.
    ///
    /// # Errors
    ///
    /// [`Full`] while every entry is borrowed, unless the options say to wait.
    pub fn insert(&self, key: K, value: V) -> Result<Ref<'_, K, V, S>, Full<K, V>> {
        let id = self.id(&key);
        let (ours, left) = self.place(id, key, value)?;
        while let Inserted::Existing(old) = self.table.insert(id, ours.frame(), &*self.frames) {
            step();
            self.detach(id, old);
        }
        self.frames[ours.frame().0 as usize].install(0); // CACHE-2
        drop(left);
        Ok(ours)
    }

    /// Returns the value of a key, borrowed; a missing value is made by `make` and inserted. Several threads
    /// that miss on one key may each make a value; all of them get the one that is inserted first.
    ///
    /// # Errors
    ///
    /// As [`Cache::insert`].
    pub fn get_or_insert_with(
        &self,
        key: K,
        make: impl FnOnce() -> V,
    ) -> Result<Ref<'_, K, V, S>, Full<K, V>> {
        if let Some(found) = self.get(&key) {
            return Ok(found);
        }
        let id = self.id(&key);
        let (ours, left) = self.place(id, key, make())?;
        loop {
            let Inserted::Existing(other) = self.table.insert(id, ours.frame(), &*self.frames) else {
                self.frames[ours.frame().0 as usize].install(0); // CACHE-2
                drop(left);
                return Ok(ours);
            };
            let Some(found) = self.fix(id) else { continue };
            if found.key() == ours.key() {
                let lost = ours.frame();
                drop(ours);
                self.free_if_unused(lost);
                return Ok(found);
            }
            drop(found);
            self.detach(id, other); // CACHE-3
        }
    }

    /// Removes a key; `true` if it was present. Borrows of its value stay valid.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let id = self.id(key);
        loop {
            let Some(found) = self.fix(id) else { return false };
            if found.key().borrow() != key {
                return false;
            }
            // Pinned, so the word names this entry and no later one.
            let frame = found.frame();
            let is_ours = self.table.remove(id, frame);
            drop(found);
            if is_ours {
                self.free_if_unused(frame);
                return true;
            }
        }
    }

    /// Pins the entry that has the hash's mapping (CACHE-2).
    fn fix(&self, id: PageId) -> Option<Ref<'_, K, V, S>> {
        let (mut backoff, mut is_first) = (Backoff::new(), true);
        loop {
            let mut met = None;
            let pinned = self.table.find(id, |frame_id| {
                step();
                let frame = &self.frames[frame_id.0 as usize];
                let is_pinned = (is_first || frame.is_open()) && frame.try_pin(id);
                if !is_pinned && frame.page_id() == id {
                    met = Some(frame_id);
                }
                is_pinned.then_some(frame_id)
            });
            is_first = false;
            if let Some(frame_id) = pinned {
                let found = Ref::pinned(self, frame_id);
                step();
                let has_mapping = || self.table.get(id, &*self.frames) == Some(frame_id);
                if self.frames[frame_id.0 as usize].buffer() != NO_BUFFER || has_mapping() {
                    return Some(found);
                }
                drop(found);
            } else if self.frames[met?.0 as usize].join_leaving(id) {
                self.recycle(met?);
                continue;
            }
            backoff.pause();
        }
    }

    /// Stores an entry in a frame, pinned, without a mapping. Also returns the frame's old entry, to be
    /// dropped after the insertion.
    fn place(&self, id: PageId, key: K, value: V) -> Result<(Ref<'_, K, V, S>, Option<(K, V)>), Full<K, V>> {
        let Some((owner, left)) = self.victim() else {
            return Err(Full { key, value, entries: self.frames.len() });
        };
        let frame = owner.frame;
        self.entries[frame.0 as usize].put(&owner, (key, value));
        self.frames[frame.0 as usize].publish(owner, id);
        own_rmw();
        self.len.add(1);
        step();
        Ok((Ref::pinned(self, frame), left))
    }

    /// Allocates a frame; also returns its evicted entry.
    fn victim(&self) -> Option<(Evicted, Option<(K, V)>)> {
        let mut backoff = Backoff::new();
        let mut tries = 0;
        loop {
            if let Some(owner) = self.free.pop(&self.frames) {
                return Some((owner, None));
            }
            match self.policy.sweep(&self.frames, &mut Search::full()) {
                Sweep::Victim { frame, swap } => {
                    own_rmw();
                    self.evictions.add(1);
                    if let Some((owner, left)) = self.finish_eviction(frame) {
                        self.policy.evicted(swap, &owner);
                        return Some((owner, left));
                    }
                }
                // A cache has no dirty frames.
                Sweep::Dirty(_) | Sweep::Nothing { .. } | Sweep::BoundReached => {
                    tries += 1;
                    if tries >= TRIES && self.when_all_pinned == WhenAllPinned::Refuse {
                        return None;
                    }
                    if backoff.is_exhausted() { nap() } else { backoff.pause() }
                }
            }
        }
    }

    /// Does the caller's part of the eviction of a leaving frame. Returns the frame and its entry to the last
    /// evicting thread. The caller is one of them.
    fn finish_eviction(&self, id: FrameId) -> Option<(Evicted, Option<(K, V)>)> {
        let frame = &self.frames[id.0 as usize];
        step();
        self.table.remove(frame.page_id(), id); // FRAME-1: the id stays while we are in
        step();
        let owner = frame.leave(id)?;
        frame.take_buffer(&owner);
        own_rmw();
        self.len.add(1u64.wrapping_neg());
        let left = self.entries[id.0 as usize].take(&owner);
        Some((owner, left))
    }

    /// Like [`Self::finish_eviction`], and frees the frame.
    fn recycle(&self, id: FrameId) {
        if let Some((owner, left)) = self.finish_eviction(id) {
            self.free.push(owner, &self.frames);
            drop(left);
        }
    }

    /// Removes a mapping that conflicts with ours. If another insertion has added the same mapping again
    /// since, that insertion precedes ours.
    fn detach(&self, id: PageId, frame_id: FrameId) {
        let frame = &self.frames[frame_id.0 as usize];
        // Pinned, or being evicted, so that the word names this entry and no later one.
        if frame.try_pin(id) {
            self.table.remove(id, frame_id);
            drop(Ref::pinned(self, frame_id));
            self.free_if_unused(frame_id);
        } else if frame.join_leaving(id) {
            self.recycle(frame_id);
        }
    }

    /// Frees a frame that lost its mapping, unless its entry is borrowed; then the sweep frees it later.
    fn free_if_unused(&self, id: FrameId) {
        // The frame may have another page by now; it is unpinned and may be evicted too.
        if self.frames[id.0 as usize].try_evict() {
            self.recycle(id);
        }
    }
}
