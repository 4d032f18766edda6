//! `LsnMap`: a file with a lower bound of each page's LSN, which detects an older image of a page.
//!
//! Such an image is intact: it has its checksum and its page id. It results if a device loses a write, or if
//! an operator restores a block of the page file alone. The map has, for each page, a lower bound of the page
//! LSN in the page file. An image with a smaller LSN is outdated, and every read rejects it.
//!
//! The file is an array of sectors of 512 bytes. Sector *s* has the bounds of pages 63 × *s* to 63 × *s* +
//! 62. A disk writes a sector completely or not at all, so each sector is valid by itself.
//!
//! | bytes of a sector | field |
//! |---|---|
//! | 0..4 | CRC over the database id, the sector's number (8 bytes each), and bytes 4..512 |
//! | 4..8 | zero |
//! | 8 + 8·*i* .. | bound of the sector's page *i*; 0 for none |
//!
//! A sector that is missing, zero, damaged or of another store has no bounds. So the file may be removed: its
//! bounds are restored as pages are written.
//!
//! - **MAP-1** A bound in the file is at or below the page LSN in the page file, also after a power loss. It
//!   is raised to the LSN of an image only after a sync of the page file that covered the image
//!   ([`LsnMap::checkpoint`]). A page is written with a smaller LSN only after its bound was lowered, durably
//!   ([`LsnMap::lower`]). A restart does write such pages: it redoes whole pages without reading them, also
//!   from records that are older than the page on disk. The copies in the double-write area are written after
//!   the bound was lowered, too; a repair lowers the bound itself before it uses an older copy. So an old
//!   sector, or one that a crash left unwritten, only has weaker bounds.
//! - **MAP-2** While the store is open, the bound in memory is the LSN of the last write of the page. Only
//!   one thread reads or writes a page at a time ([`PageStore`](crate::PageStore)).
//! - **MAP-3** Before a checkpoint advances, the file has the LSN of each image that was in the page file
//!   when the checkpoint's sync began. So an image at or above its bound has all changes below the
//!   checkpoint's redo LSN, and redo brings it to the newest state. The log does not contain the pages of a
//!   bulk load: the load ends with such a sync before any page refers to them.
//! - **MAP-4** A restart reads each page that was written since the last checkpoint, or writes it whole: the
//!   page's last record is redone. So images that are read before the next checkpoint count as written now.
//!   They were in the file before the repair, which has synced it.
//!
//! Changes of the map are kept in memory until a checkpoint. So a page write needs no write of the map, and a
//! checkpoint needs one more sync. A group of blocks (eight sectors each) is read when one of its pages is
//! read, and is dropped when there are too many. The file is open only during reads and writes, so a small
//! store uses no descriptor for it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use azekura_base::bytes::u64_at;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::{Lsn, PageBuf, PageId, checksum};
use azekura_io::Fs;

use super::room::is_full;
use super::{OpenFile, PageAccess, error};
use crate::store::StoreError;

const SECTOR_BYTES: usize = 512;
const LSNS_AT: usize = 8;
const SECTOR_LSNS: usize = (SECTOR_BYTES - LSNS_AT) / 8;
const SECTORS: usize = 8;
const BLOCK_BYTES: usize = SECTORS * SECTOR_BYTES;
const BLOCK_LSNS: usize = SECTORS * SECTOR_LSNS;
/// Number of blocks that are read together: one read for the first 4032 pages.
const GROUP_BLOCKS: usize = 8;
const SHARDS: usize = 4;
/// Number of blocks of a shard in memory, of at most 4 KiB each: 4 MiB in all shards, for the bounds of half
/// a million pages.
const SHARD_BLOCKS: usize = 256;

/// The bounds of the pages from `BLOCK_LSNS` × the block's number on, without the zeros at the end: most
/// blocks of a small store are empty.
type Block = Box<[u64]>;

fn without_end(block: &[u64; BLOCK_LSNS]) -> Block {
    let len = block.iter().rposition(|&bound| bound != 0).map_or(0, |last| last + 1);
    block[..len].into()
}

#[derive(Debug, Default)]
struct Shard {
    /// LSNs of the last writes that are not in the file yet.
    noted: HashMap<PageId, Lsn>,
    /// The bounds in the file: a cache.
    blocks: BTreeMap<u64, Block>,
    /// The number of the block that was removed last.
    removed: u64,
}

/// The map of page LSNs; see the module head.
#[derive(Debug)]
pub(super) struct LsnMap {
    fs: Arc<dyn Fs>,
    path: Arc<Path>,
    database_id: u64,
    /// The groups in memory, by their numbers.
    shards: [Mutex<Shard>; SHARDS],
    /// Locked during writes of the file, and by a checkpoint from before its sync.
    writing: Mutex<()>,
    /// `true` while images that are read count as written (MAP-4). Relaxed: one thread opens the store, and
    /// starts the others.
    counts_reads: AtomicBool,
}

