//! Entry for pages with random content. All functions that read a node, and every page operation, return an
//! answer or a typed error.

use azekura_base::{PageId, TreeId};
use azekura_btree::node::{
    Cell, Expected, FLAG_OVERFLOW, Node, NodeSpec, Scratch, choose_split, merged_fit, verify_node,
};
use azekura_btree::{PageOp, change, space};

const SIZE: usize = 4096;
const PAGE: PageId = PageId(5);
const TREE: TreeId = TreeId(3);

/// Decodes a page. The first byte of `data` selects the base page (empty, leaf, inner); patches follow
/// (offset, length, bytes).
pub(crate) fn page_decode(data: &[u8]) {
    let (&base, patches) = data.split_first().unwrap_or((&0, &[]));
    let mut scratch = match base % 3 {
        0 => Scratch::new(SIZE),
        1 => sound(0),
        _ => sound(1),
    };
    patch(&mut scratch, patches);
    let key = &data[data.len() / 2..];
    read_everything(scratch.node(), key);
    for op in operations(data, key) {
        try_operation(&scratch, &op);
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    (0..3)
        .flat_map(|base| {
            [vec![base], vec![base, 6, 0, 2, 9, 0], vec![base, 48, 0, 4, 1, 2, 3, 4, 24, 0, 2, 7, 0]]
        })
        .collect()
}

/// Returns a valid node of level 0 or 1, half full.
fn sound(level: u8) -> Scratch {
    let mut scratch = Scratch::new(SIZE);
    let spec = NodeSpec { level, tree: TREE, lower: b"prefix/a", upper: b"prefix/z" };
    scratch.format(spec).expect("sound");
    for n in 0..60u16 {
        let suffix = if n == 0 {
            b"a".to_vec()
        } else {
            format!("b{n:03}{}", "x".repeat(usize::from(n % 13))).into_bytes()
        };
        let value = u64::from(n).to_le_bytes();
        let op = PageOp::Insert { slot: n, suffix: &suffix, cell: Cell::inline(&value) };
        change::apply(&op, &mut scratch.page_mut(), PAGE).expect("has room");
    }
    scratch
}

fn patch(scratch: &mut Scratch, mut patches: &[u8]) {
    while let [low, high, len, rest @ ..] = patches {
        let at = usize::from(u16::from_le_bytes([*low, *high])) % SIZE;
        let (bytes, behind) = rest.split_at(rest.len().min(usize::from(*len)).min(SIZE - at));
        scratch.page_mut().write(at, bytes);
        patches = behind;
    }
}

fn read_everything(node: Node<'_>, key: &[u8]) {
    let count = node.count();
    for key in [key, b"", b"prefix/b030", b"prefix/b030xxxx"] {
        let slots = [node.search(key).slot(), node.slot_covering(key), node.slot_before(key)];
        assert!(slots.iter().all(|&slot| slot <= count), "a slot beyond the node");
        let _ = (node.child(node.slot_covering(key)), node.covers(key), node.is_below_upper(key));
        if let Some(split) = choose_split(node, key, key.len()) {
            let _ = format!("{split:?}");
        }
    }
    let mut value = Vec::new();
    for i in 0..count {
        let key = node.key(i);
        assert!(node.search(&key).slot() <= count, "a slot beyond the node");
        value.clear();
        node.value_into(node.slot(i), &mut value);
        let _ = node.child(i);
    }
    let _ = (node.level(), node.free(), node.used(), merged_fit(node, node));
    let (mut lower, mut upper) = (Vec::new(), Vec::new());
    node.lower_into(&mut lower);
    node.upper_into(&mut upper);
    let expected =
        Expected { level: node.level().unwrap_or(0), tree: node.tree(), lower: &lower, upper: &upper };
    verify_node(node.page(), expected, &mut |what| assert!(!what.is_empty()));
    for bit in [0, 1, 8 * SIZE as u32 - 1, u32::MAX] {
        let _ = space::is_used(node.page(), bit);
    }
}

/// Returns one operation of each kind, with numbers and bytes from the input.
fn operations<'a>(data: &'a [u8], key: &'a [u8]) -> [PageOp<'a>; 12] {
    let number = |i: usize| data.get(data.len().saturating_sub(2 * i + 2)..).and_then(<[u8]>::first_chunk);
    let number = |i: usize| number(i).map_or(0, |&bytes: &[u8; 2]| u16::from_le_bytes(bytes));
    let (slot, wild) = (number(0) % 70, number(1));
    let short = &key[..key.len().min(300)];
    let reference = [7; 16];
    let cell = Cell { flags: FLAG_OVERFLOW, value: &reference[..] };
    let cell = if wild % 2 == 0 { Cell::inline(short) } else { Cell { flags: cell.flags, value: short } };
    [
        PageOp::Insert { slot, suffix: short, cell },
        PageOp::Insert { slot: wild, suffix: key, cell: Cell::inline(key) },
        PageOp::Remove { slot },
        PageOp::Replace { slot, cell },
        PageOp::Flip { slot, at: wild % 16, diff: &short[..short.len().min(4)] },
        PageOp::Truncate { keep: slot, upper: b"prefix/b040" },
        PageOp::Truncate { keep: wild, upper: short },
        PageOp::LowerFence { lower: short },
        PageOp::SpaceSet { first: wild.into(), count: slot.into() },
        PageOp::SpaceClear { first: wild.into(), count: slot.into() },
        PageOp::Image { kind: [wild as u8, 0, 1, 0], front: short, back: short },
        PageOp::Release,
    ]
}

/// Applies an operation. A rejected operation changes nothing; a checked operation succeeds, and leaves a
/// readable page.
fn try_operation(before: &Scratch, op: &PageOp<'_>) {
    let mut page = copy_of(before);
    let checked = change::check(op, before.page(), PAGE);
    let applied = change::apply(op, &mut page.page_mut(), PAGE);
    assert_eq!(checked, applied, "checking is not what doing says");
    if applied.is_err() {
        assert_eq!(bytes_of(before), bytes_of(&page), "refused, and yet changed");
    } else {
        let mut buffer = Vec::new();
        let image = PageOp::image_of(page.page(), &mut buffer);
        let _ = change::check(&image, page.page(), PAGE);
        read_everything(page.node(), b"prefix/b0");
    }
}

fn bytes_of(scratch: &Scratch) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    scratch.page().copy_to(&mut bytes);
    bytes
}

fn copy_of(scratch: &Scratch) -> Scratch {
    let mut copy = Scratch::new(SIZE);
    copy.page_mut().copy_from(&bytes_of(scratch));
    copy
}
