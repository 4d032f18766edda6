//! RocksDB, with three configurations. All write the log with `sync` at each commit, and use a Bloom filter
//! and no compression.
//!
//! - `rocksdb`: a write batch per transaction, usual settings. No isolation between transactions that read
//!   and write.
//! - `rocksdb-tuned`: as `rocksdb`, with pipelined writes and recycled logs.
//! - `rocksdb-txn`: as `rocksdb-tuned`, with pessimistic transactions and deadlock detection. Reads inside of
//!   writing transactions lock their keys, as a serializable engine must. Scans lock nothing.
//!
//! Reads outside of writing transactions return the newest committed state. Several reads are not one
//! snapshot.
//!
//! - **ROCKS-1** Handles are freed once, by the `Drop` of the value that owns them; sessions borrow the
//!   store.
//! - **ROCKS-2** A database and its options may be used by several threads at once. A batch, transaction or
//!   iterator is used by one thread, and stays inside of one session.
//! - **ROCKS-3** The bytes of a slice or an iterator are valid until the slice is freed, or the iterator is
//!   moved or freed.

use super::described;
use super::rocksdb_sys::*;
use azekura_lab::engine::{ReadWork, WriteWork, retry_conflicts};
use azekura_lab::{Engine, EngineError, EngineSettings, Reader, Session, Sink, Store, Writer};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// The engine, with one of three configurations.
#[derive(Debug)]
pub(crate) struct RocksDb {
    name: &'static str,
    tuned: bool,
    transactional: bool,
}

impl RocksDb {
    /// Returns the engine with usual settings.
    #[must_use]
    pub(crate) const fn plain() -> Self {
        Self { name: "rocksdb", tuned: false, transactional: false }
    }

    /// Returns the engine with pipelined writes and recycled logs.
    #[must_use]
    pub(crate) const fn tuned() -> Self {
        Self { name: "rocksdb-tuned", tuned: true, transactional: false }
    }

    /// Returns the engine with the tuned settings and locking transactions.
    #[must_use]
    pub(crate) const fn transactional() -> Self {
        Self { name: "rocksdb-txn", tuned: true, transactional: true }
    }
}

impl Engine for RocksDb {
    fn name(&self) -> &str {
        self.name
    }

    fn describe(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        described([
            ("durability", "sync of the log at each commit".into()),
            ("cache_bytes", settings.described_cache()),
            ("bloom_bits_per_key", "10".into()),
            ("pipelined_write", self.tuned.to_string()),
            ("recycled_logs", if self.tuned { "4" } else { "0" }.into()),
            ("transactions", if self.transactional { "pessimistic" } else { "none" }.into()),
            ("direct_io", settings.bypass_page_cache.to_string()),
        ])
    }

    fn isolates(&self) -> bool {
        self.transactional
    }

    fn open(&self, dir: &Path, settings: &EngineSettings) -> Result<Box<dyn Store>, EngineError> {
        let name = CString::new(dir.as_os_str().as_bytes()).map_err(|e| EngineError::failed("opening", e))?;
        let options = self.options(settings);
        // SAFETY: the options and the name outlive the calls, which copy the settings. The options are freed
        // once.
        let opened = unsafe {
            let opened = if self.transactional {
                let transactions = rocksdb_transactiondb_options_create();
                let db =
                    call("opening", |e| rocksdb_transactiondb_open(options, transactions, name.as_ptr(), e));
                rocksdb_transactiondb_options_destroy(transactions);
                db.map(Handle::Transactional)
            } else {
                call("opening", |e| rocksdb_open(options, name.as_ptr(), e)).map(Handle::Plain)
            };
            rocksdb_options_destroy(options);
            opened
        };
        Ok(Box::new(RocksStore::new(opened?)))
    }
}

