//! The rows of the table, in groups that share a store.

use azekura_workload::workload::KEY_BYTES;
use azekura_workload::ycsb::Mix;
use azekura_workload::{Family, Workload};
use serde::{Deserialize, Serialize};

/// The work of one process of an engine over one store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    /// Name of the store's directory.
    pub(super) name: String,
    /// The cases, in the order in which they are run.
    pub(super) cases: Vec<Case>,
}

/// One row of the table at one number of threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Case {
    /// Name of the row.
    pub(super) row: String,
    /// Number of client threads.
    pub(super) threads: usize,
    /// The work.
    pub(super) work: Work,
}

/// The work of a case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Work {
    /// A workload over one key-value table.
    Table {
        /// Name of the workload, such as `read`.
        workload: String,
        /// Number of records at the begin; for a load, at the end.
        records: u64,
        /// Bytes of each value.
        value_bytes: usize,
        /// Set if every byte of the values that are read is touched.
        touches_values: bool,
    },
    /// TPC-C with one warehouse.
    Tpcc {
        /// Divides the specification's numbers of rows.
        divisor: u32,
    },
}

/// Largest number of bytes of values in one transaction of a load.
const LOAD_BYTES: usize = 1 << 20;

impl Work {
    fn table(family: Family, records: u64, value_bytes: usize) -> Self {
        Self::Table { workload: family.to_string(), records, value_bytes, touches_values: false }
    }

    /// Returns the workload; `None` for TPC-C or an unknown name.
    pub(super) fn workload(&self) -> Option<Workload> {
        let Self::Table { workload, records, value_bytes, touches_values } = self else { return None };
        let workload: Workload = workload.parse().ok()?;
        let workload = workload.with_records(*records).with_value_bytes(*value_bytes);
        let most = (LOAD_BYTES / value_bytes) as u64;
        let group = if workload.is_load() { workload.group().min(most.max(1)) } else { workload.group() };
        let workload = workload.with_group(group);
        Some(if *touches_values { workload.touching_values() } else { workload })
    }
}

/// The extent of the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Set for less data and fewer numbers of threads.
    pub(super) quick: bool,
}

impl Extent {
    /// Returns all groups.
    pub(super) fn groups(self) -> Vec<Group> {
        let mut groups = vec![self.small_values(100), self.small_values(20), self.small_values(1_000)];
        groups.extend([self.ycsb(), self.updates(), self.loads()]);
        let sizes = [(1 << 10, "1 KiB"), (4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (1 << 20, "1 MiB")];
        groups.extend(sizes.map(|(bytes, name)| self.large_values(bytes, name)));
        groups.push(self.tpcc());
        groups
    }

    fn clients(self) -> &'static [usize] {
        if self.quick { &[1, 8, 64] } else { &[1, 2, 8, 64] }
    }

    /// Returns the number of records in tables with values of up to 100 bytes.
    fn records(self) -> u64 {
        if self.quick { 300_000 } else { 1_000_000 }
    }

    /// Returns a group with scans in both directions; for values of 100 bytes, also reads and short scans.
    fn small_values(self, value_bytes: usize) -> Group {
        let records = if value_bytes > 100 { self.records() / 5 } else { self.records() };
        let mut group = Group { name: format!("values-{value_bytes}"), cases: Vec::new() };
        if value_bytes == 100 {
            group.add("point reads", &[1, 2, 8, 64], &Work::table(Family::Read, records, value_bytes));
            let short = Work::table(Family::ShortScan, records, value_bytes);
            group.add("scans of 50 records", self.clients(), &short);
        }
        for (family, way) in [(Family::Scan, "scan"), (Family::ScanBack, "scan backwards")] {
            let row = format!("{way}, values of {value_bytes} B");
            group.add(&row, &[1, 2], &Work::table(family, records, value_bytes));
        }
        group
    }

    /// Returns the six YCSB mixes: the read-only one first, those that add records last.
    fn ycsb(self) -> Group {
        let mut group = Group { name: "ycsb".to_owned(), cases: Vec::new() };
        for mix in [Mix::C, Mix::B, Mix::A, Mix::F, Mix::D, Mix::E] {
            let row = format!("YCSB-{}", mix.letter().to_uppercase());
            group.add(&row, self.clients(), &Work::table(Family::Ycsb(mix), self.records(), 100));
        }
        group
    }

    fn updates(self) -> Group {
        let mut group = Group { name: "updates".to_owned(), cases: Vec::new() };
        for (family, row) in [(Family::U1, "u1: one update"), (Family::U10, "u10: ten updates")] {
            let records = Workload::new(family).records();
            group.add(row, &[1, 2, 8, 64], &Work::table(family, records, 100));
        }
        group
    }

