//! A workload: which family of work, over how many records of which size.

use crate::dataset::Dataset;
use crate::key::KeyOrder;
use crate::population::Population;
use crate::stream::{Lane, Stream};
use crate::ycsb::Mix;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// What kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Transactions of one random update (the U-1 of P-WAL's evaluation).
    U1,
    /// Transactions of ten random updates (U-10).
    U10,
    /// Uniform point reads.
    Read,
    /// Scans of the whole table, from the first key to the last.
    Scan,
    /// Scans of the whole table, from the last key to the first.
    ScanBack,
    /// Scans of 50 records, each from a key drawn uniformly.
    ShortScan,
    /// Filling an empty table in key order.
    Load,
    /// Filling an empty table in an order that is not that of its keys.
    LoadRandom,
    /// One of the YCSB mixes, one operation per transaction.
    Ycsb(Mix),
    /// Uniform point reads over data that does not fit the cache; begun with nothing cached.
    LargerThanCache,
}

/// A family of work with its sizes. Parsed from names as `u1`, `ycsb-a`, `rl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    family: Family,
    records: u64,
    value_bytes: usize,
    group: u64,
    touched: bool,
}

/// Records of U-1 and U-10.
const UPDATE_RECORDS: u64 = 65_536;
/// Records of the read, scan, load and YCSB tables.
const TABLE_RECORDS: u64 = 1_000_000;
/// Records of the larger-than-cache table unless the cache's size says otherwise.
const LARGE_RECORDS: u64 = 3_000_000;
const VALUE_BYTES: usize = 100;
const LOAD_GROUP: u64 = 10_000;
/// Bytes of a key.
pub const KEY_BYTES: usize = 8;

impl Workload {
    /// The family with its usual sizes: 65,536 records for U-1 and U-10, a million for the rest, three
    /// million for the larger-than-cache reads; 100-byte values; loads of 10,000 records per transaction, all
    /// else one read per transaction.
    #[must_use]
    pub const fn new(family: Family) -> Self {
        let (records, group) = match family {
            Family::U1 | Family::U10 => (UPDATE_RECORDS, 1),
            Family::Load | Family::LoadRandom => (TABLE_RECORDS, LOAD_GROUP),
            Family::Read | Family::Scan | Family::ScanBack | Family::ShortScan | Family::Ycsb(_) => {
                (TABLE_RECORDS, 1)
            }
            Family::LargerThanCache => (LARGE_RECORDS, 1),
        };
        Self { family, records, value_bytes: VALUE_BYTES, group, touched: false }
    }

    /// Names of all workloads, in the order in which reports list them.
    pub fn names() -> impl Iterator<Item = String> {
        let ycsb = Mix::ALL.into_iter().map(Family::Ycsb);
        [Family::U1, Family::U10, Family::Read, Family::Scan, Family::ScanBack, Family::ShortScan]
            .into_iter()
            .chain([Family::Load, Family::LoadRandom])
            .chain(ycsb)
            .chain([Family::LargerThanCache])
            .map(|f| f.to_string())
    }

    /// The same work over another number of records (at least one).
    #[must_use]
    pub const fn with_records(mut self, records: u64) -> Self {
        self.records = if records == 0 { 1 } else { records };
        self
    }

    /// The same work with values of another size (at least four bytes: fewer could not be told apart).
    #[must_use]
    pub const fn with_value_bytes(mut self, bytes: usize) -> Self {
        self.value_bytes = if bytes < 4 { 4 } else { bytes };
        self
    }

    /// Several point reads (or records of a load) per transaction. Other families keep their shape.
    #[must_use]
    pub const fn with_group(mut self, group: u64) -> Self {
        self.group = if group == 0 { 1 } else { group };
        self
    }

    /// Every byte of the values that are read is touched, instead of the first eight.
    #[must_use]
    pub const fn touching_values(mut self) -> Self {
        self.touched = true;
        self
    }

    /// As many records as make keys and values four times `cache_bytes`.
    #[must_use]
    pub const fn four_times_the_cache(self, cache_bytes: u64) -> Self {
        let records = cache_bytes.saturating_mul(4) / (KEY_BYTES + self.value_bytes) as u64;
        self.with_records(records)
    }

    /// The family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Records that are there when the work begins; for a load, those that are there when it ends.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of every value.
    #[must_use]
    pub const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Point reads per transaction, or records per transaction of a load.
    #[must_use]
    pub const fn group(&self) -> u64 {
        self.group
    }

    /// Returns `true` if every byte of the values that are read is touched.
    #[must_use]
    pub const fn touches_values(&self) -> bool {
        self.touched
    }

