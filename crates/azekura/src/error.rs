//! The error type of the public API; its [`kind`](Error::kind) selects the caller's reaction.

mod convert;
mod reason;

use std::io;
use std::path::{Path, PathBuf};

use azekura_base::{LogFailed, PageId, TxnId};
use azekura_buffer::PageFile;

use crate::catalog::TableTypes;
use crate::key::DecodeError;
use crate::value::EncodeError;
pub(crate) use reason::{full_message, is_space_missing};
use reason::{in_use, its_key, named, of_file, times, usual_remedy, why_full};

/// The caller's reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The transaction was rolled back because of a conflict with another one. Run it again, as
    /// [`Database::transact`](crate::Database::transact) does automatically.
    Conflict,
    /// A resource is in use or exhausted at the moment: another process has the store open, or every frame of
    /// the page cache is pinned.
    Busy,
    /// The call or its arguments are wrong; another attempt does not help.
    Invalid,
    /// Bytes on disk are not those that were written. `azekura check` reports the extent.
    Corrupt,
    /// A call of the operating system failed; the message names the file.
    Io,
    /// The store accepts no more calls of this kind. It was closed, or its log failed (reads still work), or
    /// this process was forked from the one that opened it. Open the store again.
    Closed,
    /// The caller's own error, carried through [`Database::transact`](crate::Database::transact), or returned
    /// by its function for `Builder::encryption_key_source`.
    Other,
}

