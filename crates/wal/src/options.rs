//! Settings of a log.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use azekura_base::striped::stripe_count;
use azekura_base::{Cipher, Lsn, processors};

use crate::chunk::{self, UNIT_BYTES};
use crate::error::WalError;
use crate::lsn_range::MAX_RANGE;

/// Largest number of log buffers of a log.
pub const MAX_LOG_BUFFERS: usize = 256;
/// The smallest first segment: large enough for chunks of small buffers and for the reserve.
const LEAST_SEGMENT_BYTES: u64 = 64 << 10;
/// Largest number of streams. A stream's directory has two decimal digits as its name.
pub const MAX_STREAMS: usize = 64;

/// Protocol of the log: how records are inserted into buffers, and when a commit is acknowledged. Not part of
/// the format: recovery reads the logs of all protocols, and the next run may choose another one.
///
/// | | `PWal` | `Serial` | `Epoch` |
/// |---|---|---|---|
/// | buffers | `log_buffers` | one, insertion by a consolidation array | `log_buffers` |
/// | files written at the same time | `streams` | 1 | `streams` |
/// | the writer | a waiting committer, or a flusher | the flusher | the flushers |
/// | time of a write | when the stream is free | when the stream is free | at the end of each epoch |
/// | commits are acknowledged | once all before are durable | the same | once their epoch is durable |
///
/// `Serial` and `Epoch` need the cargo feature `baseline-logs`.
///
/// ```
/// use std::time::Duration;
/// use azekura_wal::LogProtocol;
///
/// # #[cfg(feature = "baseline-logs")] {
/// assert_eq!("epoch:10".parse(), Ok(LogProtocol::Epoch { interval: Duration::from_millis(10) }));
/// assert_eq!("epoch".parse::<LogProtocol>().map(|log| log.to_string()), Ok("epoch:40".to_owned()));
/// # }
/// assert!("epoch:0".parse::<LogProtocol>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogProtocol {
    /// The parallel log of the P-WAL paper.
    #[default]
    PWal,
    /// The serial log after Aether (Johnson et al., VLDB 2010), the paper's baseline.
    #[cfg(feature = "baseline-logs")]
    Serial,
    /// Group commit by epochs after Silo (Tu et al., SOSP 2013): the paper's section 6.3.
    #[cfg(feature = "baseline-logs")]
    Epoch {
        /// Time from the end of one epoch to the end of the next, if the device keeps up; greater than 0.
        interval: Duration,
    },
}

impl LogProtocol {
    /// Length of an epoch in Silo and FOEDUS (paper sections 5.4 and 6.3).
    #[cfg(feature = "baseline-logs")]
    pub const SILO_EPOCH: Duration = Duration::from_millis(40);

    /// Returns `true` for the serial log.
    #[must_use]
    pub const fn is_serial(self) -> bool {
        match self {
            Self::PWal => false,
            #[cfg(feature = "baseline-logs")]
            Self::Serial => true,
            #[cfg(feature = "baseline-logs")]
            Self::Epoch { .. } => false,
        }
    }

    /// Returns the length of an epoch; `None` for a log without epochs.
    #[must_use]
    pub const fn epoch_interval(self) -> Option<Duration> {
        match self {
            Self::PWal => None,
            #[cfg(feature = "baseline-logs")]
            Self::Serial => None,
            #[cfg(feature = "baseline-logs")]
            Self::Epoch { interval } => Some(interval),
        }
    }
}

/// Writes `p-wal`, `serial`, or `epoch:40` (milliseconds).
impl std::fmt::Display for LogProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PWal => f.write_str("p-wal"),
            #[cfg(feature = "baseline-logs")]
            Self::Serial => f.write_str("serial"),
            #[cfg(feature = "baseline-logs")]
            Self::Epoch { interval } => write!(f, "epoch:{}", interval.as_secs_f64() * 1e3),
        }
    }
}

/// The error for a name that no log protocol has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(
    feature = "baseline-logs",
    error("{0:?} is no log protocol: p-wal, serial, epoch, or epoch:MS with 0 < MS <= 60000 milliseconds")
)]
#[cfg_attr(not(feature = "baseline-logs"), error("{0:?} is no log protocol: p-wal"))]
pub struct UnknownProtocol(String);

impl std::str::FromStr for LogProtocol {
    type Err = UnknownProtocol;

