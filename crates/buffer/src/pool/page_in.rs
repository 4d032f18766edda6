//! Loads a page into its frame: fills a buffer and installs it (step 4 of a miss). The first thread does
//! this, and each other thread that has waited long enough.

use azekura_base::sync::atomic::{Ordering::Release, fence};
use azekura_base::{Backoff, PageId, PageWords};
use azekura_trace::{Site, WaitKind};

use super::{BufferPool, nap};
use crate::count::own_rmw;
use crate::error::FixError;
use crate::frame::{Frame, NO_BUFFER};
use crate::guard::PageGuard;
use crate::stall::sync_point;
use crate::stats::Counter;

/// Number of naps after which a waiting thread reads the page too: about 10 ms in total, longer than nearly
/// every read of an SSD. After this time a thread that stalls in its read no longer delays the others.
const MOST_NAPS: u32 = if cfg!(loom) { 0 } else { 100 };

static PAGE_IN: Site = Site::new("page being read by another");

/// A pinned frame. If the frame has no content yet, also the right to read the page, with a buffer. The
/// buffer is released before the pin.
pub(crate) struct Fixed<'p> {
    pub(crate) filling: Option<Filling<'p>>,
    pub(crate) guard: PageGuard<'p>,
}

/// A buffer for a frame that the caller has pinned. A drop before [`Self::install`] returns the buffer to the
/// spare ones and allows the next thread to read, also after a panic of the store (G9).
pub(crate) struct Filling<'p> {
    pool: &'p BufferPool,
    frame: &'p Frame,
    buffer: u32,
    is_installed: bool,
}

impl<'p> Filling<'p> {
    /// Returns a fill of `frame` with `buffer`, which the caller has taken from the spare ones.
    pub(crate) const fn new(pool: &'p BufferPool, frame: &'p Frame, buffer: u32) -> Self {
        Self { pool, frame, buffer, is_installed: false }
    }

    /// Returns the memory for the page's bytes; `install` publishes them.
    pub(crate) fn words(&self) -> PageWords<'p> {
        self.pool.words_of(self.buffer)
    }

    /// Installs the buffer in the frame, and counts the page-in. Returns `false` if another thread was first.
    pub(crate) fn install(&mut self) -> bool {
        own_rmw();
        self.pool.counters.add(Counter::Misses, 1);
        self.is_installed = self.frame.install(self.buffer);
        if !self.is_installed {
            own_rmw();
            self.pool.counters.add(Counter::DuplicateReads, 1);
        }
        self.is_installed
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if !self.is_installed {
            self.pool.put_spare_buffer(self.buffer);
            self.frame.disclaim_reading();
        }
    }
}

