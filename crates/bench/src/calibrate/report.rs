//! What a calibration found: a profile, and simulations of it beside the real thing.

use azekura_sim::Profile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A machine as it was measured; `--profile FILE` takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The machine.
    pub profile: Profile,
    /// Plain computation between two accesses, in nanoseconds, by workload.
    pub gaps: BTreeMap<String, f64>,
    /// The device.
    pub device: Device,
    /// Real and simulated runs.
    pub compared: Vec<Compared>,
}

/// What a device takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// A direct write of 4 KiB.
    pub write_ns: f64,
    /// What a flush after it takes more.
    pub flush_ns: f64,
    /// A direct read of 4 KiB.
    pub read_ns: f64,
}

/// A workload on so many threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Which.
    pub workload: String,
    /// Threads, and processors of the machine.
    pub threads: usize,
    /// Operations per second, each real run.
    pub real: Vec<f64>,
    /// Their median.
    pub real_median: f64,
    /// Operations per second, simulated.
    pub simulated: f64,
}

impl Compared {
    /// Simulated over real.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.simulated / self.real_median
    }
}

impl Calibration {
    /// From what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and where.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The machine, with the gap of a workload where one was found.
    #[must_use]
    pub fn profile_for(&self, workload: &str) -> Profile {
        let mut profile = self.profile.clone();
        if let Some(&gap) = self.gaps.get(workload) {
            profile.costs.between_accesses.value = gap;
        }
        profile
    }

    /// As tables.
    #[must_use]
    pub fn to_text(&self) -> String {
        let costs = &self.profile.costs;
        let mut out = format!("{}\n\n", self.profile.describes);
        for (name, constant) in [
            ("load of an own line", &costs.load_hit),
            ("store to an own line", &costs.store),
            ("atomic on an own line", &costs.swap),
            ("line from the last cache", &costs.shared_hit),
            ("line from memory", &costs.memory),
            ("line from another core", &costs.transfer_in_cluster),
            ("turn of a spin", &costs.pause),
            ("system call", &costs.system_call),
            ("wake to first instruction", &costs.wake),
            ("byte copied", &costs.copy_byte),
        ] {
            let _ = writeln!(out, "{name:28}{:>12.2} ns", constant.value);
        }
        let Device { write_ns, flush_ns, read_ns } = self.device;
        for (name, ns) in [
            ("device: write of 4 KiB", write_ns),
            ("device: flush after it", flush_ns),
            ("device: read", read_ns),
        ] {
            let _ = writeln!(out, "{name:28}{:>12.2} us", ns / 1e3);
        }
        for (workload, gap) in &self.gaps {
            let _ = writeln!(out, "{:28}{gap:>12.2} ns", format!("between accesses: {workload}"));
        }
        let _ = writeln!(
            out,
            "\nthousand operations per second; one thread agrees by construction, two are the test"
        );
        let _ = writeln!(
            out,
            "{:10}{:>8}{:>12}{:>20}{:>12}{:>8}",
            "workload", "threads", "real", "least to most", "simulated", "ratio"
        );
        for one in &self.compared {
            let least = one.real.iter().copied().fold(f64::INFINITY, f64::min);
            let most = one.real.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(
                out,
                "{:10}{:>8}{:>12.1}{:>20}{:>12.1}{:>8.2}",
                one.workload,
                one.threads,
                one.real_median / 1e3,
                format!("{:.1} to {:.1}", least / 1e3, most / 1e3),
                one.simulated / 1e3,
                one.ratio()
            );
        }
        out
    }
}
