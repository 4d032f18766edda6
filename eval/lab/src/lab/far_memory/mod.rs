//! The evaluation of user-level remote memory paging (Saito et al., §3): its programs, its policies and one
//! of ours, and its figures.
//!
//! | module | noun |
//! |---|---|
//! | [`record`] | a program's page accesses, from a run that verifies |
//! | [`cell`] | result of one program with one share of local memory and one policy |
//! | [`live`] | such a result on real far memory |
//! | [`report`] | figures as text, JSON and an HTML page |
//!
//! In a replay, each program runs once on a memory that records its page accesses, and each policy receives
//! the same accesses. Swaps, write-backs and access bits are counted, so they are exact and the same on every
//! machine. Times are virtual: the paper's costs of a fault and of a change of protection, and its network's
//! 10 Gbit/s for a page of 1 MiB. With [`Lab::live`], the programs run on a region of far memory instead,
//! once for each policy, and all values are measured. The programs are smaller than the paper's. One page
//! represents a page of 1 MiB, also in its time.

pub mod cell;
pub mod live;
pub mod record;
pub mod report;

use azekura_far::replace::Clearing;
use azekura_far::replace::replay::Costs;
use azekura_kernels::OutOfMemory;
use azekura_kernels::npb::Class;

pub use azekura_far::{Mechanism, Policy};
pub use azekura_kernels::Kernel;
use std::time::Duration;

use self::cell::Cell;
use self::live::Live;
use self::record::Recorded;
use self::report::Report;
use crate::progress::Progress;

/// Bytes of the paper's pages.
const PAPER_PAGE: f64 = 1_048_576.0;

/// Settings of the lab.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Programs to run.
    pub kernels: Vec<Kernel>,
    /// Policies to run; the others are compared with Simple.
    pub policies: Vec<Policy>,
    /// Shares of local memory, in percent of the program's memory.
    pub local: Vec<u32>,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Largest number of page accesses that are recorded of each program.
    pub most_touches: usize,
    /// Seed of the policies that make random choices.
    pub seed: u64,
    /// Settings of real paging; `None` is a replay.
    pub live: Option<Live>,
}

/// An error that ends the lab.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A program has less memory than it needs.
    #[error("{kernel}")]
    Memory {
        /// The program.
        kernel: Kernel,
        /// Bytes that the program needs.
        source: OutOfMemory,
    },
    /// A program's own verification failed, so its trace is useless.
    #[error("{kernel} does not verify: {verdict}")]
    Unverified {
        /// The program.
        kernel: Kernel,
        /// Result of the verification.
        verdict: azekura_kernels::Verdict,
    },
    /// A program's verification failed on far memory: far memory returned a wrong byte.
    #[error("{kernel} does not verify on far memory with {policy} and {local} % local: {verdict}")]
    Wrong {
        /// The program.
        kernel: Kernel,
        /// The policy.
        policy: Policy,
        /// Local memory, in percent.
        local: u32,
        /// Result of the verification.
        verdict: azekura_kernels::Verdict,
    },
    /// No memory server could be started on this machine.
    #[error("start a memory server on this machine")]
    Server(#[source] azekura_far::ServeError),
    /// The region of far memory could not be created.
    #[error("make a region for {kernel} with {policy}")]
    Region {
        /// The program.
        kernel: Kernel,
        /// The policy.
        policy: Policy,
        /// The error of far memory.
        source: azekura_far::FarError,
    },
}

impl Lab {
    /// Returns settings with programs of class W, which take some minutes.
    #[must_use]
    pub fn full() -> Self {
        Self::of_class(Class::W)
    }

    /// Returns settings with programs of class S, which take some seconds. The smallest have too few pages
    /// for meaningful results.
    #[must_use]
    pub fn quick() -> Self {
        Self::of_class(Class::S)
    }

    /// Returns settings with all programs in one size, and all policies with the intervals of Fig. 6.
    #[must_use]
    pub fn of_class(class: Class) -> Self {
        let swaps = [10, 100].map(|every| Policy::UNru(Clearing::Swaps(every)));
        let timer = [500, 1000].map(|every| Policy::UNru(Clearing::Timer(Duration::from_millis(every))));
        Self {
            kernels: Kernel::all(class),
            policies: Policy::ALL.into_iter().chain(swaps).chain(timer).collect(),
            local: vec![100, 75, 50, 25],
            page_bytes: 4096,
            most_touches: record::TOUCHES,
            seed: 1,
            live: None,
        }
    }

