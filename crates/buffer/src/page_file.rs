//! `PageFile`: a page store that keeps each page whole after a power loss, by writing most pages twice.
//!
//! After a crash a page has its old or its new content; after the next [`PageStore::sync`] it has the new
//! content. The log has the changes in between. This module caches no pages.
//!
//! A disk writes 512 bytes completely or not at all. A page is longer, so a power loss during its write can
//! leave a mixture (a *torn* page, hazard W12). Therefore a batch of pages is written in three steps:
//!
//! 1. into a slot of the *double-write area*, durably, in one write;
//! 2. to its offsets in the page file, adjacent pages in one write, not durable yet;
//! 3. then the slot is not used until a sync of the page file has covered step 2.
//!
//! After a crash, *repair* reads the block of every page with a valid copy in the area. If the block is
//! damaged or unreadable, it writes the newest copy there. Slots are reused, so the area is full of old
//! copies. Each batch has a sequence number, and a checkpoint stores the number up to which its sync covered
//! all batches ([`PageStore::sync_for_checkpoint`]). A copy is valid only above that number. A page that is
//! damaged later has no valid copy, and reading it is an error.
//!
//! The file begins with a head of one page (`head`). The head has the store's id, and the number up to which
//! all batches are in the page file, written before the checkpoint's sync. A page file with a number below
//! the checkpoint's is older than the checkpoint, and is rejected. Page *n* is at offset (*n* + 1) × page
//! size.
//!
//! - **DW-1** A slot has one user at a time, the owner of an `OwnedSlot`.
//! - **DW-2** The pages of a batch are written to the page file only after the write of its slot returned,
//!   durable.
//! - **DW-3** A slot is written only after a successful sync of the page file. This sync began after the
//!   pages of the slot's last batch had been written to the page file.
//! - **DW-4** A copy is valid only if the slot's head is intact and lists this page with this checksum, and
//!   the page has this checksum. So after an incomplete slot write, pages of the previous batch are never
//!   taken for pages of this batch.
//! - **DW-5** The sequence numbers of the batches with any one page rise in the order of the writes, across
//!   openings too. (Callers never write one page from two threads.) So the copy with the larger number is the
//!   newer one.
//! - **DW-6** After opening, no slot is written before the repair and a sync of the page file.
//! - **DW-7** After the first failed write or sync no batch gets a slot, and no sync is attempted (W10). So
//!   writes that may have been lost keep their copies. A file that cannot *grow* for lack of space is not a
//!   failure: the state of all writes is known (compare W11).
//! - **DW-8** A copy is valid only if its batch is above `covered`, the number that
//!   [`PageStore::sync_for_checkpoint`] returned to the last checkpoint. Such a copy has every change with an
//!   LSN below the checkpoint's redo LSN, because that LSN was chosen before. So redo brings any such copy to
//!   the page's newest state.
//! - **DW-9** The area is redundant. An unreadable slot counts as empty, and an area with a lost head is
//!   created again after the repair. Sequence numbers then continue far above the numbers that could not be
//!   read (DW-5).
//!
//! Proof that no page stays torn. Let a page's block be damaged after a crash. Then some write to it was in
//! flight, or was not covered by a successful sync; let *w* be the last such write. When *w* began, its copy
//! was durable (DW-2). The slot was not written since, because no sync covered *w* (DW-3, DW-7). So the copy
//! exists (DW-4). Suppose that another copy of the page is newer. Its write to the page file is *w*, or has
//! not begun. In the second case the block has an intact old image or an older torn one, and the newer copy
//! is itself a valid image (DW-5). It is at least as new as the last image that a sync covered. If a crash
//! interrupts the repair, the area is unchanged (DW-6), and the next repair does the same.
//!
//! A sync has the same effect for buffered pages and for direct ones: each write that returned before it is
//! on the device. The kernel writes buffered pages at any time, and reports a failed write once per open
//! file, to the next sync. One open file is used for all pages, with one sync at a time; a failed sync makes
//! the store fail (DW-7). A restart in the same kernel after a *failed sync* has another hazard: the page
//! cache returns the bytes, treats them as clean and never writes them. All uncovered batches have copies in
//! the area. So repair also writes the intact blocks of these pages again, and its sync makes them durable.
//!
//! A *new* page, which the file did not have at the last checkpoint, is written only to the page file. A
//! crash may tear it until the next sync; redo restores it from the record that allocated it (`new_pages`).
//!
//! *Fresh* pages (for example of a bulk load) have no earlier content that will be read. Until the next sync
//! a crash may tear them, and their writer does not refer to them before. They are written only to the page
//! file. If repair finds an old copy of such a page, from its earlier content, it writes the copy over a torn
//! page, but not over an intact one.
//!
//! The page file grows by allocated ranges, so that a page write does not run out of space. The ranges are
//! not filled. Written zeroes would double the bytes of an ordinary load. In the system's page cache they
//! would form large folios, and each later write of a page would cost the kernel a walk over all blocks.
//! Nothing relies on the zeroes that such a range reads as. Bytes beyond the end of the file, whole pages or
//! parts, count as zeroes, and a crash that truncates the file loses nothing that a sync covered. So the
//! length need not be a multiple of the page size. A page of zeroes is not a valid page: reading it is an
//! error.
//!
//! | module | noun |
//! |---|---|
//! | `area` | format of the double-write area |
//! | `handle` | the descriptor of a slot |
//! | `head` | format of the page file's head |
//! | `holes` | disk space of free pages, given back and allocated again |
//! | `in_place` | writes without copies in the double-write area |
//! | `ledger` | the owners of the slots, the batches that a sync has covered, the first failure |
//! | `lsn_map` | a lower bound of each page's LSN, to detect older images of pages |
//! | `new_pages` | pages that the file did not have at the last checkpoint |
//! | `open` | creating and opening both files |
//! | `read` | reading pages |
//! | `repair` | repair after opening |
//! | `room` | disk space for future batches |

