//! Single operations on a tree of 1,000,000 records of 100 bytes, all cached, with a log that stores nothing.

use std::hint::black_box;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::{DurableLog, LogFailed, Lsn, TxnId};
use azekura_btree::{Env, EnvOptions, LeafBatch, Log, NoLocks, PutMode, Scan, Tree, UndoLog, WriteCtx};
use azekura_buffer::{BufferPool, MemStore, PoolOptions};
use azekura_wal::{AppendError, LogBufferId, Order};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const RECORDS: u64 = 1_000_000;

/// A log that numbers records and does not store them.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl DurableLog for Counter {
    fn next_lsn(&self) -> Lsn {
        Lsn(self.0.load(Relaxed) + 1)
    }
    fn durable_lsn(&self) -> Lsn {
        Lsn::MAX
    }
    fn make_durable(&self, _: Lsn) -> Result<(), LogFailed> {
        Ok(())
    }
}

impl Log for Counter {
    fn append(&self, _: LogBufferId, body: &[u8], _: Order) -> Result<Lsn, AppendError> {
        black_box(body);
        Ok(Lsn(self.0.fetch_add(1, Relaxed) + 1))
    }
}

struct World {
    env: Env,
    tree: Tree,
    undo: UndoLog,
    state: u64,
}

impl World {
    fn empty() -> Self {
        let page_size = 8192;
        let log = Arc::new(Counter::default());
        let options = PoolOptions { page_size, capacity_bytes: 600 << 20, ..PoolOptions::default() };
        let pool = BufferPool::new(options, Arc::new(MemStore::new(page_size)), log.clone()).expect("pool");
        let env = Env::new(Arc::new(pool), log, EnvOptions::default());
        let tree = env.format(LogBufferId::from_index(0)).expect("format");
        Self { env, tree, undo: UndoLog::new(), state: 1 }
    }

    fn full() -> Self {
        let mut world = Self::empty();
        (0..RECORDS).for_each(|n| world.put(n, &[7; 100]));
        world
    }

    fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.state >> 33) % RECORDS
    }

    fn put(&mut self, n: u64, value: &[u8]) {
        let log_buffer = LogBufferId::from_index(0);
        let mut ctx = WriteCtx { txn: TxnId(1), log_buffer, undo: &mut self.undo, locks: &mut NoLocks };
        let done = self.tree.put(&self.env, &mut ctx, &n.to_be_bytes(), value, PutMode::Put, None);
        black_box(done.expect("put").done());
        self.undo.clear();
    }

    fn scan(&self, mut scan: Scan, batch: &mut LeafBatch, limit: usize) -> usize {
        let mut bytes = 0;
        while !scan.is_done() {
            let outcome = scan.next_batch(&self.env, limit, &mut NoLocks, batch);
            black_box(outcome.expect("scan").done());
            bytes += (0..batch.len()).map(|i| batch.key(i).len()).sum::<usize>();
        }
        bytes
    }
}

fn reads(c: &mut Criterion) {
    let mut world = World::full();
    let mut value = Vec::new();
    c.bench_function("get, random", |b| {
        b.iter(|| {
            let key = world.roll().to_be_bytes();
            assert!(world.tree.get(&world.env, black_box(&key), &mut value).expect("get"));
        });
    });
    let mut batch = LeafBatch::new();
    let mut group = c.benchmark_group("scan");
    group.sample_size(10).throughput(Throughput::Elements(RECORDS));
    group.bench_function("everything", |b| {
        b.iter(|| world.scan(Scan::new(world.tree, Unbounded, Unbounded), &mut batch, usize::MAX));
    });
    group.finish();
    c.bench_function("scan, 50 records", |b| {
        b.iter(|| {
            let from = world.roll();
            let (from, to) = (from.to_be_bytes(), (from + 50).to_be_bytes());
            world.scan(Scan::new(world.tree, Included(&from), Excluded(&to)), &mut batch, 50)
        });
    });
}

fn writes(c: &mut Criterion) {
    let mut world = World::full();
    let mut n = 0u64;
    c.bench_function("put over 100 bytes, random", |b| {
        b.iter(|| {
            n += 1;
            let key = world.roll();
            world.put(key, &[n as u8; 100]);
        });
    });
    let mut group = c.benchmark_group("insert 100,000");
    group.sample_size(10).throughput(Throughput::Elements(100_000));
    group.bench_function("ascending", |b| {
        b.iter_batched(
            World::empty,
            |mut world| (0..100_000).for_each(|n| world.put(n, &[1; 100])),
            BatchSize::PerIteration,
        );
    });
    group.bench_function("random", |b| {
        let insert = |mut world: World| {
            for _ in 0..100_000 {
                let n = world.roll();
                world.put(n, &[1; 100]);
            }
        };
        b.iter_batched(World::empty, insert, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, reads, writes);
criterion_main!(benches);
