//! Formats the results as a Markdown document.

use super::Results;
use super::standing::{Cell, Line, lines};
use azekura_lab::table::short;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The line before the table of ratios in a document.
pub(super) const BEGIN: &str = "<!-- table of ratios, by `azekura-compare table --summary` -->";
/// The line after the table of ratios in a document.
pub(super) const END: &str = "<!-- end of the table of ratios -->";

/// Formats the document: ratios, then each row in full with the slower rows first, then all engines.
pub(super) fn render(results: &Results) -> String {
    let lines = lines(&results.cells);
    let mut text = String::from("# Azekura beside its peers\n\n");
    text.push_str(&conditions(results));
    let _ = writeln!(text, "\n## Ratios\n\n{}", ratios(&lines));
    let (behind, ahead): (Vec<&Line<'_>>, Vec<&Line<'_>>) = lines.iter().partition(|line| line.is_behind());
    let _ = writeln!(text, "## Rows in which Azekura is behind\n\n{}", in_full(&behind));
    let _ = writeln!(text, "## Rows in which Azekura is ahead\n\n{}", in_full(&ahead));
    let _ = write!(text, "## All engines\n\n{}", all_engines(&results.cells));
    for failure in &results.failures {
        let _ = write!(text, "\nLeft out: {failure}\n");
    }
    text
}

/// Replaces the table of ratios between the marks of a document; `None` if it has no marks.
pub(super) fn replace_summary(document: &str, results: &Results) -> Option<String> {
    let (before, rest) = document.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let table = ratios(&lines(&results.cells));
    Some(format!("{before}{BEGIN}\n\n{}\n{table}\n{END}{after}", conditions(results)))
}

/// Formats the machine, the revision and the length of the runs.
fn conditions(results: &Results) -> String {
    let Results { machine, date, revision, quick, seconds, runs, .. } = results;
    let memory = machine.memory_bytes.map_or_else(String::new, |bytes| format!(", {} GiB", bytes >> 30));
    let files = machine.file_system.as_deref().unwrap_or("an unknown file system");
    let revision = revision.as_deref().map_or_else(String::new, |name| format!(", commit `{name}`"));
    let size = if *quick { "the quick sizes" } else { "the full sizes" };
    format!(
        "{}{memory}, {files}; {date}{revision}.\n{seconds} s for each cell, median of {runs} rounds, {size}.\
         \n",
        machine.in_words()
    )
}

