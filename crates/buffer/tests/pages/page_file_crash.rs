//! W12, W10: the power is cut at every I/O of a random workload on a page file, and again during the repair;
//! also every call fails once. Afterward each page is one of the images written since the last successful
//! sync, or the image before them. A page is never a mixture, and never older than a sync guarantees. A page
//! that the file did not have at the last checkpoint may be a mixture until a sync (NEW-1). No page is
//! rejected as outdated (MAP-1).
#![cfg(not(loom))]

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use azekura_base::{PageBuf, PageId};
use azekura_buffer::page_file::{AreaShape, PageAccess, PageFile};
use azekura_buffer::store::{PageStore, StoreError};
use azekura_io::{CountingFs, FailKind, FaultFs, Fs, MemFs, OpenOptions, is_power_cut};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

const SIZE: usize = 4096;
const DIR: &str = "db";
/// Few small slots: they are reused all the time, and batches are split.
const SHAPE: AreaShape = AreaShape { slots: 3, pages_per_slot: 4 };
/// Pages from this one on are written as fresh pages.
const FRESH: u64 = 1000;

/// The possible contents of a page: the numbers of its images from the last durable one on (0: never
/// written).
#[derive(Clone, Debug, Default)]
struct Expected {
    pages: BTreeMap<u64, (u64, u64)>,
    next: u64,
    /// The file contained all pages below this one when it was opened.
    base: u64,
    /// Pages from `base` on that were written, and those first written since the last checkpoint.
    written: BTreeSet<u64>,
    new: BTreeSet<u64>,
    /// Pages with an image without a copy that no sync has covered: a crash may tear them.
    unprotected: BTreeSet<u64>,
}

impl Expected {
    /// Records that the file is open and repaired.
    fn opened(&mut self, file: &PageFile) {
        self.base = file.page_count();
        self.written.clear();
        self.new.clear();
    }

    /// Returns the next image of a page.
    fn write(&mut self, id: u64) -> (PageId, PageBuf) {
        if id >= self.base && self.written.insert(id) {
            self.new.insert(id);
        }
        if self.new.contains(&id) {
            self.unprotected.insert(id);
        }
        self.next_image(id)
    }

    /// Returns the next image of a fresh page.
    fn write_fresh(&mut self, id: u64) -> (PageId, PageBuf) {
        self.written.insert(id);
        self.unprotected.insert(id);
        self.next_image(id)
    }

    fn next_image(&mut self, id: u64) -> (PageId, PageBuf) {
        self.next += 1;
        self.pages.entry(id).or_default().1 = self.next;
        (PageId(id), image_of(id, self.next))
    }

    /// Records that a sync succeeded while no write was running.
    fn promise_all(&mut self) {
        self.unprotected.clear();
        self.pages.values_mut().for_each(|(promised, newest)| *promised = *newest);
    }

    /// Reads every page. The next check must find neither older nor newer images than this one.
    fn check(&mut self, file: &PageFile, what: &str) {
        let mut torn = Vec::new();
        for (&id, (promised, newest)) in &mut self.pages {
            let mut out = PageBuf::zeroed(SIZE);
            match file.read_page(PageId(id), &mut out) {
                Ok(()) => {}
                Err(StoreError::Unwritten { .. }) => out.fill(0),
                Err(StoreError::Corrupt { .. }) if self.unprotected.contains(&id) && promised < newest => {
                    torn.push(id);
                    continue;
                }
                Err(error) => panic!("{what}: {error}"),
            }
            let number = number_of(&out);
            assert!(number == 0 || *out == *sealed(id, number), "{what}: page {id} is a mixture");
            assert!(
                *promised <= number && number <= *newest,
                "{what}: page {id} is image {number}, promised {promised}, newest {newest}"
            );
            *newest = number;
            // A repair does not make the page durable if there is no copy of it.
            if !self.unprotected.contains(&id) {
                *promised = number;
            }
        }
        self.pages.retain(|id, _| !torn.contains(id));
    }
}

