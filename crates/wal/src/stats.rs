//! Counters of the log.

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::options::LogProtocol;

/// Counters since the log was created. The counters are read one after the other, so they may be slightly
/// inconsistent.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WalStats {
    /// The log protocol.
    pub protocol: LogProtocol,
    /// Number of log buffers.
    pub log_buffers: usize,
    /// Number of files that are written at the same time.
    pub streams: usize,
    /// Number of appended records.
    pub records: u64,
    /// Bytes of those records, with their frames.
    pub record_bytes: u64,
    /// Writes to the shared LSN counter; fewer than records when log buffers draw [ranges](crate::lsn_range),
    /// or a serial log draws for a group at once.
    pub lsn_draws: u64,
    /// LSNs that were drawn and have no record.
    pub gap_lsns: u64,
    /// Number of ended epochs, in a log with epochs.
    pub epochs: u64,
    /// Number of flushes that wrote records.
    pub flushes: u64,
    /// Number of flushes that found no records.
    pub empty_flushes: u64,
    /// Number of chunks written. Each chunk is one synchronous write, that is, one system call.
    pub chunks: u64,
    /// Bytes of those chunks, with headers and padding.
    pub chunk_bytes: u64,
    /// Number of records in the largest flush.
    pub largest_group: u64,
    /// Number of threads that slept until a flush ended, summed over the flushes.
    pub threads_woken: u64,
    /// Number of prepared segments.
    pub segments_prepared: u64,
    /// Number of prepared segments that were recycled instead of newly made.
    pub segments_recycled: u64,
    /// Number of segments released by trimming.
    pub segments_trimmed: u64,
    /// Bytes of the log that are kept, including those of old incarnations.
    pub retained_bytes: u64,
    /// Number of futures that wait for their records.
    pub pending_futures: u64,
}

/// Counters of one stream. All are statistics (Relaxed), written by the leader only.
#[derive(Debug, Default)]
pub(crate) struct StreamCounters {
    pub(crate) flushes: AtomicU64,
    pub(crate) empty_flushes: AtomicU64,
    pub(crate) chunks: AtomicU64,
    pub(crate) chunk_bytes: AtomicU64,
    pub(crate) largest_group: AtomicU64,
    pub(crate) threads_woken: AtomicU64,
}

impl StreamCounters {
    pub(crate) fn add_to(&self, stats: &mut WalStats) {
        // Relaxed: statistics.
        stats.flushes += self.flushes.load(Relaxed);
        stats.empty_flushes += self.empty_flushes.load(Relaxed);
        stats.chunks += self.chunks.load(Relaxed);
        stats.chunk_bytes += self.chunk_bytes.load(Relaxed);
        stats.largest_group = stats.largest_group.max(self.largest_group.load(Relaxed));
        stats.threads_woken += self.threads_woken.load(Relaxed);
    }
}
