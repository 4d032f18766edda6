//! The pool: fix and unfix, miss and page-in (paper §3.1.2, Fig. 4).
//!
//! **Fix.** The page table returns a frame. Pin the frame. If it still holds the page, this is a hit: one
//! atomic addition, no lock.
//!
//! **Miss.**
//! 1. Take a free frame, or a victim. The victim is clean and unpinned when the CAS takes it, so the disk has
//!    its content (G3). If a bounded search finds no victim, sleep until the cleaner has freed frames (see
//!    `supply`).
//! 2. Evict the victim's page: close the frame to optimistic readers, remove its mapping, leave. Other
//!    threads that need the old page meanwhile do the same. The last one to leave owns the frame; the others
//!    search for another frame.
//! 3. Publish the frame for the new page, pinned by this thread, without content. Then insert its mapping
//!    into the page table. If the page has another frame by now, the new frame goes to the free list, and the
//!    miss uses the other frame.
//! 4. Read the page into the frame's old buffer (or a spare one, if the frame had none), and install the
//!    buffer by CAS.
//!
//! Threads that find the frame before step 4 is complete pin it and wait for a bounded time. Then they read
//! the page themselves into a spare buffer, and the first thread to install its buffer wins (the paper's
//! optimistic I/O). So a reader that stalls permanently blocks no other thread, and a page is usually read
//! once. A failed read (G7) is reported to each thread that tried. The frame stays mapped and empty, and the
//! next fix reads again.
//!
//! | frame | mapping | content | used by |
//! |---|---|---|---|
//! | evicted | none | none | its owner |
//! | leaving | old page's, or already none | the old page | no thread; others help to evict the page |
//! | pinned | new page's, or none yet | none | the inserter, and threads with a pin: to install one buffer |
//! | pinned or unpinned | the page's | installed | all threads |
//!
//! Difference from Fig. 4: any thread that finds a mapping to an evicted frame removes the mapping and does
//! not replace it. The paper's replacement (lines 61–64) takes over the victim's page; as frames are
//! recycled, this may be another page by then (G2).

mod page_in;
mod victim;

use std::sync::Arc;
use std::time::Duration;

use azekura_base::page;
use azekura_base::{Backoff, CachePadded, DurableLog, Lsn, PageId, PageWords, prefetch};

use crate::cleaner::CleanerNotifier;
use crate::dirty_map::DirtyMap;
use crate::error::{FixError, PoolError, WriteError};
use crate::frame::{Frame, FrameId, Look, MAX_FRAMES, MAX_PAGE_ID, NO_BUFFER, look_fence, turn_of};
use crate::free_frames::FreeFrames;
use crate::guard::{ExclusiveGuard, OptimisticPage, PageGuard, PageVersion, Peek};
use crate::index_stack::IndexStack;
use crate::memory::{PREFETCHED_BYTES, PageMemory};
use crate::page_hints::PageHints;
use crate::page_table::{Inserted, PageTable};
use crate::policy::{Policy, Replacement};
use crate::stall::sync_point;
use crate::stats::Counters;
use crate::store::PageStore;
use crate::supply::FrameSupply;
use crate::touch::TouchAhead;
use crate::write_queue::WriteQueue;
use azekura_base::zeroed::{ZeroedArray, ZeroedMemory};

pub(crate) use self::page_in::{Filling, Fixed};
use self::victim::Vacant;

/// Smallest number of frames in a pool.
pub const MIN_FRAMES: usize = 1;
/// Number of buffers beyond one per frame, for threads that read a page themselves instead of waiting for
/// another thread's read.
const SPARE_BUFFERS: usize = 16;
/// A pool of at most this many frames has its arrays in one memory. A store with few pages touches the first
/// frames, so the other arrays come before the frames.
const FEW_FRAMES: usize = 256;
/// Bytes of these arrays per frame: page table, hints and frames.
const FEW_FRAME_BYTES: usize = 48;

/// Settings of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions {
    /// Bytes of a page, a power of two from 4096 to 65536.
    pub page_size: usize,
    /// Bytes for pages. Headers, page table, hints and policy use up to 68 more bytes per page
    /// ([`PoolStats::metadata_bytes`](crate::PoolStats::metadata_bytes)). There are always sixteen more
    /// buffers than frames.
    pub capacity_bytes: usize,
    /// Replacement policy.
    pub policy: Policy,
}

impl Default for PoolOptions {
    /// Returns the defaults: 64 MiB of 8 KiB pages, and the policy of two rings.
    fn default() -> Self {
        Self { page_size: 8192, capacity_bytes: 64 << 20, policy: Policy::default() }
    }
}

