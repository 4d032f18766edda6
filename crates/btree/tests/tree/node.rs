//! Operations on one node compared with a sorted map, and reads of a page with random content.

use std::collections::BTreeMap;

use azekura_base::cipher::TRAILER_BYTES;
use azekura_base::{PageId, TreeId};
use azekura_btree::node::{
    Cell, Expected, Node, NodeSpec, Position, Scratch, SplitPoint, choose_split, entry_bytes, max_entry,
    max_inline_value, max_key, merged_fit, separator, verify_node,
};
use azekura_btree::{PageOp, change};
use proptest::prelude::*;

const PAGE: PageId = PageId(5);
const TREE: TreeId = TreeId(3);

fn spec<'a>(lower: &'a [u8], upper: &'a [u8]) -> NodeSpec<'a> {
    NodeSpec { level: 0, tree: TREE, lower, upper }
}

fn contradictions(node: Node<'_>, spec: NodeSpec<'_>) -> Vec<String> {
    let expected = Expected { level: spec.level, tree: spec.tree, lower: spec.lower, upper: spec.upper };
    let mut found = Vec::new();
    verify_node(node.page(), expected, &mut |what| found.push(what));
    found
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Flip(Vec<u8>, u8),
}

/// Keys between the fences `pre/b` and `pre/y`. Many share their first bytes after the prefix.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..4),
        prop::collection::vec(prop_oneof![Just(0u8), Just(b'x')], 0..14),
        (0u64..40).prop_map(|n| [b"0123456789".as_slice(), &n.to_be_bytes()].concat()),
    ]
    .prop_map(|tail| [b"pre/m".as_slice(), &tail].concat())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (key(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(k, v)| Step::Put(k, v)),
        3 => key().prop_map(Step::Remove),
        1 => (key(), any::<u8>()).prop_map(|(k, b)| Step::Flip(k, b)),
    ]
}

fn op_for<'a>(node: Node<'_>, step: &'a Step, diff: &'a mut [u8; 1]) -> Option<PageOp<'a>> {
    let (key, position) = match step {
        Step::Put(k, _) | Step::Remove(k) | Step::Flip(k, _) => (k, node.search(k)),
    };
    Some(match (step, position) {
        (Step::Put(_, v), Position::Found(i)) => PageOp::Replace { slot: i as u16, cell: Cell::inline(v) },
        (Step::Put(_, v), Position::Absent(i)) => {
            let suffix = &key[node.prefix_len()..];
            PageOp::Insert { slot: i as u16, suffix, cell: Cell::inline(v) }
        }
        (Step::Remove(_), Position::Found(i)) => PageOp::Remove { slot: i as u16 },
        (Step::Flip(_, b), Position::Found(i)) if node.slot(i).value_len > 0 => {
            diff[0] = *b;
            PageOp::Flip { slot: i as u16, at: node.slot(i).value_len - 1, diff }
        }
        _ => return None,
    })
}

