//! Any bytes decode to a log record or a typed error, and never cause a panic.

use azekura_base::{PageId, TreeId, TxnId};
use azekura_btree::node::{Cell, FLAG_OVERFLOW};
use azekura_btree::{Carry, Head, PageOp, Record, RecordError, Tree, UndoOp, record};
use proptest::prelude::*;

fn walk(body: &[u8]) -> Result<usize, RecordError> {
    Record::decode(body)?.ops().try_fold(0, |n, op| op.map(|_| n + 1))
}

#[derive(Clone, Debug)]
enum Owned {
    Image(Vec<u8>, Vec<u8>),
    Insert(u16, Vec<u8>, Vec<u8>, bool),
    Remove(u16),
    Replace(u16, Vec<u8>, bool),
    Flip(u16, u16, Vec<u8>),
    Truncate(u16, Vec<u8>),
    LowerFence(Vec<u8>),
    Set(u32, u32),
    Clear(u32, u32),
    Release,
}

fn cell(value: &[u8], is_large: bool) -> Cell<'_> {
    Cell { flags: if is_large { FLAG_OVERFLOW } else { 0 }, value }
}

impl Owned {
    fn op(&self) -> PageOp<'_> {
        match self {
            Self::Image(front, back) => PageOp::Image { kind: [3, 0, 1, 0], front, back },
            Self::Insert(slot, suffix, v, l) => PageOp::Insert { slot: *slot, suffix, cell: cell(v, *l) },
            Self::Remove(slot) => PageOp::Remove { slot: *slot },
            Self::Replace(slot, v, l) => PageOp::Replace { slot: *slot, cell: cell(v, *l) },
            Self::Flip(slot, at, diff) => PageOp::Flip { slot: *slot, at: *at, diff },
            Self::Truncate(keep, upper) => PageOp::Truncate { keep: *keep, upper },
            Self::LowerFence(lower) => PageOp::LowerFence { lower },
            Self::Set(first, count) => PageOp::SpaceSet { first: *first, count: *count },
            Self::Clear(first, count) => PageOp::SpaceClear { first: *first, count: *count },
            Self::Release => PageOp::Release,
        }
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn op() -> impl Strategy<Value = Owned> {
    prop_oneof![
        (bytes(), bytes()).prop_map(|(a, b)| Owned::Image(a, b)),
        (any::<u16>(), bytes(), bytes(), any::<bool>()).prop_map(|(s, k, v, l)| Owned::Insert(s, k, v, l)),
        any::<u16>().prop_map(Owned::Remove),
        (any::<u16>(), bytes(), any::<bool>()).prop_map(|(s, v, l)| Owned::Replace(s, v, l)),
        (any::<u16>(), any::<u16>(), bytes()).prop_map(|(s, a, d)| Owned::Flip(s, a, d)),
        (any::<u16>(), bytes()).prop_map(|(k, u)| Owned::Truncate(k, u)),
        bytes().prop_map(Owned::LowerFence),
        (any::<u32>(), any::<u32>()).prop_map(|(f, c)| Owned::Set(f, c)),
        (any::<u32>(), any::<u32>()).prop_map(|(f, c)| Owned::Clear(f, c)),
        Just(Owned::Release),
    ]
}

/// Returns a head; each `n` gives another kind.
fn head<'a>(n: usize, txn: TxnId, tree: Tree, key: &'a [u8], value: &'a [u8]) -> Head<'a> {
    let undo = [
        UndoOp::RemoveKey { tree, key },
        UndoOp::PutBack { tree, key, cell: cell(value, false) },
        UndoOp::PutBack { tree, key, cell: cell(value, true) },
        UndoOp::Flip { tree, key, at: 3, diff: value },
        UndoOp::FreePages { first: tree.root, count: 16 },
        UndoOp::DropTree { tree },
        UndoOp::KeepTree { tree },
        UndoOp::EmptyTree { tree, covers: tree.root.0, last_finished: 1 << 33 },
    ];
    match n {
        0 => Head::System,
        1 => Head::Compensate { txn },
        2 => Head::Commit { txn, has_deferred: true, time: 1 << 50, last_finished: 1 << 40 },
        3 => Head::Commit { txn, has_deferred: false, time: 0, last_finished: 0 },
        4 => Head::End { txn },
        5 => Head::FreeStep { txn, index: 700, next_head: tree.root },
        n @ 6..=13 => Head::Update { txn, undo: undo[n - 6] },
        n => {
            let part =
                Carry { is_first: n & 1 != 0, is_last: n & 2 != 0, is_committed: n & 4 != 0, entries: value };
            Head::Carry { txn, part }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_round_trips(
        n in 0usize..22,
        txn in any::<u64>(),
        root in any::<u64>(),
        (key, value) in (bytes(), bytes()),
        ops in prop::collection::vec((any::<u64>(), op()), 0..6),
    ) {
        let tree = Tree { id: TreeId(txn as u32), root: PageId(root) };
        let head = head(n, TxnId(txn), tree, &key, &value);
        let ops: Vec<(PageId, PageOp<'_>)> = ops.iter().map(|(id, op)| (PageId(*id), op.op())).collect();
        let mut body = Vec::new();
        record::encode(&mut body, &head, ops.iter().map(|(id, op)| (*id, op)));
        let decoded = Record::decode(&body).expect("own bytes");
        prop_assert_eq!(decoded.head, head);
        prop_assert_eq!(decoded.ops().collect::<Result<Vec<_>, _>>().expect("own bytes"), ops);
        // A record cut at any length decodes to an error or a shorter record.
        for len in 0..body.len() {
            if let Ok(n) = walk(&body[..len]) {
                prop_assert!(n <= decoded.ops().count());
            }
        }
    }

    #[test]
    fn any_bytes_decode_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = walk(&body);
        for kind in 0..9 {
            let mut body = body.clone();
            body.insert(0, kind);
            let _ = walk(&body);
        }
    }
}

#[test]
fn an_unknown_kind_is_named() {
    assert_eq!(walk(&[77, 1, 2]), Err(RecordError::UnknownKind { kind: 77 }));
    assert_eq!(walk(&[]), Err(RecordError::Empty));
    assert_eq!(walk(&[3, 99, 0]), Err(RecordError::BadOperation { tag: 99 }));
}
