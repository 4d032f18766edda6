use std::path::PathBuf;

use super::*;
use azekura_io::{FailKind, FaultFs, IoKind, MemFs, OsFs};

const SIZE: usize = 4096;
const DIR: &str = "db";

fn page(id: u64, fill: u8) -> (PageId, PageBuf) {
    let mut page = PageBuf::zeroed(SIZE);
    page[24..].fill(fill);
    page[8..16].copy_from_slice(&id.to_le_bytes());
    (PageId(id), page)
}

fn create(fs: &FaultFs, slots: u32, pages_per_slot: u32) -> PageFile {
    let fs: Arc<dyn Fs> = Arc::new(fs.clone());
    let shape = AreaShape { slots, pages_per_slot };
    PageFile::create_with(Arc::clone(&fs), DIR.as_ref(), SIZE, 0, shape).unwrap();
    let file = PageFile::open(fs, DIR.as_ref(), SIZE).unwrap();
    assert_eq!(file.repair().unwrap(), []);
    file.new_pages.begin_at(u64::MAX); // As if the file had contained all pages.
    file
}

fn reopen(fs: &FaultFs) -> PageFile {
    PageFile::open(Arc::new(fs.clone()), DIR.as_ref(), SIZE).unwrap()
}

fn open_as(fs: &FaultFs, covered: u64) -> Result<PageFile, StoreError> {
    let identity = Identity { database_id: 0, covered };
    PageFile::open_as(Arc::new(fs.clone()), DIR.as_ref(), SIZE, identity, PageAccess::default())
}

/// Returns the offset of a page in the file.
const fn place(id: u64) -> u64 {
    (id + 1) * SIZE as u64
}

fn damage(fs: &FaultFs, id: u64) {
    fs.corrupt("db/pages".as_ref(), place(id) + 512, 512, 1).unwrap();
}

/// Returns the last byte of a page; 0 if the page was never written.
fn fill_of(file: &PageFile, id: u64) -> Result<u8, StoreError> {
    let mut out = vec![0; SIZE + 8];
    let at = 8 - out.as_ptr().addr() % 8; // Memory that is not aligned for direct reads.
    match file.read_page(PageId(id), &mut out[at..at + SIZE]) {
        Ok(()) => Ok(out[at + SIZE - 1]),
        Err(StoreError::Unwritten { page, .. }) if page == PageId(id) => Ok(0),
        Err(error) => Err(error),
    }
}

#[test]
fn pages_are_read_back_from_every_file_system() {
    let scratch = tempfile::tempdir().unwrap();
    let real = |name: &str| (Arc::new(OsFs::new()) as Arc<dyn Fs>, scratch.path().join(name));
    let aligned = || (Arc::new(FaultFs::with_alignment(512)) as Arc<dyn Fs>, PathBuf::from(DIR));
    let systems = [
        (real("buffered"), PageAccess::Buffered),
        (real("direct"), PageAccess::Direct),
        ((Arc::new(MemFs::new()), DIR.into()), PageAccess::Direct),
        (aligned(), PageAccess::Buffered),
        (aligned(), PageAccess::Direct),
    ];
    for ((fs, dir), access) in systems {
        let dir = &*dir;
        PageFile::create(Arc::clone(&fs), dir, SIZE).unwrap();
        let file = PageFile::open_with(Arc::clone(&fs), dir, SIZE, access).unwrap();
        if access == PageAccess::Buffered {
            assert!(!file.pages.file.is_direct());
        }
        let mut batch: Vec<_> = (0..150).rev().map(|id| page(id * 3 % 151, id as u8 + 1)).collect();
        file.write_pages(&mut batch).unwrap();
        file.sync().unwrap();
        let order: Vec<_> = batch.iter().map(|(id, _)| id.0).collect();
        assert_eq!(
            order,
            (0..150).rev().map(|id| id * 3 % 151).collect::<Vec<_>>(),
            "the batch keeps its order"
        );
        drop(file);
        let file = PageFile::open_with(fs, dir, SIZE, access).unwrap();
        assert_eq!(file.repair().unwrap(), []);
        for id in 0..150 {
            assert_eq!(fill_of(&file, id * 3 % 151).unwrap(), id as u8 + 1, "{fs:?}", fs = file.pages);
        }
        for beyond in [200, 1 << 30, u64::MAX / 4096, u64::MAX] {
            assert_eq!(fill_of(&file, beyond).unwrap(), 0, "page {beyond} was never written");
        }
    }
}

