//! A cache for keyed values of any type, made of the frames, the page table and the policies of the buffer
//! pool. The paper remarks in §3 that its method serves caches in general. The product does not use this
//! cache.
//!
//! **A hit takes no lock.** It looks up the key's hash, pins the entry by one CAS, compares the key, counts
//! the use (no write if the entry is hot), and unpins by one subtraction. A hit returns a borrowed value,
//! without a clone or a reference count of its own. The value stays until the borrow ends, independent of
//! insertions and evictions.
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
//! | evicted | none | none, or being inserted | its owner |
//! | pinned | the hash's, or none yet | present | the thread that has pinned it |
//! | pinned or unpinned | the hash's | present | all threads |
//! | pinned or unpinned | none: removed, replaced, lost its insertion | present | borrows; then the sweep |
//! | leaving | as before, or none | present | no thread |
//!
//! - **CACHE-1** An entry is stored and removed only by the owner of its evicted frame (FRAME-2), and read
//!   only under a pin.
//! - **CACHE-2** A hit is valid only if its frame had the mapping in this generation (as its buffer number
//!   shows), or has it now. So no thread receives a value that lost its insertion to another one.
//! - **CACHE-3** Keys are compared. Two keys with the same hash (39 bits) cannot be cached together: the
//!   later one replaces the earlier.
//!
//! Linearization points: of a hit, its read of the table; of an insertion, the final store of its word in the
//! table; of a removal, the removal of the word.

mod entry;
mod guard;

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};

use azekura_base::zeroed::ZeroedMemory;
use azekura_base::{Backoff, CachePadded, PageId, StripedCounter};

use self::entry::Entry;
use azekura_buffer::count::own_rmw;
use azekura_buffer::parts::{
    Evicted, Frame, FrameId, FreeFrames, Inserted, MAX_FRAMES, NO_BUFFER, PageTable, Replacement, Search,
    Sweep,
};
use azekura_buffer::{MAX_PAGE_ID, Policy, PoolError};

pub use self::guard::Ref;

/// A point between two steps that other threads can observe. A model switches threads here.
#[inline]
fn step() {
    #[cfg(loom)]
    azekura_buffer::model::step();
}

/// Waits for a short time, so that other threads can end their borrows.
fn nap() {
    azekura_base::blocking::announce();
    #[cfg(not(loom))]
    azekura_base::sync::thread::sleep(std::time::Duration::from_micros(50));
    #[cfg(loom)]
    azekura_base::sync::thread::yield_now();
}

/// Number of sweeps over all entries before an insertion fails.
const TRIES: usize = if cfg!(loom) { 3 } else { 32 };

/// Behavior of an insertion while every entry is borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenAllPinned {
    /// Returns key and value after 32 sweeps over all entries.
    #[default]
    Refuse,
    /// Waits until an entry is evictable. A thread that waits while it holds all borrows itself waits
    /// forever.
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

/// The error if every entry is borrowed; contains key and value. Drop some borrows, or do not cache the
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no evictable entry: all {entries} are borrowed")]
pub struct Full<K, V> {
    /// The key that was not inserted.
    pub key: K,
    /// The value that was not inserted.
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
    /// Creates a cache of `capacity` entries. The hasher should distribute keys well; its time is most of the
    /// cost of a hit.
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
            table: PageTable::new(capacity, &mut ZeroedMemory::none()),
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
    /// [`Full`] if every entry is borrowed, unless the options say to wait.
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

    /// Returns the value of a key, borrowed. A missing value is created by `make` and inserted. Several
    /// threads that miss on one key may each create a value; all of them receive the one that is inserted
    /// first.
    ///
    /// # Errors
    ///
    /// [`Full`], as for [`Cache::insert`].
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

    /// Removes a key; returns `true` if it was present. Borrows of its value stay valid.
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
            // The entry is pinned, so the table's word refers to this entry and not to a later one.
            let frame = found.frame();
            let is_ours = self.table.remove(id, frame);
            drop(found);
            if is_ours {
                self.free_if_unused(frame);
                return true;
            }
        }
    }

    /// Pins the entry to which the hash is mapped (CACHE-2).
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

    /// Stores an entry in a frame, pinned, without a mapping. Also returns the frame's old entry, which the
    /// caller drops after the insertion.
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

    /// Completes the calling thread's part of the eviction of a leaving frame. The last evicting thread
    /// receives the frame and its entry.
    fn finish_eviction(&self, id: FrameId) -> Option<(Evicted, Option<(K, V)>)> {
        let frame = &self.frames[id.0 as usize];
        step();
        self.table.remove(frame.page_id(), id); // FRAME-1: the id stays while this thread takes part
        step();
        let owner = frame.leave(id)?;
        frame.take_buffer(&owner);
        own_rmw();
        self.len.add(1u64.wrapping_neg());
        let left = self.entries[id.0 as usize].take(&owner);
        Some((owner, left))
    }

    /// Completes the calling thread's part of an eviction as [`Self::finish_eviction`] does, and frees the
    /// frame.
    fn recycle(&self, id: FrameId) {
        if let Some((owner, left)) = self.finish_eviction(id) {
            self.free.push(owner, &self.frames);
            drop(left);
        }
    }

    /// Removes a mapping that conflicts with the caller's insertion. If another insertion has added the same
    /// mapping again since, that insertion precedes the caller's.
    fn detach(&self, id: PageId, frame_id: FrameId) {
        let frame = &self.frames[frame_id.0 as usize];
        // The frame is pinned or being evicted, so the table's word refers to this entry and not to a later
        // one.
        if frame.try_pin(id) {
            self.table.remove(id, frame_id);
            drop(Ref::pinned(self, frame_id));
            self.free_if_unused(frame_id);
        } else if frame.join_leaving(id) {
            self.recycle(frame_id);
        }
    }

    /// Frees a frame that lost its mapping, unless its entry is borrowed. In that case the sweep frees the
    /// frame later.
    fn free_if_unused(&self, id: FrameId) {
        // The frame may contain another entry by now, which is unpinned and may be evicted too.
        if self.frames[id.0 as usize].try_evict() {
            self.recycle(id);
        }
    }
}
