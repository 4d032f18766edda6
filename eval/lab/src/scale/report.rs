//! Rates by number of processors, and the cache lines that limit them.

use azekura_sim::Profile;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

use super::run::Point;
use crate::lab::steady;

/// Results of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The simulated machine.
    pub profile: Profile,
    /// The settings, as text.
    pub settings: String,
    /// Results for each number of processors.
    pub points: Vec<Point>,
}

/// Smallest printed waiting time for a cache line, as a part of the clients' time.
const LEAST_SHARE: f64 = 0.01;

impl Report {
    /// Returns a table: a line per number of processors, followed by its most expensive shared cache lines.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("Simulated: {}\n{}\n\n", self.profile.describes, self.settings);
        let _ = writeln!(
            out,
            "{:>10} {:>14} {:>9} {:>9} {:>12}",
            "processors", "thousand op/s", "spread", "speed-up", "steps per op"
        );
        let first = self.points.first().map_or(1.0, |point| point.rate / point.processors as f64);
        for point in &self.points {
            let _ = writeln!(
                out,
                "{:>10} {:>14.1} {:>9} {:>9.2} {:>12.0}",
                point.processors,
                point.rate / 1e3,
                steady::spread(&point.runs),
                point.rate / first,
                point.steps as f64 / point.ops.max(1) as f64
            );
            for line in point.lines.iter().filter(|line| line.share >= LEAST_SHARE) {
                let _ = writeln!(
                    out,
                    "{:>25.1}% {:>6.1}%  {} of {} ({})",
                    line.share * 100.0,
                    line.on_one_line * 100.0,
                    line.field,
                    line.module,
                    line.places.first().map_or("", String::as_str)
                );
            }
        }
        out.push_str(
            "\nBelow each number: where clients waited for cache lines (part of their time; of that, on the \
             worst line).\n",
        );
        out
    }
}