/// The reason that an operation on a store failed; its [`kind`](Self::kind) states what the caller can do.
///
/// The message of an error does not repeat its `source`; [`full_message`](Self::full_message) has both. A
/// message names a setting by its name alone, such as `archive`, which is the same in each language, and by
/// the option of the command, such as `--archive`.
///
/// # Examples
///
/// ```
/// use azekura::{Database, Error, ErrorKind, TableDefinition};
/// const STOCK: TableDefinition<str, u32> = TableDefinition::new("stock");
/// const OTHER_TYPES: TableDefinition<str, i64> = TableDefinition::new("stock");
///
/// # fn main() -> Result<(), Error> {
/// let db = Database::in_memory()?;
/// db.transact(|tx| tx.table(&STOCK)?.insert("rice", &1))?;
/// let error = db.transact(|tx| tx.table(&OTHER_TYPES)?.get("rice")).unwrap_err();
/// assert!(matches!(error, Error::TableTypeMismatch { .. }));
/// assert_eq!(error.kind(), ErrorKind::Invalid); // running it again does not help
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This transaction was chosen to end a deadlock; it has been rolled back. Run it again.
    #[error("transaction {txn} was aborted to end a deadlock between {}; run it again", named(cycle))]
    Deadlock {
        /// The transaction that was aborted.
        txn: TxnId,
        /// The cycle of transactions that waited for each other.
        cycle: Vec<TxnId>,
    },
    /// A lock was not granted within the configured time; the transaction has been rolled back. Run it again.
    #[error(
        "transaction {txn} waited {waited_ms} ms for a lock held by {}; run it again, or raise \
         `lock_timeout`",
        named(holders)
    )]
    LockTimeout {
        /// The transaction that waited.
        txn: TxnId,
        /// Duration of the wait, in milliseconds.
        waited_ms: u64,
        /// The transactions that held the lock at the end of the wait.
        holders: Vec<TxnId>,
    },
    /// [`Database::transact`](crate::Database::transact) reached the
    /// [`Builder::retry_limit`](crate::Builder::retry_limit): each run of its body was rolled back because of
    /// a conflict. `source` is the last conflict.
    #[error(
        "the transaction was rolled back {} in {elapsed_ms} ms; do less in it, lock rows in one order, or \
         raise the retry limit",
        times(*attempts)
    )]
    RetriesExhausted {
        /// Number of runs.
        attempts: u32,
        /// Time since the first run began, in milliseconds.
        elapsed_ms: u64,
        /// The last conflict.
        source: Box<Error>,
    },
    /// The call would wait for another transaction that this thread has open, directly or through other
    /// waiting transactions, so it would never return. The transaction is unchanged by the call. End the
    /// other transaction first, or use one transaction for both. If another thread will end the other
    /// transaction, see [`Transaction::detach_from_thread`](crate::Transaction::detach_from_thread).
    #[error(
        "transaction {txn} would wait for transaction {holder}, which the same thread has open; \
         end that one first, or use one transaction for both"
    )]
    SelfDeadlock {
        /// The transaction that would wait.
        txn: TxnId,
        /// The transaction that the thread has open.
        holder: TxnId,
    },
    /// Another transaction holds a lock that the call needs, and this transaction does not wait
    /// ([`Transaction::set_nowait`](crate::Transaction::set_nowait)). The transaction is unchanged by the
    /// call.
    #[error(
        "transaction {txn} does not wait, and another transaction holds a lock that the call needs; try later"
    )]
    WouldBlock {
        /// The transaction that does not wait.
        txn: TxnId,
    },
    /// The function set with [`Builder::interrupt`](crate::Builder::interrupt) stopped the call. If this was
    /// a call of a transaction, the transaction is unchanged by the call and can continue.
    #[error("the call was interrupted by the program before it was completed; run it again, or roll back")]
    Interrupted,
    /// The transaction was open for longer than
    /// [`Builder::transaction_timeout`](crate::Builder::transaction_timeout) allows; it has been rolled back.
    #[error(
        "transaction {txn} was open for {open_ms} ms and was rolled back: the limit is {limit_ms} ms; do \
         less in it, or raise the limit"
    )]
    TransactionTimeout {
        /// The transaction that was rolled back.
        txn: TxnId,
        /// Time since the transaction began, in milliseconds.
        open_ms: u64,
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// Row versions took more memory than [`Builder::version_bytes`](crate::Builder::version_bytes) allows,
    /// and this snapshot, the oldest one, lost versions that it needs. Open a new snapshot; read in smaller
    /// parts, or raise the limit.
    #[error(
        "the snapshot is too old after {age_ms} ms: row versions took {held_bytes} bytes, more than the \
         limit of {limit_bytes}; open a new one, or raise `version_bytes` (`--memory`)"
    )]
    SnapshotTooOld {
        /// Time since the snapshot was opened, in milliseconds.
        age_ms: u64,
        /// Memory of all row versions when those of this snapshot were dropped, in bytes.
        held_bytes: u64,
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// A snapshot cannot be opened: row versions for the changes of active transactions would take more
    /// memory than [`Builder::version_bytes`](crate::Builder::version_bytes) allows. End those transactions,
    /// or raise the limit.
    #[error(
        "cannot open a snapshot: active transactions have changed rows of more than {limit_bytes} bytes; end \
         them, or raise `version_bytes`"
    )]
    TransactionsTooLarge {
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// The undo entries of all open transactions together would take more memory than
    /// [`Builder::undo_bytes`](crate::Builder::undo_bytes) allows. The call was undone, and the transaction
    /// remains open: commit it and continue in a new transaction, or raise the limit.
    #[error(
        "transaction {txn} cannot change more rows: the undo entries of open transactions take {limit_bytes} \
         bytes of memory; commit after fewer changes, or raise `undo_bytes` (`--memory`)"
    )]
    UndoMemoryExhausted {
        /// The transaction of the call.
        txn: TxnId,
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// An earlier call of this transaction failed and rolled it back; it can only be dropped.
    #[error(
        "transaction {txn} was rolled back by an earlier error and accepts no more calls; begin a new one"
    )]
    Aborted {
        /// The transaction that was rolled back.
        txn: TxnId,
    },
    /// The store was opened [read only](crate::Builder::read_only); nothing was changed. Open the store for
    /// writing.
    #[error("the store is open for reading only; open it for writing to change rows")]
    ReadOnly,
    /// The store is open already. Another process, or this one, has it open for writing; or the store is open
    /// for reading and this call opens it for writing.
    #[error(
        "{path} is open already: one process at a time may write, with one opening that all its threads \
         share, or several processes may read"
    )]
    InUse {
        /// The store's directory.
        path: PathBuf,
    },
    /// The store was closed by [`Database::close`](crate::Database::close). Open it again.
    #[error("the store was closed; open it again")]
    Closed,
    /// The store cannot be closed while transactions or snapshots are open, in any thread; it stays open, and
    /// nothing was changed.
    #[error("the store is still in use: {}; end what is open first", in_use(*transactions))]
    StillInUse {
        /// Number of open transactions and snapshots.
        transactions: usize,
    },
    /// This process was forked from the one that opened the store, and only that process can use it. Open
    /// stores after the fork.
    #[error(
        "the store was opened by process {opened_by}; this process was forked from it and cannot use it: \
         open the store after the fork"
    )]
    Forked {
        /// Id of the process that opened the store.
        opened_by: u32,
    },
    /// Every frame of the page cache stayed pinned. Retry with fewer concurrent calls or a larger cache.
    #[error("page cache exhausted: {reason}")]
    CacheExhausted {
        /// The requested page and the number of frames.
        reason: String,
    },
    /// The log, or the page file, cannot grow: the disk or the user's quota is full. The refused operation
    /// changed nothing; free space and continue. Another reason that a log file cannot be created, such as
    /// the limit of open files, is named by the message; remove it and continue.
    #[error("{}", why_full(&**source))]
    LogFull {
        /// The error of the write, with the file that cannot grow.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A write or a sync of the page file failed earlier: the state of the last changes on disk is unknown,
    /// so changes are refused. Committed transactions are safe in the log; reads still work. Close the store
    /// and open it again: recovery writes these changes again.
    #[error(
        "a write or sync of {} failed, and changes are refused; close the store and open it again",
        path.display()
    )]
    PagesFailed {
        /// The page file.
        path: PathBuf,
    },
    /// The lock may be held by a transaction that failed and cannot be undone yet, usually because the disk
    /// has no space for the log records of its undo. Until it is undone, no call waits for locks. The undo
    /// continues once its cause is gone. Remove the cause, for example free disk space, and run the
    /// transaction again.
    #[error(
        "the lock may belong to one of {transactions} rollbacks that could not be finished; remove the cause \
         and run the transaction again: {reason}"
    )]
    RollbackPending {
        /// Number of transactions that are not undone yet.
        transactions: usize,
        /// The message of the last undo that failed.
        reason: String,
    },
    /// An argument is invalid.
    #[error("{0}")]
    Invalid(String),
    /// There is no store in this directory and the options do not allow creating one.
    #[error("{path} holds no Azekura store; check the path")]
    NotFound {
        /// The directory.
        path: PathBuf,
    },
    /// The path is not a backup, the backup is unfinished or lacks its base, or the archive is not
    /// that of the backup. Use a complete backup with its bases and its archive.
    #[error("{} {reason}", path.display())]
    NotABackup {
        /// The directory or file.
        path: PathBuf,
        /// The reason, as the rest of a sentence: "is not a backup: …".
        reason: String,
    },
    /// The [restore](crate::Restore) or [compaction](crate::Database::compact_into) that made this store did
    /// not finish. Run the restore or compaction into the same directory again, or delete the directory.
    #[error(
        "the restore or compaction into {} did not finish; run it into this directory again, or delete the \
         directory",
        path.display()
    )]
    RestoreUnfinished {
        /// The store's directory.
        path: PathBuf,
    },
    /// The [restore](crate::Restore) or [compaction](crate::Database::compact_into) that makes this store is
    /// running. Wait for its end.
    #[error("a restore or compaction into {} is running; open the store when it has ended", path.display())]
    RestoreRunning {
        /// The store's directory.
        path: PathBuf,
    },
    /// A backup or an archive belongs to another history of the store: the store was replaced by a copy from
    /// an earlier time, and both have changed since. Make a full backup, with a new directory for the
    /// archive.
    #[error("{} belongs to another history of {}: {reason}", path.display(), store.display())]
    OtherHistory {
        /// The backup or archive.
        path: PathBuf,
        /// The store's directory.
        store: PathBuf,
        /// The place in the log that the store does not have, the cause, and the way to continue.
        reason: String,
    },
    /// The directory of the archive that the store has used has no archive. Mount the disk of the archive, or
    /// name another directory to begin a new archive.
    #[error(
        "the archive of {} is missing in {}: mount its disk or copy it back; or begin a new archive in \
         another directory, with a new backup",
        store.display(),
        path.display()
    )]
    ArchiveMissing {
        /// The directory of the archive.
        path: PathBuf,
        /// The store's directory.
        store: PathBuf,
    },
    /// The rows of a table have other types than the given ones; nothing was read or changed. Open the table
    /// with the stored types, or as bytes ([`TableDefinition::raw`](crate::TableDefinition::raw)).
    #[error("table {table:?} has {stored}; it was opened with {asked}: open it with the stored types")]
    TableTypeMismatch {
        /// Name of the table.
        table: String,
        /// The stored types of the table's rows.
        stored: Box<TableTypes>,
        /// The types that the caller gave.
        asked: Box<TableTypes>,
    },
    /// Another table has this name. Drop or rename the other table first.
    #[error("there is a table named {name:?} already; drop or rename it first")]
    TableExists {
        /// Name of the table.
        name: String,
    },
    /// The table of a bulk load has rows; nothing was changed. Insert the rows one by one, or load another
    /// table.
    #[error("table {table:?} has rows already; a bulk load fills an empty one")]
    NotEmpty {
        /// Name of the table.
        table: String,
    },
    /// The rows of a bulk load are not in strictly ascending order of their keys; nothing was changed.
    #[error("table {table:?}: row {row} of the load has a key that is not above the one before it: {}; \
             sort the rows, or use the bulk load of unsorted rows", key.escape_ascii())]
    NotAscending {
        /// Name of the table.
        table: String,
        /// Number of the row in the load, from 1.
        row: u64,
        /// Encoded key of the row.
        key: Vec<u8>,
    },
    /// A value cannot be stored because its encoding could not be decoded again; nothing was changed.
    /// `source` has the type and the reason of the codec.
    #[error("table {table:?}: the value cannot be stored")]
    Encode {
        /// Name of the table.
        table: String,
        /// The value's type, and the reason.
        source: EncodeError,
    },
    /// A stored key or value is not a valid encoding of the table's type.
    #[error(
        "table {table:?} has a row that cannot be decoded; open it with the types that wrote it, or run \
         `azekura check`"
    )]
    Decode {
        /// Name of the table.
        table: String,
        /// The type, and the length of the stored bytes.
        source: DecodeError,
    },
    /// The store was written by a build with another format. Open the store with that build.
    #[error(
        "{path} has format version {found}; this build of Azekura reads version {supported} only: open it \
         with the build that wrote it"
    )]
    UnsupportedFormat {
        /// The file with that format version.
        path: PathBuf,
        /// Format version of the file.
        found: u32,
        /// The version that this build reads.
        supported: u32,
    },
    /// The store or backup is encrypted, and no key was given. Give its key (`Builder::encryption_key`, in a
    /// build with the feature `encryption`).
    #[error(
        "{} is encrypted: give {} (`encryption_key`, or `--key-file`)",
        path.display(),
        its_key(id)
    )]
    EncryptionKeyMissing {
        /// The directory or file.
        path: PathBuf,
        /// The id of the key, as the files state it; empty if the key has none.
        id: String,
    },
    /// The store or backup is encrypted with another key. Nothing was changed. Give the key with which it was
    /// created, or the key that replaced it.
    #[error(
        "{} is encrypted with another key: give {} (the key with which it was created, or its replacement)",
        path.display(),
        its_key(id)
    )]
    WrongEncryptionKey {
        /// The directory or file.
        path: PathBuf,
        /// The id of the key, as the files state it; empty if the key has none.
        id: String,
    },
    /// The function of `Builder::encryption_key_source` returned an error, which is the `source`. Remove the
    /// cause, and repeat the call.
    #[error("cannot get {} of {} from the key source", its_key(id), path.display())]
    EncryptionKeyUnavailable {
        /// The directory or file.
        path: PathBuf,
        /// The id of the key; empty if the key has none.
        id: String,
        /// The error of the function.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store is not encrypted, and a key was given. Nothing was changed. Open the store without a key. To
    /// encrypt the store, compact it with a key.
    #[error(
        "{} is not encrypted: open it without a key; a compaction with a key makes an encrypted store of it",
        path.display()
    )]
    NotEncrypted {
        /// The store's directory.
        path: PathBuf,
    },
    /// A file of a store, a backup or an archive contains bytes that differ from those written. Use an intact
    /// copy of the file, or restore a backup.
    #[error("{} is damaged at byte {offset}: {reason}{}", path.display(), usual_remedy(reason))]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Byte offset in the file.
        offset: u64,
        /// Description of the damage. Another remedy than the usual one follows a semicolon.
        reason: String,
    },
    /// A page has other bytes than those written, or does not fit its position in the tree or another
    /// structure. Check a copy of the store with `azekura check`, and restore a backup.
    #[error(
        "page {page}{} is damaged: {reason}; check a copy of the store with `azekura check`, and restore a \
         backup",
        of_file(path)
    )]
    CorruptPage {
        /// The page file.
        path: PathBuf,
        /// The page.
        page: PageId,
        /// Description of the damage.
        reason: String,
    },
    /// A call of the operating system for a file of the store failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The operating system could not read or write pages.
    #[error("cannot read or write the page file")]
    PageIo {
        /// The page, with the operating system's reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A log write or sync failed earlier: the durable part of the log is unknown, so the store commits no
    /// more transactions (reads still work). Open the store again.
    #[error(transparent)]
    Log(#[from] LogFailed),
    /// An error of the caller, created by [`Error::other`].
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error of the caller, to be returned from the body of
    /// [`Database::transact`](crate::Database::transact); the transaction is rolled back.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Returns the kind of this error: what the caller can do.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Deadlock { .. } | Self::LockTimeout { .. } => ErrorKind::Conflict,
            Self::InUse { .. }
            | Self::RestoreRunning { .. }
            | Self::CacheExhausted { .. }
            | Self::LogFull { .. }
            | Self::StillInUse { .. }
            | Self::RollbackPending { .. }
            | Self::RetriesExhausted { .. }
            | Self::TransactionTimeout { .. }
            | Self::SnapshotTooOld { .. }
            | Self::TransactionsTooLarge { .. }
            | Self::UndoMemoryExhausted { .. }
            | Self::Interrupted
            | Self::WouldBlock { .. } => ErrorKind::Busy,
            Self::ReadOnly
            | Self::Invalid(_)
            | Self::NotFound { .. }
            | Self::NotABackup { .. }
            | Self::RestoreUnfinished { .. }
            | Self::OtherHistory { .. }
            | Self::ArchiveMissing { .. }
            | Self::EncryptionKeyMissing { .. }
            | Self::WrongEncryptionKey { .. }
            | Self::NotEncrypted { .. }
            | Self::Aborted { .. }
            | Self::SelfDeadlock { .. }
            | Self::TableTypeMismatch { .. }
            | Self::Encode { .. }
            | Self::TableExists { .. } => ErrorKind::Invalid,
            Self::UnsupportedFormat { .. } | Self::NotEmpty { .. } | Self::NotAscending { .. } => {
                ErrorKind::Invalid
            }
            Self::Decode { .. } | Self::Corrupt { .. } | Self::CorruptPage { .. } => ErrorKind::Corrupt,
            Self::Io { .. } | Self::PageIo { .. } => ErrorKind::Io,
            Self::Log(_) | Self::PagesFailed { .. } | Self::Closed | Self::Forked { .. } => ErrorKind::Closed,
            Self::EncryptionKeyUnavailable { .. } | Self::Other(_) => ErrorKind::Other,
        }
    }

    /// Returns the message of this error and of its sources, outermost first: for a log line or a reply.
    #[must_use]
    pub fn full_message(&self) -> String {
        full_message(self)
    }

    /// Returns `true` if the same transaction, run again, may succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::Conflict)
    }

    /// Returns a copy of a conflict error, after which the transaction should be run again; otherwise `None`.
    pub(crate) fn copy_of_conflict(&self) -> Option<Self> {
        match self {
            Self::Deadlock { txn, cycle } => Some(Self::Deadlock { txn: *txn, cycle: cycle.clone() }),
            Self::LockTimeout { txn, waited_ms, holders } => {
                Some(Self::LockTimeout { txn: *txn, waited_ms: *waited_ms, holders: holders.clone() })
            }
            _ => None,
        }
    }

    /// Returns the error of a damaged page; the code that knows the store adds it by
    /// [`in_store`](Self::in_store).
    pub(crate) fn damaged(page: PageId, reason: String) -> Self {
        Self::CorruptPage { path: PathBuf::new(), page, reason }
    }

    /// Adds the directory `store` to an error that does not have the whole path of its file. Each error
    /// passes through this function before a public call returns it.
    pub(crate) fn in_store(mut self, store: &Path) -> Self {
        match &mut self {
            Self::CorruptPage { path, .. } | Self::PagesFailed { path } if path.as_os_str().is_empty() => {
                *path = store.join(PageFile::NAME);
            }
            _ => {}
        }
        self
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), source }
    }
}