impl RocksDb {
    fn options(&self, settings: &EngineSettings) -> *mut Options {
        // SAFETY: each handle is created here and freed once. The cache and the table options are
        // reference-counted, and the filter belongs to the table options.
        unsafe {
            let options = rocksdb_options_create();
            rocksdb_options_set_create_if_missing(options, 1);
            rocksdb_options_set_compression(options, 0);
            rocksdb_options_set_max_background_jobs(options, 2);
            if self.tuned {
                rocksdb_options_set_enable_pipelined_write(options, 1);
                rocksdb_options_set_recycle_log_file_num(options, 4);
            }
            if settings.bypass_page_cache {
                rocksdb_options_set_use_direct_reads(options, 1);
                rocksdb_options_set_use_direct_io_for_flush_and_compaction(options, 1);
            }
            let table = rocksdb_block_based_options_create();
            if let Some(bytes) = settings.cache_bytes {
                let cache = rocksdb_cache_create_lru(usize::try_from(bytes).unwrap_or(usize::MAX));
                rocksdb_block_based_options_set_block_cache(table, cache);
                rocksdb_cache_destroy(cache);
            }
            rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom(10.0));
            rocksdb_options_set_block_based_table_factory(options, table);
            rocksdb_block_based_options_destroy(table);
            options
        }
    }
}

/// Calls a function of the library, and converts its error text to an error.
fn call<T>(doing: &'static str, function: impl FnOnce(Error) -> T) -> Result<T, EngineError> {
    let mut error: *mut c_char = ptr::null_mut();
    let result = function(&raw mut error);
    if error.is_null() {
        return Ok(result);
    }
    // SAFETY: the library returned a text that ends with a zero, and that the caller must free.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        rocksdb_free(error.cast());
        text
    };
    // Classes of status with which a transaction fails because of a conflict.
    let lost = ["Resource busy", "Operation timed out", "Operation failed. Try again"];
    Err(if lost.iter().any(|class| text.starts_with(class)) {
        EngineError::conflict(doing, text)
    } else {
        EngineError::failed(doing, text)
    })
}

#[derive(Clone, Copy)]
enum Handle {
    Plain(*mut Db),
    Transactional(*mut TransactionDb),
}

struct RocksStore {
    db: Handle,
    read: *mut ReadOptions,
    write: *mut WriteOptions,
    transaction: *mut TransactionOptions,
}

// SAFETY: ROCKS-2.
unsafe impl Send for RocksStore {}
// SAFETY: ROCKS-2.
unsafe impl Sync for RocksStore {}

impl RocksStore {
    fn new(db: Handle) -> Self {
        // SAFETY: created here, freed by `Drop`.
        unsafe {
            let write = rocksdb_writeoptions_create();
            rocksdb_writeoptions_set_sync(write, 1);
            let transaction = rocksdb_transaction_options_create();
            rocksdb_transaction_options_set_deadlock_detect(transaction, 1);
            Self { db, read: rocksdb_readoptions_create(), write, transaction }
        }
    }
}

impl Drop for RocksStore {
    fn drop(&mut self) {
        // SAFETY: ROCKS-1: no session exists.
        unsafe {
            match self.db {
                Handle::Plain(db) => rocksdb_close(db),
                Handle::Transactional(db) => rocksdb_transactiondb_close(db),
            }
            rocksdb_readoptions_destroy(self.read);
            rocksdb_writeoptions_destroy(self.write);
            rocksdb_transaction_options_destroy(self.transaction);
        }
    }
}

impl Store for RocksStore {
    fn session(&self) -> Result<Box<dyn Session + '_>, EngineError> {
        Ok(match self.db {
            Handle::Plain(db) => {
                // SAFETY: created here, freed by the session's `Drop`.
                let batch = unsafe { rocksdb_writebatch_create() };
                Box::new(Plain { db, batch, store: self })
            }
            Handle::Transactional(db) => Box::new(Locking { db, current: ptr::null_mut(), store: self }),
        })
    }
}

/// A session that collects a transaction's writes in a batch.
struct Plain<'s> {
    db: *mut Db,
    batch: *mut Batch,
    store: &'s RocksStore,
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        // SAFETY: ROCKS-1.
        unsafe { rocksdb_writebatch_destroy(self.batch) }
    }
}

