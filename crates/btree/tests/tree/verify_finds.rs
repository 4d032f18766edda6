//! The check finds each kind of damage and reports the damaged page.

use crate::common::{World, get};
use azekura_base::{PageId, PageWords, TreeId};
use azekura_btree::node::{Cell, Node};
use azekura_btree::{
    ChainReader, Held, LeafBatch, NoLocks, Outcome, OverflowRef, PageOp, Report, Scan, Tree, TreeError,
    ValueRef, change, space, verify, verify_beside_writers,
};
use std::ops::Bound::Unbounded;

struct Damaged {
    world: World,
    tree: Tree,
}

impl Damaged {
    fn new() -> Self {
        let (world, tree) = World::new(4096, 300);
        let mut txn = world.txn(1);
        for n in 0..300u32 {
            txn.put(tree, &n.to_be_bytes(), &[1; 40]);
        }
        txn.put(tree, b"large", &vec![9; 30_000]);
        txn.commit();
        world.assert_sound(&[tree], &[]);
        Self { world, tree }
    }

    /// Returns the first page for which `is` returns `true`.
    fn page(&self, is: impl Fn(PageWords<'_>) -> bool) -> PageId {
        (0..100)
            .map(PageId)
            .find(|&id| is(self.world.env.pool().fix(id).expect("fix").shared().words()))
            .expect("there is such a page")
    }

    fn leaf(&self) -> PageId {
        self.page(|page| Node::new(page).level() == Some(0) && Node::new(page).count() > 10)
    }

    fn apply(&self, page_id: PageId, op: &PageOp<'_>) {
        let mut guard = self.world.env.pool().fix(page_id).expect("fix").exclusive();
        guard.will_change(azekura_base::Lsn(u64::MAX));
        change::apply(op, &mut guard.page_mut(), page_id).expect("applies");
    }

    fn set_u64(&self, page_id: PageId, at: usize, change: impl Fn(u64) -> u64) {
        let mut guard = self.world.env.pool().fix(page_id).expect("fix").exclusive();
        guard.will_change(azekura_base::Lsn(u64::MAX));
        let value = change(guard.words().u64(at));
        guard.page_mut().set_u64(at, value);
    }

    /// Asserts that the check reports damage on `page_id` with a text that contains `what`.
    #[track_caller]
    fn assert_found(&self, page_id: PageId, what: &str) {
        let report = verify(&self.world.env, &[self.tree], &[], &mut |_, _| {}).expect("verify");
        let found = report.findings.iter().any(|f| f.page_id == page_id && f.what.contains(what));
        assert!(found, "{what} on page {page_id}: {:#?}", report.findings);
    }
}

#[test]
fn a_page_that_nothing_refers_to_is_a_leak() {
    let damaged = Damaged::new();
    damaged.apply(PageId(0), &PageOp::SpaceSet { first: 500, count: 1 });
    let report = || verify(&damaged.world.env, &[damaged.tree], &[], &mut |_, _| {}).expect("verify");
    damaged.apply(PageId(0), &PageOp::SpaceSet { first: 502, count: 300 });
    let leaked: Vec<_> = [500].into_iter().chain(502..802).map(PageId).collect();
    assert_eq!((report().leaked, report().findings), (leaked.clone(), vec![]));
    let log_buffer = crate::common::log_buffer();
    azekura_btree::free_leaked(&damaged.world.env, log_buffer, &leaked).expect("frees");
    assert!(report().is_clean());
}

#[test]
fn a_page_in_use_but_marked_free_is_found() {
    let damaged = Damaged::new();
    let leaf = damaged.leaf();
    damaged.apply(PageId(0), &PageOp::SpaceClear { first: leaf.0 as u32, count: 1 });
    damaged.assert_found(leaf, "in use, but marked as free");
}

#[test]
fn a_page_with_two_owners_is_found() {
    let damaged = Damaged::new();
    let root = damaged.tree.root;
    let (first, last) = {
        let guard = damaged.world.env.pool().fix(root).expect("fix").shared();
        let node = Node::new(guard.words());
        (node.child(0), node.count() - 1)
    };
    damaged.apply(root, &PageOp::Replace { slot: last as u16, cell: Cell::inline(&first.0.to_le_bytes()) });
    damaged.assert_found(first, "used twice");
}

#[test]
fn keys_out_of_order_are_found() {
    let damaged = Damaged::new();
    let leaf = damaged.leaf();
    // The head of slot 3.
    damaged.set_u64(leaf, 48 + 3 * 16, |head| head ^ 1 << 60);
    damaged.assert_found(leaf, "do not ascend");
}

#[test]
fn a_key_outside_its_fences_is_found() {
    let damaged = Damaged::new();
    let second = |page: PageWords<'_>| {
        let mut lower = Vec::new();
        Node::new(page).lower_into(&mut lower);
        Node::new(page).level() == Some(0) && !lower.is_empty()
    };
    let leaf = damaged.page(second);
    damaged.apply(leaf, &PageOp::Remove { slot: 5 });
    damaged.apply(leaf, &PageOp::Insert { slot: 0, suffix: b"", cell: Cell::inline(b"") });
    damaged.assert_found(leaf, "outside the fences");
}

