//! The page table: PageId → frame, with lock-free reads, inserts and removes, and no tombstones.
//!
//! A fixed array of buckets of 8 slots, one cache line each, at most half full. A slot is one word:
//!
//! | bits | meaning |
//! |---|---|
//! | 63 | tentative: being inserted, not found by readers yet |
//! | 24..63 | page id |
//! | 0..24 | frame number + 1; the whole word is 0 for an empty slot |
//!
//! A page belongs into the bucket of its hash, there into the slot of its hash if that is empty, else into any after it, around; so that a reader as a
//! rule finds it in the first slot that it looks at, and the processor can guess that. If the bucket is full, into the next one, and so on. Each bucket counts the entries that passed it by
//! (`passed`): a reader goes on to the next bucket only while that is not zero, so nothing has to mark removed entries.
//!
//! Insertion, put-if-absent, in two phases (as in open-addressed tables of Purcell and Harris, DISC 2005):
//! 1. Look for the page; if found, that is the answer.
//! 2. Count the buckets passed by, then CAS an empty slot to the tentative word.
//! 3. Look again at every slot that may hold the page: a finished entry wins, ours is withdrawn; a tentative one is removed by CAS, and its
//!    inserter starts over.
//! 4. CAS ours from tentative to finished; if somebody removed it, start over.
//!
//! - **TABLE-1** At most one finished entry for a page. Proof: let A and B both come to step 4 with words in place. Each has a SeqCst fence
//!   between placing its word (and the counts on the way to it) and looking again. Of the two fences one is first, say A's; then B's
//!   look finds A's word. If it was finished, B withdrew; if it was tentative, B removed it, and A cannot finish; or it was gone already,
//!   and A had not finished either, or its page has left since.
//! - **TABLE-2** An entry is removed by those who see its page out of the frame, each of them, before the frame is given to another page
//!   (FRAME-7). So a word in the table never names a frame that was given away since, and a late CAS of theirs finds no such word.
//!
//! A thread that stops for ever in any step leaves at most a tentative word, which the next inserter removes, or counts that are too high,
//! which cost a look at one more bucket.

use azekura_base::sync::atomic::{
    AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
    Ordering::SeqCst,
};
use azekura_base::{Backoff, PageId};

use crate::count::shared_rmw;
use crate::frame::FrameId;
use crate::stall::sync_point;

const SLOTS: usize = if cfg!(loom) { 1 } else { 8 };
const TENTATIVE: u64 = 1 << 63;
const FRAME_BITS: u32 = 24;
/// Most frames that a pool can have.
pub(crate) const MAX_FRAMES: usize = (1 << FRAME_BITS) - 1;
/// Page ids must be below this: 2 PiB of 4-KiB pages.
pub const MAX_PAGE_ID: u64 = 1 << 39;

#[derive(Debug)]
#[repr(align(64))]
struct Bucket([AtomicU64; SLOTS]);

/// Which frame holds which page.
#[derive(Debug)]
pub(crate) struct PageTable {
    buckets: Box<[Bucket]>,
    passed: Box<[AtomicU32]>,
    shift: u32,
}

const fn word(page_id: PageId, frame: FrameId) -> u64 {
    page_id.0 << FRAME_BITS | (frame.0 as u64 + 1)
}

