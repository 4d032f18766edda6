//! Tests of large values, which backups, restores and compactions copy in pieces.

use azekura::{Error, Restore};
use azekura_io::FaultFs;

use super::{LOADED, bytes_of, contents, on, small};

/// Returns the kinds and sizes of the blocks of a backup.
fn blocks(backup: &[u8]) -> Vec<(u32, usize)> {
    let (mut at, mut found) = (84, Vec::new());
    while at < backup.len() {
        let kind = u32::from_le_bytes(backup[at..at + 4].try_into().expect("4 bytes"));
        let len = u64::from_le_bytes(backup[at + 4..at + 12].try_into().expect("8 bytes")) as usize;
        found.push((kind, len));
        at += 28 + len;
    }
    found
}

#[test]
fn large_values_are_cut_into_blocks_and_complete_in_each_copy() {
    const BLOCK: usize = 256 << 10;
    const PIECE: u32 = 7;
    let db = small().cache_bytes(16 << 20).open_in_memory().expect("opens");
    // Small values, values that end near the end of a block, and values of several runs of pages (4 MiB).
    let payload = 4096 - 40; // about that of a page
    let lens = [0, 3000, BLOCK - 20, BLOCK, 2 * BLOCK, 70 * payload, 5 << 20, 0, 8 << 20, 9_999_999, 1];
    let rows =
        || lens.iter().zip(0_u32..).map(|(&len, n)| (n, (0..len).map(|i| (i + i / 99) as u8).collect()));
    db.transact(|tx| tx.table(&LOADED)?.bulk_load::<u32, Vec<u8>>(rows())).expect("loads");
    let base = bytes_of(&db);
    let found = blocks(&base);
    assert!(found.iter().all(|&(_, len)| len < BLOCK + 8192), "{found:?}");
    assert!(found.iter().filter(|&&(kind, _)| kind == PIECE).count() > 80, "{found:?}");
    // All leaves but the last one are unchanged.
    db.transact(|tx| tx.table(&LOADED)?.insert(&1_000, &[7; 700_000][..])).expect("writes");
    let mut newer = Vec::new();
    db.backup().since_reader("base", &base[..]).to_writer(&mut newer).expect("backs up");

    let fs = FaultFs::new();
    let restore = || Restore::new().builder(on(&fs)).verify(true);
    assert_eq!(restore().verify_reader(&base[..]).expect("reads").rows, 11);
    let report = restore().from_reader(&base[..], "base").expect("restores");
    assert_eq!(report.backup.rows, 11);
    let chain = restore().base_reader("base", &base[..]).from_reader(&newer[..], "newer").expect("restores");
    assert_eq!(chain.backup.rows, 12);
    let copy = on(&fs).open("newer").expect("opens");
    assert_eq!(contents(&copy), contents(&db));
    assert_eq!(copy.compact_into("small").expect("compacts").rows, 12);
    let filtered = copy.compaction().filter(|_, _, value| value.len() != 5 << 20);
    assert_eq!(filtered.into_directory("filtered").expect("compacts").rows, 11);
    let compacted = on(&fs).open("small").expect("opens");
    assert!(compacted.check(&mut |_, _| {}).expect("checks").is_clean());
    assert_eq!(contents(&compacted), contents(&db));
    // A backup that lacks a piece, at each cut.
    let mut at = 84;
    for (kind, len) in found {
        if kind == PIECE {
            let lacks = [&base[..at], &base[at + 28 + len..]].concat();
            let error = restore().verify_reader(&lacks[..]).expect_err("lacks a block");
            assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
        }
        at += 28 + len;
    }
}
