//! Single parts of the pool, for the models in `tests/loom_*.rs`. Each call begins with a switch point.

use azekura_base::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use azekura_base::zeroed::ZeroedMemory;
use azekura_base::{Lsn, PageId};
use azekura_latch::{HybridLatch, Version};

use crate::cleaner::CleanerNotifier;
use crate::dirty_map::DirtyMap;
use crate::frame::{self, Evicted, Frame, FrameId, Look};
use crate::index_stack::{Below, IndexStack};
use crate::page_table::{Inserted, Owners, PageTable};
use crate::policy::two_rings::TwoRings;
use crate::policy::{Search, Sweep};
use crate::supply::FrameSupply;

pub use crate::stall::step;

/// A frame and its map of dirty frames.
#[derive(Debug)]
pub struct ModelFrame(Frame, DirtyMap);

impl ModelFrame {
    /// Returns a frame that holds `page`, not pinned.
    #[must_use]
    pub fn holding(page: u64) -> Self {
        let model = Self(Frame::new(), DirtyMap::new(1));
        model.publish(page);
        model.unpin();
        model
    }

    /// Assigns the frame, pinned, to a page with loaded content. The caller owns the frame (by
    /// [`ModelFrame::finish_eviction`]).
    pub fn publish(&self, page: u64) {
        step();
        self.0.publish(Evicted { frame: FrameId(0) }, PageId(page));
        assert!(self.0.install(0), "nobody else fills it");
        step();
    }

    /// Pins the frame if it holds `page`.
    pub fn try_pin(&self, page: u64) -> bool {
        step();
        self.0.try_pin(PageId(page))
    }

    /// Releases a pin.
    pub fn unpin(&self) {
        step();
        self.0.unpin();
        step();
    }

    /// Begins to evict the page.
    pub fn try_evict(&self) -> bool {
        step();
        self.0.try_evict()
    }

    /// Joins the threads that evict `page`.
    pub fn join_leaving(&self, page: u64) -> bool {
        step();
        self.0.join_leaving(PageId(page))
    }

    /// Closes a leaving frame and leaves it; returns `true` if the caller owns it now.
    pub fn finish_eviction(&self) -> bool {
        step();
        self.0.close();
        step();
        let is_ours = self.0.leave(FrameId(0)).is_some();
        step();
        is_ours
    }

    /// Returns the version with which an optimistic reader of `page` may validate its reads.
    pub fn look(&self, page: u64) -> Option<Version> {
        step();
        match self.0.look(PageId(page)) {
            Some(Look::Page { version, .. }) => Some(version),
            _ => None,
        }
    }

    /// Returns the frame's latch.
    pub fn latch(&self) -> &HybridLatch {
        step();
        &self.0.latch
    }

    /// Marks the page as dirty.
    pub fn set_dirty(&self, next_lsn: u64) {
        step();
        self.0.set_dirty(Lsn(next_lsn), || {
            self.1.set(FrameId(0));
            step();
        });
        step();
    }

    /// Begins to write the page.
    pub fn claim_writing(&self) -> bool {
        step();
        self.0.claim_writing()
    }

    /// Records that the image is on disk; later changes have LSNs of at least `next_lsn`.
    pub fn image_written(&self, next_lsn: u64) {
        step();
        self.0.image_written(Lsn(next_lsn));
        step();
    }

    /// Records that the page is clean.
    pub fn now_clean(&self) {
        step();
        self.0.now_clean();
        step();
        self.1.clear(FrameId(0));
        step();
    }

    /// Ends the write.
    pub fn release_writing(&self) {
        step();
        self.0.release_writing();
        step();
    }

    /// Returns the recovery LSN of the page, as a checkpoint reads it after the log's counter.
    pub fn checkpoint_look(&self) -> Option<u64> {
        step();
        frame::look_fence();
        let is_dirty = self.1.iter().next().is_some();
        step();
        let seen = self.0.least_recovery_lsn().filter(|_| is_dirty);
        step();
        seen.map(|lsn| lsn.0)
    }
}

/// Two rings over unpinned frames with pages 0, 1, …; the first ring has one slot.
#[derive(Debug)]
pub struct ModelRings {
    frames: Box<[Frame]>,
    rings: TwoRings,
}

impl ModelRings {
    /// Returns two rings over `frames` frames.
    #[must_use]
    pub fn new(frames: u32) -> Self {
        let all: Box<[Frame]> = (0..frames).map(|_| Frame::new()).collect();
        for (n, frame) in (0..).zip(&all) {
            frame.publish(Evicted { frame: FrameId(n) }, PageId(n.into()));
            frame.unpin();
        }
        Self { frames: all, rings: TwoRings::new(frames as usize) }
    }

    /// Counts a use of the page of a frame.
    pub fn note_use(&self, frame: u32) {
        self.frames[frame as usize].note_use();
        step();
    }

    /// Performs a miss: evicts a page and loads `page` into the frame. Returns `false` if no frame was found.
    pub fn miss(&self, page: u64) -> bool {
        step();
        let Sweep::Victim { frame, swap } = self.rings.sweep(&self.frames, &mut Search::full()) else {
            return false;
        };
        step();
        let victim = &self.frames[frame.0 as usize];
        victim.close();
        let Some(owner) = victim.leave(frame) else { return false };
        step();
        if let Some(swap) = swap {
            self.rings.swap(swap, &owner);
        }
        step();
        victim.publish(owner, PageId(page));
        step();
        victim.unpin();
        true
    }

