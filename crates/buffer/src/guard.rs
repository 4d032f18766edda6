//! Guards of a page: a pin, a pin with a shared or exclusive latch, or a version for an optimistic read.

use azekura_base::page::PageMut;
use azekura_base::{Lsn, PageId, PageWords};
use azekura_latch::Version;
use azekura_trace::{HoldGuard, HoldMode};

use crate::count::shared_rmw;
use crate::frame::{Frame, FrameId};
use crate::pool::BufferPool;

/// Result of [`BufferPool::peek`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub enum Peek<'p> {
    /// The page, for an optimistic read.
    Page(OptimisticPage<'p>),
    /// The page is latched exclusively, or is being paged in or out: try again.
    Busy,
    /// The page is not in the pool: fix it.
    Absent,
}

/// A page in the pool, neither pinned nor latched. Data read from it are valid only if it validates
/// afterward.
#[derive(Clone, Copy, Debug)]
pub struct OptimisticPage<'p> {
    pool: &'p BufferPool,
    frame: FrameId,
    version: Version,
    words: PageWords<'p>,
}

/// A page and one of its versions, for [`BufferPool::peek_again`]. The value has no lifetime and keeps no
/// page in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageVersion {
    pub(crate) frame: FrameId,
    pub(crate) version: Version,
}

impl<'p> OptimisticPage<'p> {
    #[inline]
    pub(crate) fn new(pool: &'p BufferPool, frame: FrameId, version: Version, buffer: u32) -> Self {
        Self { pool, frame, version, words: pool.body_of(buffer) }
    }

    fn frame(&self) -> &'p Frame {
        &self.pool.frames[self.frame.0 as usize]
    }

    /// Returns the page's words. They may change during the read, also to the words of another page.
    #[inline]
    #[must_use]
    pub const fn words(&self) -> PageWords<'p> {
        self.words
    }

    /// Returns `true` if everything read so far was one consistent version of the page. Writes nothing.
    #[inline]
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.frame().latch.validate(self.version)
    }

    /// Returns the page and its version, for a later read without searching for the page id.
    #[inline]
    #[must_use]
    pub const fn page_version(self) -> PageVersion {
        PageVersion { frame: self.frame, version: self.version }
    }

    /// Pins the page and latches it exclusively, if it has not changed. Never waits.
    #[must_use]
    pub fn upgrade(self) -> Option<ExclusiveGuard<'p>> {
        // Validate first: a failed pin would repeatedly take the cache line from the latch holder, which
        // needs the line to release the latch.
        if !self.is_valid() {
            return None;
        }
        let frame = self.frame();
        if !frame.try_pin_any() {
            return None;
        }
        let guard = PageGuard::pinned(self.pool, self.frame);
        shared_rmw();
        // The version covers the frame's identity too (FRAME-1).
        frame.latch.try_upgrade(self.version).then(|| ExclusiveGuard::latched(guard))
    }
}

/// A fixed page: pinned, not latched. The drop unfixes the page.
#[derive(Debug)]
#[must_use]
pub struct PageGuard<'p> {
    pool: &'p BufferPool,
    frame: FrameId,
}

impl<'p> PageGuard<'p> {
    /// Returns the guard of a new pin.
    pub(crate) const fn pinned(pool: &'p BufferPool, frame: FrameId) -> Self {
        Self { pool, frame }
    }

    pub(crate) fn frame(&self) -> &'p Frame {
        &self.pool.frames[self.frame.0 as usize]
    }

    pub(crate) const fn frame_id(&self) -> FrameId {
        self.frame
    }

    fn words(&self) -> PageWords<'p> {
        self.pool.body_of(self.frame().buffer())
    }

    /// Returns the id of the page.
    #[must_use]
    pub fn page_id(&self) -> PageId {
        self.frame().page_id()
    }

    /// Latches the page exclusively. Blocks while other threads have it latched.
    pub fn exclusive(self) -> ExclusiveGuard<'p> {
        shared_rmw();
        self.frame().latch.lock_exclusive();
        ExclusiveGuard::latched(self)
    }

    /// Latches the page exclusively if no thread has it latched; never waits.
    ///
    /// # Errors
    ///
    /// The guard itself, still pinned.
    pub fn try_exclusive(self) -> Result<ExclusiveGuard<'p>, Self> {
        shared_rmw();
        if self.frame().latch.try_lock_exclusive() { Ok(ExclusiveGuard::latched(self)) } else { Err(self) }
    }

    /// Latches the page shared. Blocks while a thread has it latched exclusively.
    pub fn shared(self) -> SharedGuard<'p> {
        shared_rmw();
        self.frame().latch.lock_shared();
        let hold = self.frame().latch.hold(HoldMode::Shared);
        SharedGuard { _hold: hold, guard: self }
    }

    /// Returns the page for optimistic reading; `None` while it is latched exclusively. Unlike after
    /// [`BufferPool::peek`], the page cannot be evicted meanwhile.
    #[must_use]
    pub fn peek(&self) -> Option<OptimisticPage<'p>> {
        let version = self.frame().latch.optimistic()?;
        Some(OptimisticPage::new(self.pool, self.frame, version, self.frame().buffer()))
    }
}

