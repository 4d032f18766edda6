//! Look-ups through groups compared with a map of the rows.

use super::super::row::Version;
use super::super::sorted::tests::KEYS_READ;
use super::super::status::Status;
use super::super::store::{OpenSnapshots, VersionStore};
use super::*;

fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Keys of different lengths; many of them differ only after the prefix.
fn key(number: u64) -> Vec<u8> {
    let head: &[u8] = if number.is_multiple_of(3) { b"prefix of many keys " } else { b"k" };
    [head, &number.to_be_bytes()[6..]].concat()
}

fn none_open() -> OpenSnapshots {
    OpenSnapshots { timestamps: Vec::new(), last_commit: 0 }
}

/// Stores an image of a writer that stays active: every snapshot needs it.
fn install(store: &VersionStore, tree: u32, key: &[u8], value: &[u8], page: u64) -> Version {
    let image = Some((0, value.into()));
    let row = (TreeId(tree), key, Some(PageId(page)));
    let mut made = None;
    assert!(store.install(row, &mut made, || Status::active(0), || true, || image, none_open));
    made.expect("has the status")
}

/// Each group has a place of its own, and the places of an allocation are adjacent.
#[test]
fn groups_have_places_of_their_own() {
    let mut expected = (0, 0);
    for number in 0..1_000 {
        assert_eq!(place_of(number), expected, "{number}");
        expected.1 += 1;
        if expected.1 == (FIRST << expected.0) as usize {
            expected = (expected.0 + 1, 0);
        }
    }
}

impl Groups {
    /// Asserts GROUP-1; returns the number of groups.
    fn checked(&self) -> usize {
        let directory = self.directory.read();
        for (&tree, of_tree) in &directory.trees {
            let mut end = Some(Box::<[u8]>::default());
            for (lower, &number) in of_tree {
                let rows = self.listed(number).lock();
                let range = rows.range.as_ref().expect("a listed group has a range");
                assert!(range.tree == tree && range.lower == *lower, "{range:?}");
                assert!(end.is_some_and(|end| end <= *lower), "{range:?} begins inside another group");
                end = range.upper.clone();
            }
        }
        let count = directory.all().count();
        assert_eq!(self.len(), count);
        assert_eq!(directory.made as usize, count + directory.unused.len(), "no group is lost");
        count
    }
}