    /// Returns `true` if every frame has a slot; no miss may be running.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.rings.is_permutation()
    }
}

/// The supply of free frames: misses that wait for frames, and the cleaner that frees them.
#[derive(Debug, Default)]
pub struct ModelSupply {
    supply: FrameSupply,
    notifier: CleanerNotifier,
    /// Number of free frames.
    free: AtomicU64,
    /// Number of running rounds of the cleaner.
    rounds: AtomicU64,
}

impl ModelSupply {
    fn take(&self) -> bool {
        // The same orderings as for the head of the free list.
        let mut free = self.free.load(Acquire);
        while free > 0 {
            match self.free.compare_exchange(free, free - 1, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(now) => free = now,
            }
        }
        false
    }

    /// Performs a miss that finds no victim. Returns `false` if the cleaner ended first.
    pub fn miss(&self) -> bool {
        while self.supply.has_cleaner() {
            if self.take() {
                return true;
            }
            let registration = self.supply.register();
            if self.take() {
                return true;
            }
            self.notifier.call();
            if !self.supply.wait(registration) {
                return false;
            }
        }
        false
    }

    /// Runs the cleaner's job: each round frees one frame if a miss waits.
    pub fn clean(&self) {
        self.notifier.serve(&self.supply, || {
            assert_eq!(self.rounds.fetch_add(1, AcqRel), 0, "CLEANER-1");
            if self.supply.is_awaited() {
                self.free.fetch_add(1, AcqRel);
                step();
                self.supply.notify();
            }
            self.rounds.fetch_sub(1, AcqRel);
        });
    }

    /// Begins the service of a cleaner; `start` starts its job.
    pub fn begin(&self, start: impl Fn() + Send + Sync + 'static) {
        self.supply.begin();
        self.notifier.begin(start);
    }

    /// Stops the cleaner.
    pub fn stop(&self) {
        self.notifier.stop(&self.supply);
    }
}

/// Two stacks of free numbers that share their links, and the owners of the numbers.
#[derive(Debug)]
pub struct ModelStacks {
    stacks: [IndexStack; 2],
    links: Links,
    is_owned: [AtomicU64; 2],
}

#[derive(Debug)]
struct Links([AtomicU64; 2]);

impl Below for Links {
    fn below(&self, number: u32) -> u32 {
        self.0[number as usize].load(Relaxed) as u32 // Relaxed: the head of the stack orders the links
    }

    fn set_below(&self, number: u32, below: u32) {
        self.0[number as usize].store(below.into(), Relaxed); // Relaxed: as in `below`
    }
}

impl Default for ModelStacks {
    fn default() -> Self {
        let words = || std::array::from_fn(|_| AtomicU64::new(0));
        Self { stacks: [IndexStack::new(2), IndexStack::new(0)], links: Links(words()), is_owned: words() }
    }
}

impl ModelStacks {
    /// Pops a number, which the caller owns then.
    pub fn pop(&self, stack: usize) -> Option<u32> {
        step();
        let number = self.stacks[stack].pop(&self.links)?;
        // Relaxed: the stack must publish the store of the earlier owner.
        assert_eq!(self.is_owned[number as usize].load(Relaxed), 0, "a number has one owner");
        self.is_owned[number as usize].store(1, Relaxed);
        Some(number)
    }

    /// Pushes a number of the caller.
    pub fn push(&self, stack: usize, number: u32) {
        self.is_owned[number as usize].store(0, Relaxed);
        self.stacks[stack].push(number, &self.links);
        step();
    }
}

/// A page table, and the pages of the frames.
#[derive(Debug)]
pub struct ModelTable {
    table: PageTable,
    pages: Box<[AtomicU64]>,
}

impl Owners for [AtomicU64] {
    fn page_of(&self, frame: FrameId) -> PageId {
        PageId(self[frame.0 as usize].load(Relaxed)) // Relaxed: as a frame's page word
    }
}

impl ModelTable {
    /// Returns a page table for `frames` frames. In models a bucket has one slot, and all pages have the same
    /// tag.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        let pages = (0..frames).map(|_| AtomicU64::new(u64::MAX)).collect();
        Self { table: PageTable::new(frames, &mut ZeroedMemory::none()), pages }
    }

    /// Returns the frame of a page.
    pub fn get(&self, page: u64) -> Option<u32> {
        step();
        self.table.get(PageId(page), &*self.pages).map(|frame| frame.0)
    }

    /// Publishes a frame of the caller for the page.
    pub fn publish(&self, page: u64, frame: u32) {
        self.pages[frame as usize].store(page, Relaxed);
        step();
    }

    /// Publishes the frame for the page and inserts its mapping, unless the page has one. Returns the page's
    /// frame.
    pub fn insert(&self, page: u64, frame: u32) -> u32 {
        self.publish(page, frame);
        let inserted = self.table.insert(PageId(page), FrameId(frame), &*self.pages);
        step();
        match inserted {
            Inserted::New => frame,
            Inserted::Existing(frame) => frame.0,
        }
    }

    /// Removes the mapping.
    pub fn remove(&self, page: u64, frame: u32) {
        step();
        self.table.remove(PageId(page), FrameId(frame));
        step();
    }

    /// Returns `true` if all counts of passed buckets are zero.
    #[must_use]
    pub fn counts_are_zero(&self) -> bool {
        self.table.counts_are_zero()
    }

    /// Returns the bucket that the hash of a page selects.
    #[must_use]
    pub fn home(&self, page: u64) -> usize {
        self.table.home(PageId(page))
    }
}