#[test]
fn a_cell_in_the_wrong_place_is_found() {
    let damaged = Damaged::new();
    let leaf = damaged.leaf();
    damaged.set_u64(leaf, 48 + 3 * 16 + 8, |meta| meta + 1);
    damaged.assert_found(leaf, "overlap");
    damaged.set_u64(leaf, 48 + 3 * 16 + 8, |meta| meta | 0xffff);
    damaged.assert_found(leaf, "outside the heap");
}

#[test]
fn garbage_that_does_not_add_up_is_found() {
    let damaged = Damaged::new();
    let leaf = damaged.leaf();
    damaged.set_u64(leaf, 24, |word| word + (1 << 16));
    damaged.assert_found(leaf, "garbage");
}

#[test]
fn a_leaf_of_another_tree_is_found() {
    let damaged = Damaged::new();
    let leaf = damaged.leaf();
    damaged.set_u64(leaf, 32, |word| word ^ 5 << 32);
    damaged.assert_found(leaf, "belongs to tree");
}

#[test]
fn a_page_that_is_not_a_node_is_found_and_hides_only_its_subtree() {
    let damaged = Damaged::new();
    let leaf = damaged.leaf();
    damaged.apply(leaf, &PageOp::Release);
    damaged.assert_found(leaf, "not a node of a tree");
    let report = verify(&damaged.world.env, &[damaged.tree], &[], &mut |_, _| {}).expect("verify");
    assert!(report.trees[0].records > 200);
}

#[test]
fn a_broken_chain_is_found_by_the_check_and_by_the_reader() {
    let damaged = Damaged::new();
    let middle = damaged.page(|page| page.type_number() == 4 && page.u64(40) == 3);
    damaged.set_u64(middle, 40, |index| index + 1);
    damaged.assert_found(middle, "large value");
    let mut out = Vec::new();
    let error = damaged.tree.get(&damaged.world.env, b"large", &mut out).expect_err("broken");
    assert!(error.to_string().contains(&format!("page {middle}")), "{error}");
    // A read in parts returns all pages before the broken page, and no page after it.
    let env = &damaged.world.env;
    let flags = damaged.tree.get_cell(env, b"large", &mut out).expect("reads").expect("is there");
    let lent = ValueRef::of_cell(Cell { flags, value: &out }).expect("a reference");
    let ValueRef::Large(reference) = lent else { panic!("an inline value") };
    let payload = env.page_size() - 48;
    let (mut chain, mut part) = (ChainReader::new(env, reference).expect("a length"), Vec::new());
    for page in 1..=3 {
        assert!(chain.next_page(&mut part).expect("sound"));
        assert_eq!(part.len(), page * payload);
    }
    let error = chain.next_page(&mut part).expect_err("broken");
    assert!(error.to_string().contains(&format!("page {middle}")), "{error}");
    let mut start = vec![0; 16];
    assert_eq!(lent.read_at(env, payload as u64, &mut start).expect("a sound page"), 16);
    assert_eq!(start, part[payload..payload + 16]);
    let error = lent.read_at(env, 3 * payload as u64, &mut start).expect_err("broken");
    assert!(error.to_string().contains(&format!("page {middle}")), "{error}");
    let short = OverflowRef { len: reference.len + 1, ..reference };
    let error =
        ValueRef::Large(OverflowRef { len: u64::MAX, ..short }).read(env, &mut part).expect_err("length");
    assert!(error.to_string().contains("largest size"), "{error}");
    assert!(get(&damaged.world.env, damaged.tree, &7u32.to_be_bytes()).is_some(), "others are not concerned");
}

