//! The lab's figures as text, JSON and a page.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

use super::costs::Costs;
use crate::lab::figures::lines_of;
use crate::machine::Machine;
use crate::plot;

/// One point of a figure: what one cache did at one place of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Which figure, as `hit-ratio 80/20`.
    pub figure: String,
    /// Which cache, with its way of reading if that differs.
    pub series: String,
    /// The place: frames, or threads, as the figure's axis says.
    pub at: usize,
    /// The median of the runs.
    pub value: f64,
    /// (Highest − lowest) over the median of the runs.
    pub spread: f64,
    /// Runs.
    pub runs: usize,
    /// Failed installs of a page, per miss (Table 2); in runs that read pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_installs: Option<f64>,
    /// Processor seconds per second and thread (Table 2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<f64>,
    /// Share of visits that found their page, where that is not the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
}

/// A figure: what its axes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name, as in [`Point::figure`].
    pub name: String,
    /// Which one of the paper it repeats, and what to know when reading it.
    pub note: String,
    /// What is along the axis: `frames` or `threads`.
    pub axis: String,
    /// What the values are.
    pub unit: String,
}

/// Everything of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// What was asked for, as text.
    pub settings: String,
    /// The figures, in order.
    pub figures: Vec<Figure>,
    /// Their points.
    pub points: Vec<Point>,
    /// What a hit and a miss cost each cache.
    pub costs: Vec<Costs>,
}

impl Report {
    /// As tables, one per figure: a line per cache, a column per place.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.machine.in_words(), self.settings);
        for figure in &self.figures {
            let _ = writeln!(out, "\n{} ({}, by {})", figure.name, figure.unit, figure.axis);
            let _ = writeln!(out, "{}", figure.note);
            out.push_str(&self.table(&figure.name));
        }
        let _ = writeln!(out, "\nCounted costs (per visit)\n{COSTS_NOTE}\n{}", self.cost_table());
        out
    }

    fn of<'a>(&'a self, figure: &'a str) -> impl Iterator<Item = &'a Point> {
        self.points.iter().filter(move |point| point.figure == figure)
    }

    fn table(&self, figure: &str) -> String {
        let (mut series, mut places): (Vec<&str>, Vec<usize>) = (Vec::new(), Vec::new());
        for point in self.of(figure) {
            if !series.contains(&point.series.as_str()) {
                series.push(&point.series);
            }
            if !places.contains(&point.at) {
                places.push(point.at);
            }
        }
        places.sort_unstable();
        let width = series.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut out = format!("{:width$}", "");
        places.iter().for_each(|at| out.push_str(&format!("  {at:>26}")));
        out.push('\n');
        for name in series {
            let _ = write!(out, "{name:width$}");
            for &at in &places {
                let cell = self.of(figure).find(|p| p.series == name && p.at == at);
                let _ = write!(out, "  {:>26}", cell.map_or_else(String::new, cell_text));
            }
            out.push('\n');
        }
        out
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

    /// As one page that needs nothing from the network.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut body = format!("<p>{}</p>\n", plot::escape(&self.settings));
        for figure in &self.figures {
            let points = self.of(&figure.name).map(|point| (&*point.series, point.at, point.value));
            let _ = writeln!(
                body,
                "<h2>{}</h2>\n<p>{}</p>\n{}<pre>{}</pre>",
                plot::escape(&figure.name),
                plot::escape(&figure.note),
                plot::lines(&figure.unit, &figure.axis, lines_of(points)),
                plot::escape(&self.table(&figure.name))
            );
        }
        let _ = writeln!(
            body,
            "<h2>Counted costs</h2>\n<p>{}</p>\n<pre>{}</pre>",
            plot::escape(COSTS_NOTE),
            plot::escape(&self.cost_table())
        );
        plot::document("Nb-GCLOCK and its rivals", &body)
    }
}

const COSTS_NOTE: &str = "Of a page that is hot, and of one that is new to a full cache: atomic read-modify-writes, writes to lines that threads share \
     (these, and plain stores), system calls. Under a lock, what the policy writes to its lists is not counted, only lock and frame.";

fn cell_text(point: &Point) -> String {
    let mut text = if point.value < 1000.0 {
        format!("{:.2}", point.value)
    } else {
        format!("{} ±{:.0} %", crate::table::short(point.value), point.spread * 50.0)
    };
    if let Some(failed) = point.failed_installs {
        let _ = write!(text, " {:.3} %", failed * 100.0);
    }
    if let Some(cpu) = point.cpu_share {
        let _ = write!(text, " cpu {:.0} %", cpu * 100.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    #[test]
    fn every_point_is_in_the_table_and_on_the_page() {
        let point = |series: &str, at, value| Point {
            figure: "f".into(),
            series: series.into(),
            at,
            value,
            spread: 0.1,
            runs: 3,
            failed_installs: Some(0.001),
            cpu_share: None,
            hit_ratio: None,
        };
        let report = Report {
            machine: Machine::here(std::path::Path::new(".")),
            settings: "a < b".into(),
            figures: vec![Figure {
                name: "f".into(),
                note: "n".into(),
                axis: "threads".into(),
                unit: "per s".into(),
            }],
            costs: vec![super::super::costs::count(super::super::cache::Kind::TwoRings)],
            points: vec![point("x", 1, 5.0), point("x", 2, 7_654_321.0), point("y", 2, 11.0)],
        };
        let text = report.to_text();
        for expected in ["5.00 0.100 %", "7.65 M ±5 % 0.100 %", "11.00"] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        let page = report.to_html();
        assert_eq!((page.matches("<circle").count(), page.contains("a &lt; b")), (3, true));
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }
}
