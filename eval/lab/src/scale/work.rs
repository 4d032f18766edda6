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
use crate::progress::Progress;
use crate::tpcc;

/// Path of the store in the in-memory file system.
pub(super) const STORE: &str = "/store";
/// Number of rows of the key-value table.
const ROWS: u64 = 50_000;
/// Number of TPC-C warehouses: one for each processor of the largest machine. Each has 1/`DIVISOR` of the
/// rows.
const WAREHOUSES: u32 = 64;
const DIVISOR: u32 = 100;

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
            Self::Tpcc => format!("TPC-C, {WAREHOUSES} warehouses of 1/{DIVISOR}"),
        }
    }

    /// Returns the default virtual time of the warm-up, and of the measurement: a total that is divided among
    /// the processors, but at least a minimum for each.
    #[must_use]
    pub fn time(self, processors: usize) -> (Duration, Duration) {
        let of_all = |all: Duration, least: Duration| (all / processors.max(1) as u32).max(least);
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        match self {
            Self::Reads | Self::SnapshotReads => (of_all(ms(32), us(200)), of_all(ms(16), us(300))),
            Self::U1 | Self::SnapshotMix => (of_all(ms(48), us(500)), of_all(ms(32), us(1000))),
            Self::Tpcc => (of_all(ms(96), ms(2)), of_all(ms(96), ms(3))),
        }
    }

    fn workload(self) -> Workload {
        let family = match self {
            Self::U1 => Family::U1,
            Self::SnapshotMix => Family::Ycsb(YcsbMix::A),
            Self::Reads | Self::SnapshotReads | Self::Tpcc => Family::Read,
        };
        Workload::new(family).with_records(ROWS)
    }

    /// Returns the cache size of the store in bytes, which is larger than the store.
    pub(super) const fn cache_bytes(self) -> usize {
        match self {
            Self::Reads | Self::SnapshotReads | Self::SnapshotMix | Self::U1 => 64 << 20,
            Self::Tpcc => 256 << 20,
        }
    }

    /// Fills a store in the calling thread.
    pub(crate) fn fill(self, seed: u64) -> Result<Filled, BenchError> {
        let files = MemFs::new();
        let fs: Arc<dyn Fs> = Arc::new(files.clone());
        let loaded = if self == Self::Tpcc {
            let builder = Database::builder().file_system(fs).cache_bytes(self.cache_bytes()).wal_streams(1);
            let db = builder.open(STORE).map_err(tpcc::failed("opening"))?;
            let loaded = tpcc::load(&db, Scale::reduced(WAREHOUSES, DIVISOR), seed, 1, &Progress::hidden())?;
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
                let terminal = Terminal::new(loaded.scale, loaded.constants, Mix::Full, lane, seed);
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
                    Self::Reads | Self::U1 | Self::Tpcc => session,
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
