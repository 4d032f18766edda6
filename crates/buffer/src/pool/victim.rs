//! Allocation of a frame for a new page: a free frame, or a victim after its page is evicted (steps 1 and 2
//! of a miss).

use std::cell::RefCell;

use azekura_base::{Backoff, PageBuf, PageId};
use azekura_trace::{Site, ThreadTag, WaitKind};

use super::{BufferPool, nap};
use crate::count::own_rmw;
use crate::error::{FixError, WriteError};
use crate::frame::{Evicted, FrameId};
use crate::policy::two_rings::Swap;
use crate::policy::{Search, Sweep};
use crate::stall::sync_point;
use crate::stats::Counter;
use crate::supply::MISS_LOOKS;

static FREE_FRAME: Site = Site::new("free frame");

/// Bounds on the number of sweeps of one fix; see `BufferPool::victim_tries`.
const MAX_VICTIM_TRIES: usize = if cfg!(loom) { 3 } else { 1000 };
const MIN_VICTIM_TRIES: usize = if cfg!(loom) { 3 } else { 32 };
const FRAMES_LOOKED_AT: usize = 4_000_000;
/// Largest number of free frames that the cleaner keeps: as many as one batch cleans.
const MAX_RESERVE: usize = 128;
/// Number of frames that one search of the cleaner checks.
const SUPPLY_LOOKS: usize = 256;

/// An evicted frame, and the buffer of its last page if it had one.
pub(super) struct Vacant {
    pub(super) owner: Evicted,
    pub(super) buffer: Option<u32>,
}

impl Vacant {
    /// Returns the frame with `buffer`, unless it has one.
    pub(super) fn with(self, buffer: &mut Option<u32>) -> Self {
        Self { buffer: self.buffer.or_else(|| buffer.take()), ..self }
    }
}

/// The result of a wait for the cleaner.
enum Waited {
    /// A frame was free before the wait began.
    Free(Vacant),
    /// Frames were freed.
    Notified,
    /// The cleaner cannot free a frame, or has stopped.
    Stuck,
}

impl BufferPool {
    /// Performs the caller's part of the eviction of a leaving frame. Returns the frame, with its buffer, to
    /// the last evicting thread. The caller is one of the evicting threads.
    pub(super) fn finish_eviction(&self, id: FrameId) -> Option<Vacant> {
        let frame = &self.frames[id.0 as usize];
        let page_id = frame.page_id(); // FRAME-1: fixed until this thread leaves
        sync_point!("finishes an eviction");
        // The stamp is read before the mapping: while the page is mapped to this frame, no other frame can
        // have written a newer version of it. If a newer version was written before the stamp was read
        // (Acquire, with the store's Release), this read of the mapping finds it removed.
        let stamp = self.store.stamp(page_id).filter(|_| self.frame_of(page_id) == Some(id));
        frame.close();
        sync_point!("closed a leaving frame");
        self.table.remove(page_id, id);
        sync_point!("unmapped a leaving frame");
        let owner = frame.leave(id)?;
        let buffer = frame.take_buffer(&owner);
        if let (Some(stamp), Some(buffer)) = (stamp, buffer) {
            self.show_evicted(page_id, stamp, buffer);
        }
        Some(Vacant { owner, buffer })
    }

    /// Passes the image of a clean page to the store, which may keep it.
    fn show_evicted(&self, page_id: PageId, stamp: u64, buffer: u32) {
        with_image(self.page_size, |image| {
            self.words_of(buffer).copy_to(image);
            self.store.evicted(page_id, stamp, image);
        });
    }

    /// Frees the frame, with its buffer, if the caller was the last evicting thread. The next miss of the
    /// calling thread takes it.
    pub(super) fn free_if_owned(&self, vacant: Option<Vacant>) {
        if let Some(vacant) = vacant {
            self.free_frames.push_own(self.kept(vacant), &self.frames);
        }
    }

    /// Returns the frame, which keeps its buffer.
    fn kept(&self, Vacant { owner, buffer }: Vacant) -> Evicted {
        if let Some(buffer) = buffer {
            self.frames[owner.frame.0 as usize].keep_buffer(&owner, buffer);
        }
        owner
    }

    /// Frees the frame, and returns its buffer to the spare ones.
    fn free_without_buffer(&self, Vacant { owner, buffer }: Vacant) {
        buffer.into_iter().for_each(|buffer| self.put_spare_buffer(buffer));
        self.free_frames.push(owner, &self.frames);
    }

    /// Allocates a frame for `page_id`: evicted, without a mapping.
    pub(super) fn victim(&self, page_id: PageId) -> Result<Vacant, FixError> {
        let mut looks = 0;
        let found = self.find_vacant(page_id, &mut looks);
        if looks > MISS_LOOKS {
            self.counters.add(Counter::LongSearches, 1);
        }
        found
    }