const fn hash(page_id: PageId) -> u64 {
    page_id.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

const fn frame_of(word: u64) -> FrameId {
    FrameId((word & ((1 << FRAME_BITS) - 1)) as u32 - 1)
}

const fn is_of(word: u64, page_id: PageId) -> bool {
    word & (TENTATIVE - 1) != 0 && (word & (TENTATIVE - 1)) >> FRAME_BITS == page_id.0
}

/// A SeqCst fence; the last write before it was a read-modify-write. On x86-64 that was a fence already (every locked instruction is), so only the
/// compiler has to be held: a second one would cost a miss as much again.
#[inline]
fn fence_after_rmw() {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    std::sync::atomic::compiler_fence(SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    azekura_base::sync::atomic::fence(SeqCst);
}

/// What an insertion came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// The entry is in the table.
    New,
    /// The page has this frame already.
    Existing(FrameId),
}

impl PageTable {
    /// A table for `frames` entries.
    pub(crate) fn new(frames: usize) -> Self {
        let buckets = (frames * 2).div_ceil(SLOTS).next_power_of_two().max(2);
        Self {
            buckets: (0..buckets).map(|_| Bucket(std::array::from_fn(|_| AtomicU64::new(0)))).collect(),
            passed: (0..buckets).map(|_| AtomicU32::new(0)).collect(),
            shift: 64 - buckets.trailing_zeros(),
        }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.passed)
    }

    /// Whether no entry counts as having passed a bucket; with no entry in the table this must be so.
    #[cfg(any(test, loom))]
    pub(crate) fn counts_are_zero(&self) -> bool {
        self.passed.iter().all(|passed| passed.load(SeqCst) == 0)
    }

    #[inline]
    pub(crate) fn home(&self, page_id: PageId) -> usize {
        (hash(page_id) >> self.shift) as usize
    }

    /// The slots of a bucket, in the order in which they are looked at for a page.
    #[inline]
    fn slots(&self, page_id: PageId, bucket: usize) -> impl Iterator<Item = (usize, &AtomicU64)> {
        // Bits of the hash below those that say the bucket.
        let first = (hash(page_id) >> (self.shift - SLOTS.trailing_zeros())) as usize;
        let Bucket(slots) = &self.buckets[bucket];
        (0..SLOTS).map(move |n| ((first + n) % SLOTS, &slots[(first + n) % SLOTS]))
    }

    #[inline]
    const fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    /// The frame of a page. Writes nothing; one cache line when the page is in its own bucket.
    #[inline]
    pub(crate) fn get(&self, page_id: PageId) -> Option<FrameId> {
        let mut bucket = self.home(page_id);
        for _ in 0..self.buckets.len() {
            for (_, slot) in self.slots(page_id, bucket) {
                // Acquire: pairs with the CAS that finished the entry; the frame was published before.
                let word = slot.load(Acquire);
                if word >> FRAME_BITS == page_id.0 && word != 0 {
                    return Some(frame_of(word));
                }
            }
            // Acquire: pairs with the Release in `uncount`. A count that is not seen yet belongs to an insertion that this
            // call may come before.
            if self.passed[bucket].load(Acquire) == 0 {
                return None;
            }
            bucket = self.after(bucket);
        }
        None
    }

    /// Puts `page_id → frame` unless the page has a frame. Lock-free but for two inserters that keep removing each other's
    /// tentative words, which back off.
    ///
    /// # Panics
    ///
    /// If the table is full: the pool has fewer frames than half of the slots.
    pub(crate) fn insert(&self, page_id: PageId, frame: FrameId) -> Inserted {
        let mut backoff = Backoff::new();
        loop {
            if let Some(existing) = self.get(page_id) {
                return Inserted::Existing(existing);
            }
            let place = self.place_tentative(page_id, frame);
            // TABLE-1: our word, then the look at others'.
            fence_after_rmw();
            sync_point!("placed a tentative word");
            match self.clear_rivals(page_id, place) {
                Some(existing) => {
                    // If a rival removed our tentative word, only the counts are left to take back.
                    self.take_out(page_id, place, word(page_id, frame) | TENTATIVE);
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

    /// Step 2.
    fn place_tentative(&self, page_id: PageId, frame: FrameId) -> (usize, usize) {
        let tentative = word(page_id, frame) | TENTATIVE;
        let mut bucket = self.home(page_id);
        for _ in 0..self.buckets.len() {
            for (i, slot) in self.slots(page_id, bucket) {
                if slot.load(Relaxed) == 0 {
                    shared_rmw();
                    // Release: who finds the frame here finds it published. Acquire: the counts of the entry that was here
                    // are taken back before ours are.
                    if slot.compare_exchange(0, tentative, AcqRel, Relaxed).is_ok() {
                        return (bucket, i);
                    }
                }
            }
            shared_rmw();
            sync_point!("passes a full bucket");
            // Relaxed: before the fence, and so seen by who must see our word.
            self.passed[bucket].fetch_add(1, Relaxed);
            bucket = self.after(bucket);
        }
        unreachable!("the page table has twice as many slots as there are frames")
    }

    /// Step 3: the frame of a finished entry, after removing tentative ones.
    fn clear_rivals(&self, page_id: PageId, own: (usize, usize)) -> Option<FrameId> {
        let mut bucket = self.home(page_id);
        for _ in 0..self.buckets.len() {
            for (i, slot) in self.slots(page_id, bucket) {
                if (bucket, i) == own {
                    continue;
                }
                // Acquire, here and on failure: as in `get`.
                let mut seen = slot.load(Acquire);
                while is_of(seen, page_id) {
                    if seen & TENTATIVE == 0 {
                        return Some(frame_of(seen));
                    }
                    shared_rmw();
                    match slot.compare_exchange(seen, 0, AcqRel, Acquire) {
                        Ok(_) => break, // its inserter takes its counts back
                        Err(now) => seen = now,
                    }
                }
            }
            if self.passed[bucket].load(Acquire) == 0 {
                break;
            }
            bucket = self.after(bucket);
        }
        None
    }

    /// Step 4.
    fn finish(&self, page_id: PageId, frame: FrameId, (bucket, i): (usize, usize)) -> bool {
        sync_point!("cleared rivals");
        let done = word(page_id, frame);
        shared_rmw();
        // Release: pairs with the Acquire of `get`; the frame was published before.
        self.buckets[bucket].0[i].compare_exchange(done | TENTATIVE, done, AcqRel, Relaxed).is_ok()
    }

    /// Removes the entry `page_id → frame`, if it is there; whether this call did it. The caller sees the page out of the frame (TABLE-2), has
    /// pinned it, or does not mind taking out a later entry of the same two.
    pub(crate) fn remove(&self, page_id: PageId, frame: FrameId) -> bool {
        let mut bucket = self.home(page_id);
        for _ in 0..self.buckets.len() {
            for (i, slot) in self.slots(page_id, bucket) {
                // Relaxed: the entry was found by the caller, or put there by its inserter, before the page turned to leave.
                if slot.load(Relaxed) == word(page_id, frame) {
                    // Who takes the word out takes its counts back; of several removers, one.
                    let is_ours = self.take_out(page_id, (bucket, i), word(page_id, frame));
                    if is_ours {
                        self.uncount(page_id, bucket);
                    }
                    return is_ours;
                }
            }
            if self.passed[bucket].load(Acquire) == 0 {
                return false;
            }
            bucket = self.after(bucket);
        }
        false
    }

    /// Empties a slot that holds `expected`; says whether it did.
    fn take_out(&self, page_id: PageId, (bucket, i): (usize, usize), expected: u64) -> bool {
        debug_assert!(is_of(expected, page_id));
        sync_point!("takes a word out");
        shared_rmw();
        // AcqRel: as in `place_tentative`, from the other side.
        self.buckets[bucket].0[i].compare_exchange(expected, 0, AcqRel, Relaxed).is_ok()
    }

    /// Takes back the counts of the buckets that an entry in `bucket` passed by.
    fn uncount(&self, page_id: PageId, bucket: usize) {
        sync_point!("takes counts back");
        let mut passed = self.home(page_id);
        while passed != bucket {
            shared_rmw();
            // Release: who sees the lower count sees the entry gone. (One that is too high costs a look more.)
            self.passed[passed].fetch_sub(1, Release);
            passed = self.after(passed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn agrees_with_a_map_through_full_buckets() {
        let table = PageTable::new(64);
        let mut map: HashMap<u64, u32> = HashMap::new();
        let mut state = 12345u64;
        for _ in 0..200_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let page = (state >> 33) % 100;
            let frame = (state >> 50) as u32 % 64;
            if state >> 63 == 0 && map.len() < 64 {
                let expected = match map.get(&page) {
                    Some(&f) => Inserted::Existing(FrameId(f)),
                    None => {
                        map.insert(page, frame);
                        Inserted::New
                    }
                };
                assert_eq!(table.insert(PageId(page), FrameId(frame)), expected);
            } else if let Some(f) = map.remove(&page) {
                table.remove(PageId(page), FrameId(f));
            }
            assert_eq!(table.get(PageId(page)).map(|f| f.0), map.get(&page).copied());
        }
        for (page, frame) in map.drain() {
            table.remove(PageId(page), FrameId(frame));
        }
        assert!(table.counts_are_zero(), "every count is taken back");
    }

    #[test]
    fn threads_that_insert_the_same_pages_agree_on_one_frame_each() {
        let table = PageTable::new(256);
        for round in 0..50u64 {
            let winners: Vec<Vec<u32>> = std::thread::scope(|s| {
                let threads: Vec<_> = (0..4u32)
                    .map(|t| {
                        let table = &table;
                        s.spawn(move || {
                            (0..64u64)
                                .map(|page| {
                                    match table
                                        .insert(PageId(round * 64 + page), FrameId(t * 64 + page as u32))
                                    {
                                        Inserted::New => t * 64 + page as u32,
                                        Inserted::Existing(f) => f.0,
                                    }
                                })
                                .collect()
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            assert!(winners.windows(2).all(|w| w[0] == w[1]));
            for page in 0..64 {
                table.remove(PageId(round * 64 + page), FrameId(winners[0][page as usize]));
                assert_eq!(table.get(PageId(round * 64 + page)), None);
            }
        }
        assert!(table.counts_are_zero());
    }
}