impl Drop for PageGuard<'_> {
    fn drop(&mut self) {
        self.frame().unpin();
    }
}

/// A fixed page with a shared latch: the page does not change. The drop releases the latch and unfixes the
/// page.
#[derive(Debug)]
#[must_use]
pub struct SharedGuard<'p> {
    /// Tracing of the hold, recorded after the latch was released, while the frame is still pinned.
    _hold: HoldGuard,
    guard: PageGuard<'p>,
}

impl SharedGuard<'_> {
    /// Returns the id of the page.
    #[must_use]
    pub fn page_id(&self) -> PageId {
        self.guard.page_id()
    }

    /// Returns the words of the page.
    #[must_use]
    pub fn words(&self) -> PageWords<'_> {
        self.guard.words()
    }
}

impl Drop for SharedGuard<'_> {
    fn drop(&mut self) {
        shared_rmw();
        self.guard.frame().latch.unlock_shared();
    }
}

/// A fixed page with an exclusive latch: the holder may change the page. The drop releases the latch and
/// unfixes the page.
#[derive(Debug)]
#[must_use]
pub struct ExclusiveGuard<'p> {
    /// See [`SharedGuard`].
    _hold: HoldGuard,
    guard: PageGuard<'p>,
    has_changed: bool,
}

impl<'p> ExclusiveGuard<'p> {
    /// Returns the guard of a new latch.
    fn latched(guard: PageGuard<'p>) -> Self {
        Self { _hold: guard.frame().latch.hold(HoldMode::Exclusive), guard, has_changed: false }
    }

    /// Returns the id of the page.
    #[must_use]
    pub fn page_id(&self) -> PageId {
        self.guard.page_id()
    }

    /// Returns the words of the page.
    #[must_use]
    pub fn words(&self) -> PageWords<'_> {
        self.guard.words()
    }

    /// Announces a change of the page, *before* the change's LSN is drawn. That LSN must be at least
    /// `next_lsn`. The page is dirty from now on, and optimistic readers fail to validate after the guard is
    /// dropped.
    pub fn will_change(&mut self, next_lsn: Lsn) {
        self.has_changed = true;
        let PageGuard { pool, frame } = self.guard;
        if pool.frames[frame.0 as usize].set_dirty(next_lsn, || pool.dirty.set(frame)) {
            pool.note_dirtied();
        }
    }

    /// Releases the latch and unfixes the page. Optimistic readers fail to validate as after a change, but
    /// the page is unchanged and stays clean: for a page that leaves a tree only by a change of its parent.
    pub fn invalidate(mut self) {
        self.has_changed = true; // no caller can change the page any more
    }

    /// Returns the version of the changed page after the drop of this guard.
    ///
    /// # Panics
    ///
    /// If [`will_change`](Self::will_change) was not called before.
    #[must_use]
    pub fn version_after(&self) -> PageVersion {
        assert!(self.has_changed, "only a change makes another version");
        PageVersion { frame: self.guard.frame, version: self.guard.frame().latch.version_after() }
    }

    /// Returns the page for writing.
    ///
    /// # Panics
    ///
    /// If [`will_change`](Self::will_change) was not called before.
    pub fn page_mut(&mut self) -> PageMut<'_> {
        assert!(self.has_changed, "a page changes only after will_change");
        PageMut::new(self.guard.words())
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        shared_rmw();
        let latch = &self.guard.frame().latch;
        if self.has_changed { latch.unlock_exclusive() } else { latch.unlock_exclusive_unchanged() }
    }
}
