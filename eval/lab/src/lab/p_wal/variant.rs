//! The compared logs: their numbers of streams, the threads that write, and the times of writing.

use std::str::FromStr;
use std::time::Duration;

use azekura_wal::{LogProtocol, WalOptions};

/// A compared log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// P-WAL as in the paper: each worker has a log file and writes it after every 16 transactions.
    Paper,
    /// P-WAL as in the store: the default number of streams, written greedily.
    Ours,
    /// P-WAL as in the store, with one stream.
    OneStream,
    /// P-WAL with a stream for each worker, written greedily.
    StreamEach,
    /// [`Variant::Paper`] by io_uring and, if the device supports them, atomic writes; represents the paper's
    /// P-WAL++.
    PaperPlus,
    /// A serial log after Aether, with a commit thread.
    Serial,
    /// [`Variant::Serial`] by io_uring; represents the paper's Aether++.
    SerialPlus,
    /// Epochs after Silo, with a stream for each worker.
    Epoch {
        /// Length of an epoch in milliseconds.
        ms: u64,
    },
}

/// The thread that writes the log, and the time of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The worker writes its own log after this number of transactions.
    Groups(usize),
    /// A thread of the log writes whenever there are records and no write is in progress.
    Greedy,
    /// A thread of the log writes at times that the log chooses, such as the ends of epochs.
    Unasked,
}

/// Number of transactions that the paper's workers write at a time (§5.1).
pub const GROUP: usize = 16;
/// Bytes of a worker's log buffer.
const BUFFER_BYTES: usize = 128 << 10;
const SEGMENT_BYTES: u64 = 2 << 20;

impl Variant {
    /// Variants for every device, by default.
    pub const ALL: [Self; 6] = [
        Self::Paper,
        Self::Ours,
        Self::OneStream,
        Self::Serial,
        Self::Epoch { ms: 40 },
        Self::Epoch { ms: 5 },
    ];
    /// Variants with another method of writing, for the real device only.
    pub const PLUS: [Self; 2] = [Self::PaperPlus, Self::SerialPlus];

    /// Returns the variant with the usual method of writing.
    #[must_use]
    pub const fn without_plus(self) -> Self {
        match self {
            Self::PaperPlus => Self::Paper,
            Self::SerialPlus => Self::Serial,
            other => other,
        }
    }

    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Paper => "p-wal (paper: a stream each, groups of 16)".into(),
            Self::Ours => "p-wal (ours: default streams, greedy)".into(),
            Self::OneStream => "p-wal (one stream, greedy)".into(),
            Self::StreamEach => "p-wal (a stream each, greedy)".into(),
            Self::PaperPlus => "p-wal++ (paper, by io_uring)".into(),
            Self::Serial => "serial (aether)".into(),
            Self::SerialPlus => "serial++ (aether, by io_uring)".into(),
            Self::Epoch { ms } => format!("epochs of {ms} ms (silo)"),
        }
    }

    /// Returns the name in tables of the store, where the log writes greedily with every number of streams.
    #[must_use]
    pub fn store_name(self) -> String {
        match self {
            Self::Paper => "p-wal (a stream each)".into(),
            Self::Ours => "p-wal (default streams)".into(),
            Self::OneStream => "p-wal (one stream)".into(),
            Self::StreamEach | Self::PaperPlus | Self::Serial | Self::SerialPlus | Self::Epoch { .. } => {
                self.name()
            }
        }
    }

    /// Returns the log protocol.
    #[must_use]
    pub const fn protocol(self) -> LogProtocol {
        match self {
            Self::Paper | Self::PaperPlus => LogProtocol::PWal,
            Self::Ours | Self::OneStream | Self::StreamEach => LogProtocol::PWal,
            Self::Serial | Self::SerialPlus => LogProtocol::Serial,
            Self::Epoch { ms } => LogProtocol::Epoch { interval: Duration::from_millis(ms) },
        }
    }

    /// Returns the number of transactions that a worker may have in flight if other variants have `window`.
    /// Epochs need more, because otherwise workers mostly wait for the end of an epoch.
    #[must_use]
    pub const fn window(self, window: usize) -> usize {
        match self {
            Self::Epoch { .. } => 64 * window,
            _ => window,
        }
    }

    /// Returns `true` if io_uring writes on the real device.
    #[must_use]
    pub const fn is_by_ring(self) -> bool {
        matches!(self, Self::PaperPlus | Self::SerialPlus)
    }

    /// Returns the shortest measured time with a meaningful result: five epochs.
    #[must_use]
    pub const fn least_time(self) -> Duration {
        match self {
            Self::Epoch { ms } => Duration::from_millis(5 * ms),
            _ => Duration::ZERO,
        }
    }

    /// Returns the thread that writes, and the time of writing.
    #[must_use]
    pub const fn pace(self) -> Pace {
        match self {
            Self::Paper | Self::PaperPlus => Pace::Groups(GROUP),
            Self::Epoch { .. } => Pace::Unasked,
            Self::Ours | Self::OneStream | Self::StreamEach | Self::Serial | Self::SerialPlus => Pace::Greedy,
        }
    }

    /// Returns the number of streams; `None` is the log's default.
    #[must_use]
    pub const fn streams(self, workers: usize) -> Option<usize> {
        match self {
            Self::Paper | Self::StreamEach | Self::PaperPlus | Self::Epoch { .. } => Some(workers),
            Self::Ours => None,
            Self::OneStream | Self::Serial | Self::SerialPlus => Some(1),
        }
    }

    /// Returns the largest number of LSNs that a worker draws at once: one in the paper's variants, the log's
    /// default in the others.
    #[must_use]
    pub fn lsn_range(self) -> u32 {
        match self {
            Self::Paper | Self::PaperPlus => 1,
            _ => WalOptions::default().lsn_range,
        }
    }

    /// Returns the settings of a log with this number of workers.
    #[must_use]
    pub fn wal_options(self, workers: usize) -> WalOptions {
        WalOptions {
            protocol: self.protocol(),
            log_buffers: workers,
            streams: self.streams(workers).unwrap_or(0),
            segment_bytes: SEGMENT_BYTES,
            buffer_bytes: BUFFER_BYTES,
            lsn_range: self.lsn_range(),
            ..WalOptions::default()
        }
    }
}

/// Parses `paper`, `ours`, `one-stream`, `stream-each`, `serial` and `epoch:MS`.
impl FromStr for Variant {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "paper" => Ok(Self::Paper),
            "ours" => Ok(Self::Ours),
            "one-stream" => Ok(Self::OneStream),
            "stream-each" => Ok(Self::StreamEach),
            "serial" => Ok(Self::Serial),
            _ => {
                let ms = word.strip_prefix("epoch:").and_then(|ms| ms.parse().ok()).filter(|&ms| ms > 0);
                ms.map(|ms| Self::Epoch { ms }).ok_or_else(|| {
                    format!(
                        "no log is called {word}; \
                         there are paper, ours, one-stream, stream-each, serial, epoch:MS"
                    )
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_chosen_by_word() {
        for (word, variant) in [
            ("paper", Variant::Paper),
            ("ours", Variant::Ours),
            ("one-stream", Variant::OneStream),
            ("stream-each", Variant::StreamEach),
            ("serial", Variant::Serial),
            ("epoch:7", Variant::Epoch { ms: 7 }),
        ] {
            assert_eq!(word.parse(), Ok(variant));
        }
        for bad in ["epoch", "epoch:0", "p-wal", ""] {
            assert!(bad.parse::<Variant>().is_err(), "{bad}");
        }
    }
}
