//! Counters and sizes of a store.

use azekura_base::sync::time::Instant;
use serde::Serialize;

use crate::database::Shared;
use crate::restart::RecoveryReport;

/// Counts since the store was opened, and present sizes; returned by
/// [`Database::stats`](crate::Database::stats).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Statistics of the page cache.
    pub cache: CacheStats,
    /// Statistics of the memory servers behind the page cache, if there are any (feature `far`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<FarTierStats>,
    /// Statistics of the log.
    pub log: LogStats,
    /// Statistics of the locks.
    pub locks: LockCounts,
    /// Statistics of open snapshots and row versions.
    pub snapshots: SnapshotStats,
    /// Report of the recovery at opening.
    pub recovery: RecoveryReport,
    /// Number of leaves to which scans descended. Unless a table has empty leaves, each of them has some of
    /// the scanned rows.
    pub scanned_leaves: u64,
    /// Number of transactions that have written and not ended.
    pub active_writers: usize,
    /// Id of the longest-open transaction that has written and not ended.
    pub oldest_writer: Option<u64>,
    /// Age of that transaction in milliseconds, from the first check of the checkpointer (every 50 ms) on.
    pub oldest_writer_ms: f64,
    /// Number of rollbacks that wait for space in the log, or for a page that could not be read. Their rows
    /// stay locked.
    pub parked_rollbacks: usize,
    /// Number of changes per second that a restart is assumed to undo, for the bound on its time
    /// ([`recovery_time`](crate::Builder::recovery_time)).
    pub undo_per_second: f64,
    /// Memory of the undo entries of open transactions, in bytes; limited by
    /// [`Builder::undo_bytes`](crate::Builder::undo_bytes). A transaction with less than 64 KiB counts as 0.
    pub undo_bytes: u64,
    /// The first error of a background activity since its last success.
    pub background_error: Option<String>,
    /// The reason that the store refuses all or some changes: its log or its page file failed, or a rollback
    /// waits for space on the disk.
    pub degraded: Option<String>,
}

/// Statistics of the page cache.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Size of a page in bytes.
    pub page_size: usize,
    /// Capacity in pages.
    pub frames: usize,
    /// Number of pages that were changed and not written yet.
    pub dirty_pages: u64,
    /// Number of pages read into the cache.
    pub misses: u64,
    /// Number of pages evicted.
    pub evictions: u64,
    /// Number of page images written.
    pub pages_written: u64,
    /// Number of page images that were written by a miss because there was no clean page to evict.
    pub foreground_writes: u64,
}

/// Statistics of memory servers, which hold pages that were evicted from the cache.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FarTierStats {
    /// Number of connected servers.
    pub servers_up: usize,
    /// Number of pages that the servers hold.
    pub pages: usize,
    /// Capacity of the servers in pages.
    pub capacity_pages: usize,
    /// Number of reads that the servers answered.
    pub hits: u64,
    /// Number of reads of pages that the servers do not hold.
    pub misses: u64,
    /// Number of reads that a server did not answer in time, or answered wrongly, so that the page was read
    /// from disk.
    pub broken: u64,
    /// Number of pages sent to servers.
    pub sent: u64,
    /// Number of pages that were not sent, because too many were in flight, or because the page had been
    /// written meanwhile.
    pub dropped: u64,
    /// Number of times that a server was lost.
    pub losses: u64,
    /// The last reason that a server was lost, could not be reached, or refused a page.
    pub last_loss: Option<String>,
}

/// Statistics of the log.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogStats {
    /// Name of the log protocol: `p-wal`, `serial`, `epoch:40`.
    pub protocol: String,
    /// Number of log buffers.
    pub buffers: usize,
    /// Number of log files written at the same time.
    pub streams: usize,
    /// Number of records appended.
    pub records: u64,
    /// Number of writes to the shared LSN counter.
    pub lsn_draws: u64,
    /// Size of the appended records in bytes.
    pub record_bytes: u64,
    /// Number of flushes that wrote data.
    pub flushes: u64,
    /// Number of bytes written, including headers and padding.
    pub written_bytes: u64,
    /// Number of bytes of log in the files that are kept, without prepared files.
    pub retained_bytes: u64,
    /// Number of bytes of log that the undo of open transactions may need. The number grows until a
    /// checkpoint carries the undo forward.
    pub held_bytes: u64,
    /// Newest LSN up to which every stream is durable.
    pub durable_lsn: u64,
    /// LSN at which a restart would begin to read the log.
    pub scan_lsn: u64,
}

/// Statistics of the locks.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LockCounts {
    /// Number of locks granted.
    pub acquisitions: u64,
    /// Number of requests that had to wait.
    pub waits: u64,
    /// Total time of the waits that have ended, in milliseconds.
    pub wait_ms: f64,
    /// Number of transactions aborted to end a deadlock.
    pub deadlocks: u64,
    /// Number of waits that exceeded the lock timeout.
    pub timeouts: u64,
}

