//! `PageFile`: a store of pages that survive a power loss whole, by writing each twice.
//!
//! After a crash a page has its old or its new content; after the next [`PageStore::sync`] it has the new
//! content. The log has the changes in between. This module caches no pages.
//!
//! A disk writes 512 bytes whole or not at all; a page is longer, and a write of it that the power cuts off
//! leaves a mixture (*torn*, hazard W12). So a batch of pages goes
//!
//! 1. into a slot of the *double-write area*, durably, in one write;
//! 2. into its places in the page file, neighbors in one write, not durable yet;
//! 3. and the slot rests until a sync of the page file has covered step 2.
//!
//! After a crash, *repair* looks at the place of every page of which the area has a copy that may be needed,
//! and puts the newest copy into a place that is not intact, or cannot be read. Slots are used again and
//! again, so the area is full of old copies: each batch has a sequence number, a checkpoint keeps the number
//! up to which its sync covered all batches ([`PageStore::sync_for_checkpoint`]), and a copy counts only
//! above that. A page that is damaged later has no copy that counts, and reads as an error.
//!
//! The file begins with a head of one page (`head`): the store's id, and the number up to which all batches
//! are in their places, written before the checkpoint's sync. A page file with a number below the
//! checkpoint's is from an earlier time, and refused. Page *n* follows at (*n* + 1) × page size.
//!
//! - **DW-1** A slot has one user at a time, the owner of an `OwnedSlot`.
//! - **DW-2** The places of a batch are written only after the write of its slot returned, durable.
//! - **DW-3** A slot is written only after a sync of the page file that began when the places of the slot's
//!   last batch had been written, and succeeded.
//! - **DW-4** A copy counts only if the slot's head is intact and lists this page with this checksum, and the
//!   page has it: a slot write that was cut off never shows pages of the batch before as if they were of this
//!   one.
//! - **DW-5** Sequence numbers of batches rise in the order in which any one page is written (callers never
//!   write one page from two threads), across openings too: the copy with the larger number is the newer one.
//! - **DW-6** After opening, no slot is written before the repair and a sync of the page file.
//! - **DW-7** After the first failed write or sync no batch gets a slot, and no sync is tried (W10): what may
//!   have been lost keeps its copies. Only a file that cannot *grow* for want of space is no failure: nothing
//!   was in doubt (compare W11).
//! - **DW-8** A copy counts only if its batch is above `covered`, the number that the last checkpoint got
//!   from [`PageStore::sync_for_checkpoint`]. Such a copy has every change with an LSN below the checkpoint's
//!   redo LSN, because that was chosen before: so redo brings any of them to the page's newest state.
//! - **DW-9** The area is redundant. Slots that cannot be read hold nothing; an area with a lost head is made
//!   anew after the repair. Sequence numbers continue far above those that were not seen (DW-5).
//!
//! Why a page is never torn for ever. Let its place be damaged after a crash. Some write to it was under way,
//! or not covered by a successful sync; let *w* be the last such write. When *w* began, its copy was durable
//! (DW-2). The slot was not written since, because no sync covered *w* (DW-3, DW-7). So the copy is there
//! (DW-4), and no other copy of the page is newer: a newer one's write would be *w*, or has not begun, which
//! leaves an intact old place or an older tear under it, and is itself a legitimate image (DW-5). It is at
//! least as new as the last image that a sync covered. If the crash comes during the repair, nothing in the
//! area has changed (DW-6), and the next repair does the same.
//!
//! A sync means the same for buffered pages and for direct ones: each write that returned before it is on the
//! device. The kernel writes buffered pages when it likes, and reports a write that failed once per open
//! file, to the next sync. There is one open file for all pages, and one sync of it at a time; a failed one
//! is the store's end (DW-7). Restarting in the same kernel after a *failed sync* has a trap of its own: the
//! page cache shows the bytes, calls them clean and never writes them. All uncovered batches have their
//! copies in the area, so repair also writes once more what it finds intact in the places of these pages; its
//! sync then means something.
//!
//! A *new* page, which the file did not have at the last checkpoint, is written in place only: a crash may
//! tear it until the next sync, and redo makes it anew from the record that took it (`new_pages`).
//!
//! *Fresh* pages (for example of a bulk load) are pages with a place that holds nothing that will be read:
//! until the next sync a crash may tear them, and their writer does not refer to them before. They are
//! written in place only. If repair finds an old copy of such a page, from its earlier content, it writes the
//! copy over a torn page, but not over an intact one.
//!
//! The page file grows by allocated ranges, so that a page write does not run out of space. They are not
//! filled: written zeroes would double the bytes of an ordinary load, and in the system's page cache they
//! would stay as large folios, in which each later write of a page costs the kernel a walk over all blocks.
//! Nothing needs the zeroes that such a range reads as: bytes beyond the end of the file, whole pages or
//! parts of one, count as zeroes, and a crash that takes them back takes nothing that a sync had promised. So
//! the length need not be a multiple of the page size. A page of zeroes is no page: reading it is an error.
//!
//! | module | noun |
//! |---|---|
//! | `area` | bytes of the double-write area |
//! | `handle` | the descriptor of a slot |
//! | `head` | bytes of the page file's head |
//! | `in_place` | writes without copies in the double-write area |
//! | `ledger` | the owners of the slots, what a sync has covered, the first failure |
//! | `lsn_map` | a bound below each page's LSN, by which older images of pages are found |
//! | `new_pages` | pages that the file did not have at the last checkpoint |
//! | `open` | making and opening both files |
//! | `read` | reading the places of pages |
//! | `repair` | what happens after opening |
//! | `room` | space on the disk for batches to come |

