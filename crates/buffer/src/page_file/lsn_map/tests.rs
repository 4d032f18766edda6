use std::path::Path;
use std::sync::Arc;

use azekura_base::{Lsn, PageBuf, PageId, PageWords};
use azekura_io::{FailKind, FaultFs, Fs, IoKind, OpenOptions};

use super::super::{Identity, PageAccess, PageFile};
use super::{BLOCK_LSNS, GROUP_BLOCKS, SECTOR_BYTES, SHARD_BLOCKS, SHARDS};
use crate::memory::PageMemory;
use crate::store::{PageStore, StoreError};

const SIZE: usize = 4096;
const DIR: &str = "db";
const MAP: &str = "db/lsnmap";

fn image(id: u64, lsn: u64) -> (PageId, PageBuf) {
    let mut page = PageBuf::zeroed(SIZE);
    page[24..].fill(lsn as u8);
    page[8..16].copy_from_slice(&id.to_le_bytes());
    page[16..24].copy_from_slice(&lsn.to_le_bytes());
    (PageId(id), page)
}

fn open(fs: &FaultFs, covered: u64) -> PageFile {
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    PageFile::create(Arc::clone(&shared), DIR.as_ref(), SIZE).unwrap();
    let identity = Identity { database_id: 0, covered };
    PageFile::open_as(shared, DIR.as_ref(), SIZE, identity, PageAccess::default()).unwrap()
}

/// Writes an image into the page file without the store.
fn plant(fs: &FaultFs, id: u64, lsn: u64) {
    let (_, mut bytes) = image(id, lsn);
    azekura_base::page::image::seal(&mut bytes);
    let file = fs.open("db/pages".as_ref(), OpenOptions::new()).unwrap();
    file.write_at((id + 1) * SIZE as u64, &bytes).unwrap();
}

fn lsn_read(file: &PageFile, id: u64) -> Result<u64, StoreError> {
    let mut out = PageBuf::zeroed(SIZE);
    file.read_page(PageId(id), &mut out)?;
    Ok(azekura_base::page::image::lsn(&out).0)
}

/// Writes pages 0 to 9 with this LSN, and takes a checkpoint.
fn checkpointed(fs: &FaultFs, lsn: u64) -> u64 {
    let file = open(fs, 0);
    file.write_pages(&mut (0..10).map(|id| image(id, lsn)).collect::<Vec<_>>()).unwrap();
    file.sync_for_checkpoint().unwrap()
}

#[test]
fn an_outdated_image_is_refused_by_every_way_of_reading() {
    let fs = FaultFs::new();
    let covered = checkpointed(&fs, 20);
    let file = open(&fs, covered);
    plant(&fs, 4, 19);
    let is_refused = |read: Result<(), StoreError>| {
        let error = read.unwrap_err();
        assert!(matches!(error, StoreError::Outdated { page: PageId(4), offset: 20480, .. }), "{error}");
        let report = "page 4 at offset 20480 of db/pages is damaged: it is an older image with page LSN 19, \
                    and the page was written with page LSN 20";
        assert_eq!(error.to_string(), report);
    };
    let mut out = PageBuf::zeroed(3 * SIZE);
    let memory = PageMemory::zeroed(3, SIZE);
    let words = |nth: u32| PageWords::new(memory.buffer(nth));
    is_refused(file.read_page(PageId(4), &mut out[..SIZE]));
    is_refused(file.read_pages(PageId(3), SIZE, &mut out));
    is_refused(file.read_words(PageId(4), &[words(0)]));
    is_refused(file.read_words(PageId(3), &[words(0), words(1), words(2)]));
    is_refused(file.read_across(PageId(2), &[Some(words(0)), None, Some(words(2))]));
    file.read_across(PageId(3), &[Some(words(0)), None, Some(words(2))]).unwrap();
    for lsn in [20, 21] {
        plant(&fs, 4, lsn);
        assert_eq!(lsn_read(&file, 4).unwrap(), lsn);
    }
}

#[test]
fn an_image_is_outdated_at_once_in_the_process_that_wrote_the_page() {
    let fs = FaultFs::new();
    let file = open(&fs, 0);
    file.write_pages(&mut [image(1, 5), image(2, 5)]).unwrap();
    file.write_fresh(&mut [image(3, 6)]).unwrap();
    (1..4).for_each(|id| plant(&fs, id, 4));
    assert!((1..4).all(|id| matches!(lsn_read(&file, id), Err(StoreError::Outdated { .. }))));
}