    /// The unit of the work: `transactions`, `reads`, `scans`, `records` or `operations`.
    #[must_use]
    pub const fn unit(&self) -> &'static str {
        match self.family {
            Family::U1 | Family::U10 => "transactions",
            Family::Read | Family::LargerThanCache => "reads",
            Family::ShortScan => "scans",
            Family::Scan | Family::ScanBack | Family::Load | Family::LoadRandom => "records",
            Family::Ycsb(_) => "operations",
        }
    }

    /// Whether running the work changes what is stored.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.is_load()
            || matches!(self.family, Family::U1 | Family::U10 | Family::Ycsb(_))
                && !matches!(self.family, Family::Ycsb(Mix::C))
    }

    /// Whether the work is to fill the table, so that it begins empty and ends by itself.
    #[must_use]
    pub const fn is_load(&self) -> bool {
        matches!(self.family, Family::Load | Family::LoadRandom)
    }

    /// Returns `true` if each transaction reads the whole table.
    #[must_use]
    pub const fn scans_all(&self) -> bool {
        matches!(self.family, Family::Scan | Family::ScanBack)
    }

    /// The rule by which item numbers become keys: scattered for YCSB (so that inserts fall anywhere) and for
    /// the load in random order, in order for the rest.
    #[must_use]
    pub const fn key_order(&self) -> KeyOrder {
        match self.family {
            Family::Ycsb(_) | Family::LoadRandom => KeyOrder::Hashed,
            _ => KeyOrder::Ordered,
        }
    }

    /// The records that are there before the work begins (for a load: that it writes).
    #[must_use]
    pub const fn dataset(&self) -> Dataset {
        Dataset::new(self.records, self.value_bytes, self.key_order())
    }

    /// A fresh account of which records exist, to be shared by all streams over one stored table, and kept as
    /// long as it.
    #[must_use]
    pub fn population(&self) -> Arc<Population> {
        Arc::new(Population::new(self.records))
    }

    /// One thread's work. The same workload, lane and seed give the same stream (as long as the
    /// population is the same at each draw).
    #[must_use]
    pub fn stream(&self, population: &Arc<Population>, lane: Lane, seed: u64) -> Stream {
        Stream::new(self, Arc::clone(population), lane, seed)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Family::U1 => f.write_str("u1"),
            Family::U10 => f.write_str("u10"),
            Family::Read => f.write_str("read"),
            Family::Scan => f.write_str("scan"),
            Family::ScanBack => f.write_str("scan-back"),
            Family::ShortScan => f.write_str("short-scan"),
            Family::Load => f.write_str("load"),
            Family::LoadRandom => f.write_str("load-random"),
            Family::Ycsb(mix) => write!(f, "ycsb-{}", mix.letter()),
            Family::LargerThanCache => f.write_str("rl"),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.family.fmt(f)
    }
}

/// A name that is no workload's.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown workload {name:?}; known are u1, u10, read, scan, scan-back, short-scan, load, load-random, \
     ycsb-a to ycsb-f, rl"
)]
pub struct ParseError {
    /// What was given.
    pub name: String,
}

impl FromStr for Workload {
    type Err = ParseError;

    fn from_str(name: &str) -> Result<Self, ParseError> {
        let family = match name {
            "u1" => Family::U1,
            "u10" => Family::U10,
            "read" => Family::Read,
            "scan" => Family::Scan,
            "scan-back" => Family::ScanBack,
            "short-scan" => Family::ShortScan,
            "load" => Family::Load,
            "load-random" => Family::LoadRandom,
            "rl" => Family::LargerThanCache,
            _ => Mix::ALL
                .into_iter()
                .map(Family::Ycsb)
                .find(|f| f.to_string() == name)
                .ok_or_else(|| ParseError { name: name.to_owned() })?,
        };
        Ok(Workload::new(family))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_parses_to_itself() {
        let names: Vec<String> = Workload::names().collect();
        assert_eq!(names.len(), 15);
        for name in names {
            assert_eq!(name.parse::<Workload>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_refused_and_named() {
        let error = "ycsb-g".parse::<Workload>().unwrap_err();
        assert!(error.to_string().contains("ycsb-g"), "{error}");
    }

    #[test]
    fn larger_than_cache_data_is_four_times_the_cache() {
        let cache = 64 << 20;
        let rl = Workload::new(Family::LargerThanCache).four_times_the_cache(cache);
        let data = rl.records() * (KEY_BYTES + rl.value_bytes()) as u64;
        assert!(data <= 4 * cache && data > 4 * cache - 200, "{data} bytes for a cache of {cache}");
    }
}
