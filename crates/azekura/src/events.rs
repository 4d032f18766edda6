//! Events: messages to the operator, through `tracing`.
//!
//! A state is reported when it begins and when it ends, not by each call that it affects. An event has
//! counts, times, file names and error messages; it never has a key or a value.
//!
//! | event | level | reported by |
//! |---|---|---|
//! | opened, recovery began, recovery ended, closed | info | the opening and closing thread |
//! | checkpoint failed; checkpoints succeed again | warn; info | the checkpointer |
//! | disk full, file refused; accepted again | error; info | the first refused change; the next commit |
//! | degraded; no longer degraded | error; info | the call that failed, or the checkpointer |
//! | transaction open for long | warn | the checkpointer, once per transaction |
//! | snapshot open for long | warn | the checkpointer, once per snapshot |
//! | snapshot too old | warn | the snapshot's first call that fails |

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use azekura_base::TxnId;
use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::sync::time::Instant;
use tracing::{error, info, warn};

use crate::Error;
use crate::database::Shared;
use crate::error::{full_message, is_space_missing};
use crate::stats::SnapshotStats;

/// Time after which an open writing transaction is reported. Applications rarely keep one open for more than
/// seconds. A forgotten transaction holds its locks and its undo log until it ends.
pub(crate) const LONG_OPEN: Duration = Duration::from_secs(60);

/// States that were reported and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    /// `true` while a report of open transactions and snapshots is scheduled.
    pub(crate) is_watched: AtomicBool,
    is_disk_full: AtomicBool,
    degraded: Mutex<Option<Discriminant<Error>>>,
    long_open: Mutex<Option<TxnId>>,
    long_snapshot: Mutex<Option<u64>>,
}

#[cfg(test)]
impl Reported {
    /// Returns `true` if a long-open transaction was reported.
    pub(crate) fn has_long_open(&self) -> bool {
        self.long_open.lock().is_some()
    }
}