#[test]
fn a_page_write_writes_no_map_and_a_checkpoint_syncs_it_once() {
    let fs = FaultFs::new();
    let file = open(&fs, 0);
    file.write_pages(&mut [image(1, 1)]).unwrap();
    assert!(!fs.exists(MAP.as_ref()));
    file.sync_for_checkpoint().unwrap();
    let costs = |batch: &mut [(PageId, PageBuf)]| {
        file.write_pages(batch).unwrap();
        let before = (fs.io_count_of(IoKind::WriteAt), fs.io_count_of(IoKind::Sync));
        file.sync_for_checkpoint().unwrap();
        (fs.io_count_of(IoKind::WriteAt) - before.0, fs.io_count_of(IoKind::Sync) - before.1)
    };
    let mut two_blocks = [image(1, 2), image(2, 2), image(BLOCK_LSNS as u64, 2)];
    // The head of the page file, and a write for each block.
    assert_eq!(costs(&mut two_blocks), (3, 2));
    let before = fs.io_count();
    file.sync_for_checkpoint().unwrap();
    assert_eq!(fs.io_count(), before, "nothing was written since");
}

#[test]
fn a_map_that_is_lost_damaged_or_older_refuses_no_page() {
    let changes: [(&str, fn(&FaultFs, &[u8])); 5] = [
        ("missing", |fs, _| fs.remove_file(MAP.as_ref()).unwrap()),
        ("empty", |fs, _| fs.open(MAP.as_ref(), OpenOptions::new()).unwrap().set_len(0).unwrap()),
        ("cut off", |fs, _| fs.open(MAP.as_ref(), OpenOptions::new()).unwrap().set_len(300).unwrap()),
        ("damaged", |fs, _| fs.corrupt(MAP.as_ref(), 0, SECTOR_BYTES as u64, 3).unwrap()),
        ("older", |fs, old| fs.open(MAP.as_ref(), OpenOptions::new()).unwrap().write_at(0, old).unwrap()),
    ];
    for (what, change) in changes {
        let fs = FaultFs::new();
        let _ = checkpointed(&fs, 20);
        let old = fs.contents(MAP.as_ref()).unwrap();
        let file = open(&fs, 0);
        file.write_pages(&mut (0..10).map(|id| image(id, 30)).collect::<Vec<_>>()).unwrap();
        let covered = file.sync_for_checkpoint().unwrap();
        change(&fs, &old);
        let file = open(&fs, covered);
        assert!((0..10).all(|id| lsn_read(&file, id).unwrap() == 30), "{what}");
        // The map detects outdated images again after the pages have been written.
        file.write_pages(&mut [image(2, 31)]).unwrap();
        let covered = file.sync_for_checkpoint().unwrap();
        plant(&fs, 2, 30);
        assert!(matches!(lsn_read(&open(&fs, covered), 2), Err(StoreError::Outdated { .. })), "{what}");
    }
}

/// A sector is valid only at the position and in the store for which it was written.
#[test]
fn a_sector_of_another_place_or_store_has_no_bounds() {
    let fs = FaultFs::new();
    let covered = checkpointed(&fs, 20);
    let bytes = fs.contents(MAP.as_ref()).unwrap();
    let file = fs.open(MAP.as_ref(), OpenOptions::new()).unwrap();
    file.write_at(SECTOR_BYTES as u64, &bytes[..SECTOR_BYTES]).unwrap();
    let map = |database_id| super::LsnMap::new(Arc::new(fs.clone()), Path::new(MAP), database_id);
    assert_eq!((map(0).bound(PageId(3)).unwrap().0, map(0).bound(PageId(66)).unwrap().0), (20, 0));
    assert_eq!(map(1).bound(PageId(3)).unwrap().0, 0);
    let file = open(&fs, covered);
    assert_eq!(lsn_read(&file, 3).unwrap(), 20);
}