#[test]
fn pages_come_into_words_as_they_come_into_bytes() {
    let scratch = tempfile::tempdir().unwrap();
    let systems: [(Arc<dyn Fs>, &Path); 2] =
        [(Arc::new(OsFs::new()), scratch.path()), (Arc::new(FaultFs::with_alignment(512)), DIR.as_ref())];
    for (fs, dir) in systems {
        PageFile::create(Arc::clone(&fs), dir, SIZE).unwrap();
        let file = PageFile::open(Arc::clone(&fs), dir, SIZE).unwrap();
        file.write_pages(&mut (0..20).map(|id| page(id, id as u8 + 1)).collect::<Vec<_>>()).unwrap();
        let room = file.page_count() + 2;
        let memory = crate::memory::PageMemory::zeroed(1, 9 * SIZE);
        let run = |at: usize| PageWords::new(&memory.buffer(0)[at..][..SIZE / 8]);
        // Buffers that are aligned for a direct read, and buffers that are not.
        for skipped in [0, 1] {
            let words: Vec<PageWords<'_>> = (0..8).map(|n| run(skipped + n * SIZE / 8)).collect();
            let fills =
                |words: &[PageWords<'_>]| words.iter().map(|words| words.u8(SIZE - 1)).collect::<Vec<_>>();
            file.read_words(PageId(3), &words).unwrap();
            assert_eq!(fills(&words), [4, 5, 6, 7, 8, 9, 10, 11]);
            file.read_words(PageId(19), &words[5..6]).unwrap();
            assert_eq!(fills(&words), [4, 5, 6, 7, 8, 20, 10, 11]);
            for (beyond, words) in [(room - 1, &words[..2]), (u64::MAX / SIZE as u64, &words[6..])] {
                let unwritten = file.read_words(PageId(beyond), words).unwrap_err();
                assert!(matches!(unwritten, StoreError::Unwritten { page, .. } if page.0 == beyond));
            }
        }
        drop(file);
        let handle = fs.open(&dir.join(PageFile::NAME), OpenOptions::new()).unwrap();
        handle.write_at(place(5) + 100, b"damage").unwrap();
        let file = PageFile::open(fs, dir, SIZE).unwrap();
        let words: Vec<PageWords<'_>> = (0..3).map(|n| run(n * SIZE / 8)).collect();
        let damaged = file.read_words(PageId(4), &words);
        assert!(matches!(damaged, Err(StoreError::Corrupt { page: PageId(5), .. })), "{damaged:?}");
        file.read_words(PageId(6), &words).unwrap();
    }
}

#[test]
fn neighbors_are_written_together_and_the_area_once() {
    let fs = FaultFs::new();
    let file = create(&fs, 2, 8);
    file.write_pages(&mut [page(40, 1)]).unwrap(); // The file grows.
    let before = (fs.io_count_of(IoKind::WriteAt), fs.io_count_of(IoKind::WriteAtSync));
    file.write_pages(&mut [page(7, 1), page(3, 1), page(8, 1), page(4, 1), page(5, 1)]).unwrap();
    assert_eq!(fs.io_count_of(IoKind::WriteAt) - before.0, 2, "3, 4, 5 and 7, 8");
    assert_eq!(fs.io_count_of(IoKind::WriteAtSync) - before.1, 1);
}

#[test]
fn a_slot_is_reused_only_after_a_sync() {
    let fs = FaultFs::new();
    let file = create(&fs, 3, 4);
    let before = fs.io_count_of(IoKind::Sync);
    for fill in 0..3 {
        file.write_pages(&mut [page(1, fill)]).unwrap();
    }
    assert_eq!(fs.io_count_of(IoKind::Sync) - before, 0);
    for fill in 0..3 {
        file.write_pages(&mut [page(1, fill)]).unwrap();
    }
    assert_eq!(fs.io_count_of(IoKind::Sync) - before, 1, "one sync frees all slots");
    file.sync().unwrap();
    file.sync().unwrap();
    assert_eq!(fs.io_count_of(IoKind::Sync) - before, 2, "nothing was written in between");
}

#[test]
fn w12_a_torn_page_is_repaired_from_its_newest_copy() {
    let fs = FaultFs::new();
    let file = create(&fs, 4, 4);
    for fill in 1..=3 {
        file.write_pages(&mut [page(5, fill), page(6, fill)]).unwrap();
    }
    damage(&fs, 5);
    let file = reopen(&fs);
    assert!(matches!(fill_of(&file, 5), Err(StoreError::Corrupt { page: PageId(5), offset: 24576, .. })));
    assert_eq!(file.repair().unwrap(), [PageId(5)]);
    assert_eq!(file.repair().unwrap(), [], "once");
    assert_eq!(fill_of(&file, 5).unwrap(), 3);
    assert_eq!(fill_of(&file, 6).unwrap(), 3);
}

#[test]
fn the_first_write_repairs_an_unrepaired_file() {
    let fs = FaultFs::new();
    create(&fs, 1, 4).write_pages(&mut [page(5, 9)]).unwrap();
    damage(&fs, 5);
    let file = reopen(&fs);
    file.write_pages(&mut [page(6, 1)]).unwrap(); // Uses the only slot.
    assert_eq!(fill_of(&file, 5).unwrap(), 9);
}

#[test]
fn a_damaged_copy_repairs_nothing() {
    let fs = FaultFs::new();
    create(&fs, 1, 4).write_pages(&mut [page(5, 9)]).unwrap();
    damage(&fs, 5);
    fs.corrupt("db/dw".as_ref(), 4096 + 4096 + 2000, 1, 1).unwrap();
    let file = reopen(&fs);
    assert_eq!(file.repair().unwrap(), []);
    let error = fill_of(&file, 5).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { page: PageId(5), .. }));
    assert!(error.to_string().starts_with("page 5 at offset 24576 of db/pages is damaged"), "{error}");
}

