//! The evaluation of the Fat-Btree (Miyazaki & Yokota, section 4), and the measurements of updates that the
//! paper left open. The real nodes run in virtual time, with the paper's costs.
//!
//! | module | noun |
//! |---|---|
//! | [`hardware`] | the paper's machine: processors, page servers, disks |
//! | [`run`] | one measurement |
//! | [`expected`] | values from the paper, and from a model of its machine |
//!
//! The data are 128 K tuples of the Wisconsin relation, 13 in a leaf, 351 keys in an index page, three
//! levels. There are 4, 8 and 16 PEs with caches of 5 to 200 pages each. 10,000 operations are measured after
//! 4,000 of warm-up, by 20 clients per PE (the paper does not state their number). All random choices depend
//! on one seed, so results are the same on every machine.

pub mod expected;
pub mod hardware;
pub mod run;

use std::collections::BTreeMap;
use std::path::Path;

use azekura_fatbtree::{Placement, Protocol};

use self::expected::{Anchor, anchors};
use self::run::{Outcome, Setup};
use crate::lab::figures::{Axis, Figure, Point, Report};
use crate::machine::Machine;
use crate::progress::Progress;

/// Sizes of a PE's cache in the paper's Figs 4 to 6, in pages.
pub const CACHES: [usize; 7] = [5, 10, 20, 30, 50, 100, 200];
/// Cache sizes of figures with many series, in pages.
const FEW_CACHES: [usize; 4] = [10, 50, 100, 200];

/// Settings of the lab.
#[derive(Clone, Debug, PartialEq)]
pub struct Lab {
    /// Numbers of PEs.
    pub pes: Vec<u16>,
    /// Sizes of a PE's cache, in pages.
    pub caches: Vec<usize>,
    /// Percentages of inserts in the measurements of updates.
    pub inserts: Vec<usize>,
    /// Number of operations of the warm-up, and of the measurement.
    pub operations: (u64, u64),
    /// Seed of all random choices.
    pub seed: u64,
}

impl Lab {
    /// Returns the paper's settings.
    #[must_use]
    pub fn full() -> Self {
        Self {
            pes: vec![4, 8, 16],
            caches: CACHES.to_vec(),
            inserts: vec![10, 50],
            operations: (4_000, 10_000),
            seed: 1,
        }
    }

