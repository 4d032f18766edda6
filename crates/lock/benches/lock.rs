//! The cost of one lock with its release, and of a transaction's intents.
//!
//! Each measurement is a whole transaction: `begin`, its locks, `release_all`. Subtract the empty one.

use azekura_base::{Lsn, TreeId, TxnId};
use azekura_lock::{KeyMode, KeyRef, LockOptions, LockTable, TableMode};
use criterion::{Criterion, criterion_group, criterion_main};

const TREE: TreeId = TreeId(1);

/// Returns the keys of a working set that does not fit the first-level cache.
fn keys() -> Vec<[u8; 12]> {
    (0u32..1 << 16)
        .map(|n| {
            let mut key = *b"user00000000";
            key[4..].copy_from_slice(format!("{:08x}", n.wrapping_mul(0x9E37_79B9)).as_bytes());
            key
        })
        .collect()
}

fn transactions(c: &mut Criterion) {
    let table = LockTable::new(LockOptions::default());
    let keys = keys();
    let mut group = c.benchmark_group("transaction");
    let mut next = 0u64;
    let mut run = |name: &str, locks: usize, intent: bool, mode: KeyMode| {
        group.bench_function(name, |b| {
            b.iter(|| {
                next += 1;
                let mut t = table.begin(TxnId(next));
                if intent {
                    let _ = table.lock_table(&mut t, TREE, TableMode::IX);
                }
                for n in 0..locks {
                    let key = &keys[(next as usize * 16 + n) % keys.len()];
                    let _ = table.lock_key(&mut t, TREE, KeyRef::Key(key), mode);
                }
                table.release_all(t, Some(Lsn(next)));
            });
        });
    };
    run("empty", 0, false, KeyMode::READ);
    run("IX on a table", 0, true, KeyMode::READ);
    run("IX and 1 key X", 1, true, KeyMode::UPDATE);
    run("IX and 10 keys X", 10, true, KeyMode::UPDATE);
    run("IX and 10 keys S", 10, true, KeyMode::READ);
    run("IX and 1000 keys S", 1000, true, KeyMode::READ);
    group.finish();
}

fn covered(c: &mut Criterion) {
    let table = LockTable::new(LockOptions::default());
    let mut t = table.begin(TxnId(1));
    c.bench_function("a key that is held already", |b| {
        b.iter(|| table.lock_key(&mut t, TREE, KeyRef::Key(b"user00000000"), KeyMode::READ));
    });
    table.release_all(t, None);
}

criterion_group!(benches, transactions, covered);
criterion_main!(benches);