/// MAP-1: a restart that redoes whole pages without reading them writes smaller LSNs; the pages stay readable
/// after a power loss at any time.
#[test]
fn map1_a_page_with_a_smaller_lsn_is_readable_after_a_power_loss() {
    for is_fresh in [false, true] {
        let mut cut = 1;
        loop {
            let fs = FaultFs::new();
            let covered = checkpointed(&fs, 20);
            let file = open(&fs, covered);
            file.repair().unwrap();
            fs.cut_power_at(cut);
            let mut batch = [image(4, 10), image(5, 25)];
            let written = if is_fresh { file.write_fresh(&mut batch) } else { file.write_pages(&mut batch) };
            let written = written.and_then(|()| file.sync());
            for disk in [fs.crash_losing_all(), fs.crash_keeping_all(), fs.crash(cut)] {
                let file = open(&disk, covered);
                file.repair().unwrap();
                let read = [lsn_read(&file, 4), lsn_read(&file, 5)];
                let is_possible = |read: &Result<u64, _>| match read {
                    Ok(lsn) => [20, 10, 25].contains(lsn),
                    Err(error) => is_fresh && matches!(error, StoreError::Corrupt { .. }),
                };
                assert!(read.iter().all(is_possible), "cut at {}: {read:?}", fs.describe_io(cut));
            }
            if written.is_ok() {
                break;
            }
            cut += 1;
        }
        assert!(cut > 3, "the power was cut in {cut} places");
    }
}

/// MAP-1: images without copies are not on disk before a sync, so their bounds must not be on disk either.
#[test]
fn map1_a_bound_is_raised_after_the_sync_that_covers_the_page() {
    let mut cut = 1;
    loop {
        let fs = FaultFs::new();
        let covered = checkpointed(&fs, 20);
        let file = open(&fs, covered);
        file.write_fresh(&mut [image(4, 30)]).unwrap();
        fs.cut_power_at(cut);
        let done = file.sync_for_checkpoint();
        for disk in [fs.crash_losing_all(), fs.crash_keeping_all()] {
            let found = lsn_read(&open(&disk, covered), 4).unwrap();
            assert!(found == 30 || found == 20 && done.is_err(), "cut at {}: {found}", fs.describe_io(cut));
        }
        if done.is_ok() {
            break;
        }
        cut += 1;
    }
    assert!(cut > 3, "the power was cut in {cut} places");
}

/// MAP-4: pages written after the last checkpoint of a killed process count as written when they are read.
#[test]
fn map4_images_that_are_read_after_a_repair_count_as_written() {
    let fs = FaultFs::new();
    let covered = checkpointed(&fs, 20);
    let file = open(&fs, covered);
    file.write_pages(&mut [image(4, 30)]).unwrap();
    drop(file);
    let file = open(&fs, covered);
    file.repair().unwrap();
    assert_eq!(lsn_read(&file, 4).unwrap(), 30);
    let covered = file.sync_for_checkpoint().unwrap();
    plant(&fs, 4, 25);
    assert!(matches!(lsn_read(&open(&fs, covered), 4), Err(StoreError::Outdated { .. })));
}

#[test]
fn an_outdated_page_is_repaired_from_a_copy_that_counts() {
    let fs = FaultFs::new();
    let covered = checkpointed(&fs, 20);
    let file = open(&fs, covered);
    file.write_pages(&mut [image(4, 30)]).unwrap();
    plant(&fs, 4, 10);
    let file = open(&fs, covered);
    assert_eq!(file.repair().unwrap(), [PageId(4)]);
    assert_eq!(lsn_read(&file, 4).unwrap(), 30);
    // A checkpoint has raised the bound, and CONTROL did not advance: an older copy is valid and may be below
    // the bound.
    file.write_fresh(&mut [image(4, 40)]).unwrap();
    file.sync_for_checkpoint().unwrap();
    fs.corrupt("db/pages".as_ref(), 5 * SIZE as u64, 512, 1).unwrap();
    let file = open(&fs, covered);
    assert_eq!(file.repair().unwrap(), [PageId(4)]);
    assert_eq!(lsn_read(&file, 4).unwrap(), 30, "redo brings it forward");
}

#[test]
fn on_a_full_disk_the_bounds_stay_in_memory_and_are_written_later() {
    for kind in [FailKind::NoSpace, FailKind::Quota] {
        let fs = FaultFs::new();
        let file = open(&fs, 0);
        file.write_pages(&mut [image(4, 30)]).unwrap();
        file.sync().unwrap();
        // The head of the page file and its sync, then the file of the map.
        fs.fail_at(3, kind);
        file.sync_for_checkpoint().unwrap();
        assert!(!fs.exists(MAP.as_ref()) && fs.last_ios().iter().any(|io| io.failure.is_some()));
        let covered = file.sync_for_checkpoint().unwrap();
        plant(&fs, 4, 25);
        assert!(matches!(lsn_read(&open(&fs, covered), 4), Err(StoreError::Outdated { .. })));
    }
}