fn apply_to_model(model: &mut BTreeMap<Vec<u8>, Vec<u8>>, step: &Step) {
    match step {
        Step::Put(k, v) => {
            model.insert(k.clone(), v.clone());
        }
        Step::Remove(k) => {
            model.remove(k);
        }
        Step::Flip(k, b) => {
            let last = model.get_mut(k).and_then(|v| v.last_mut()).expect("present");
            *last ^= b;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_node_is_a_sorted_map_until_it_is_full(steps in prop::collection::vec(step(), 1..250)) {
        let spec = spec(b"pre/b", b"pre/y");
        let mut scratch = Scratch::new(4096);
        scratch.format(spec).expect("fences fit");
        let mut model = BTreeMap::new();
        for step in &steps {
            let mut diff = [0];
            let Some(op) = op_for(scratch.node(), step, &mut diff) else { continue };
            let before = image(&scratch);
            if change::apply(&op, &mut scratch.page_mut(), PAGE).is_ok() {
                apply_to_model(&mut model, step);
            } else {
                prop_assert!(scratch.node().free() < 300, "refused with {} bytes free",
                    scratch.node().free());
                prop_assert_eq!(before, image(&scratch), "a refused operation changed the page");
            }
            prop_assert_eq!(contradictions(scratch.node(), spec), Vec::<String>::new());
        }
        let node = scratch.node();
        prop_assert_eq!(node.count(), model.len());
        for (i, (k, v)) in model.iter().enumerate() {
            let mut value = Vec::new();
            node.value_into(node.slot(i), &mut value);
            prop_assert_eq!((&node.key(i), &value), (k, v));
            prop_assert_eq!(node.search(k), Position::Found(i));
        }
    }

    #[test]
    fn flipping_changes_the_bits_named_and_flipping_again_undoes_it(
        old in prop::collection::vec(any::<u8>(), 0..500),
        new in prop::collection::vec(any::<u8>(), 500),
        (from, len) in (0usize..500, 0usize..500),
    ) {
        let mut scratch = Scratch::new(4096);
        scratch.format(spec(b"", b"")).expect("fences fit");
        for (slot, key) in [b"a", b"b", b"c"].into_iter().enumerate() {
            let op = PageOp::Insert { slot: slot as u16, suffix: key, cell: Cell::inline(&old) };
            change::apply(&op, &mut scratch.page_mut(), PAGE).expect("fits");
        }
        let before = image(&scratch);
        let from = from.min(old.len());
        let end = (from + len).min(old.len());
        let diff: Vec<u8> = old[from..end].iter().zip(&new[from..end]).map(|(a, b)| a ^ b).collect();
        let op = PageOp::Flip { slot: 1, at: from as u16, diff: &diff };
        change::apply(&op, &mut scratch.page_mut(), PAGE).expect("within the value");
        let expected = [&old[..from], &new[from..end], &old[end..]].concat();
        for (slot, expected) in [&old, &expected, &old].into_iter().enumerate() {
            let mut value = Vec::new();
            scratch.node().value_into(scratch.node().slot(slot), &mut value);
            prop_assert_eq!(&value, expected);
        }
        change::apply(&op, &mut scratch.page_mut(), PAGE).expect("within the value");
        prop_assert_eq!(image(&scratch), before);
    }

    #[test]
    fn every_search_finds_the_first_slot_not_below(
        keys in prop::collection::btree_set(key(), 0..60),
        probes in prop::collection::vec(key(), 1..60),
    ) {
        let keys: Vec<_> = keys.into_iter().collect();
        let mut scratch = Scratch::new(4096);
        scratch.format(spec(b"pre/b", b"pre/y")).expect("fences fit");
        fill(&mut scratch, &keys);
        for probe in probes.iter().chain(&keys) {
            let expected = keys.partition_point(|k| k < probe);
            prop_assert_eq!(scratch.node().search(probe).slot(), expected);
            let is_found = matches!(scratch.node().search(probe), Position::Found(_));
            prop_assert_eq!(is_found, keys.binary_search(probe).is_ok());
        }
    }

    /// A reader during a change may read any mix of old and new words.
    #[test]
    fn reading_rubbish_ends_without_a_panic(
        words in prop::collection::vec(any::<u64>(), 0..24),
        noise in any::<u64>(),
        probe in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut scratch = Scratch::new(4096);
        let mut state = noise;
        for i in 0..512 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let word = words.get(i).copied().unwrap_or(state);
            scratch.page_mut().set_word(i, word);
        }
        for kind in [2, 3] {
            scratch.page_mut().set_u8(4, kind);
            read_everything(scratch.node(), &probe);
        }
    }

    #[test]
    fn operations_on_rubbish_are_refused_or_harmless(
        words in prop::collection::vec(any::<u64>(), 0..12),
        noise in any::<u64>(),
        slot in 0u16..300,
        len in 0usize..600,
    ) {
        let mut scratch = Scratch::new(4096);
        let mut state = noise;
        for i in 0..512 {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            scratch.page_mut().set_word(i, words.get(i).copied().unwrap_or(state));
        }
        scratch.page_mut().set_u8(4, 3);
        scratch.page_mut().set_u8(5, 0);
        let bytes = vec![1; len];
        let cell = Cell::inline(&bytes);
        for op in [
            PageOp::Insert { slot, suffix: &bytes, cell },
            PageOp::Replace { slot, cell },
            PageOp::Remove { slot },
            PageOp::Flip { slot, at: len as u16, diff: &bytes },
            PageOp::Truncate { keep: slot, upper: &bytes },
            PageOp::LowerFence { lower: &bytes },
            PageOp::SpaceSet { first: u32::from(slot), count: len as u32 },
            PageOp::SpaceClear { first: u32::from(slot), count: len as u32 },
        ] {
            let _ = change::apply(&op, &mut scratch.page_mut(), PAGE);
        }
    }

    #[test]
    fn splits_make_room_for_every_entry(
        level in 0u8..2,
        keys in prop::collection::btree_set(long_key(), 3..60),
        // Lengths of values in thousandths of the longest value.
        value_lens in prop::collection::vec(prop_oneof![Just(0usize), 0usize..=300, Just(1000)], 60),
        new_at in any::<prop::sample::Index>(),
        new_len in prop_oneof![0usize..=1000, Just(1000)],
        (has_lower, has_upper) in any::<(bool, bool)>(),
    ) {
        let mut keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let lower = if has_lower { keys[0].clone() } else { Vec::new() };
        let upper = if has_upper { keys.pop().expect("three keys") } else { Vec::new() };
        let new = keys.remove(1 + new_at.index(keys.len() - 1));
        keys.retain(|key| *key >= lower && (level == 0 || *key > lower));
        let value_of = |key: &[u8], thousandths: usize| match level {
            0 => vec![9; max_inline_value(4096, key.len()) * thousandths / 1000],
            _ => 77_u64.to_le_bytes().to_vec(),
        };
        let mut node = Scratch::new(4096);
        node.format(NodeSpec { level, tree: TREE, lower: &lower, upper: &upper }).expect("fences fit");
        if level > 0 {
            add(&mut node, &lower, &value_of(&[], 0)).expect("fits");
        }
        let in_any_order = keys.iter().step_by(2).chain(keys.iter().skip(1).step_by(2));
        for (key, &thousandths) in in_any_order.zip(&value_lens) {
            let _ = add(&mut node, key, &value_of(key, thousandths));
        }
        let new_value = value_of(&new, new_len);
        let mut splits = 0;
        while add(&mut node, &new, &new_value).is_err() {
            let before = node.node().count();
            let cut = choose_split(node.node(), &new, new_value.len()).expect("a full node can be cut");
            let [left, right] = split(&node, &cut);
            for half in [&left, &right] {
                let (mut lower, mut upper) = (Vec::new(), Vec::new());
                half.node().lower_into(&mut lower);
                half.node().upper_into(&mut upper);
                let spec = NodeSpec { level, tree: TREE, lower: &lower, upper: &upper };
                prop_assert_eq!(contradictions(half.node(), spec), Vec::<String>::new());
            }
            prop_assert_eq!(left.node().count() + right.node().count(), before);
            node = if new < cut.separator { left } else { right };
            splits += 1;
            prop_assert!(splits <= 60, "no room after {} splits", splits);
        }
        // Nearly all nodes need one split; a node of long keys that share nothing needs a few.
        prop_assert!(splits <= 8, "{} splits", splits);
    }
}

/// Keys of up to a quarter of a page of 4 KiB. Many share a long prefix, and many differ at once.
fn long_key() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![1usize..=12, 1usize..=1024, Just(1024usize)];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 0u8..4), 0..3);
    (len, 0u8..4, changes).prop_map(|(len, first, changes)| {
        let mut key = vec![1; len];
        key[0] = first;
        for (at, byte) in changes {
            let at = at.index(len);
            key[at] = byte;
        }
        key
    })
}

