//! The part of RocksDB's C interface that the adapter uses, declared by hand from `rocksdb/c.h`.
//!
//! The `rocksdb` crate compiles RocksDB's own source, which takes very long, or requires a library of exactly
//! its version. The C interface has been stable for these functions, so any recent system library works.

use std::ffi::{c_char, c_int, c_uchar, c_void};

macro_rules! opaque {
    ($($name:ident),*) => {
        $(#[repr(C)] pub(super) struct $name(c_void);)*
    };
}

opaque!(
    Db,
    TransactionDb,
    Transaction,
    Options,
    TableOptions,
    ReadOptions,
    WriteOptions,
    TransactionOptions,
    TransactionDbOptions,
    Batch,
    Iter,
    Slice,
    Cache,
    Filter
);

/// Destination of a function's error: a text that must be freed by [`rocksdb_free`], or null.
pub(super) type Error = *mut *mut c_char;

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub(super) fn rocksdb_options_create() -> *mut Options;
    pub(super) fn rocksdb_options_destroy(options: *mut Options);
    pub(super) fn rocksdb_options_set_create_if_missing(options: *mut Options, yes: c_uchar);
    pub(super) fn rocksdb_options_set_compression(options: *mut Options, kind: c_int);
    pub(super) fn rocksdb_options_set_max_background_jobs(options: *mut Options, jobs: c_int);
    pub(super) fn rocksdb_options_set_enable_pipelined_write(options: *mut Options, yes: c_uchar);
    pub(super) fn rocksdb_options_set_recycle_log_file_num(options: *mut Options, files: usize);
    pub(super) fn rocksdb_options_set_use_direct_reads(options: *mut Options, yes: c_uchar);
    pub(super) fn rocksdb_options_set_use_direct_io_for_flush_and_compaction(
        options: *mut Options,
        yes: c_uchar,
    );
    pub(super) fn rocksdb_options_set_block_based_table_factory(
        options: *mut Options,
        table: *mut TableOptions,
    );

    pub(super) fn rocksdb_block_based_options_create() -> *mut TableOptions;
    pub(super) fn rocksdb_block_based_options_destroy(table: *mut TableOptions);
    pub(super) fn rocksdb_block_based_options_set_block_cache(table: *mut TableOptions, cache: *mut Cache);
    pub(super) fn rocksdb_block_based_options_set_filter_policy(
        table: *mut TableOptions,
        filter: *mut Filter,
    );
    pub(super) fn rocksdb_cache_create_lru(bytes: usize) -> *mut Cache;
    pub(super) fn rocksdb_cache_destroy(cache: *mut Cache);
    pub(super) fn rocksdb_filterpolicy_create_bloom(bits_per_key: f64) -> *mut Filter;

    pub(super) fn rocksdb_open(options: *const Options, name: *const c_char, error: Error) -> *mut Db;
    pub(super) fn rocksdb_close(db: *mut Db);
    pub(super) fn rocksdb_get_pinned(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const c_char,
        key_len: usize,
        error: Error,
    ) -> *mut Slice;
    pub(super) fn rocksdb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut Iter;
    pub(super) fn rocksdb_write(db: *mut Db, options: *const WriteOptions, batch: *mut Batch, error: Error);

    pub(super) fn rocksdb_transactiondb_options_create() -> *mut TransactionDbOptions;
    pub(super) fn rocksdb_transactiondb_options_destroy(options: *mut TransactionDbOptions);
    pub(super) fn rocksdb_transactiondb_open(
        options: *const Options,
        transaction_options: *const TransactionDbOptions,
        name: *const c_char,
        error: Error,
    ) -> *mut TransactionDb;
    pub(super) fn rocksdb_transactiondb_close(db: *mut TransactionDb);
    pub(super) fn rocksdb_transactiondb_get_pinned(
        db: *mut TransactionDb,
        options: *const ReadOptions,
        key: *const c_char,
        key_len: usize,
        error: Error,
    ) -> *mut Slice;
    pub(super) fn rocksdb_transactiondb_create_iterator(
        db: *mut TransactionDb,
        options: *const ReadOptions,
    ) -> *mut Iter;

    pub(super) fn rocksdb_transaction_options_create() -> *mut TransactionOptions;
    pub(super) fn rocksdb_transaction_options_destroy(options: *mut TransactionOptions);
    pub(super) fn rocksdb_transaction_options_set_deadlock_detect(
        options: *mut TransactionOptions,
        yes: c_uchar,
    );
    pub(super) fn rocksdb_transaction_begin(
        db: *mut TransactionDb,
        write_options: *const WriteOptions,
        options: *const TransactionOptions,
        old: *mut Transaction,
    ) -> *mut Transaction;
    pub(super) fn rocksdb_transaction_destroy(transaction: *mut Transaction);
    pub(super) fn rocksdb_transaction_commit(transaction: *mut Transaction, error: Error);
    pub(super) fn rocksdb_transaction_rollback(transaction: *mut Transaction, error: Error);
    pub(super) fn rocksdb_transaction_put(
        transaction: *mut Transaction,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
        error: Error,
    );
    pub(super) fn rocksdb_transaction_delete(
        transaction: *mut Transaction,
        key: *const c_char,
        key_len: usize,
        error: Error,
    );
    pub(super) fn rocksdb_transaction_get_pinned_for_update(
        transaction: *mut Transaction,
        options: *const ReadOptions,
        key: *const c_char,
        key_len: usize,
        exclusive: c_uchar,
        error: Error,
    ) -> *mut Slice;
    pub(super) fn rocksdb_transaction_create_iterator(
        transaction: *mut Transaction,
        options: *const ReadOptions,
    ) -> *mut Iter;

    pub(super) fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub(super) fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    pub(super) fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub(super) fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    pub(super) fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, yes: c_uchar);

    pub(super) fn rocksdb_writebatch_create() -> *mut Batch;
    pub(super) fn rocksdb_writebatch_destroy(batch: *mut Batch);
    pub(super) fn rocksdb_writebatch_clear(batch: *mut Batch);
    pub(super) fn rocksdb_writebatch_put(
        batch: *mut Batch,
        key: *const c_char,
        key_len: usize,
        value: *const c_char,
        value_len: usize,
    );
    pub(super) fn rocksdb_writebatch_delete(batch: *mut Batch, key: *const c_char, key_len: usize);

    pub(super) fn rocksdb_iter_destroy(iter: *mut Iter);
    pub(super) fn rocksdb_iter_seek(iter: *mut Iter, key: *const c_char, key_len: usize);
    pub(super) fn rocksdb_iter_valid(iter: *const Iter) -> c_uchar;
    pub(super) fn rocksdb_iter_seek_to_last(iter: *mut Iter);
    pub(super) fn rocksdb_iter_next(iter: *mut Iter);
    pub(super) fn rocksdb_iter_prev(iter: *mut Iter);
    pub(super) fn rocksdb_iter_key(iter: *const Iter, len: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_value(iter: *const Iter, len: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_get_error(iter: *const Iter, error: Error);

    pub(super) fn rocksdb_pinnableslice_value(slice: *const Slice, len: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_pinnableslice_destroy(slice: *mut Slice);
    pub(super) fn rocksdb_free(memory: *mut c_void);
}
