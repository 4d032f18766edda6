//! Settings of a run: size, mix, threads, time, and directory.

use azekura::LogProtocol;
use azekura_workload::tpcc::{Mix, Scale};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Size of the database.
    pub scale: Scale,
    /// Mix of transactions.
    pub mix: Mix,
    /// Number of client threads.
    pub threads: usize,
    /// Number of commits in flight over all threads together; with `None`, each thread waits for each of its
    /// commits.
    pub in_flight: Option<usize>,
    /// Measured time.
    pub measured: Duration,
    /// Warm-up time before the measured time.
    pub warm_up: Duration,
    /// Seed of the inputs, and of the rows if the database is not loaded yet.
    pub seed: u64,
    /// Cache size of the store, in bytes.
    pub cache_bytes: usize,
    /// Page size in bytes; `None` is the default.
    pub page_bytes: Option<usize>,
    /// Log protocol.
    pub log: LogProtocol,
    /// Number of log streams; `None` is the store's own choice.
    pub wal_streams: Option<usize>,
    /// Directory that will contain the store's directory; created if missing.
    pub dir: PathBuf,
    /// Keeps the store at the end.
    pub keep: bool,
    /// Checks the consistency conditions after the run.
    pub check: bool,
    /// Commit of the measured source code, for the report.
    pub revision: Option<String>,
}

impl Plan {
    /// Returns a plan for a short run of the full mix in one thread, with a small database in `dir`.
    #[must_use]
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        Self {
            scale: Scale::reduced(1, 100),
            mix: Mix::Full,
            threads: 1,
            in_flight: None,
            measured: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            seed: 1,
            cache_bytes: 1 << 30,
            page_bytes: None,
            log: LogProtocol::default(),
            wal_streams: None,
            dir: dir.into(),
            keep: false,
            check: true,
            revision: None,
        }
    }

    /// Returns the directory of the store.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.dir.join("tpcc-azekura")
    }

    /// Returns the number of commits that each thread may have in flight; `None` if it waits for each.
    #[must_use]
    pub fn window(&self) -> Option<usize> {
        self.in_flight.map(|in_flight| (in_flight / self.threads.max(1)).max(1))
    }

    /// Returns `blocking` or `pipelined`.
    #[must_use]
    pub const fn commit_word(&self) -> &'static str {
        if self.in_flight.is_some() { "pipelined" } else { "blocking" }
    }

    /// Returns the number of commits that may be in flight over all threads together.
    #[must_use]
    pub fn all_in_flight(&self) -> usize {
        self.window().unwrap_or(1) * self.threads
    }

    /// Returns the name of the workload: `tpcc`, or `tpcc-new-order` for the paper's variant.
    #[must_use]
    pub const fn workload(&self) -> &'static str {
        match self.mix {
            Mix::Full => "tpcc",
            Mix::NewOrder => "tpcc-new-order",
        }
    }

    /// Returns all settings that affect the figures, by name. `earlier_runs` is the number of earlier runs on
    /// the database.
    #[must_use]
    pub fn settings(&self, earlier_runs: u64) -> BTreeMap<String, String> {
        let chosen = |value: Option<usize>| value.map_or_else(|| "default".to_owned(), |v| v.to_string());
        [
            ("workload", self.workload().to_owned()),
            ("mix", self.mix.word().to_owned()),
            ("warehouses", self.scale.warehouses().to_string()),
            ("scale_divisor", self.scale.divisor().to_string()),
            ("earlier_runs", earlier_runs.to_string()),
            ("engine", crate::table::OURS.to_owned()),
            ("threads", self.threads.to_string()),
            ("commit", self.commit_word().to_owned()),
            ("in_flight", self.all_in_flight().to_string()),
            ("cache_bytes", self.cache_bytes.to_string()),
            ("measured_ms", self.measured.as_millis().to_string()),
            ("warm_up_ms", self.warm_up.as_millis().to_string()),
            ("seed", self.seed.to_string()),
            ("azekura.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("azekura.durability", "immediate".to_owned()),
            ("azekura.isolation", "serializable".to_owned()),
            ("azekura.page_bytes", chosen(self.page_bytes)),
            ("azekura.log", self.log.to_string()),
            ("azekura.wal_streams", chosen(self.wal_streams)),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::hash;

    #[test]
    fn the_commits_in_flight_are_divided_among_the_threads() {
        let plan = Plan { threads: 4, in_flight: Some(64), ..Plan::in_dir("x") };
        assert_eq!((plan.window(), plan.all_in_flight(), plan.commit_word()), (Some(16), 64, "pipelined"));
        let blocking = Plan { in_flight: None, ..plan.clone() };
        assert_eq!(
            (blocking.window(), blocking.all_in_flight(), blocking.commit_word()),
            (None, 4, "blocking")
        );
        assert_eq!(Plan { in_flight: Some(1), ..plan }.all_in_flight(), 4);
    }

    #[test]
    fn only_settings_that_change_the_figures_change_the_hash() {
        let plan = Plan::in_dir("a");
        let base = hash(&plan.settings(0));
        let others = [
            Plan { scale: Scale::full(1), ..plan.clone() },
            Plan { scale: Scale::reduced(2, 100), ..plan.clone() },
            Plan { mix: Mix::NewOrder, ..plan.clone() },
            Plan { threads: 2, ..plan.clone() },
            Plan { in_flight: Some(1), ..plan.clone() },
            Plan { seed: 2, ..plan.clone() },
            Plan { cache_bytes: 1, ..plan.clone() },
            Plan { log: LogProtocol::Serial, ..plan.clone() },
            Plan { wal_streams: Some(1), ..plan.clone() },
        ];
        assert!(others.iter().all(|other| hash(&other.settings(0)) != base));
        assert_ne!(hash(&plan.settings(1)), base);
        let same = Plan { dir: "b".into(), keep: true, check: false, ..plan };
        assert_eq!(hash(&same.settings(0)), base);
    }
}