mod area;
mod handle;
mod head;
mod holes;
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

/// Least growth of the file, in bytes. The file grows by its own length, within the limits of growth.
const LEAST_GROWTH: u64 = 64 << 10;
/// Largest growth of the file, in bytes.
const MOST_GROWTH: u64 = 8 << 20;
/// Largest range that is allocated between the old end and a written page, in bytes. A page that is farther
/// beyond the end leaves a hole.
const MOST_ZEROES: u64 = 64 << 20;
/// A file of pages, with a double-write area beside it. See the module head.
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
    pages: OpenFile,
    /// The head on disk, or the head that is being written under the lock.
    head: Mutex<Head>,
    area: Area,
    /// `true` if the area must be created again after the repair (DW-9).
    is_area_lost: bool,
    /// Number of the last batch that a checkpoint covered: copies up to it are not valid (DW-8).
    covered: u64,
    /// The handle of each slot: the kernel then reports a lost write to the thread that made it.
    slots: Vec<OpenFile>,
    /// Existing bytes of the area; changed only under `growing`.
    area_len: AtomicU64,
    ledger: Ledger,
    lsn_map: LsnMap,
    new_pages: NewPages,
    /// `true` if the ledger holds a failure. Set once; read before pages are changed.
    has_failed: AtomicBool,
    /// Bytes of the page file that may be read and written, a multiple of the page size. Changed only under
    /// `growing`, and read by all calls.
    len: AtomicU64,
    growing: Mutex<()>,
    /// Pages from this one on are not in holes (`holes`).
    hole_end: AtomicU64,
    /// See [`PageFile::filled_once`].
    grows_tightly: bool,
    repairing: Mutex<()>,
    /// See [`PageFile::encrypted`].
    cipher: Option<Arc<dyn Cipher>>,
    /// A buffer for bytes that are read and dropped; every reading thread may write it at any time. Allocated
    /// by the first such read.
    dropped: OnceLock<PageMemory>,
}

