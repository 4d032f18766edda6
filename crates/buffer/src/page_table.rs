//! The page table: a map from page id to frame with lock-free reads, inserts and removals, and without
//! tombstones.
//!
//! The table is a fixed array of buckets. A bucket is one cache line with 15 slots and a count; 9 slots are
//! full in a full pool. A slot is one word of 32 bits:
//!
//! | bits | meaning |
//! |---|---|
//! | 31 | tentative: being inserted, not visible to readers |
//! | the bits between | a tag: some bits of the page's hash |
//! | low bits, as many as the largest frame number needs | frame number + 1; an empty slot is 0 |
//!
//! The page id is not in the table but in the frame's header, which a lookup reads anyway. A word with the
//! page's tag belongs to the page if its frame holds the page ([`Owners`]). With 32,768 frames, one in 32,768
//! words of other pages has the same tag.
//!
//! The hash of a page id selects a bucket and a slot. The page is stored in that slot if it is empty,
//! otherwise in any later slot of the bucket, cyclically. So a reader usually finds the page in the first
//! slot that it reads, and the processor can predict that. If the bucket is full, the page is stored in the
//! next bucket, and so on. Each bucket counts the entries that passed it to later buckets (`passed`). A
//! reader continues with the next bucket only while that count is not zero, so removed entries need no mark.
//!
//! Insertion, put-if-absent, in two phases (as in the open-addressed tables of Purcell and Harris, DISC
//! 2005):
//! 1. Search for the page; if it is found, return its frame.
//! 2. Increment `passed` of the skipped buckets, then CAS an empty slot to the tentative word.
//! 3. Read again every slot that may hold the page. A finished entry wins, and the thread withdraws its own
//!    entry. A tentative entry of another thread is removed by CAS, and its inserter starts over.
//! 4. CAS the thread's own word from tentative to finished; if another thread removed it, start over.
//!
//! - **TABLE-1** A page has at most one finished entry. Proof: let A and B both reach step 4 with words in
//!   their slots. Each has a SeqCst fence between storing its word (and the counts before it) and reading
//!   again. One of the two fences is first, say A's; then B's second read finds A's word. If the word was
//!   finished, B withdrew. If it was tentative, B removed it, and A cannot finish. If it was removed already,
//!   A had not finished either, or its page has been evicted since.
//! - **TABLE-2** Each thread that evicts a page removes its entry before the frame is assigned to another
//!   page (FRAME-7). So a word in the table never refers to a frame that was reassigned since, and a late CAS
//!   of an evicting thread finds no such word.
//! - **TABLE-3** A frame is published for its page before its word is stored (Release; pairs with the Acquire
//!   of the lookup that finds the word), and holds the page until the word is removed. Suppose that a lookup
//!   finds a word with the right tag and then another page in the frame. Then the word is not the page's, or
//!   the page has left its frame since. A tentative word that is removed because its frame held the page
//!   shortly before may belong to another page with the same tag by now; then its inserter starts over.
//!
//! A thread that stalls permanently in any step leaves at most a tentative word, which the next inserter
//! removes, or counts that are too high, which make readers read one more bucket.

use azekura_base::sync::atomic::{
    AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};
use azekura_base::{Backoff, PageId};

use crate::count::{lookup, shared_rmw};
use crate::frame::{Frame, FrameId};
use crate::stall::sync_point;
use azekura_base::zeroed::{ZeroIsValid, ZeroedArray, ZeroedMemory};

const SLOTS: usize = if cfg!(loom) { 1 } else { 15 };
/// Number of used slots of a bucket when every frame holds a page.
const FULL_SLOTS: usize = if cfg!(loom) { 1 } else { 9 };
const TENTATIVE: u32 = 1 << 31;

/// The mapping from frames to their pages.
pub trait Owners {
    /// Returns the page in the header of a frame; it may be outdated unless the frame is pinned (TABLE-3).
    fn page_of(&self, frame: FrameId) -> PageId;
}

