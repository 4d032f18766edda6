//! The evaluation of P-WAL (Kamiya et al., IPSJ 2017, §5) on real code: devices, workloads, figures.
//!
//! | module | noun | paper |
//! |---|---|---|
//! | [`ground`] | the device: this machine's, or a modeled one | Table 1 |
//! | [`writes`] | synchronous writers | §2.2, Fig. 3 |
//! | [`variant`] | the compared logs | §5.1 |
//! | [`micro`] | U-1 and U-10 on the log alone, with the paper's records | §5.2.1, Figs 7 to 10, 13 |
//! | [`store`] | U-1, U-10 and TPC-C on the whole store | §5.2.2, Figs 11, 12, 14 |
//! | [`long`] | long writing, with trim and without | §5.5, Fig. 15 |
//! | [`restart`] | recovery: merging and sorting of logs, and the store's restart | §4 |
//! | [`lone`] | commits of one committer, compared with single writes | |
//! | `goals` | goals of the log | |
//! | [`usage`] | processor time and context switches | |
//! | [`run`](mod@run) | a run of the whole lab | |
//! | [`simulate`] | the log on a simulated machine | Figs 7 to 10 |
//!
//! Every throughput is reported with the work in flight, because more work in flight increases the
//! throughput. The paper's workers have no bound; here each has a window. The variants of the log are
//! measured in turn in one run. So is the device's own limit with the same chunk size and number of writers.

mod goals;
pub mod ground;
pub mod lone;
pub mod long;
pub mod micro;
pub mod restart;
pub mod run;
pub mod simulate;
pub mod store;
pub mod usage;
pub mod variant;
pub mod writes;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use self::ground::Choice;
use self::variant::Variant;

/// A part of the evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Speed of the device (Fig. 3).
    Device,
    /// Commits of one committer, compared with single writes.
    Lone,
    /// U-1 and U-10 on the log (Figs 7 to 10, 13).
    Log,
    /// Clients that wait for each commit, on the log.
    Clients,
    /// U-1 and U-10 on the store.
    Store,
    /// TPC-C on the store (Figs 11, 12, 14).
    Tpcc,
    /// Long writing (Fig. 15).
    Long,
    /// Recovery (§4).
    Restart,
}

impl Part {
    /// All parts, in the order of a run.
    pub const ALL: [Self; 8] = [
        Self::Device,
        Self::Lone,
        Self::Log,
        Self::Clients,
        Self::Store,
        Self::Tpcc,
        Self::Long,
        Self::Restart,
    ];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Lone => "lone",
            Self::Log => "log",
            Self::Clients => "clients",
            Self::Store => "store",
            Self::Tpcc => "tpcc",
            Self::Long => "long",
            Self::Restart => "restart",
        }
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|part| part.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            format!("no part is called {name}; there are {}", names.join(", "))
        })
    }
}

/// Settings of the lab.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Devices to measure, one after another.
    pub devices: Vec<Choice>,
    /// Parts to run.
    pub parts: Vec<Part>,
    /// Compared logs. On the real device, a variant with another method of writing is added for each of them
    /// that has one.
    pub variants: Vec<Variant>,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// Numbers of clients that wait for each of their commits.
    pub clients: Vec<usize>,
    /// Number of transactions that each worker may have in flight with pipelined commits.
    pub window: usize,
    /// Measures the store with blocking commits, too.
    pub blocking: bool,
    /// Measured time of each rate; TPC-C takes twice as long.
    pub time: Duration,
    /// Measurements of each rate; the report shows the median.
    pub runs: usize,
    /// Sizes of the writes in Fig. 3, in bytes.
    pub io_bytes: Vec<usize>,
    /// Number of warehouses, and divisor of the specification's numbers of rows.
    pub tpcc_scale: (u32, u32),
    /// Settings of Fig. 15: total time, time between two samples, and bytes of half a file.
    pub long: (Duration, Duration, u64),
    /// Numbers of records of the recovered logs.
    pub records: Vec<u64>,
    /// Setting of the store for the time of a restart, which is compared with the measured time.
    pub recovery_time: Duration,
    /// Directory on the real device.
    pub dir: PathBuf,
    /// Seed of the first run.
    pub seed: u64,
}

impl Lab {
    /// Returns settings for all of the paper's figures, which take some minutes per device.
    #[must_use]
    pub fn full(dir: PathBuf) -> Self {
        Self {
            devices: vec![Choice::Real, Choice::Model(azekura_io::DeviceModel::iodrive())],
            parts: Part::ALL.into(),
            variants: Variant::ALL.into(),
            workers: vec![1, 2, 4, 8, 16],
            clients: vec![1, 2, 4, 8, 16, 64],
            window: 64,
            blocking: true,
            time: Duration::from_millis(400),
            runs: 3,
            io_bytes: [1, 8, 16, 64, 128, 256, 2048].map(|sectors| sectors * 512).into(),
            tpcc_scale: (8, 10),
            long: (Duration::from_secs(5), Duration::from_millis(500), 16 << 20),
            records: vec![200_000, 1_000_000],
            recovery_time: Duration::from_secs(2),
            dir,
            seed: 1,
        }
    }

    /// Returns settings with smaller sizes, which take some seconds per device; the results are rough.
    #[must_use]
    pub fn quick(dir: PathBuf) -> Self {
        Self {
            variants: vec![Variant::Paper, Variant::Ours, Variant::Serial, Variant::Epoch { ms: 5 }],
            workers: vec![1, 4],
            clients: vec![2, 8],
            blocking: false,
            time: Duration::from_millis(50),
            runs: 1,
            io_bytes: vec![4096, 8192, 65_536],
            tpcc_scale: (2, 100),
            long: (Duration::from_millis(400), Duration::from_millis(100), 1 << 20),
            records: vec![20_000],
            recovery_time: Duration::from_millis(200),
            ..Self::full(dir)
        }
    }
}
