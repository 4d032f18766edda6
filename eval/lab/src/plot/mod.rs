//! Reports as line charts: rate over threads, one line per engine, one chart per workload.

pub(crate) mod bars;
mod page;
mod svg;
pub(crate) mod xy;

pub use page::{document, html};
pub use svg::escape;

use crate::report::Report;
use crate::table;
use svg::{Chart, Line};
use xy::{Curve, Xy};

/// Returns the chart of one workload's reports as an SVG document; empty without reports.
#[must_use]
pub fn svg(workload: &str, reports: &[Report]) -> String {
    let rows: Vec<&Report> = reports.iter().filter(|r| r.workload == workload).collect();
    let Some(first) = rows.first() else { return String::new() };
    let mut lines: Vec<Line> = Vec::new();
    for row in &rows {
        let name = row.series();
        let point = (row.threads, row.ops_per_s);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    for line in &mut lines {
        line.points.sort_by_key(|p| p.0);
    }
    let title = format!("{workload}: {} per second", first.unit);
    Chart { title, axis: "threads".into(), lines }.render()
}

/// Returns a line chart as an SVG document. Each line has a name and points: a position on the logarithmic
/// axis named `axis`, and a value.
#[must_use]
pub fn lines(title: &str, axis: &str, lines: Vec<(String, Vec<(usize, f64)>)>) -> String {
    let lines = lines.into_iter().map(|(name, points)| Line { name, points }).collect();
    Chart { title: title.into(), axis: axis.into(), lines }.render()
}

/// Returns a chart of curves as an SVG document. Both axes are linear. Each curve has a name and points: a
/// position on the axis named `axis`, and a value.
#[must_use]
pub fn curves(title: &str, axis: &str, curves: Vec<(String, Vec<(f64, f64)>)>) -> String {
    let curve = |(name, points): (String, Vec<(f64, f64)>)| {
        let points = points.into_iter().map(|(x, y)| (x, y, format!("{axis} {x}: {}", table::short(y))));
        Curve { name, points: points.collect() }
    };
    Xy { title: title.into(), x: axis.into(), curves: curves.into_iter().map(curve).collect() }.render()
}

/// Returns the names of the workloads, in the order of the reports.
pub(crate) fn workloads(reports: &[Report]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for report in reports {
        if !names.contains(&report.workload.as_str()) {
            names.push(&report.workload);
        }
    }
    names
}