#[test]
fn dw4_an_old_copy_under_a_new_head_is_not_used() {
    let fs = FaultFs::new();
    let file = create(&fs, 1, 4);
    file.write_pages(&mut [page(5, 1)]).unwrap();
    let old = fs.contents("db/dw".as_ref()).unwrap();
    file.sync().unwrap();
    file.write_pages(&mut [page(5, 2)]).unwrap();
    drop(file);
    // The head of the second batch, with the page of the first batch.
    let dw = fs.open("db/dw".as_ref(), OpenOptions::new()).unwrap();
    dw.write_at(8192, &old[8192..12288]).unwrap();
    damage(&fs, 5);
    let file = reopen(&fs);
    assert_eq!(file.repair().unwrap(), []);
    assert!(fill_of(&file, 5).is_err());
}

#[test]
fn a_file_of_another_page_size_or_with_a_damaged_head_is_refused() {
    let fs = FaultFs::new();
    drop(create(&fs, 1, 4));
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let wrong = PageFile::open(Arc::clone(&shared), DIR.as_ref(), 8192).unwrap_err();
    assert_eq!(wrong.to_string(), "db/pages: page size is 4096, not 8192");
    assert!(PageFile::create(Arc::clone(&shared), DIR.as_ref(), 8192).is_err());
    let none = PageFile::open(Arc::clone(&shared), DIR.as_ref(), 5000).unwrap_err();
    assert!(matches!(none, StoreError::Refused { what: "page size", found: 5000, .. }));
    fs.corrupt("db/pages".as_ref(), 16, 1, 1).unwrap();
    let damaged = PageFile::open(Arc::clone(&shared), DIR.as_ref(), SIZE).unwrap_err();
    assert!(matches!(damaged, StoreError::Refused { what: "checksum of the head", .. }), "{damaged}");
    let missing = PageFile::open(shared, "nowhere".as_ref(), SIZE).unwrap_err();
    assert!(matches!(&missing, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound));
}