/// The way in which pages are read and written. The double-write area is always direct if the file system
/// supports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageAccess {
    /// Through the system's page cache: a miss for a page in that cache costs a copy and no read of the
    /// device, and the kernel writes the pages of many batches together.
    #[default]
    Buffered,
    /// Bypassing the system's page cache (`O_DIRECT`), if the file system supports it: then pages use no
    /// memory besides the pool's.
    Direct,
}

/// An open file and its path.
#[derive(Clone, Debug)]
struct OpenFile {
    file: Arc<dyn File>,
    path: Arc<Path>,
}

impl OpenFile {
    /// Opens a file; for direct access if this is requested and possible for memory aligned as [`PageBuf`]
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

    /// Reads bytes into `out`; bytes beyond the end of the file are zero.
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

    /// Returns the number of pages for which the page file has space; pages beyond it were never written.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        // Acquire: as in `read_unverified`.
        (self.len.load(Acquire) / self.area.page_size as u64).saturating_sub(1)
    }

    /// Returns the number up to which all batches of page writes are in the page file, according to its head.
    #[must_use]
    pub fn last_finished(&self) -> u64 {
        self.head.lock().last_finished
    }

    /// Returns the page size in bytes.
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

    /// Reads the pages by one call, up to the end of the file.
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

    /// Reads the pages by one call without a copy, up to the end of the file. Encrypted pages are copied, so
    /// that their words never contain ciphertext.
    fn read_words(&self, first: PageId, out: &[PageWords<'_>]) -> Result<(), StoreError> {
        if self.cipher.is_none() && self.read_places(first, out)? {
            self.verify_words(first, out.iter().map(Some))
        } else {
            read_and_copy(self, first, out)
        }
    }

    /// Reads by one call across the pages that are not requested, up to the end of the file.
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

    fn is_cached(&self, page: PageId) -> bool {
        self.offset(page).is_some_and(|offset| self.pages.file.is_cached(offset))
    }

    /// Writes the pages as [`PageStore::write_pages`] specifies. Waits while other threads own every slot,
    /// and syncs if no slot can be written otherwise. The first call repairs the file.
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

    /// Writes the pages directly to the page file, adjacent pages in one write, without copies in the
    /// double-write area.
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
        self.ledger.wait_finished(last)?;
        self.write_last_finished(last)?;
        // The batches are counted after the map was read: each page in the map is in one of them.
        self.lsn_map.checkpoint(|| self.cover(self.ledger.finished()))?;
        Ok(last)
    }

    fn make_room(&self, first: PageId, count: u32) -> Result<(), StoreError> {
        self.make_room_for(first, count)
    }

    fn release(&self, first: PageId, count: u32) -> Result<bool, StoreError> {
        self.make_hole(first, count)
    }

    fn disk_bytes(&self) -> Result<Option<u64>, StoreError> {
        let bytes = self.pages.file.disk_bytes();
        bytes.map(Some).map_err(self.pages.error("ask the disk space of", None, 0))
    }

    fn release_end(&self, end: PageId) -> Result<(), StoreError> {
        self.truncate(end)
    }

    fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed) // Relaxed: the answer may be outdated
    }
}

/// Returns the id and the page LSN of a page to be written.
fn page_lsn((id, page): &(PageId, PageBuf)) -> (PageId, Lsn) {
    (*id, image::lsn(page))
}

/// The steps of page writes.
impl PageFile {
    /// Seals a batch; returns its order by page id.
    fn seal(&self, batch: &mut [(PageId, PageBuf)]) -> Result<Vec<usize>, StoreError> {
        let sealed = seal_batch(batch, self.area.page_size, self.cipher.as_deref());
        sealed.map_err(self.pages.error("encrypt pages of", None, 0))
    }