const fn block_of(id: PageId) -> u64 {
    id.0 / BLOCK_LSNS as u64
}

const fn index_of(id: PageId) -> usize {
    (id.0 % BLOCK_LSNS as u64) as usize
}

impl LsnMap {
    pub(super) fn new(fs: Arc<dyn Fs>, path: &Path, database_id: u64) -> Self {
        let shards = std::array::from_fn(|_| Mutex::new(Shard::default()));
        Self {
            fs,
            path: path.into(),
            database_id,
            shards,
            writing: Mutex::new(()),
            counts_reads: AtomicBool::new(false),
        }
    }

    /// Checks the page LSN of an image that was read from the page file; the error is the bound that it
    /// violates.
    pub(super) fn check(&self, id: PageId, lsn: Lsn) -> Result<(), Lsn> {
        // A map that cannot be read has no bounds.
        let bound = self.bound(id).unwrap_or(Lsn(0));
        if lsn < bound {
            return Err(bound);
        }
        if lsn > bound && self.counts_reads.load(Relaxed) {
            self.written([(id, lsn)]);
        }
        Ok(())
    }

    /// Records the end of the repair: from now on images that are read count as written (MAP-4).
    pub(super) fn count_reads(&self) {
        self.counts_reads.store(true, Relaxed);
    }

    /// Stores the LSNs of images written to the page file. Their batch is finished, so a later sync covers
    /// them.
    pub(super) fn written(&self, pages: impl IntoIterator<Item = (PageId, Lsn)>) {
        for (id, lsn) in pages.into_iter().filter(|(_, lsn)| lsn.0 > 0) {
            self.shard(block_of(id)).lock().noted.insert(id, lsn);
        }
    }

    /// Lowers larger bounds to the LSNs of these images durably, before the images are written (MAP-1). A
    /// bound that cannot be read may be larger, so it is written anew. `failed` gets the error of a write,
    /// and not that of an open, such as EMFILE, which has changed nothing.
    pub(super) fn lower(
        &self,
        pages: impl Iterator<Item = (PageId, Lsn)>,
        failed: impl FnOnce(StoreError) -> StoreError,
    ) -> Result<(), StoreError> {
        let is_larger = |&(id, lsn): &(PageId, Lsn)| !self.bound(id).is_ok_and(|bound| lsn >= bound);
        let mut lower: Vec<_> = pages.filter(is_larger).collect();
        if lower.is_empty() {
            return Ok(());
        }
        lower.sort_unstable();
        let _writing = self.writing.lock();
        let place = self.open_or_create()?;
        self.write(&place, &lower, u64::min).map_err(failed)?;
        for (id, _) in lower {
            self.shard(block_of(id)).lock().noted.remove(&id);
        }
        Ok(())
    }