impl BufferPool {
    /// Guarantees that a fixed frame has content; `fill` reads it into a buffer.
    pub(super) fn with_content<'p>(
        &'p self,
        fixed: Fixed<'p>,
        fill: impl Fn(&Self, u32) -> Result<(), FixError>,
    ) -> Result<PageGuard<'p>, FixError> {
        let Fixed { filling, guard } = fixed;
        let frame = guard.frame();
        if frame.buffer() == NO_BUFFER {
            let turn = filling.or_else(|| self.turn_to_read(frame));
            turn.map_or(Ok(()), |filling| self.page_in(frame, filling, fill))?;
        }
        Ok(guard)
    }

    fn page_in(
        &self,
        frame: &Frame,
        mut filling: Filling<'_>,
        fill: impl Fn(&Self, u32) -> Result<(), FixError>,
    ) -> Result<(), FixError> {
        // The buffer held another page. A thread that reads one of the following stores then finds the
        // version changed (FRAME-7). Release: pairs with the Acquire fence of `HybridLatch::validate`.
        fence(Release);
        sync_point!("has a buffer to fill");
        let filled = fill(self, filling.buffer);
        sync_point!("filled a buffer");
        if filled.is_ok() && filling.install() {
            return Ok(());
        }
        // The content of another thread is equivalent (G2), even if this thread's read failed.
        if frame.buffer() == NO_BUFFER { filled } else { Ok(()) }
    }

    /// Waits for the content, or for a buffer to read it into; returns `None` if another thread has installed
    /// the content. The first thread reads at once. The others wait, and read too if its read fails or takes
    /// too long.
    #[cold]
    fn turn_to_read<'p>(&'p self, frame: &'p Frame) -> Option<Filling<'p>> {
        if let Some(filling) = self.claim_reading(frame) {
            return Some(filling);
        }
        let _waiting =
            azekura_trace::wait_for(&PAGE_IN, frame.page_id().0 as usize, WaitKind::PageIn, frame.worker());
        let mut backoff = Backoff::new();
        let mut naps = 0;
        while frame.buffer() == NO_BUFFER {
            if backoff.is_exhausted() {
                nap();
                naps += 1;
            } else {
                backoff.pause();
            }
            let filling = match naps {
                waited if waited < MOST_NAPS => self.claim_reading(frame),
                _ => {
                    let buffer = self.take_spare_buffer().or_else(|| self.buffer_of_a_victim());
                    buffer.map(|buffer| Filling::new(self, frame, buffer))
                }
            };
            if filling.is_some() {
                return filling;
            }
        }
        None
    }

    /// Claims the read of a fixed page, if no other thread reads it and a spare buffer exists.
    pub(crate) fn claim_reading<'p>(&'p self, frame: &'p Frame) -> Option<Filling<'p>> {
        if !frame.claim_reading() {
            return None;
        }
        let buffer = self.take_spare_buffer();
        if buffer.is_none() {
            frame.disclaim_reading();
        }
        buffer.map(|buffer| Filling::new(self, frame, buffer))
    }

    pub(super) fn read_into(&self, page_id: PageId, buffer: u32) -> Result<(), FixError> {
        let words = [self.words_of(buffer)];
        self.store.read_words(page_id, &words).map_err(FixError::Read)?;
        self.note_read();
        self.check_lsn(page_id, words[0])
    }

    /// Rejects a page with an LSN that the log does not have.
    pub(crate) fn check_lsn(&self, page_id: PageId, words: PageWords<'_>) -> Result<(), FixError> {
        let lsn = words.lsn();
        if self.log.is_possible(page_id, lsn) { Ok(()) } else { Err(FixError::Foreign { page_id, lsn }) }
    }

    pub(crate) fn take_spare_buffer(&self) -> Option<u32> {
        let buffer = self.spare_buffers.pop(&self.words)?;
        self.touch.note_use(buffer, &self.words);
        Some(buffer)
    }

    pub(crate) fn put_spare_buffer(&self, buffer: u32) {
        // The list changes a word of the buffer. Release: the same fence as in `page_in`.
        fence(Release);
        self.spare_buffers.push(buffer, &self.words);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::{FrameId, turn_of};
    use crate::{MemStore, PoolOptions};
    use azekura_base::durable::NoLog;
    use std::sync::Arc;

    /// After evictions a frame usually has the buffer with its own number, as `BufferPool::expect_use`
    /// assumes.
    #[test]
    fn a_frame_keeps_the_buffer_of_its_turn_through_evictions() {
        for frames in [1, 7, 200] {
            let options =
                PoolOptions { page_size: 4096, capacity_bytes: frames * 4096, ..PoolOptions::default() };
            let pool =
                BufferPool::new(options, Arc::new(MemStore::new(4096)), Arc::new(NoLog)).expect("valid");
            (0..10 * frames as u64).for_each(|id| drop(pool.fix(PageId(id)).expect("readable")));
            let is_its = |id: u32| {
                let buffer = pool.frames[id as usize].buffer();
                buffer as usize == turn_of(FrameId(id), frames)
            };
            assert!((0..frames as u32).all(is_its), "{frames} frames");
        }
    }
}