    /// Runs all programs with all shares and policies.
    ///
    /// # Errors
    ///
    /// [`LabError::Unverified`] if a program computes a wrong result; [`LabError::Wrong`] if it does so on
    /// far memory.
    ///
    /// # Panics
    ///
    /// If the page size is not a power of two.
    pub fn run(&self, progress: &Progress) -> Result<Report, LabError> {
        let (mut cells, mut cut) = (Vec::new(), Vec::new());
        let costs = Costs::PAPER.scaled(PAPER_PAGE / self.page_bytes as f64);
        for &kernel in &self.kernels {
            let steps = 1 + self.local.len() * (1 + self.policies.len());
            progress.begin(&kernel.to_string(), steps as u64);
            if let Some(live) = self.live {
                self.run_live(live, kernel, &mut cells, progress)?;
                continue;
            }
            let recorded = Recorded::of(kernel, self.page_bytes, self.most_touches)?;
            cut.extend(recorded.cut.then(|| kernel.to_string()));
            let mut done = 1;
            for &local in &self.local {
                let optimal = recorded.optimal(local);
                for &policy in &self.policies {
                    done += 1;
                    progress.at(done);
                    cells.push(Cell::replayed(&recorded, policy, local, optimal, &costs, self.seed));
                }
            }
        }
        let mut settings = self.settings(&costs);
        if !cut.is_empty() {
            settings += &format!("; of {} the first time steps only", cut.join(", "));
        }
        Ok(Report { settings, cells })
    }

    /// Runs one program with every share and policy on real far memory. Within a share the policies follow
    /// each other, so that a disturbance of the machine affects several of them.
    fn run_live(
        &self,
        live: Live,
        kernel: Kernel,
        cells: &mut Vec<Cell>,
        progress: &Progress,
    ) -> Result<(), LabError> {
        let mut done = 0;
        for &local in &self.local {
            for &policy in &self.policies {
                cells.push(live.run(kernel, policy, local, self.page_bytes, self.seed)?);
                done += 1;
                progress.at(done);
            }
        }
        Ok(())
    }

    fn settings(&self, costs: &Costs) -> String {
        if let Some(live) = self.live {
            return format!(
                "real paging by {}, pages of {} bytes{}, one memory server on this machine; one run each; \
                 seed {}",
                live.mechanism,
                self.page_bytes,
                if live.prefetch { ", fetched ahead of need" } else { "" },
                self.seed
            );
        }
        format!(
            "replay of page touches, pages of {} bytes, each standing for 1 MiB; virtual time: {:.0} us for \
             a page's way in or out, {:.0} us for a fault, {:.0} us for a change of protection; seed {}",
            self.page_bytes,
            costs.swap_in / 1e3,
            costs.fault / 1e3,
            costs.protect / 1e3,
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Lab {
        Lab {
            kernels: vec!["is.s".parse().unwrap(), "cluster.60".parse().unwrap()],
            local: vec![100, 50],
            page_bytes: 1024,
            ..Lab::quick()
        }
    }

    #[test]
    fn a_small_run_has_a_cell_for_each_program_share_and_policy_and_is_the_same_each_time() {
        let report = small().run(&Progress::hidden()).unwrap();
        assert_eq!(report.cells.len(), 2 * 2 * 13);
        for cell in &report.cells {
            assert_eq!(cell.swap_ins == 0, cell.local == 100, "{cell:?}");
            assert!(cell.swap_ins >= cell.optimal, "{cell:?}");
            assert!(cell.compute_s > 0.0 && cell.swap_outs >= cell.swap_ins, "{cell:?}");
        }
        assert_eq!(small().run(&Progress::hidden()).unwrap(), report);
    }

    #[test]
    fn it_says_of_which_programs_it_has_the_beginning_only() {
        let settings =
            |most_touches| Lab { most_touches, ..small() }.run(&Progress::hidden()).unwrap().settings;
        assert!(
            settings(1000).ends_with("; of is.s, cluster.60 the first time steps only"),
            "{}",
            settings(1000)
        );
        assert!(!settings(record::TOUCHES).contains("first time steps"), "{}", settings(record::TOUCHES));
    }

    #[test]
    fn programs_verify_on_real_paging_with_every_policy() {
        let live = Live { mechanism: azekura_far::Mechanism::Auto, prefetch: false };
        let lab = Lab {
            kernels: vec!["is.s".parse().unwrap(), "cluster.100".parse().unwrap()],
            policies: Policy::ALL.into(),
            local: vec![75],
            page_bytes: 16 << 10,
            live: Some(live),
            ..Lab::quick()
        };
        let report = lab.run(&Progress::hidden()).unwrap();
        assert_eq!(report.cells.len(), 2 * 9);
        for cell in report.cells.iter().filter(|cell| cell.kernel == "is.s") {
            assert!(cell.swap_ins > 0 && cell.swap_s > 0.0, "{cell:?}");
        }
    }

    #[test]
    fn only_policies_that_look_at_use_pay_for_access_bits() {
        let report = small().run(&Progress::hidden()).unwrap();
        for cell in report.cells.iter().filter(|cell| cell.local == 50) {
            let blind = ["simple", "swap-in-history", "random", "fifo"].contains(&cell.policy.as_str());
            assert_eq!(cell.bits_cleared == 0, blind, "{cell:?}");
            assert_eq!(cell.clear_s == 0.0, blind, "{cell:?}");
        }
    }
}