/// Hints are wrong most of the time here. A look-up finds the same images as with the right hint.
#[test]
fn lookups_find_all_versions_of_a_row_and_of_a_range_with_any_hint() {
    let store = VersionStore::new(64 << 20);
    store.make();
    let mut state = 11;
    let mut first = BTreeMap::<(u32, Vec<u8>), u64>::new();
    let mut writers = Vec::new();
    for step in 0..6_000 {
        // A tenth of the changes is of one row, and its versions cannot be divided.
        let number = if random(&mut state, 10) == 0 { 7 } else { random(&mut state, 1_500) };
        let (tree, row) = (1 + random(&mut state, 2) as u32, key(number));
        let page = random(&mut state, 50);
        writers.push((number, install(&store, tree, &row, &u64::to_le_bytes(step), page)));
        first.entry((tree, row)).or_insert(step);
    }
    let groups = store.groups().checked();
    assert!(groups > 10, "{groups} groups");
    let check = |first: &BTreeMap<(u32, Vec<u8>), u64>, state: &mut u64| {
        for _ in 0..2_000 {
            let (tree, row) = (1 + random(state, 2) as u32, key(random(state, 1_500)));
            let value = |cell: Option<crate::node::Cell<'_>>| cell.expect("not absent").value.to_vec();
            let row_of = (TreeId(tree), &*row, Some(PageId(random(state, 50))));
            let found = store.resolve(row_of, 1, value);
            assert_eq!(found, first.get(&(tree, row)).map(|step| step.to_le_bytes().to_vec()));
            let (mut from, mut to) = (key(random(state, 1_500)), key(random(state, 1_500)));
            if from > to {
                std::mem::swap(&mut from, &mut to);
            }
            let to = Some(&*to).filter(|_| random(state, 10) > 0);
            let leaf = (TreeId(tree), PageId(random(state, 50)));
            let found = store.resolve_range(leaf, (&from, to), 1, none_open);
            let found: Vec<_> = found.iter().map(|entry| entry.version().key().to_vec()).collect();
            let is_inside = |row: &Vec<u8>| *row >= from && to.is_none_or(|to| **row < *to);
            let expected = first.keys().filter(|(of, row)| *of == tree && is_inside(row));
            assert_eq!(found, expected.map(|(_, row)| row.clone()).collect::<Vec<_>>());
        }
    };
    check(&first, &mut state);
    // The versions of some adjacent rows are dropped. The second sweep removes their groups.
    let is_dropped = |number: u64| (300..900).contains(&number);
    writers.iter().filter(|(number, _)| is_dropped(*number)).for_each(|(_, one)| one.status().roll_back());
    (300..900)
        .flat_map(|number| [(1, key(number)), (2, key(number))])
        .for_each(|row| first.retain(|of, _| *of != row));
    for _ in 0..2 {
        store.prune(&OpenSnapshots { timestamps: vec![1], last_commit: 0 });
    }
    assert!(store.groups().checked() < groups);
    check(&first, &mut state);
    for number in (0..1_500).step_by(5) {
        drop(install(&store, 1, &key(number), &[9; 8], random(&mut state, 50)));
        first.entry((1, key(number))).or_insert(u64::from_le_bytes([9; 8]));
    }
    store.groups().checked();
    check(&first, &mut state);
    drop(store.clear());
    assert_eq!((store.groups().checked(), store.exact_size()), (0, (0, 0)));
    assert!(store.groups().is_empty() && !store.has_any_of(TreeId(1)));
}

/// VERSION-7: a thread that read the mode before versions were turned off stores nothing afterward.
#[test]
fn a_group_is_not_made_with_an_old_mode() {
    let store = VersionStore::new(64 << 20);
    let row = (TreeId(1), &b"key"[..], None);
    assert!(!store.install(row, &mut None, || Status::active(0), || false, || None, none_open));
    assert_eq!((store.groups().checked(), store.exact_size()), (0, (0, 0)));
}

/// A scan of a leaf orders the recent versions of its group. If scans are so frequent that the versions never
/// become many, the group is divided all the same.
#[test]
fn a_group_that_is_scanned_after_each_change_is_divided() {
    let store = VersionStore::new(1 << 30);
    store.make();
    for number in 0..2_000_u64 {
        let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        install(&store, 1, &key, b"old", number % 50);
        store.resolve_range((TreeId(1), PageId(number % 50)), (&[], Some(&[1])), 0, none_open);
        store.resolve_range((TreeId(1), PageId(number % 50)), (&key, None), 0, none_open);
    }
    let count = store.groups().checked();
    assert!(count > 10, "{count} groups of 2,000 versions");
}