    /// Finds a vacant frame. With a cleaner, a miss searches a bounded number of frames, then sleeps until
    /// the cleaner has freed some. Without a cleaner, or if it is stuck, the miss searches all frames and
    /// writes a dirty page itself.
    fn find_vacant(&self, page_id: PageId, looks: &mut usize) -> Result<Vacant, FixError> {
        let (mut attempt, mut pinned_seen, mut is_stuck) = (0, 0, false);
        let mut backoff = Backoff::new();
        while attempt < self.victim_tries() {
            // A frame of another stripe is better than a second search.
            let is_free = if attempt == 0 { self.free_frame() } else { self.any_free_frame() };
            if let Some(vacant) = is_free {
                return Ok(vacant);
            }
            let is_bounded = self.supply.has_cleaner() && !is_stuck;
            // A woken miss that found no free frame has already used a part of its bound.
            let mut search =
                if is_bounded { Search::bounded(MISS_LOOKS.saturating_sub(*looks)) } else { Search::full() };
            let swept = self.policy.sweep(&self.frames, &mut search);
            *looks += search.looks;
            if search.dirty_met > 0 {
                self.supply.want();
                self.notifier.notify();
            }
            let dirty = if let Sweep::Dirty(id) = swept { Some(&self.frames[id.0 as usize]) } else { None };
            let must_wait = match swept {
                Sweep::Victim { frame, swap } => {
                    if let Some(vacant) = self.evict(frame, swap) {
                        return Ok(vacant);
                    }
                    false // Another evicting thread remains, and will recycle the frame.
                }
                _ if is_bounded => {
                    match self.wait_for_cleaner() {
                        Waited::Free(vacant) => return Ok(vacant),
                        Waited::Notified => {}
                        Waited::Stuck => is_stuck = true,
                    }
                    continue;
                }
                Sweep::Dirty(id) => !self.write_back_victim(id)?,
                Sweep::Nothing { pinned } => {
                    pinned_seen = pinned;
                    true
                }
                Sweep::BoundReached => true,
            };
            (attempt, is_stuck) = (attempt + 1, false);
            if must_wait {
                let worker = match dirty {
                    Some(frame) if frame.is_being_written() => frame.worker(),
                    // Only the cleaner can free frames; the holders of the pins are unknown.
                    _ if search.dirty_met > 0 => self.notifier.cleaner(),
                    _ => ThreadTag::NONE,
                };
                let _waiting = (attempt > 1)
                    .then(|| azekura_trace::wait_for(&FREE_FRAME, 0, WaitKind::FreeFrame, worker));
                if backoff.is_exhausted() { nap() } else { backoff.pause() }
            }
        }
        Err(FixError::PoolExhausted { page_id, pinned: pinned_seen, frames: self.frames.len() })
    }

    /// Takes a free frame, if the stripe of this thread or the common list has one.
    fn free_frame(&self) -> Option<Vacant> {
        self.free_frames.pop(&self.frames).map(|owner| self.vacant(owner))
    }

    /// Takes a free frame, if there is one.
    fn any_free_frame(&self) -> Option<Vacant> {
        self.free_frames.pop_any(&self.frames).map(|owner| self.vacant(owner))
    }

    fn vacant(&self, owner: Evicted) -> Vacant {
        let buffer = self.frames[owner.frame.0 as usize].take_buffer(&owner);
        Vacant { owner, buffer }
    }

    /// Evicts the page of a sweep's victim.
    fn evict(&self, frame: FrameId, swap: Option<Swap>) -> Option<Vacant> {
        own_rmw();
        self.counters.add(Counter::Evictions, 1);
        let vacant = self.finish_eviction(frame)?;
        self.policy.evicted(swap, &vacant.owner);
        Some(vacant)
    }

    /// Writes these pages as [`flush_pages`](Self::flush_pages) does, and then evicts them as
    /// [`evict_pages`](Self::evict_pages) does.
    ///
    /// # Errors
    ///
    /// As for [`flush_pages`](Self::flush_pages).
    pub fn flush_and_evict(&self, pages: &[PageId], are_fresh: bool) -> Result<(), WriteError> {
        self.flush_pages(pages, are_fresh)?;
        self.evict_pages(pages);
        Ok(())
    }

    /// Evicts those of these pages that are clean and not in use. The next misses take their frames first. So
    /// pages that are written once, as by a load, use the same memory one after the other, and displace no
    /// page that is read. Does nothing if the system's page cache does not have the first page, because a
    /// later read would wait for the device. Costs one system call.
    pub fn evict_pages(&self, pages: &[PageId]) {
        if !pages.first().is_some_and(|&first| self.store.is_cached(first)) {
            return;
        }
        for id in pages.iter().filter_map(|&page_id| self.frame_of(page_id)) {
            // If the frame has another page by now, that page is evicted: it is clean and not in use either.
            if self.frames[id.0 as usize].try_evict() {
                own_rmw();
                self.counters.add(Counter::Evictions, 1);
                if let Some(vacant) = self.finish_eviction(id) {
                    self.free_frames.push(self.kept(vacant), &self.frames);
                }
            }
        }
    }