    /// Prepares for the first write of a batch: repairs the file if this was not done yet, and lowers the
    /// bounds of pages that get a smaller LSN.
    fn prepare_for(&self, batch: &[(PageId, PageBuf)]) -> Result<(), StoreError> {
        self.repair()?;
        self.lsn_map.lower(batch.iter().map(page_lsn), |error| self.unless_full(error))
    }

    /// Writes `last` into the head: all batches up to this number are in the page file. So a copy of the file
    /// that is read from its start, and has this head, has all pages of these batches, or newer ones.
    fn write_last_finished(&self, last: u64) -> Result<(), StoreError> {
        let mut head = self.head.lock();
        if head.last_finished >= last {
            return Ok(());
        }
        let next = Head { last_finished: last, ..*head };
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

    /// Waits until a sync has covered this batch.
    fn cover(&self, batch: u64) -> Result<(), StoreError> {
        let sync = || self.pages.sync().inspect_err(|_| self.has_failed.store(true, Relaxed));
        self.ledger.cover(batch, sync)
    }

    /// Writes pages that fit a slot; `part` are their indices in the batch, in the order of their ids. If the
    /// disk has no space for the slot, a few pages at a time are written through the first slot.
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
        self.has_failed.store(true, Relaxed); // Relaxed: readers may find it late
        self.ledger.fail(error)
    }

    /// Marks the store as failed, unless the error is a full disk: then the state of all writes is known
    /// (DW-7).
    fn unless_full(&self, error: StoreError) -> StoreError {
        if is_full(&error) { error } else { self.fail(error) }
    }

    /// Writes head and pages into the slot's buffer.
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

    /// Performs step 1 of the module head: writes the copies, durably.
    fn write_slot(&self, slot: &OwnedSlot, count: usize) -> Result<(), StoreError> {
        let (place, offset) = (&self.slots[slot.index], self.area.slot_offset(slot.index));
        let written = place.file.write_at_sync(offset, &slot.buffer[..self.area.page_at(count)]);
        written.map_err(|e| self.fail(place.error("write slot of", None, offset)(e)))
    }

    /// Performs step 2 of the module head: writes the pages to the page file, adjacent pages in one write.
    fn write_places(&self, slot: &OwnedSlot, pages: &[(PageId, u32)]) -> Result<(), StoreError> {
        let mut index = 0;
        for run in pages.chunk_by(|(a, _), (b, _)| a.0 + 1 == b.0) {
            let bytes = self.area.page_at(index)..self.area.page_at(index + run.len());
            self.write_place(run[0].0, &slot.buffer[bytes])?;
            index += run.len();
        }
        Ok(())
    }

    /// Writes whole pages from page `first` on to the page file; a failure makes the store fail.
    fn write_place(&self, first: PageId, bytes: &[u8]) -> Result<(), StoreError> {
        let offset = self.offset(first).unwrap_or(u64::MAX);
        let written = self.pages.file.write_at(offset, bytes);
        written.map_err(|e| self.fail(self.pages.error("write", Some(first), offset)(e)))
    }

    /// Extends the page file to contain this page.
    fn grow_to_hold(&self, id: PageId) -> Result<(), StoreError> {
        let end = self.offset(id).map(|offset| offset + self.area.page_size as u64);
        match end {
            // Acquire: pairs with the Release in `grow`, so that the file does not grow over a page written
            // later.
            Some(end) if end <= self.len.load(Acquire) => Ok(()),
            Some(end) => self.grow(end, id),
            None => Err(self.pages.error("write", Some(id), u64::MAX)(io::ErrorKind::FileTooLarge.into())),
        }
    }

    /// Extends the file to at least `end` bytes. The lock is held while space is allocated, because two
    /// growing threads must exclude each other. Writers of pages inside the file do not call this.
    fn grow(&self, end: u64, id: PageId) -> Result<(), StoreError> {
        let _growing = self.growing.lock();
        let len = self.len.load(Relaxed); // Relaxed: changed only under the lock
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
