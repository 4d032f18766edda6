//! Writing dirty pages to the store: never before their log records are durable (G4), and never a page that
//! has lost its mapping (G3).
//!
//! 1. Become the page's only writer and pin it, by one CAS. Latch it shared, if no thread is changing it.
//! 2. Copy the image, read the log's counter and the page's version, and release the latch.
//! 3. Make the log durable up to the images' page LSNs.
//! 4. Write the batch to the store. The recovery LSN rises to the log's counter of step 2 (RECOVERY-2).
//! 5. Latch the page shared again, if no thread is changing it. If the version is unchanged since the copy,
//!    the page is clean. Otherwise it stays dirty, with a recovery LSN later than the image. So a frequently
//!    changed page never delays a checkpoint.
//!
//! - **WRITE-1** A fix that writes back a victim may hold latches of other pages, in any order, so steps 1
//!   and 5 only try to latch. (A blocking latch could deadlock: one thread holds A and waits for B, another
//!   holds B and waits for A.) Only [`BufferPool::write_all`] waits; its caller holds no latch.
//! - **WRITE-2** The writing bit is set from step 1 to the end of step 5, so images of a page reach the
//!   store in the order in which they were copied.

use std::collections::HashSet;

use azekura_base::page::{self, image};
use azekura_base::sync::atomic::{Ordering::Acquire, fence};
use azekura_base::{Backoff, Lsn, PageBuf, PageId};
use azekura_latch::{HybridLatch, Version};
use azekura_trace::{Site, WaitKind};

use crate::error::{FixError, WriteError};
use crate::frame::FrameId;
use crate::guard::PageGuard;
use crate::pool::{BufferPool, nap};
use crate::stall::sync_point;
use crate::stats::Counter;

static WRITE_BACK: Site = Site::new("page being written by another");

/// Largest number of pages in a batch: the capacity of a slot of the double-write area
/// ([`AreaShape::for_page_size`](crate::page_file::AreaShape::for_page_size)).
const MAX_BATCH_PAGES: usize = 128;

/// The right to write a page's image (WRITE-2), and a pin of the frame. The drop releases both, also after a
/// panic of the store or the log (G9); the page then stays dirty.
struct Writing<'p> {
    guard: PageGuard<'p>,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.guard.frame().release_writing();
    }
}

/// A shared latch of a frame that the thread has pinned.
struct SharedHold<'p>(&'p HybridLatch);

impl Drop for SharedHold<'_> {
    fn drop(&mut self) {
        self.0.unlock_shared();
    }
}

/// An image on its way to the store.
struct Image<'p> {
    writing: Writing<'p>,
    version: Version,
    /// Least LSN of changes of the page that are not in the image.
    next_lsn: Lsn,
}

impl Image<'_> {
    fn frame_id(&self) -> FrameId {
        self.writing.guard.frame_id()
    }
}

/// Number of dirty frames that one step of the cleaner checks per page that it may write; warm pages are
/// skipped.
const LOOKS_PER_PAGE: usize = 64;

/// The pages to write, and the way to write them; a frame's page may have changed since the frame was looked
/// up.
#[derive(Clone, Copy)]
enum Pages<'a> {
    /// Any dirty pages of the frames.
    Any,
    /// Only these pages.
    These(&'a [PageId]),
    /// Only these pages, written as by [`PageStore::write_fresh`](crate::PageStore::write_fresh).
    Fresh(&'a [PageId]),
}

impl Pages<'_> {
    fn include(self, page_id: PageId) -> bool {
        match self {
            Self::Any => true,
            Self::These(pages) | Self::Fresh(pages) => pages.contains(&page_id),
        }
    }
}

/// The behavior for a page that another thread has latched exclusively.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Latched {
    /// Skips it (WRITE-1).
    Skip,
    /// Waits for the latch: the caller holds no latch.
    Wait,
}

impl BufferPool {
    pub(crate) fn note_dirtied(&self) {
        self.counters.add(Counter::DirtyFrames, 1);
        self.notifier.notify_if(|| self.is_too_dirty());
    }

    /// Returns the number of pages in a batch. Pages are pinned while their batch is written, so all batches
    /// in flight together have at most 1/8 of the pool.
    pub(crate) fn batch_pages(&self) -> usize {
        (self.frames.len() / (8 * self.batches_in_flight())).clamp(1, MAX_BATCH_PAGES)
    }

