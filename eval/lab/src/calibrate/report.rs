//! Results of a calibration: a profile, and simulated runs beside the real ones.

use azekura_sim::Profile;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

use super::runs::Runs;

/// Profile of a measured machine with the evidence for it; `--profile FILE` reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The measured profile.
    pub profile: Profile,
    /// Computation between two memory accesses, in nanoseconds, by workload.
    pub gaps: BTreeMap<String, f64>,
    /// Times of the device.
    pub device: Device,
    /// Real and simulated runs, by workload and number of threads.
    pub compared: Vec<Compared>,
}

/// Times of a device, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// A direct write of 4 KiB.
    pub write_ns: f64,
    /// Additional time of a flush after it.
    pub flush_ns: f64,
    /// A direct read of 4 KiB.
    pub read_ns: f64,
}

/// Real and simulated rates of a workload with one number of threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Name of the workload.
    pub workload: String,
    /// Number of threads, and of simulated processors.
    pub threads: usize,
    /// Operations per second of each real run.
    pub real: Runs,
    /// Processor time per operation of each real run, in nanoseconds.
    pub busy_ns: Runs,
    /// Operations per second of the simulated run.
    pub simulated: f64,
}

/// Largest deviation of a simulated rate from the real one with which the two agree, relative to the real
/// rate.
pub const CLOSE: f64 = 0.25;

impl Compared {
    /// Returns the simulated rate divided by the real one.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.simulated / self.real.median()
    }

    /// Returns whether the simulated rate is within [`CLOSE`] of the real rate.
    #[must_use]
    pub fn agrees(&self) -> bool {
        (self.ratio() - 1.0).abs() <= CLOSE
    }

    fn row(&self) -> String {
        let (low, high) = self.real.quartiles();
        let verdict = match (self.agrees(), self.real.is_disturbed()) {
            (true, false) => "agrees",
            (false, false) => "DISAGREES",
            (true, true) => "agrees, disturbed",
            (false, true) => "disagrees, disturbed",
        };
        format!(
            "{:10}{:>8}{:>12.1}{:>20}{:>10}{:>12.1}{:>8.2}  {verdict}\n",
            self.workload,
            self.threads,
            self.real.median() / 1e3,
            format!("{:.1} to {:.1}", low / 1e3, high / 1e3),
            format!("{}/{}", self.real.quiet(), self.real.0.len()),
            self.simulated / 1e3,
            self.ratio()
        )
    }
}

impl Calibration {
    /// Parses the output of [`to_json`](crate::json::Json::to_json).
    ///
    /// # Errors
    ///
    /// The position and kind of the error in the text.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Returns the profile for a workload: with that workload's gap, if one was fitted.
    #[must_use]
    pub fn profile_for(&self, workload: &str) -> Profile {
        let mut profile = self.profile.clone();
        if let Some(&gap) = self.gaps.get(workload) {
            profile.costs.between_accesses.value = gap;
        }
        profile
    }

    /// Returns the results as text tables.
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
            ("one spin-loop iteration", &costs.pause),
            ("system call", &costs.system_call),
            ("call that wakes a thread", &costs.wake_call),
            ("wake until the thread runs", &costs.wake),
            ("timer set", &costs.alarm_set),
            ("timer that has expired", &costs.alarm_missed),
            ("timer until the thread runs", &costs.alarm),
            ("the same, processor busy", &costs.alarm_busy),
            ("wake, processor busy", &costs.wake_busy),
            ("interrupt of a wake", &costs.interrupt),
            ("context switch", &costs.context_switch),
            ("time without preemption", &costs.undisturbed),
            ("slice", &costs.slice),
            ("byte copied", &costs.copy_byte),
        ] {
            let _ = writeln!(out, "{name:28}{:>12.2} ns", constant.value);
        }
        let _ = writeln!(
            out,
            "{:28}{:>12.0} %",
            "line transfer: link busy",
            costs.transfer_occupancy.value * 100.0
        );
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
            "\nthousand operations per second; one thread that never waits agrees by construction, the log's \
             and two are the test; to agree: within {:.0} %",
            CLOSE * 100.0
        );
        let _ = writeln!(
            out,
            "{:10}{:>8}{:>12}{:>20}{:>10}{:>12}{:>8}",
            "workload", "threads", "real", "middle half", "quiet", "simulated", "ratio"
        );
        self.compared.iter().for_each(|one| out += &one.row());
        out
    }

    /// Returns whether all simulated rates agree with the real ones.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.compared.iter().all(Compared::agrees)
    }
}

#[cfg(test)]
mod tests {
    use super::super::runs::Run;
    use super::*;
    use crate::json::Json;

    fn compared(simulated: f64, others: f64) -> Compared {
        let real = Runs(vec![Run { value: 1000.0, others }; 4]);
        Compared { workload: "log".into(), threads: 2, busy_ns: real.clone(), real, simulated }
    }

    #[test]
    fn a_difference_of_up_to_a_quarter_agrees() {
        for (simulated, agrees) in [(740.0, false), (750.0, true), (1250.0, true), (1260.0, false)] {
            assert_eq!(compared(simulated, 0.0).agrees(), agrees, "{simulated}");
        }
    }

    #[test]
    fn the_report_says_what_disagrees_and_what_was_disturbed() {
        let calibration = Calibration {
            profile: Profile::t2(),
            gaps: BTreeMap::new(),
            device: Device { write_ns: 1.0, flush_ns: 1.0, read_ns: 1.0 },
            compared: vec![compared(700.0, 0.0), compared(1000.0, 2.0)],
        };
        let text = calibration.to_text();
        assert!(text.contains("0.70  DISAGREES") && text.contains("1.00  agrees, disturbed"), "{text}");
        assert!(!calibration.agrees());
        let again = Calibration::from_json(&calibration.to_json());
        assert_eq!(again.ok(), Some(calibration));
    }
}