/// Statistics of snapshots.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Number of open snapshots, including at most two that the store keeps for
    /// [`durable_snapshot`](crate::Database::durable_snapshot).
    pub open: usize,
    /// [Number](crate::Snapshot::number) of the oldest snapshot.
    pub oldest: Option<u64>,
    /// Age of the oldest snapshot in milliseconds.
    pub oldest_ms: f64,
    /// Number of row versions that writers keep for snapshots.
    pub versions: u64,
    /// Memory of the row versions, in bytes.
    pub version_bytes: u64,
    /// Number of bulk loads that are recorded for snapshots that must not see their rows.
    pub hidden_loads: usize,
    /// Number of transactions that have replaced large values or dropped tables, and still have to free their
    /// pages. They wait for older snapshots to close, or for the end of an error.
    pub waiting_to_free: usize,
    /// Number of snapshots that failed with [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub too_old: u64,
    /// Number of leaves for which snapshots have looked up row versions. A lookup is needed if a leaf has
    /// changes that are not durable, or that are not older than all open transactions.
    pub version_lookups: u64,
    /// A warning if the oldest snapshot has been open for more than a minute. The warning has the resources
    /// that the snapshot holds.
    pub warning: Option<String>,
}

/// Age above which [`SnapshotStats::warning`] reports a snapshot. Queries take milliseconds to seconds; a
/// backup of a large store takes longer, and is reported.
const LONG_SNAPSHOT_MS: f64 = 60_000.0;

impl SnapshotStats {
    pub(crate) fn of(shared: &Shared) -> Self {
        let stats = shared.env.versions().stats();
        let mut of_snapshots = Self {
            open: stats.open,
            oldest: stats.oldest,
            oldest_ms: stats.oldest_age.as_secs_f64() * 1e3,
            versions: stats.versions,
            version_bytes: stats.bytes,
            hidden_loads: stats.hidden_loads,
            waiting_to_free: shared.unfreed.lock().len(),
            too_old: stats.too_old,
            version_lookups: stats.lookups,
            warning: None,
        };
        of_snapshots.warning = of_snapshots.warning();
        of_snapshots
    }

    fn warning(&self) -> Option<String> {
        let Self { oldest_ms, versions, version_bytes, waiting_to_free, .. } = self;
        let oldest = self.oldest.filter(|_| *oldest_ms > LONG_SNAPSHOT_MS)?;
        Some(format!(
            "snapshot {oldest} has been open for {:.0} s; snapshots hold {versions} row versions of \
             {version_bytes} bytes, and large values or dropped tables of {waiting_to_free} transactions; \
             close the snapshot",
            oldest_ms / 1e3
        ))
    }
}

#[cfg(feature = "far")]
impl FarTierStats {
    fn of(far: azekura_far::FarCacheStats) -> Self {
        Self {
            servers_up: far.servers_up,
            pages: far.images,
            capacity_pages: far.capacity,
            hits: far.hits,
            misses: far.misses,
            broken: far.broken,
            sent: far.offered,
            dropped: far.dropped,
            losses: far.losses,
            last_loss: far.last_loss,
        }
    }
}

impl Stats {
    pub(crate) fn of(shared: &Shared) -> Self {
        use azekura_base::DurableLog;
        let oldest = shared.active.oldest(Instant::now());
        let (pool, wal, locks) = (shared.pool.stats(), shared.wal.stats(), shared.locks.stats());
        Self {
            cache: CacheStats {
                page_size: pool.page_size,
                frames: pool.frames,
                dirty_pages: pool.dirty_pages,
                misses: pool.misses,
                evictions: pool.evictions,
                pages_written: pool.pages_written,
                foreground_writes: pool.foreground_writes,
            },
            #[cfg(feature = "far")]
            far: shared.far.as_ref().map(|tier| FarTierStats::of(tier.stats())),
            #[cfg(not(feature = "far"))]
            far: None,
            log: LogStats {
                protocol: wal.protocol.to_string(),
                buffers: wal.log_buffers,
                streams: wal.streams,
                records: wal.records,
                lsn_draws: wal.lsn_draws,
                record_bytes: wal.record_bytes,
                flushes: wal.flushes,
                written_bytes: wal.chunk_bytes,
                retained_bytes: wal.retained_bytes,
                held_bytes: shared.active.held_bytes(shared.wal.log_bytes_since_start()),
                durable_lsn: shared.wal.durable_lsn().0,
                scan_lsn: shared.control.current().scan_lsn.0,
            },
            locks: LockCounts {
                acquisitions: locks.acquisitions,
                waits: locks.waits,
                wait_ms: locks.wait_time.as_secs_f64() * 1e3,
                deadlocks: locks.deadlocks,
                timeouts: locks.timeouts,
            },
            snapshots: SnapshotStats::of(shared),
            recovery: shared.recovery.clone(),
            oldest_writer: oldest.map(|oldest| oldest.txn.0),
            oldest_writer_ms: oldest.map_or(0.0, |oldest| oldest.age.as_secs_f64() * 1e3),
            parked_rollbacks: shared.parked.len(),
            undo_per_second: shared.undo_pace.per_second(),
            undo_bytes: shared.active.undo_memory(),
            scanned_leaves: shared.env.scanned_leaves(),
            active_writers: shared.active.len(),
            background_error: shared.background_error.lock().clone(),
            degraded: shared.degraded().map(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_named_in_a_warning_after_a_minute() {
        let of = |oldest_ms| SnapshotStats {
            open: 2,
            oldest: Some(17),
            oldest_ms,
            versions: 3,
            version_bytes: 700,
            hidden_loads: 0,
            waiting_to_free: 4,
            too_old: 0,
            version_lookups: 0,
            warning: None,
        };
        assert_eq!(of(59_000.0).warning(), None);
        let warning = of(75_000.0).warning().expect("it is a long time");
        for part in ["snapshot 17", "75 s", "3 row versions", "700 bytes", "4 transactions"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        assert_eq!(SnapshotStats { oldest: None, ..of(75_000.0) }.warning(), None);
    }
}