/// The page cache.
pub struct BufferPool {
    page_size: usize,
    body_bytes: usize,
    pub(crate) frames: ZeroedArray<Frame>,
    words: PageMemory,
    pub(crate) table: PageTable,
    hints: PageHints,
    pub(crate) policy: Replacement,
    free_frames: FreeFrames,
    spare_buffers: CachePadded<IndexStack>,
    pub(crate) store: Arc<dyn PageStore>,
    pub(crate) log: Arc<dyn DurableLog>,
    pub(crate) counters: Counters,
    pub(crate) notifier: CleanerNotifier,
    pub(crate) dirty: DirtyMap,
    pub(crate) supply: FrameSupply,
    pub(crate) write_queue: WriteQueue,
    pub(crate) touch: TouchAhead,
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufferPool")
            .field("page_size", &self.page_size)
            .field("frames", &self.frames.len())
            .finish_non_exhaustive()
    }
}

impl BufferPool {
    /// Creates a pool over `store`. Reserves all memory now, including frame headers, page table and policy;
    /// the memory is touched when pages are loaded. It is freed only with the pool, so that optimistic
    /// readers may access any frame at any time.
    ///
    /// # Errors
    ///
    /// [`PoolError`]: the page size or the capacity is out of bounds, or there is no memory for it.
    pub fn new(
        options: PoolOptions,
        store: Arc<dyn PageStore>,
        log: Arc<dyn DurableLog>,
    ) -> Result<Self, PoolError> {
        let PoolOptions { page_size, capacity_bytes, policy } = options;
        if !page::is_page_size(page_size) {
            return Err(PoolError::PageSize { page_size });
        }
        let frames = capacity_bytes / page_size;
        if !(MIN_FRAMES..=MAX_FRAMES).contains(&frames) {
            return Err(PoolError::Capacity { capacity_bytes, frames, min: MIN_FRAMES, max: MAX_FRAMES });
        }
        let buffers = frames + SPARE_BUFFERS;
        let no_memory = |_| PoolError::Memory { capacity_bytes };
        let mut memory = match frames {
            ..=FEW_FRAMES => ZeroedMemory::try_new(frames * FEW_FRAME_BYTES).map_err(no_memory)?,
            _ => ZeroedMemory::none(),
        };
        Ok(Self {
            page_size,
            body_bytes: page_size,
            words: PageMemory::try_zeroed(buffers, page_size).map_err(no_memory)?,
            table: PageTable::new(frames, &mut memory),
            hints: PageHints::new(frames, &mut memory),
            frames: memory.array(frames, Frame::new),
            policy: Replacement::new(policy, frames),
            free_frames: FreeFrames::all(frames),
            spare_buffers: CachePadded::new(IndexStack::new(buffers)),
            store,
            log,
            counters: Counters::default(),
            notifier: CleanerNotifier::default(),
            dirty: DirtyMap::new(frames),
            supply: FrameSupply::default(),
            write_queue: WriteQueue::default(),
            touch: TouchAhead::default(),
        })
    }

    /// Reserves this many bytes at the end of each page for the store: guards do not expose them.
    ///
    /// # Panics
    ///
    /// If `bytes` is not a multiple of 8, or is more than half of a page.
    #[must_use]
    pub fn reserving(self, bytes: usize) -> Self {
        assert!(bytes.is_multiple_of(8) && bytes <= self.page_size / 2, "a page has a body of whole words");
        Self { body_bytes: self.page_size - bytes, ..self }
    }

    /// Returns the size of a page in bytes.
    #[must_use]
    pub const fn page_size(&self) -> usize {
        self.page_size
    }

    /// Returns the number of bytes of a page that guards expose: all except those reserved for the store.
    #[must_use]
    pub const fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Returns the number of frames.
    #[must_use]
    pub fn capacity_frames(&self) -> usize {
        self.frames.len()
    }

    /// Returns the memory for metadata that grows with the number of frames, in bytes.
    pub(crate) fn metadata_bytes(&self) -> usize {
        let found_by = self.table.bytes() + self.hints.bytes();
        size_of_val(&*self.frames) + found_by + self.policy.bytes() + self.dirty.bytes()
    }

    /// Returns the number of page buffers: one per frame, and the spare ones.
    #[cfg(test)]
    pub(crate) fn buffers(&self) -> usize {
        self.words.buffers()
    }