#[test]
fn a_cut_off_page_at_the_end_counts_as_zeroes_from_there() {
    let fs = FaultFs::new();
    let file = create(&fs, 2, 4);
    file.write_pages(&mut [page(2, 7)]).unwrap();
    drop(file);
    let pages = fs.open("db/pages".as_ref(), OpenOptions::new()).unwrap();
    pages.set_len(place(2) + 1024).unwrap();
    let file = reopen(&fs);
    assert_eq!(file.page_count(), 3);
    assert_eq!(file.repair().unwrap(), [PageId(2)]);
    drop(file);
    let pages = fs.open("db/pages".as_ref(), OpenOptions::new()).unwrap();
    pages.set_len(4096).unwrap();
    let file = reopen(&fs);
    assert_eq!(file.repair().unwrap(), [PageId(2)], "beyond the end");
    assert_eq!(fill_of(&file, 2).unwrap(), 7);
    file.write_pages(&mut [page(3, 8)]).unwrap();
    assert_eq!(fill_of(&file, 3).unwrap(), 8);
}

#[test]
fn the_file_grows_in_steps_and_leaves_a_hole_before_a_far_page() {
    let fs = FaultFs::new();
    let file = create(&fs, 2, 4);
    let mut counts = vec![file.page_count()];
    for id in 0..8192 {
        if id == file.page_count() {
            file.write_pages(&mut [page(id, 1)]).unwrap();
            counts.push(file.page_count());
        }
    }
    assert_eq!(counts, [0, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 6144, 8192]);
    file.write_pages(&mut [page(1 << 20, 5)]).unwrap();
    let zeroes = fs.last_ios().into_iter().rev().find(|io| io.kind == IoKind::WriteZeroes).unwrap();
    assert_eq!(zeroes.len, MOST_ZEROES);
    assert_eq!(fill_of(&file, 1 << 20).unwrap(), 5);
    assert_eq!(fill_of(&file, 9000).unwrap(), 0);
    let error = file.write_pages(&mut [page(u64::MAX / 2, 1)]).unwrap_err();
    assert!(matches!(error, StoreError::Io { page: Some(_), .. }), "{error}");
    file.write_pages(&mut [page(1, 1)]).unwrap();
}

#[test]
fn a_full_disk_refuses_growth_and_heals() {
    let fs = FaultFs::new();
    let file = create(&fs, 2, 4);
    file.write_pages(&mut [page(0, 1)]).unwrap();
    fs.full_from(1);
    let error = file.write_pages(&mut [page(1000, 1)]).unwrap_err();
    assert!(matches!(&error, StoreError::Io { action: "make room for", .. }), "{error}");
    file.write_pages(&mut [page(0, 2)]).unwrap();
    file.sync().unwrap();
    fs.heal();
    file.write_pages(&mut [page(1000, 1)]).unwrap();
    assert_eq!((fill_of(&file, 0).unwrap(), fill_of(&file, 1000).unwrap()), (2, 1));
}

#[test]
fn a_limit_of_file_sizes_refuses_growth_only() {
    let file = create(&FaultFs::new(), 2, 4);
    assert!(file.write_pages(&mut [page(1 << 25, 1)]).is_err(), "longer than a file can be");
    file.write_pages(&mut [page(0, 2)]).unwrap();
}