#[test]
fn a_wrong_child_is_a_typed_error_for_readers_and_writers() {
    let damaged = Damaged::new();
    let leaf = damaged.leaf();
    damaged.apply(leaf, &PageOp::Release);
    let mut out = Vec::new();
    let failing: Vec<_> = (0..300u32)
        .filter_map(|n| damaged.tree.get(&damaged.world.env, &n.to_be_bytes(), &mut out).err())
        .collect();
    assert!(!failing.is_empty());
    assert!(failing.iter().all(|error| error.to_string().contains("a free page where the tree has a node")));
}

/// A scan ends even if wrong fences would send it in circles.
#[test]
fn a_scan_over_a_leaf_with_wrong_fences_ends_with_an_error() {
    for forward in [true, false] {
        let damaged = Damaged::new();
        let leaf = damaged.page(|page| {
            let (node, mut lower) = (Node::new(page), Vec::new());
            node.lower_into(&mut lower);
            node.level() == Some(0) && !lower.is_empty() && !node.is_last()
        });
        // Both fences become one byte long, so they no longer enclose the leaf's keys.
        damaged.set_u64(leaf, 24, |word| word & 0xffff_ffff | 1 << 32 | 1 << 48);
        let mut scan = Scan::new(damaged.tree, Unbounded, Unbounded);
        let (mut batch, env) = (LeafBatch::new(), &damaged.world.env);
        let mut batches = 0;
        let error = loop {
            let outcome = if forward {
                scan.next_batch(env, 1000, &mut NoLocks, &mut batch)
            } else {
                scan.next_batch_back(env, 1000, &mut NoLocks, &mut batch)
            };
            batches += 1;
            assert!(batches < 100 && !scan.is_done());
            match outcome {
                Ok(done) => assert_eq!(done, Outcome::Done(())),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("fences"), "{error}");
    }
}

#[test]
fn a_map_that_was_overwritten_is_found() {
    let damaged = Damaged::new();
    damaged.set_u64(PageId(0), 0, |word| word & !(0xff << 32) | 3 << 32);
    damaged.assert_found(PageId(0), "not a space map");
    assert_eq!(space::map_of(PageId(77), 4096), (PageId(0), 77));
    assert_eq!(damaged.tree.id, TreeId(0));
}

/// Zeroes at the position of a map are reported as damage. So the next map is made by a record that also
/// marks it in the last map.
#[test]
fn the_map_of_the_next_group_is_made_when_all_others_are_full() {
    let damaged = Damaged::new();
    let (world, group) = (&damaged.world, space::group_pages(4096));
    let is_free = |&bit: &u64| {
        let map = world.env.pool().fix(PageId(0)).expect("fix").shared();
        !space::is_used(map.words(), bit as u32)
    };
    let free: Vec<u64> = (0..group).filter(is_free).collect();
    for run in free[..free.len() - 1].chunk_by(|a, b| a + 1 == *b) {
        damaged.apply(PageId(0), &PageOp::SpaceSet { first: run[0] as u32, count: run.len() as u32 });
    }
    let mut txn = world.txn(2);
    let trees: Vec<Tree> = (10..13).map(|id| txn.create(id)).collect();
    txn.commit();
    let roots: Vec<u64> = trees.iter().map(|tree| tree.root.0).collect();
    assert_eq!(roots, [group - 1, group + 1, group + 2], "the last page, and those behind the next map");
    let has_next = |map: u64| {
        let map = world.env.pool().fix(PageId(map)).expect("fix").shared();
        space::has_next(map.words())
    };
    assert!(has_next(0) && !has_next(group));
    // The check finds the new map. If a map is lost, no page is allocated.
    let report = verify(&world.env, &[damaged.tree], &[], &mut |_, _| {}).expect("verify");
    assert!(report.leaked.contains(&PageId(group + 1)), "{:?}", report.leaked);
    let mut guard = world.env.pool().fix(PageId(group)).expect("fix").exclusive();
    guard.will_change(azekura_base::Lsn(u64::MAX));
    (0..512).for_each(|word| guard.page_mut().set_word(word, 0));
    drop(guard);
    damaged.assert_found(PageId(group), "not a space map");
    let refused = world.txn(3).with(&mut NoLocks, |env, ctx| Tree::create(env, ctx, TreeId(20)));
    let output = refused.expect_err("no map").to_string();
    assert_eq!(output, format!("page {group} is corrupt: not a space map"));
}

const KEYS: u32 = 5_000;

/// Returns a store with a second tree of `KEYS` rows in several hundred leaves.
fn with_second_tree() -> (Damaged, Tree) {
    let (world, tree) = World::new(4096, 2000);
    let mut txn = world.txn(1);
    txn.put(tree, b"large", &vec![9; 30_000]);
    (0..KEYS).for_each(|n| drop(txn.put(tree, &n.to_be_bytes(), &[1; 40])));
    let second = txn.create(5);
    (0..KEYS).for_each(|n| drop(txn.put(second, &n.to_be_bytes(), &[1; 100])));
    txn.commit();
    (Damaged { world, tree }, second)
}

/// A writer that changes rows of a tree and keeps the set of keys. Leaves split and merge, and large values
/// are written and removed.
struct Writer<'w> {
    world: &'w World,
    tree: Tree,
    random: u64,
    commits: u64,
}

