//! Creates and opens the page file and the double-write area.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use azekura_base::page::{self, image};
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, AtomicU64};
use azekura_base::{Cipher, PageBuf, PageId};
use azekura_io::{Fs, create_dir_all_durable};

use super::area::{Area, AreaShape, HEAD_BYTES, Misfit};
use super::handle::SlotHandle;
use super::head::Head;
use super::ledger::Ledger;
use super::lsn_map::LsnMap;
use super::new_pages::NewPages;
use super::{OpenFile, PageAccess, PageFile, error};
use crate::store::{StoreError, seal_page};

/// The state of the page file in the checkpoint of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The id of the store: files of another store are rejected.
    pub database_id: u64,
    /// The number that [`PageStore::sync_for_checkpoint`](crate::PageStore) returned to the checkpoint; 0
    /// before the first one. An older page file is rejected, and copies of pages up to this number are
    /// ignored.
    pub covered: u64,
}

impl PageFile {
    /// Creates both files with durable names, and the directory if it is missing, for the store with id 0.
    /// May be repeated: existing files are not changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; or [`StoreError::Refused`] if there is a file for another page size, or
    /// `page_size` is invalid.
    pub fn create(fs: Arc<dyn Fs>, dir: &Path, page_size: usize) -> Result<(), StoreError> {
        Self::create_with(fs, dir, page_size, 0, AreaShape::for_page_size(page_size))
    }

    /// Creates files as [`PageFile::create`] does, for the store with this id, with a double-write area of
    /// this shape. An invalid shape becomes the nearest valid one. The area's head stores the shape.
    ///
    /// # Errors
    ///
    /// As [`PageFile::create`].
    pub fn create_with(
        fs: Arc<dyn Fs>,
        dir: &Path,
        page_size: usize,
        database_id: u64,
        shape: AreaShape,
    ) -> Result<(), StoreError> {
        check_page_size(page_size, dir)?;
        create_dir_all_durable(&*fs, dir).map_err(error("create directory", dir, None, 0))?;
        let area = Area { shape: shape.made_possible(), page_size, database_id };
        let place = OpenFile::open(&*fs, &dir.join(Self::DOUBLE_WRITE_NAME), true, PageAccess::Direct)?;
        match read_area(&place, page_size)? {
            Ok(_) => {}
            Err(("page size", found, expected)) => {
                return Err(refused(&place.path, ("page size", found, expected)));
            }
            Err(_) => area.make(&place, place.len()?)?,
        }
        place.sync()?;
        let pages = OpenFile::open(&*fs, &dir.join(Self::NAME), true, PageAccess::default())?;
        make_head(&pages, Head { page_size, database_id, last_finished: 0 })?;
        pages.sync()?;
        fs.sync_dir(dir).map_err(error("sync directory", dir, None, 0))
    }

    /// Creates both files again for the store with this id and these pages, in order from page 0 on. Seals
    /// the pages, by the cipher if there is one. On return the pages are durable. The names and the area are
    /// not durable: the first growth of the area syncs it.
    ///
    /// # Errors
    ///
    /// [`StoreError::Io`]; or [`StoreError::Refused`] if `page_size` is invalid.
    pub fn create_unnamed(
        fs: Arc<dyn Fs>,
        dir: &Path,
        page_size: usize,
        database_id: u64,
        pages: &PageBuf,
        cipher: Option<&dyn Cipher>,
    ) -> Result<(), StoreError> {
        check_page_size(page_size, dir)?;
        let area = Area { shape: AreaShape::for_page_size(page_size), page_size, database_id };
        let place = OpenFile::open(&*fs, &dir.join(Self::DOUBLE_WRITE_NAME), true, PageAccess::Direct)?;
        let made = place.file.set_len(0).and_then(|()| place.file.write_at(0, &area.head()));
        made.map_err(place.error("write the head of", None, 0))?;
        let place = OpenFile::open(&*fs, &dir.join(Self::NAME), true, PageAccess::default())?;
        let mut bytes = PageBuf::zeroed(page_size + pages.len());
        bytes[..HEAD_BYTES].copy_from_slice(&Head { page_size, database_id, last_finished: 0 }.to_bytes());
        bytes[page_size..].copy_from_slice(pages);
        for page in bytes[page_size..].chunks_exact_mut(page_size) {
            let sealed = seal_page(page, cipher);
            sealed.map_err(place.error("encrypt the first pages of", Some(PageId(0)), 0))?;
        }
        let made = place.file.set_len(0).and_then(|()| place.file.write_at(0, &bytes));
        made.map_err(place.error("write the first pages of", Some(PageId(0)), 0))?;
        place.sync()
    }

    /// Opens files as [`PageFile::open_as`] does, for the store with id 0 that has no checkpoint.
    ///
    /// # Errors
    ///
    /// As [`PageFile::open_as`].
    pub fn open(fs: Arc<dyn Fs>, dir: &Path, page_size: usize) -> Result<Self, StoreError> {
        Self::open_with(fs, dir, page_size, PageAccess::default())
    }

    /// Opens files as [`PageFile::open`] does, with this access to the pages.
    ///
    /// # Errors
    ///
    /// As [`PageFile::open_as`].
    pub fn open_with(
        fs: Arc<dyn Fs>,
        dir: &Path,
        page_size: usize,
        access: PageAccess,
    ) -> Result<Self, StoreError> {
        Self::open_as(fs, dir, page_size, Identity::default(), access)
    }