#[test]
fn fresh_pages_are_written_once_and_make_the_file_longer() {
    let fs = FaultFs::new();
    let file = create(&fs, 2, 4);
    file.write_pages(&mut [page(3, 1)]).unwrap();
    file.sync().unwrap();
    let (end, before) = (file.page_count(), fs.io_count());
    let mut batch: Vec<_> = (0..100).rev().map(|i| page(end - 10 + i, i as u8 + 1)).collect();
    file.write_fresh(&mut batch).unwrap();
    assert_eq!(fs.io_count() - before, 2, "no zeroes to write, and one run: {:?}", fs.last_ios());
    file.write_pages(&mut [page(end + 200, 7)]).unwrap();
    file.sync().unwrap();
    let file = reopen(&fs.crash_losing_all());
    file.repair().unwrap();
    for i in 0..100 {
        assert_eq!(fill_of(&file, end - 10 + i).unwrap(), i as u8 + 1, "neither lost nor grown over");
    }
    assert_eq!((fill_of(&file, end + 100).unwrap(), fill_of(&file, end + 200).unwrap()), (0, 7));
}

#[test]
fn a_crash_tears_only_the_fresh_pages_that_no_sync_covered() {
    for seed in 0..40 {
        let fs = FaultFs::new();
        let file = create(&fs, 2, 4);
        file.write_pages(&mut (0..12).map(|id| page(id, 1)).collect::<Vec<_>>()).unwrap();
        file.write_fresh(&mut (20..40).map(|id| page(id, 2)).collect::<Vec<_>>()).unwrap();
        file.sync().unwrap();
        file.write_fresh(&mut (4..8).chain(50..60).map(|id| page(id, 3)).collect::<Vec<_>>()).unwrap();
        file.write_pages(&mut [page(9, 4), page(21, 4)]).unwrap();
        let file = reopen(&fs.crash(seed));
        file.repair().unwrap();
        for id in (0..4).chain(8..12).chain(20..40) {
            let fill = fill_of(&file, id).unwrap_or_else(|error| panic!("seed {seed}, page {id}: {error}"));
            let new = if [9, 21].contains(&id) { 4 } else { 0 };
            assert!(fill == new || fill == if id < 20 { 1 } else { 2 }, "seed {seed}, page {id}: {fill}");
        }
        // A page with any content can be written like any other page.
        file.write_pages(&mut (4..8).map(|id| page(id, 5)).collect::<Vec<_>>()).unwrap();
        assert!((4..8).all(|id| fill_of(&file, id).unwrap() == 5), "seed {seed}");
    }
}

#[test]
fn w10_a_fresh_write_that_fails_ends_the_store_and_one_without_space_does_not() {
    let fs = FaultFs::new();
    let file = create(&fs, 2, 4);
    file.write_pages(&mut [page(0, 1)]).unwrap();
    fs.full_from(1);
    let far = 5000;
    let error = file.write_fresh(&mut [page(far, 1)]).unwrap_err();
    assert!(matches!(&error, StoreError::Io { action: "write", .. }), "{error}");
    fs.heal();
    file.write_fresh(&mut [page(far, 2)]).unwrap();
    file.sync().unwrap();
    fs.fail_at(1, FailKind::Io);
    assert!(file.write_fresh(&mut [page(far, 3)]).is_err());
    for error in [file.sync().unwrap_err(), file.write_fresh(&mut [page(far, 4)]).unwrap_err()] {
        assert!(matches!(error, StoreError::Failed { .. }), "{error}");
    }
}

#[test]
fn w10_after_a_failed_sync_writes_are_refused_and_reads_continue() {
    let fs = FaultFs::new();
    let file = create(&fs, 4, 4);
    file.write_pages(&mut [page(1, 1)]).unwrap();
    fs.fail_at(1, FailKind::Io);
    let first = file.sync().unwrap_err();
    assert!(matches!(first, StoreError::Io { action: "sync", .. }));
    let count = fs.io_count();
    for error in [file.sync().unwrap_err(), file.write_pages(&mut [page(2, 1)]).unwrap_err()] {
        assert!(matches!(error.root(), StoreError::Io { action: "sync", .. }), "{error}");
        assert!(matches!(error, StoreError::Failed { .. }));
    }
    assert_eq!(fs.io_count(), count);
    assert_eq!(fill_of(&file, 1).unwrap(), 1);
}

