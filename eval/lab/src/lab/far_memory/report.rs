//! Report of the far-memory lab, as text, JSON and an HTML page.

use serde::{Deserialize, Serialize};
use std::fmt::Write;

use super::cell::Cell;
use crate::plot::{self, bars};

/// Policy to which the figures are relative.
const BASE: &str = "simple";
/// The eight policies of the paper, with its intervals (Fig. 7).
const EIGHT: [&str; 8] =
    ["simple", "swap-in-history", "random", "fifo", "u-clock", "u-nru-s:50", "u-nru-t:100ms", "u-plru"];
const OURS: &str = "adaptive";

/// Results of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The settings, as text.
    pub settings: String,
    /// Cells, ordered by program, share of local memory, and policy.
    pub cells: Vec<Cell>,
}

/// Numbers of cases in which the adaptive policy reaches its goals, over all programs and shares with swaps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of all cases.
    pub cases: usize,
    /// Cases with at most 1.10 times the swaps of the best of the eight.
    pub near_best: usize,
    /// Cases with at most as many swaps as Simple.
    pub not_above_simple: usize,
    /// Cases with at most 1.3 times the minimum number of swaps.
    pub near_optimal: usize,
}

/// Swaps of the adaptive policy, of the best of the eight and of Simple, for one program and share of local
/// memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contest {
    /// The program with its size.
    pub kernel: String,
    /// Local memory in percent.
    pub local: u32,
    /// Swaps of the adaptive policy.
    pub ours: u64,
    /// Swaps of the best of the eight policies.
    pub best: u64,
    /// Name of the best of the eight policies.
    pub best_policy: String,
    /// Swaps of Simple.
    pub simple: u64,
    /// Minimum number of swaps; zero if unknown.
    pub optimal: u64,
}

impl Contest {
    fn of(case: &[Cell]) -> Option<Self> {
        let ours = find(case, OURS)?;
        let eight: Option<Vec<&Cell>> = EIGHT.iter().map(|name| find(case, name)).collect();
        let eight = eight?;
        let best = eight.iter().min_by_key(|cell| cell.swap_ins)?;
        Some(Self {
            kernel: ours.kernel.clone(),
            local: ours.local,
            ours: ours.swap_ins,
            best: best.swap_ins,
            best_policy: best.policy.clone(),
            simple: eight[0].swap_ins,
            optimal: ours.optimal,
        })
    }

    /// Returns whether the adaptive policy has at most 1.10 times the swaps of the best of the eight.
    #[must_use]
    pub fn near_best(&self) -> bool {
        self.ours as f64 <= 1.10 * self.best as f64
    }

    /// Returns whether the adaptive policy has at most as many swaps as Simple.
    #[must_use]
    pub fn not_above_simple(&self) -> bool {
        self.ours <= self.simple
    }

    /// Returns whether the adaptive policy has at most 1.3 times the minimum number of swaps.
    #[must_use]
    pub fn near_optimal(&self) -> bool {
        self.ours as f64 <= 1.3 * self.optimal as f64
    }
}