/// Keys with common beginnings of many lengths, the empty key, keys of one byte, and keys that are the
/// beginnings of other keys.
fn odd_keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte]).collect();
    keys.push(Vec::new());
    for len in [1, 4, 7, 8, 9, 13, 16, 40] {
        keys.extend((0..len).map(|part| vec![0; part]));
        for number in 0..60_u64 {
            for tail in [&[][..], &[0], &[255]] {
                let number = number.to_be_bytes();
                keys.push([&vec![b'p'; len][..], &number[7..], tail].concat());
                keys.push([&vec![0; len][..], &number, tail].concat());
                keys.push([&vec![255; len][..], &number[6..], tail].concat());
            }
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// SORTED-1: look-ups find the versions of all rows, whatever their keys have in common, while groups are
/// divided, become empty and are made again between others.
#[test]
fn keys_with_any_common_beginning_are_found() {
    let keys = odd_keys();
    for seed in 0..8 {
        let (store, mut state) = (VersionStore::new(1 << 30), seed);
        store.make();
        let mut first = BTreeMap::<Vec<u8>, (u64, Vec<Version>)>::new();
        for round in 0..12 {
            // In some rounds only the rows between two keys change.
            let (from, to) = (random(&mut state, keys.len() as u64), random(&mut state, keys.len() as u64));
            let (from, to) =
                if round % 3 == 0 { (0, keys.len() as u64 - 1) } else { (from.min(to), from.max(to)) };
            for step in 0..600 {
                let row = &keys[(from + random(&mut state, to - from + 1)) as usize];
                let version = install(&store, 1, row, &u64::to_le_bytes(step), random(&mut state, 9));
                first.entry(row.clone()).or_insert((step, Vec::new())).1.push(version);
            }
            store.groups().checked();
            for _ in 0..300 {
                let row = &keys[random(&mut state, keys.len() as u64) as usize];
                let page = PageId(random(&mut state, 9));
                let found =
                    store.resolve((TreeId(1), row, Some(page)), 1, |cell| cell.map(|it| it.value.to_vec()));
                let expected = first.get(row).map(|(step, _)| Some(step.to_le_bytes().to_vec()));
                assert_eq!(found, expected, "seed {seed}, key {row:?}");
                let (a, b) = (random(&mut state, keys.len() as u64), random(&mut state, keys.len() as u64));
                let (from, to) = (&keys[a.min(b) as usize], &keys[a.max(b) as usize]);
                let to = Some(&**to).filter(|_| random(&mut state, 8) > 0);
                let found = store.resolve_range((TreeId(1), page), (from, to), 1, none_open);
                let found = found.iter().map(|entry| entry.version().key());
                let is_inside = |row: &&[u8]| **row >= **from && to.is_none_or(|to| **row < *to);
                let expected = first.keys().map(|row| &**row).filter(is_inside);
                assert!(found.eq(expected), "seed {seed}, from {from:?} to {to:?}");
            }
            // The versions of a range of rows are dropped, and its groups if no version is added meanwhile.
            let (a, b) = (random(&mut state, keys.len() as u64), random(&mut state, keys.len() as u64));
            let (from, to) = (&keys[a.min(b) as usize], &keys[a.max(b) as usize]);
            for (_, (_, versions)) in first.extract_if(from.clone()..to.clone(), |_, _| true) {
                versions.iter().for_each(|version| version.status().roll_back());
            }
            for _ in 0..2 {
                store.prune(&OpenSnapshots { timestamps: vec![1], last_commit: 0 });
            }
            store.groups().checked();
        }
    }
}

/// A search reads a few keys from versions, also if the first eight bytes of all keys are equal.
#[test]
fn a_search_among_keys_with_a_common_beginning_reads_few_of_them() {
    let (store, mut state) = (VersionStore::new(1 << 30), 5);
    store.make();
    let key = |number: u64| format!("customers/by-number/{number:012}").into_bytes();
    for number in 0..4_000 {
        install(&store, 1, &key(number * 7), b"old", number % 50);
    }
    let of = |read: &mut dyn FnMut()| {
        let before = KEYS_READ.get();
        read();
        KEYS_READ.get() - before
    };
    store.order_recent(none_open);
    let (mut points, mut ranges) = (0, 0);
    for _ in 0..1_000 {
        // Not in the first and the last group: one of their bounds is no key.
        let number = 3_500 + random(&mut state, 20_000);
        points += of(&mut || _ = store.resolve((TreeId(1), &key(number), None), 1, |_| ()));
        let range = (&*key(number), Some(&*key(number + 70)));
        ranges += of(&mut || drop(store.resolve_range((TreeId(1), PageId(60)), range, 1, none_open)));
        // The next look-up of a range orders this version.
        drop(install(&store, 1, &key(number), b"new", 60));
    }
    assert!(points < 1_000 && ranges < 10_000, "{points}, {ranges} keys read");
}

/// A thread that waits for the group of one part of a range has locked neither another group nor, while it
/// reads a group, the directory.
#[test]
fn a_range_locks_one_group_at_a_time() {
    let (store, mut parts) = (VersionStore::new(1 << 30), 0);
    store.make();
    for number in 0..2_000_u64 {
        install(&store, 1, &number.to_be_bytes(), b"old", 1);
    }
    let groups = store.groups();
    let all = (Key::new(&[]), None);
    groups.for_range(TreeId(1), all, PageId(7), |_, (from, _)| {
        parts += 1;
        assert!(groups.directory.try_write().is_some(), "the directory is not locked");
        let directory = groups.directory.read();
        let numbers: Vec<_> = directory.all().collect();
        let locked = numbers.iter().filter(|&&number| groups.listed(number).try_lock().is_none()).count();
        assert_eq!(locked, 1, "at {:?}", from.bytes());
    });
    assert_eq!(parts, groups.checked());
    assert!(parts > 20, "{parts} groups");
}

/// Versions are freed after the mutex of their group and the directory are released.
#[test]
fn versions_are_freed_without_locks() {
    let (store, mut freed) = (VersionStore::new(1 << 30), 0);
    store.make();
    struct CountedFree<'s, 'c>(&'s Groups, &'s std::cell::RefCell<&'c mut usize>);
    impl Drop for CountedFree<'_, '_> {
        fn drop(&mut self) {
            assert!(self.0.directory.try_write().is_some(), "the directory is not locked");
            let numbers: Vec<_> = self.0.directory.read().all().collect();
            assert!(
                numbers.iter().all(|&number| self.0.listed(number).try_lock().is_some()),
                "no group is locked"
            );
            **self.1.borrow_mut() += 1;
        }
    }
    for number in 0..500_u64 {
        install(&store, 1, &number.to_be_bytes(), b"old", 1);
    }
    let (groups, counter) = (store.groups(), std::cell::RefCell::new(&mut freed));
    let free = || CountedFree(groups, &counter);
    groups.for_each(|_| free());
    groups.for_range(TreeId(1), (Key::new(&[]), None), PageId(7), |_, _| free());
    drop(groups.clear(|_| free(), || ()));
    assert!(freed > 10, "{freed}");
}

/// A sweep that waits for a group, or reads it, does not keep others from making and dividing groups.
#[test]
fn the_directory_is_not_locked_while_unused_groups_are_looked_for() {
    let store = VersionStore::new(1 << 30);
    store.make();
    let writers: Vec<_> =
        (0..500_u64).map(|number| install(&store, 1, &number.to_be_bytes(), b"old", 1)).collect();
    writers[..400].iter().for_each(|writer| writer.status().roll_back());
    store.prune(&none_open());
    let groups = store.groups();
    let (numbers, before) = (groups.numbers(), groups.checked());
    let group = |at: usize| groups.listed(numbers[at]);
    group(0).lock().was_empty = false;
    std::thread::scope(|s| {
        let last = group(numbers.len() - 1).lock();
        let sweep = s.spawn(|| store.remove_unused());
        while !group(0).lock().was_empty {
            std::thread::yield_now();
        }
        assert!(groups.directory.try_write().is_some() && !sweep.is_finished());
        drop(last);
    });
    assert!(groups.checked() + 4 < before, "{} of {before} groups", groups.checked());
}

/// GROUP-4: a scan that reads a group does not delay writers. Otherwise this test never ends.
#[test]
fn a_writer_adds_a_version_to_a_locked_group() {
    let store = VersionStore::new(64 << 20);
    let first = install(&store, 1, b"key", b"0", 7);
    let locked = store.groups().listed(0).lock();
    let versions: Vec<_> = (1..100_u64).map(|n| install(&store, 1, b"key", &n.to_le_bytes(), 7)).collect();
    assert!(locked.sorted.of_row(Key::new(b"key")).count() == 1, "the others are in the inbox");
    drop(locked);
    let last = install(&store, 1, b"key", b"100", 7);
    assert_eq!(store.exact_size().0, 101);
    let oldest = store.resolve((TreeId(1), b"key", None), 1, |before| before.map(|cell| cell.value.to_vec()));
    assert_eq!(oldest, Some(Some(b"0".to_vec())));
    drop((first, versions, last));
}
