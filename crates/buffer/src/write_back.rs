//! Writing dirty pages: never ahead of the log (G4), never a page that has lost its mapping (G3).
//!
//! 1. Pin the frame and latch it shared; `begin_write` makes us the only writer of this page's image, and moves its recovery LSN to the old
//!    one's second place.
//! 2. Copy the image; remember the version; unlatch.
//! 3. Make the log durable up to the images' page LSNs.
//! 4. Write the batch to the store.
//! 5. Latch shared again. If the version is the one that was copied, the page is clean; else it stays dirty, from a recovery LSN that is later
//!    than the image. A hot page so never holds a checkpoint up.

use azekura_base::page::image;
use azekura_base::{Lsn, PageBuf, PageId};
use azekura_latch::Version;

use crate::error::{FixError, WriteError};
use crate::frame::FrameId;
use crate::guard::PageGuard;
use crate::pool::BufferPool;

/// Most pages of one batch.
const MAX_BATCH_PAGES: usize = 64;

/// An image on its way to the store; its frame stays pinned.
struct Image<'p> {
    guard: PageGuard<'p>,
    version: Version,
    recovery_lsn: Lsn,
}

impl BufferPool {
    pub(crate) fn note_dirtied(&self) {
        self.dirty_frames.add(1);
        self.bell.ring_if(|| self.is_too_dirty());
    }

    /// Pages written at once: they are pinned meanwhile, so never more than an eighth of the pool.
    pub(crate) fn batch_pages(&self) -> usize {
        (self.frames.len() / 8).clamp(1, MAX_BATCH_PAGES)
    }

    /// Dirty frames, about.
    pub(crate) fn dirty_count(&self) -> u64 {
        self.dirty_frames.sum()
    }

    pub(crate) fn is_too_dirty(&self) -> bool {
        // Signed: the stripes of one counter may be read while others move.
        (self.dirty_count() as i64) > (self.frames.len() / 4) as i64
    }

    /// A cold dirty page that has to leave: written in the caller's time.
    pub(crate) fn write_back_victim(&self, id: FrameId) -> Result<(), FixError> {
        let Some(page_id) = self.page_of(id) else { return Ok(()) };
        self.counters.foreground_writes.add(1);
        match self.write_frames(&[id]) {
            Ok(_) => {
                self.frames[id.0 as usize].set_cold();
                Ok(())
            }
            Err(source) => Err(FixError::WriteBack { page_id, source }),
        }
    }

    fn page_of(&self, id: FrameId) -> Option<PageId> {
        let frame = &self.frames[id.0 as usize];
        frame.try_pin_any().then(|| PageGuard::pinned(self, id).page_id())
    }

    /// Writes the dirty ones of these frames, as one batch; gives how many images were written.
    pub(crate) fn write_frames(&self, ids: &[FrameId]) -> Result<usize, WriteError> {
        let mut images: Vec<(PageId, PageBuf)> = Vec::with_capacity(ids.len());
        let mut taken = Vec::with_capacity(ids.len());
        for &id in ids {
            if let Some((image, bytes)) = self.take_image(id) {
                images.push((image.guard.page_id(), bytes));
                taken.push(image);
            }
        }
        if images.is_empty() {
            return Ok(0);
        }
        images.sort_unstable_by_key(|(page_id, _)| *page_id);
        let newest = images.iter().map(|(_, bytes)| image::lsn(bytes)).max().unwrap_or(Lsn(0));
        let written = self
            .log
            .make_durable(newest) // G4, W4
            .map_err(WriteError::from)
            .and_then(|()| self.store.write_pages(&mut images).map_err(WriteError::from));
        for image in taken {
            self.settle(image, written.is_ok());
        }
        self.counters.pages_written.add(if written.is_ok() { images.len() as u64 } else { 0 });
        written.map(|()| images.len())
    }

