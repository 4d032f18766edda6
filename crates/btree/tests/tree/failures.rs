//! A failed operation changes nothing, reports its cause, and can be retried.

use crate::common::{Txn, World, get};
use azekura_base::{PageId, TreeId};
use azekura_btree::node::Node;
use azekura_btree::{
    ChainWriter, EnvOptions, MAX_VALUE, NoLocks, Outcome, PutMode, Tree, TreeError, Written,
    max_inline_value, max_key, verify,
};
use azekura_buffer::{FixError, Peek};
use azekura_wal::AppendError;

const CATALOGUE: Tree = Tree { id: TreeId(0), root: PageId(1) };

fn put(txn: &mut Txn<'_>, tree: Tree, key: &[u8], value: &[u8]) -> Result<Outcome<Written>, TreeError> {
    txn.with(&mut NoLocks, |env, ctx| tree.put(env, ctx, key, value, PutMode::Put, None))
}

fn key(n: u32) -> Vec<u8> {
    // Keys long enough for a tree of three levels.
    format!("{n:0>200}").into_bytes()
}

/// A failed append leaves the tree unchanged, at every record of an insertion in turn, including splits of
/// three levels.
#[test]
fn a_full_log_leaves_the_tree_unchanged() {
    let (world, tree) = World::new(4096, 500);
    let mut txn = world.txn(1);
    let mut most = 0;
    for n in 0..500 {
        let k = key(n * 7919 % 1000);
        let mut records = 0;
        loop {
            world.log.break_after(records);
            let before = (world.contents(tree).len(), txn.undo.len());
            let outcome = put(&mut txn, tree, &k, &[1; 100]);
            world.log.repair();
            match outcome {
                Ok(done) => {
                    assert_eq!(done, Outcome::Done(Written::Inserted));
                    break;
                }
                Err(TreeError::Append(AppendError::Failed(_))) => {}
                Err(other) => panic!("{other}"),
            }
            assert_eq!(before, (world.contents(tree).len(), txn.undo.len()));
            world.assert_sound(&[tree], &[]);
            records += 1;
        }
        most = most.max(records);
        if n > 40 && n % 40 != 0 {
            // From here on checked only sometimes: the check of the whole store is slow.
            assert!(put(&mut txn, tree, &key(2000 + n), &[1; 100]).is_ok());
        }
    }
    // Splits of a failed attempt remain, so the next attempt needs fewer records.
    assert!(most >= 2, "an insertion with splits takes several records");
    assert!(world.assert_sound(&[tree], &[]).trees[0].height >= 3);
    txn.roll_back();
    assert!(world.contents(tree).is_empty());
}

#[test]
fn a_rollback_that_fails_halfway_can_be_continued() {
    let (world, tree) = World::new(4096, 500);
    let mut txn = world.txn(1);
    for n in 0..100 {
        txn.put(tree, &key(n), &[2; 300]);
    }
    txn.commit();
    for n in 0..100 {
        match n % 3 {
            0 => assert!(txn.remove(tree, &key(n)).is_some()),
            1 => assert!(txn.put(tree, &key(n), &[3; 9000]).is_some()),
            _ => assert!(txn.put(tree, &key(n), &[4; 300]).is_some()),
        }
    }
    while !txn.undo.is_empty() {
        world.log.break_after(7);
        let writer = txn.writer();
        let _ = azekura_btree::roll_back_to(&world.env, writer, &mut txn.undo, 0);
        world.log.repair();
        // Pages of a removed large value have no owner until they are freed.
        let report = verify(&world.env, &[tree], &[], &mut |_, _| {}).expect("verify");
        assert_eq!(report.findings, []);
    }
    world.assert_sound(&[tree], &[]);
    let expected: Vec<_> = (0..100).map(|n| (key(n), vec![2; 300])).collect();
    assert_eq!(world.contents(tree), expected);
}

#[test]
fn a_full_store_returns_an_error_and_keeps_its_rows() {
    let options = EnvOptions { max_pages: 40, ..EnvOptions::default() };
    let world = World::with_options(4096, 100, options);
    let tree = world.env.format(crate::common::log_buffer()).expect("format");
    let mut txn = world.txn(1);
    let mut n = 0;
    let error = loop {
        match put(&mut txn, tree, &key(n), &[5; 400]) {
            Ok(_) => n += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TreeError::SpaceFull { pages: 40 }), "{error}");
    assert!(n > 100);
    assert_eq!(world.contents(tree).len() as u32, n);
    world.assert_sound(&[tree], &[]);

    // Rolling back the transaction frees a large value that does not fit.
    txn.commit();
    for n in 0..20 {
        txn.remove(tree, &key(n));
    }
    txn.commit();
    let before = world.contents(tree);
    assert!(matches!(put(&mut txn, tree, b"large", &vec![6; 100 * 4096]), Err(TreeError::SpaceFull { .. })));
    txn.roll_back();
    assert_eq!(world.contents(tree), before);
    world.assert_sound(&[tree], &[]);
}