impl Report {
    /// Returns the report as text tables.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("Far memory, {}\n", self.settings);
        for (title, table) in self.tables() {
            let _ = write!(out, "\n{title}\n{table}");
        }
        out
    }

    fn tables(&self) -> Vec<(&'static str, String)> {
        let swaps = |cell: &Cell| cell.swap_ins as f64;
        let mut tables = vec![
            ("Remote swaps relative to Simple (Figs 5 b, 7 b)", self.relative(swaps, true)),
            ("Time relative to Simple (Figs 5 a, 6, 7 a)", self.relative(Cell::total_s, false)),
            ("Share of time in clear bit / set bit / swap / compute, % (Figs 1, 2, 4)", self.shares()),
        ];
        if self.cells.iter().any(|cell| cell.clear_interval_ms.is_some()) {
            tables.push(("Mean interval between clearings, ms (Fig. 3)", self.intervals()));
        }
        if let Some(verdict) = self.verdict() {
            tables.push(("The adaptive policy against the best of the eight and Simple: swaps", verdict));
        }
        tables
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for cell in &self.cells {
            if !names.contains(&cell.policy.as_str()) {
                names.push(&cell.policy);
            }
        }
        names
    }

    /// Returns the cells of each program and share of local memory, one slice for each.
    fn cases(&self) -> impl Iterator<Item = &[Cell]> {
        self.cells.chunk_by(|a, b| a.kernel == b.kernel && a.local == b.local)
    }

    /// Returns a table with a line per case and a column per policy.
    fn grid(
        &self,
        with: impl Fn(&[Cell]) -> bool,
        extra: &str,
        text: impl Fn(&[Cell], &str) -> String,
    ) -> String {
        let names = self.names();
        let mut out = format!("{:<12} {:>5}", "", "local");
        let columns = names.iter().copied().chain((!extra.is_empty()).then_some(extra));
        columns.clone().for_each(|name| out.push_str(&format!("  {name:>15}")));
        out.push('\n');
        for case in self.cases().filter(|case| with(case)) {
            let _ = write!(out, "{:<12} {:>3} %", case[0].kernel, case[0].local);
            columns.clone().for_each(|name| out.push_str(&format!("  {:>15}", text(case, name))));
            out.push('\n');
        }
        out
    }

    fn relative(&self, of: impl Fn(&Cell) -> f64, with_optimal: bool) -> String {
        let base = |case: &[Cell]| find(case, BASE).map(&of).filter(|&base| base > 0.0);
        let value = |case: &[Cell], name: &str| {
            let base = base(case)?;
            if name == OPTIMAL {
                return Some(case[0].optimal as f64 / base);
            }
            find(case, name).map(|cell| of(cell) / base)
        };
        let with_optimal = with_optimal && self.knows_optimal();
        let extra = if with_optimal { OPTIMAL } else { "" };
        let text =
            |case: &[Cell], name: &str| value(case, name).map_or_else(String::new, |v| format!("{v:.3}"));
        let mut out = self.grid(|case| base(case).is_some() && case[0].swap_outs > 0, extra, text);
        let _ = write!(out, "{:<18}", "geometric mean");
        for name in self.names().into_iter().chain(with_optimal.then_some(OPTIMAL)) {
            let values =
                self.cases().filter(|case| case[0].swap_outs > 0).filter_map(|case| value(case, name));
            let _ = write!(
                out,
                "  {:>15}",
                geometric_mean(values).map_or_else(String::new, |mean| format!("{mean:.3}"))
            );
        }
        out.push('\n');
        out
    }

    /// Returns whether the minimum number of swaps is known, which it is not on real far memory.
    fn knows_optimal(&self) -> bool {
        self.cells.iter().any(|cell| cell.optimal > 0)
    }

    fn shares(&self) -> String {
        self.grid(
            |_| true,
            "",
            |case, name| {
                find(case, name).map_or_else(String::new, |cell| {
                    let share = |part: f64| 100.0 * part / cell.total_s();
                    let [clear, set, swap, compute] =
                        [cell.clear_s, cell.set_s, cell.swap_s, cell.compute_s].map(share);
                    format!("{clear:.0}/{set:.0}/{swap:.0}/{compute:.0}")
                })
            },
        )
    }

    fn intervals(&self) -> String {
        self.grid(
            |case| case.iter().any(|cell| cell.clear_interval_ms.is_some()),
            "",
            |case, name| {
                let interval = find(case, name).and_then(|cell| cell.clear_interval_ms);
                interval.map_or_else(String::new, |ms| format!("{ms:.1}"))
            },
        )
    }

    /// Compares the adaptive policy with the eight, case by case; `None` if one of them was not run.
    #[must_use]
    pub fn contests(&self) -> Option<Vec<Contest>> {
        let cases = self.cases().filter(|case| case[0].swap_outs > 0);
        let contests: Option<Vec<Contest>> = cases.map(Contest::of).collect();
        contests.filter(|contests| !contests.is_empty())
    }

    /// Returns the numbers of cases that reach the goals; `None` if a policy was not run.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let contests = self.contests()?;
        let count = |test: fn(&Contest) -> bool| contests.iter().filter(|contest| test(contest)).count();
        Some(Summary {
            cases: contests.len(),
            near_best: count(Contest::near_best),
            not_above_simple: count(Contest::not_above_simple),
            near_optimal: count(Contest::near_optimal),
        })
    }

    fn verdict(&self) -> Option<String> {
        let Summary { cases, near_best, not_above_simple, near_optimal } = self.summary()?;
        let mut text = format!(
            "{:<12} {:>5}  {:>10}  {:>10}  {:<15}  {:>7}  {:>9}  within 1.10  not above Simple\n",
            "", "local", "ours", "best", "of the eight", "/ best", "/ Simple"
        );
        let yes = |holds: bool| if holds { "yes" } else { "NO" };
        for contest in self.contests()? {
            let ratio = |to: u64| contest.ours as f64 / to as f64;
            let _ = writeln!(
                text,
                "{:<12} {:>3} %  {:>10}  {:>10}  {:<15}  {:>7.3}  {:>9.3}  {:>11}  {:>16}",
                contest.kernel,
                contest.local,
                contest.ours,
                contest.best,
                contest.best_policy,
                ratio(contest.best),
                ratio(contest.simple),
                yes(contest.near_best()),
                yes(contest.not_above_simple())
            );
        }
        let _ = write!(
            text,
            "\nwithin 1.10 times the best of the eight: {near_best} of {cases}\n\
             not above Simple:                        {not_above_simple} of {cases}\n"
        );
        if self.knows_optimal() {
            let _ = writeln!(text, "within 1.3 times the least possible:     {near_optimal} of {cases}");
        }
        Some(text)
    }

    /// Returns the report as an HTML page that needs no network.
    #[must_use]
    pub fn to_html(&self) -> String {
        let mut body = format!("<p>{}</p>\n", plot::escape(&self.settings));
        for case in self.cases() {
            let part = |name: &str, value: f64| (name.to_owned(), value);
            let stacks = case.iter().map(|cell| bars::Stack {
                name: cell.policy.clone(),
                parts: vec![
                    part("clear bit", cell.clear_s),
                    part("set bit", cell.set_s),
                    part("swap", cell.swap_s),
                    part("compute", cell.compute_s),
                ],
            });
            let title = format!("{}, {} % local: seconds", case[0].kernel, case[0].local);
            body.push_str(&bars::Bars { title, stacks: stacks.collect() }.render());
        }
        for (title, table) in self.tables() {
            let _ = writeln!(body, "<h2>{}</h2>\n<pre>{}</pre>", plot::escape(title), plot::escape(&table));
        }
        plot::document("Far memory: replacement policies", &body)
    }
}