    /// Returns the number of concurrent batches of one cleaning.
    pub(crate) fn batches_in_flight(&self) -> usize {
        1 + self.write_queue.helpers()
    }

    /// Returns the approximate number of dirty frames.
    pub(crate) fn dirty_count(&self) -> u64 {
        self.counters.sum(Counter::DirtyFrames)
    }

    pub(crate) fn is_too_dirty(&self) -> bool {
        // Compared as signed numbers: the stripes of the counter are not read at the same moment, so the sum
        // may be negative.
        (self.dirty_count() as i64) > (self.frames.len() / 2) as i64
    }

    /// Writes a cold dirty page in the thread of a miss. Returns `true` if the page was written.
    pub(crate) fn write_back_victim(&self, id: FrameId) -> Result<bool, FixError> {
        let Some(page_id) = self.page_of(id) else { return Ok(true) };
        match self.write_frames(&[id], Latched::Skip) {
            Ok(written) => {
                self.counters.add(Counter::ForegroundWrites, written.len() as u64);
                self.frames[id.0 as usize].set_ref_count(0);
                Ok(!written.is_empty())
            }
            Err(source) => Err(FixError::WriteBack { page_id, source }),
        }
    }

    fn page_of(&self, id: FrameId) -> Option<PageId> {
        let frame = &self.frames[id.0 as usize];
        frame.try_pin_any().then(|| PageGuard::pinned(self, id).page_id())
    }

    /// Writes the dirty frames of `ids` as one batch; returns the frames with a written image.
    fn write_frames(&self, ids: &[FrameId], latched: Latched) -> Result<Vec<FrameId>, WriteError> {
        self.write_frames_as(ids, latched, Pages::Any)
    }

    fn write_frames_as(
        &self,
        ids: &[FrameId],
        latched: Latched,
        pages: Pages<'_>,
    ) -> Result<Vec<FrameId>, WriteError> {
        let mut spare = Vec::new();
        let mut bytes: Vec<(PageId, PageBuf)> = Vec::with_capacity(ids.len());
        let mut images = Vec::with_capacity(ids.len());
        for &id in ids {
            let mut page = spare.pop().unwrap_or_else(|| page::spare::take(self.page_size()));
            match self.take_image(id, latched, &mut page) {
                // The guard pins the page, so the frame keeps this page id.
                Some(image) if pages.include(image.writing.guard.page_id()) => {
                    bytes.push((image.writing.guard.page_id(), page));
                    images.push(image);
                }
                _ => spare.push(page),
            }
        }
        if images.is_empty() {
            page::spare::give(spare);
            return Ok(Vec::new());
        }
        bytes.sort_unstable_by_key(|(page_id, _)| *page_id);
        let newest = bytes.iter().map(|(_, page)| image::lsn(page)).max().unwrap_or(Lsn(0));
        sync_point!("took images");
        let written = self
            .log
            .make_durable(newest) // G4, W4
            .map_err(WriteError::from)
            .and_then(|()| {
                let written = match pages {
                    Pages::Fresh(_) => self.store.write_fresh(&mut bytes),
                    Pages::Any | Pages::These(_) => self.store.write_pages(&mut bytes),
                };
                written.map_err(WriteError::from)
            });
        let ids = images.iter().map(Image::frame_id).collect();
        for image in images {
            self.finish_image(image, written.is_ok());
        }
        let count = bytes.len() as u64;
        page::spare::give(spare.into_iter().chain(bytes.into_iter().map(|(_, page)| page)));
        written?;
        self.counters.add(Counter::PagesWritten, count);
        self.supply_frames();
        Ok(ids)
    }