impl Owners for [Frame] {
    #[inline]
    fn page_of(&self, frame: FrameId) -> PageId {
        self[frame.0 as usize].page_id()
    }
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Bucket {
    slots: [AtomicU32; SLOTS],
    passed: AtomicU32,
}

// SAFETY: 16 atomic integers in 64 bytes.
unsafe impl ZeroIsValid for Bucket {}

/// The page table.
#[derive(Debug)]
pub struct PageTable {
    buckets: ZeroedArray<Bucket>,
    /// Number of bits for a frame number + 1.
    frame_bits: u32,
}

const fn hash(page_id: PageId) -> u64 {
    page_id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Executes a SeqCst fence after a read-modify-write. On x86-64 each locked instruction is a full fence, so a
/// compiler fence is sufficient; a second hardware fence would double the cost.
#[inline]
fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    azekura_base::sync::atomic::fence(SeqCst);
}

/// Result of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The entry is in the table.
    New,
    /// The page already has this frame.
    Existing(FrameId),
}

impl PageTable {
    /// Returns a table for `frames` entries, in this memory if it has room.
    pub fn new(frames: usize, memory: &mut ZeroedMemory) -> Self {
        let buckets = if cfg!(loom) { (frames * 2).next_power_of_two() } else { frames.div_ceil(FULL_SLOTS) };
        let empty =
            || Bucket { slots: std::array::from_fn(|_| AtomicU32::new(0)), passed: AtomicU32::new(0) };
        Self {
            buckets: memory.array(buckets.max(2), empty),
            frame_bits: u32::BITS - (frames as u32).leading_zeros(),
        }
    }

