//! Power cuts at any call, failing calls (W10), full disks (W11), damage, and the counters of I/Os.
#![expect(clippy::unwrap_used, reason = "in a test, an unexpected error is a failure")]

use crate::common::{SECTOR, create, outcomes, path, sectors, sometimes};

use std::io::{self, ErrorKind};

use azekura_base::PageBuf;
use azekura_io::{FailKind, FaultFs, File, Fs, IoKind, OpenOptions, create_dir_all_durable, is_power_cut};
use rustix::io::Errno;

const CREATE: OpenOptions = OpenOptions::new().create(true);

#[test]
fn each_directory_is_durable_before_the_next_one_is_created() {
    let fs = FaultFs::new();
    create_dir_all_durable(&fs, path("a/b")).unwrap();
    let kinds: Vec<_> = fs.last_ios().iter().map(|io| io.kind).collect();
    assert_eq!(kinds, [IoKind::CreateDir, IoKind::SyncDir, IoKind::CreateDir, IoKind::SyncDir]);
}

#[track_caller]
fn assert_eio<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
}

#[track_caller]
fn assert_full<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
}

/// Makes one I/O of each kind, in a fixed order.
fn one_of_each(fs: &FaultFs) -> io::Result<()> {
    fs.create_dir_all(path("d"))?;
    let file = fs.open(path("d/f"), CREATE)?;
    file.write_at(0, &sectors(4, 1))?;
    file.write_at_sync(0, &sectors(2, 2))?;
    file.write_zeroes(0, 5000)?;
    file.set_len(3000)?;
    file.sync()?;
    fs.rename(path("d/f"), path("d/g"))?;
    fs.sync_dir(path("d"))?;
    fs.remove_file(path("d/g"))
}

const KINDS: [IoKind; 10] = [
    IoKind::CreateDir,
    IoKind::Create,
    IoKind::WriteAt,
    IoKind::WriteAtSync,
    IoKind::WriteZeroes,
    IoKind::SetLen,
    IoKind::Sync,
    IoKind::Rename,
    IoKind::SyncDir,
    IoKind::Remove,
];

#[test]
fn every_kind_of_io_is_counted_and_remembered() {
    let fs = FaultFs::new();
    one_of_each(&fs).unwrap();
    assert_eq!(fs.io_count(), 10);
    assert_eq!(fs.last_ios().iter().map(|record| record.kind).collect::<Vec<_>>(), KINDS);
    assert!(KINDS.iter().all(|&kind| fs.io_count_of(kind) == 1));
    let descriptions: Vec<_> = (1..=11).map(|n| fs.describe_io(n)).collect();
    assert_eq!(descriptions[2], "#3 WriteAt d/f 0+2048");
    assert_eq!(descriptions[5], "#6 SetLen d/f 3000");
    assert_eq!(descriptions[7], "#8 Rename d/f -> d/g");
    assert_eq!(descriptions[10], "#11 unknown");

    fs.open(path("d/h"), CREATE).unwrap().read_at(0, &mut [0; 8]).unwrap();
    fs.open(path("d/h"), CREATE).unwrap().len().unwrap();
    assert_eq!((fs.io_count(), fs.read_count()), (11, 1), "opening what is there is no I/O");
    for _ in 0..300 {
        fs.sync_dir(path("/")).unwrap();
    }
    assert_eq!(fs.last_ios().len(), 256);
    assert_eq!(fs.last_ios().last().unwrap().number, 311);
}