    /// Performs steps 1 and 2, into `bytes`; returns `None` for a frame that is clean, being written, or
    /// latched.
    fn take_image(&self, id: FrameId, latched: Latched, bytes: &mut PageBuf) -> Option<Image<'_>> {
        let frame = &self.frames[id.0 as usize];
        if !frame.claim_writing() {
            return None;
        }
        let writing = Writing { guard: PageGuard::pinned(self, id) };
        sync_point!("claimed the writing");
        if latched == Latched::Wait {
            frame.latch.lock_shared();
        } else if !frame.latch.try_lock_shared() {
            return None;
        }
        let _unchanged = SharedHold(&frame.latch);
        let version = frame.latch.optimistic().expect("latched shared, so not exclusively");
        // Read under the latch: the LSN of a later change is above this bound, and above the earlier changes
        // of the page.
        let bound = self.log.lsn_bound();
        self.words_of(frame.buffer()).copy_to(bytes);
        let next_lsn = bound.max(Lsn(image::lsn(bytes).0.saturating_add(1)));
        Some(Image { writing, version, next_lsn })
    }

    /// Performs step 5.
    fn finish_image(&self, image: Image<'_>, was_written: bool) {
        let frame = image.writing.guard.frame();
        sync_point!("images written or not");
        if was_written {
            frame.image_written(image.next_lsn);
            sync_point!("moved the recovery LSN");
            if frame.latch.try_lock_shared() {
                let _unchanged = SharedHold(&frame.latch);
                if frame.latch.validate(image.version) {
                    frame.now_clean();
                    self.dirty.clear(image.frame_id()); // DIRTY-1: the latch is still held
                    self.counters.add(Counter::PagesCleaned, 1);
                    self.counters.add(Counter::DirtyFrames, 1u64.wrapping_neg());
                }
            }
        }
        sync_point!("finished an image");
    }

    /// Performs one step of the cleaner: writes up to `max_pages` dirty pages and returns their number.
    ///
    /// With `below`, writes the pages with a recovery LSN below it, oldest first, so that a checkpoint can
    /// advance. Without `below`, writes the pages that the hand will reach next, so that misses find clean
    /// victims. The pages are written in the order of their ids, several batches at once if the pool has a
    /// cleaner. Waits for the log (G4) and the store. Several threads may clean at once.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; the pages stay dirty.
    pub fn clean(&self, below: Option<Lsn>, max_pages: usize) -> Result<usize, WriteError> {
        let chosen = match below {
            Some(lsn) => self.oldest_dirty(lsn, max_pages),
            None => self.dirty_ahead(max_pages),
        };
        Ok(self.write_sorted(chosen)?.len())
    }

    /// Writes the frames that are dirty and not latched, in the order of their page ids. Returns the frames
    /// with a written image.
    fn write_sorted(&self, mut frames: Vec<FrameId>) -> Result<Vec<FrameId>, WriteError> {
        // A frame may get another page meanwhile; then the order is not exact.
        frames.sort_by_cached_key(|id| self.frames[id.0 as usize].page_id());
        let outcome = self
            .write_queue
            .write_all(&frames, self.batch_pages(), |batch| self.write_frames(batch, Latched::Skip));
        outcome.error.map_or(Ok(outcome.written), Err)
    }

    /// Writes queued batches of other threads' cleanings until the queue is empty.
    pub(crate) fn help_writing(&self) {
        self.write_queue.help(|batch| self.write_frames(batch, Latched::Skip));
    }

    fn oldest_dirty(&self, below: Lsn, max: usize) -> Vec<FrameId> {
        let recovery_lsn = |id: FrameId| self.frames[id.0 as usize].least_recovery_lsn();
        let mut found: Vec<(Lsn, FrameId)> = self
            .dirty
            .iter()
            .filter_map(|id| Some((recovery_lsn(id).filter(|&lsn| lsn < below)?, id)))
            .collect();
        if found.len() > max {
            found.select_nth_unstable(max);
            found.truncate(max);
        }
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns cold dirty pages in the order of the hand. Adds warm pages if there are few cold ones and too
    /// many dirty pages. Checks [`LOOKS_PER_PAGE`] dirty frames per page, and no clean frame.
    fn dirty_ahead(&self, max: usize) -> Vec<FrameId> {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        if self.dirty.iter().next().is_none() {
            return cold;
        }
        for id in self.policy.dirty_ahead(&self.dirty, max.saturating_mul(LOOKS_PER_PAGE)) {
            if cold.len() == max {
                break;
            }
            let frame = &self.frames[id.0 as usize];
            if frame.is_dirty() {
                if frame.is_cold() {
                    cold.push(id)
                } else if warm.len() < max {
                    warm.push(id)
                }
            }
        }
        if cold.len() < max && self.is_too_dirty() {
            warm.truncate(max - cold.len());
            cold.append(&mut warm);
        }
        cold
    }

    /// Writes every page that is dirty now, and makes the pages durable. Waits for latches: the caller must
    /// hold none.
    ///
    /// # Errors
    ///
    /// As [`write_all`](Self::write_all).
    pub fn flush_all(&self) -> Result<(), WriteError> {
        self.write_all()?;
        self.sync()
    }

    /// Writes every page that is dirty now; the pages are durable after the next sync. Waits for latches: the
    /// caller must hold none.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; unwritten pages stay dirty.
    pub fn write_all(&self) -> Result<(), WriteError> {
        let all: Vec<FrameId> = self.dirty.iter().collect();
        let written: HashSet<FrameId> = self.write_sorted(all.clone())?.into_iter().collect();
        for &id in all.iter().filter(|id| !written.contains(id)) {
            self.flush_one(id)?;
        }
        Ok(())
    }

    /// Writes the page in this frame, if it is dirty, waiting for other latch holders and writers.
    fn flush_one(&self, id: FrameId) -> Result<(), WriteError> {
        let frame = &self.frames[id.0 as usize];
        loop {
            // The image of another writer may be older than this call, or its write may fail. So wait for the
            // end of that write, then write again.
            self.await_writer(id);
            if !self.write_frames(&[id], Latched::Wait)?.is_empty() || !frame.is_dirty() {
                return Ok(());
            }
        }
    }

    fn await_writer(&self, id: FrameId) {
        let frame = &self.frames[id.0 as usize];
        if !frame.is_being_written() {
            return;
        }
        let _waiting =
            azekura_trace::wait_for(&WRITE_BACK, id.0 as usize, WaitKind::WriteBack, frame.worker());
        let mut backoff = Backoff::new();
        while frame.is_being_written() {
            if backoff.is_exhausted() { nap() } else { backoff.pause() }
        }
    }

    /// Writes the dirty pages of `pages`, waiting for other latch holders and writers. The pages are durable
    /// after the next [`sync`](Self::sync). The caller must hold no latch.
    ///
    /// `are_fresh`: no reader needs the pages' earlier content on disk, or their new content before that sync
    /// returns. Then the pages are written once, and a crash may tear them
    /// ([`PageStore::write_fresh`](crate::PageStore::write_fresh)).
    ///
    /// # Errors
    ///
    /// [`WriteError`]; unwritten pages stay dirty.
    pub fn flush_pages(&self, pages: &[PageId], are_fresh: bool) -> Result<(), WriteError> {
        for batch in pages.chunks(self.batch_pages()) {
            let these = if are_fresh { Pages::Fresh(batch) } else { Pages::These(batch) };
            let frames: Vec<FrameId> = batch.iter().filter_map(|&page_id| self.frame_of(page_id)).collect();
            self.write_frames_as(&frames, Latched::Skip, these)?;
            for &page_id in batch {
                self.flush_page(page_id, these)?;
            }
        }
        Ok(())
    }

    /// Waits until the page is clean or not in the pool; only clean pages leave the pool (G3).
    fn flush_page(&self, page_id: PageId, these: Pages<'_>) -> Result<(), WriteError> {
        while let Some(id) = self.frame_of(page_id)
            && self.frames[id.0 as usize].is_dirty()
        {
            // As in `flush_one`: the image of another writer may be older than this call.
            self.await_writer(id);
            self.write_frames_as(&[id], Latched::Wait, these)?;
        }
        // Acquire: pairs with the Release in `now_clean`. Another thread's write of the page ended before, so
        // a sync that begins now covers that write.
        fence(Acquire);
        Ok(())
    }

    /// Makes all written pages durable.
    ///
    /// # Errors
    ///
    /// [`WriteError::Store`].
    pub fn sync(&self) -> Result<(), WriteError> {
        self.store.sync().map_err(WriteError::from)
    }

    /// Makes all pages durable that are written or being written; see
    /// [`PageStore::sync_for_checkpoint`](crate::PageStore::sync_for_checkpoint).
    ///
    /// # Errors
    ///
    /// [`WriteError::Store`].
    pub fn sync_for_checkpoint(&self) -> Result<u64, WriteError> {
        self.store.sync_for_checkpoint().map_err(WriteError::from)
    }
}
