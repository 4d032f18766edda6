//! The tree requests each lock while the lock protects the data that was read: no key can be inserted between
//! the read and the lock, also across leaves. A lock that cannot be granted leaves the tree unchanged.

use std::collections::HashSet;
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::common::{World, get};
use azekura_base::TreeId;
use azekura_btree::{
    Blocked, Env, GapWant, KeyLocks, LeafBatch, NextKey, NoLocks, Outcome, PutMode, Scan, Tree, Written,
};

/// A lock request of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Offer {
    Gap(Option<Vec<u8>>, GapWant),
    Scan(Vec<u8>),
}

/// An action that runs while the tree waits for the answer of the lock manager.
type Meanwhile<'a> = Box<dyn FnMut() + 'a>;

#[derive(Default)]
struct Keeper<'a> {
    offers: Vec<Offer>,
    refused: HashSet<Vec<u8>>,
    refuses_end: bool,
    /// The action, and the number of the request at which it runs.
    meanwhile: Option<(usize, Meanwhile<'a>)>,
}

impl Keeper<'_> {
    fn offer(&mut self, offer: Offer) -> Result<(), Blocked> {
        let is_refused = match &offer {
            Offer::Gap(None, _) => self.refuses_end,
            Offer::Gap(Some(key), _) | Offer::Scan(key) => self.refused.contains(key),
        };
        self.offers.push(offer);
        if let Some((_, mut happen)) = self.meanwhile.take_if(|(n, _)| *n == self.offers.len()) {
            happen();
        }
        if is_refused { Err(Blocked) } else { Ok(()) }
    }
}

impl KeyLocks for Keeper<'_> {
    fn try_gap(&mut self, _: TreeId, next: NextKey<'_>, want: GapWant) -> Result<(), Blocked> {
        let next = match next {
            NextKey::Key(key) => Some(key.to_vec()),
            NextKey::End => None,
        };
        self.offer(Offer::Gap(next, want))
    }

    fn try_scan(&mut self, _: TreeId, key: &[u8]) -> Result<(), Blocked> {
        self.offer(Offer::Scan(key.to_vec()))
    }
}

