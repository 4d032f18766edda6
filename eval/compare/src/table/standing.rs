//! The results of all engines, compared.

use super::cell::Sample;
use super::rows::Case;
use azekura_lab::table::{OURS, is_peer};
use serde::{Deserialize, Serialize};

/// The runs of one engine in one row at one number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    /// Name of the row.
    pub(super) row: String,
    /// Number of client threads.
    pub(super) threads: usize,
    /// Name of the engine.
    pub(super) engine: String,
    /// The rate of each run.
    pub(super) rates: Vec<f64>,
    /// The run with the median rate.
    pub(super) median: Sample,
}

impl Cell {
    /// Returns the cells of an engine, from the samples of each round.
    pub(super) fn of(engine: &str, cases: &[Case], rounds: &[Vec<Sample>]) -> Vec<Self> {
        let cell = |(at, case): (usize, &Case)| {
            let mut runs: Vec<&Sample> = rounds.iter().flatten().filter(|sample| sample.case == at).collect();
            let rates = runs.iter().map(|run| run.rate()).collect();
            runs.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
            // For an even number of runs, the lower one of the two in the middle.
            let median = (*runs.get(runs.len().saturating_sub(1) / 2)?).clone();
            Some(Self {
                row: case.row.clone(),
                threads: case.threads,
                engine: engine.to_owned(),
                rates,
                median,
            })
        };
        cases.iter().enumerate().filter_map(cell).collect()
    }

    /// Returns the median rate.
    pub(super) fn rate(&self) -> f64 {
        self.median.rate()
    }

    /// Returns the difference of highest and lowest rate, divided by the median.
    pub(super) fn spread(&self) -> f64 {
        let least = self.rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.rates.iter().copied().fold(0.0, f64::max);
        (most - least) / self.rate().max(1e-9)
    }
}

/// A cell of Azekura, compared with the best peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'c> {
    /// The cell of Azekura.
    pub(super) ours: &'c Cell,
    /// The peer with the highest rate.
    pub(super) best: Option<&'c Cell>,
}

impl Line<'_> {
    /// Returns the name of the row, with the variant of Azekura.
    pub(super) fn title(&self) -> String {
        match self.ours.engine.strip_prefix(OURS).and_then(|rest| rest.strip_prefix('-')) {
            Some(variant) => format!("{} ({variant})", self.ours.row),
            None => self.ours.row.clone(),
        }
    }

    /// Returns Azekura's rate divided by that of the best peer.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.best.map(|best| self.ours.rate() / best.rate().max(1e-9))
    }

    /// Returns `true` if a peer is faster.
    pub(super) fn is_behind(&self) -> bool {
        self.ratio().is_some_and(|ratio| ratio < 1.0)
    }
}

/// Returns the cells of Azekura with the best peers, the lowest ratio first. Cells without a peer come last.
pub(super) fn lines(cells: &[Cell]) -> Vec<Line<'_>> {
    let line = |ours| Line { ours, best: best_peer(cells, ours) };
    let mut lines: Vec<Line<'_>> = cells.iter().filter(|cell| !is_peer(&cell.engine)).map(line).collect();
    lines.sort_by(|a, b| a.ratio().unwrap_or(f64::MAX).total_cmp(&b.ratio().unwrap_or(f64::MAX)));
    lines
}

fn best_peer<'c>(cells: &'c [Cell], ours: &Cell) -> Option<&'c Cell> {
    cells
        .iter()
        .filter(|cell| cell.row == ours.row && cell.threads == ours.threads && is_peer(&cell.engine))
        .max_by(|a, b| a.rate().total_cmp(&b.rate()))
}