    /// Steps 1 and 2; `None` for a frame that is clean, evicted, or being written.
    fn take_image(&self, id: FrameId) -> Option<(Image<'_>, PageBuf)> {
        let frame = &self.frames[id.0 as usize];
        if !frame.is_dirty() || !frame.try_pin_any() {
            return None;
        }
        let guard = PageGuard::pinned(self, id);
        frame.latch.lock_shared();
        // Read under the latch: every change so far drew its LSN below this, every later one draws it at or above.
        let begun = frame.begin_write(self.log.next_lsn());
        let taken = begun.map(|recovery_lsn| {
            let version = frame.latch.optimistic().expect("latched shared, so not exclusively");
            let mut bytes = PageBuf::zeroed(self.page_size());
            self.words_of(frame.buffer()).copy_to(&mut bytes);
            (version, recovery_lsn, bytes)
        });
        frame.latch.unlock_shared();
        let (version, recovery_lsn, bytes) = taken?;
        Some((Image { guard, version, recovery_lsn }, bytes))
    }

    /// Step 5.
    fn settle(&self, image: Image<'_>, was_written: bool) {
        let frame = image.guard.frame();
        frame.latch.lock_shared();
        if !was_written {
            frame.fail_write(image.recovery_lsn);
        } else if frame.end_write(frame.latch.validate(image.version)) {
            self.dirty_frames.add(1u64.wrapping_neg());
        }
        frame.latch.unlock_shared();
    }

    /// One step of the cleaner: writes up to `max_pages` dirty pages and gives how many.
    ///
    /// With `below`: those whose recovery LSN is below it, oldest first, so that a checkpoint can move. Without: those that the hand will meet next, so
    /// that misses find clean victims. Waits for the log (G4) and the store. Several threads may clean at once.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; the pages stay dirty.
    pub fn clean(&self, below: Option<Lsn>, max_pages: usize) -> Result<usize, WriteError> {
        let chosen = match below {
            Some(lsn) => self.oldest_dirty(lsn, max_pages),
            None => self.dirty_ahead(max_pages),
        };
        let mut written = 0;
        for batch in chosen.chunks(self.batch_pages()) {
            written += self.write_frames(batch)?;
        }
        Ok(written)
    }

    fn oldest_dirty(&self, below: Lsn, max: usize) -> Vec<FrameId> {
        let mut found: Vec<(Lsn, FrameId)> = (0u32..)
            .zip(&self.frames)
            .filter_map(|(i, frame)| {
                Some((frame.least_recovery_lsn().filter(|&lsn| lsn < below)?, FrameId(i)))
            })
            .collect();
        if found.len() > max {
            found.select_nth_unstable(max);
            found.truncate(max);
        }
        found.sort_unstable();
        found.into_iter().map(|(_, id)| id).collect()
    }

    /// Cold pages first met by the hand; then, if there are few, whatever is dirty.
    fn dirty_ahead(&self, max: usize) -> Vec<FrameId> {
        let start = (self.hand.position() % self.frames.len() as u64) as usize;
        let around = || (start..self.frames.len()).chain(0..start);
        let mut chosen: Vec<FrameId> = around()
            .filter(|&i| self.frames[i].is_dirty() && self.frames[i].is_cold())
            .take(max)
            .map(|i| FrameId(i as u32))
            .collect();
        if chosen.len() < max && self.is_too_dirty() {
            let rest = around().filter(|&i| self.frames[i].is_dirty() && !self.frames[i].is_cold());
            chosen.extend(rest.take(max - chosen.len()).map(|i| FrameId(i as u32)));
        }
        chosen
    }

    /// Writes every page that is dirty now, and makes it durable.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; what was not written stays dirty.
    pub fn flush_all(&self) -> Result<(), WriteError> {
        let all: Vec<FrameId> = (0..self.frames.len() as u32).map(FrameId).collect();
        for batch in all.chunks(self.batch_pages()) {
            self.write_frames(batch)?;
            // Somebody else may be writing one of them: its image is older than now, or it is the newest. Wait for it.
            for id in batch {
                let mut backoff = azekura_base::Backoff::new();
                while self.frames[id.0 as usize].is_being_written() {
                    backoff.pause();
                }
            }
        }
        self.sync()
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    ///
    /// [`WriteError::Store`].
    pub fn sync(&self) -> Result<(), WriteError> {
        self.store.sync().map_err(WriteError::from)
    }
}