mod area;
mod handle;
mod head;
mod in_place;
mod ledger;
mod lsn_map;
mod new_pages;
mod open;
mod read;
mod repair;
mod room;

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use azekura_base::page::image;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::AtomicBool;
use azekura_base::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_base::{Cipher, Lsn, PageBuf, PageId, PageWords};
use azekura_io::{File, Fs, OpenOptions};

pub use self::area::AreaShape;
use self::area::{Area, HEAD_BYTES, SlotHead};
use self::head::Head;
use self::ledger::{Ledger, OwnedSlot, Taken};
use self::lsn_map::LsnMap;
use self::new_pages::NewPages;
pub use self::open::Identity;
use self::room::is_full;
use crate::memory::PageMemory;
use crate::store::{PageStore, StoreError, read_and_copy, read_runs, seal_batch, stored_checksum};

/// The file grows by its own length, but not by less,
const LEAST_GROWTH: u64 = 64 << 10;
/// nor by more,
const MOST_GROWTH: u64 = 8 << 20;
/// and a page so far beyond the end leaves a hole.
const MOST_ZEROES: u64 = 64 << 20;
/// Pages in a file, with a double-write area beside it. See the module's head.
///
/// ```
/// use azekura_base::{PageBuf, PageId};
/// use azekura_buffer::page_file::PageFile;
/// use azekura_buffer::store::{PageStore, StoreError};
/// use azekura_io::FaultFs;
/// use std::{path::Path, sync::Arc};
///
/// let (disk, dir) = (FaultFs::new(), Path::new("db"));
/// PageFile::create(Arc::new(disk.clone()), dir, 4096)?;
/// let file = PageFile::open(Arc::new(disk.clone()), dir, 4096)?;
/// let mut page = PageBuf::zeroed(4096);
/// page[8] = 3; // the id in the header
/// file.write_pages(&mut [(PageId(3), page.clone())])?;
///
/// let after = disk.crash(1); // power loss
/// let file = PageFile::open(Arc::new(after), dir, 4096)?;
/// file.repair()?;
/// match file.read_page(PageId(3), &mut page) {
///     Ok(()) => assert_eq!(page[8], 3),
///     Err(error) => assert!(matches!(error, StoreError::Unwritten { .. })), // never torn
/// }
/// # Ok::<(), StoreError>(())
/// ```
#[derive(Debug)]
pub struct PageFile {
    pages: Place,
    /// The head on disk, or the one that is being written under the lock.
    head: Mutex<Head>,
    area: Area,
    /// `true` if the area is to be made anew after the repair (DW-9).
    is_area_lost: bool,
    /// Copies of batches up to this number do not count (DW-8).
    covered: u64,
    /// One handle for each slot, so that the kernel reports a lost write to the thread that made it.
    slots: Vec<Place>,
    /// Bytes of the area that are there; changed under `growing` only.
    area_len: AtomicU64,
    ledger: Ledger,
    lsn_map: LsnMap,
    new_pages: NewPages,
    /// The ledger holds a failure. Set once; read before pages are changed.
    has_failed: AtomicBool,
    /// Bytes of the page file that may be read and written in place, a multiple of the page size; changed
    /// under `growing` only. Readers of it are all calls.
    len: AtomicU64,
    growing: Mutex<()>,
    /// See [`PageFile::filled_once`].
    grows_tightly: bool,
    repairing: Mutex<()>,
    /// See [`PageFile::encrypted`].
    cipher: Option<Arc<dyn Cipher>>,
    /// One buffer for bytes that are read and dropped; every reading thread may write it at any time. Made at
    /// the first such read.
    dropped: OnceLock<PageMemory>,
}