/// Adds an entry if there is room. The first entry of an inner node is the one at its lower fence.
fn add(scratch: &mut Scratch, key: &[u8], value: &[u8]) -> Result<(), change::ApplyError> {
    let node = scratch.node();
    let is_first_child = node.level() == Some(1) && node.count() == 0;
    let Position::Absent(slot) = node.search(key) else { return Ok(()) };
    let suffix = if is_first_child { &[][..] } else { &key[node.prefix_len()..] };
    let op = PageOp::Insert { slot: slot as u16, suffix, cell: Cell::inline(value) };
    change::apply(&op, &mut scratch.page_mut(), PAGE)
}

/// Splits a node as the tree does.
fn split(scratch: &Scratch, cut: &SplitPoint) -> [Scratch; 2] {
    let node = scratch.node();
    let mut upper = Vec::new();
    node.upper_into(&mut upper);
    let mut left = Scratch::new(4096);
    (0..512).for_each(|i| left.page_mut().set_word(i, scratch.page().word(i)));
    let truncate = PageOp::Truncate { keep: cut.at as u16, upper: &cut.separator };
    change::apply(&truncate, &mut left.page_mut(), PAGE).expect("the left half fits");
    let level = node.level().expect("a node");
    let mut right = Scratch::new(4096);
    let spec = NodeSpec { level, tree: TREE, lower: &cut.separator, upper: &upper };
    right.format(spec).expect("fences fit");
    for i in cut.at..node.count() {
        let mut value = Vec::new();
        node.value_into(node.slot(i), &mut value);
        add(&mut right, &node.key(i), &value).expect("the right half fits");
    }
    [left, right]
}

