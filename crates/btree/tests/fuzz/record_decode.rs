//! Entry for random bytes as a log record. They decode to a record or a typed error, and each page operation
//! of the record is applied or rejected.

use std::collections::BTreeMap;

use azekura_base::{PageId, TreeId, TxnId};
use azekura_btree::node::{Cell, NodeSpec, Scratch};
use azekura_btree::{Carry, Head, PageOp, Record, Tree, UndoOp, change, record};

const SIZE: usize = 4096;

/// Decodes `body` and applies its operations, each to its page. A body that decodes completely encodes to the
/// same record.
pub(crate) fn record_decode(body: &[u8]) {
    let Ok(record) = Record::decode(body) else { return };
    let mut pages: BTreeMap<PageId, Scratch> = BTreeMap::new();
    let mut ops = Vec::new();
    for op in record.ops() {
        let Ok((page_id, op)) = op else { return };
        let page = pages.entry(page_id).or_insert_with(leaf);
        let checked = change::check(&op, page.page(), page_id);
        assert_eq!(checked, change::apply(&op, &mut page.page_mut(), page_id));
        let node = page.node();
        (0..node.count()).for_each(|i| drop(node.key(i)));
        ops.push((page_id, op));
    }
    let mut again = Vec::new();
    record::encode(&mut again, &record.head, ops.iter().map(|(page_id, op)| (*page_id, op)));
    let decoded = Record::decode(&again).expect("own bytes");
    assert_eq!(decoded.head, record.head);
    assert_eq!(decoded.ops().collect::<Result<Vec<_>, _>>().as_ref(), Ok(&ops));
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let tree = Tree { id: TreeId(3), root: PageId(9) };
    let (key, value) = (b"a key".as_slice(), b"some value".as_slice());
    let (cell, txn) = (Cell::inline(value), TxnId(77));
    let ops = [
        (PageId(9), PageOp::Insert { slot: 1, suffix: key, cell }),
        (PageId(9), PageOp::Replace { slot: 0, cell }),
        (PageId(9), PageOp::Flip { slot: 0, at: 2, diff: b"\x01\x02" }),
        (PageId(9), PageOp::Truncate { keep: 2, upper: b"k" }),
        (PageId(9), PageOp::LowerFence { lower: b"a" }),
        (PageId(9), PageOp::Remove { slot: 0 }),
        (PageId(8), PageOp::Image { kind: [3, 0, 0, 0], front: &[0; 24], back: key }),
        (PageId(7), PageOp::Release),
        (PageId(0), PageOp::SpaceSet { first: 4, count: 3 }),
        (PageId(0), PageOp::SpaceClear { first: 5, count: 1 }),
    ];
    let heads = [
        Head::Update { txn, undo: UndoOp::RemoveKey { tree, key } },
        Head::Update { txn, undo: UndoOp::PutBack { tree, key, cell } },
        Head::Update { txn, undo: UndoOp::Flip { tree, key, at: 2, diff: b"\x01\x02" } },
        Head::Compensate { txn },
        Head::System,
        Head::Commit { txn, has_deferred: true, time: 1 << 40, last_finished: 0 },
        Head::End { txn },
        Head::FreeStep { txn, index: 1, next_head: PageId(70) },
        Head::Carry {
            txn,
            part: Carry { is_first: true, is_last: false, is_committed: false, entries: key },
        },
    ];
    let encode = |head: &Head<'_>, ops: &[(PageId, PageOp<'_>)]| {
        let mut body = Vec::new();
        record::encode(&mut body, head, ops.iter().map(|(page_id, op)| (*page_id, op)));
        body
    };
    let alone = ops.iter().flat_map(|op| heads.iter().map(|head| encode(head, std::slice::from_ref(op))));
    let together = heads.iter().map(|head| encode(head, &ops));
    alone.chain(together).collect()
}

fn leaf() -> Scratch {
    let mut scratch = Scratch::new(SIZE);
    scratch.format(NodeSpec { level: 0, tree: TreeId(3), lower: b"", upper: b"" }).expect("sound");
    for (slot, suffix) in [b"aa".as_slice(), b"b, and longer than eight bytes", b"c"].iter().enumerate() {
        let op = PageOp::Insert { slot: slot as u16, suffix, cell: Cell::inline(b"the value") };
        change::apply(&op, &mut scratch.page_mut(), PageId(9)).expect("has room");
    }
    scratch
}
