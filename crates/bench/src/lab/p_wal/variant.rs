//! The logs that are compared: how many streams, and who writes when.

use std::time::Duration;

use azekura_wal::{LogProtocol, StreamCount, WalOptions};

/// A log of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// P-WAL to the letter: a log file for each worker, written by it after every 16 transactions.
    Paper,
    /// P-WAL as the store has it: as many streams as the device is good for, written greedily.
    Ours,
    /// The same with one stream.
    OneStream,
    /// A serial log after Aether, with a commit thread.
    Serial,
    /// Epochs after Silo, a stream each.
    Epoch {
        /// Between two ends.
        ms: u64,
    },
}

/// Who writes the log when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The worker itself, after so many transactions.
    Groups(usize),
    /// The log, whenever it is not writing and something is there.
    Greedy,
    /// The log, when it likes.
    Unasked,
}

/// Transactions that the paper writes at a time (§5.1).
pub const GROUP: usize = 16;
/// Of one worker.
const BUFFER_BYTES: usize = 128 << 10;
const SEGMENT_BYTES: u64 = 2 << 20;

impl Variant {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Paper,
        Self::Ours,
        Self::OneStream,
        Self::Serial,
        Self::Epoch { ms: 40 },
        Self::Epoch { ms: 5 },
    ];

    /// What tables call it.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Paper => "p-wal (paper: a stream each, groups of 16)".into(),
            Self::Ours => "p-wal (ours: adaptive streams, greedy)".into(),
            Self::OneStream => "p-wal (one stream, greedy)".into(),
            Self::Serial => "serial (aether)".into(),
            Self::Epoch { ms } => format!("epochs of {ms} ms (silo)"),
        }
    }

    /// What tables of the store call it: there the log writes greedily, whatever its number of streams.
    #[must_use]
    pub fn store_name(self) -> String {
        match self {
            Self::Paper => "p-wal (a stream each)".into(),
            Self::Ours => "p-wal (adaptive streams)".into(),
            Self::OneStream => "p-wal (one stream)".into(),
            Self::Serial | Self::Epoch { .. } => self.name(),
        }
    }

    /// The protocol.
    #[must_use]
    pub const fn protocol(self) -> LogProtocol {
        match self {
            Self::Paper | Self::Ours | Self::OneStream => LogProtocol::PWal,
            Self::Serial => LogProtocol::Serial,
            Self::Epoch { ms } => LogProtocol::Epoch { interval: Duration::from_millis(ms) },
        }
    }

    /// Transactions that a worker may have in flight where `window` is what the others may have. Epochs need many, or workers only wait
    /// for their end.
    #[must_use]
    pub const fn window(self, window: usize) -> usize {
        match self {
            Self::Epoch { .. } => 64 * window,
            _ => window,
        }
    }

    /// Who writes when.
    #[must_use]
    pub const fn pace(self) -> Pace {
        match self {
            Self::Paper => Pace::Groups(GROUP),
            Self::Epoch { .. } => Pace::Unasked,
            Self::Ours | Self::OneStream | Self::Serial => Pace::Greedy,
        }
    }

    /// How many streams.
    #[must_use]
    pub const fn streams(self, workers: usize) -> StreamCount {
        match self {
            Self::Paper | Self::Epoch { .. } => StreamCount::Fixed(workers),
            Self::Ours => StreamCount::Auto,
            Self::OneStream | Self::Serial => StreamCount::Fixed(1),
        }
    }

    /// The settings of a log with so many workers.
    #[must_use]
    pub fn wal_options(self, workers: usize) -> WalOptions {
        WalOptions {
            protocol: self.protocol(),
            workers,
            streams: self.streams(workers),
            segment_bytes: SEGMENT_BYTES,
            buffer_bytes: BUFFER_BYTES,
            ..WalOptions::default()
        }
    }
}
