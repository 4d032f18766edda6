//! What the log is told when it is created.

use std::time::Duration;

use azekura_base::Lsn;

use crate::chunk::{self, UNIT_BYTES};
use crate::error::WalError;

/// Most workers, and most streams, that a log can have.
pub const MAX_WORKERS: usize = 256;
/// Streams are two decimal digits in the directory.
pub const MAX_STREAMS: usize = 64;

/// How many files are written at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCount {
    /// Measured when the log is created (about 50 ms): more than one only where concurrent synchronous writes do
    /// not slow each other down. See [`parallelism`](crate::parallelism).
    Auto,
    /// This many, at least 1, at most the number of workers.
    Fixed(usize),
}

/// Settings of a log. None of them is part of the format: the next run may choose others.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Number of buffers that threads append to; 0 stands for the number of processors.
    pub workers: usize,
    /// Number of files written at the same time.
    pub streams: StreamCount,
    /// Size of a segment file, rounded up to 4 KiB; at least two full buffers.
    pub segment_bytes: u64,
    /// Size of one worker's buffer. A record's body may take up to half of it.
    pub buffer_bytes: usize,
    /// Whether the log has threads of its own: one flusher per stream and one that prepares segments. Without them
    /// everything happens inside the callers' calls, in an order that a test can repeat.
    pub background: bool,
    /// Longest time that a record stays in a buffer when nobody asks for a flush (W3), within a factor of two.
    /// Only with `background`.
    pub max_delay: Duration,
    /// Ask for direct I/O.
    pub direct: bool,
}

impl Default for WalOptions {
    /// As many workers as processors, streams measured, 16-MiB segments, 1-MiB buffers, threads, 10 ms, direct.
    fn default() -> Self {
        Self {
            workers: 0,
            streams: StreamCount::Auto,
            segment_bytes: 16 << 20,
            buffer_bytes: 1 << 20,
            background: true,
            max_delay: Duration::from_millis(10),
            direct: true,
        }
    }
}

impl WalOptions {
    /// The number of workers meant.
    pub(crate) fn worker_count(&self) -> usize {
        if self.workers > 0 {
            return self.workers;
        }
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_WORKERS)
    }

    /// Longest body of a record.
    pub(crate) const fn max_body_bytes(&self) -> usize {
        self.buffer_bytes / 2
    }

    /// Size of a segment file.
    pub(crate) const fn segment_size(&self) -> u64 {
        self.segment_bytes.next_multiple_of(UNIT_BYTES as u64)
    }

    /// Refuses settings that cannot work.
    pub(crate) fn check(&self) -> Result<(), WalError> {
        let refuse = |reason: String| Err(WalError::Options { reason });
        let workers = self.worker_count();
        if workers > MAX_WORKERS {
            return refuse(format!("{workers} workers, at most {MAX_WORKERS}"));
        }
        if let StreamCount::Fixed(n) = self.streams
            && (n == 0 || n > workers.min(MAX_STREAMS))
        {
            return refuse(format!(
                "{n} streams for {workers} workers; at least 1, at most one per worker and {MAX_STREAMS}"
            ));
        }
        if self.buffer_bytes < 1024 || self.buffer_bytes > 1 << 30 {
            return refuse(format!("buffers of {} bytes; 1 KiB to 1 GiB", self.buffer_bytes));
        }
        let block = chunk::max_chunk_bytes(self.buffer_bytes);
        if self.segment_size() < 2 * block {
            return refuse(format!(
                "segments of {} bytes hold no two full buffers ({block} bytes each)",
                self.segment_bytes
            ));
        }
        Ok(())
    }
}

/// Whose log this is, and where its LSNs start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// The database; a chunk of another database is never read.
    pub database_id: u64,
    /// This opening of the database, larger than every one before. Chunks of different openings are never mixed (W5).
    pub incarnation: u32,
    /// The first LSN to be drawn; above every LSN that any file of the log has ever held.
    pub first_lsn: Lsn,
}

/// One of the log's buffers, and what its records are for; those of one transaction go to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId {
    index: u32,
    may_use_reserve: bool,
}

impl WorkerId {
    /// The worker with this number. One beyond the log's worker count stands for the number modulo that count.
    #[must_use]
    pub const fn from_index(index: usize) -> Self {
        Self { index: index as u32, may_use_reserve: false }
    }

    /// Its number.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// The same buffer, for records that undo a transaction: they get in where others are refused because the disk is
    /// full, as long as the reserve lasts (one segment for each stream).
    #[must_use]
    pub const fn with_reserve(self) -> Self {
        Self { may_use_reserve: true, ..self }
    }

    /// What records of this worker need.
    pub(crate) const fn admission(self) -> Admission {
        if self.may_use_reserve { Admission::Undo } else { Admission::All }
    }
}

/// Which records a stream lets into its buffers; each one more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Admission {
    /// None: they might find no prepared segment.
    None = 0,
    /// Those that undo transactions.
    Undo = 1,
    /// Every record.
    All = 2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let good = WalOptions { workers: 4, streams: StreamCount::Fixed(2), ..WalOptions::default() };
        assert!(good.check().is_ok());
        for bad in [
            WalOptions { workers: 1000, ..good.clone() },
            WalOptions { streams: StreamCount::Fixed(0), ..good.clone() },
            WalOptions { streams: StreamCount::Fixed(5), ..good.clone() },
            WalOptions { buffer_bytes: 10, ..good.clone() },
            WalOptions { segment_bytes: 1 << 20, ..good },
        ] {
            assert!(matches!(bad.check(), Err(WalError::Options { .. })), "{bad:?}");
        }
    }
}
