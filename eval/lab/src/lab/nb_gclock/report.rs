//! The lab's figures as text, JSON and an HTML page.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

use super::costs::Costs;
use crate::lab::figures::{self, Point};
use crate::plot;

/// Name of an additional number: failed installs of a page per miss, in percent (Table 2).
pub const FAILED_INSTALLS: &str = "failed installs %";
/// Name of an additional number: processor time per thread, in percent of the elapsed time (Table 2).
pub const PROCESSOR: &str = "processor %";
/// Name of an additional number: hits, in percent of the visits.
pub const HITS: &str = "hits %";

/// Results of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The figures: one series per cache (and per method of reading, if these are compared), with frames or
    /// threads on the axis.
    #[serde(flatten)]
    pub measured: figures::Report,
    /// Cost of a hit and of a miss for each cache.
    pub costs: Vec<Costs>,
}

impl Report {
    /// Returns the report as text with one table per figure: a line per cache, a column per position.
    #[must_use]
    pub fn to_text(&self) -> String {
        let figures = self.measured.text_of(|figure| self.measured.grid(figure, cell_text));
        format!("{figures}\nCounted costs (per visit)\n{COSTS_NOTE}\n{}\n", self.cost_table())
    }

    fn cost_table(&self) -> String {
        let width = self.costs.iter().map(|costs| costs.cache.len()).max().unwrap_or(0);
        let head = ["hit: rmw", "shared writes", "miss: rmw", "shared writes", "system calls"];
        let mut out = format!("{:width$}", "");
        head.iter().for_each(|name| out.push_str(&format!("  {name:>13}")));
        out.push('\n');
        for costs in &self.costs {
            let (hit, miss) = (&costs.hit, &costs.miss);
            let _ = write!(out, "{:width$}", costs.cache);
            for value in [
                hit.read_modify_writes,
                hit.shared_writes,
                miss.read_modify_writes,
                miss.shared_writes,
                miss.system_calls,
            ] {
                let _ = write!(out, "  {value:>13.2}");
            }
            out.push('\n');
        }
        out
    }

    /// Returns the report as an HTML page that needs no network.
    #[must_use]
    pub fn to_html(&self) -> String {
        let costs = format!(
            "<h2>Counted costs</h2>\n<p>{}</p>\n<pre>{}</pre>\n",
            plot::escape(COSTS_NOTE),
            plot::escape(&self.cost_table())
        );
        self.measured.page_of(|figure| self.measured.grid(figure, cell_text), &costs)
    }
}

const COSTS_NOTE: &str = "Of a page that is hot, and of one that is new to a full cache: atomic \
    read-modify-writes, writes to lines that threads share (these, and plain stores), system calls. Under a \
    lock, what the policy writes to its lists is not counted, only lock and frame.";

fn cell_text(point: &Point) -> String {
    let mut text = if point.value < 1000.0 {
        format!("{:.2}", point.value)
    } else {
        format!("{} ±{:.0} %", crate::table::short(point.value), point.spread * 50.0)
    };
    if let Some(failed) = point.beside.get(FAILED_INSTALLS) {
        let _ = write!(text, " {failed:.3} %");
    }
    if let Some(busy) = point.beside.get(PROCESSOR) {
        let _ = write!(text, " cpu {busy:.0} %");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;
    use crate::lab::figures::{Axis, Figure};
    use crate::machine::Machine;

    #[test]
    fn every_point_is_in_the_table_and_on_the_page() {
        let point = |series: &str, at, value| Point {
            figure: "f".into(),
            series: series.into(),
            at,
            value,
            spread: 0.1,
            runs: 3,
            beside: [(FAILED_INSTALLS.to_owned(), 0.1)].into(),
        };
        let machine = Machine::here(std::path::Path::new("."));
        let mut measured = figures::Report::new("caches", machine, "a < b".into());
        let (name, note, axis, unit) = ("f".into(), "n".into(), "threads".into(), "per s".into());
        measured.figures = vec![Figure { name, note, axis, spacing: Axis::Doubling, unit }];
        measured.points = vec![point("x", 1, 5.0), point("x", 2, 7_654_321.0), point("y", 2, 11.0)];
        let report =
            Report { measured, costs: vec![super::super::costs::count(super::super::cache::Kind::TwoRings)] };
        let text = report.to_text();
        for expected in ["5.00 0.100 %", "7.65 M ±5 % 0.100 %", "11.00", "Counted costs"] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        let page = report.to_html();
        assert_eq!((page.matches("<circle").count(), page.contains("a &lt; b")), (3, true));
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }
}
