//! Figures of a lab as text, JSON and an HTML page: points along an axis, each with additional numbers beside
//! its value.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::machine::Machine;
use crate::plot;
use crate::plot::xy::{Curve, Xy};
use crate::table::short;

/// Value of one series at one position of a figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the figure.
    pub figure: String,
    /// Name of the line in the figure.
    pub series: String,
    /// Position along the axis.
    pub at: usize,
    /// Median of the runs.
    pub value: f64,
    /// Difference of the highest and the lowest run, divided by the median.
    pub spread: f64,
    /// Number of runs.
    pub runs: usize,
    /// Additional numbers of the median run, by name; names end in their unit.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub beside: BTreeMap<String, f64>,
}

/// Spacing of positions along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Axis {
    /// Powers of two at equal distances, such as numbers of threads.
    Doubling,
    /// Linear, such as seconds.
    Even,
}

/// Description of a figure: its values and its axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the figure, as in [`Point::figure`].
    pub name: String,
    /// The repeated figure of the paper, and explanations.
    pub note: String,
    /// Name of the axis.
    pub axis: String,
    /// Spacing of the axis.
    pub spacing: Axis,
    /// Unit of the values.
    pub unit: String,
}

/// A goal of a lab with its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// Description of the compared value, with its unit.
    pub name: String,
    /// The limit as text: `>= 2` or `<= 1.2`.
    pub wanted: String,
    /// The measured value.
    pub reached: f64,
    /// The value is within the limit.
    pub holds: bool,
    /// Figure, series and position of the measurement.
    pub at: String,
}

impl Goal {
    /// Returns a goal that is reached from `limit` upward.
    #[must_use]
    pub fn at_least(name: &str, limit: f64, reached: f64, at: String) -> Self {
        Self { name: name.into(), wanted: format!(">= {limit}"), reached, holds: reached >= limit, at }
    }

    /// Returns a goal that is reached up to `limit`.
    #[must_use]
    pub fn at_most(name: &str, limit: f64, reached: f64, at: String) -> Self {
        Self { name: name.into(), wanted: format!("<= {limit}"), reached, holds: reached <= limit, at }
    }
}

/// Results of one run of a lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Title of the HTML page.
    pub title: String,
    /// Description of the machine.
    pub machine: Machine,
    /// Creation time of the report, in UTC.
    pub date: String,
    /// The settings, as text.
    pub settings: String,
    /// Figures in the order of the report.
    pub figures: Vec<Figure>,
    /// Points of all figures.
    pub points: Vec<Point>,
    /// Goals with their results; empty if the lab has none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub goals: Vec<Goal>,
}

impl Report {
    /// Returns a report without figures, with the current time.
    #[must_use]
    pub fn new(title: &str, machine: Machine, settings: String) -> Self {
        let date = crate::machine::utc_now();
        let (figures, points, goals) = (Vec::new(), Vec::new(), Vec::new());
        Self { title: title.into(), machine, date, settings, figures, points, goals }
    }