#[test]
fn a_power_cut_at_any_io_ends_everything() {
    for n in 1..=10 {
        let fs = FaultFs::new();
        let before = fs.open(path("before"), CREATE).unwrap();
        fs.cut_power_at(n);
        assert!(!fs.power_is_off());
        assert!(is_power_cut(&one_of_each(&fs).unwrap_err()), "cut at {n}");
        assert_eq!(fs.io_count(), 1 + n);
        assert!(fs.power_is_off());
        let last = fs.last_ios().pop().unwrap();
        assert_eq!((last.kind, last.failure), (KINDS[n as usize - 1], Some("power cut")));

        let root = path("/");
        let errors = [
            before.read_at(0, &mut [0; 1]).map(drop),
            before.write_at(0, b"x"),
            before.write_at_sync(0, b"x"),
            before.write_zeroes(0, 1),
            before.sync(),
            before.set_len(0),
            before.len().map(drop),
            fs.open(path("before"), CREATE).map(drop),
            fs.create_dir_all(path("d2")),
            fs.list_dir(root).map(drop),
            fs.rename(path("before"), path("after")),
            fs.remove_file(path("before")),
            fs.sync_dir(root),
            fs.lock_exclusive(path("LOCK")).map(drop),
        ];
        for (i, error) in errors.into_iter().enumerate() {
            assert!(is_power_cut(&error.unwrap_err()), "call {i} after a cut at {n}");
        }
        assert!(!fs.exists(path("before")));
        fs.heal();
        assert!(fs.power_is_off(), "power does not come back by itself");
        assert_eq!(fs.io_count(), 1 + n, "nothing counts without power");
        let after = fs.crash(n);
        assert!(!after.power_is_off());
        one_of_each(&after).unwrap();
    }
}

#[test]
fn the_io_that_the_power_cut_interrupts_happens_in_part() {
    for write_sync in [false, true] {
        let fs = FaultFs::new();
        let file = create(&fs, "f");
        file.write_at_sync(0, &sectors(4, 1)).unwrap();
        fs.cut_power_at(1);
        let write = if write_sync { File::write_at_sync } else { File::write_at };
        assert!(is_power_cut(&write(&*file, 0, &sectors(4, 2)).unwrap_err()));
        let outcomes = outcomes(&fs, "f");
        sometimes(&outcomes, "not at all", |bytes| *bytes == sectors(4, 1));
        sometimes(&outcomes, "wholly", |bytes| *bytes == sectors(4, 2));
        sometimes(&outcomes, "torn", |bytes| bytes.contains(&1) && bytes.contains(&2));
    }
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(4, 2)).unwrap();
    fs.cut_power_at(1);
    file.sync().unwrap_err();
    sometimes(&outcomes(&fs, "f"), "an interrupted sync kept nothing", Vec::is_empty);
}

#[test]
fn a_cut_planned_for_now_cuts_now() {
    let fs = FaultFs::new();
    fs.cut_power();
    assert!(fs.power_is_off());
    assert!(is_power_cut(&fs.create_dir_all(path("d")).unwrap_err()));
    assert_eq!(fs.io_count(), 0);
}

#[test]
#[should_panic(expected = "does not outlive the power")]
fn a_cache_without_power_cannot_be_kept() {
    let fs = FaultFs::new();
    fs.cut_power();
    let _ = fs.kill();
}

#[test]
fn one_io_fails_and_the_next_does_not() {
    for (n, kind) in (1..).zip(KINDS) {
        let fs = FaultFs::new();
        fs.fail_at(n, FailKind::Io);
        assert_eio(one_of_each(&fs));
        let last = fs.last_ios().pop().unwrap();
        assert_eq!((last.number, last.kind, last.failure), (n, kind, Some("EIO")));
        one_of_each(&fs).unwrap();
    }
}

#[test]
fn every_io_fails_until_healed_and_reads_continue() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at_sync(0, b"azekura").unwrap();
    fs.fail_from(2, FailKind::NoSpace);
    file.write_at_sync(0, b"A").unwrap();
    assert_full(file.sync());
    assert_full(fs.remove_file(path("f")));
    assert_full(fs.sync_dir(path("/")));
    let mut bytes = [0; 7];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 7);
    assert_eq!(&bytes, b"Azekura");
    fs.heal();
    file.sync().unwrap();
}

#[test]
fn one_read_fails() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    fs.fail_read_at(2);
    file.read_at(0, &mut [0; 1]).unwrap();
    assert_eio(file.read_at(0, &mut [0; 1]));
    file.read_at(0, &mut [0; 1]).unwrap();
    assert_eq!(fs.read_count(), 3);
}