fn fill(scratch: &mut Scratch, keys: &[Vec<u8>]) {
    for (i, key) in keys.iter().enumerate() {
        let prefix_len = scratch.node().prefix_len();
        let op = PageOp::Insert { slot: i as u16, suffix: &key[prefix_len..], cell: Cell::inline(b"v") };
        change::apply(&op, &mut scratch.page_mut(), PAGE).expect("fits");
    }
}

fn image(scratch: &Scratch) -> Vec<u8> {
    let mut out = vec![0; scratch.page().len()];
    scratch.page().copy_to(&mut out);
    out
}

fn read_everything(node: Node<'_>, probe: &[u8]) {
    let mut out = Vec::new();
    let count = node.count();
    assert!(count <= (4096 - 48) / 16);
    assert!(node.search(probe).slot() <= count);
    for i in 0..count {
        node.key_into(i, &mut out);
        node.value_into(node.slot(i), &mut out);
        let _ = node.child(i);
        out.clear();
    }
    let child = node.child(node.slot_covering(probe));
    let _ = (child, node.slot_before(probe), node.covers(probe), node.used(), node.free());
    node.lower_into(&mut out);
    node.upper_into(&mut out);
    let _ = merged_fit(node, node);
    if let Some(cut) = choose_split(node, probe, 10) {
        let _ = Scratch::new(4096).format(spec(&cut.separator, &cut.separator));
    }
    let mut buffer = Vec::new();
    let _ = PageOp::image_of(node.page(), &mut buffer);
    let expected = Expected { level: 0, tree: TREE, lower: b"a", upper: b"b" };
    verify_node(node.page(), expected, &mut |_| {});
}

#[test]
fn separators_are_as_short_as_can_be() {
    assert_eq!(separator(b"apple", b"banana"), b"b");
    assert_eq!(separator(b"car", b"cart"), b"cart");
    assert_eq!(separator(b"", b"x"), b"x");
    assert_eq!(separator(b"customer/1999", b"customer/2000"), b"customer/2");
}

#[test]
fn keys_that_end_in_zero_bytes_are_distinct() {
    let keys: Vec<Vec<u8>> =
        [&b"a"[..], b"a\0", b"a\0\0", b"a\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0\0", b"a\0\0\0\0\0\0\0\x01", b"b"]
            .iter()
            .map(|k| k.to_vec())
            .collect();
    let mut scratch = Scratch::new(4096);
    scratch.format(spec(b"", b"")).expect("fences fit");
    fill(&mut scratch, &keys);
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(scratch.node().search(key), Position::Found(i));
        assert_eq!(scratch.node().key(i), *key);
    }
}

#[test]
fn the_largest_entry_and_two_children_fit_a_node_with_the_largest_fences() {
    let whole = [4096, 8192, 16384, 32768, 65536];
    for page_size in whole.into_iter().chain(whole.map(|size| size - TRAILER_BYTES)) {
        let fence = vec![1; max_key(page_size)];
        let capacity = spec(&fence, &fence).capacity(page_size);
        assert!(max_entry(page_size) <= capacity);
        assert!(entry_bytes(0, 8) + entry_bytes(max_key(page_size), 8) <= capacity, "{page_size}");
        for key in [0, 8, 9, 100, max_key(page_size)] {
            let value = max_inline_value(page_size, key);
            assert!(entry_bytes(key, value) <= max_entry(page_size));
            assert!(entry_bytes(key, value + 1) > max_entry(page_size), "none longer fits");
        }
    }
    assert!(whole.iter().all(|&size| max_key(size) == size / 4 && max_key(size - TRAILER_BYTES) == size / 4));
    assert_eq!(whole.map(max_entry), whole.map(|size| 5 * size / 16 - 24));
}
