//! Effects of a power loss on the bytes of a file: one test per guarantee at the head of `fault`.

use crate::common::{SECTOR, SEEDS, create, outcomes, path, sector_byte, sectors, sometimes};

use azekura_io::{FaultFs, Fs, OpenOptions};

#[test]
fn synced_bytes_survive_every_crash() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(100, 1)).unwrap();
    file.write_at(700, b"across").unwrap();
    file.write_zeroes(40_000, 20_000).unwrap();
    file.sync().unwrap();
    let expected = fs.contents(path("f")).unwrap();
    assert_eq!(expected.len(), 60_000);
    assert!(outcomes(&fs, "f").iter().all(|bytes| *bytes == expected));
}

#[test]
fn unsynced_bytes_are_kept_or_lost_or_torn() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(8, 1)).unwrap();
    file.sync().unwrap();
    file.write_at(0, &sectors(8, 2)).unwrap();
    let outcomes = outcomes(&fs, "f");
    let new = |bytes: &Vec<u8>| (0..8).filter(|&s| sector_byte(bytes, s) == 2).count();
    assert!(
        outcomes.iter().all(|bytes| bytes.len() == 8 * SECTOR && bytes.iter().all(|b| [1, 2].contains(b)))
    );
    sometimes(&outcomes, "all lost", |bytes| new(bytes) == 0);
    sometimes(&outcomes, "all kept", |bytes| new(bytes) == 8);
    sometimes(&outcomes, "only the first sector", |bytes| new(bytes) == 1 && sector_byte(bytes, 0) == 2);
    sometimes(&outcomes, "all but one sector", |bytes| new(bytes) == 7);
    sometimes(&outcomes, "a mixture", |bytes| (2..7).contains(&new(bytes)));
    assert_eq!(fs.durable_contents(path("f")).unwrap(), sectors(8, 1));
}

#[test]
fn a_later_write_survives_an_earlier_one() {
    let fs = FaultFs::new();
    let (one, two) = (create(&fs, "one"), create(&fs, "two"));
    one.write_at(0, &sectors(2, 0)).unwrap();
    one.sync().unwrap();
    one.write_at(0, &sectors(1, 1)).unwrap();
    one.write_at(SECTOR as u64, &sectors(1, 2)).unwrap();
    two.write_at(0, &sectors(1, 3)).unwrap();
    let outcomes: Vec<_> = (0..SEEDS).map(|seed| fs.crash(seed)).collect();
    let one = |fs: &FaultFs, sector| sector_byte(&fs.contents(path("one")).unwrap(), sector);
    let two = |fs: &FaultFs| fs.contents(path("two")).unwrap() == sectors(1, 3);
    sometimes(&outcomes, "within a file", |fs| one(fs, 0) == 0 && one(fs, 1) == 2);
    sometimes(&outcomes, "across files", |fs| one(fs, 0) == 0 && one(fs, 1) == 0 && two(fs));
    sometimes(&outcomes, "in order", |fs| one(fs, 0) == 1 && one(fs, 1) == 0 && !two(fs));
}

#[test]
fn overwritten_unsynced_bytes_may_be_the_ones_that_survive() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    for byte in 1..=3 {
        file.write_at(0, &sectors(1, byte)).unwrap();
    }
    let outcomes = outcomes(&fs, "f");
    for byte in 1..=3 {
        sometimes(&outcomes, "this version", |bytes| bytes.first() == Some(&byte));
    }
}

/// INODE-3: writes smaller than a sector reach the disk together with the sector's content in the cache.
#[test]
fn a_sector_keeps_the_earlier_of_its_small_writes() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(1, b'.')).unwrap();
    file.sync().unwrap();
    for (at, bytes) in [(0, b"aaa"), (3, b"bbb"), (6, b"ccc")] {
        file.write_at(at, bytes).unwrap();
    }
    let outcomes = outcomes(&fs, "f");
    for allowed in ["aaabbbccc", "aaabbb...", "aaa......", "........."] {
        sometimes(&outcomes, allowed, |bytes| bytes.starts_with(allowed.as_bytes()));
    }
    for bytes in &outcomes {
        let seen = String::from_utf8_lossy(&bytes[..9]);
        assert!("aaabbbccc".starts_with(seen.trim_end_matches('.')), "{seen}");
    }
}

#[test]
fn write_at_sync_makes_its_own_range_durable_and_no_other() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(2, 1)).unwrap();
    file.write_at_sync(2 * SECTOR as u64, &sectors(2, 2)).unwrap();
    let outcomes = outcomes(&fs, "f");
    for bytes in &outcomes {
        assert_eq!(bytes.len(), 4 * SECTOR, "with the length that shows them");
        assert_eq!(bytes[2 * SECTOR..], sectors(2, 2));
    }
    sometimes(&outcomes, "the earlier write lost", |bytes| sector_byte(bytes, 0) == 0);
    sometimes(&outcomes, "half of it lost", |bytes| sector_byte(bytes, 0) == 0 && sector_byte(bytes, 1) == 1);
}

/// INODE-2: no crash applies an unsynced write over newer durable bytes.
#[test]
fn newer_durable_bytes_win_over_older_unsynced_ones() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(4, 1)).unwrap();
    file.write_at_sync(SECTOR as u64, &sectors(2, 2)).unwrap();
    let outcomes = outcomes(&fs, "f");
    assert!(outcomes.iter().all(|bytes| bytes[SECTOR..3 * SECTOR] == sectors(2, 2)));
    sometimes(&outcomes, "the head lost", |bytes| sector_byte(bytes, 0) == 0);
    sometimes(&outcomes, "the tail kept", |bytes| bytes.len() == 4 * SECTOR && sector_byte(bytes, 3) == 1);
}

