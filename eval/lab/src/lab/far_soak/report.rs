//! Results of the stretches.

use std::fmt::Write;

use azekura_far::Policy;
use serde::{Deserialize, Serialize};

use super::work::Done;
use crate::lab::far_kills::Guard;
use crate::lab::judged::Judged;

/// Settings and results of one stretch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    /// Seed of all random choices; only the scheduling of threads does not depend on it.
    pub seed: u64,
    /// Protection of the pages.
    pub guard: Guard,
    /// Replacement policy of the programs.
    pub policy: String,
    /// Bytes of a page.
    pub page: usize,
    /// Number of memory servers.
    pub servers: usize,
    /// Servers that were killed and replaced by an empty one.
    pub restarts: u64,
    /// Servers that were stopped for a moment.
    pub pauses: u64,
    /// Times at which a server's connections were cut.
    pub cuts: u64,
    /// Servers that programs counted as lost.
    pub lost: u64,
    /// Connections that programs restored.
    pub resumed: u64,
    /// Pages that were copied to another server to restore the number of copies.
    pub recopied: u64,
    /// Accesses of all programs.
    pub accesses: u64,
    /// Pages that were paged in.
    pub pages_in: u64,
    /// Pages that were paged out.
    pub pages_out: u64,
    /// Longest time of one access.
    pub longest_ms: f64,
    /// Longest time until every page had two copies again.
    pub recovery_ms: f64,
    /// Descriptions of wrong bytes.
    pub wrong: Vec<String>,
    /// A program waited too long.
    pub hangs: bool,
}

/// Results of all stretches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Stretches in the order of their seeds.
    pub stretches: Vec<Stretch>,
}

impl Stretch {
    pub(super) fn new(seed: u64, guard: Guard, policy: Policy, page: usize, servers: usize) -> Self {
        Self {
            seed,
            guard,
            policy: policy.to_string(),
            page,
            servers,
            restarts: 0,
            pauses: 0,
            cuts: 0,
            lost: 0,
            resumed: 0,
            recopied: 0,
            accesses: 0,
            pages_in: 0,
            pages_out: 0,
            longest_ms: 0.0,
            recovery_ms: 0.0,
            wrong: Vec::new(),
            hangs: false,
        }
    }

    /// Adds the counts of one program of the stretch.
    pub(super) fn add(&mut self, done: &Done) {
        self.lost += done.stats.replicas_lost;
        self.resumed += done.stats.replicas_resumed;
        self.recopied += done.stats.recopied;
        self.pages_in += done.stats.swap_ins + done.stats.prefetches;
        self.pages_out += done.stats.swap_outs;
        self.accesses += done.accesses;
        self.longest_ms = self.longest_ms.max(done.longest.as_secs_f64() * 1e3);
        self.wrong.extend(done.wrong.iter().cloned());
    }

    /// Returns whether all bytes were right and no program hung.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.wrong.is_empty() && !self.hangs
    }
}

impl Judged for Report {
    fn is_well(&self) -> bool {
        self.stretches.iter().all(Stretch::is_well)
    }

    fn to_text(&self) -> String {
        let mut text = String::from(
            "guard   stretches  restarts  pauses   cuts   lost  resumed  recopied  accesses  pages in  pages \
             out  wrong  longest access  longest recovery\n",
        );
        for guard in [Guard::Copies, Guard::Spill] {
            let of: Vec<&Stretch> = self.stretches.iter().filter(|s| s.guard == guard).collect();
            let sum = |what: fn(&Stretch) -> u64| of.iter().map(|s| what(s)).sum::<u64>();
            let most = |what: fn(&Stretch) -> f64| of.iter().map(|s| what(s)).fold(0.0, f64::max);
            let _ = writeln!(
                text,
                "{:<8}{:>9}{:>10}{:>8}{:>7}{:>7}{:>9}{:>10}{:>10}{:>10}{:>11}{:>7}{:>13.0} ms{:>15.0} ms",
                guard.name(),
                of.len(),
                sum(|s| s.restarts),
                sum(|s| s.pauses),
                sum(|s| s.cuts),
                sum(|s| s.lost),
                sum(|s| s.resumed),
                sum(|s| s.recopied),
                sum(|s| s.accesses),
                sum(|s| s.pages_in),
                sum(|s| s.pages_out),
                sum(|s| s.wrong.len() as u64),
                most(|s| s.longest_ms),
                most(|s| s.recovery_ms),
            );
        }
        for bad in self.stretches.iter().filter(|stretch| !stretch.is_well()) {
            let _ = writeln!(text, "seed {}: {bad:?}", bad.seed);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_bytes_and_hangs_are_reported_with_their_seed() {
        let stretch = || Stretch::new(7, Guard::Spill, Policy::Fifo, 4096, 2);
        assert!(Report { stretches: vec![stretch()] }.is_well());
        let wrong = Stretch { wrong: vec!["page 3 at the end".into()], ..stretch() };
        let hangs = Stretch { hangs: true, ..stretch() };
        for bad in [wrong, hangs] {
            let report = Report { stretches: vec![stretch(), bad] };
            assert!(!report.is_well() && report.to_text().contains("seed 7: "));
            assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
        }
    }
}