/// The way of the pages to and from their places. The double-write area is always direct where the file
/// system can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageAccess {
    /// Through the system's page cache: a miss for a page that is there costs a copy and no read of the
    /// device, and the kernel writes the pages of many batches together.
    #[default]
    Buffered,
    /// Bypasses the system's page cache (`O_DIRECT`), if the file system can: then the pool's memory is all
    /// that pages take.
    Direct,
}

/// An open file and its name.
#[derive(Clone, Debug)]
struct Place {
    file: Arc<dyn File>,
    path: Arc<Path>,
}

impl Place {
    /// Opens a file; for direct access if requested and if it is available for memory aligned as [`PageBuf`]
    /// is.
    fn open(fs: &dyn Fs, path: &Path, create: bool, access: PageAccess) -> Result<Self, StoreError> {
        let options = OpenOptions::new().create(create);
        let direct = options.direct(access == PageAccess::Direct);
        let mut file = fs.open(path, direct).map_err(error("open", path, None, 0))?;
        if file.alignment() > HEAD_BYTES {
            file = fs.open(path, options).map_err(error("open", path, None, 0))?;
        }
        Ok(Self { file, path: path.into() })
    }

    fn error(
        &self,
        action: &'static str,
        page: Option<PageId>,
        offset: u64,
    ) -> impl Fn(io::Error) -> StoreError {
        error(action, &self.path, page, offset)
    }

    fn len(&self) -> Result<u64, StoreError> {
        self.file.len().map_err(self.error("ask the length of", None, 0))
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.file.sync().map_err(self.error("sync", None, 0))
    }

    /// Fills `out`; bytes beyond the end of the file are zero.
    fn read(&self, offset: u64, out: &mut [u8], page: Option<PageId>) -> Result<(), StoreError> {
        let read = if out.as_ptr().addr().is_multiple_of(self.file.alignment()) {
            self.file.read_at(offset, out)
        } else {
            let mut aligned = PageBuf::zeroed(out.len());
            let read = self.file.read_at(offset, &mut aligned);
            out.copy_from_slice(&aligned[..out.len()]);
            read
        };
        let read = read.map_err(self.error("read", page, offset))?;
        out[read..].fill(0);
        Ok(())
    }
}

fn error(
    action: &'static str,
    path: &Path,
    page: Option<PageId>,
    offset: u64,
) -> impl Fn(io::Error) -> StoreError {
    let path: Arc<Path> = path.into();
    move |source| StoreError::Io { action, path: Arc::clone(&path), page, offset, source: Arc::new(source) }
}

impl PageFile {
    /// Name of the page file in its directory.
    pub const NAME: &str = "pages";
    /// Name of the double-write area in its directory.
    pub const DOUBLE_WRITE_NAME: &str = "dw";
    /// Name of the LSN map in its directory.
    pub const LSN_MAP_NAME: &str = "lsnmap";

