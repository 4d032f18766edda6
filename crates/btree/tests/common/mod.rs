//! Shared test support: a store in memory, a log in memory, and an environment of both.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of this module")]

use std::sync::Arc;

use azekura_base::sync::Mutex;
use azekura_base::{DurableLog, LogFailed, Lsn, PageId, TreeId, TxnId};
use azekura_btree::{
    Deferred, Env, EnvOptions, Head, KeyLocks, Log, NoLocks, Outcome, PutMode, Record, Tree, UndoLog,
    WriteCtx, Writer, Written, free_step, record, redo, roll_back_to, verify,
};
use azekura_buffer::{BufferPool, MemStore, PoolOptions};
use azekura_wal::{AppendError, LogBufferId, Order};

/// A log in memory: record `n` has LSN `n + 1`.
#[derive(Debug, Default)]
pub struct MemLog {
    records: Mutex<Vec<Vec<u8>>>,
    /// Number of records after which the log rejects appends.
    limit: Mutex<Option<usize>>,
}

impl MemLog {
    pub fn records(&self) -> Vec<Vec<u8>> {
        self.records.lock().clone()
    }

    pub fn len(&self) -> usize {
        self.records.lock().len()
    }

    /// Returns a log with these records.
    pub fn with_records(records: &[Vec<u8>]) -> Self {
        Self { records: Mutex::new(records.to_vec()), limit: Mutex::new(None) }
    }

    /// Makes the log reject appends after `more` further records.
    pub fn break_after(&self, more: usize) {
        *self.limit.lock() = Some(self.len() + more);
    }

    pub fn repair(&self) {
        *self.limit.lock() = None;
    }
}

impl DurableLog for MemLog {
    fn next_lsn(&self) -> Lsn {
        Lsn(self.len() as u64 + 1)
    }
    fn durable_lsn(&self) -> Lsn {
        Lsn(self.len() as u64)
    }
    fn make_durable(&self, _lsn: Lsn) -> Result<(), LogFailed> {
        Ok(())
    }
}

impl Log for MemLog {
    fn append(&self, _worker: LogBufferId, body: &[u8], _: Order) -> Result<Lsn, AppendError> {
        let mut records = self.records.lock();
        if self.limit.lock().is_some_and(|limit| records.len() >= limit) {
            return Err(AppendError::Failed(LogFailed { reason: "broken by the test".into() }));
        }
        records.push(body.to_vec());
        Ok(Lsn(records.len() as u64))
    }
}

/// A store with everything in memory.
#[derive(Debug)]
pub struct World {
    pub env: Env,
    pub log: Arc<MemLog>,
}

pub const WORKER: usize = 0;

pub fn log_buffer() -> LogBufferId {
    LogBufferId::from_index(WORKER)
}

impl World {
    /// Returns a store without pages.
    pub fn blank(page_size: usize, frames: usize) -> Self {
        Self::with_options(page_size, frames, EnvOptions::default())
    }

    pub fn with_options(page_size: usize, frames: usize, options: EnvOptions) -> Self {
        Self::with_log(page_size, frames, options, MemLog::default())
    }

    /// `page_size` may be a whole page, or one without a trailer of the store.
    pub fn with_log(page_size: usize, frames: usize, options: EnvOptions, log: MemLog) -> Self {
        let log = Arc::new(log);
        let whole = page_size.next_power_of_two();
        let pool = PoolOptions { page_size: whole, capacity_bytes: frames * whole, ..PoolOptions::default() };
        let pool = BufferPool::new(pool, Arc::new(MemStore::new(whole)), log.clone()).expect("a pool");
        let pool = pool.reserving(whole - page_size);
        Self { env: Env::new(Arc::new(pool), log.clone(), options), log }
    }

    /// Returns a store with an empty catalog tree.
    pub fn new(page_size: usize, frames: usize) -> (Self, Tree) {
        let world = Self::blank(page_size, frames);
        let tree = world.env.format(log_buffer()).expect("formats");
        (world, tree)
    }