/// Returns image `number` of a page, different in every sector. Page LSNs mostly rise from image to image,
/// except when a restart writes a page from an old record.
fn image_of(id: u64, number: u64) -> PageBuf {
    let mut page = PageBuf::zeroed(SIZE);
    let mut random = StdRng::seed_from_u64(number << 20 ^ id);
    random.fill(&mut page[24..]);
    page[8..16].copy_from_slice(&id.to_le_bytes());
    let lsn = if number.is_multiple_of(6) { number / 2 } else { number };
    page[16..24].copy_from_slice(&lsn.to_le_bytes());
    page[24..32].copy_from_slice(&number.to_le_bytes());
    page
}

fn sealed(id: u64, number: u64) -> PageBuf {
    let mut page = image_of(id, number);
    azekura_base::page::image::seal(&mut page);
    page
}

fn number_of(page: &[u8]) -> u64 {
    page[24..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns a disk on which direct files have an alignment.
fn empty_disk() -> FaultFs {
    FaultFs::with_alignment(512)
}

/// Opens the file, alternately with buffered and with direct access: each must read the writes of the other.
fn open(fs: &FaultFs) -> Result<PageFile, StoreError> {
    thread_local! { static OPENINGS: Cell<u32> = const { Cell::new(0) } }
    OPENINGS.set(OPENINGS.get() + 1);
    let access = if OPENINGS.get().is_multiple_of(2) { PageAccess::Direct } else { PageAccess::Buffered };
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    PageFile::create_with(Arc::clone(&shared), Path::new(DIR), SIZE, 0, SHAPE)?;
    PageFile::open_with(shared, Path::new(DIR), SIZE, access)
}

/// Creates or opens the file, writes batches, syncs and reopens, as the seed determines, until all steps are
/// done or an error occurs.
fn work(fs: &FaultFs, seed: u64, steps: u64, expected: &mut Expected) -> Result<(), StoreError> {
    let mut random = StdRng::seed_from_u64(seed);
    // Adjacent pages, distant pages, and two beyond the first growths.
    let mut ids: Vec<u64> = (0..10).chain([17, 40, 255, 256, 600]).collect();
    let mut file = open(fs)?;
    file.repair()?;
    expected.opened(&file);
    for _ in 0..steps {
        match random.random_range(0..20) {
            0..=1 => {
                file.sync()?;
                expected.promise_all();
            }
            2 => {
                file = open(fs)?;
                file.repair()?;
                expected.promise_all(); // Opening syncs.
                expected.opened(&file);
            }
            3..=5 => {
                expected.new.clear();
                file.sync_for_checkpoint()?;
                expected.promise_all();
                // Pages of a bulk load are changed once they are durable, and then they have copies.
                let loaded: Vec<u64> = expected.pages.range(FRESH..).map(|(&id, _)| id).collect();
                if !loaded.is_empty() && random.random() {
                    let mut batch: Vec<_> = loaded.iter().map(|&id| expected.write(id)).collect();
                    file.write_pages(&mut batch)?;
                }
            }
            6..=7 => {
                let first = FRESH + random.random_range(0..4);
                let mut batch: Vec<_> = (first..first + 2).map(|id| expected.write_fresh(id)).collect();
                file.write_fresh(&mut batch)?;
            }
            _ => {
                ids.shuffle(&mut random);
                let count = random.random_range(1..7);
                let mut batch: Vec<_> = ids[..count].iter().map(|&id| expected.write(id)).collect();
                file.write_pages(&mut batch)?;
            }
        }
    }
    Ok(())
}

/// Repairs a disk after a crash, interrupts the repair at each I/O, and repairs again.
fn repair_and_check(fs: &FaultFs, expected: &Expected, seed: u64, what: &str) {
    let whole = repair_once(fs.crash_keeping_all(), &mut expected.clone(), what);
    for cut in 1..=whole {
        let disk = fs.crash_keeping_all(); // A copy on which all writes are durable.
        disk.cut_power_at(cut);
        let error = open(&disk).and_then(|file| file.repair()).expect_err("the power is cut");
        assert!(is_power_cut(&error), "{what}: {error}");
        let what = format!("{what}, repair cut at {}", disk.describe_io(cut));
        repair_once(disk.crash(seed ^ cut), &mut expected.clone(), &what);
    }
}

/// Repairs and checks, and checks again after a power loss that loses all writes that it may. Returns the
/// number of I/Os.
fn repair_once(disk: FaultFs, expected: &mut Expected, what: &str) -> u64 {
    let file = open(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    file.repair().unwrap_or_else(|error| panic!("{what}: {error}"));
    let ios = disk.io_count();
    expected.check(&file, what);
    let again = disk.crash_losing_all();
    let file = open(&again).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(
        file.repair().unwrap_or_else(|error| panic!("{what}: {error}")),
        [],
        "{what}: it was repaired"
    );
    expected.check(&file, &format!("{what}, and lost what was not synced"));
    ios
}

#[test]
fn w12_no_page_is_torn_or_older_than_its_durable_lsn_after_a_power_loss() {
    for seed in 0..3 {
        let whole = FaultFs::with_alignment(512);
        work(&whole, seed, 40, &mut Expected::default()).unwrap();
        for cut in 1..=whole.io_count() {
            let fs = FaultFs::with_alignment(512);
            fs.cut_power_at(cut);
            let mut expected = Expected::default();
            let error = work(&fs, seed, 40, &mut expected).expect_err("the power is cut");
            assert!(is_power_cut(&error), "{error}");
            for crash in 0..4 {
                let what = format!("workload {seed}, cut at {}, crash {crash}", fs.describe_io(cut));
                let disk = fs.crash(seed << 40 | cut << 8 | crash);
                repair_once(disk, &mut expected.clone(), &what);
            }
        }
    }
}

#[test]
fn a_repair_that_is_interrupted_anywhere_is_repeated_with_the_same_answer() {
    let seed = 77;
    let whole = empty_disk();
    work(&whole, seed, 25, &mut Expected::default()).unwrap();
    for cut in (1..=whole.io_count()).step_by(3) {
        let fs = empty_disk();
        fs.cut_power_at(cut);
        let mut expected = Expected::default();
        work(&fs, seed, 25, &mut expected).expect_err("the power is cut");
        for crash in 0..2 {
            let what = format!("workload {seed}, cut at {}, crash {crash}", fs.describe_io(cut));
            repair_and_check(&fs.crash(cut << 8 | crash), &expected, cut, &what);
        }
    }
}

#[test]
fn a_sequence_of_crashes_never_loses_a_durable_page() {
    for seed in 100..104 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut fs, mut expected) = (empty_disk(), Expected::default());
        for life in 0..40 {
            fs.cut_power_at(random.random_range(1..60));
            let done = work(&fs, random.random(), 20, &mut expected);
            let what = format!("seed {seed}, life {life}, after {done:?}");
            fs = fs.crash(random.random());
            let file = open(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
            file.repair().unwrap_or_else(|error| panic!("{what}: {error}"));
            expected.check(&file, &what);
        }
    }
}

#[test]
fn w10_the_first_failure_ends_all_writes_and_durable_pages_stay() {
    let seed = 5;
    let whole = empty_disk();
    work(&whole, seed, 30, &mut Expected::default()).unwrap();
    for failing in 1..=whole.io_count() {
        let fs = empty_disk();
        fs.fail_at(failing, FailKind::Io);
        let mut expected = Expected::default();
        let error = work(&fs, seed, 30, &mut expected).expect_err("an I/O failed");
        assert!(matches!(error, StoreError::Io { .. }), "{error}");
        let what = format!("failed at {}", fs.describe_io(failing));
        for crash in 0..3 {
            repair_once(fs.crash(failing << 8 | crash), &mut expected.clone(), &what);
        }
        repair_once(fs.crash_losing_all(), &mut expected.clone(), &what);
        // The process starts again, in a kernel that treats the bytes in its page cache as written to disk.
        repair_once(fs.kill(), &mut expected.clone(), &format!("{what}, killed"));
    }
}

#[test]
fn w10_a_store_whose_sync_failed_never_syncs_again() {
    for seed in 0..20 {
        let fs = empty_disk();
        let file = open(&fs).unwrap();
        let mut expected = Expected::default();
        file.write_pages(&mut [expected.write(1), expected.write(2)]).unwrap();
        file.sync().unwrap();
        expected.promise_all();
        file.write_pages(&mut [expected.write(2), expected.write(3)]).unwrap();
        fs.fail_at(1, FailKind::Io);
        assert!(matches!(file.sync(), Err(StoreError::Io { .. })));
        let ios = fs.io_count();
        assert!(matches!(file.sync(), Err(StoreError::Failed { .. })));
        assert!(matches!(file.write_pages(&mut [expected.write(9)]), Err(StoreError::Failed { .. })));
        assert_eq!(fs.io_count(), ios, "the device is not asked again");
        let mut out = PageBuf::zeroed(SIZE);
        file.read_page(PageId(3), &mut out).unwrap();
        repair_once(fs.crash(seed), &mut expected, &format!("seed {seed}"));
    }
}

#[test]
fn pages_written_by_concurrent_threads_survive_a_power_loss() {
    const THREADS: u64 = 5; // More threads than slots.
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let fs = empty_disk();
        let file = open(&fs).unwrap();
        fs.cut_power_at(random.random_range(1..150));
        let mut all = Expected::default();
        std::thread::scope(|scope| {
            let file = &file;
            let threads: Vec<_> =
                (0..THREADS).map(|t| scope.spawn(move || write_own_pages(file, t, seed))).collect();
            for thread in threads {
                let own = thread.join().unwrap();
                all.pages.extend(own.pages);
                all.unprotected.extend(own.unprotected);
            }
        });
        let what = format!("seed {seed}, cut at {}", fs.describe_io(fs.io_count()));
        repair_once(fs.crash(seed), &mut all.clone(), &what);
        repair_once(fs.crash_losing_all(), &mut all, &what);
    }
}

/// Writes the pages that are `thread` modulo 5, so that pages of different threads are adjacent.
fn write_own_pages(file: &PageFile, thread: u64, seed: u64) -> Expected {
    let mut random = StdRng::seed_from_u64(seed << 8 | thread);
    let mut expected = Expected::default();
    for _ in 0..40 {
        let written = if random.random_bool(0.2) {
            file.sync().map(|()| expected.promise_all())
        } else if random.random_bool(0.2) {
            file.sync_for_checkpoint().map(|_| expected.promise_all())
        } else {
            let first = random.random_range(0..6);
            let count = random.random_range(1..4);
            let mut batch: Vec<_> = (first..first + count).map(|n| expected.write(n * 5 + thread)).collect();
            file.write_pages(&mut batch)
        };
        if written.is_err() {
            break;
        }
    }
    expected
}

#[test]
fn a_lost_area_is_made_again_without_zeroes_beyond_its_end() {
    let fs = CountingFs::new(Arc::new(MemFs::new()));
    let (shared, dir): (Arc<dyn Fs>, _) = (Arc::new(fs.clone()), Path::new("db"));
    PageFile::create(Arc::clone(&shared), dir, 4096).unwrap();
    let area = fs.open(&dir.join(PageFile::DOUBLE_WRITE_NAME), OpenOptions::new()).unwrap();
    area.set_len(0).unwrap();
    area.set_len(64 << 20).unwrap();
    let file = PageFile::open(shared, dir, 4096).unwrap();
    assert_eq!(file.repair().unwrap(), []);
    assert!(fs.counts().bytes_written < 8 << 20, "{:?}", fs.counts());
}