    /// The number of pages that the page file has room for; pages beyond were never written.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        // Acquire: as in `read_unverified`.
        (self.len.load(Acquire) / self.area.page_size as u64).saturating_sub(1)
    }

    /// All batches of page writes up to this number are in their places, according to the file's head.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.head.lock().settled
    }

    /// Page size in bytes.
    #[must_use]
    pub const fn page_size(&self) -> usize {
        self.area.page_size
    }
}

impl PageStore for PageFile {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        let offset = self.read_unverified(id, out)?;
        self.verify(id, out, offset)?;
        self.decrypt(id, out, offset)
    }

    /// By one read, as far as the file goes.
    fn read_pages(&self, first: PageId, page_size: usize, out: &mut [u8]) -> Result<(), StoreError> {
        assert_eq!(page_size, self.area.page_size, "pages have the store's size");
        assert!(out.len().is_multiple_of(page_size), "pages are read whole");
        // Acquire: as in `read_unverified`.
        let len = self.len.load(Acquire);
        let offset = self.offset(first).unwrap_or(u64::MAX);
        let there = usize::try_from(len.saturating_sub(offset).next_multiple_of(page_size as u64));
        let there = there.unwrap_or(usize::MAX).min(out.len());
        let (there, beyond) = out.split_at_mut(there);
        beyond.fill(0);
        if !there.is_empty() {
            self.pages.read(offset, there, Some(first))?;
        }
        out.chunks_exact_mut(page_size).enumerate().try_for_each(|(nth, page)| {
            let id = PageId(first.0.saturating_add(nth as u64));
            let offset = self.offset(id).unwrap_or(u64::MAX);
            self.verify(id, page, offset)?;
            self.decrypt(id, page, offset)
        })
    }

    /// By one call that copies nothing, as far as the file goes. Encrypted pages are copied: their words show
    /// no other bytes than those of the page.
    fn read_words(&self, first: PageId, out: &[PageWords<'_>]) -> Result<(), StoreError> {
        if self.cipher.is_none() && self.read_places(first, out)? {
            self.verify_words(first, out.iter().map(Some))
        } else {
            read_and_copy(self, first, out)
        }
    }

    /// By one call across the pages that are not wanted, as far as the file goes.
    fn read_across(&self, first: PageId, out: &[Option<PageWords<'_>>]) -> Result<(), StoreError> {
        if self.cipher.is_some() {
            return read_runs(self, first, out);
        }
        let dropped = self.dropped.get_or_init(|| PageMemory::zeroed(1, self.area.page_size));
        let dropped = PageWords::new(dropped.buffer(0));
        let places: Vec<PageWords<'_>> = out.iter().map(|words| words.unwrap_or(dropped)).collect();
        if self.read_places(first, &places)? {
            self.verify_words(first, out.iter().map(Option::as_ref))
        } else {
            read_runs(self, first, out)
        }
    }

    /// Announces the read to the system, if it has a page cache for the file.
    fn will_read(&self, first: PageId, pages: usize) {
        if let Some(offset) = self.offset(first).filter(|_| !self.pages.file.is_direct()) {
            self.pages.file.will_read(offset, pages as u64 * self.area.page_size as u64);
        }
    }

    /// As the trait says; waits while every slot is owned by other threads, and syncs if no slot can be
    /// written otherwise. The first call repairs the file.
    fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        let mut order = self.seal(batch)?;
        self.prepare_for(batch)?;
        if let Some(&last) = order.last() {
            self.grow_to_hold(batch[last].0)?;
        }
        if let Some(new) = self.new_pages.begin(&mut order, |index| batch[index].0, &self.ledger)? {
            self.write_without_slot(new.sequence, batch, &new.pages)?;
        }
        order
            .chunks(self.area.shape.pages_per_slot as usize)
            .try_for_each(|part| self.write_part(batch, part))
    }

    /// In place at once, neighbors in one write: no copies in the double-write area.
    fn write_fresh(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        let order = self.seal(batch)?;
        self.prepare_for(batch)?;
        self.new_pages.never(batch.iter().map(|&(id, _)| id));
        self.write_without_slot(self.ledger.begin_without_slot()?, batch, &order)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.cover(self.ledger.finished())
    }

    fn sync_for_checkpoint(&self) -> Result<u64, StoreError> {
        self.repair()?;
        let last = self.new_pages.checkpoint(&self.ledger);
        self.ledger.settle(last)?;
        self.write_settled(last)?;
        // The batches are counted after the map was read: each page in the map is in one of them.
        self.lsn_map.checkpoint(|| self.cover(self.ledger.finished()))?;
        Ok(last)
    }

    fn make_room(&self, id: PageId) -> Result<(), StoreError> {
        self.make_room_for(id)
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed) // a look, which may be late
    }
}