#[test]
fn each_lookup_fails_once() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    let lookups: [&dyn Fn() -> io::Result<()>; 5] = [
        &|| fs.open(path("f"), OpenOptions::new()).map(drop),
        &|| fs.list_dir(path("/")).map(drop),
        &|| fs.lock_exclusive(path("f")).map(|lock| assert!(lock.is_some())),
        &|| fs.lock_shared(path("f")).map(|lock| assert!(lock.is_some())),
        &|| file.len().map(drop),
    ];
    for lookup in lookups {
        let before = (fs.io_count(), fs.lookup_count());
        fs.fail_lookup_at(2);
        lookup().unwrap();
        assert_eio(lookup());
        lookup().unwrap();
        assert_eq!((fs.io_count(), fs.lookup_count()), (before.0, before.1 + 3));
    }
    let lookups = fs.lookup_count();
    fs.open(path("nothing"), OpenOptions::new()).unwrap_err();
    fs.list_dir(path("nothing")).unwrap_err();
    assert_eq!(fs.lookup_count(), lookups, "a refused call is not counted");
}

#[test]
fn a_failed_write_leaves_any_sectors_or_on_a_full_disk_a_prefix() {
    let seen = |kind| {
        let fs = FaultFs::new();
        let file = create(&fs, "f");
        file.write_at_sync(0, &sectors(8, 1)).unwrap();
        let pictures = (0..200).map(|_| {
            file.write_at_sync(0, &sectors(8, 1)).unwrap();
            fs.fail_at(1, kind);
            file.write_at(0, &sectors(8, 2)).unwrap_err();
            fs.contents(path("f")).unwrap()
        });
        pictures.collect::<Vec<_>>()
    };
    let holes = |bytes: &Vec<u8>| bytes.is_sorted_by(|a, b| a >= b);
    sometimes(&seen(FailKind::Io), "any sectors", |bytes| !holes(bytes));
    assert!(seen(FailKind::NoSpace).iter().all(holes));
    sometimes(&seen(FailKind::NoSpace), "a prefix", |bytes| bytes[0] == 2 && bytes.contains(&1));
}

/// W10: Linux marks the pages of a failed sync clean, so a second sync that succeeds does not write them.
#[test]
fn w10_a_sync_after_a_failed_one_succeeds_without_the_data() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(1, 1)).unwrap();
    file.sync().unwrap();
    file.write_at(0, &sectors(1, 2)).unwrap();
    fs.fail_at(1, FailKind::Io);
    assert_eio(file.sync());
    file.write_at(SECTOR as u64, &sectors(1, 3)).unwrap();
    file.sync().unwrap();
    assert_eq!(fs.contents(path("f")).unwrap(), [sectors(1, 2), sectors(1, 3)].concat(), "readable");
    let after = outcomes(&fs, "f");
    assert!(after.iter().all(|bytes| bytes[SECTOR..] == sectors(1, 3)), "the new write was synced");
    sometimes(&after, "the write before the failed sync is lost", |bytes| bytes[0] == 1);

    file.write_at(0, &sectors(1, 4)).unwrap(); // a new write makes the pages dirty again
    file.sync().unwrap();
    assert!(outcomes(&fs, "f").iter().all(|bytes| bytes[..SECTOR] == sectors(1, 4)));
}

#[test]
fn w10_a_failed_synchronous_write_stays_in_doubt() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at_sync(0, &sectors(1, 1)).unwrap();
    fs.fail_at(1, FailKind::Io);
    assert_eio(file.write_at_sync(0, &sectors(1, 2)));
    file.sync().unwrap();
    let after = outcomes(&fs, "f");
    sometimes(&after, "lost", |bytes| *bytes == sectors(1, 1));
    sometimes(&after, "written after all", |bytes| *bytes == sectors(1, 2));
}

#[test]
fn w10_a_failed_sync_of_a_directory_stays_in_doubt() {
    let fs = FaultFs::new();
    fs.open(path("f"), CREATE).unwrap();
    fs.fail_at(1, FailKind::Io);
    assert_eio(fs.sync_dir(path("/")));
    fs.open(path("g"), CREATE).unwrap();
    fs.sync_dir(path("/")).unwrap();
    let after: Vec<_> = (0..crate::common::SEEDS).map(|seed| fs.crash(seed)).collect();
    assert!(after.iter().all(|fs| fs.exists(path("g"))));
    sometimes(&after, "lost", |fs| !fs.exists(path("f")));
}