    /// Sleeps until the cleaner has freed frames, or cannot.
    #[cold]
    fn wait_for_cleaner(&self) -> Waited {
        let registration = self.supply.register();
        sync_point!("registered for a free frame");
        if let Some(vacant) = self.any_free_frame() {
            return Waited::Free(vacant); // SUPPLY-1
        }
        self.notifier.call();
        self.counters.add(Counter::WaitsForFrames, 1);
        let _waiting = azekura_trace::wait_for(&FREE_FRAME, 0, WaitKind::FreeFrame, self.notifier.cleaner());
        azekura_base::blocking::announce();
        if self.supply.wait(registration) { Waited::Notified } else { Waited::Stuck }
    }

    /// Returns the number of free frames that the cleaner keeps while misses find dirty pages: at most 1/32
    /// of the pool.
    fn reserve(&self) -> usize {
        (self.frames.len() / 32).min(MAX_RESERVE)
    }

    /// Frees frames for misses that need some, up to the reserve, and wakes the waiting misses. Returns
    /// `true` if a frame was freed. Called by threads that have written pages.
    pub(crate) fn supply_frames(&self) -> bool {
        let supplied = self.supply.has_cleaner() && self.free_up_to_reserve(SUPPLY_LOOKS);
        if supplied {
            self.supply.notify();
        }
        supplied
    }

    /// Supplies frames as [`Self::supply_frames`] does, but checks all frames for the first victim, and wakes
    /// a registered miss in any case.
    pub(crate) fn supply_frames_or_give_up(&self) {
        if self.supply.is_awaited() {
            if self.free_up_to_reserve(usize::MAX) {
                self.supply.notify()
            } else {
                self.supply.notify_stuck()
            }
        }
    }

    fn free_up_to_reserve(&self, most_looks: usize) -> bool {
        let is_awaited = self.supply.is_awaited();
        if !is_awaited && !self.supply.is_wanted() {
            return false; // Misses find clean victims, or there are no misses.
        }
        let wanted = self.reserve().max(usize::from(is_awaited)).saturating_sub(self.free_frames.len());
        let mut freed = 0;
        while freed < wanted {
            let mut search = Search::bounded(if freed == 0 { most_looks } else { SUPPLY_LOOKS });
            let swept = self.policy.sweep(&self.frames, &mut search);
            self.counters.add(Counter::CleanerLooks, search.looks as u64);
            let Sweep::Victim { frame, swap } = swept else { break };
            if let Some(vacant) = self.evict(frame, swap) {
                self.free_frames.push(self.kept(vacant), &self.frames);
                freed += 1;
            }
        }
        freed > 0
    }

    /// Returns the number of sweeps after which a fix fails (G6). The naps between them take about 50 ms in
    /// total. The number is lower in a large pool, where a sweep takes longer.
    fn victim_tries(&self) -> usize {
        (FRAMES_LOOKED_AT / self.frames.len()).clamp(MIN_VICTIM_TRIES, MAX_VICTIM_TRIES)
    }

    /// Evicts a page for its buffer and frees its frame: used if stalled threads seem to hold all spare
    /// buffers.
    pub(super) fn buffer_of_a_victim(&self) -> Option<u32> {
        if let Some(vacant) = self.any_free_frame() {
            self.free_without_buffer(vacant);
        }
        match self.policy.sweep(&self.frames, &mut Search::full()) {
            Sweep::Victim { frame, swap } => {
                self.evict(frame, swap).into_iter().for_each(|vacant| self.free_without_buffer(vacant));
            }
            // A later call finds the page clean if the write succeeded.
            Sweep::Dirty(id) => drop(self.write_back_victim(id)),
            Sweep::Nothing { .. } | Sweep::BoundReached => {}
        }
        self.take_spare_buffer()
    }
}

/// Calls `run` with memory for one page, which the thread keeps for later calls.
fn with_image<T>(page_size: usize, run: impl FnOnce(&mut PageBuf) -> T) -> T {
    azekura_base::per_thread! {
        static IMAGE: RefCell<Option<PageBuf>> = const { RefCell::new(None) };
    }
    // Taken and not borrowed: the store may run any code, even another fix.
    let kept = IMAGE.take().filter(|image| image.len() == page_size);
    let mut image = kept.unwrap_or_else(|| PageBuf::zeroed(page_size));
    let done = run(&mut image);
    IMAGE.set(Some(image));
    done
}
