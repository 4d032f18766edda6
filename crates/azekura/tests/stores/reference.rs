//! Tests random transactions on the store against a `BTreeMap`, with reopening in between. The content must
//! be equal, at several page sizes, with caches of a few dozen frames. `AZEKURA_SEEDS=100` runs 100 seeds
//! (default 4).

#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::Arc;

use crate::common::{Model, Shape, assert_clean, content, deterministic, difference, run, workload};
use azekura_io::MemFs;

#[test]
fn the_store_is_what_the_model_is_after_every_transaction_and_reopening() {
    let seeds = std::env::var("AZEKURA_SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(4u64);
    for seed in 1..=seeds {
        let page_size = [4096, 8192, 16384, 65536][seed as usize % 4];
        let shape = Shape {
            txns: 60,
            ops: 30,
            keys: 1_500,
            tables: 3,
            large_values: seed % 2 == 0,
            checkpoints: seed % 3 == 0,
        };
        let fs = Arc::new(MemFs::new());
        let mut model = Model::new();
        for (life, txns) in workload(seed, shape).chunks(20).enumerate() {
            let db = deterministic(Arc::clone(&fs) as _, page_size, 32).open("db").unwrap();
            for (i, txn) in txns.iter().enumerate() {
                let outcome = run(&db, model, std::slice::from_ref(txn));
                assert!(
                    outcome.error.is_none(),
                    "seed {seed}, life {life}, transaction {i}: {:?}",
                    outcome.error
                );
                model = outcome.states.last().unwrap().clone();
                let found = content(&db).unwrap();
                assert!(
                    found == model,
                    "seed {seed}, life {life}, transaction {i}: {}",
                    difference(&model, &found)
                );
            }
            assert_clean(&db, &format!("seed {seed}, life {life}"));
            if life % 2 == 0 {
                db.close().unwrap();
            }
        }
    }
}