    /// Fixes a page: finds it in the pool, or reads it into a frame, and pins that frame.
    ///
    /// The page stays at one address until the guard is dropped (*unfix*). Fixing does not latch. A hit is
    /// one atomic addition without a lock; threads that miss on the same page usually share one read.
    ///
    /// # Errors
    ///
    /// [`FixError`]; a later call tries again.
    pub fn fix(&self, page_id: PageId) -> Result<PageGuard<'_>, FixError> {
        let fixed = self.fix_frame(page_id, true)?;
        self.with_content(fixed, |pool, buffer| pool.read_into(page_id, buffer))
    }

    /// Fixes a page as [`BufferPool::fix`] does, but does not set the reference bit. The following
    /// [peek](BufferPool::peek) sets it, so that a scan references each page once.
    ///
    /// # Errors
    ///
    /// As [`BufferPool::fix`].
    pub fn fix_without_reference(&self, page_id: PageId) -> Result<PageGuard<'_>, FixError> {
        let fixed = self.fix_frame(page_id, false)?;
        self.with_content(fixed, |pool, buffer| pool.read_into(page_id, buffer))
    }

    /// Fixes and latches a page that the caller will overwrite completely: it is not read. Its content is
    /// zeroes, or the content in the pool.
    ///
    /// # Errors
    ///
    /// [`FixError`], except errors of reading.
    pub fn fix_new(&self, page_id: PageId) -> Result<ExclusiveGuard<'_>, FixError> {
        let fixed = self.fix_frame(page_id, true)?;
        let guard = self.with_content(fixed, |pool, buffer| {
            page::zero_words(pool.words.buffer(buffer)); // private until the buffer is installed
            Ok(())
        })?;
        Ok(guard.exclusive())
    }

    /// Guarantees that these pages can be written later even if the disk is full by then.
    ///
    /// # Errors
    ///
    /// [`WriteError::Store`]: there is no space now; nothing was changed.
    pub fn make_room(&self, first: PageId, count: u32) -> Result<(), WriteError> {
        Ok(self.store.make_room(first, count)?)
    }

    /// Gives the disk space of free pages back: see [`PageStore::release`].
    ///
    /// # Errors
    ///
    /// [`WriteError::Store`].
    pub fn release(&self, first: PageId, count: u32) -> Result<bool, WriteError> {
        Ok(self.store.release(first, count)?)
    }

    /// Returns the disk space that the pages take: see [`PageStore::disk_bytes`].
    ///
    /// # Errors
    ///
    /// [`WriteError::Store`].
    pub fn disk_bytes(&self) -> Result<Option<u64>, WriteError> {
        Ok(self.store.disk_bytes()?)
    }

    /// Gives the disk space of the end of the file back: see [`PageStore::release_end`].
    ///
    /// # Errors
    ///
    /// [`WriteError::Store`].
    pub fn release_end(&self, end: PageId) -> Result<(), WriteError> {
        Ok(self.store.release_end(end)?)
    }

    /// Returns `true` if the store has failed and writes no more pages: changed pages stay in the pool until
    /// it is dropped. Costs one load.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.store.has_failed()
    }

    /// Returns a page of the pool for optimistic reading, without pinning or latching it. The only write to
    /// a shared cache line is to the reference count of a page that has cooled, at most three times per turn
    /// of the hand (G8). The data are valid only after [`OptimisticPage::is_valid`].
    #[inline]
    pub fn peek(&self, page_id: PageId) -> Peek<'_> {
        self.peek_start(page_id, PREFETCHED_BYTES)
    }

    /// Returns a page as [`peek`](Self::peek) does, for a reader of its first `len` bytes only: other lines
    /// are not prefetched.
    #[inline]
    pub fn peek_start(&self, page_id: PageId, len: usize) -> Peek<'_> {
        if let Some(id) = self.hints.get(page_id) {
            self.expect_use(id, len);
            match self.frames[id.0 as usize].look(page_id) {
                Some(Look::Page { version, buffer }) => {
                    return Peek::Page(OptimisticPage::new(self, id, version, buffer));
                }
                Some(Look::Busy) => return Peek::Busy,
                Some(Look::Empty) | None => {} // HINT-1
            }
        }
        self.peek_by_table(page_id, len)
    }

    /// Reads a page as [`peek`](Self::peek) does, if its hint is missing or wrong.
    #[inline(never)]
    fn peek_by_table(&self, page_id: PageId, len: usize) -> Peek<'_> {
        let seen = self.table.find(page_id, |id| {
            self.expect_use(id, len);
            match self.frames[id.0 as usize].look(page_id)? {
                Look::Page { version, buffer } => {
                    Some(Peek::Page(OptimisticPage::new(self, id, version, buffer)))
                }
                Look::Busy => Some(Peek::Busy),
                Look::Empty => Some(Peek::Absent),
            }
        });
        seen.unwrap_or(Peek::Absent)
    }

    /// Returns a page that was read in this pool before, for optimistic reading, if it is still in its frame
    /// and unchanged since. Does not search the page table and writes nothing. The data are valid only after
    /// [`OptimisticPage::is_valid`], as after [`peek`](Self::peek).
    #[inline]
    #[must_use]
    pub fn peek_again(&self, seen: PageVersion) -> Option<OptimisticPage<'_>> {
        let frame = self.frames.get(seen.frame.0 as usize)?;
        let buffer = frame.buffer();
        // FRAME-3: the version was read before the frame was found to hold the page, so it covers the page's
        // identity. It still validates after the load of the buffer, so by FRAME-7 the buffer is the page's.
        let is_same = frame.latch.validate(seen.version) && buffer != NO_BUFFER;
        is_same.then(|| OptimisticPage::new(self, seen.frame, seen.version, buffer))
    }

    /// Prefetches the first `len` bytes of the page of a frame that is about to be read, while its header is
    /// loaded.
    #[inline]
    fn expect_use(&self, id: FrameId, len: usize) {
        self.words.prefetch(self.usual_buffer(id), len);
    }

    /// Prefetches the frame and the first `len` bytes of a page that is read soon, if the page is probably in
    /// the pool. A hint; does not wait.
    #[inline]
    pub fn prefetch_start(&self, page_id: PageId, len: usize) {
        if let Some(id) = self.hints.get(page_id) {
            prefetch(std::slice::from_ref(&self.frames[id.0 as usize]));
            self.expect_use(id, len);
        }
    }

    /// Returns the buffer that the frame usually has, without a read of its buffer number. Frames and buffers
    /// are allocated in the same order, and a miss keeps its victim's buffer.
    #[inline]
    fn usual_buffer(&self, id: FrameId) -> u32 {
        turn_of(id, self.frames.len()) as u32
    }

    /// Returns the words that the page usually has if it is in the pool. They may belong to another page:
    /// only for a prefetch.
    #[must_use]
    pub fn expected_words(&self, page_id: PageId) -> Option<PageWords<'_>> {
        let frame = self.hints.get(page_id)?;
        Some(PageWords::new(self.words.buffer(self.usual_buffer(frame))))
    }

    /// Waits until the page is not latched exclusively; returns at once if it is not in the pool. Pins
    /// nothing. If the frame is assigned to another page meanwhile, this call waits for that page's latch,
    /// which is released too.
    pub fn wait_while_latched(&self, page_id: PageId) {
        if let Some(id) = self.frame_of(page_id) {
            self.frames[id.0 as usize].latch.wait_until_open();
        }
    }

    /// Returns the frame in the page table for a page.
    #[inline]
    pub(crate) fn frame_of(&self, page_id: PageId) -> Option<FrameId> {
        self.table.get(page_id, &*self.frames)
    }

    /// Pins the frame of a page, after mapping one to the page if needed. The frame has content, or the
    /// caller may fill it (FRAME-5). Counts a use if `is_use`.
    pub(crate) fn fix_frame(&self, page_id: PageId, is_use: bool) -> Result<Fixed<'_>, FixError> {
        if page_id.0 >= MAX_PAGE_ID {
            return Err(FixError::NoSuchPage { page_id, max: MAX_PAGE_ID - 1 });
        }
        let (mut backoff, mut is_first) = (Backoff::new(), true);
        loop {
            match self.pin_mapped(page_id, is_first) {
                Mapped::Pinned(guard) => {
                    let frame = guard.frame();
                    // FRAME-5: once the frame is pinned, an existing mapping stays.
                    if frame.buffer() != NO_BUFFER || self.frame_of(page_id) == Some(guard.frame_id()) {
                        if is_use {
                            frame.note_use();
                        }
                        return Ok(Fixed { filling: None, guard });
                    }
                }
                Mapped::Closed(id) if self.frames[id.0 as usize].join_leaving(page_id) => {
                    self.free_if_owned(self.finish_eviction(id));
                    is_first = false;
                    continue;
                }
                Mapped::Closed(_) => {}
                Mapped::Nowhere => {
                    let vacant = self.victim(page_id)?;
                    sync_point!("owns a frame");
                    if let Some(fixed) = self.map(vacant, page_id) {
                        if !is_use {
                            fixed.guard.frame().set_ref_count(0);
                        }
                        return Ok(fixed);
                    }
                    continue;
                }
            }
            // The word was removed already, or its inserter is about to withdraw it: the next lookup finds
            // this as soon as the change is visible to this processor.
            is_first = false;
            backoff.pause();
        }
    }

    /// Pins the frame to which the page is mapped. In the first attempt the pin is the first access to the
    /// frame's cache line: under contention a read before it would transfer the line twice.
    #[inline]
    fn pin_mapped(&self, page_id: PageId, is_first: bool) -> Mapped<'_> {
        let mut closed = None;
        let pinned = self.table.find(page_id, |id| {
            let frame = &self.frames[id.0 as usize];
            sync_point!("found a frame in the table");
            self.expect_use(id, PREFETCHED_BYTES);
            let is_pinned = (is_first || frame.is_open()) && frame.try_pin(page_id);
            if !is_pinned && frame.page_id() == page_id {
                closed = Some(id);
            }
            is_pinned.then_some(id)
        });
        if let Some(id) = pinned {
            let guard = PageGuard::pinned(self, id);
            sync_point!("pinned a frame found in the table");
            return Mapped::Pinned(guard);
        }
        closed.map_or(Mapped::Nowhere, Mapped::Closed)
    }

    /// Assigns a vacant frame to a page, unless the page has one. The caller then reads the page if a buffer
    /// is available.
    fn map(&self, vacant: Vacant, page_id: PageId) -> Option<Fixed<'_>> {
        let Vacant { owner, mut buffer } = vacant;
        let id = owner.frame;
        let frame = &self.frames[id.0 as usize];
        frame.publish(owner, page_id);
        let guard = PageGuard::pinned(self, id);
        sync_point!("published a frame");
        if self.table.insert(page_id, id, &*self.frames) == Inserted::New {
            self.hints.set(page_id, id);
            let filling = match buffer.or_else(|| self.take_spare_buffer()) {
                Some(buffer) => Some(Filling::new(self, frame, buffer)),
                None => {
                    frame.disclaim_reading();
                    None
                }
            };
            return Some(Fixed { filling, guard });
        }
        drop(guard);
        // A stale lookup (FRAME-5) or the hand may have brought another thread here; then that thread
        // recycles the frame.
        let vacant = if frame.try_evict() { self.finish_eviction(id) } else { None };
        self.free_if_owned(vacant.map(|vacant| vacant.with(&mut buffer)));
        buffer.into_iter().for_each(|buffer| self.put_spare_buffer(buffer));
        None
    }

    /// Begins to touch memory ahead, by jobs: `start` starts one, a call of [`Self::touch_ahead`].
    pub(crate) fn begin_touching(&self, start: impl Fn() + Send + Sync + 'static) {
        self.touch.begin(&self.words, start);
    }

    pub(crate) fn touch_ahead(&self) {
        self.touch.run(&self.words);
    }

    #[inline]
    pub(crate) fn words_of(&self, buffer: u32) -> PageWords<'_> {
        PageWords::new(self.words.buffer(buffer))
    }

    /// Returns the words that guards expose.
    #[inline]
    pub(crate) fn body_of(&self, buffer: u32) -> PageWords<'_> {
        PageWords::new(&self.words.buffer(buffer)[..self.body_bytes / 8])
    }

    /// Returns the least recovery LSN of all dirty pages, including those being written: redo must start
    /// there. The caller reads the log's counter before the call (see `Frame::least_recovery_lsn`). Reads the
    /// dirty frames, and one word per 64 frames.
    #[must_use]
    pub fn min_recovery_lsn(&self) -> Option<Lsn> {
        look_fence();
        self.dirty.iter().filter_map(|id| self.frames[id.0 as usize].least_recovery_lsn()).min()
    }
}

/// The frame to which the page table maps a page.
enum Mapped<'p> {
    /// A frame that holds the page, or that is about to lose its insertion (FRAME-5).
    Pinned(PageGuard<'p>),
    /// A frame that does not hold the page any more.
    Closed(FrameId),
    Nowhere,
}

/// Least duration of a nap; the system's timers add about as much again.
const NAP: Duration = Duration::from_micros(50);

pub(crate) fn nap() {
    azekura_base::blocking::announce();
    #[cfg(not(loom))]
    azekura_base::sync::thread::sleep(NAP);
    #[cfg(loom)]
    azekura_base::sync::thread::yield_now();
}
