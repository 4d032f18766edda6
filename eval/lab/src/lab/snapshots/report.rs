//! The results as a table.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::machine::Machine;

/// Unit of the rows that count wrong sums.
pub(super) const WRONG: &str = "wrong";

/// A figure with its goal.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Description of the figure; a ratio names both runs.
    pub figure: String,
    /// Unit of `value` and `control`.
    pub unit: &'static str,
    /// Median of the measurements.
    pub value: f64,
    /// Median of the control, if there is one.
    pub control: Option<f64>,
    /// Ratio of the two medians, if there is a control.
    pub ratio: Option<f64>,
    /// Smallest and largest measurement, or ratio if there is a control.
    pub spread: (f64, f64),
    /// The goal: lower bound of a ratio, upper bound of a value.
    pub goal: f64,
    /// The goal is reached.
    pub holds: bool,
}

impl Row {
    /// Returns the row of a rate and its control, with a ratio of at least `goal`.
    pub(super) fn ratio(figure: String, unit: &'static str, pairs: &[(f64, f64)], goal: f64) -> Self {
        let value = median(pairs.iter().map(|pair| pair.0));
        let control = median(pairs.iter().map(|pair| pair.1));
        let ratio = value / control;
        let spread = spread(pairs.iter().map(|pair| pair.0 / pair.1));
        let holds = ratio >= goal;
        Self { figure, unit, value, control: Some(control), ratio: Some(ratio), spread, goal, holds }
    }

    /// Returns the row of a value of at most `goal`.
    pub(super) fn at_most(figure: String, unit: &'static str, values: Vec<f64>, goal: f64) -> Self {
        let value = median(values.iter().copied());
        let spread = spread(values.into_iter());
        Self { figure, unit, value, control: None, ratio: None, spread, goal, holds: value <= goal }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spread(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)))
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Description of the machine.
    pub machine: Machine,
    /// Number of measurements of each figure.
    pub runs: usize,
    /// Measured seconds of each rate.
    pub seconds: f64,
    /// Figures in the order of measurement.
    pub rows: Vec<Row>,
}

impl Report {
    pub(super) fn new(dir: &Path, runs: usize, time: Duration) -> Self {
        Self { machine: Machine::here(dir), runs, seconds: time.as_secs_f64(), rows: Vec::new() }
    }

    /// Returns the number of sums of balances that violate serializability.
    #[must_use]
    pub fn wrong_sums(&self) -> u64 {
        self.rows.iter().filter(|row| row.unit == WRONG).map(|row| row.value as u64).sum()
    }

    /// Returns the results as a table in Markdown.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{}; {} runs of {} s\n\n", self.machine.in_words(), self.runs, self.seconds);
        text.push_str("| figure | value | control | ratio | least, most | goal | holds |\n");
        text.push_str("|---|---|---|---|---|---|---|\n");
        for row in &self.rows {
            let number = |value: f64| {
                if value >= 1e4 { format!("{:.0} k", value / 1e3) } else { format!("{value:.2}") }
            };
            let optional =
                |value: Option<f64>, format: &dyn Fn(f64) -> String| value.map_or_else(|| "–".into(), format);
            let bound = if row.ratio.is_some() { "≥" } else { "≤" };
            let _ = writeln!(
                text,
                "| {} | {} {} | {} | {} | {}, {} | {bound} {} | {} |",
                row.figure,
                number(row.value),
                row.unit,
                optional(row.control, &number),
                optional(row.ratio, &|ratio| format!("{ratio:.2}")),
                number(row.spread.0),
                number(row.spread.1),
                row.goal,
                if row.holds { "yes" } else { "**no**" },
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_of_medians_and_a_value_has_an_upper_bound() {
        let row = Row::ratio("a / b".into(), "x/s", &[(1.0, 2.0), (3.0, 3.0), (2.0, 4.0)], 0.7);
        assert_eq!((row.value, row.control, row.spread, row.holds), (2.0, Some(3.0), (0.5, 1.0), false));
        let row = Row::at_most("c".into(), "ns", vec![3.0, 1.0, 2.0], 2.0);
        assert_eq!((row.value, row.control, row.holds), (2.0, None, true));
    }
}