#[test]
fn keys_and_values_beyond_the_bounds_are_refused_by_name() {
    for page_size in [4096, 8192, 65536] {
        let (world, tree) = World::new(page_size, 100);
        let mut txn = world.txn(1);
        let longest = vec![7; max_key(page_size)];
        let inline = vec![8; max_inline_value(page_size, longest.len())];
        txn.put(tree, &longest, &inline);
        txn.put(tree, b"", b"");
        let mut too_long = longest.clone();
        too_long.push(0);
        assert!(matches!(
            put(&mut txn, tree, &too_long, b""),
            Err(TreeError::KeyTooLong { len, max }) if len == max + 1 && max == max_key(page_size)
        ));
        assert_eq!(get(&world.env, tree, &too_long), None, "nothing can be there");
        assert_eq!(txn.remove(tree, &too_long), None);
        assert_eq!(get(&world.env, tree, b"").as_deref(), Some(&b""[..]));
        assert_eq!(get(&world.env, tree, &longest), Some(inline));
    }
    assert_eq!(MAX_VALUE, 1 << 30);
    // The length of a value in pieces is that of all pieces. The zeroes of the second one are never read.
    let (world, _) = World::new(8192, 100);
    let piece = vec![0; MAX_VALUE as usize];
    let refused = world.txn(1).with(&mut NoLocks, |env, ctx| {
        let mut chain = ChainWriter::new();
        chain.append(env, ctx, &[0])?;
        chain.append(env, ctx, &piece)
    });
    assert!(matches!(refused, Err(TreeError::ValueTooLong { len, max: MAX_VALUE }) if len == MAX_VALUE + 1));
}

#[test]
fn a_value_of_64_mib_goes_in_comes_out_and_leaves_nothing_behind() {
    let (world, tree) = World::new(65536, 1100);
    let mut txn = world.txn(1);
    let large: Vec<u8> = (0..64 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    assert_eq!(txn.put(tree, b"k", &large), None);
    assert!(get(&world.env, tree, b"k").is_some_and(|value| value == large));
    world.assert_sound(&[tree], &[]);
    txn.commit();
    assert!(txn.put(tree, b"k", b"small").is_some_and(|old| old == large));
    world.assert_sound(&[tree], &txn.undo.deferred_frees());
    txn.commit();
    let report = world.assert_sound(&[tree], &[]);
    assert_eq!(report.trees[0].overflow_pages, 0);
}

#[test]
fn a_pool_with_too_few_frames_returns_an_error() {
    let (world, tree) = World::new(4096, 6);
    let mut txn = world.txn(1);
    for n in 0..200 {
        txn.put(tree, &key(n), &[5; 100]);
    }
    // A run of 16 new pages does not fit six frames.
    let error = put(&mut txn, tree, b"large", &vec![6; 40 * 4096]).expect_err("too few frames");
    assert!(matches!(error, TreeError::Fix(FixError::PoolExhausted { .. })), "{error}");
    txn.roll_back();
    assert!(world.contents(tree).is_empty());
    world.assert_sound(&[CATALOGUE], &[]);
}

#[test]
fn a_store_is_not_formatted_twice() {
    let (world, tree) = World::new(4096, 20);
    let mut txn = world.txn(1);
    txn.put(tree, b"k", b"v");
    assert!(matches!(world.env.format(crate::common::log_buffer()), Err(TreeError::Corrupt { .. })));
    assert_eq!(get(&world.env, tree, b"k").as_deref(), Some(&b"v"[..]));
}

/// Undo frees all pages of a tree of three levels with large values, by small records.
#[test]
fn undoing_the_creation_of_a_tree_frees_all_that_is_in_it() {
    let (world, catalogue) = World::new(4096, 2000);
    let mut creator = world.txn(1);
    let tree = creator.create(7);
    let mut writer = world.txn(2);
    for n in 0..900 {
        let len = if n % 300 == 0 { 2_000_000 } else { 100 };
        writer.put(tree, &key(n), &vec![1; len]);
    }
    writer.undo.clear();
    assert!(world.assert_sound(&[catalogue, tree], &[]).trees[1].height >= 3);
    let before = world.log.len();
    creator.roll_back();
    world.assert_sound(&[catalogue], &[]);
    let records = &world.log.records()[before..];
    assert!(records.len() > 15, "{} records", records.len());
    assert!(records.iter().all(|body| body.len() < 4096), "each step is of bounded size");
}

/// A reader of a snapshot copies a leaf of an uncommitted load, then learns that the load's transaction was
/// rolled back, and then validates the leaf.
#[test]
fn no_page_of_a_removed_tree_is_valid_for_an_earlier_reader() {
    let (world, _) = World::new(4096, 2000);
    let mut creator = world.txn(1);
    let tree = creator.create(7);
    let mut writer = world.txn(2);
    (0..900).for_each(|n| drop(writer.put(tree, &key(n), &[1; 100])));
    writer.undo.clear();
    let of_tree = |id: u64| match world.env.pool().peek(PageId(id)) {
        Peek::Page(page) if Node::new(page.words()).level().is_some() => {
            (Node::new(page.words()).tree() == tree.id).then_some(page)
        }
        _ => None,
    };
    let read: Vec<_> = (0..2000).filter_map(of_tree).collect();
    assert!(read.len() > 20 && read.iter().all(|page| page.is_valid()), "{} pages", read.len());
    creator.roll_back();
    let valid = read.iter().filter(|page| page.is_valid()).count();
    assert_eq!(valid, 0, "of {} pages", read.len());
}