/// The id and the page LSN of a page that is written.
fn page_lsn((id, page): &(PageId, PageBuf)) -> (PageId, Lsn) {
    (*id, image::lsn(page))
}

/// Steps.
impl PageFile {
    /// Seals a batch; returns its order by page id.
    fn seal(&self, batch: &mut [(PageId, PageBuf)]) -> Result<Vec<usize>, StoreError> {
        let sealed = seal_batch(batch, self.area.page_size, self.cipher.as_deref());
        sealed.map_err(self.pages.error("encrypt pages of", None, 0))
    }

    /// Prepares before the first byte of a batch is written: repairs the file if that is not done yet, and
    /// lowers the bounds of pages that get a smaller LSN.
    fn prepare_for(&self, batch: &[(PageId, PageBuf)]) -> Result<(), StoreError> {
        self.repair()?;
        self.lsn_map.lower(batch.iter().map(page_lsn)).map_err(|error| self.unless_full(error))
    }

    /// Writes into the head that all batches up to `last` are in their places, which they are. A copy of the
    /// file that is read from its beginning, and has this head, so has all their pages, or newer ones.
    fn write_settled(&self, last: u64) -> Result<(), StoreError> {
        let mut head = self.head.lock();
        if head.settled >= last {
            return Ok(());
        }
        let next = Head { settled: last, ..*head };
        let written = self.pages.file.write_at(0, &next.to_bytes());
        written.map_err(|e| self.fail(self.pages.error("write the head of", None, 0)(e)))?;
        *head = next;
        self.ledger.wrote();
        Ok(())
    }

    /// Returns the offset of a page, after the head; `None` if no file is that long.
    fn offset(&self, id: PageId) -> Option<u64> {
        let size = self.area.page_size as u64;
        let offset = id.0.checked_add(1)?.checked_mul(size)?;
        offset.checked_add(size).map(|_| offset)
    }

    /// Returns once a sync has covered this batch.
    fn cover(&self, batch: u64) -> Result<(), StoreError> {
        let sync = || self.pages.sync().inspect_err(|_| self.has_failed.store(true, Relaxed));
        self.ledger.cover(batch, sync)
    }

    /// Writes pages that fit a slot; `part` are their indices in the batch, in the order of their ids. If the
    /// disk has no space for the slot, they are written a few at a time, with the space of the first slot.
    fn write_part(&self, batch: &[(PageId, PageBuf)], part: &[usize]) -> Result<(), StoreError> {
        let (slot, room) = self.take_slot(part.len())?;
        let mut slot = Some(slot);
        for part in part.chunks(room) {
            let mut slot = match slot.take() {
                Some(slot) => slot,
                None => self.take_slot_with_room(room)?,
            };
            let head = self.fill_slot(&mut slot, part.iter().map(|&i| &batch[i]));
            self.write_slot(&slot, head.pages.len())?;
            self.write_places(&slot, &head.pages)?;
            self.ledger.finish(slot);
            self.lsn_map.written(part.iter().map(|&i| page_lsn(&batch[i])));
        }
        Ok(())
    }

    fn take_any_slot(&self) -> Result<OwnedSlot, StoreError> {
        loop {
            match self.ledger.take()? {
                Taken::Slot(slot) => return Ok(slot),
                Taken::SyncFirst(batch) => self.cover(batch)?,
            }
        }
    }

    /// Marks the store as failed (DW-7).
    fn fail(&self, error: StoreError) -> StoreError {
        self.has_failed.store(true, Relaxed); // a look, which may be late
        self.ledger.fail(error)
    }