#[test]
fn a_failed_read_is_repeated() {
    let fs = FaultFs::new();
    let file = create(&fs, 4, 4);
    file.write_pages(&mut [page(1, 1)]).unwrap();
    fs.fail_read_at(1);
    assert!(matches!(fill_of(&file, 1), Err(StoreError::Io { page: Some(PageId(1)), .. })));
    assert_eq!(fill_of(&file, 1).unwrap(), 1);
    reopen(&fs).write_pages(&mut [page(1, 2)]).unwrap();
}

#[test]
fn pages_that_follow_each_other_are_read_by_one_access_and_verified_each() {
    let fs = FaultFs::with_alignment(512);
    let file = create(&fs, 2, 8);
    let mut batch: Vec<_> = (0..8).map(|id| page(id, id as u8 + 1)).collect();
    file.write_pages(&mut batch).unwrap();
    file.sync().unwrap();
    let before = fs.read_count();
    let mut out = PageBuf::zeroed(6 * SIZE);
    file.read_pages(PageId(2), SIZE, &mut out).unwrap();
    let fills = |out: &[u8]| out.chunks(SIZE).map(|page| page[SIZE - 1]).collect::<Vec<u8>>();
    assert_eq!((fills(&out), fs.read_count() - before), (vec![3, 4, 5, 6, 7, 8], 1));
    let end = file.page_count();
    for beyond in [end - 1, end + 5, u64::MAX / 4096, u64::MAX] {
        let error = file.read_pages(PageId(beyond), SIZE, &mut out).unwrap_err();
        assert!(matches!(error, StoreError::Unwritten { page, .. } if page.0 == beyond), "{error}");
    }
    damage(&fs, 4);
    let error = file.read_pages(PageId(2), SIZE, &mut out).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { page: PageId(4), offset: 20480, .. }), "{error}");
}

#[test]
fn dw8_a_copy_that_a_checkpoint_covered_repairs_nothing() {
    let fs = FaultFs::new();
    let file = create(&fs, 4, 4);
    file.write_pages(&mut [page(5, 1)]).unwrap();
    file.write_pages(&mut [page(5, 2), page(6, 2)]).unwrap();
    let covered = file.sync_for_checkpoint().unwrap();
    assert_eq!(covered, 2);
    file.write_pages(&mut [page(6, 3)]).unwrap();
    // A later sync without a checkpoint makes no difference.
    file.sync().unwrap();
    damage(&fs, 5);
    damage(&fs, 6);
    let file = open_as(&fs, covered).unwrap();
    assert_eq!(file.repair().unwrap(), [PageId(6)]);
    assert_eq!(fill_of(&file, 6).unwrap(), 3);
    let error = fill_of(&file, 5).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { page: PageId(5), .. }), "{error}");
    file.write_pages(&mut [page(6, 4)]).unwrap();
    assert_eq!(file.sync_for_checkpoint().unwrap(), 4, "numbers go on (DW-5)");
}

