//! Effects of a power loss on created, renamed and removed names, before and after their directory is synced.

use crate::common::{SEEDS, create, path, sectors, sometimes};

use azekura_io::{FaultFs, Fs, OpenOptions, create_dir_all_durable};

const CREATE: OpenOptions = OpenOptions::new().create(true);

fn crashes(fs: &FaultFs) -> Vec<FaultFs> {
    (0..SEEDS).map(|seed| fs.crash(seed)).collect()
}

#[test]
fn a_created_name_may_be_lost_until_its_directory_is_synced() {
    let fs = FaultFs::new();
    let file = fs.open(path("f"), CREATE).unwrap();
    file.write_at(0, &sectors(1, 1)).unwrap();
    file.sync().unwrap();
    let after = crashes(&fs);
    sometimes(&after, "lost, synced bytes and all", |fs| !fs.exists(path("f")));
    assert!(after.iter().filter_map(|fs| fs.contents(path("f"))).all(|bytes| bytes == sectors(1, 1)));
    fs.sync_dir(path("/")).unwrap();
    assert!(crashes(&fs).iter().all(|fs| fs.contents(path("f")) == Some(sectors(1, 1))));
}

#[test]
fn a_removed_file_may_come_back_until_its_directory_is_synced() {
    let fs = FaultFs::new();
    let file = create(&fs, "f");
    file.write_at(0, &sectors(1, 1)).unwrap();
    file.sync().unwrap();
    fs.remove_file(path("f")).unwrap();
    let after = crashes(&fs);
    sometimes(&after, "back", |fs| fs.contents(path("f")) == Some(sectors(1, 1)));
    sometimes(&after, "gone", |fs| !fs.exists(path("f")));
    fs.sync_dir(path("/")).unwrap();
    assert!(crashes(&fs).iter().all(|fs| !fs.exists(path("f"))));
}

/// NAMES-1: a crash keeps both names of a rename, or neither.
#[test]
fn a_rename_is_kept_whole_or_lost_whole() {
    let fs = FaultFs::new();
    let (old, new) = (create(&fs, "CONTROL"), create(&fs, "CONTROL.new"));
    for (file, byte) in [(&old, 1), (&new, 2)] {
        file.write_at(0, &sectors(1, byte)).unwrap();
        file.sync().unwrap();
    }
    fs.rename(path("CONTROL.new"), path("CONTROL")).unwrap();
    let after = crashes(&fs);
    for fs in &after {
        let control = fs.contents(path("CONTROL")).expect("one of the two is there");
        assert_eq!(control == sectors(1, 1), fs.exists(path("CONTROL.new")));
        assert!(control == sectors(1, 1) || control == sectors(1, 2));
    }
    sometimes(&after, "kept", |fs| !fs.exists(path("CONTROL.new")));
    fs.sync_dir(path("/")).unwrap();
    assert!(crashes(&fs).iter().all(|fs| fs.contents(path("CONTROL")) == Some(sectors(1, 2))));
}

#[test]
fn a_rename_does_not_sync_the_bytes_it_names() {
    let fs = FaultFs::new();
    create(&fs, "CONTROL");
    let new = create(&fs, "CONTROL.new");
    new.write_at(0, &sectors(1, 2)).unwrap();
    fs.rename(path("CONTROL.new"), path("CONTROL")).unwrap();
    fs.sync_dir(path("/")).unwrap();
    sometimes(&crashes(&fs), "an empty control file", |fs| fs.contents(path("CONTROL")).unwrap().is_empty());
}

#[test]
fn changes_of_different_names_survive_in_any_order() {
    let fs = FaultFs::new();
    for name in ["1", "2", "3"] {
        fs.open(path(name), CREATE).unwrap();
    }
    let after = crashes(&fs);
    let has = |fs: &FaultFs, name| fs.exists(path(name));
    sometimes(&after, "only the last", |fs| has(fs, "3") && !has(fs, "2") && !has(fs, "1"));
    sometimes(&after, "only the first", |fs| has(fs, "1") && !has(fs, "2") && !has(fs, "3"));
    sometimes(&after, "all", |fs| has(fs, "1") && has(fs, "2") && has(fs, "3"));
    sometimes(&after, "none", |fs| fs.files().is_empty());
}