impl Session for Plain<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        work(self)?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        // SAFETY: ROCKS-1, ROCKS-2.
        unsafe { rocksdb_writebatch_clear(self.batch) };
        work(self)?;
        // SAFETY: ROCKS-1, ROCKS-2.
        call("committing", |e| unsafe { rocksdb_write(self.db, self.store.write, self.batch, e) })?;
        Ok(0)
    }
}

impl Reader for Plain<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        // SAFETY: ROCKS-1; the key is valid during the call.
        let slice = call("reading", |e| unsafe {
            rocksdb_get_pinned(self.db, self.store.read, key.as_ptr().cast(), key.len(), e)
        })?;
        Ok(take(slice, key, sink))
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1; `walk` frees the iterator.
        walk(unsafe { rocksdb_create_iterator(self.db, self.store.read) }, Walk::Up(from), limit, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1; `walk` frees the iterator.
        walk(unsafe { rocksdb_create_iterator(self.db, self.store.read) }, Walk::Down, limit, sink)
    }
}

impl Writer for Plain<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1, ROCKS-2; the batch copies key and value.
        unsafe {
            let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
            rocksdb_writebatch_put(self.batch, k, key.len(), v, value.len());
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1, ROCKS-2; the batch copies the key.
        unsafe { rocksdb_writebatch_delete(self.batch, key.as_ptr().cast(), key.len()) };
        Ok(())
    }
}

/// A session with locking transactions. The handle is reused for the next transaction.
struct Locking<'s> {
    db: *mut TransactionDb,
    /// The current transaction; null before the first one.
    current: *mut Transaction,
    store: &'s RocksStore,
}

impl Drop for Locking<'_> {
    fn drop(&mut self) {
        if !self.current.is_null() {
            // SAFETY: ROCKS-1.
            unsafe { rocksdb_transaction_destroy(self.current) }
        }
    }
}

impl Locking<'_> {
    fn attempt(&mut self, work: &mut WriteWork<'_>) -> Result<(), EngineError> {
        let store = self.store;
        // SAFETY: ROCKS-1, ROCKS-2; the old transaction has ended, and its handle is reused.
        self.current =
            unsafe { rocksdb_transaction_begin(self.db, store.write, store.transaction, self.current) };
        let result = work(&mut Locked(self));
        // SAFETY: ROCKS-1, ROCKS-2.
        let result = result
            .and_then(|()| call("committing", |e| unsafe { rocksdb_transaction_commit(self.current, e) }));
        if result.is_err() {
            // SAFETY: ROCKS-1, ROCKS-2.
            call("rolling back", |e| unsafe { rocksdb_transaction_rollback(self.current, e) })?;
        }
        result
    }
}

impl Session for Locking<'_> {
    fn read(&mut self, work: &mut ReadWork<'_>) -> Result<u64, EngineError> {
        work(self)?;
        Ok(0)
    }

    fn write(&mut self, work: &mut WriteWork<'_>) -> Result<u64, EngineError> {
        Ok(retry_conflicts(|| self.attempt(work))?.1)
    }
}

/// Reads outside of a transaction.
impl Reader for Locking<'_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        // SAFETY: ROCKS-1; the key is valid during the call.
        let slice = call("reading", |e| unsafe {
            rocksdb_transactiondb_get_pinned(self.db, self.store.read, key.as_ptr().cast(), key.len(), e)
        })?;
        Ok(take(slice, key, sink))
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1; `walk` frees the iterator.
        walk(
            unsafe { rocksdb_transactiondb_create_iterator(self.db, self.store.read) },
            Walk::Up(from),
            limit,
            sink,
        )
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1; `walk` frees the iterator.
        walk(
            unsafe { rocksdb_transactiondb_create_iterator(self.db, self.store.read) },
            Walk::Down,
            limit,
            sink,
        )
    }
}

/// A running transaction.
struct Locked<'l, 's>(&'l mut Locking<'s>);