    /// Returns settings with few points, which take some seconds.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            pes: vec![8],
            caches: vec![10, 50],
            inserts: vec![50],
            operations: (1_000, 2_000),
            ..Self::full()
        }
    }

    /// Runs all measurements.
    #[must_use]
    pub fn run(&self, progress: &Progress) -> Report {
        let settings = format!(
            "{} tuples, {} to a leaf, {} keys to an index page; {} operations after {}, {} clients per PE; \
             seed {}",
            run::TUPLES,
            run::LEAF_TUPLES.0,
            run::INDEX_KEYS.0,
            self.operations.1,
            self.operations.0,
            CLIENTS,
            self.seed
        );
        let mut report = Report::new("Fat-Btree", Machine::here(Path::new(".")), settings);
        let figures = self.figures();
        progress.begin("Fat-Btree", figures.iter().map(|figure| figure.cells.len() as u64).sum());
        let mut done = 0;
        for figure in figures {
            for cell in &figure.cells {
                report.points.push(cell.measure(&figure.figure.name));
                done += 1;
                progress.at(done);
            }
            report.figures.push(figure.figure);
        }
        self.anchors(&mut report);
        report
    }

    /// Returns a setup without inserts that chooses copies of index pages as the paper does.
    fn setup(&self, placement: Placement, pes: u16, cache_pages: usize) -> Setup {
        Setup {
            placement,
            protocol: Protocol::BOpt,
            is_choice_by_range: false,
            pes,
            cache_pages,
            inserts: 0.0,
            clients_per_pe: CLIENTS,
            operations: self.operations,
            seed: self.seed,
        }
    }

    fn figures(&self) -> Vec<Planned> {
        let reads = self.pes.iter().map(|&pes| self.reads(pes));
        let updates =
            self.inserts.iter().flat_map(|&share| self.pes.last().map(|&pes| self.updates(pes, share)));
        reads.chain(updates).chain(self.pes.last().map(|&pes| self.near_copies(pes))).collect()
    }

    fn reads(&self, pes: u16) -> Planned {
        let number = match pes {
            4 => "Fig. 4",
            8 => "Fig. 5",
            16 => "Fig. 6",
            _ => "as Figs 4 to 6",
        };
        let note = "The paper's search: IS hand over hand, S on the leaf; any copy of an index page. Beside: \
            the model's rate.";
        let mut cells = Vec::new();
        for &cache_pages in &self.caches {
            for placement in Placement::ALL {
                let setup = self.setup(placement, pes, cache_pages);
                cells.push(Measured { series: placement.short().to_owned(), setup });
            }
        }
        planned(format!("searches, {pes} PEs ({number})"), note, "searches/s", cells)
    }

    /// Returns the cache sizes of figures with many series: all requested ones, or `FEW_CACHES` by default.
    fn few_caches(&self) -> Vec<usize> {
        if self.caches == CACHES { FEW_CACHES.to_vec() } else { self.caches.clone() }
    }

    fn updates(&self, pes: u16, share: usize) -> Planned {
        let note = "B-OPT and INC-OPT lock copies; with lazy copies only the leaf's owner waits, and \
            requests go to the copy nearest to the leaf.";
        let mut cells = Vec::new();
        for cache_pages in self.few_caches() {
            for protocol in Protocol::ALL {
                for placement in Placement::ALL {
                    let setup = Setup {
                        protocol,
                        is_choice_by_range: protocol == Protocol::Lazy,
                        inserts: share as f64 / 100.0,
                        ..self.setup(placement, pes, cache_pages)
                    };
                    cells.push(Measured { series: format!("{placement}, {}", protocol.short()), setup });
                }
            }
        }
        planned(format!("{share} % inserts, {pes} PEs"), note, "operations/s", cells)
    }

    fn near_copies(&self, pes: u16) -> Planned {
        let note = "The product's search: no locks on index pages, and the copy nearest to the leaf.";
        let mut cells = Vec::new();
        for cache_pages in self.few_caches() {
            for placement in Placement::ALL {
                let setup = Setup {
                    protocol: Protocol::Lazy,
                    is_choice_by_range: true,
                    ..self.setup(placement, pes, cache_pages)
                };
                cells.push(Measured { series: placement.short().to_owned(), setup });
            }
        }
        planned(format!("searches, {pes} PEs, lazy copies"), note, "searches/s", cells)
    }

    /// Adds the figure with the numbers from the paper's text.
    fn anchors(&self, report: &mut Report) {
        let name = "the paper's numbers";
        report.figures.push(Figure {
            name: name.into(),
            note: "What section 4.2 says in words; the value is what was measured here.".into(),
            axis: "PEs".into(),
            spacing: Axis::Doubling,
            unit: "see the series".into(),
        });
        for anchor in anchors() {
            let Anchor { series, placement, pes, paper, model, value } = anchor;
            let outcome = self.setup(placement, pes, 50).run();
            report.points.push(Point {
                figure: name.into(),
                series: series.into(),
                at: usize::from(pes),
                value: value(&outcome),
                spread: 0.0,
                runs: 1,
                beside: BTreeMap::from([("paper".into(), paper), ("model".into(), model)]),
            });
        }
    }
}

/// Number of clients per PE; the paper does not state it.
const CLIENTS: usize = 20;

struct Planned {
    figure: Figure,
    cells: Vec<Measured>,
}

struct Measured {
    series: String,
    setup: Setup,
}

fn planned(name: String, note: &str, unit: &str, cells: Vec<Measured>) -> Planned {
    let axis = "pages of each PE's cache".into();
    let figure = Figure { name, note: note.into(), axis, spacing: Axis::Doubling, unit: unit.into() };
    Planned { figure, cells }
}

impl Measured {
    fn measure(&self, figure: &str) -> Point {
        let outcome = self.setup.run();
        let mut beside = beside(&outcome);
        if let Some(model) = expected::rate(&self.setup) {
            beside.insert("model".into(), model);
        }
        Point {
            figure: figure.to_owned(),
            series: self.series.clone(),
            at: self.setup.cache_pages,
            value: outcome.per_s,
            spread: 0.0,
            runs: 1,
            beside,
        }
    }
}

fn beside(outcome: &Outcome) -> BTreeMap<String, f64> {
    BTreeMap::from([
        ("hits %".into(), outcome.hit_percent),
        ("crossings/op".into(), outcome.crossings),
        ("remote locks/10k".into(), outcome.remote_locks),
        ("page reads/op".into(), outcome.reads),
        ("splits".into(), outcome.splits as f64),
        ("p99 ms".into(), outcome.p99_ms),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_has_all_requested_sizes_of_caches() {
        for caches in [vec![16], vec![7, 50], Lab::quick().caches] {
            for figure in (Lab { caches: caches.clone(), ..Lab::full() }).figures() {
                let mut sizes: Vec<usize> = figure.cells.iter().map(|cell| cell.setup.cache_pages).collect();
                sizes.dedup();
                assert_eq!(sizes, caches, "{}", figure.figure.name);
            }
        }
        let full = Lab::full().figures();
        assert!(full.iter().all(|figure| !figure.cells.is_empty()));
        assert!(full.iter().any(|figure| figure.cells.iter().all(|cell| cell.setup.cache_pages != 5)));
    }
}
