//! The evaluation of P-WAL (Kamiya et al., IPSJ 2017, §5) on real code: devices, workloads, figures.
//!
//! | module | noun | paper |
//! |---|---|---|
//! | [`ground`] | the device: this machine's, or a modeled one | Table 1 |
//! | [`writes`] | synchronous writers | §2.2, Fig. 3 |
//! | [`variant`] | the logs that are compared | §5.1 |
//! | [`micro`] | U-1 and U-10 on the log alone, with the paper's records, groups | §5.2.1, Figs 7 to 10, 13 |
//! | [`store`] | U-1, U-10 and TPC-C on the whole store | §5.2.2, Figs 11, 12, 14 |
//! | [`long`] | writing for long, with trim and without | §5.5, Fig. 15 |
//! | [`restart`] | recovery: merging against sorting, and the store's restart | §4 |
//! | [`lone`] | a committer alone, against one write | |
//! | `goals` | goals of the log |
//! | [`usage`] | processor time and switches | |
//! | [`run`](mod@run) | a run of all of it | |
//! | [`simulate`] | the log on a simulated machine | Fig. 7 |
//!
//! Every throughput comes with the work in flight, because more of it is more throughput: the paper's workers
//! have no bound, here each has a window. Log variants, and the device's own limit for the same chunk size
//! and number of writers, are measured in turns in one run.

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
    /// A lone committer against one write.
    Lone,
    /// U-1 and U-10 on the log (Figs 7 to 10, 13).
    Log,
    /// Clients that wait for each commit, on the log.
    Clients,
    /// U-1 and U-10 on the store.
    Store,
    /// TPC-C on the store (Figs 11, 12, 14).
    Tpcc,
    /// Writing for long (Fig. 15).
    Long,
    /// Recovery (§4).
    Restart,
}

impl Part {
    /// All of them, in order.
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

    /// Its name.
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
    /// The devices, one after the other.
    pub devices: Vec<Choice>,
    /// Parts to run.
    pub parts: Vec<Part>,
    /// The logs that are compared; on the real device also those that differ in how writes are submitted, if
    /// their like is here.
    pub variants: Vec<Variant>,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// Numbers of clients that wait for each of their commits.
    pub clients: Vec<usize>,
    /// Transactions that each worker may have in flight, where commits are not waited for one by one.
    pub window: usize,
    /// Measures the store with commits that are waited for one by one, too.
    pub blocking: bool,
    /// Of one measurement of a rate; TPC-C takes twice as long.
    pub time: Duration,
    /// Measurements of each rate; the median counts.
    pub runs: usize,
    /// Bytes of a write, for Fig. 3.
    pub io_bytes: Vec<usize>,
    /// Warehouses, and the divisor of the specification's numbers of rows.
    pub tpcc_scale: (u32, u32),
    /// Of Fig. 15: how long, between two samples, and bytes of a half.
    pub long: (Duration, Duration, u64),
    /// Records of the logs that are recovered.
    pub records: Vec<u64>,
    /// The store's setting for the time of a restart, which is measured.
    pub recovery_time: Duration,
    /// Directory for the real device's files.
    pub dir: PathBuf,
    /// Of the first run.
    pub seed: u64,
}

impl Lab {
    /// The paper's questions, some minutes for each device.
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

    /// Smaller in everything: some seconds for each device. Its numbers are rough.
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