    /// Marks the store as failed, unless the error is a full disk: then nothing is in doubt (DW-7).
    fn unless_full(&self, error: StoreError) -> StoreError {
        if is_full(&error) { error } else { self.fail(error) }
    }

    /// Puts head and pages together in the slot's buffer.
    fn fill_slot<'a>(
        &self,
        slot: &mut OwnedSlot,
        pages: impl ExactSizeIterator<Item = &'a (PageId, PageBuf)>,
    ) -> SlotHead {
        let bytes = self.area.page_at(pages.len());
        if slot.buffer.len() < bytes {
            slot.buffer = PageBuf::zeroed(bytes);
        }
        let mut head = SlotHead { sequence: slot.sequence, pages: Vec::new() };
        for (index, (id, page)) in pages.enumerate() {
            let at = self.area.page_at(index);
            slot.buffer[at..at + page.len()].copy_from_slice(page);
            head.pages.push((*id, stored_checksum(page)));
        }
        head.write_to(&mut slot.buffer, self.area.database_id);
        head
    }

    /// Step 1 of the module's head: the copies, durably.
    fn write_slot(&self, slot: &OwnedSlot, count: usize) -> Result<(), StoreError> {
        let (place, offset) = (&self.slots[slot.index], self.area.slot_offset(slot.index));
        let written = place.file.write_at_sync(offset, &slot.buffer[..self.area.page_at(count)]);
        written.map_err(|e| self.fail(place.error("write slot of", None, offset)(e)))
    }

    /// Step 2 of the module's head: the places, neighbors in one write.
    fn write_places(&self, slot: &OwnedSlot, pages: &[(PageId, u32)]) -> Result<(), StoreError> {
        let mut index = 0;
        for run in pages.chunk_by(|(a, _), (b, _)| a.0 + 1 == b.0) {
            let bytes = self.area.page_at(index)..self.area.page_at(index + run.len());
            self.write_place(run[0].0, &slot.buffer[bytes])?;
            index += run.len();
        }
        Ok(())
    }

    /// Writes whole pages from page `first` on into their places; a failure is the store's end.
    fn write_place(&self, first: PageId, bytes: &[u8]) -> Result<(), StoreError> {
        let offset = self.offset(first).unwrap_or(u64::MAX);
        let written = self.pages.file.write_at(offset, bytes);
        written.map_err(|e| self.fail(self.pages.error("write", Some(first), offset)(e)))
    }

    /// Makes the page file long enough for this page.
    fn grow_to_hold(&self, id: PageId) -> Result<(), StoreError> {
        let end = self.offset(id).map(|offset| offset + self.area.page_size as u64);
        match end {
            // Acquire: pairs with the Release in `grow`: the file does not grow over a page written later.
            Some(end) if end <= self.len.load(Acquire) => Ok(()),
            Some(end) => self.grow(end, id),
            None => Err(self.pages.error("write", Some(id), u64::MAX)(io::ErrorKind::FileTooLarge.into())),
        }
    }

    /// The lock is held while space is allocated: two growers have to exclude each other. Writers of pages
    /// inside the file do not come here.
    fn grow(&self, end: u64, id: PageId) -> Result<(), StoreError> {
        let _growing = self.growing.lock();
        let len = self.len.load(Relaxed); // changed under the lock only
        if end <= len {
            return Ok(());
        }
        self.ledger.check()?;
        let pages_len = len.saturating_sub(self.area.page_size as u64);
        let most = if self.grows_tightly { LEAST_GROWTH } else { MOST_GROWTH };
        let target = end.max(len + pages_len.clamp(LEAST_GROWTH, most));
        let from = len.max(end.saturating_sub(MOST_ZEROES));
        if let Err(error) = self.pages.file.allocate(from, target.saturating_sub(from)) {
            return Err(self.unless_full(self.pages.error("make room for", Some(id), from)(error)));
        }
        // Release: pairs with the Acquire loads of `len`; a thread that reads it finds the space allocated.
        self.len.store(target, Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