impl Writer<'_> {
    fn change(&mut self) {
        self.commits += 1;
        let mut txn = self.world.txn(2);
        for _ in 0..3 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (from, size) = ((self.random >> 33) as u32 % KEYS, (self.random >> 50) as usize % 400);
            for n in from..(from + 300).min(KEYS) {
                if n % 3 == 0 {
                    txn.remove(self.tree, &n.to_be_bytes()).expect("is there");
                }
                txn.put(self.tree, &n.to_be_bytes(), &vec![2; size]);
            }
        }
        txn.put(self.tree, &0u32.to_be_bytes(), &vec![9; 20_000]);
        txn.commit();
    }
}

/// Checks both trees while a transaction commits after every few pages. Returns the report and the number of
/// commits.
fn check_beside_writer(damaged: &Damaged, second: Tree, seed: u64) -> (Report, u64) {
    let mut writer = Writer { world: &damaged.world, tree: second, random: seed, commits: 0 };
    let start = || Ok::<_, TreeError>((vec![damaged.tree, second], vec![]));
    let report =
        verify_beside_writers(&damaged.world.env, start, Vec::new, None, &mut |_, _| writer.change());
    (report.expect("verify"), writer.commits)
}

#[test]
fn a_tree_that_changes_during_the_check_is_sound_and_each_key_is_seen_once() {
    let (damaged, second) = with_second_tree();
    for seed in 1..10 {
        let (report, commits) = check_beside_writer(&damaged, second, seed);
        assert!(report.is_clean(), "seed {seed}: {:#?}, {:?}", report.findings, report.leaked);
        assert!(report.is_changed && commits > 5, "{commits} commits");
        let rows: Vec<_> = report.trees.iter().map(|tree| tree.records).collect();
        assert_eq!(rows, [u64::from(KEYS) + 1, KEYS.into()], "seed {seed}");
    }
    damaged.world.assert_sound(&[damaged.tree, second], &[]);
}

