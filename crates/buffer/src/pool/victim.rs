//! How a frame is had for a page that comes: the free one, or a victim whose page is seen out (steps 1 and 2
//! of a miss).

use std::cell::RefCell;

use azekura_base::{Backoff, PageBuf, PageId};
use azekura_trace::{Site, ThreadTag, WaitKind};

use super::{BufferPool, nap};
use crate::count::own_rmw;
use crate::error::FixError;
use crate::frame::{Evicted, FrameId};
use crate::policy::Sweep;
use crate::stall::sync_point;

static FREE_FRAME: Site = Site::new("free frame");

/// Bounds on the sweeps of one fix; see `BufferPool::victim_tries`.
const MAX_VICTIM_TRIES: usize = if cfg!(loom) { 3 } else { 1000 };
const MIN_VICTIM_TRIES: usize = if cfg!(loom) { 3 } else { 32 };
const FRAMES_LOOKED_AT: usize = 4_000_000;

/// A frame that its last page has left, and the buffer that it left behind, if it had one.
pub(super) struct Vacant {
    pub(super) owner: Evicted,
    pub(super) buffer: Option<u32>,
}

impl BufferPool {
    /// Sees the page of a leaving frame out; the caller is in. Gives the frame, and the page's buffer, to the
    /// last one.
    pub(super) fn see_out(&self, id: FrameId) -> Option<Vacant> {
        let frame = &self.frames[id.0 as usize];
        let page_id = frame.page_id(); // FRAME-1: stays while we are in
        sync_point!("sees a page out");
        // The stamp first, then the look: while the page is still mapped to this frame, no other frame can
        // have had a newer version of it written. If one was written before the stamp was read (Acquire, with
        // the store's own Release), the mapping is seen gone.
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

    /// A clean page's image goes to the store, which may want it.
    fn show_evicted(&self, page_id: PageId, stamp: u64, buffer: u32) {
        with_image(self.page_size, |image| {
            self.words_of(buffer).copy_to(image);
            self.store.evicted(page_id, stamp, image);
        });
    }

    /// Frame and buffer to the lists, if the caller was the last one to see the page out.
    pub(super) fn free_if_ours(&self, vacant: Option<Vacant>) {
        if let Some(Vacant { owner, buffer }) = vacant {
            buffer.into_iter().for_each(|buffer| self.put_spare_buffer(buffer));
            self.free_frames.push(owner, &self.frames);
        }
    }

    /// A frame to fill: evicted, without mapping.
    pub(super) fn victim(&self, page_id: PageId) -> Result<Vacant, FixError> {
        let mut pinned_seen = 0;
        let mut backoff = Backoff::new();
        for attempt in 0..self.victim_tries() {
            if let Some(owner) = self.free_frames.pop(&self.frames) {
                return Ok(Vacant { owner, buffer: None });
            }
            let mut dirty_met = 0;
            let swept = self.policy.sweep(&self.frames, &mut dirty_met);
            if dirty_met > 0 {
                self.bell.ring();
            }
            let dirty = if let Sweep::Dirty(id) = swept { Some(&self.frames[id.0 as usize]) } else { None };
            let must_wait = match swept {
                Sweep::Victim { frame, swap } => {
                    own_rmw();
                    self.counters.evictions.add(1);
                    if let Some(vacant) = self.see_out(frame) {
                        self.policy.evicted(swap, &vacant.owner);
                        return Ok(vacant);
                    }
                    false // a helper is still in: the frame is for that one to recycle
                }
                Sweep::Dirty(id) => !self.write_back_victim(id)?,
                Sweep::Nothing { pinned } => {
                    pinned_seen = pinned;
                    true
                }
            };
            if must_wait {
                let worker = match dirty {
                    Some(frame) if frame.is_being_written() => frame.worker(),
                    // Only the cleaner can help; who has the others pinned is not known.
                    _ if dirty_met > 0 => self.bell.cleaner(),
                    _ => ThreadTag::NONE,
                };
                let _waiting = (attempt > 0)
                    .then(|| azekura_trace::wait_for(&FREE_FRAME, 0, WaitKind::FreeFrame, worker));
                if backoff.is_exhausted() { nap() } else { backoff.pause() }
            }
        }
        Err(FixError::PoolExhausted { page_id, pinned: pinned_seen, frames: self.frames.len() })
    }

    /// Sweeps before a fix gives up (G6): about 50 ms of naps; less often in a large pool, where one sweep
    /// takes long enough.
    fn victim_tries(&self) -> usize {
        (FRAMES_LOOKED_AT / self.frames.len()).clamp(MIN_VICTIM_TRIES, MAX_VICTIM_TRIES)
    }

    /// Spare buffers are all with threads that are stopped, it seems: a page leaves, its buffer is had, and
    /// its frame is free.
    pub(super) fn buffer_of_a_victim(&self) -> Option<u32> {
        match self.policy.sweep(&self.frames, &mut 0) {
            Sweep::Victim { frame, swap } => {
                own_rmw();
                self.counters.evictions.add(1);
                let vacant = self.see_out(frame);
                vacant.iter().for_each(|vacant| self.policy.evicted(swap, &vacant.owner));
                self.free_if_ours(vacant);
            }
            // Clean afterwards, if that could be; the next look finds it.
            Sweep::Dirty(id) => drop(self.write_back_victim(id)),
            Sweep::Nothing { .. } => {}
        }
        self.take_spare_buffer()
    }
}

/// Runs with memory for one page, which this thread keeps.
fn with_image<T>(page_size: usize, run: impl FnOnce(&mut PageBuf) -> T) -> T {
    azekura_base::per_thread! {
        static IMAGE: RefCell<Option<PageBuf>> = const { RefCell::new(None) };
    }
    // Taken out and not borrowed: the store may run whatever it likes, even another fix.
    let kept = IMAGE.take().filter(|image| image.len() == page_size);
    let mut image = kept.unwrap_or_else(|| PageBuf::zeroed(page_size));
    let done = run(&mut image);
    IMAGE.set(Some(image));
    done
}