    /// Returns the report as text with one table per figure: a line per position and series.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.text_of(|figure| self.table(figure))
    }

    /// Returns the report as text, with the tables that `table` returns.
    #[must_use]
    pub fn text_of(&self, table: impl Fn(&Figure) -> String) -> String {
        let mut out = format!("{}; {}\n{}\n", self.machine.in_words(), self.date, self.settings);
        for figure in &self.figures {
            let _ = write!(out, "\n{}: {}\n{}\n{}", figure.name, figure.unit, figure.note, table(figure));
        }
        if !self.goals.is_empty() {
            let _ = write!(out, "\nGoals\n{}", self.goals_table());
        }
        out
    }

    /// Returns a table of the goals, one line each.
    #[must_use]
    pub fn goals_table(&self) -> String {
        let head = ["reached", "goal", "wanted", "holds", "of"].map(str::to_owned).to_vec();
        let row = |goal: &Goal| {
            let holds = if goal.holds { "yes" } else { "NO" };
            vec![number(goal.reached), goal.name.clone(), goal.wanted.clone(), holds.into(), goal.at.clone()]
        };
        aligned(&[head].into_iter().chain(self.goals.iter().map(row)).collect::<Vec<_>>())
    }

    fn of<'a>(&'a self, figure: &'a str) -> impl Iterator<Item = &'a Point> {
        self.points.iter().filter(move |point| point.figure == figure)
    }

    /// Returns the table of a figure, ordered by position, then by time of measurement.
    #[must_use]
    pub fn table(&self, figure: &Figure) -> String {
        let mut points: Vec<&Point> = self.of(&figure.name).collect();
        points.sort_by_key(|point| point.at);
        let mut beside: Vec<&str> = Vec::new();
        for name in points.iter().flat_map(|point| point.beside.keys()) {
            if !beside.contains(&name.as_str()) {
                beside.push(name);
            }
        }
        let head = [&*figure.axis, "series", "value", "spread"].into_iter().chain(beside.iter().copied());
        let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
        for point in points {
            let fixed = [
                point.at.to_string(),
                point.series.clone(),
                number(point.value),
                format!("{:.0} %", point.spread * 100.0),
            ];
            let others =
                beside.iter().map(|&name| point.beside.get(name).map_or_else(String::new, |&v| number(v)));
            rows.push(fixed.into_iter().chain(others).collect());
        }
        aligned(&rows)
    }

    /// Returns the table of a figure as a grid: a line per series, a column per position. `cell` returns the
    /// text of a point.
    #[must_use]
    pub fn grid(&self, figure: &Figure, cell: impl Fn(&Point) -> String) -> String {
        let mut places: Vec<usize> = self.of(&figure.name).map(|point| point.at).collect();
        places.sort_unstable();
        places.dedup();
        let head =
            [String::new(), figure.axis.clone()].into_iter().chain(places.iter().map(usize::to_string));
        let mut rows: Vec<Vec<String>> = vec![head.collect()];
        for (series, _) in lines_of(self.of(&figure.name).map(|point| (&*point.series, 0, 0.0))) {
            let at = |&at| self.of(&figure.name).find(|point| point.series == series && point.at == at);
            let cells = places.iter().map(|place| at(place).map_or_else(String::new, &cell));
            rows.push([String::new(), series.clone()].into_iter().chain(cells).collect());
        }
        aligned(&rows)
    }

    /// Returns the report as an HTML page that needs no network.
    #[must_use]
    pub fn to_html(&self) -> String {
        self.page_of(|figure| self.table(figure), "")
    }

    /// Returns the report as an HTML page, with the tables that `table` returns, and with additional HTML at
    /// the end.
    #[must_use]
    pub fn page_of(&self, table: impl Fn(&Figure) -> String, below: &str) -> String {
        let mut body = format!(
            "<p>{}; {}</p>\n<p>{}</p>\n",
            plot::escape(&self.machine.in_words()),
            plot::escape(&self.date),
            plot::escape(&self.settings)
        );
        for figure in &self.figures {
            let _ = writeln!(
                body,
                "<h2>{}</h2>\n<p>{}</p>\n{}<pre>{}</pre>",
                plot::escape(&figure.name),
                plot::escape(&figure.note),
                self.chart(figure),
                plot::escape(&table(figure))
            );
        }
        if !self.goals.is_empty() {
            let _ = writeln!(body, "<h2>Goals</h2>\n<pre>{}</pre>", plot::escape(&self.goals_table()));
        }
        body.push_str(below);
        plot::document(&self.title, &body)
    }

    /// Returns the chart of a figure as an SVG document.
    #[must_use]
    pub fn chart(&self, figure: &Figure) -> String {
        let points = self.of(&figure.name).map(|point| (&*point.series, point.at, point.value));
        let mut lines = lines_of(points);
        lines.iter_mut().for_each(|(_, points)| points.sort_by_key(|p| p.0));
        let title = format!("{}: {}", figure.name, figure.unit);
        match figure.spacing {
            Axis::Doubling => plot::lines(&title, &figure.axis, lines),
            Axis::Even => {
                let curve = |(name, points): (String, Vec<(usize, f64)>)| Curve {
                    name,
                    points: points.into_iter().map(|(at, v)| (at as f64, v, number(v))).collect(),
                };
                let curves = lines.into_iter().map(curve).collect();
                Xy { title, x: figure.axis.clone(), curves }.render()
            }
        }
    }
}