#[test]
fn damage_is_found_while_another_tree_changes() {
    type Plant = fn(&Damaged) -> (PageId, &'static str);
    let plants: [Plant; 5] = [
        |damaged| {
            let leaf = damaged.leaf();
            damaged.set_u64(leaf, 48 + 3 * 16, |head| head ^ 1 << 60);
            (leaf, "do not ascend")
        },
        |damaged| {
            let leaf = damaged.leaf();
            damaged.apply(leaf, &PageOp::Release);
            (leaf, "not a node of a tree")
        },
        |damaged| {
            let middle = damaged.page(|page| page.type_number() == 4 && page.u64(40) == 3);
            damaged.set_u64(middle, 40, |index| index + 1);
            (middle, "large value")
        },
        |damaged| {
            let above = damaged.page(|page| Node::new(page).level().is_some_and(|level| level > 0));
            let guard = damaged.world.env.pool().fix(above).expect("fix").shared();
            let (first, last) = (Node::new(guard.words()).child(0), Node::new(guard.words()).count() - 1);
            drop(guard);
            let cell = first.0.to_le_bytes();
            damaged.apply(above, &PageOp::Replace { slot: last as u16, cell: Cell::inline(&cell) });
            (first, "used twice")
        },
        |damaged| {
            damaged.apply(PageId(0), &PageOp::SpaceSet { first: 9_000, count: 1 });
            (PageId(9_000), "leaked")
        },
    ];
    for plant in plants {
        let (damaged, second) = with_second_tree();
        let (page_id, what) = plant(&damaged);
        let (report, commits) = check_beside_writer(&damaged, second, 7);
        let found = report.findings.iter().any(|f| f.page_id == page_id && f.what.contains(what));
        assert!(found || report.leaked.contains(&page_id), "{what} on page {page_id}: {report:#?}");
        assert!(report.is_changed && commits > 5, "{commits} commits");
    }
}

/// A tree that is dropped, freed and overwritten during the check is not reported as damage.
#[test]
fn a_tree_that_is_freed_during_the_check_is_left_out() {
    for pages in [0, 64, 100] {
        let (damaged, second) = with_second_tree();
        let mut is_dropped = false;
        let mut drop_it = |seen: u64, _| {
            if seen < pages || is_dropped {
                return;
            }
            is_dropped = true;
            let mut txn = damaged.world.txn(3);
            txn.with(&mut NoLocks, |env, ctx| second.drop_at_commit(env, ctx)).expect("drops");
            txn.commit();
            let mut txn = damaged.world.txn(4);
            let third = txn.create(9);
            (0..KEYS).for_each(|n| drop(txn.put(third, &n.to_be_bytes(), &[3; 90])));
            txn.commit();
        };
        let start = || Ok::<_, TreeError>((vec![second, damaged.tree], vec![]));
        let report =
            verify_beside_writers(&damaged.world.env, start, Vec::new, None, &mut drop_it).expect("verify");
        assert!(report.is_clean(), "{:#?} {:?}", report.findings, report.leaked);
        assert_eq!([report.trees[0].is_freed, report.trees[1].is_freed], [true, false]);
        assert!(is_dropped);
    }
}

#[test]
fn pages_that_an_open_transaction_holds_are_no_leaks() {
    let (damaged, second) = with_second_tree();
    let mut txn = damaged.world.txn(2);
    txn.put(second, &0u32.to_be_bytes(), &vec![9; 20_000]);
    txn.commit();
    let mut txn = damaged.world.txn(3);
    txn.remove(second, &0u32.to_be_bytes());
    let third = txn.create(9);
    txn.put(third, b"large", &vec![9; 20_000]);
    let check = |held: Vec<Held>| {
        let start = || Ok::<_, TreeError>((vec![damaged.tree, second], vec![]));
        verify_beside_writers(&damaged.world.env, start, || held, None, &mut |_, _| ()).expect("verify")
    };
    let held: Vec<Held> = txn.undo.held().collect();
    assert_eq!(check(Vec::new()).leaked.len(), 1 + 2 * 5, "the tree, and two values");
    let report = check(held);
    assert!(report.is_clean() && !report.is_changed, "{:?}", report.leaked);
    txn.roll_back();
    damaged.world.assert_sound(&[damaged.tree, second], &[]);
}