impl Reader for Locked<'_, '_> {
    fn get(&mut self, key: &[u8], sink: &mut Sink) -> Result<bool, EngineError> {
        let (txn, read) = (self.0.current, self.0.store.read);
        // SAFETY: ROCKS-1, ROCKS-2; the key is valid during the call.
        let slice = call("reading for update", |e| unsafe {
            rocksdb_transaction_get_pinned_for_update(txn, read, key.as_ptr().cast(), key.len(), 1, e)
        })?;
        Ok(take(slice, key, sink))
    }

    fn scan(&mut self, from: &[u8], limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1, ROCKS-2; `walk` frees the iterator.
        let iter = unsafe { rocksdb_transaction_create_iterator(self.0.current, self.0.store.read) };
        walk(iter, Walk::Up(from), limit, sink)
    }

    fn scan_back(&mut self, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1, ROCKS-2; `walk` frees the iterator.
        let iter = unsafe { rocksdb_transaction_create_iterator(self.0.current, self.0.store.read) };
        walk(iter, Walk::Down, limit, sink)
    }
}

impl Writer for Locked<'_, '_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let (k, v) = (key.as_ptr().cast(), value.as_ptr().cast());
        // SAFETY: ROCKS-1, ROCKS-2; the transaction copies key and value.
        call("writing", |e| unsafe {
            rocksdb_transaction_put(self.0.current, k, key.len(), v, value.len(), e);
        })
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), EngineError> {
        // SAFETY: ROCKS-1, ROCKS-2; the transaction copies the key.
        call("removing", |e| unsafe {
            rocksdb_transaction_delete(self.0.current, key.as_ptr().cast(), key.len(), e);
        })
    }
}

/// Passes a pinned value to the sink and frees it. Returns `false` for null, which means not found.
fn take(slice: *mut Slice, key: &[u8], sink: &mut Sink) -> bool {
    if slice.is_null() {
        return false;
    }
    let mut len = 0;
    // SAFETY: ROCKS-3; freed once, here.
    unsafe {
        let value = rocksdb_pinnableslice_value(slice, &raw mut len);
        sink.add(key, bytes(value, len));
        rocksdb_pinnableslice_destroy(slice);
    }
    true
}

/// The direction of an iteration.
#[derive(Clone, Copy)]
enum Walk<'k> {
    /// Upward, from the first key not below this one.
    Up(&'k [u8]),
    /// Downward, from the last key.
    Down,
}

/// Passes records from an iterator to the sink, and frees the iterator.
fn walk(iter: *mut Iter, way: Walk<'_>, limit: u64, sink: &mut Sink) -> Result<(), EngineError> {
    let mut left = limit;
    // SAFETY: ROCKS-2, ROCKS-3; the iterator is valid when it is read, and freed once, here.
    unsafe {
        match way {
            Walk::Up(from) => rocksdb_iter_seek(iter, from.as_ptr().cast(), from.len()),
            Walk::Down => rocksdb_iter_seek_to_last(iter),
        }
        while left > 0 && rocksdb_iter_valid(iter) != 0 {
            let (mut key_len, mut value_len) = (0, 0);
            let key = rocksdb_iter_key(iter, &raw mut key_len);
            let value = rocksdb_iter_value(iter, &raw mut value_len);
            sink.add(bytes(key, key_len), bytes(value, value_len));
            left -= 1;
            match way {
                Walk::Up(_) => rocksdb_iter_next(iter),
                Walk::Down => rocksdb_iter_prev(iter),
            }
        }
        let ended = call("scanning", |e| rocksdb_iter_get_error(iter, e));
        rocksdb_iter_destroy(iter);
        ended
    }
}

/// Returns the bytes that the library returned.
///
/// # Safety
///
/// `data` points to `len` bytes that do not change during `'a`, or `len` is 0.
unsafe fn bytes<'a>(data: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: by the caller's contract.
    unsafe { std::slice::from_raw_parts(data.cast(), len) }
}