    /// Opens both files; `access` may differ between openings. Costs two reads; call [`PageFile::repair`]
    /// next. A double-write area that is missing, damaged or unreadable is not an error (DW-9).
    ///
    /// # Errors
    ///
    /// - [`StoreError::Io`], with `NotFound` if the page file is missing.
    /// - [`StoreError::Refused`]: the page file is damaged, for another page size, or of another store.
    /// - [`StoreError::Stale`]: the page file is older than the checkpoint.
    pub fn open_as(
        fs: Arc<dyn Fs>,
        dir: &Path,
        page_size: usize,
        identity: Identity,
        access: PageAccess,
    ) -> Result<Self, StoreError> {
        check_page_size(page_size, dir)?;
        let pages = OpenFile::open(&*fs, &dir.join(Self::NAME), false, access)?;
        let head = read_head(&pages, page_size, identity)?;
        let path = dir.join(Self::DOUBLE_WRITE_NAME);
        let is_missing = !fs.exists(&path);
        let place = OpenFile::open(&*fs, &path, true, PageAccess::Direct)?;
        if is_missing {
            fs.sync_dir(dir).map_err(error("sync directory", dir, None, 0))?;
        }
        let expected =
            Area { shape: AreaShape::for_page_size(page_size), page_size, database_id: identity.database_id };
        let found = read_area(&place, page_size).ok().and_then(Result::ok);
        let found = found.filter(|area| area.database_id == identity.database_id);
        let area = found.unwrap_or(expected);
        let area_len = AtomicU64::new(place.len()?);
        let slots = SlotHandle::places(&fs, place, area.shape.slots as usize);
        let len = pages.len()?.next_multiple_of(page_size as u64);
        // Scans do their own read-ahead.
        pages.file.reads_are_random();
        Ok(Self {
            pages,
            head: Mutex::new(head),
            area,
            is_area_lost: found.is_none(),
            covered: identity.covered,
            slots,
            area_len,
            ledger: Ledger::new(area.shape.slots as usize),
            lsn_map: LsnMap::new(fs, &dir.join(Self::LSN_MAP_NAME), identity.database_id),
            new_pages: NewPages::none(),
            has_failed: AtomicBool::new(false),
            len: AtomicU64::new(len),
            growing: Mutex::new(()),
            hole_end: AtomicU64::new(len / page_size as u64),
            grows_tightly: false,
            repairing: Mutex::new(()),
            cipher: None,
            dropped: OnceLock::new(),
        })
    }
}

impl PageFile {
    /// Configures a file that is filled once, as by a restore: it grows by the least step, so that little
    /// allocated space is left unused at its end.
    #[must_use]
    pub fn filled_once(self) -> Self {
        Self { grows_tightly: true, ..self }
    }

    /// Encrypts the part of each page after its header, also in the double-write area, if there is a cipher.
    /// The cipher then uses the last [`TRAILER_BYTES`](azekura_base::cipher::TRAILER_BYTES) of a page
    /// ([`BufferPool::reserving`](crate::BufferPool::reserving)). The repair of torn pages needs no key.
    #[must_use]
    pub fn encrypted(self, cipher: Option<Arc<dyn Cipher>>) -> Self {
        Self { cipher, ..self }
    }
}

fn check_page_size(page_size: usize, dir: &Path) -> Result<(), StoreError> {
    if page::is_page_size(page_size) {
        return Ok(());
    }
    let nearest = page_size.clamp(page::MIN_PAGE_SIZE, page::MAX_PAGE_SIZE).next_power_of_two();
    Err(refused(dir, ("page size", page_size as u64, nearest as u64)))
}

fn refused(path: &Path, (what, found, expected): Misfit) -> StoreError {
    StoreError::Refused { path: path.into(), what, found, expected }
}

fn first_block(place: &OpenFile) -> Result<PageBuf, StoreError> {
    let mut head = PageBuf::zeroed(HEAD_BYTES);
    place.read(0, &mut head, None)?;
    Ok(head)
}

/// Returns the area that the head describes, or the error in the head.
fn read_area(place: &OpenFile, page_size: usize) -> Result<Result<Area, Misfit>, StoreError> {
    Ok(Area::from_head(&first_block(place)?, page_size))
}

/// Writes the head of a new page file.
fn make_head(pages: &OpenFile, head: Head) -> Result<(), StoreError> {
    let found = first_block(pages)?;
    if image::is_zero(&found) {
        let written = pages.file.write_at(0, &head.to_bytes());
        return written.map_err(pages.error("write the head of", None, 0));
    }
    Head::parse(&found, head.page_size).map(drop).map_err(|misfit| refused(&pages.path, misfit))
}

fn read_head(pages: &OpenFile, page_size: usize, identity: Identity) -> Result<Head, StoreError> {
    let head = Head::parse(&first_block(pages)?, page_size).map_err(|m| refused(&pages.path, m))?;
    if head.database_id != identity.database_id {
        return Err(refused(&pages.path, ("database id", head.database_id, identity.database_id)));
    }
    if head.last_finished < identity.covered {
        return Err(StoreError::Stale {
            path: Arc::clone(&pages.path),
            found: head.last_finished,
            expected: identity.covered,
        });
    }
    Ok(head)
}

impl Area {
    /// Writes zeroes over the existing slots, up to `len` or the area's end, and then the head, which marks
    /// the area as complete. Other slots are added by their first use.
    pub(super) fn make(self, place: &OpenFile, len: u64) -> Result<(), StoreError> {
        let bytes = len.min(self.len()).checked_sub(HEAD_BYTES as u64);
        if let Some(bytes) = bytes.filter(|&bytes| bytes > 0) {
            let zeroed = place.file.write_zeroes(HEAD_BYTES as u64, bytes);
            zeroed.map_err(place.error("make the double-write area", None, HEAD_BYTES as u64))?;
            place.sync()?;
        }
        place.file.write_at_sync(0, &self.head()).map_err(place.error("write the head of", None, 0))
    }
}