    /// Parses the names that `Display` writes; `epoch` without a number has Silo's interval.
    fn from_str(name: &str) -> Result<Self, UnknownProtocol> {
        let unknown = || UnknownProtocol(name.to_owned());
        match name {
            "p-wal" => Ok(Self::PWal),
            #[cfg(feature = "baseline-logs")]
            "serial" => Ok(Self::Serial),
            #[cfg(feature = "baseline-logs")]
            "epoch" => Ok(Self::Epoch { interval: Self::SILO_EPOCH }),
            #[cfg(feature = "baseline-logs")]
            _ => {
                let millis = name.strip_prefix("epoch:").and_then(|ms| ms.parse::<f64>().ok());
                let millis = millis.filter(|ms| *ms > 0.0 && *ms <= 60_000.0).ok_or_else(unknown)?;
                let interval = Duration::from_secs_f64(millis / 1e3);
                if interval.is_zero() { Err(unknown()) } else { Ok(Self::Epoch { interval }) }
            }
            #[cfg(not(feature = "baseline-logs"))]
            _ => Err(unknown()),
        }
    }
}

/// Settings of a log. None of them is part of the format: the next run may choose others.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Protocol for inserting records into buffers and writing these to disk.
    pub protocol: LogProtocol,
    /// Number of buffers that threads append to. 0 stands for the number of [stripes of
    /// threads](azekura_base::striped::stripe_count): with so many buffers, a thread that is preempted during
    /// an append blocks few others. A serial log has one buffer.
    pub log_buffers: usize,
    /// Number of files written at the same time, at most one per buffer; 0 stands for
    /// [`default_stream_count`]. A serial log writes one file.
    pub streams: usize,
    /// Size of a segment file in bytes, rounded up to a multiple of 4 KiB; at least two full buffers.
    pub segment_bytes: u64,
    /// Size of one log buffer in bytes. A record's body may take up to half of it. With background threads, a
    /// buffer that is more than half full is written.
    pub buffer_bytes: usize,
    /// Background jobs on or off: one for each stream, which flushes it, and one that prepares segments. They
    /// run in [threads of the process](azekura_base::background). Without background jobs, the calls to the
    /// log do all work themselves, in an order that a test can repeat.
    pub background: bool,
    /// Longest time that a record without a flush request stays in a buffer (W3), within a factor of two.
    /// Only with `background`.
    pub max_delay: Duration,
    /// If set, the log is written to the operating system's cache and synced once in this interval, instead
    /// of with each write. A commit is acknowledged once it is in the operating system's cache. A process
    /// that is killed loses no acknowledged commit; a power loss loses at most the last interval. LSNs that
    /// [`DurableLog`] calls durable are synced in either case. Excludes direct I/O and epochs.
    ///
    /// [`DurableLog`]: azekura_base::DurableLog
    pub sync_interval: Option<Duration>,
    /// Requests direct I/O.
    pub direct: bool,
    /// Largest number of LSNs that a log buffer draws at once, see [`lsn_range`](crate::lsn_range). With 1,
    /// each record draws its own LSN. A serial log draws LSNs for groups of records.
    pub lsn_range: u32,
    /// Size of the first segments, at least 64 KiB. Each filled segment doubles the size of the next one, up
    /// to `segment_bytes`, and buffers hold little while segments are small. `None`: all segments have their
    /// full size. Segments of a serial log always have their full size.
    pub first_segment_bytes: Option<u64>,
    /// `true` if no record of an earlier incarnation is needed: existing segments are reused regardless of
    /// their content.
    pub nothing_counts: bool,
    /// Called once, before the first chunk is written. Before that call, the log creates no segment. `None`:
    /// the log begins when it is created.
    pub begin: Option<Begin>,
    /// Called by the flushers soon after the log has grown, while it grows often. Only with `background`.
    pub grown: Option<Grown>,
    /// Called after each flush that wrote records, once its commits are acknowledged.
    pub durable: Option<NoteDurable>,
    /// Encrypts the payload of each chunk. Not used for the baseline logs.
    pub cipher: Option<Arc<dyn Cipher>>,
}

/// The function that notifies the log's owner of the LSN up to which everything survives a power loss. The
/// owner can store it outside of the log, where it reveals a loss of the newest chunks of a stream.
#[derive(Clone)]
pub struct NoteDurable(Arc<dyn Fn(Lsn) + Send + Sync>);