/// Formats one line per row: Azekura's rate divided by that of the best peer for each number of threads,
/// lowest first.
fn ratios(lines: &[Line<'_>]) -> String {
    let mut rows: Vec<(String, BTreeMap<usize, &Line<'_>>)> = Vec::new();
    for line in lines.iter().filter(|line| line.best.is_some()) {
        // The lines are sorted by ratio, so the rows are sorted by their lowest ratio.
        let title = line.title();
        match rows.iter_mut().find(|row| row.0 == title) {
            Some(row) => row.1.insert(line.ours.threads, line),
            None => {
                rows.push((title, BTreeMap::from([(line.ours.threads, line)])));
                None
            }
        };
    }
    let mut threads: Vec<usize> = lines.iter().map(|line| line.ours.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    let mut text = String::from("| row |");
    for n in &threads {
        let _ = write!(text, " {n} thread{} |", if *n == 1 { "" } else { "s" });
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(threads.len()));
    for (title, cells) in &rows {
        let _ = write!(text, "| {title} |");
        for n in &threads {
            let cell = cells.get(n).and_then(|line| Some((line.ratio()?, line.best?)));
            match cell {
                Some((ratio, best)) if ratio < 1.0 => {
                    let _ = write!(text, " **{}** {} |", two_decimals(ratio), best.engine);
                }
                Some((ratio, best)) => {
                    let _ = write!(text, " {ratio:.2} {} |", best.engine);
                }
                None => text.push_str(" |"),
            }
        }
        text.push('\n');
    }
    text
}

/// Formats all measurements of Azekura and of the best peer.
fn in_full(lines: &[&Line<'_>]) -> String {
    let mut text = String::from(
        "| row | threads | azekura | best peer | ratio | spread | p50 | p99 | p99.9 | CPU µs per operation \
         | written per byte | read per byte | peak MiB | disk MiB |\n",
    );
    let _ = writeln!(text, "|{}", "---|".repeat(14));
    for line in lines {
        let ours = line.ours;
        let pair = |show: &dyn Fn(&Cell) -> String| match line.best {
            Some(best) => format!("{} / {}", show(ours), show(best)),
            None => show(ours),
        };
        let best =
            line.best.map_or_else(String::new, |best| format!("{} {}", short(best.rate()), best.engine));
        let ratio = line.ratio().map_or_else(String::new, |ratio| format!("**{}**", two_decimals(ratio)));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {best} | {ratio} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            line.title(),
            ours.threads,
            short(ours.rate()),
            pair(&|cell| format!("{:.0} %", cell.spread() * 100.0)),
            pair(&|cell| time(cell.median.p50)),
            pair(&|cell| time(cell.median.p99)),
            pair(&|cell| time(cell.median.p999)),
            pair(&|cell| digits(cell.median.usage.cpu_seconds * 1e6 / cell.median.ops.max(1) as f64)),
            pair(&|cell| per_byte(cell.median.usage.written_bytes, cell.median.user_written)),
            pair(&|cell| per_byte(cell.median.usage.read_bytes, cell.median.user_read)),
            pair(&|cell| (cell.median.usage.peak_bytes >> 20).to_string()),
            pair(&|cell| (cell.median.disk_bytes >> 20).to_string()),
        );
    }
    text
}

/// Formats the rate of each engine.
fn all_engines(cells: &[Cell]) -> String {
    let mut engines: Vec<&str> = Vec::new();
    let mut rows: Vec<(&str, usize)> = Vec::new();
    for cell in cells {
        if !engines.contains(&cell.engine.as_str()) {
            engines.push(&cell.engine);
        }
        if !rows.contains(&(&cell.row, cell.threads)) {
            rows.push((&cell.row, cell.threads));
        }
    }
    let mut text =
        format!("| row | threads | {} |\n|{}\n", engines.join(" | "), "---|".repeat(engines.len() + 2));
    for (row, threads) in rows {
        let _ = write!(text, "| {row} | {threads} |");
        for engine in &engines {
            let cell = cells.iter().find(|c| c.row == row && c.threads == threads && c.engine == *engine);
            let _ = write!(text, " {} |", cell.map_or_else(String::new, |cell| short(cell.rate())));
        }
        text.push('\n');
    }
    text
}

/// Formats a time in microseconds, with its unit.
fn time(us: f64) -> String {
    if us < 1_000.0 { format!("{} µs", digits(us)) } else { format!("{} ms", digits(us / 1e3)) }
}

/// Formats a ratio with two decimals; with more if it is small.
fn two_decimals(ratio: f64) -> String {
    if ratio < 0.095 { digits(ratio) } else { format!("{ratio:.2}") }
}

/// Formats a number with two or three digits.
fn digits(value: f64) -> String {
    match value {
        v if v < 0.0005 => "0".to_owned(),
        v if v < 0.095 => format!("{v:.3}"),
        v if v < 0.995 => format!("{v:.2}"),
        v if v < 99.5 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Formats the device's bytes per byte of keys and values; a dash if there were none of these.
fn per_byte(device: u64, user: u64) -> String {
    if user == 0 { "–".to_owned() } else { digits(device as f64 / user as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::cell::Sample;
    use crate::table::rows::{Case, Work};
    use azekura_lab::machine::Machine;
    use azekura_lab::usage::Usage;

    fn sample(case: usize, ops: u64) -> Sample {
        Sample {
            case,
            unit: "reads".into(),
            ops,
            seconds: 2.0,
            p50: 1.5,
            p99: 20.0,
            p999: 3_000.0,
            user_read: 1_000,
            user_written: 0,
            usage: Usage { cpu_seconds: 3.0, read_bytes: 500, written_bytes: 9, peak_bytes: 7 << 20 },
            disk_bytes: 5 << 20,
        }
    }

    /// Returns three rows: Azekura is ahead in `fast`, behind in `slow` at 8 threads, and alone in `alone`.
    fn results() -> Results {
        let case = |row: &str, threads| Case { row: row.into(), threads, work: Work::Tpcc { divisor: 1 } };
        let cases = [case("fast", 1), case("slow", 1), case("slow", 8), case("alone", 1)];
        // For each engine: the operations of each case in three rounds of 2 seconds.
        let rounds = |ops: [[u64; 3]; 4], has: usize| -> Vec<Vec<Sample>> {
            (0..3).map(|round| (0..has).map(|at| sample(at, ops[at][round])).collect()).collect()
        };
        let ours = [[900, 1_000, 1_100], [300, 300, 300], [400, 500, 450], [7, 7, 7]];
        let first = [[400, 500, 450], [200, 250, 210], [1_000, 900, 1_100], [0; 3]];
        let second = [[100, 100, 100], [290, 290, 290], [10, 10, 10], [0; 3]];
        let variant = [[300, 300, 300], [0; 3], [0; 3], [0; 3]];
        let mut cells = Vec::new();
        cells.extend(Cell::of("azekura", &cases, &rounds(ours, 4)));
        cells.extend(Cell::of("azekura-snapshot", &cases, &rounds(variant, 1)));
        cells.extend(Cell::of("first", &cases, &rounds(first, 3)));
        cells.extend(Cell::of("second", &cases, &rounds(second, 3)));
        Results {
            machine: Machine::here(std::path::Path::new("/")),
            date: "2026-01-01T00:00:00Z".into(),
            revision: Some("abc".into()),
            quick: true,
            seconds: 2.0,
            runs: 3,
            cells,
            failures: vec!["third, reads: broke".into()],
        }
    }

    #[test]
    fn the_lowest_ratio_comes_first_and_each_is_to_the_best_peer_of_its_cell() {
        let results = results();
        let shown: Vec<_> = lines(&results.cells)
            .iter()
            .map(|line| {
                let ratio = line.ratio().map(|ratio| format!("{ratio:.3}"));
                (line.title(), line.ours.threads, ratio, line.best.map(|best| best.engine.clone()))
            })
            .collect();
        let line = |title: &str, threads, ratio: &str, best: &str| {
            (title.to_owned(), threads, Some(ratio.to_owned()), Some(best.to_owned()))
        };
        let expected = [
            line("slow", 8, "0.450", "first"),
            line("fast (snapshot)", 1, "0.667", "first"),
            line("slow", 1, "1.034", "second"),
            line("fast", 1, "2.222", "first"),
            ("alone".to_owned(), 1, None, None),
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_median_run_counts_and_the_spread_is_over_it() {
        let results = results();
        let ours = &results.cells[0];
        assert!((ours.rate() - 500.0).abs() < 1e-9, "1,000 in 2 seconds: {ours:?}");
        assert!((ours.spread() - 0.2).abs() < 1e-9, "{ours:?}");
    }

    #[test]
    fn rows_behind_come_before_rows_ahead_with_all_figures() {
        let text = render(&results());
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
        assert!(at("| slow | 1.03 second | **0.45** first |") < at("## Rows in which Azekura is behind"));
        let behind = at("## Rows in which Azekura is behind");
        let ahead = at("## Rows in which Azekura is ahead");
        let full = "| slow | 8 | 225 | 500 first | **0.45** | 22 % / 20 % | 1.5 µs / 1.5 µs \
                    | 20.0 µs / 20.0 µs | 3.0 ms / 3.0 ms \
                    | 6667 / 3000 | – / – | 0.50 / 0.50 | 7 / 7 | 5 / 5 |";
        assert!((behind..ahead).contains(&at(full)));
        assert!((behind..ahead).contains(&at("| fast (snapshot) | 1 | 150 |")));
        assert!(at("| fast | 1 | 500 | 225 first | **2.22** |") > ahead);
        assert!(at("| slow | 8 | 225 |  | 500 | 5 |") > at("## All engines"), "{text}");
        assert!(text.contains("Left out: third"));
    }

    #[test]
    fn the_table_of_ratios_has_a_line_per_row_and_replaces_the_one_before() {
        let table = "| row | 1 thread | 8 threads |\n|---|---|---|\n| slow | 1.03 second | **0.45** first |\n\
                     | fast (snapshot) | **0.67** first | |\n| fast | 2.22 first | |\n";
        assert_eq!(ratios(&lines(&results().cells)), table);
        let document = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = replace_summary(&document, &results()).unwrap();
        assert!(new.starts_with("before\n") && new.ends_with("\nafter\n") && !new.contains("old"), "{new}");
        assert!(new.contains(table), "{new}");
        assert_eq!(replace_summary(&new, &results()).as_deref(), Some(new.as_str()), "again the same");
        assert_eq!(replace_summary("no marks", &results()), None);
    }

    #[test]
    fn figures_have_two_or_three_digits() {
        let shown = [0.0001, 0.0123, 0.456, 7.89, 12.3, 456.7].map(digits);
        assert_eq!(shown, ["0", "0.012", "0.46", "7.9", "12.3", "457"]);
        assert_eq!([0.0432, 0.432, 43.2].map(two_decimals), ["0.043", "0.43", "43.20"]);
        assert_eq!([12.3, 12_345.0].map(time), ["12.3 µs", "12.3 ms"]);
        assert_eq!([per_byte(5, 10), per_byte(5, 0)], ["0.50", "–"]);
    }
}