    /// Runs `sync`, which covers the finished batches, and raises the bounds of the pages written before it.
    /// A full disk is not an error: the bounds stay in memory, and a later checkpoint writes them.
    pub(super) fn checkpoint(&self, sync: impl FnOnce() -> Result<(), StoreError>) -> Result<(), StoreError> {
        let _writing = self.writing.lock();
        let noted = self.noted();
        sync()?;
        if !noted.is_empty() {
            let written = self.open_or_create().and_then(|place| self.write(&place, &noted, |_, lsn| lsn));
            match written {
                Ok(()) => {}
                Err(error) if is_full(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        for (id, lsn) in noted {
            let mut shard = self.shard(block_of(id)).lock();
            if shard.noted.get(&id) == Some(&lsn) {
                shard.noted.remove(&id);
            }
        }
        self.counts_reads.store(false, Relaxed); // Relaxed: a hint, orders nothing
        Ok(())
    }

    fn shard(&self, block: u64) -> &Mutex<Shard> {
        &self.shards[(block / GROUP_BLOCKS as u64 % SHARDS as u64) as usize]
    }

    /// Returns the bound of a page; 0 for none.
    fn bound(&self, id: PageId) -> Result<Lsn, StoreError> {
        let mut shard = self.shard(block_of(id)).lock();
        if let Some(&lsn) = shard.noted.get(&id) {
            return Ok(lsn);
        }
        let block = self.block(&mut shard, block_of(id))?;
        Ok(Lsn(block.get(index_of(id)).copied().unwrap_or(0)))
    }

    /// Returns the entries in the order of page ids.
    fn noted(&self) -> Vec<(PageId, Lsn)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(shard.lock().noted.iter().map(|(&id, &lsn)| (id, lsn)));
        }
        all.sort_unstable();
        all
    }

    /// Returns the block. If it is not in memory, reads it and its neighbors.
    fn block<'s>(&self, shard: &'s mut Shard, number: u64) -> Result<&'s [u64], StoreError> {
        let is_in_file = !shard.blocks.contains_key(&number) && self.fs.exists(&self.path);
        let file = if is_in_file { Some(self.open(false)?) } else { None };
        self.block_of_file(shard, number, file.as_ref())
    }

    /// Returns the block as [`LsnMap::block`] does, from a file that is open already; without a file the
    /// block has no bounds.
    fn block_of_file<'s>(
        &self,
        shard: &'s mut Shard,
        number: u64,
        file: Option<&OpenFile>,
    ) -> Result<&'s [u64], StoreError> {
        if shard.blocks.contains_key(&number) {
            return Ok(&shard.blocks[&number]);
        }
        let first = number - number % GROUP_BLOCKS as u64;
        let mut bytes = PageBuf::zeroed(GROUP_BLOCKS * BLOCK_BYTES);
        if let Some(file) = file {
            file.read(offset_of(first), &mut bytes, None)?;
        }
        shard.make_room();
        for (number, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            shard.blocks.entry(number).or_insert_with(|| self.decode(number, bytes));
        }
        Ok(&shard.blocks[&number])
    }

    /// Sets the bound of each page to the result of `next`, called with the old bound and the LSN. Durable on
    /// return. A block that cannot be read has no bounds, and is written anew.
    fn write(
        &self,
        place: &OpenFile,
        pages: &[(PageId, Lsn)],
        next: fn(u64, u64) -> u64,
    ) -> Result<(), StoreError> {
        for run in pages.chunk_by(|(a, _), (b, _)| block_of(*a) == block_of(*b)) {
            let number = block_of(run[0].0);
            let mut block = [0; BLOCK_LSNS];
            let mut shard = self.shard(number).lock();
            let known = self.block_of_file(&mut shard, number, Some(place)).unwrap_or_default();
            block[..known.len()].copy_from_slice(known);
            drop(shard);
            for &(id, lsn) in run {
                let bound = &mut block[index_of(id)];
                *bound = next(*bound, lsn.0);
            }
            let written = place.file.write_at(offset_of(number), &self.encode(number, &block));
            written.map_err(place.error("write", None, offset_of(number)))?;
            self.shard(number).lock().blocks.insert(number, without_end(&block));
        }
        place.sync()
    }

    fn open(&self, create: bool) -> Result<OpenFile, StoreError> {
        OpenFile::open(&*self.fs, &self.path, create, PageAccess::Buffered)
    }

    /// Opens the file, or creates it and makes its name durable.
    fn open_or_create(&self) -> Result<OpenFile, StoreError> {
        if self.fs.exists(&self.path) {
            return self.open(false);
        }
        let place = self.open(true)?;
        if let Some(dir) = self.path.parent() {
            self.fs.sync_dir(dir).map_err(error("sync directory", dir, None, 0))?;
        }
        Ok(place)
    }

    fn encode(&self, number: u64, block: &[u64; BLOCK_LSNS]) -> PageBuf {
        let mut bytes = PageBuf::zeroed(BLOCK_BYTES);
        let sectors = bytes.chunks_exact_mut(SECTOR_BYTES).zip(block.chunks_exact(SECTOR_LSNS));
        for (nth, (sector, lsns)) in sectors.enumerate() {
            for (at, lsn) in sector[LSNS_AT..].chunks_exact_mut(8).zip(lsns) {
                at.copy_from_slice(&lsn.to_le_bytes());
            }
            let crc = self.checksum(number, nth, sector);
            sector[..4].copy_from_slice(&crc.to_le_bytes());
        }
        bytes
    }

    fn decode(&self, number: u64, bytes: &[u8]) -> Block {
        let mut block = [0; BLOCK_LSNS];
        let sectors = bytes.chunks_exact(SECTOR_BYTES).zip(block.chunks_exact_mut(SECTOR_LSNS));
        for (nth, (sector, lsns)) in sectors.enumerate() {
            if sector[..4] == self.checksum(number, nth, sector).to_le_bytes() {
                lsns.iter_mut().enumerate().for_each(|(i, lsn)| *lsn = u64_at(sector, LSNS_AT + 8 * i));
            }
        }
        without_end(&block)
    }

    fn checksum(&self, number: u64, nth: usize, sector: &[u8]) -> u32 {
        let sector_number = number.wrapping_mul(SECTORS as u64).wrapping_add(nth as u64);
        let crc = checksum::crc32c(&self.database_id.to_le_bytes());
        let crc = checksum::crc32c_append(crc, &sector_number.to_le_bytes());
        checksum::crc32c_append(crc, &sector[4..])
    }
}

impl Shard {
    /// Removes blocks, in the order of their numbers, until there is space for a group.
    fn make_room(&mut self) {
        while self.blocks.len() + GROUP_BLOCKS > SHARD_BLOCKS {
            let next = self.blocks.range(self.removed + 1..).chain(&self.blocks).next();
            let Some((&number, _)) = next else { return };
            self.blocks.remove(&number);
            self.removed = number;
        }
    }
}

const fn offset_of(block: u64) -> u64 {
    block.saturating_mul(BLOCK_BYTES as u64)
}

#[cfg(test)]
mod tests;