    /// Returns the memory of the table, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    /// Returns `true` if the counts of all buckets are zero, as in an empty table.
    #[cfg(any(test, loom))]
    pub(crate) fn counts_are_zero(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.passed.load(SeqCst) == 0)
    }

    #[inline]
    pub(crate) fn home(&self, page_id: PageId) -> usize {
        self.place(page_id).0
    }

    /// Returns the bucket of a page, and its slot in that bucket: the hash as a fraction of all slots.
    #[inline]
    fn place(&self, page_id: PageId) -> (usize, usize) {
        let scaled = (hash(page_id) >> 32) * self.buckets.len() as u64;
        let slot = (scaled & u64::from(u32::MAX)) * SLOTS as u64;
        ((scaled >> 32) as usize, (slot >> 32) as usize)
    }

    /// Returns the page's tag at its position in a word.
    #[inline]
    const fn tag(&self, page_id: PageId) -> u32 {
        // Bits of the hash that do not determine the slot. In models all pages have the same tag.
        let bits = if cfg!(loom) { 0 } else { hash(page_id) as u32 >> (self.frame_bits + 1) };
        bits << self.frame_bits
    }

    #[inline]
    const fn word(&self, page_id: PageId, frame: FrameId) -> u32 {
        self.tag(page_id) | (frame.0 + 1)
    }

    /// Returns the frame of a finished word with the tag.
    #[inline]
    const fn tagged(&self, word: u32, tag: u32) -> Option<FrameId> {
        let frame = (word ^ tag).wrapping_sub(1);
        if frame < (1 << self.frame_bits) - 1 { Some(FrameId(frame)) } else { None }
    }

    /// Returns the slots of a bucket, in the order of the search for a page.
    #[inline]
    fn slots(&self, page_id: PageId, bucket: usize) -> impl Iterator<Item = (usize, &AtomicU32)> {
        self.slots_from(bucket, self.place(page_id).1).take(SLOTS)
    }

    /// Returns the slots of a bucket from slot `first` on, cyclically. Each slot number is computed from the
    /// previous one. (If each is computed from the first one, the compiler computes all of them before the
    /// first read, in a hundred instructions.)
    #[inline]
    fn slots_from(&self, bucket: usize, first: usize) -> impl Iterator<Item = (usize, &AtomicU32)> {
        let (slots, mut next) = (&self.buckets[bucket].slots, first);
        std::iter::repeat_with(move || {
            let n = next;
            next = if n + 1 < SLOTS { n + 1 } else { 0 };
            (n, &slots[n])
        })
    }

    #[inline]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 < self.buckets.len() { bucket + 1 } else { 0 }
    }

    /// Returns the frame of a page. Writes nothing. Reads one cache line and the frame's header if the page
    /// is in the bucket of its hash.
    #[inline]
    pub fn get<O: Owners + ?Sized>(&self, page_id: PageId, owners: &O) -> Option<FrameId> {
        self.find(page_id, |frame| (owners.page_of(frame) == page_id).then_some(frame))
    }

    /// Calls `look` for each frame that may hold the page, and returns the first result that is `Some`.
    #[inline]
    pub fn find<T>(&self, page_id: PageId, mut look: impl FnMut(FrameId) -> Option<T>) -> Option<T> {
        lookup();
        let tag = self.tag(page_id);
        let (bucket, first) = self.place(page_id);
        let (_, slot) = self.slots_from(bucket, first).next()?;
        self.look_at(slot, tag, &mut look).or_else(|| self.find_further(bucket, first, tag, look))
    }

    /// Continues the search after the first slot. A separate function, so that the inlined part is short.
    #[inline(never)]
    fn find_further<T>(
        &self,
        home: usize,
        first: usize,
        tag: u32,
        mut look: impl FnMut(FrameId) -> Option<T>,
    ) -> Option<T> {
        let (mut bucket, mut seen) = (home, 1);
        for _ in 0..self.buckets.len() {
            for (_, slot) in self.slots_from(bucket, first).take(SLOTS).skip(seen) {
                // Acquire: as in `look_at`, which is not called, because nearly all of these words have
                // another tag.
                let frame = self.tagged(slot.load(Acquire), tag);
                if let Some(found) = frame.and_then(&mut look) {
                    return Some(found);
                }
            }
            // Acquire: pairs with the Release in `uncount`. If a new count is not visible yet, this call may
            // precede its insertion.
            if self.buckets[bucket].passed.load(Acquire) == 0 {
                return None;
            }
            (bucket, seen) = (self.after(bucket), 0);
        }
        None
    }

    /// Returns the result of `look` for a slot's frame, if the slot has a finished word with the tag.
    #[inline]
    fn look_at<T>(
        &self,
        slot: &AtomicU32,
        tag: u32,
        look: &mut impl FnMut(FrameId) -> Option<T>,
    ) -> Option<T> {
        // Acquire: pairs with the CAS that finished the entry; the frame was published before (TABLE-3).
        self.tagged(slot.load(Acquire), tag).and_then(look)
    }

    /// Inserts `page_id → frame` unless the page has a frame. Lock-free, with one exception: two inserters
    /// may remove each other's tentative words repeatedly; they back off.
    ///
    /// # Panics
    ///
    /// If the table is full, which cannot happen in a pool: it has fewer frames than slots.
    pub fn insert<O: Owners + ?Sized>(&self, page_id: PageId, frame: FrameId, owners: &O) -> Inserted {
        let mut backoff = Backoff::new();
        loop {
            if let Some(existing) = self.get(page_id, owners) {
                return Inserted::Existing(existing);
            }
            let place = self.place_tentative(page_id, frame);
            // TABLE-1: this thread's word is stored before the other words are read again.
            fence_after_rmw();
            sync_point!("placed a tentative word");
            match self.clear_rivals(page_id, place, owners) {
                Some(existing) => {
                    // If another inserter removed the tentative word, only the counts remain to be withdrawn.
                    self.take_out(place, self.word(page_id, frame) | TENTATIVE);
                    self.uncount(page_id, place.0);
                    return Inserted::Existing(existing);
                }
                None if self.finish(page_id, frame, place) => return Inserted::New,
                None => {
                    self.uncount(page_id, place.0);
                    backoff.pause();
                }
            }
        }
    }

    /// Stores the tentative word (step 2).
    fn place_tentative(&self, page_id: PageId, frame: FrameId) -> (usize, usize) {
        let tentative = self.word(page_id, frame) | TENTATIVE;
        let mut bucket = self.home(page_id);
        for _ in 0..self.buckets.len() {
            for (i, slot) in self.slots(page_id, bucket) {
                if slot.load(Relaxed) == 0 {
                    shared_rmw();
                    // Release: a thread that reads this word finds the frame published. Acquire: the counts
                    // of the previous entry are withdrawn before this entry's counts are added.
                    if slot.compare_exchange(0, tentative, AcqRel, Relaxed).is_ok() {
                        return (bucket, i);
                    }
                }
            }
            shared_rmw();
            sync_point!("passes a full bucket");
            // Relaxed: the addition precedes the fence, so the threads that must read the word read the
            // count.
            self.buckets[bucket].passed.fetch_add(1, Relaxed);
            bucket = self.after(bucket);
        }
        unreachable!("the page table has more slots than there are frames")
    }

    /// Performs step 3: removes tentative entries of other threads; returns the frame of a finished entry.
    fn clear_rivals<O: Owners + ?Sized>(
        &self,
        page_id: PageId,
        own: (usize, usize),
        owners: &O,
    ) -> Option<FrameId> {
        let tag = self.tag(page_id);
        let mut bucket = self.home(page_id);
        for _ in 0..self.buckets.len() {
            for (i, slot) in self.slots(page_id, bucket) {
                if (bucket, i) == own {
                    continue;
                }
                // Acquire, here and on failure: as in `get`.
                let mut seen = slot.load(Acquire);
                while let Some(frame) = self.tagged(seen & !TENTATIVE, tag)
                    && owners.page_of(frame) == page_id
                {
                    if seen & TENTATIVE == 0 {
                        return Some(frame);
                    }
                    shared_rmw();
                    match slot.compare_exchange(seen, 0, AcqRel, Acquire) {
                        Ok(_) => break, // Its inserter withdraws its counts.
                        Err(now) => seen = now,
                    }
                }
            }
            if self.buckets[bucket].passed.load(Acquire) == 0 {
                break;
            }
            bucket = self.after(bucket);
        }
        None
    }

    /// Finishes the thread's own word (step 4).
    fn finish(&self, page_id: PageId, frame: FrameId, (bucket, i): (usize, usize)) -> bool {
        sync_point!("cleared rivals");
        let done = self.word(page_id, frame);
        shared_rmw();
        // Release: pairs with the Acquire of `get`; the frame was published before.
        self.buckets[bucket].slots[i].compare_exchange(done | TENTATIVE, done, AcqRel, Relaxed).is_ok()
    }

    /// Removes the entry `page_id → frame`; returns `true` if this call removed it. The caller evicts the
    /// page from the frame (TABLE-2) or has pinned the frame, so no other page's word can refer to the frame.
    pub fn remove(&self, page_id: PageId, frame: FrameId) -> bool {
        let word = self.word(page_id, frame);
        let mut bucket = self.home(page_id);
        for _ in 0..self.buckets.len() {
            for (i, slot) in self.slots(page_id, bucket) {
                // Relaxed: the caller has read the entry, or its inserter has stored it, before the eviction
                // of the page began.
                if slot.load(Relaxed) == word {
                    // The thread that removes the word also withdraws its counts. Only one of several
                    // removers succeeds.
                    let is_ours = self.take_out((bucket, i), word);
                    if is_ours {
                        self.uncount(page_id, bucket);
                    }
                    return is_ours;
                }
            }
            if self.buckets[bucket].passed.load(Acquire) == 0 {
                return false;
            }
            bucket = self.after(bucket);
        }
        false
    }

    /// Empties a slot if it holds `expected`; returns `true` on success.
    fn take_out(&self, (bucket, i): (usize, usize), expected: u32) -> bool {
        sync_point!("takes a word out");
        shared_rmw();
        // AcqRel: pairs with `place_tentative`.
        self.buckets[bucket].slots[i].compare_exchange(expected, 0, AcqRel, Relaxed).is_ok()
    }

    /// Withdraws the counts of the buckets that an entry in `bucket` has passed.
    fn uncount(&self, page_id: PageId, bucket: usize) {
        sync_point!("takes counts back");
        let mut passed = self.home(page_id);
        while passed != bucket {
            shared_rmw();
            // Release: a thread that reads the lower count finds the entry removed. (A count that is too high
            // costs one more read.)
            self.buckets[passed].passed.fetch_sub(1, Release);
            passed = self.after(passed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::MAX_PAGE_ID;
    use std::collections::HashMap;
    use std::sync::atomic::AtomicU64;

    /// A table, and the page of each frame.
    struct Scene(PageTable, Box<[AtomicU64]>);

    impl Owners for [AtomicU64] {
        fn page_of(&self, frame: FrameId) -> PageId {
            PageId(self[frame.0 as usize].load(Relaxed))
        }
    }

    impl Scene {
        fn new(frames: usize) -> Self {
            let table = PageTable::new(frames, &mut ZeroedMemory::none());
            Self(table, (0..frames).map(|_| AtomicU64::new(u64::MAX)).collect())
        }

        fn insert(&self, page: u64, frame: u32) -> Inserted {
            self.1[frame as usize].store(page, Relaxed);
            self.0.insert(PageId(page), FrameId(frame), &*self.1)
        }

        fn get(&self, page: u64) -> Option<u32> {
            self.0.get(PageId(page), &*self.1).map(|frame| frame.0)
        }

        fn remove(&self, page: u64, frame: u32) -> bool {
            self.0.remove(PageId(page), FrameId(frame))
        }
    }

    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    /// The table agrees with a map, with adjacent pages, and with pages in the same full bucket.
    #[test]
    fn agrees_with_a_map_through_full_buckets() {
        let scene = Scene::new(64);
        let one_bucket: Vec<u64> = (0..).filter(|&page| scene.0.home(PageId(page)) == 3).take(60).collect();
        let mut map: HashMap<u64, u32> = HashMap::new();
        let mut free: Vec<u32> = (0..64).collect();
        let mut state = 12345u64;
        for step in 0..200_000 {
            let (nth, is_near) = (random(&mut state) as usize % 60, step / 1000 % 2 == 0);
            let page = if is_near { MAX_PAGE_ID - 1 - nth as u64 } else { one_bucket[nth] };
            if random(&mut state).is_multiple_of(2) && !free.is_empty() {
                let frame = free.swap_remove(random(&mut state) as usize % free.len());
                let expected = map.get(&page).map_or(Inserted::New, |&f| Inserted::Existing(FrameId(f)));
                assert_eq!(scene.insert(page, frame), expected);
                match expected {
                    Inserted::New => _ = map.insert(page, frame),
                    Inserted::Existing(_) => free.push(frame),
                }
            } else if let Some(frame) = map.remove(&page) {
                assert!(scene.remove(page, frame) && !scene.remove(page, frame));
                free.push(frame);
            }
            assert_eq!(scene.get(page), map.get(&page).copied());
        }
        map.drain().for_each(|(page, frame)| assert!(scene.remove(page, frame)));
        assert!(scene.0.counts_are_zero(), "every count is taken back");
    }

    #[test]
    fn table_3_a_word_of_another_page_with_the_same_tag_is_passed_by() {
        let scene = Scene::new(8);
        let (place, tag) = (scene.0.place(PageId(1)), scene.0.tag(PageId(1)));
        let alike = |&page: &u64| (scene.0.place(PageId(page)), scene.0.tag(PageId(page))) == (place, tag);
        // The hash is multiplicative: an addition to only the upper bits does not change the tag.
        let other = (2..64u64).map(|n| 1 + (n << 33)).find(alike).or_else(|| (2..).find(alike)).unwrap();
        assert_eq!((scene.insert(1, 5), scene.get(other)), (Inserted::New, None));
        assert_eq!(
            (scene.insert(other, 6), scene.get(1), scene.get(other)),
            (Inserted::New, Some(5), Some(6))
        );
        assert!(scene.remove(1, 5));
        assert_eq!((scene.get(1), scene.get(other)), (None, Some(6)));
    }

    #[test]
    fn every_frame_has_a_word_at_any_size() {
        for frames in [1, 2, 15, 16, 17, 1000, 32_767, 32_768, 70_000] {
            let scene = Scene::new(frames);
            for frame in 0..frames as u32 {
                assert_eq!(scene.insert(u64::from(frame) * 977, frame), Inserted::New);
            }
            assert!((0..frames as u32).all(|frame| scene.get(u64::from(frame) * 977) == Some(frame)));
            assert_eq!(scene.get(1), None);
        }
    }

    #[test]
    fn threads_that_insert_the_same_pages_agree_on_one_frame_each() {
        let scene = Scene::new(256);
        for round in 0..50u64 {
            let winners: Vec<Vec<u32>> = std::thread::scope(|s| {
                let insert = |thread: u32, page: u32| {
                    let frame = thread * 64 + page;
                    match scene.insert(round * 64 + u64::from(page), frame) {
                        Inserted::New => frame,
                        Inserted::Existing(other) => other.0,
                    }
                };
                let threads: Vec<_> = (0..4u32)
                    .map(|thread| s.spawn(move || (0..64).map(|page| insert(thread, page)).collect()))
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(winners.windows(2).all(|w| w[0] == w[1]));
            for page in 0..64 {
                assert!(scene.remove(round * 64 + page, winners[0][page as usize]));
                assert_eq!(scene.get(round * 64 + page), None);
            }
        }
        assert!(scene.0.counts_are_zero());
    }
}
