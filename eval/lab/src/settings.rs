//! The settings that make two reports comparable, and their hash.

use crate::engine::{Engine, EngineSettings};
use crate::plan::{Commit, Plan};
use azekura_workload::{Family, Lane, Workload};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// One cell of a plan for one engine: all settings of a run, except the machine.
#[derive(Debug, Clone, Copy)]
pub struct Cell<'a> {
    /// The measured engine.
    pub engine: &'a dyn Engine,
    /// The workload.
    pub workload: &'a Workload,
    /// Number of client threads.
    pub threads: usize,
    /// Method of waiting for commits.
    pub commit: Commit,
}

impl std::fmt::Debug for dyn Engine + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Cell<'_> {
    /// Returns the settings with which the engine opens the store.
    #[must_use]
    pub fn engine_settings(&self, plan: &Plan) -> EngineSettings {
        let record = (azekura_workload::workload::KEY_BYTES + self.workload.value_bytes()) as u64;
        EngineSettings {
            cache_bytes: Some(plan.cache_for(self.workload)),
            expected_bytes: self.workload.records() * record,
            // One more session than clients, for filling and warming.
            sessions: plan.threads.iter().copied().max().unwrap_or(1) + 1,
            bypass_page_cache: self.workload.family() == Family::LargerThanCache,
        }
    }

    /// Returns all settings that affect the figures, by name. They exclude the machine, the date, the
    /// revision and the number of runs.
    #[must_use]
    pub fn settings(&self, plan: &Plan) -> BTreeMap<String, String> {
        let mut all: BTreeMap<String, String> = self
            .engine
            .describe(&self.engine_settings(plan))
            .into_iter()
            .map(|(name, value)| (format!("{}.{name}", self.engine.name()), value))
            .collect();
        let ours = [
            ("workload", self.workload.to_string()),
            ("records", self.workload.records().to_string()),
            ("value_bytes", self.workload.value_bytes().to_string()),
            ("touches_values", self.workload.touches_values().to_string()),
            ("group", self.workload.group().to_string()),
            ("engine", self.engine.name().to_owned()),
            ("threads", self.threads.to_string()),
            ("commit", self.commit.word().to_owned()),
            ("in_flight", self.commit.in_flight(self.threads).to_string()),
            ("cache_bytes", plan.cache_for(self.workload).to_string()),
            ("measured_ms", plan.measured.as_millis().to_string()),
            ("warm_up_ms", plan.warm_up.as_millis().to_string()),
            ("seed", plan.seed.to_string()),
        ];
        all.extend(ours.map(|(name, value)| (name.to_owned(), value)));
        all
    }

    /// Returns the directory of the cell's store.
    #[must_use]
    pub fn store_dir(&self, plan: &Plan) -> PathBuf {
        plan.dir.join(format!("{}-{}", self.workload, self.engine.name()))
    }

    /// Returns the lanes of the client threads.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = Lane> + use<> {
        let of = self.threads as u64;
        (0..of).map(move |index| Lane::new(index, of))
    }
}

/// Returns a hash of 16 hexadecimal digits that is the same for the same settings, in every build and on
/// every machine (FNV-1a of the sorted lines `name=value`).
#[must_use]
pub fn hash(settings: &BTreeMap<String, String>) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for (name, value) in settings {
        for byte in name.bytes().chain(*b"=").chain(value.bytes()).chain(*b"\n") {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::memory::MemoryEngine;
    use std::collections::HashSet;
    use std::time::Duration;

    #[test]
    fn the_hash_is_the_published_fnv_1a() {
        assert_eq!(hash(&BTreeMap::new()), "cbf29ce484222325");
        // FNV-1a of the bytes "a=b\n", computed here from the definition.
        let mut expected: u64 = 0xcbf2_9ce4_8422_2325;
        for byte in *b"a=b\n" {
            expected = (expected ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
        }
        assert_eq!(hash(&BTreeMap::from([("a".into(), "b".into())])), format!("{expected:016x}"));
    }

    #[test]
    fn every_setting_changes_the_hash_and_nothing_else_does() {
        let engine = MemoryEngine::default();
        let of = |workload: &Workload, threads, commit, plan: &Plan| {
            hash(&Cell { engine: &engine, workload, threads, commit }.settings(plan))
        };
        let u1: Workload = "u1".parse().unwrap();
        let plan = Plan::in_dir("a");
        let base = of(&u1, 1, Commit::Blocking, &plan);
        let others = [
            of(&"u10".parse().unwrap(), 1, Commit::Blocking, &plan),
            of(&u1.clone().with_records(7), 1, Commit::Blocking, &plan),
            of(&u1.clone().with_value_bytes(4), 1, Commit::Blocking, &plan),
            of(&u1.clone().touching_values(), 1, Commit::Blocking, &plan),
            of(&u1.clone().with_group(4), 1, Commit::Blocking, &plan),
            of(&u1, 2, Commit::Blocking, &plan),
            of(&u1, 1, Commit::Pipelined { in_flight: 1 }, &plan),
            of(&u1, 1, Commit::Pipelined { in_flight: 64 }, &plan),
            of(&u1, 1, Commit::Blocking, &Plan { seed: 2, ..plan.clone() }),
            of(&u1, 1, Commit::Blocking, &Plan { cache_bytes: 1, ..plan.clone() }),
            of(&u1, 1, Commit::Blocking, &Plan { measured: Duration::from_secs(9), ..plan.clone() }),
            of(&u1, 1, Commit::Blocking, &Plan { warm_up: Duration::from_secs(9), ..plan.clone() }),
        ];
        let distinct: HashSet<&String> = others.iter().chain([&base]).collect();
        assert_eq!(distinct.len(), 13);
        let same = Plan { dir: "b".into(), runs: 9, revision: Some("abc".into()), keep: true, ..plan };
        assert_eq!(of(&u1, 1, Commit::Blocking, &same), base);
    }
}