/// Groups (series, position, value) triples into lines, in the order of their first points.
pub(super) fn lines_of<'p>(
    points: impl Iterator<Item = (&'p str, usize, f64)>,
) -> Vec<(String, Vec<(usize, f64)>)> {
    let mut lines: Vec<(String, Vec<(usize, f64)>)> = Vec::new();
    for (series, at, value) in points {
        match lines.iter_mut().find(|(name, _)| name == series) {
            Some((_, points)) => points.push((at, value)),
            None => lines.push((series.to_owned(), vec![(at, value)])),
        }
    }
    lines
}

/// Formats a number for tables.
fn number(value: f64) -> String {
    if value.abs() >= 1000.0 { short(value) } else { format!("{value:.2}") }
}

/// Formats rows as columns; the second column is left-aligned, the others right-aligned.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|c| rows.iter().map(|row| row[c].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let _ = if at == 1 { write!(line, "{cell:<width$}  ") } else { write!(line, "{cell:>width$}  ") };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Returns the run with the median rate, and the spread: (highest − lowest) / median. Sorts the runs by rate.
pub fn median<T>(runs: &mut [T], rate: impl Fn(&T) -> f64) -> Option<(&T, f64)> {
    runs.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
    let (first, last) = (runs.first()?, runs.last()?);
    let middle = &runs[runs.len() / 2];
    let spread = (rate(last) - rate(first)) / rate(middle).max(f64::MIN_POSITIVE);
    Some((middle, spread))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    fn report(spacing: Axis) -> Report {
        let point = |series: &str, at, value| Point {
            figure: "f".into(),
            series: series.into(),
            at,
            value,
            spread: 0.1,
            runs: 3,
            beside: BTreeMap::from([("p99 us".to_owned(), 12.0)]),
        };
        let mut report = Report::new("t", Machine::here(std::path::Path::new(".")), "a < b".into());
        report.figures.push(Figure {
            name: "f".into(),
            note: "n".into(),
            axis: "workers".into(),
            spacing,
            unit: "per s".into(),
        });
        report.points = vec![point("x", 1, 5.0), point("x", 2, 7_654_321.0), point("y", 2, 11.0)];
        report.points[2].beside.clear();
        report
    }

    #[test]
    fn every_point_is_in_the_table_and_on_the_page() {
        for spacing in [Axis::Doubling, Axis::Even] {
            let report = report(spacing);
            let text = report.to_text();
            for expected in ["workers", "p99 us", "7.65 M", "12.00"] {
                assert!(text.contains(expected), "{expected} in {text}");
            }
            let page = report.to_html();
            assert_eq!((page.matches("<circle").count(), page.contains("a &lt; b")), (3, true));
            assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
        }
    }

    #[test]
    fn goals_are_in_every_form_and_tell_what_does_not_hold() {
        let mut report = report(Axis::Doubling);
        assert!(!report.to_text().contains("Goals") && !report.to_json().contains("goals"));
        report.goals = vec![
            Goal::at_least("rate", 2.0, 1.75, "f; x, 1".into()),
            Goal::at_most("time", 2.0, 1.75, "f; y, 2".into()),
        ];
        assert_eq!(report.goals.iter().map(|goal| goal.holds).collect::<Vec<_>>(), [false, true]);
        let (text, page) = (report.to_text(), report.to_html());
        for expected in ["Goals", "rate", "NO", "yes", "f; y, 2"] {
            assert!(text.contains(expected) && page.contains(expected), "{expected}");
        }
        assert!(text.contains(">= 2") && page.contains("&gt;= 2"));
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn the_median_and_the_spread_are_those_of_the_rates() {
        let mut runs = [30.0, 10.0, 20.0];
        assert_eq!(median(&mut runs, |&rate| rate), Some((&20.0, 1.0)));
        assert_eq!(median(&mut [0.0; 0], |&rate| rate), None);
    }
}