impl NoteDurable {
    /// Wraps `note`. Several threads may call `note` at the same time, not always in the order of the LSNs.
    /// `note` must not wait for the log.
    pub fn new(note: impl Fn(Lsn) + Send + Sync + 'static) -> Self {
        Self(Arc::new(note))
    }

    pub(crate) fn call(&self, lsn: Lsn) {
        (self.0)(lsn);
    }
}

impl std::fmt::Debug for NoteDurable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NoteDurable")
    }
}

/// The function that notifies the log's owner of new records.
#[derive(Clone)]
pub struct Grown(Arc<dyn Fn() + Send + Sync>);

impl Grown {
    /// Wraps `note`, which must not wait for the log.
    pub fn new(note: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(note))
    }

    pub(crate) fn call(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for Grown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Grown")
    }
}

/// The log owner's function that runs before the first chunk of an incarnation is written: the owner records
/// durably that this incarnation exists (W5).
#[derive(Clone)]
pub struct Begin(Arc<dyn Fn() -> io::Result<()> + Send + Sync>);

impl Begin {
    /// Wraps `note`, which must not use the log. If `note` fails, it is called again later.
    pub fn new(note: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(note))
    }

    pub(crate) fn call(&self) -> io::Result<()> {
        (self.0)()
    }
}

impl std::fmt::Debug for Begin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Begin")
    }
}

impl Default for WalOptions {
    /// Returns the defaults: P-WAL, as many buffers as stripes of threads, the default number of streams,
    /// 16-MiB segments, 1-MiB buffers, background jobs, a delay of 10 ms, direct I/O, and ranges of up to 64
    /// LSNs.
    fn default() -> Self {
        Self {
            protocol: LogProtocol::PWal,
            log_buffers: 0,
            streams: 0,
            segment_bytes: 16 << 20,
            buffer_bytes: 1 << 20,
            background: true,
            max_delay: Duration::from_millis(10),
            sync_interval: None,
            direct: true,
            lsn_range: 64,
            first_segment_bytes: None,
            nothing_counts: false,
            begin: None,
            grown: None,
            durable: None,
            cipher: None,
        }
    }
}

/// Returns the number of buffers of a log if it is not set: one for each [stripe of threads](stripe_count),
/// at most [`MAX_LOG_BUFFERS`].
#[must_use]
pub fn default_log_buffer_count() -> usize {
    stripe_count().min(MAX_LOG_BUFFERS)
}

/// Processors per log stream if the number of streams is not set.
const PROCESSORS_PER_STREAM: usize = 16;

/// Returns the number of streams of a log if it is not set: one per 16 processors, at least one.
///
/// A commit waits for all streams, and most devices execute flushes one after the other. So one stream is
/// best until the processors produce more during a flush than one flush can hold
/// (`docs/decisions/030-fixed-log-rules.md`).
#[must_use]
pub fn default_stream_count() -> usize {
    (processors() / PROCESSORS_PER_STREAM).clamp(1, MAX_STREAMS)
}

impl WalOptions {
    /// Returns the effective number of buffers.
    pub(crate) fn log_buffer_count(&self) -> usize {
        if self.protocol.is_serial() {
            return 1;
        }
        if self.log_buffers > 0 { self.log_buffers } else { default_log_buffer_count() }
    }

    /// Returns the effective number of streams; a serial log has one.
    pub(crate) fn stream_count(&self) -> usize {
        match (self.protocol.is_serial(), self.streams) {
            (true, _) => 1,
            (_, 0) => default_stream_count().min(self.log_buffer_count()),
            (_, streams) => streams,
        }
    }

    /// Returns the size of the largest body of a record, in bytes.
    pub(crate) const fn max_body_bytes(&self) -> usize {
        self.buffer_bytes / 2
    }

    /// Returns the size of a segment file, in bytes.
    pub(crate) const fn segment_size(&self) -> u64 {
        self.segment_bytes.next_multiple_of(UNIT_BYTES as u64)
    }

    /// Returns the size of the first segments, if segments grow.
    pub(crate) fn first_segment(&self) -> Option<u64> {
        let first = self.first_segment_bytes.filter(|_| !self.protocol.is_serial())?;
        Some(first.max(LEAST_SEGMENT_BYTES).next_multiple_of(UNIT_BYTES as u64))
    }