/// INODE-3 holds for a write that promotion has split within one sector.
#[test]
fn a_sector_is_not_torn_around_a_small_durable_write() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(1, b'.')).unwrap();
    file.sync().unwrap();
    file.write_at(0, &sectors(1, b'o')).unwrap();
    file.write_at_sync(100, &[b'X'; 10]).unwrap();
    let outcomes = outcomes(&fs, "f");
    for bytes in &outcomes {
        assert_eq!(bytes[100..110], [b'X'; 10]);
        assert_eq!(bytes[99], bytes[110], "one sector, one fate");
    }
    sometimes(&outcomes, "kept", |bytes| bytes[0] == b'o');
}

#[test]
fn an_unsynced_cut_may_be_undone_and_a_synced_one_not() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(4, 1)).unwrap();
    file.sync().unwrap();
    file.set_len(SECTOR as u64).unwrap();
    let lens: Vec<_> = outcomes(&fs, "f").iter().map(Vec::len).collect();
    sometimes(&lens, "cut off", |&len| len == SECTOR);
    sometimes(&lens, "as before", |&len| len == 4 * SECTOR);
    file.sync().unwrap();
    assert!(outcomes(&fs, "f").iter().all(|bytes| *bytes == sectors(1, 1)));
}

/// INODE-4: no crash applies an older truncation to newer durable bytes.
#[test]
fn a_synced_write_takes_earlier_changes_of_length_with_it() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(4, 1)).unwrap();
    file.set_len(0).unwrap();
    file.write_at_sync(SECTOR as u64, &sectors(1, 2)).unwrap();
    for bytes in outcomes(&fs, "f") {
        assert_eq!(bytes, [sectors(1, 0), sectors(1, 2)].concat());
    }
}

#[test]
fn a_length_may_survive_without_its_bytes() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(4, 1)).unwrap();
    let outcomes = outcomes(&fs, "f");
    sometimes(&outcomes, "a hole at the end", |bytes| {
        bytes.len() == 4 * SECTOR && sector_byte(bytes, 3) == 0 && bytes.contains(&1)
    });
    sometimes(&outcomes, "shorter", |bytes| !bytes.is_empty() && bytes.len() < 4 * SECTOR);
}

#[test]
fn the_two_clean_crashes_lose_everything_unsynced_or_nothing() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at_sync(0, &sectors(2, 1)).unwrap();
    file.write_at(0, &sectors(1, 2)).unwrap();
    file.set_len(3000).unwrap();
    let create = OpenOptions::new().create(true);
    fs.open(path("g"), create).unwrap();
    let (none, all) = (fs.crash_losing_all(), fs.crash_keeping_all());
    assert_eq!(none.contents(path("f")), Some(sectors(2, 1)));
    assert_eq!(all.contents(path("f")), fs.contents(path("f")));
    assert_eq!(all.durable_contents(path("f")), fs.contents(path("f")));
    assert!(!none.exists(path("g")) && all.exists(path("g")));
}

#[test]
fn the_same_seed_gives_the_same_disk_and_leaves_the_first_alone() {
    let fs = FaultFs::new();
    for name in ["a", "b"] {
        let file = fs.open(path(name), OpenOptions::new().create(true)).unwrap();
        file.write_at(0, &sectors(60, 1)).unwrap();
    }
    let picture = |fs: &FaultFs| {
        let files = fs.files().into_iter();
        files.map(|name| (fs.contents(&name).unwrap(), name)).collect::<Vec<_>>()
    };
    let before = picture(&fs);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..SEEDS {
        let crashed = fs.crash(seed);
        let after = picture(&crashed);
        assert_eq!(after, picture(&fs.crash(seed)), "seed {seed}");
        for name in crashed.files() {
            crashed.open(&name, OpenOptions::new()).unwrap().write_at(0, &sectors(90, 9)).unwrap();
        }
        seen.insert(after);
    }
    assert_eq!(picture(&fs), before);
    assert!(seen.len() > 100, "only {} different disks", seen.len());
}

#[test]
fn bytes_that_survived_a_crash_survive_the_next() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(50, 1)).unwrap();
    for seed in 0..SEEDS {
        let once = fs.crash(seed);
        let bytes = once.contents(path("f")).unwrap();
        let twice = once.crash(seed + 1);
        assert_eq!(twice.contents(path("f")).unwrap(), bytes, "seed {seed}");
        assert_eq!(twice.io_count(), 0);
    }
}

/// After `kill -9` the page cache still has the unsynced bytes, and a later power loss may still lose them.
#[test]
fn a_kill_leaves_unsynced_bytes_readable_and_unsynced() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    let lock = fs.lock_exclusive(path("LOCK")).unwrap().unwrap();
    file.write_at(0, &sectors(1, 1)).unwrap();
    let killed = fs.kill();
    assert!(killed.lock_exclusive(path("LOCK")).unwrap().is_some(), "locks go with their process");
    assert_eq!(killed.contents(path("f")).unwrap(), sectors(1, 1));
    sometimes(&outcomes(&killed, "f"), "lost after all", Vec::is_empty);

    let file = killed.open(path("f"), OpenOptions::new()).unwrap();
    file.sync().unwrap();
    assert!(outcomes(&killed, "f").iter().all(|bytes| *bytes == sectors(1, 1)));
    sometimes(&outcomes(&fs, "f"), "lost on the first disk, which saw no sync", Vec::is_empty);
    drop(lock);
}
