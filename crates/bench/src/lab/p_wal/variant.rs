//! The logs that are compared: how many streams, and who writes when.

use azekura_wal::{StreamCount, WalOptions};

/// A log of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// P-WAL to the letter: a log file for each worker, written by it after every 16 transactions.
    Paper,
    /// P-WAL as the store has it: as many streams as the device is good for, written greedily.
    Ours,
    /// The same with one stream.
    OneStream,
}

/// Who writes the log when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The worker itself, after so many transactions.
    Groups(usize),
    /// The log, whenever it is not writing and something is there.
    Greedy,
}

/// Transactions that the paper writes at a time (§5.1).
pub const GROUP: usize = 16;
/// Of one worker.
const BUFFER_BYTES: usize = 128 << 10;
const SEGMENT_BYTES: u64 = 2 << 20;

impl Variant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Paper, Self::Ours, Self::OneStream];

    /// What tables call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paper => "p-wal (paper: a stream each, groups of 16)",
            Self::Ours => "p-wal (ours: adaptive streams, greedy)",
            Self::OneStream => "p-wal (one stream, greedy)",
        }
    }

    /// What tables of the store call it: there the log writes greedily, whatever its number of streams.
    #[must_use]
    pub const fn store_name(self) -> &'static str {
        match self {
            Self::Paper => "p-wal (a stream each)",
            Self::Ours => "p-wal (adaptive streams)",
            Self::OneStream => "p-wal (one stream)",
        }
    }

    /// Who writes when.
    #[must_use]
    pub const fn pace(self) -> Pace {
        match self {
            Self::Paper => Pace::Groups(GROUP),
            Self::Ours | Self::OneStream => Pace::Greedy,
        }
    }

    /// How many streams.
    #[must_use]
    pub const fn streams(self, workers: usize) -> StreamCount {
        match self {
            Self::Paper => StreamCount::Fixed(workers),
            Self::Ours => StreamCount::Auto,
            Self::OneStream => StreamCount::Fixed(1),
        }
    }

    /// The settings of a log with so many workers.
    #[must_use]
    pub fn wal_options(self, workers: usize) -> WalOptions {
        WalOptions {
            workers,
            streams: self.streams(workers),
            segment_bytes: SEGMENT_BYTES,
            buffer_bytes: BUFFER_BYTES,
            ..WalOptions::default()
        }
    }
}
