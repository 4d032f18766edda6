//! Results of a simulated machine, as text and as an HTML page: rates by number of processors, with a line
//! for each compared variant, and the waits of threads for cache lines. The output is reproducible: it
//! contains neither the date nor anything about the machine that runs the simulation.

use azekura_sim::{LineName, Profile};
use std::fmt::Write;

use crate::plot;

/// A figure of a simulated lab.
pub(crate) struct Chart {
    /// Description of the values, with the repeated figure of the paper.
    pub(crate) title: String,
    /// Name of the axis, which is logarithmic.
    pub(crate) axis: String,
    /// Number of decimals of the values in the table.
    pub(crate) decimals: usize,
    /// Compared variants.
    pub(crate) lines: Vec<Line>,
    /// Heading of the waits of all lines; empty for a chart without waits.
    pub(crate) waits: String,
}

/// Results of one variant.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Positions on the axis, with their values.
    pub(crate) points: Vec<(usize, f64)>,
    /// Spreads of the values over seeds; without several seeds, each is empty or the mark of a point that was
    /// not steady.
    pub(crate) spreads: Vec<String>,
    /// Remark after the last value.
    pub(crate) note: String,
    /// Waits at the last position: numbers, and the place in the source where threads waited.
    pub(crate) waits: Vec<(String, String)>,
}

impl Chart {
    /// Returns a table with a row for each variant, followed by its spreads, and a column for each position.
    fn table(&self) -> String {
        let names = self.lines.iter().map(|line| line.name.chars().count());
        let width = names.max().unwrap_or(0).max("spread".len() + 2) + 2;
        let mut out = format!("{:width$}", self.axis);
        if let Some(first) = self.lines.first() {
            for (at, _) in &first.points {
                let _ = write!(out, "{at:>10}");
            }
        }
        out.push('\n');
        for line in &self.lines {
            let _ = write!(out, "{:width$}", line.name);
            for (_, value) in &line.points {
                let _ = write!(out, "{value:>10.*}", self.decimals);
            }
            let _ = writeln!(out, "  {}", line.note);
            if line.spreads.iter().any(|spread| !spread.is_empty()) {
                let _ = write!(out, "{:width$}", "  spread");
                for spread in &line.spreads {
                    let _ = write!(out, "{spread:>10}");
                }
                out.push('\n');
            }
        }
        out.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn held_up(&self) -> String {
        let width = self.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0) + 2;
        let rows = self.lines.iter().flat_map(|line| line.waits.iter().map(move |wait| (&line.name, wait)));
        rows.map(|(name, (numbers, place))| format!("{name:width$}{numbers}  {place}\n")).collect()
    }
}

/// Returns the results as text tables.
pub(crate) fn text(profile: &Profile, settings: &str, charts: &[Chart]) -> String {
    let mut out = format!("Simulated: {}\n{settings}\n", profile.describes);
    for chart in charts {
        let _ = write!(out, "\n{}\n{}", chart.title, chart.table());
        if !chart.waits.is_empty() {
            let _ = write!(out, "\n{}\n{}", chart.waits, chart.held_up());
        }
    }
    out
}

/// Returns the results as an HTML page that needs no network.
pub(crate) fn html(title: &str, profile: &Profile, settings: &str, charts: &[Chart]) -> String {
    let mut body = format!(
        "<p>Simulated: {}</p>\n<p>{}</p>\n",
        plot::escape(&profile.describes),
        plot::escape(settings)
    );
    for chart in charts {
        let lines = chart.lines.iter().map(|line| (line.name.clone(), line.points.clone()));
        let _ = writeln!(
            body,
            "<h2>{}</h2>\n{}<pre>{}</pre>",
            plot::escape(&chart.title),
            plot::lines(&chart.title, &chart.axis, lines.collect()),
            plot::escape(&chart.table())
        );
        if !chart.waits.is_empty() {
            let (waits, held_up) = (plot::escape(&chart.waits), plot::escape(&chart.held_up()));
            let _ = writeln!(body, "<p>{waits}</p>\n<pre>{held_up}</pre>");
        }
    }
    plot::document(title, &body)
}

/// Returns the part of the settings that names the lines without cost.
pub(crate) fn without(lines: &[LineName]) -> String {
    let names: Vec<String> = lines.iter().map(|name| format!("; as if {name} cost nothing")).collect();
    names.concat()
}

/// Returns the powers of two below `most`, and `most`.
pub(crate) fn doublings(most: usize) -> Vec<usize> {
    std::iter::successors(Some(1), |&n| Some(n * 2)).take_while(|&n| n < most).chain([most]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_and_every_wait_is_in_the_text_and_on_the_page() {
        let line = |name: &str, value| Line {
            name: name.into(),
            points: vec![(1, value), (2, 2.0 * value)],
            spreads: vec!["3.1%".into(), "12.5%*".into()],
            note: "99 % found".into(),
            waits: vec![("  12.5%".into(), "a.rs:1 if a < b".into())],
        };
        let chart = Chart {
            title: "rates".into(),
            axis: "processors".into(),
            decimals: 1,
            lines: vec![line("one", 1.25), line("another", 30.0)],
            waits: "waits".into(),
        };
        let profile = Profile::t2();
        let shown = text(&profile, "settings", std::slice::from_ref(&chart));
        let spreads = "  spread        3.1%    12.5%*\n";
        for expected in
            ["processors", "1.2", "60.0  99 % found", spreads, "another    12.5%  a.rs:1 if a < b"]
        {
            assert!(shown.contains(expected), "{expected} in\n{shown}");
        }
        let page = html("t", &profile, "settings", &[chart]);
        assert_eq!((page.matches("<circle").count(), page.contains("a &lt; b")), (4, true));
        assert_eq!((doublings(1), doublings(6)), (vec![1], vec![1, 2, 4, 6]));
    }
}
