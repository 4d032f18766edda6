//! Work of the clients, and their store.

use azekura::Database;
use azekura_io::{Fs, MemFs};
use azekura_workload::tpcc::{Mix, Scale, Terminal};
use azekura_workload::ycsb::Mix as YcsbMix;
use azekura_workload::{Family, Lane, Population, Stream, Workload};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::adapter::azekura::{AzekuraEngine, session, snapshot_session};
use crate::client::{self, Mode};
use crate::engine::{Engine, EngineSettings, Session};
use crate::error::BenchError;
use crate::lab::steady::Windows;
use crate::progress::Progress;
use crate::tpcc;

/// Path of the store in the in-memory file system.
pub(super) const STORE: &str = "/store";
/// Number of rows of the key-value table.
const ROWS: u64 = 50_000;
/// TPC-C's warehouses, and the divisor of their rows: a warehouse for each processor of the largest machine.
const WAREHOUSES: (u32, u32) = (64, 100);
/// The paper's warehouses (P-WAL, §5.2.2).
const PAPER_WAREHOUSES: (u32, u32) = (8, 10);

/// Work of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Transactions of one point read, uniformly distributed over the rows.
    Reads,
    /// Point reads, uniformly distributed over the rows, each in its own snapshot.
    SnapshotReads,
    /// YCSB-A: half updates, half point reads, each read in its own snapshot.
    SnapshotMix,
    /// Transactions of one update, uniformly distributed over the rows (U-1 of P-WAL's evaluation).
    U1,
    /// The five transactions of TPC-C; each client has its own warehouse.
    Tpcc,
    /// New-Order alone, without rollbacks, on eight warehouses (TPC-C of P-WAL's evaluation).
    NewOrder,
}

/// Files of a filled store that is closed.
#[derive(Debug)]
pub(crate) struct Filled {
    pub(super) files: MemFs,
    tpcc: Option<tpcc::Loaded>,
}

/// Function that opens a client's session.
type Sessions = fn(&Database) -> Box<dyn Session + '_>;

/// A client with its work.
pub(super) enum Client {
    Kv(Box<Stream>, Mode, Sessions),
    Tpcc(Box<Terminal>, usize),
}

impl Work {
    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::SnapshotReads => "snapshot-reads",
            Self::SnapshotMix => "snapshot-mix",
            Self::U1 => "u1",
            Self::Tpcc => "tpcc",
            Self::NewOrder => "new-order",
        }
    }

    /// Returns a description in one line.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Reads => format!("transactions of one point read, {ROWS} rows"),
            Self::SnapshotReads => format!("snapshots of one point read each, {ROWS} rows"),
            Self::SnapshotMix => {
                format!("YCSB-A, each read in a snapshot of its own, {ROWS} rows")
            }
            Self::U1 => format!("transactions of one update, {ROWS} rows"),
            Self::Tpcc | Self::NewOrder => {
                let name = if self == Self::Tpcc { "TPC-C" } else { "New-Order" };
                let (warehouses, divisor) = self.warehouses();
                format!("{name}, {warehouses} warehouses of 1/{divisor}")
            }
        }
    }

    /// Returns the default length of a window. The windows of transactions that log are longer than several
    /// flushes.
    pub(crate) const fn windows(self) -> Windows {
        let (of_all_ms, least_us) = match self {
            Self::Reads | Self::SnapshotReads => (4, 100),
            Self::U1 | Self::SnapshotMix => (8, 500),
            Self::Tpcc | Self::NewOrder => (32, 1_000),
        };
        Windows { of_all: Duration::from_millis(of_all_ms), least: Duration::from_micros(least_us) }
    }

    const fn warehouses(self) -> (u32, u32) {
        if matches!(self, Self::NewOrder) { PAPER_WAREHOUSES } else { WAREHOUSES }
    }

    const fn is_tpcc(self) -> bool {
        matches!(self, Self::Tpcc | Self::NewOrder)
    }

    fn workload(self) -> Workload {
        let family = match self {
            Self::U1 => Family::U1,
            Self::SnapshotMix => Family::Ycsb(YcsbMix::A),
            Self::Reads | Self::SnapshotReads | Self::Tpcc | Self::NewOrder => Family::Read,
        };
        Workload::new(family).with_records(ROWS)
    }

    /// Returns the cache size of the store in bytes, which is larger than the store.
    pub(super) const fn cache_bytes(self) -> usize {
        match self {
            Self::Reads | Self::SnapshotReads | Self::SnapshotMix | Self::U1 => 64 << 20,
            Self::Tpcc | Self::NewOrder => 256 << 20,
        }
    }

    /// Fills a store in the calling thread.
    pub(crate) fn fill(self, seed: u64) -> Result<Filled, BenchError> {
        let files = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(files.clone());
        let loaded = if self.is_tpcc() {
            let (warehouses, divisor) = self.warehouses();
            let builder = Database::builder().file_system(fs).cache_bytes(self.cache_bytes()).wal_streams(1);
            let db = builder.open(STORE).map_err(tpcc::failed("opening"))?;
            let loaded = tpcc::load(&db, Scale::reduced(warehouses, divisor), seed, 1, &Progress::hidden())?;
            db.close().map_err(tpcc::failed("closing"))?;
            Some(loaded)
        } else {
            let settings = EngineSettings {
                cache_bytes: Some(self.cache_bytes() as u64),
                expected_bytes: 0,
                sessions: 1,
                bypass_page_cache: false,
            };
            let engine = AzekuraEngine::default().file_system(fs).wal_streams(1);
            let store = engine.open(Path::new(STORE), &settings)?;
            crate::prepare::fill(&*store, &self.workload().dataset(), &mut |_| {})?;
            store.close()?;
            None
        };
        Ok(Filled { files, tpcc: loaded })
    }

    pub(super) fn client(
        self,
        filled: &Filled,
        population: &Arc<Population>,
        lane: Lane,
        seed: u64,
        window: usize,
    ) -> Client {
        match &filled.tpcc {
            Some(loaded) => {
                let mix = if self == Self::NewOrder { Mix::NewOrder } else { Mix::Full };
                let terminal = Terminal::new(loaded.scale, loaded.constants, mix, lane, seed);
                Client::Tpcc(Box::new(terminal), window)
            }
            None => {
                let workload = self.workload();
                let mode = Mode {
                    whole_transactions: true,
                    appends: false,
                    value_bytes: workload.value_bytes(),
                    touches_values: false,
                    window: Some(window),
                };
                let sessions = match self {
                    Self::SnapshotReads | Self::SnapshotMix => snapshot_session,
                    Self::Reads | Self::U1 | Self::Tpcc | Self::NewOrder => session,
                };
                Client::Kv(Box::new(workload.stream(population, lane, seed)), mode, sessions)
            }
        }
    }

    pub(super) fn population(self) -> Arc<Population> {
        self.workload().population()
    }
}

impl Client {
    /// Runs transactions until `go_on`, which is called once for each transaction, returns `false`.
    pub(super) fn run(self, db: &Database, mut go_on: impl FnMut() -> bool) -> Result<(), BenchError> {
        match self {
            Self::Kv(mut stream, mode, sessions) => {
                client::run(&mut *sessions(db), &mut stream, mode, |_| go_on()).map(drop)
            }
            Self::Tpcc(mut terminal, window) => {
                tpcc::client::run(db, &mut terminal, Some(window), go_on).map(drop)
            }
        }
    }
}
