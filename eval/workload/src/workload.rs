//! A workload: a family of work, with the number and size of its records.

use crate::dataset::Dataset;
use crate::key::KeyOrder;
use crate::population::Population;
use crate::stream::{Lane, Stream};
use crate::ycsb::Mix;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A family of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Transactions of one random update (U-1 of P-WAL's evaluation).
    U1,
    /// Transactions of ten random updates (U-10 of P-WAL's evaluation).
    U10,
    /// Uniform point reads.
    Read,
    /// Scans of the whole table, from the first key to the last.
    Scan,
    /// Scans of the whole table, from the last key to the first.
    ScanBack,
    /// Scans of 50 records, each from a uniformly drawn key.
    ShortScan,
    /// Filling an empty table in key order.
    Load,
    /// Filling an empty table in an order different from key order.
    LoadRandom,
    /// One of the YCSB mixes, one operation per transaction.
    Ycsb(Mix),
    /// Uniform point reads over more data than the cache holds, beginning with an empty cache.
    LargerThanCache,
}

/// A family of work with its sizes. Parsed from names such as `u1`, `ycsb-a`, `rl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    family: Family,
    records: u64,
    value_bytes: usize,
    group: u64,
    touched: bool,
}

/// Number of records of U-1 and U-10.
const UPDATE_RECORDS: u64 = 65_536;
/// Number of records of the read, scan, load and YCSB tables.
const TABLE_RECORDS: u64 = 1_000_000;
/// Number of records of the larger-than-cache table, unless the cache's size determines it.
const LARGE_RECORDS: u64 = 3_000_000;
const VALUE_BYTES: usize = 100;
const LOAD_GROUP: u64 = 10_000;
/// Length of a key in bytes.
pub const KEY_BYTES: usize = 8;

impl Workload {
    /// Returns the family with its default sizes. U-1 and U-10 have 65,536 records, larger-than-cache reads
    /// have three million, and the others have one million. Values have 100 bytes. Loads write 10,000 records
    /// per transaction, and point reads read one.
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

    /// Returns the names of all workloads, in the order of reports.
    pub fn names() -> impl Iterator<Item = String> {
        let ycsb = Mix::ALL.into_iter().map(Family::Ycsb);
        [Family::U1, Family::U10, Family::Read, Family::Scan, Family::ScanBack, Family::ShortScan]
            .into_iter()
            .chain([Family::Load, Family::LoadRandom])
            .chain(ycsb)
            .chain([Family::LargerThanCache])
            .map(|f| f.to_string())
    }

    /// Sets the number of records (at least one).
    #[must_use]
    pub const fn with_records(mut self, records: u64) -> Self {
        self.records = if records == 0 { 1 } else { records };
        self
    }

    /// Sets the bytes of each value (at least four, so that values are distinguishable).
    #[must_use]
    pub const fn with_value_bytes(mut self, bytes: usize) -> Self {
        self.value_bytes = if bytes < 4 { 4 } else { bytes };
        self
    }

    /// Sets the number of point reads, or of records of a load, per transaction. Other families ignore it.
    #[must_use]
    pub const fn with_group(mut self, group: u64) -> Self {
        self.group = if group == 0 { 1 } else { group };
        self
    }

    /// Makes clients touch every byte of the values that they read, instead of the first eight.
    #[must_use]
    pub const fn touching_values(mut self) -> Self {
        self.touched = true;
        self
    }

    /// Sets the number of records so that keys and values have four times `cache_bytes`.
    #[must_use]
    pub const fn four_times_the_cache(self, cache_bytes: u64) -> Self {
        let records = cache_bytes.saturating_mul(4) / (KEY_BYTES + self.value_bytes) as u64;
        self.with_records(records)
    }

    /// Returns the family.
    #[must_use]
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Returns the number of records before the work, or after it for a load.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Returns the bytes of each value.
    #[must_use]
    pub const fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Returns the number of point reads, or of records of a load, per transaction.
    #[must_use]
    pub const fn group(&self) -> u64 {
        self.group
    }

    /// Returns whether clients touch every byte of the values that they read.
    #[must_use]
    pub const fn touches_values(&self) -> bool {
        self.touched
    }

    /// Returns the unit of the work: `transactions`, `reads`, `scans`, `records` or `operations`.
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

    /// Returns whether the work writes.
    #[must_use]
    pub const fn writes(&self) -> bool {
        self.is_load()
            || matches!(self.family, Family::U1 | Family::U10 | Family::Ycsb(_))
                && !matches!(self.family, Family::Ycsb(Mix::C))
    }

    /// Returns whether the work fills the table: it then begins with an empty table and ends when the table
    /// is full.
    #[must_use]
    pub const fn is_load(&self) -> bool {
        matches!(self.family, Family::Load | Family::LoadRandom)
    }

    /// Returns whether each transaction reads the whole table.
    #[must_use]
    pub const fn scans_all(&self) -> bool {
        matches!(self.family, Family::Scan | Family::ScanBack)
    }

    /// Returns the mapping of item numbers to keys: scattered for YCSB (so that inserts are at random
    /// positions) and for the load in random order, and in order for the others.
    #[must_use]
    pub const fn key_order(&self) -> KeyOrder {
        match self.family {
            Family::Ycsb(_) | Family::LoadRandom => KeyOrder::Hashed,
            _ => KeyOrder::Ordered,
        }
    }

    /// Returns the records that exist before the work, or that a load writes.
    #[must_use]
    pub const fn dataset(&self) -> Dataset {
        Dataset::new(self.records, self.value_bytes, self.key_order())
    }

    /// Returns a new population with the initial records. All streams over one stored table share it, for as
    /// long as the table exists.
    #[must_use]
    pub fn population(&self) -> Arc<Population> {
        Arc::new(Population::new(self.records))
    }

    /// Returns the work of one thread. The same workload, lane and seed give the same stream, if the
    /// population is the same at each draw.
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

/// The error of an unknown workload name.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown workload {name:?}; known are u1, u10, read, scan, scan-back, short-scan, load, load-random, \
     ycsb-a to ycsb-f, rl"
)]
pub struct ParseError {
    /// The given name.
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