#[test]
fn a_failed_write_of_the_map_fails_the_checkpoint_and_the_next_one_repeats_it() {
    for failing in 3..=6 {
        let fs = FaultFs::new();
        let file = open(&fs, 0);
        file.write_pages(&mut [image(4, 30)]).unwrap();
        fs.fail_at(failing, FailKind::Io);
        let error = file.sync_for_checkpoint().unwrap_err();
        assert!(matches!(&error, StoreError::Io { .. }) && !file.has_failed(), "{error}");
        let covered = file.sync_for_checkpoint().unwrap();
        plant(&fs, 4, 25);
        assert!(matches!(lsn_read(&open(&fs, covered), 4), Err(StoreError::Outdated { .. })));
    }
}

/// The file of the map has a sector that cannot be read: a checkpoint writes the block anew.
#[test]
fn a_block_that_cannot_be_read_fails_no_checkpoint() {
    let fs = FaultFs::new();
    let _ = checkpointed(&fs, 20);
    let map = || super::LsnMap::new(Arc::new(fs.clone()), Path::new(MAP), 0);
    let written = map();
    written.written([(PageId(4), Lsn(30))]);
    fs.fail_read_at(1);
    written.checkpoint(|| Ok(())).unwrap();
    assert_eq!((map().bound(PageId(4)).unwrap(), map().bound(PageId(3)).unwrap()), (Lsn(30), Lsn(0)));
}

/// A restart writes a page with a smaller LSN, and the file of the map cannot be opened or read once.
#[test]
fn a_bound_that_cannot_be_read_is_lowered() {
    let failures: [fn(&FaultFs); 2] = [|fs| fs.fail_lookup_at(1), |fs| fs.fail_read_at(1)];
    for fail in failures {
        let fs = FaultFs::new();
        let _ = checkpointed(&fs, 20);
        let map = || super::LsnMap::new(Arc::new(fs.clone()), Path::new(MAP), 0);
        let lowering = map();
        fail(&fs);
        lowering.lower([(PageId(4), Lsn(15))].into_iter(), |error| error).unwrap();
        assert_eq!((map().bound(PageId(4)).unwrap(), map().bound(PageId(3)).unwrap()), (Lsn(15), Lsn(20)));
    }
}

#[test]
fn blocks_beyond_the_limit_are_dropped_and_read_again() {
    let fs = FaultFs::new();
    let map = super::LsnMap::new(Arc::new(fs.clone()), Path::new("lsnmap"), 7);
    let pages = |salt: u64| {
        let count = (SHARDS * SHARD_BLOCKS * 2) as u64;
        (0..count).map(move |n| (PageId(n * BLOCK_LSNS as u64 + n % 500), Lsn(n + salt)))
    };
    map.written(pages(1));
    map.checkpoint(|| Ok(())).unwrap();
    assert!(pages(1).all(|(id, lsn)| map.bound(id).unwrap() == lsn));
    assert!(map.shards.iter().all(|shard| shard.lock().blocks.len() <= SHARD_BLOCKS));
    assert!(map.shards.iter().all(|shard| shard.lock().noted.is_empty()));
    map.lower(pages(0), |error| error).unwrap();
    assert!(pages(0).all(|(id, lsn)| map.bound(id).unwrap() == lsn));
}

/// The bounds of a page file that is little larger than the cache are found in memory most of the time.
#[test]
fn a_group_of_blocks_removes_no_more_than_it_needs() {
    const IN_MEMORY: u64 = (SHARD_BLOCKS / GROUP_BLOCKS) as u64;
    let map = super::LsnMap::new(Arc::new(FaultFs::new()), Path::new("lsnmap"), 7);
    let group = |n: u64| n * (SHARDS * GROUP_BLOCKS) as u64;
    for n in 0..4 * IN_MEMORY {
        map.bound(PageId(group(n) * BLOCK_LSNS as u64)).unwrap();
        let in_memory = map.shards[0].lock().blocks.len() as u64;
        assert_eq!(in_memory / GROUP_BLOCKS as u64, (n + 1).min(IN_MEMORY), "at group {n}");
    }
}
