//! Counters and sizes of a store.

use azekura_base::sync::time::Instant;
use serde::Serialize;

use crate::database::Shared;
use crate::restart::RecoveryReport;

/// Counts since the store was opened; made by [`Database::stats`](crate::Database::stats).
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// The page cache.
    pub cache: CacheStats,
    /// Memory servers behind the page cache, if there are any (feature `far`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<FarTierStats>,
    /// The log.
    pub log: LogStats,
    /// The locks.
    pub locks: LockCounts,
    /// Open snapshots and row versions.
    pub snapshots: SnapshotStats,
    /// Result of the recovery at opening.
    pub recovery: RecoveryReport,
    /// Leaves to which scans descended; without unused pages in a table, each has some of the scanned rows.
    pub scanned_leaves: u64,
    /// Transactions that have written and not ended.
    pub active_writers: usize,
    /// Number of the longest-open transaction of those that have written and not ended.
    pub oldest_writer: Option<u64>,
    /// Its age in milliseconds, from the first check of the checkpointer (every 50 ms) on.
    pub oldest_writer_ms: f64,
    /// Rollbacks that wait for space in the log, or for a page that could not be read; their rows are locked.
    pub parked_rollbacks: usize,
    /// Changes per second that a restart is assumed to undo, for the bound on its time
    /// ([`recovery_time`](crate::Builder::recovery_time)).
    pub undo_per_second: f64,
    /// The first error of a background activity since its last success.
    pub background_error: Option<String>,
    /// The reason that the store refuses changes, or some of them: its log or its page file failed, or a
    /// rollback waits for space on the disk.
    pub degraded: Option<String>,
}

/// The page cache's part of [`Stats`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct CacheStats {
    /// Bytes of a page.
    pub page_size: usize,
    /// Capacity in pages.
    pub frames: usize,
    /// Pages changed and not written yet.
    pub dirty_pages: u64,
    /// Pages read in.
    pub misses: u64,
    /// Pages evicted for another.
    pub evictions: u64,
    /// Page images written.
    pub pages_written: u64,
    /// Those written by a miss that found no clean page to evict.
    pub foreground_writes: u64,
}

/// The part of [`Stats`] for memory servers that hold pages which left the cache.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FarTierStats {
    /// Servers that are connected.
    pub servers_up: usize,
    /// Pages that the servers hold.
    pub pages: usize,
    /// Capacity of the servers in pages.
    pub capacity_pages: usize,
    /// Reads that the servers answered.
    pub hits: u64,
    /// Reads of pages that the servers do not hold.
    pub misses: u64,
    /// Reads that a server did not answer in time, or answered wrongly; the disk answered them.
    pub broken: u64,
    /// Pages sent.
    pub sent: u64,
    /// Pages that were not sent because too many were in flight, or the page had been written meanwhile.
    pub dropped: u64,
    /// Servers lost.
    pub losses: u64,
    /// The reason that the last one was lost, cannot be reached, or refused a page.
    pub last_loss: Option<String>,
}

/// The log's part of [`Stats`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LogStats {
    /// The log protocol: `p-wal`, `serial`, `epoch:40`.
    pub protocol: String,
    /// Buffers.
    pub buffers: usize,
    /// Files written at the same time.
    pub streams: usize,
    /// Records appended.
    pub records: u64,
    /// Writes to the shared LSN counter.
    pub lsn_draws: u64,
    /// Bytes of records.
    pub record_bytes: u64,
    /// Flushes that wrote something.
    pub flushes: u64,
    /// Bytes written, with headers and padding.
    pub written_bytes: u64,
    /// Bytes of log files kept.
    pub retained_bytes: u64,
    /// Those that the undo of open transactions may need. They grow until a checkpoint carries the undo
    /// forward.
    pub held_bytes: u64,
    /// Newest LSN that is durable in every stream.
    pub durable_lsn: u64,
    /// LSN at which a restart would begin to read.
    pub scan_lsn: u64,
}

/// The locks' part of [`Stats`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LockCounts {
    /// Locks granted.
    pub acquisitions: u64,
    /// Requests that had to wait.
    pub waits: u64,
    /// Time of the waits that ended, in milliseconds.
    pub wait_ms: f64,
    /// Transactions aborted to end a deadlock.
    pub deadlocks: u64,
    /// Waits that exceeded the lock timeout.
    pub timeouts: u64,
}

/// The snapshots' part of [`Stats`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct SnapshotStats {
    /// Snapshots that are open, with at most two that the store keeps for
    /// [`durable_snapshot`](crate::Database::durable_snapshot).
    pub open: usize,
    /// [Number](crate::Snapshot::number) of the oldest.
    pub oldest: Option<u64>,
    /// Its age in milliseconds.
    pub oldest_ms: f64,
    /// Row versions that writers keep for them.
    pub versions: u64,
    /// Memory of these versions, in bytes.
    pub version_bytes: u64,
    /// Bulk loads that are remembered for snapshots which must not see their rows.
    pub hidden_loads: usize,
    /// Transactions that replaced large values or dropped tables, and wait for older snapshots to close (or
    /// for the end of an error) before they free the pages.
    pub waiting_to_free: usize,
    /// Snapshots that failed with [`Error::SnapshotTooOld`](crate::Error::SnapshotTooOld).
    pub too_old: u64,
    /// Leaves for which snapshots have looked up row versions. They do so if a leaf has changes that are not
    /// durable, or are not older than all open transactions.
    pub version_lookups: u64,
    /// A warning if the oldest snapshot has been open for more than a minute, with the resources that it
    /// holds.
    pub warning: Option<String>,
}

/// Age of a snapshot above which [`SnapshotStats::warning`] names it. Queries take milliseconds to seconds; a
/// backup of a large store takes longer, and is named.
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
                scan_lsn: shared.control.lock().current().scan_lsn.0,
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
