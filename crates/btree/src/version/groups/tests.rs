//! Look-ups through groups compared with a map of the rows.

use super::super::row::Version;
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
    let made = store.install(row, None, || Status::active(0), || true, || image, none_open);
    made.expect("stores the image")
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
    store.clear();
    assert_eq!((store.groups().checked(), store.exact_size()), (0, (0, 0)));
    assert!(store.groups().is_empty() && !store.has_any_of(TreeId(1)));
}

/// VERSION-7: a thread that read the mode before versions were turned off stores nothing afterward.
#[test]
fn a_group_is_not_made_with_an_old_mode() {
    let store = VersionStore::new(64 << 20);
    let row = (TreeId(1), &b"key"[..], None);
    assert!(store.install(row, None, || Status::active(0), || false, || None, none_open).is_none());
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