#[test]
fn dw9_a_page_that_cannot_be_read_is_repaired_and_an_unreadable_area_is_no_error() {
    let written = |covered: bool| {
        let fs = FaultFs::new();
        let file = create(&fs, 2, 4);
        file.write_pages(&mut [page(5, 7)]).unwrap();
        let covered = if covered { file.sync_for_checkpoint().unwrap() } else { 0 };
        drop(file);
        (fs, covered)
    };
    // The reads of an opening: both heads, then the heads of the slots and the slot, then the page.
    let (fs, _) = written(false);
    let file = reopen(&fs);
    let reads = fs.read_count();
    fs.fail_read_at(4);
    assert_eq!(file.repair().unwrap(), [PageId(5)], "{} reads", fs.read_count() - reads);
    assert_eq!(fill_of(&file, 5).unwrap(), 7);
    for failing in 1..=3 {
        let (fs, covered) = written(true);
        fs.fail_read_at(failing + 1); // Not the page file's head.
        let file = open_as(&fs, covered).unwrap();
        assert_eq!(file.repair().unwrap(), []);
        assert_eq!(fill_of(&file, 5).unwrap(), 7);
        file.write_pages(&mut [page(5, 8)]).unwrap();
        damage(&fs, 5);
        let file = open_as(&fs, covered).unwrap();
        assert_eq!(file.repair().unwrap(), [PageId(5)], "copies count again");
        assert_eq!(fill_of(&file, 5).unwrap(), 8);
    }
}