/// W11: on a full disk, allocated ranges can be written, and nothing else grows.
#[test]
fn w11_a_full_disk_refuses_growth_and_allows_the_rest() {
    let fs = FaultFs::new();
    create_dir_all_durable(&fs, path("d")).unwrap();
    let file = create(&fs, "f");
    file.write_zeroes(0, 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    fs.full_from(1);
    file.write_at(4096, &sectors(8, 1)).unwrap();
    file.write_at_sync((1 << 20) - 512, &sectors(1, 1)).unwrap();
    file.sync().unwrap();
    assert_full(file.write_at(1 << 20, b"into the hole"));
    assert_full(file.write_zeroes(1 << 20, 10));
    assert_full(file.write_at_sync(2 << 20, b"beyond the end"));
    assert_full(fs.open(path("d/new"), CREATE));
    assert_full(fs.create_dir_all(path("e")));
    assert_full(fs.lock_exclusive(path("LOCK")));
    fs.rename(path("f"), path("d/f")).unwrap();
    fs.sync_dir(path("d")).unwrap();
    fs.heal();
    fs.open(path("d/new"), CREATE).unwrap();
}

#[test]
fn damage_changes_exactly_what_it_says_on_disk_and_in_the_cache() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(2, 0)).unwrap();
    file.sync().unwrap();
    file.write_at(0, &sectors(1, 7)).unwrap(); // unsynced: a crash must not apply it over the damage
    let ios = fs.io_count();
    fs.flip_bit(path("f"), 3, 6).unwrap();
    fs.corrupt(path("f"), 600, 300, 1).unwrap();
    assert_eq!(fs.io_count(), ios);
    let now = fs.contents(path("f")).unwrap();
    assert_eq!((now[2], now[3]), (7, 7 ^ 64));
    assert!(now[600..900].iter().all(|&b| b != 0) && now[512..600].iter().all(|&b| b == 0));
    for bytes in outcomes(&fs, "f") {
        assert_eq!(bytes[3], 7 ^ 64);
        assert_eq!(bytes[512..], now[512..]);
    }
    sometimes(&outcomes(&fs, "f"), "what was unsynced still is", |bytes| bytes[0] == 0);
    assert_eq!(fs.flip_bit(path("f"), 1024, 0).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.corrupt(path("g"), 0, 1, 0).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_refused_call_is_not_counted() {
    let fs = FaultFs::with_alignment(512);
    let file = fs.open(path("f"), CREATE.direct(true)).unwrap();
    let ios = fs.io_count();
    assert_eq!(file.write_at(1, &PageBuf::zeroed(512)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(file.read_at(0, &mut PageBuf::zeroed(4096)[..100]).is_err());
    assert!(fs.remove_file(path("nothing")).is_err());
    assert!(fs.rename(path("nothing"), path("f")).is_err());
    assert_eq!((fs.io_count(), fs.read_count()), (ios, 0));
}

#[test]
fn threads_share_one_count_and_one_cut() {
    let fs = FaultFs::new();
    let files: Vec<_> = (0..4).map(|i| create(&fs, &i.to_string())).collect();
    let start = fs.io_count();
    fs.cut_power_at(1000);
    let acknowledged: Vec<u64> = std::thread::scope(|scope| {
        let threads = files.iter().map(|file| {
            scope.spawn(move || {
                (0..).find(|i: &u64| file.write_at_sync(i * 8, &(i + 1).to_le_bytes()).is_err()).unwrap()
            })
        });
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(fs.io_count(), start + 1000);
    assert_eq!(acknowledged.iter().sum::<u64>(), 999);
    for seed in 0..50 {
        let after = fs.crash(seed);
        for (i, &count) in acknowledged.iter().enumerate() {
            let bytes = after.contents(path(&i.to_string())).unwrap();
            for at in 0..count {
                let slot = &bytes[at as usize * 8..][..8];
                assert_eq!(slot, (at + 1).to_le_bytes(), "file {i}, seed {seed}");
            }
        }
    }
}