    fn loads(self) -> Group {
        let mut group = Group { name: "loads".to_owned(), cases: Vec::new() };
        let orders = [(Family::Load, "load in key order"), (Family::LoadRandom, "load in random order")];
        for (family, row) in orders {
            group.add(row, &[1, 2], &Work::table(family, self.records(), 100));
        }
        group
    }

    /// Returns reads, scans, updates and loads of 128 or 512 MiB of values.
    fn large_values(self, value_bytes: usize, size: &str) -> Group {
        let bytes: u64 = if self.quick { 128 << 20 } else { 512 << 20 };
        let records = bytes / (KEY_BYTES + value_bytes) as u64;
        let mut group = Group { name: format!("values-{value_bytes}"), cases: Vec::new() };
        let clients: &[usize] = if self.quick { &[2] } else { &[1, 2] };
        for touches_values in [false, true] {
            let touched = if touches_values { ", touched" } else { "" };
            for (family, verb) in [(Family::Read, "read"), (Family::Scan, "scan")] {
                let workload = family.to_string();
                let work = Work::Table { workload, records, value_bytes, touches_values };
                group.add(&format!("{size}: {verb}{touched}"), clients, &work);
            }
        }
        group.add(&format!("{size}: update"), clients, &Work::table(Family::U1, records, value_bytes));
        // The bulk loader has one client.
        group.add(&format!("{size}: load"), &[1, 2], &Work::table(Family::Load, records, value_bytes));
        group
    }

    fn tpcc(self) -> Group {
        let divisor = if self.quick { 10 } else { 1 };
        let mut group = Group { name: "tpcc".to_owned(), cases: Vec::new() };
        group.add("TPC-C, one warehouse", self.clients(), &Work::Tpcc { divisor });
        group
    }
}

impl Group {
    fn add(&mut self, row: &str, threads: &[usize], work: &Work) {
        let case = |&threads| Case { row: row.to_owned(), threads, work: work.clone() };
        self.cases.extend(threads.iter().map(case));
    }

    /// Returns `true` if this is the group of TPC-C.
    pub(super) fn is_tpcc(&self) -> bool {
        self.cases.iter().any(|case| matches!(case.work, Work::Tpcc { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_of_the_issue_is_there_and_each_cell_once() {
        for quick in [false, true] {
            let groups = Extent { quick }.groups();
            let cells: Vec<(&str, usize)> =
                groups.iter().flat_map(|g| &g.cases).map(|case| (case.row.as_str(), case.threads)).collect();
            assert_eq!(cells.iter().collect::<BTreeSet<_>>().len(), cells.len(), "{cells:?}");
            let rows: BTreeSet<&str> = cells.iter().map(|cell| cell.0).collect();
            let mut wanted: Vec<String> = ["point reads", "scans of 50 records", "load in key order"]
                .into_iter()
                .chain(["load in random order", "u1: one update", "u10: ten updates", "TPC-C, one warehouse"])
                .map(str::to_owned)
                .collect();
            for bytes in [20, 100, 1_000] {
                wanted.push(format!("scan, values of {bytes} B"));
                wanted.push(format!("scan backwards, values of {bytes} B"));
            }
            wanted.extend(["A", "B", "C", "D", "E", "F"].map(|mix| format!("YCSB-{mix}")));
            for size in ["1 KiB", "4 KiB", "64 KiB", "1 MiB"] {
                let verbs = ["read", "read, touched", "scan", "scan, touched", "update", "load"];
                wanted.extend(verbs.map(|verb| format!("{size}: {verb}")));
            }
            assert_eq!(rows, wanted.iter().map(String::as_str).collect::<BTreeSet<_>>());
            let names: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).collect();
            assert_eq!(names.len(), groups.len(), "stores do not meet");
        }
    }

    #[test]
    fn the_cases_of_a_group_find_each_other_s_records() {
        for group in (Extent { quick: true }).groups() {
            let kept = group.cases.iter().filter_map(|case| case.work.workload()).filter(|w| !w.is_load());
            let stores: BTreeSet<_> =
                kept.map(|w| (w.records(), w.value_bytes(), format!("{:?}", w.key_order()))).collect();
            assert!(stores.len() <= 1, "{}: {stores:?}", group.name);
        }
    }

    #[test]
    fn a_transaction_of_a_load_has_at_most_a_mebibyte() {
        let group = |bytes| Work::table(Family::Load, 1_000, bytes).workload().unwrap().group();
        assert_eq!([100, 4 << 10, 1 << 20].map(group), [10_000, 256, 1]);
    }
}