#[test]
fn dw9_a_damaged_missing_or_foreign_area_is_created_again() {
    let dw = Path::new("db/dw");
    let changes: [fn(&FaultFs); 4] = [
        |fs| fs.corrupt("db/dw".as_ref(), 0, 512, 1).unwrap(),
        |fs| fs.open("db/dw".as_ref(), OpenOptions::new()).unwrap().set_len(5000).unwrap(),
        |fs| fs.remove_file("db/dw".as_ref()).unwrap(),
        |fs| {
            let other = Arc::new(FaultFs::new());
            PageFile::create_with(
                Arc::clone(&other) as _,
                DIR.as_ref(),
                SIZE,
                9,
                AreaShape::for_page_size(SIZE),
            )
            .unwrap();
            let identity = Identity { database_id: 9, covered: 0 };
            let file = PageFile::open_as(
                Arc::clone(&other) as _,
                DIR.as_ref(),
                SIZE,
                identity,
                PageAccess::default(),
            )
            .unwrap();
            file.repair().unwrap();
            file.new_pages.begin_at(u64::MAX);
            file.write_pages(&mut [page(5, 99)]).unwrap();
            let bytes = other.contents("db/dw".as_ref()).unwrap();
            fs.open("db/dw".as_ref(), OpenOptions::new()).unwrap().write_at(0, &bytes).unwrap();
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let fs = FaultFs::new();
        let file = create(&fs, 8, 16);
        file.write_pages(&mut [page(5, 7), page(6, 7)]).unwrap();
        drop(file);
        damage(&fs, 5);
        change(&fs);
        let file = reopen(&fs);
        let repaired = file.repair().unwrap();
        assert_ne!(fill_of(&file, 5).unwrap_or(7), 99, "change {number}: of another store");
        assert_eq!(fill_of(&file, 6).unwrap(), 7, "change {number}");
        // A damaged head hides no slot: the default shape is tried.
        assert!(repaired.is_empty() || number == 0, "change {number}: {repaired:?}");
        file.write_pages(&mut [page(6, 8)]).unwrap();
        assert!(fs.contents(dw).unwrap().len() > SIZE);
        damage(&fs, 6);
        let file = reopen(&fs);
        file.repair().unwrap();
        assert_eq!(fill_of(&file, 6).unwrap(), 8, "change {number}: copies count again");
    }
}

#[test]
fn a_page_of_zeroes_is_damage_and_is_repaired_from_a_copy_that_counts() {
    for is_covered in [false, true] {
        let fs = FaultFs::new();
        let file = create(&fs, 2, 4);
        file.write_pages(&mut [page(0, 7), page(1, 7)]).unwrap();
        let covered = if is_covered { file.sync_for_checkpoint().unwrap() } else { 0 };
        drop(file);
        let pages = fs.open("db/pages".as_ref(), OpenOptions::new()).unwrap();
        pages.write_at(place(0), &[0; SIZE]).unwrap();
        let file = open_as(&fs, covered).unwrap();
        file.repair().unwrap();
        let mut out = PageBuf::zeroed(SIZE);
        match file.read_page(PageId(0), &mut out) {
            Ok(()) => assert!(!is_covered && out[SIZE - 1] == 7),
            Err(error) => {
                assert!(is_covered);
                let report = "page 0 at offset 4096 of db/pages is damaged: it holds zeroes only";
                assert!(error.to_string().starts_with(report), "{error}");
            }
        }
    }
}

#[test]
fn a_page_file_of_an_earlier_checkpoint_or_of_another_store_is_refused() {
    let fs = FaultFs::new();
    let file = create(&fs, 2, 4);
    file.write_pages(&mut [page(1, 1)]).unwrap();
    file.sync_for_checkpoint().unwrap();
    let old = fs.contents("db/pages".as_ref()).unwrap();
    // Pages without copies count as well.
    file.write_fresh(&mut [page(2, 2)]).unwrap();
    let covered = file.sync_for_checkpoint().unwrap();
    drop(file);
    drop(open_as(&fs, covered).unwrap());
    fs.open("db/pages".as_ref(), OpenOptions::new()).unwrap().write_at(0, &old).unwrap();
    let stale = open_as(&fs, covered).unwrap_err();
    assert!(matches!(stale, StoreError::Stale { found: 1, expected: 2, .. }), "{stale}");
    let identity = Identity { database_id: 3, covered: 0 };
    let other =
        PageFile::open_as(Arc::new(fs), DIR.as_ref(), SIZE, identity, PageAccess::default()).unwrap_err();
    assert!(matches!(other, StoreError::Refused { what: "database id", .. }), "{other}");
}

#[test]
fn a_read_across_pages_verifies_only_those_that_are_wanted() {
    let scratch = tempfile::tempdir().unwrap();
    let access = [(PageAccess::Buffered, "buffered"), (PageAccess::Direct, "direct")];
    for (access, name) in access {
        let dir = &*scratch.path().join(name);
        let counting = Arc::new(azekura_io::CountingFs::new(Arc::new(OsFs::new())));
        let fs = Arc::clone(&counting) as Arc<dyn Fs>;
        PageFile::create(Arc::clone(&fs), dir, SIZE).unwrap();
        let file = PageFile::open_with(Arc::clone(&fs), dir, SIZE, access).unwrap();
        file.write_pages(&mut (0..10).map(|id| page(id, id as u8 + 1)).collect::<Vec<_>>()).unwrap();
        // Page 4 is zeroed.
        let damaged = PageBuf::zeroed(SIZE);
        file.pages.file.write_at(place(4), &damaged).unwrap();
        let memory = crate::memory::PageMemory::zeroed(10, SIZE);
        let read = |first: u64, wanted: &[bool]| {
            let words = |nth: u32| PageWords::new(memory.buffer(nth));
            let out: Vec<_> = (0..).zip(wanted).map(|(nth, is)| is.then(|| words(nth))).collect();
            let before = counting.counts().reads;
            let done = file.read_across(PageId(first), &out);
            (done, counting.counts().reads - before)
        };
        let (done, reads) = read(1, &[true, true, false, false, false, true]);
        assert!(done.is_ok() && reads == 1, "{done:?}, {reads} reads");
        for (nth, id) in [(0, 1), (1, 2), (5, 6)] {
            assert!(PageWords::new(memory.buffer(nth)).is_intact(PageId(id)));
        }
        let (done, _) = read(1, &[true, false, false, true, true]);
        assert!(matches!(done, Err(StoreError::Unwritten { page: PageId(4), .. })), "{done:?}");
        let end = file.page_count();
        let (done, _) = read(end - 1, &[false, true]);
        assert!(matches!(done, Err(StoreError::Unwritten { page, .. }) if page.0 == end), "{done:?}");
        file.will_read(PageId(0), 10);
        file.will_read(PageId(u64::MAX), 1);
    }
}
