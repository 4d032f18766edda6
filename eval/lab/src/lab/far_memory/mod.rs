//! The evaluation of user-level remote memory paging (Saito et al., §3): its programs, its policies and one
//! of ours, its figures.
//!
//! | module | noun |
//! |---|---|
//! | [`record`] | a program's touches of pages, from a run that verifies |
//! | [`cell`] | one program, one share of local memory, one policy |
//! | [`live`] | the same on real paging |
//! | [`report`] | figures as text, JSON, a page |
//!
//! By replay, programs run once on a memory that notes which pages they touch; each policy then sees the same
//! touches. Swaps, write-backs and access bits are counted, so they are exact and the same on every machine.
//! Times are virtual: the paper's costs of a fault and of a change of protection, its network's 10 Gbit/s for
//! a page of 1 MiB. With [`Lab::live`] they run on a region of far memory instead, once for each policy, and
//! all is measured. The programs are smaller than the paper's; one page of theirs stands for one of 1 MiB, in
//! time too.

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
    /// The programs.
    pub kernels: Vec<Kernel>,
    /// The policies; Simple is what the others are compared with.
    pub policies: Vec<Policy>,
    /// Local memory, in per cent of the program's.
    pub local: Vec<u32>,
    /// Bytes of a page.
    pub page_bytes: usize,
    /// Touches of pages that are recorded of each program, at most.
    pub most_touches: usize,
    /// Of the policies that draw lots.
    pub seed: u64,
    /// Real paging instead of a replay.
    pub live: Option<Live>,
}

/// The reason that a lab did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A program got less memory than it asked for.
    #[error("{kernel}")]
    Memory {
        /// The program.
        kernel: Kernel,
        /// Its need of memory.
        source: OutOfMemory,
    },
    /// A program's own verification failed: its trace would say nothing.
    #[error("{kernel} does not verify: {verdict}")]
    Unverified {
        /// The program.
        kernel: Kernel,
        /// Result of its verification.
        verdict: azekura_kernels::Verdict,
    },
    /// A program's verification fails on far memory: a byte came back wrong.
    #[error("{kernel} does not verify on far memory with {policy} and {local} % local: {verdict}")]
    Wrong {
        /// The program.
        kernel: Kernel,
        /// With which policy.
        policy: Policy,
        /// With how much local memory, in per cent.
        local: u32,
        /// Result of its verification.
        verdict: azekura_kernels::Verdict,
    },
    /// No memory server could be started on this machine.
    #[error("start a memory server on this machine")]
    Server(#[source] azekura_far::ServeError),
    /// The region could not be made.
    #[error("make a region for {kernel} with {policy}")]
    Region {
        /// For which program.
        kernel: Kernel,
        /// With which policy.
        policy: Policy,
        /// The reason.
        source: azekura_far::FarError,
    },
}

impl Lab {
    /// Programs of class W: some minutes.
    #[must_use]
    pub fn full() -> Self {
        Self::of_class(Class::W)
    }

    /// Programs of class S: some seconds. The smallest have too few pages to say much.
    #[must_use]
    pub fn quick() -> Self {
        Self::of_class(Class::S)
    }

    /// All programs at one size, all policies, the intervals of Fig. 6.
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

    /// Runs all of it.
    ///
    /// # Errors
    ///
    /// [`LabError::Unverified`] if a program computes something wrong.
    ///
    /// # Panics
    ///
    /// If the page is no power of two.
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

    /// One program with every share and policy. Policies take turns within a share, so that what disturbs the
    /// machine disturbs all.
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
        let told = |most_touches| Lab { most_touches, ..small() }.run(&Progress::hidden()).unwrap().settings;
        assert!(told(1000).ends_with("; of is.s, cluster.60 the first time steps only"), "{}", told(1000));
        assert!(!told(record::TOUCHES).contains("first time steps"), "{}", told(record::TOUCHES));
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