fn key(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn gap(n: u32, want: GapWant) -> Offer {
    Offer::Gap(Some(key(n)), want)
}

/// Fills a tree with keys 0, 10, 20, … in several leaves, and returns the first keys of its leaves.
fn several_leaves(world: &World, tree: Tree) -> Vec<Vec<u8>> {
    let mut txn = world.txn(1);
    for n in 0..200 {
        txn.put(tree, &key(10 * n), &[7; 60]);
    }
    txn.commit();
    let firsts = leaf_firsts(&world.env, tree);
    assert!(firsts.len() >= 4, "{} leaves", firsts.len());
    firsts
}

/// Returns the first key of each leaf. A batch never exceeds a leaf, so the batches of a whole scan start at
/// the leaves' first keys.
fn leaf_firsts(env: &Env, tree: Tree) -> Vec<Vec<u8>> {
    let (mut scan, mut batch) = (Scan::new(tree, Unbounded, Unbounded), LeafBatch::new());
    let mut firsts = Vec::new();
    while !scan.is_done() {
        assert_eq!(
            scan.next_batch(env, usize::MAX, &mut NoLocks, &mut batch).expect("scan"),
            Outcome::Done(())
        );
        firsts.extend((!batch.is_empty()).then(|| batch.key(0).to_vec()));
    }
    firsts
}

fn number(key: &[u8]) -> u32 {
    u32::from_be_bytes(key.try_into().expect("four bytes"))
}

fn put(world: &World, tree: Tree, keeper: &mut Keeper<'_>, key: &[u8], mode: PutMode) -> Outcome<Written> {
    let mut txn = world.txn(9);
    let outcome = txn.with(keeper, |env, ctx| tree.put(env, ctx, key, b"new", mode, None)).expect("put");
    if outcome != Outcome::Blocked {
        txn.commit();
    }
    outcome
}

fn remove(world: &World, tree: Tree, keeper: &mut Keeper<'_>, key: &[u8]) -> Outcome<bool> {
    let mut txn = world.txn(9);
    let outcome = txn.with(keeper, |env, ctx| tree.remove(env, ctx, key, None)).expect("remove");
    if outcome != Outcome::Blocked {
        txn.commit();
    }
    outcome
}

#[test]
fn writes_offer_the_gap_below_the_next_key_and_only_when_a_key_appears_or_goes() {
    let (world, tree) = World::new(4096, 64);
    let firsts = several_leaves(&world, tree);
    let mut keeper = Keeper::default();
    assert_eq!(put(&world, tree, &mut keeper, &key(15), PutMode::Put), Outcome::Done(Written::Inserted));
    assert_eq!(put(&world, tree, &mut keeper, &key(15), PutMode::Put), Outcome::Done(Written::Replaced));
    assert_eq!(put(&world, tree, &mut keeper, &key(15), PutMode::Insert), Outcome::Done(Written::Exists));
    assert_eq!(put(&world, tree, &mut keeper, &key(16), PutMode::Replace), Outcome::Done(Written::Missing));
    assert_eq!(remove(&world, tree, &mut keeper, &key(16)), Outcome::Done(false));
    assert_eq!(remove(&world, tree, &mut keeper, &key(15)), Outcome::Done(true));
    assert_eq!(keeper.offers, [gap(20, GapWant::Insert), gap(20, GapWant::Delete)]);

    // The next key is in the next leaf, or there is none.
    keeper.offers.clear();
    let second = number(&firsts[1]);
    assert_eq!(
        put(&world, tree, &mut keeper, &key(second - 1), PutMode::Put),
        Outcome::Done(Written::Inserted)
    );
    assert_eq!(remove(&world, tree, &mut keeper, &key(second - 1)), Outcome::Done(true));
    assert_eq!(put(&world, tree, &mut keeper, &key(5000), PutMode::Put), Outcome::Done(Written::Inserted));
    assert_eq!(
        keeper.offers,
        [gap(second, GapWant::Insert), gap(second, GapWant::Delete), Offer::Gap(None, GapWant::Insert)]
    );
}

#[test]
fn a_refused_gap_changes_nothing() {
    let (world, tree) = World::new(4096, 64);
    let firsts = several_leaves(&world, tree);
    let second = number(&firsts[1]);
    let before = (world.contents(tree), world.log.len());
    let mut keeper = Keeper { refuses_end: true, ..Keeper::default() };
    keeper.refused.extend([key(20), firsts[1].clone()]);
    for n in [15, second - 1, 5000] {
        assert_eq!(put(&world, tree, &mut keeper, &key(n), PutMode::Insert), Outcome::Blocked);
    }
    for n in [10, second - 10, 1990] {
        assert_eq!(remove(&world, tree, &mut keeper, &key(n)), Outcome::Blocked);
    }
    assert_eq!((world.contents(tree), world.log.len()), before);
}

#[test]
fn a_large_value_whose_key_becomes_blocked_on_the_way_is_taken_back() {
    let (world, tree) = World::new(4096, 64);
    several_leaves(&world, tree);
    let value = vec![5; 20_000];
    let mut txn = world.txn(9);
    // Granted when probed, refused when the value has been written.
    let mut keeper = OnlyFirst { granted: 1 };
    let outcome = txn
        .with(&mut keeper, |env, ctx| tree.put(env, ctx, &key(15), &value, PutMode::Put, None))
        .expect("put");
    assert_eq!(outcome, Outcome::Blocked);
    assert!(txn.undo.is_empty(), "nothing left to undo");
    assert_eq!(get(&world.env, tree, &key(15)), None);
    world.assert_sound(&[tree], &[]);
}

struct OnlyFirst {
    granted: u32,
}

impl KeyLocks for OnlyFirst {
    fn try_gap(&mut self, _: TreeId, _: NextKey<'_>, _: GapWant) -> Result<(), Blocked> {
        self.granted = self.granted.checked_sub(1).ok_or(Blocked)?;
        Ok(())
    }
    fn try_scan(&mut self, _: TreeId, _: &[u8]) -> Result<(), Blocked> {
        Err(Blocked)
    }
}

#[test]
fn an_insert_sees_a_key_that_slips_in_between_its_look_and_its_lock() {
    let (world, tree) = World::new(4096, 64);
    let firsts = several_leaves(&world, tree);
    let second = number(&firsts[1]);
    // The new key is the last of its leaf. The first key of the next leaf is removed while the gap below it
    // is being locked. So the gap below the following key must be locked, too.
    let mut keeper = Keeper {
        meanwhile: Some((
            1,
            Box::new(|| {
                let _ = remove(&world, tree, &mut Keeper::default(), &key(second));
            }),
        )),
        ..Keeper::default()
    };
    assert_eq!(
        put(&world, tree, &mut keeper, &key(second - 1), PutMode::Put),
        Outcome::Done(Written::Inserted)
    );
    assert_eq!(keeper.offers, [gap(second, GapWant::Insert), gap(second + 10, GapWant::Insert)]);
}

#[test]
fn a_scan_locks_each_record_and_the_gap_behind_the_last() {
    let (world, tree) = World::new(4096, 64);
    let firsts = several_leaves(&world, tree);
    let env = &world.env;
    let mut batch = LeafBatch::new();
    let scans = |numbers: &[u32]| numbers.iter().map(|&n| Offer::Scan(key(n))).collect::<Vec<_>>();

    let mut keeper = Keeper::default();
    let mut scan = Scan::new(tree, Included(&key(20)), Excluded(&key(50)));
    assert_eq!(scan.next_batch(env, 100, &mut keeper, &mut batch).expect("scan"), Outcome::Done(()));
    assert!(scan.is_done());
    assert_eq!(keeper.offers, [scans(&[20, 30, 40]), vec![gap(50, GapWant::Read)]].concat());

    let mut keeper = Keeper::default();
    let mut scan = Scan::new(tree, Included(&key(20)), Excluded(&key(50)));
    assert_eq!(scan.next_batch_back(env, 2, &mut keeper, &mut batch).expect("scan"), Outcome::Done(()));
    assert_eq!(scan.next_batch_back(env, 2, &mut keeper, &mut batch).expect("scan"), Outcome::Done(()));
    assert!(scan.is_done());
    assert_eq!(keeper.offers, [vec![gap(50, GapWant::Read)], scans(&[40, 30, 20])].concat(), "backward");

    // A range without records, at the end of a leaf and at the end of the tree.
    let second = number(&firsts[1]);
    for (from, next) in [(second - 9, Some(firsts[1].clone())), (1991, None)] {
        for forward in [true, false] {
            let mut keeper = Keeper::default();
            let mut scan = Scan::new(tree, Included(&key(from)), Excluded(&key(from + 3)));
            let outcome = if forward {
                scan.next_batch(env, 9, &mut keeper, &mut batch)
            } else {
                scan.next_batch_back(env, 9, &mut keeper, &mut batch)
            };
            assert_eq!(outcome.expect("scan"), Outcome::Done(()));
            assert!(batch.is_empty() && scan.is_done());
            assert_eq!(keeper.offers, [Offer::Gap(next.clone(), GapWant::Read)]);
        }
    }
}

#[test]
fn a_scan_that_is_cut_by_its_limit_locks_only_what_it_returned() {
    let (world, tree) = World::new(4096, 64);
    several_leaves(&world, tree);
    let (mut keeper, mut batch) = (Keeper::default(), LeafBatch::new());
    let mut scan = Scan::new(tree, Included(&key(20)), Unbounded);
    assert_eq!(scan.next_batch(&world.env, 2, &mut keeper, &mut batch).expect("scan"), Outcome::Done(()));
    assert_eq!(keeper.offers, [Offer::Scan(key(20)), Offer::Scan(key(30))]);
}

#[test]
fn a_scan_sees_a_key_that_is_inserted_behind_its_leaf_while_it_locks_the_next_one() {
    let (world, tree) = World::new(4096, 64);
    let firsts = several_leaves(&world, tree);
    let second = number(&firsts[1]);
    let mut batch = LeafBatch::new();
    // The scan has read the first leaf from `second - 20` on, and is about to lock the gap below the first
    // key of the second leaf.
    let mut keeper = Keeper {
        meanwhile: Some((
            3,
            Box::new(|| {
                let done = put(&world, tree, &mut Keeper::default(), &key(second - 1), PutMode::Put);
                assert_eq!(done, Outcome::Done(Written::Inserted));
            }),
        )),
        ..Keeper::default()
    };
    let mut scan = Scan::new(tree, Included(&key(second - 20)), Unbounded);
    assert_eq!(scan.next_batch(&world.env, 100, &mut keeper, &mut batch).expect("scan"), Outcome::Done(()));
    let keys: Vec<u32> = (0..batch.len()).map(|i| number(batch.key(i))).collect();
    assert_eq!(keys, [second - 20, second - 10, second - 1], "the phantom is seen");
    assert!(keeper.offers.contains(&Offer::Scan(key(second - 1))), "and locked");
}

#[test]
fn a_scan_sees_a_key_that_is_inserted_into_its_leaf_while_it_locks() {
    let (world, tree) = World::new(4096, 64);
    several_leaves(&world, tree);
    for forward in [true, false] {
        let new = if forward { 25 } else { 26 };
        let mut batch = LeafBatch::new();
        let insert = || {
            let _ = put(&world, tree, &mut Keeper::default(), &key(new), PutMode::Put);
        };
        let mut keeper = Keeper { meanwhile: Some((2, Box::new(insert))), ..Keeper::default() };
        let mut scan = Scan::new(tree, Included(&key(20)), Included(&key(40)));
        let outcome = if forward {
            scan.next_batch(&world.env, 100, &mut keeper, &mut batch)
        } else {
            scan.next_batch_back(&world.env, 100, &mut keeper, &mut batch)
        };
        assert_eq!(outcome.expect("scan"), Outcome::Done(()));
        assert!((0..batch.len()).any(|i| number(batch.key(i)) == new));
    }
}

#[test]
fn a_refused_record_consumes_nothing() {
    let (world, tree) = World::new(4096, 64);
    several_leaves(&world, tree);
    let mut batch = LeafBatch::new();
    for forward in [true, false] {
        let mut scan = Scan::new(tree, Included(&key(20)), Included(&key(60)));
        let mut keeper = Keeper { refused: [key(40)].into(), ..Keeper::default() };
        for refused in [true, false] {
            let outcome = if forward {
                scan.next_batch(&world.env, 100, &mut keeper, &mut batch)
            } else {
                scan.next_batch_back(&world.env, 100, &mut keeper, &mut batch)
            };
            assert_eq!(outcome.expect("scan"), if refused { Outcome::Blocked } else { Outcome::Done(()) });
            keeper.refused.clear();
        }
        assert_eq!(batch.len(), 5);
    }
}

/// Removes all records of the second leaf, and stops before the record that unlinks the leaf, as a crash may.
/// Returns the first key of that leaf and the first key of the next leaf.
fn with_a_bare_leaf(world: &World, tree: Tree) -> (u32, u32) {
    let firsts = several_leaves(world, tree);
    let (second, third) = (number(&firsts[1]), number(&firsts[2]));
    let mut txn = world.txn(2);
    for n in (second..third).step_by(10) {
        if n + 10 == third {
            world.log.break_after(1);
        }
        txn.remove(tree, &key(n));
    }
    world.log.repair();
    txn.commit();
    let report = world.assert_sound(&[tree], &[]);
    assert_eq!(report.trees[0].leaf_pages as usize, firsts.len(), "the empty leaf is still there");
    (second, third)
}

#[test]
fn the_next_key_is_found_behind_leaves_that_have_become_empty() {
    let (world, tree) = World::new(4096, 64);
    let (second, third) = with_a_bare_leaf(&world, tree);
    let mut keeper = Keeper::default();
    assert_eq!(
        put(&world, tree, &mut keeper, &key(second - 1), PutMode::Put),
        Outcome::Done(Written::Inserted)
    );
    assert_eq!(keeper.offers, [gap(third, GapWant::Insert)]);
}

/// A scan locks the gap of the next key, even if another leaf covers the gap by the end of the scan.
#[test]
fn no_key_slips_into_a_scanned_gap_while_the_leaf_of_the_gap_is_unlinked() {
    for forward in [true, false] {
        let (world, tree) = World::new(4096, 64);
        let (second, third) = with_a_bare_leaf(&world, tree);
        let (from, to) = (key(second - 20), key(third - 5));
        let meanwhile: Meanwhile<'_> = Box::new(|| {
            // The removal makes its leaf underfull, so the leaf is merged with the bare one. Then a key is
            // inserted in the gap.
            let leaves = world.assert_sound(&[tree], &[]).trees[0].leaf_pages;
            let mut txn = world.txn(3);
            for n in (third..third + 2000).step_by(10) {
                txn.remove(tree, &key(n));
            }
            txn.put(tree, &key(third + 1990), b"the next key now");
            txn.put(tree, &key(third - 7), b"slips in");
            txn.commit();
            assert!(world.assert_sound(&[tree], &[]).trees[0].leaf_pages < leaves);
        });
        // A forward scan locks the gap after two records, a backward scan before them.
        let at = if forward { 3 } else { 1 };
        let mut keeper = Keeper { meanwhile: Some((at, meanwhile)), ..Keeper::default() };
        let mut scan = Scan::new(tree, Included(&from), Excluded(&to));
        let mut found = Vec::new();
        let mut batch = LeafBatch::new();
        while !scan.is_done() {
            let outcome = if forward {
                scan.next_batch(&world.env, 100, &mut keeper, &mut batch)
            } else {
                scan.next_batch_back(&world.env, 100, &mut keeper, &mut batch)
            };
            assert_eq!(outcome.expect("scan"), Outcome::Done(()));
            found.extend((0..batch.len()).map(|i| number(batch.key(i))));
        }
        found.sort_unstable();
        assert_eq!(found, [second - 20, second - 10, third - 7], "forward: {forward}");
        let above = Offer::Gap(Some(key(third + 1990)), GapWant::Read);
        assert!(keeper.offers.contains(&above), "{:?}", keeper.offers);
    }
}