    pub fn txn(&self, id: u64) -> Txn<'_> {
        Txn { env: &self.env, id: TxnId(id), undo: UndoLog::new() }
    }

    /// Redoes all records of this world's log in another world.
    pub fn replay_into(&self, other: &Self) {
        for (i, body) in self.log.records().iter().enumerate() {
            let record = Record::decode(body).expect("own record");
            redo(&other.env, Lsn(i as u64 + 1), &record).expect("redo");
        }
    }

    /// Returns the page without its checksum.
    pub fn page(&self, id: PageId) -> Vec<u8> {
        let guard = self.env.pool().fix(id).expect("fix").shared();
        let mut out = vec![0; self.env.page_size()];
        guard.words().copy_to(&mut out);
        out[..4].fill(0);
        out
    }

    #[track_caller]
    pub fn assert_sound(&self, trees: &[Tree], pending: &[Deferred]) -> azekura_btree::Report {
        let report = verify(&self.env, trees, pending, &mut |_, _| {}).expect("verify");
        assert!(report.is_clean(), "{:#?}", report.findings);
        report
    }

    /// Returns all records of the tree, read by a forward scan.
    pub fn contents(&self, tree: Tree) -> Vec<(Vec<u8>, Vec<u8>)> {
        use std::ops::Bound::Unbounded;
        let mut scan = azekura_btree::Scan::new(tree, Unbounded, Unbounded);
        let (mut batch, mut out) = (azekura_btree::LeafBatch::new(), Vec::new());
        loop {
            let outcome = scan.next_batch(&self.env, usize::MAX, &mut NoLocks, &mut batch).expect("scan");
            assert_eq!(outcome, Outcome::Done(()));
            if batch.is_empty() {
                return out;
            }
            for i in 0..batch.len() {
                let mut value = Vec::new();
                batch.read_value(&self.env, i, &mut value).expect("value");
                out.push((batch.key(i).to_vec(), value));
            }
        }
    }
}

/// A transaction that takes no locks.
#[derive(Debug)]
pub struct Txn<'w> {
    pub env: &'w Env,
    pub id: TxnId,
    pub undo: UndoLog,
}

impl Txn<'_> {
    pub fn writer(&self) -> Writer {
        Writer { txn: self.id, log_buffer: log_buffer() }
    }

    pub fn with<R>(&mut self, locks: &mut dyn KeyLocks, f: impl FnOnce(&Env, &mut WriteCtx<'_>) -> R) -> R {
        let mut ctx = WriteCtx { txn: self.id, log_buffer: log_buffer(), undo: &mut self.undo, locks };
        f(self.env, &mut ctx)
    }

    pub fn create(&mut self, id: u32) -> Tree {
        self.with(&mut NoLocks, |env, ctx| Tree::create(env, ctx, TreeId(id))).expect("create")
    }

    #[track_caller]
    pub fn put(&mut self, tree: Tree, key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
        let mut old = Vec::new();
        let written = self
            .with(&mut NoLocks, |env, ctx| tree.put(env, ctx, key, value, PutMode::Put, Some(&mut old)))
            .expect("put");
        match written {
            Outcome::Done(Written::Inserted) => None,
            Outcome::Done(Written::Replaced) => Some(old),
            other => panic!("put came to {other:?}"),
        }
    }

    #[track_caller]
    pub fn remove(&mut self, tree: Tree, key: &[u8]) -> Option<Vec<u8>> {
        let mut old = Vec::new();
        let removed =
            self.with(&mut NoLocks, |env, ctx| tree.remove(env, ctx, key, Some(&mut old))).expect("remove");
        removed.done().expect("no locks").then_some(old)
    }

    #[track_caller]
    pub fn roll_back(&mut self) {
        self.roll_back_to(0);
        self.note(&Head::End { txn: self.id });
    }

    #[track_caller]
    pub fn roll_back_to(&mut self, len: usize) {
        let writer = self.writer();
        roll_back_to(self.env, writer, &mut self.undo, len).expect("undo");
    }

    /// Appends a record without page operations.
    #[track_caller]
    pub fn note(&self, head: &Head<'_>) {
        let mut body = Vec::new();
        record::encode(&mut body, head, std::iter::empty());
        self.env.log().append(log_buffer(), &body, Order::Newest).expect("append");
    }

    /// Commits, and performs the deferred frees.
    #[track_caller]
    pub fn commit(&mut self) {
        let has_deferred = !self.undo.deferred_frees().is_empty();
        self.note(&Head::Commit { txn: self.id, has_deferred, time: 0, last_finished: 0 });
        self.free_deferred();
        if has_deferred {
            self.note(&Head::End { txn: self.id });
        }
        self.undo.clear();
    }

    #[track_caller]
    fn free_deferred(&self) {
        for (index, item) in self.undo.deferred_frees().into_iter().enumerate() {
            let mut left = Some(item);
            while let Some(what) = left {
                left = free_step(self.env, self.writer(), index as u64, what).expect("free step");
            }
        }
    }
}

/// Returns the value of a key.
#[track_caller]
pub fn get(env: &Env, tree: Tree, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    tree.get(env, key, &mut out).expect("get").then_some(out)
}