/// NAMES-2: changes that share a name keep their order.
#[test]
fn changes_of_one_name_keep_their_order() {
    let fs = FaultFs::new();
    let file = create(&fs, "a");
    file.write_at(0, &sectors(1, 1)).unwrap();
    file.sync().unwrap();
    fs.rename(path("a"), path("b")).unwrap();
    fs.rename(path("b"), path("c")).unwrap();
    let after = crashes(&fs);
    for fs in &after {
        assert_eq!(fs.files().len(), 1, "one file, one name: {:?}", fs.files());
        assert_eq!(fs.contents(&fs.files()[0]), Some(sectors(1, 1)));
    }
    for name in ["a", "b", "c"] {
        sometimes(&after, name, |fs| fs.exists(path(name)));
    }
}

#[test]
fn a_directory_is_durable_after_a_sync_of_the_one_above() {
    let fs = FaultFs::new();
    fs.create_dir_all(path("a/b")).unwrap();
    let file = fs.open(path("a/b/f"), CREATE).unwrap();
    file.sync().unwrap();
    fs.sync_dir(path("a/b")).unwrap();
    sometimes(&crashes(&fs), "file and directory lost", |fs| !fs.exists(path("a")));
    fs.sync_dir(path("/")).unwrap();
    sometimes(&crashes(&fs), "the lower directory lost", |fs| {
        fs.exists(path("a")) && !fs.exists(path("a/b"))
    });
    fs.sync_dir(path("a")).unwrap();
    assert!(crashes(&fs).iter().all(|fs| fs.exists(path("a/b/f"))));
}

#[test]
fn a_directory_made_durable_survives_every_crash() {
    let fs = FaultFs::new();
    create_dir_all_durable(&fs, path("/a/b/c")).unwrap();
    assert!(crashes(&fs).iter().all(|fs| fs.exists(path("/a/b/c"))));
    // A directory that exists, but was not synced by its creator.
    fs.create_dir_all(path("/a/b/d")).unwrap();
    create_dir_all_durable(&fs, path("/a/b/d")).unwrap();
    assert!(crashes(&fs).iter().all(|fs| fs.exists(path("/a/b/d"))));
    // The same, above the directory that is created.
    for (outer, inner) in [("/e", "/e/f/g"), ("h", "h/i")] {
        fs.create_dir_all(path(outer)).unwrap();
        create_dir_all_durable(&fs, path(inner)).unwrap();
        assert!(crashes(&fs).iter().all(|fs| fs.exists(path(inner))), "{inner}");
    }
}

#[test]
fn a_file_moved_between_directories_is_never_lost() {
    let fs = FaultFs::new();
    create_dir_all_durable(&fs, path("from")).unwrap();
    create_dir_all_durable(&fs, path("to")).unwrap();
    let file = fs.open(path("from/f"), CREATE).unwrap();
    file.write_at_sync(0, &sectors(1, 1)).unwrap();
    fs.sync_dir(path("from")).unwrap();
    fs.rename(path("from/f"), path("to/f")).unwrap();
    let check = |fs: &FaultFs| {
        for fs in crashes(fs) {
            assert_eq!(fs.files().len(), 1, "{:?}", fs.files());
        }
    };
    check(&fs);
    fs.open(path("from/f"), CREATE).unwrap();
    fs.remove_file(path("from/f")).unwrap();
    fs.sync_dir(path("from")).unwrap();
    check(&fs);
    assert!(fs.crash(0).exists(path("to/f")), "the sync of either directory covers the rename");
}

#[test]
fn new_directories_after_a_crash_are_empty() {
    let fs = FaultFs::new();
    create_dir_all_durable(&fs, path("kept")).unwrap();
    fs.create_dir_all(path("lost")).unwrap();
    for name in ["kept/f", "lost/f"] {
        fs.open(path(name), CREATE).unwrap();
    }
    fs.sync_dir(path("kept")).unwrap();
    fs.sync_dir(path("lost")).unwrap(); // the file is durable, its directory is not
    let after = crashes(&fs);
    sometimes(&after, "the directory lost", |fs| !fs.exists(path("lost")));
    for fs in after.iter().filter(|fs| !fs.exists(path("lost"))) {
        for name in ["lost", "new"] {
            fs.create_dir_all(path(name)).unwrap();
            assert!(fs.list_dir(path(name)).unwrap().is_empty(), "{name}");
        }
        assert_eq!(fs.list_dir(path("kept")).unwrap(), ["f"]);
    }
}