    /// Rejects settings that cannot work.
    pub(crate) fn check(&self) -> Result<(), WalError> {
        let refuse = |reason: String| Err(WalError::Options { reason });
        let log_buffers = self.log_buffer_count();
        if log_buffers > MAX_LOG_BUFFERS {
            return refuse(format!("{log_buffers} log buffers, at most {MAX_LOG_BUFFERS}"));
        }
        if self.protocol.epoch_interval() == Some(Duration::ZERO) {
            return refuse("the epoch interval must be greater than 0".into());
        }
        if self.sync_interval.is_some() && self.protocol.epoch_interval().is_some() {
            // Acknowledgments of epochs rely on the order of writes in each stream (CHUNK-2).
            return refuse(format!("a sync interval is set, but the log {} syncs each write", self.protocol));
        }
        let streams = self.stream_count();
        if streams > log_buffers.min(MAX_STREAMS) {
            return refuse(format!(
                "{streams} streams for {log_buffers} log buffers; at most one per buffer and {MAX_STREAMS}"
            ));
        }
        if self.buffer_bytes < 1024 || self.buffer_bytes > 1 << 30 {
            return refuse(format!("buffers of {} bytes; use 1 KiB to 1 GiB", self.buffer_bytes));
        }
        if !(1..=MAX_RANGE).contains(&self.lsn_range) {
            return refuse(format!("{} LSNs drawn at once; use 1 to {MAX_RANGE}", self.lsn_range));
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

/// The log's database and incarnation, and its first LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogIdentity {
    /// The database; a chunk of another database is never read.
    pub database_id: u64,
    /// Number of this opening of the database, larger than those of all earlier openings. Chunks of different
    /// openings are never mixed (W5).
    pub incarnation: u32,
    /// The first LSN to be drawn; above every LSN that any file of the log has ever held.
    pub first_lsn: Lsn,
}

/// One of the log's buffers, and the purpose of its records. All records of a transaction go to one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogBufferId {
    index: u32,
    may_use_reserve: bool,
}

impl LogBufferId {
    /// Returns the buffer with this number, modulo the log's number of buffers.
    #[must_use]
    pub const fn from_index(index: usize) -> Self {
        Self { index: index as u32, may_use_reserve: false }
    }

    /// Returns the buffer's number.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// Returns the same buffer for records that undo a transaction. On a full disk, these records are
    /// admitted when others are refused, until the reserve is used up (one segment per stream).
    #[must_use]
    pub const fn with_reserve(self) -> Self {
        Self { may_use_reserve: true, ..self }
    }

    /// Returns the admission that the records need.
    pub(crate) const fn admission(self) -> Admission {
        if self.may_use_reserve { Admission::Undo } else { Admission::All }
    }
}

/// The records that a stream admits to its buffers; each value admits more than the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Admission {
    /// No record: prepared segments might have no room for it.
    None = 0,
    /// Records that undo transactions.
    Undo = 1,
    /// Every record.
    All = 2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_read_as_it_is_written() {
        for interval in [1, 400, 40_000, 1_500_000].map(Duration::from_micros) {
            let epoch = LogProtocol::Epoch { interval };
            for protocol in [LogProtocol::PWal, LogProtocol::Serial, epoch] {
                assert_eq!(protocol.to_string().parse(), Ok(protocol));
            }
        }
        for bad in ["", "pwal", "epoch:", "epoch:-1", "epoch:nan", "epoch:1e-9", "epoch:60001", "serial:1"] {
            assert!(bad.parse::<LogProtocol>().is_err(), "{bad}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let good = WalOptions { log_buffers: 4, streams: 2, ..WalOptions::default() };
        assert!(good.check().is_ok());
        for bad in [
            WalOptions { log_buffers: 1000, ..good.clone() },
            WalOptions { streams: 5, ..good.clone() },
            WalOptions { protocol: LogProtocol::Epoch { interval: Duration::ZERO }, ..good.clone() },
            WalOptions {
                sync_interval: Some(Duration::from_secs(1)),
                protocol: LogProtocol::Epoch { interval: Duration::from_millis(1) },
                ..good.clone()
            },
            WalOptions { buffer_bytes: 10, ..good.clone() },
            WalOptions { lsn_range: 0, ..good.clone() },
            WalOptions { lsn_range: MAX_RANGE + 1, ..good.clone() },
            WalOptions { segment_bytes: 1 << 20, ..good },
        ] {
            assert!(matches!(bad.check(), Err(WalError::Options { .. })), "{bad:?}");
        }
    }
}