const OPTIMAL: &str = "(optimal)";

fn find<'c>(case: &'c [Cell], policy: &str) -> Option<&'c Cell> {
    case.iter().find(|cell| cell.policy == policy)
}

/// Returns the geometric mean of the positive values; `None` if there is none.
fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for value in values.filter(|&value| value > 0.0) {
        sum += value.ln();
        count += 1;
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Json;

    fn cell(policy: &str, local: u32, swap_ins: u64) -> Cell {
        Cell {
            kernel: "is.s".into(),
            policy: policy.into(),
            local,
            pages: 100,
            frames: local,
            optimal: 10,
            swap_ins,
            swap_outs: swap_ins,
            write_backs: 0,
            bits_set: 0,
            bits_cleared: 0,
            clear_s: 0.0,
            set_s: 0.25,
            swap_s: 0.5,
            compute_s: 0.25,
            clear_interval_ms: (policy == "u-clock").then_some(12.5),
        }
    }

    #[test]
    fn ours_is_judged_by_the_best_of_the_eight_by_simple_and_by_the_least_possible() {
        let swaps = [20, 30, 30, 30, 30, 30, 16, 30];
        let case = |local, ours| {
            let eight = EIGHT.into_iter().zip(swaps).map(move |(name, swaps)| cell(name, local, swaps));
            eight.chain([cell(OURS, local, ours)])
        };
        let cells = case(75, 13).chain(case(50, 19)).chain(case(25, 21)).collect();
        let report = Report { settings: "a < b".into(), cells };
        let expected = Summary { cases: 3, near_best: 1, not_above_simple: 2, near_optimal: 1 };
        assert_eq!(report.summary(), Some(expected));
        let text = report.to_text();
        for expected in [
            "0.650",
            "0.950",
            "1.050",
            "0/25/50/25",
            "12.5",
            "1 of 3",
            "u-nru-t:100ms      1.188      0.950           NO               yes",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(report.to_html().contains("a &lt; b"));
        assert_eq!(serde_json::from_str::<Report>(&report.to_json()).unwrap(), report);
    }

    #[test]
    fn without_all_eight_nothing_is_judged() {
        let report =
            Report { settings: String::new(), cells: vec![cell("simple", 50, 5), cell(OURS, 50, 4)] };
        assert_eq!(report.summary(), None);
        assert!(report.to_text().contains("0.800"));
    }
}
