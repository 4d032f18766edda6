//! A cache for keyed values of any type, made of the frames, the page table and the policies of the buffer
//! pool: the paper's remark in §3 that its method serves caches in general. The product does not use it.
//!
//! **A hit takes no lock**: look the key's hash up, pin the entry by one CAS, compare the key, count the use
//! (nothing, once it is hot), and unpin by one subtraction. Values stay where they are: what a hit gives is a
//! borrowed value, neither cloned nor counted, and it stays until the borrow ends, whatever is inserted and
//! evicted meanwhile.
//!
//! The victim is chosen as in the pool: two rings with a sketch by default, so scans and one-time keys
//! pass through.
//!
//! ```
//! use azekura_baselines::general_cache::{Cache, Full};
//!
//! let cache: Cache<String, Vec<u8>> = Cache::new(2);
//! let first = cache.insert("a".into(), vec![1])?;
//! assert_eq!(*cache.get("a").expect("inserted"), [1]);
//! let second = cache.get_or_insert_with("b".into(), || vec![2, 2])?;
//! // Both entries are borrowed, so neither may leave: the new one comes back.
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
//! - **CACHE-1** An entry is put in and taken out only by the owner of its evicted frame (FRAME-2), and read
//!   only under a pin.
//! - **CACHE-2** A hit is believed only if its frame had the mapping in this generation (its buffer number
//!   says so), or has it now. So no thread sees a value that lost its insertion to another one.
//! - **CACHE-3** Keys are compared. Two keys with one hash (39 bits) cannot be there together: the later one
//!   replaces the earlier.
//!
//! Linearization: a hit at its look at the table; an insertion when its word is finished there; a removal
//! when it takes the word out.

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
    /// Gives key and value back, after some tries.
    #[default]
    Refuse,
    /// Waits until an entry is free. A thread that holds all the borrows itself waits for ever.
    Wait,
}

/// Settings of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// Which entry leaves when another comes.
    pub policy: Policy,
    /// Behavior of an insertion while every entry is borrowed.
    pub when_all_pinned: WhenAllPinned,
}

/// Every entry is borrowed; here are key and value again. Drop borrows, or do without the cache this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no evictable entry: all {entries} are borrowed")]
pub struct Full<K, V> {
    /// The key that was to be inserted.
    pub key: K,
    /// Its value.
    pub value: V,
    /// Entries of the cache.
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
    /// A cache of `capacity` entries, with std's hasher and the default options.
    ///
    /// # Panics
    ///
    /// With a capacity of 0, or above 16,777,215.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self::with(capacity, CacheOptions::default(), RandomState::new()).expect("a capacity in bounds")
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> Cache<K, V, S> {
    /// A cache of `capacity` entries. The hasher should spread well; a fast one is most of what a hit costs.
    ///
    /// # Errors
    ///
    /// [`PoolError::Capacity`] out of bounds.
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

    /// Most entries that can be there.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.frames.len()
    }

    /// Entries that are there now, about: those removed while they are borrowed count until the sweep comes
    /// to them.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.len.sum() as i64).max(0) as usize
    }

    /// Returns `true` if the cache is empty; approximate under concurrent changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries that left for others so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions.sum()
    }

    fn id<Q: Hash + ?Sized>(&self, key: &Q) -> PageId {
        PageId(self.hasher.hash_one(key) & (MAX_PAGE_ID - 1))
    }

    /// The value of a key, borrowed. Never waits: one CAS, one subtraction when the borrow ends; less than
    /// that is written on a hot entry by nobody.
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

    /// Puts a value in, in place of the key's old one if it has one; borrows of that stay good.
    ///
    /// # Errors
    ///
    /// [`Full`] while every entry is borrowed, unless the cache was told to wait.
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

    /// The value of a key, borrowed; made by `make` if it is not there. Several threads that miss on one key
    /// may each make one: the first to insert wins, and all get that one.
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

    /// Takes a key out; whether it was there. Borrows of its value stay good.
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

    /// Puts an entry into a frame, pinned, without a mapping; with it comes what was in the frame, to be
    /// dropped when ours is in place.
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

    /// A frame without an entry, and the entry that left it.
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
                    if let Some((owner, left)) = self.see_out(frame) {
                        self.policy.evicted(swap, &owner);
                        return Some((owner, left));
                    }
                }
                // Nothing is ever dirty here.
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

    /// Sees an entry out of a leaving frame; the caller is in. The last one out owns the frame, and has its
    /// entry.
    fn see_out(&self, id: FrameId) -> Option<(Evicted, Option<(K, V)>)> {
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

    /// As [`Self::see_out`], and the frame is free.
    fn recycle(&self, id: FrameId) {
        if let Some((owner, left)) = self.see_out(id) {
            self.free.push(owner, &self.frames);
            drop(left);
        }
    }

    /// Takes a mapping away that is in the way of ours. Should another insertion have put the same one there
    /// since, it comes before ours.
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

    /// Frees a frame that lost its mapping, if nobody borrows its entry; else the sweep will.
    fn free_if_unused(&self, id: FrameId) {
        // The frame's present page, whichever it is, is unpinned and may be evicted.
        if self.frames[id.0 as usize].try_evict() {
            self.recycle(id);
        }
    }
}
