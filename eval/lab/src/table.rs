//! Reports as text: one table per workload, with ratios to the best peer.

use crate::report::Report;
use std::fmt::Write;

/// Name of this project's engine.
pub const OURS: &str = "azekura";

/// Returns whether an engine is neither this project's nor a variant of it (such as `azekura-serial`).
#[must_use]
pub fn is_peer(engine: &str) -> bool {
    engine.strip_prefix(OURS).is_none_or(|rest| !rest.is_empty() && !rest.starts_with('-'))
}

/// Returns one table per workload, in the order of the reports. The last column is the rate of a row, divided
/// by that of the best peer with the same number of threads. Pipelined rows are compared with the best
/// blocking or pipelined peer. Without a peer, variants of this project's engine take its place.
#[must_use]
pub fn render(reports: &[Report]) -> String {
    let mut text = String::new();
    for workload in crate::plot::workloads(reports) {
        let rows: Vec<&Report> = reports.iter().filter(|r| r.workload == workload).collect();
        if !text.is_empty() {
            text.push('\n');
        }
        table(&mut text, workload, &rows);
    }
    text
}

fn table(text: &mut String, workload: &str, rows: &[&Report]) {
    let first = rows[0];
    let _ = writeln!(
        text,
        "{workload}: {} per second; {} records, values of {} bytes; median of {} run{}",
        first.unit,
        first.records,
        first.value_bytes,
        first.runs,
        if first.runs == 1 { "" } else { "s" }
    );
    let width = rows.iter().map(|r| r.series().len()).max().unwrap_or(0).max("engine".len());
    let _ = writeln!(
        text,
        "{:>7}  {:<width$}  {:>9}  {:>6}  {:>9}  {:>9}  {:>9}  {:>7}  {:>12}",
        "threads", "engine", "per s", "spread", "p50 us", "p99 us", "p99.9 us", "retries", "of best peer"
    );
    for row in rows {
        let ratio =
            best_peer(rows, row).map_or_else(String::new, |best| format!("{:.2}", row.ops_per_s / best));
        let _ = writeln!(
            text,
            "{:>7}  {:<width$}  {:>9}  {:>6}  {:>9}  {:>9}  {:>9}  {:>7}  {ratio:>12}",
            row.threads,
            row.series(),
            short(row.ops_per_s),
            format!("{:.0} %", row.spread * 100.0),
            micros(row.p50_us),
            micros(row.p99_us),
            micros(row.p999_us),
            row.retries,
        );
    }
}

/// Returns the highest rate of a peer, or of a variant of this project's engine, with the row's number of
/// threads.
fn best_peer(rows: &[&Report], row: &Report) -> Option<f64> {
    let best = |is_rival: fn(&str) -> bool| {
        rows.iter()
            .filter(|r| r.threads == row.threads && is_rival(&r.engine))
            .map(|r| r.ops_per_s)
            .filter(|&rate| rate > 0.0)
            .max_by(f64::total_cmp)
    };
    best(is_peer).or_else(|| best(|engine| engine != OURS))
}

/// Formats a rate with three or four digits and `k` or `M`.
#[must_use]
pub fn short(rate: f64) -> String {
    match rate {
        r if r >= 1e7 => format!("{:.1} M", r / 1e6),
        r if r >= 1e6 => format!("{:.2} M", r / 1e6),
        r if r >= 1e4 => format!("{:.1} k", r / 1e3),
        r if r >= 1e3 => format!("{:.2} k", r / 1e3),
        r => format!("{r:.0}"),
    }
}

fn micros(us: f64) -> String {
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn ratios_are_to_the_best_peer_at_the_same_number_of_threads() {
        let reports =
            [sample("azekura", 1, 300.0), sample("a", 1, 100.0), sample("b", 1, 200.0), sample("b", 2, 50.0)];
        let text = render(&reports);
        let ratio = |line: usize| {
            text.lines().nth(line + 2).and_then(|l| l.split_whitespace().last()).map(str::to_owned)
        };
        assert_eq!(
            (0..4).map(|i| ratio(i).unwrap()).collect::<Vec<_>>(),
            ["1.50", "0.50", "1.00", "1.00"],
            "{text}"
        );
    }

    #[test]
    fn ours_with_other_settings_is_a_rival_only_where_there_is_no_peer() {
        let variants = [sample("azekura", 1, 300.0), sample("azekura-serial", 1, 200.0)];
        assert!(render(&variants).lines().nth(2).unwrap().ends_with("1.50"));
        let with_peer = [variants[0].clone(), variants[1].clone(), sample("azek", 1, 100.0)];
        assert!(render(&with_peer).lines().nth(2).unwrap().ends_with("3.00"));
        assert!(is_peer("azekurae") && !is_peer(OURS) && !is_peer("azekura-bulk"));
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let text = render(&[sample("azekura", 1, 300.0)]);
        assert!(text.lines().nth(2).unwrap().ends_with("0              "), "{text:?}");
    }

    #[test]
    fn rates_are_short() {
        let shown: Vec<_> = [7.4, 1_234.0, 43_210.0, 1_234_567.0, 29_900_000.0].map(short).into();
        assert_eq!(shown, ["7", "1.23 k", "43.2 k", "1.23 M", "29.9 M"]);
    }
}