/// Returns a time in milliseconds, for a field of an event.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Shared {
    /// Reports the error of a change, if a reportable state begins with it.
    pub(crate) fn report_failed_change(&self, failed: &Error) {
        // Relaxed: selects the thread that reports, and orders nothing.
        if let Error::LogFull { source } = failed
            && !self.reported.is_disk_full.swap(true, Relaxed)
        {
            let (path, error) = (self.path.display(), full_message(failed));
            if is_space_missing(&**source) {
                error!(%path, %error, "disk full: writes are refused until space is free; reads still work");
            } else {
                error!(%path, %error, "file refused: writes are refused until it is made; reads still work");
            }
            self.checkpoint_calls.wake_from_sleep(); // a checkpoint releases log files
        }
        self.report_state();
    }

    /// Returns `true` if a change was refused for a full disk, and no commit has found space since.
    pub(crate) fn is_disk_full(&self) -> bool {
        // Relaxed: a state that orders nothing.
        self.reported.is_disk_full.load(Relaxed)
    }

    /// Reports that no space or file is missing any more, after a commit found space in the log.
    pub(crate) fn report_room(&self) {
        // Relaxed, twice: as above. The load keeps the cache line shared among committing threads.
        if self.reported.is_disk_full.load(Relaxed) && self.reported.is_disk_full.swap(false, Relaxed) {
            info!(path = %self.path.display(), "changes are accepted again");
        }
    }

    /// Reports that the store became degraded, or is no longer degraded.
    pub(crate) fn report_state(&self) {
        let now = self.degraded();
        let mut reported = self.reported.degraded.lock();
        let kind = now.as_ref().map(discriminant);
        if *reported == kind {
            return;
        }
        *reported = kind;
        let path = self.path.display();
        match now {
            Some(reason) => {
                error!(%path, reason = %full_message(&reason), "degraded: not all changes are accepted")
            }
            None => info!(%path, "no longer degraded: changes are accepted"),
        }
    }

    /// Reports the oldest writing transaction once, if it has been open for at least `limit`.
    pub(crate) fn report_long_open(&self, limit: Duration) {
        let oldest = self.active.oldest(Instant::now()).filter(|oldest| oldest.age >= limit);
        let mut reported = self.reported.long_open.lock();
        let Some(oldest) = oldest.filter(|oldest| *reported != Some(oldest.txn)) else { return };
        *reported = Some(oldest.txn);
        let held_bytes = self.active.held_bytes(self.wal.log_bytes_since_start());
        let (path, transaction, open_ms) = (self.path.display(), oldest.txn.0, millis(oldest.age));
        warn!(%path, transaction, open_ms, held_bytes, "transaction open for long: it holds locks and log");
    }

    /// Reports the oldest snapshot once, if it has been open for more than a minute.
    fn report_long_snapshot(&self) {
        let stats = SnapshotStats::of(self);
        let mut reported = self.reported.long_snapshot.lock();
        if let Some(warning) = stats.warning.filter(|_| *reported != stats.oldest) {
            *reported = stats.oldest;
            warn!(path = %self.path.display(), snapshot = stats.oldest, "{warning}");
        }
    }

    /// Reports the states that no other call reports, for the checkpointer.
    pub(crate) fn report_now(&self) {
        self.report_state();
        self.report_open(LONG_OPEN);
    }

    /// Reports a writing transaction that has been open for at least `limit`, and a snapshot that has been
    /// open for more than a minute, each once.
    pub(crate) fn report_open(&self, limit: Duration) {
        self.report_long_open(limit);
        self.report_long_snapshot();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex as StdMutex, OnceLock};

    use azekura_io::{FailKind, FaultFs};
    use tracing::Dispatch;
    use tracing::subscriber::{DefaultGuard, NoSubscriber};

    use super::*;
    use crate::{Database, TableDefinition};

    const ROWS: TableDefinition<str, [u8]> = TableDefinition::new("rows");
    /// Text that is a part of each key and of each value.
    const SECRET: &str = "hunter2";

    /// The lines that the events of this thread produce.
    struct Lines {
        text: Arc<StdMutex<Vec<u8>>>,
        _guard: DefaultGuard,
    }

    #[derive(Clone)]
    struct Shown(Arc<StdMutex<Vec<u8>>>);

    impl Write for Shown {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// Keeps a second subscriber for the whole process. With a single one, an event that first occurs in a
    /// thread without a subscriber would be turned off for all threads.
    fn keep_second_subscriber() {
        static SECOND: OnceLock<Dispatch> = OnceLock::new();
        SECOND.get_or_init(|| Dispatch::new(NoSubscriber::default()));
    }

    impl Lines {
        fn capture() -> Self {
            keep_second_subscriber();
            let text = Arc::default();
            let shown = Shown(Arc::clone(&text));
            let format = tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false);
            let subscriber = format.with_writer(move || shown.clone()).finish();
            Self { text, _guard: tracing::subscriber::set_default(subscriber) }
        }

        /// Returns the lines that contain `part`, and checks that no line has a key or a value.
        fn with(&self, part: &str) -> Vec<String> {
            let text = String::from_utf8(self.text.lock().expect("no panic").clone()).expect("text");
            assert!(!text.contains(SECRET), "{text}");
            text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
        }

        fn one(&self, part: &str) -> String {
            let mut lines = self.with(part);
            assert_eq!(lines.len(), 1, "{part}: {lines:?}");
            lines.remove(0)
        }
    }

    fn open(fs: &FaultFs) -> Database {
        let builder = Database::builder().page_size(4096).cache_bytes(8 << 20).wal_segment_bytes(2 << 20);
        builder
            .background(false)
            .log_buffers(1)
            .wal_streams(1)
            .file_system(Arc::new(fs.clone()))
            .open("db")
            .expect("opens")
    }

    fn key(n: u32) -> String {
        format!("{SECRET}-{n}")
    }

    fn put(db: &Database, n: u32) -> Result<(), Error> {
        db.transact(|tx| tx.table(&ROWS)?.insert(&*key(n), SECRET.repeat(100).as_bytes()))
    }

    #[test]
    fn opening_recovery_and_closing_are_reported() {
        let lines = Lines::capture();
        let fs = FaultFs::new();
        let db = open(&fs);
        assert!(lines.one("store opened").contains("path=db"));
        put(&db, 1).expect("writes");
        let tx = db.begin().expect("begins");
        tx.table(&ROWS).expect("opens").insert(&*key(2), SECRET.as_bytes()).expect("writes");
        put(&db, 3).expect("its flush takes the open transaction's records along");
        let killed = fs.kill();
        drop((tx, db));
        lines.one("store closed");
        let db = open(&killed);
        lines.one("recovery begins");
        assert!(lines.one("recovery ended").contains("losers=1"));
        db.close().expect("closes");
        assert_eq!(lines.with("INFO store closed").len(), 2);
        drop(open(&killed));
        assert_eq!(lines.with("recovery").len(), 2, "a closed store is not recovered");
    }

    #[test]
    fn a_full_disk_is_reported_once_and_so_is_its_end() {
        let lines = Lines::capture();
        let fs = FaultFs::new();
        let db = open(&fs);
        put(&db, 0).expect("writes");
        let tx = db.begin().expect("begins");
        let fill = || {
            (0..1_000_000).try_for_each(|n| {
                if n == 8_000 {
                    fs.full_from(1); // the undo needs more space than the log's reserve
                }
                tx.table(&ROWS)?.insert(&*key(n % 50), &[7; 500])
            })
        };
        (0..3).for_each(|_| assert!(matches!(fill(), Err(Error::LogFull { .. }))));
        assert!(lines.one("ERROR disk full").contains("path=db"));
        assert!(tx.abort().is_err(), "the rollback is parked");
        assert!(lines.one("ERROR degraded").contains("reason="));
        fs.heal();
        put(&db, 1).expect("there is room");
        lines.one("INFO changes are accepted again");
        lines.one("INFO no longer degraded");
        lines.one("ERROR disk full");
        lines.one("ERROR degraded");
    }

    #[test]
    fn a_failed_checkpoint_and_a_failed_log_are_reported_once() {
        let lines = Lines::capture();
        let fs = FaultFs::new();
        let db = open(&fs);
        put(&db, 0).expect("writes");
        let shared = db.shared();
        let fail = || Err::<(), _>(Error::io("sync", "pages".as_ref(), std::io::Error::other("worn out")));
        (0..3).for_each(|_| assert!(shared.note_background(fail()).is_none()));
        let failed = lines.one("WARN background activity failed");
        assert!(failed.contains("activity=\"checkpoint\"") && failed.contains("worn out"), "{failed}");
        let noted = db.stats().background_error.expect("an error is noted");
        assert!(noted.starts_with("the checkpoint of db failed: cannot sync pages: worn out; "), "{noted}");
        (0..3).for_each(|_| assert!(shared.note_background(Ok(())).is_some()));
        assert_eq!(db.stats().background_error, None);
        lines.one("INFO background activities succeed again");
        fs.fail_from(1, FailKind::Io);
        for _ in 0..3 {
            put(&db, 1).expect_err("no device");
        }
        lines.one("ERROR degraded");
        db.close().expect_err("no device");
        lines.one("ERROR store closed without a last checkpoint");
    }

    #[test]
    fn a_long_open_transaction_is_reported_once() {
        let lines = Lines::capture();
        let db = open(&FaultFs::new());
        put(&db, 0).expect("writes");
        let tx = db.begin().expect("begins");
        tx.table(&ROWS).expect("opens").insert(&*key(1), SECRET.as_bytes()).expect("writes");
        let shared = db.shared();
        let look = || shared.active.holders(Instant::now(), shared.wal.log_bytes_since_start(), 0);
        for _ in 0..3 {
            look();
            shared.report_long_open(LONG_OPEN);
        }
        assert_eq!(lines.with("open for long").len(), 0, "it is young");
        (0..3).for_each(|_| shared.report_long_open(Duration::ZERO));
        assert!(lines.one("WARN transaction open for long").contains("held_bytes="));
        tx.commit().expect("commits");
        shared.report_long_open(Duration::ZERO);
        lines.one("open for long");
    }

    #[test]
    fn a_snapshot_that_is_too_old_is_reported_once() {
        let lines = Lines::capture();
        let db = Database::builder().background(false).version_bytes(50_000).cache_bytes(8 << 20);
        let db = db.open_in_memory().expect("opens");
        (0..500).try_for_each(|n| put(&db, n)).expect("writes");
        let snapshot = db.snapshot().expect("opens");
        (0..500).try_for_each(|n| put(&db, n)).expect("writes");
        for _ in 0..3 {
            assert!(matches!(snapshot.table(&ROWS), Err(Error::SnapshotTooOld { .. })));
        }
        assert!(lines.one("WARN snapshot too old").contains("limit_bytes=50000"));
    }
}
