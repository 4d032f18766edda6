//! The study as text: the tables and figures of the paper.

use super::front::search::Latch;
use super::front::{OPERATIONS, Probes};
use super::slices::{Loss, Sliced};
use super::slowdown::Slowdown;
use super::study::{CHOSEN, Measured, Recorded, Study};
use crate::lab::steady;
use azekura_trace::analyze::{Analysis, OperationRow, WaitRow};
use std::fmt::Write;

/// Number of bars shown for each recording.
const BARS: usize = 6;
/// Characters of the longest bar.
const BAR_WIDTH: f64 = 40.0;

/// Returns the text of the whole study.
#[must_use]
pub fn render(study: &Study) -> String {
    let mut out = String::new();
    line(&mut out, &study.machine.in_words());
    line(&mut out, &study.conditions);
    pages(&mut out, study);
    for latch in latches(study) {
        for processors in processors(study) {
            throughput(&mut out, study, latch, processors);
        }
    }
    scaling(&mut out, study);
    for recorded in study.recorded.iter().filter(|r| r.point.limit.is_none()) {
        operations(&mut out, recorded);
    }
    for processors in processors(study) {
        waits(&mut out, study, processors);
    }
    slowdowns(&mut out, &study.slowdowns);
    if !study.difference.is_empty() {
        heading(&mut out, "Before and after the cure, by the analyzer");
        out.push_str(&study.difference);
    }
    findings(&mut out, study);
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn heading(out: &mut String, text: &str) {
    let _ = writeln!(out, "\n{text}\n{}", "-".repeat(text.chars().count()));
}

/// Returns the measured numbers of processors.
pub(super) fn processors(study: &Study) -> Vec<usize> {
    let mut all: Vec<usize> = study.points.iter().map(|m| m.point.processors).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the measured latches.
pub(super) fn latches(study: &Study) -> impl Iterator<Item = Latch> {
    Latch::ALL.into_iter().filter(|latch| study.points.iter().any(|m| m.point.latch == *latch))
}

/// Returns the numbers of the paper's figures of throughput with this latch.
pub(super) fn figure_of_throughput(latch: Latch) -> &'static str {
    if latch == Latch::Word { "Figs 10, 11" } else { "Figs 3, 4" }
}

fn pages(out: &mut String, study: &Study) {
    heading(out, "Pages: parts in per cent, and mean response over all points");
    line(out, &format!("{:24}{:>9}{:>11}{:>14}", "", "asked for", "table says", "response, ms"));
    for row in &study.pages {
        let _ =
            writeln!(out, "{:24}{:>9.2}{:>11.2}{:>14.3}", row.page, row.part, row.expected, row.response_ms);
    }
}

fn throughput(out: &mut String, study: &Study, latch: Latch, processors: usize) {
    let of_kind: Vec<&Measured> =
        study.points.iter().filter(|m| m.point.latch == latch && m.point.processors == processors).collect();
    let mut users: Vec<usize> = of_kind.iter().map(|m| m.point.users).collect();
    users.sort_unstable();
    users.dedup();
    let figure = figure_of_throughput(latch);
    let latch = latch.name();
    heading(out, &format!("{figure}: BT/s (CPU %) spread, latch state: {latch}, processors: {processors}"));
    let columns: String = users.iter().map(|u| format!("{:>20}", format!("{u} users"))).collect();
    line(out, &format!("{:12}{columns}", "conc_lock"));
    let mut limits: Vec<String> = Vec::new();
    for measured in &of_kind {
        let limit = measured.point.limit_name();
        if !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    for limit in limits {
        let cells = users.iter().map(|&users| {
            let cell = of_kind.iter().find(|m| m.point.users == users && m.point.limit_name() == limit);
            cell.map_or_else(String::new, |m| {
                let cell = format!("{:.0} ({:.0}) {}", m.rate, m.cpu * 100.0, steady::spread(&m.runs));
                cell.trim_end().to_owned()
            })
        });
        let cells: String = cells.map(|cell| format!("{cell:>20}")).collect();
        line(out, &format!("{limit:12}{cells}"));
    }
}

/// Writes the gain by more processors, at the heaviest load.
fn scaling(out: &mut String, study: &Study) {
    let numbers = processors(study);
    let heaviest = study.points.iter().map(|m| m.point.users).max().unwrap_or(0);
    if numbers.len() < 2 {
        return;
    }
    heading(
        out,
        &format!("By processors: BT/s with {heaviest} users, without a limit and with the best one"),
    );
    let columns: String = numbers.iter().map(|n| format!("{n:>12}{:>22}", "best")).collect();
    line(out, &format!("{:16}{columns}", "latch state"));
    for latch in latches(study) {
        let cells = numbers.iter().map(|&processors| {
            let of_kind = |m: &&Measured| {
                (m.point.latch, m.point.processors, m.point.users) == (latch, processors, heaviest)
            };
            let all: Vec<&Measured> = study.points.iter().filter(of_kind).collect();
            let unlimited = all.iter().find(|m| m.point.limit.is_none()).map_or(0.0, |m| m.rate);
            let best = all.iter().max_by(|a, b| a.rate.total_cmp(&b.rate));
            let best =
                best.map_or_else(String::new, |m| format!("{:.0} (limit {})", m.rate, m.point.limit_name()));
            format!("{unlimited:>12.0}{best:>22}")
        });
        let cells: String = cells.collect();
        line(out, &format!("{:16}{cells}", latch.name()));
    }
    line(
        out,
        "The paper, before the cure (Table 4): 406 with 8 processors, 91 with 16; with the best limit 473 \
         (8) and 485 (6).",
    );
}

/// Returns the rows of the engine's operations, in the paper's order.
pub(super) fn operation_rows(analysis: &Analysis) -> Vec<&OperationRow> {
    let of_engine = OPERATIONS.iter().filter_map(|name| analysis.operations.iter().find(|o| o.name == *name));
    of_engine.collect()
}

fn seconds(ns: u64) -> String {
    format!("{:.6}", ns as f64 / 1e9)
}

fn operations(out: &mut String, recorded: &Recorded) {
    heading(
        out,
        &format!(
            "Tables 2, 3: seconds by operation, latch state: {}, processors: {}, no limit, {} users, in \
             {:.2} s",
            recorded.point.latch.name(),
            recorded.point.processors,
            recorded.point.users,
            recorded.analysis.recorded.duration_ns as f64 / 1e9
        ),
    );
    line(
        out,
        &format!(
            "{:16}{:>12}{:>12}{:>12}{:>12}{:>12}",
            "", "elapsed", "CPU", "lock wait", "CPU in wait", "executions"
        ),
    );
    for row in operation_rows(&recorded.analysis) {
        let unknown = || "–".to_owned();
        let _ = writeln!(
            out,
            "{:16}{:>12}{:>12}{:>12}{:>12}{:>12}",
            row.name,
            seconds(row.elapsed_ns),
            row.cpu_ns.map_or_else(unknown, seconds),
            seconds(row.lock_wait_ns),
            row.cpu_while_waiting_ns.map_or_else(unknown, seconds),
            row.executions
        );
    }
    line(out, "CPU time in a wait counts as both, so CPU and lock wait may be more than elapsed.");
}

/// Returns the longest waits of the chosen operation.
pub(super) fn bars(analysis: &Analysis) -> Vec<&WaitRow> {
    let mut bars: Vec<&WaitRow> = analysis.waits.iter().filter(|w| w.operation == CHOSEN).collect();
    bars.sort_by_key(|w| std::cmp::Reverse(w.net_ns));
    bars.truncate(BARS);
    bars
}

fn waits(out: &mut String, study: &Study, processors: usize) {
    let of_kind: Vec<&Recorded> =
        study.recorded.iter().filter(|r| r.point.processors == processors).collect();
    heading(out, &format!("Figs 5, 6, 12, 13: lock wait of one {CHOSEN}, µs, processors: {processors}"));
    let longest =
        of_kind.iter().flat_map(|r| bars(&r.analysis)).map(|w| w.per_execution_ns).fold(1.0, f64::max);
    for recorded in of_kind {
        let _ = writeln!(
            out,
            "{}, conc_lock {}: {:.0} BT/s; lost events: {}; other processes: {:.0} % CPU",
            recorded.point.latch.name(),
            recorded.point.limit_name(),
            recorded.rate,
            recorded.analysis.recorded.lost,
            recorded.others * 100.0
        );
        for bar in bars(&recorded.analysis) {
            let length = (bar.per_execution_ns / longest * BAR_WIDTH).round() as usize;
            let _ =
                writeln!(out, "  {:52}{:>9.3} {}", bar.site, bar.per_execution_ns / 1e3, "█".repeat(length));
        }
    }
}

/// Formats a 95 % interval.
pub(super) fn interval(of: Option<(f64, f64)>) -> String {
    of.map_or_else(String::new, |(low, high)| format!("{:.1} to {:.1}", low * 100.0, high * 100.0))
}

/// Returns the name of the operations that a recording distinguishes.
pub(super) fn probes_name(probes: Probes) -> &'static str {
    match probes {
        Probes::Rows => "every operation on a row",
        Probes::Pages => "pages only",
    }
}

/// Writes Table 4.
pub fn slowdowns(out: &mut String, slowdowns: &[Slowdown]) {
    heading(out, "Table 4: what recording costs, at the heaviest load (interleaved pairs)");
    line(
        out,
        &format!(
            "{:16}{:>10} {:26}{:>9}{:>7}{:>9}{:>7}{:>11}{:>8}  {:16}{:>8}  {:16}{:>8}  {:16}{:>6}",
            "latch state",
            "conc_lock",
            "recorded",
            "BT/s",
            "CPU %",
            "BT/s on",
            "CPU %",
            "events/s",
            "loss %",
            "95 % interval",
            "median",
            "95 % interval",
            "CPU +%",
            "95 % interval",
            "pairs"
        ),
    );
    for row in slowdowns {
        let _ = writeln!(
            out,
            "{:16}{:>10} {:26}{:>9.0}{:>7.0}{:>9.0}{:>7.0}{:>11.0}{:>8.1}  {:16}{:>8.1}  {:16}{:>8.1}  \
             {:16}{:>6}",
            row.point.latch.name(),
            row.point.limit_name(),
            probes_name(row.probes),
            row.without.0,
            row.without.1 * 100.0,
            row.with.0,
            row.with.1 * 100.0,
            row.events,
            row.loss * 100.0,
            interval(row.interval),
            row.median * 100.0,
            interval(row.median_interval),
            row.cpu_loss * 100.0,
            interval(row.cpu_interval),
            row.pairs
        );
    }
    let lost: u64 = slowdowns.iter().map(|s| s.lost).sum();
    line(
        out,
        "median: of the pairs' losses, with the interval that their order gives: pairs in which the machine \
         changed its pace do not move it.",
    );
    line(out, "CPU +%: what recording takes of a page's processor time, the collector's included.");
    line(out, &format!("Lost events: {lost}. The paper lost 20 to 35 % of its throughput."));
}

/// Writes Table 4 as measured by slices.
pub fn sliced(out: &mut String, rows: &[Sliced]) {
    heading(
        out,
        "Table 4: what recording costs, at the heaviest load (slices of one run, weighed by their pages)",
    );
    let columns =
        ["loss %", "mean %", "pages %", "CPU +%"].map(|name| format!("{name:>8}  {:16}", "95 % interval"));
    let _ = writeln!(
        out,
        "{:16}{:26}{:>9}{:>7}{:>9}{:>7}{:>11}{}{:>7}",
        "latch state",
        "recorded",
        "pages/s",
        "CPU %",
        "on",
        "CPU %",
        "events/s",
        columns.concat(),
        "blocks"
    );
    for row in rows {
        let losses = [row.loss, row.mean, row.pages, row.cpu]
            .map(|Loss { part, interval: of }| format!("{:>8.2}  {:16}", part * 100.0, fine_interval(of)));
        let _ = writeln!(
            out,
            "{:16}{:26}{:>9.0}{:>7.0}{:>9.0}{:>7.0}{:>11.0}{}{:>7}",
            row.point.latch.name(),
            row.probes.map_or("nothing (control)", probes_name),
            row.without.0,
            row.without.1 * 100.0,
            row.with.0,
            row.with.1 * 100.0,
            row.events,
            losses.concat(),
            row.blocks
        );
    }
    let lost: u64 = rows.iter().map(|row| row.lost).sum();
    let others = rows.iter().map(|row| row.others).fold(0.0, f64::max);
    line(
        out,
        &format!(
            "Lost events: {lost}. Other programs used {:.0} % of a processor at most. The paper lost 20 to \
             35 % of its throughput.",
            others * 100.0
        ),
    );
}

/// Formats a 95 % interval in percent with two decimals.
fn fine_interval(of: Option<(f64, f64)>) -> String {
    of.map_or_else(String::new, |(low, high)| format!("{:.2} to {:.2}", low * 100.0, high * 100.0))
}

fn findings(out: &mut String, study: &Study) {
    heading(out, "What the analyzer says, no limit");
    for recorded in study.recorded.iter().filter(|r| r.point.limit.is_none()) {
        let _ = writeln!(
            out,
            "{}, processors: {}: {}",
            recorded.point.latch.name(),
            recorded.point.processors,
            recorded.analysis.verdict.sentence()
        );
    }
    for finding in &study.findings {
        let _ = writeln!(
            out,
            "{}  {}: {} is to be named; first among the waits in {} of {} recordings; verdicts: {}",
            if finding.holds { "ok    " } else { "FAILED" },
            finding.latch.name(),
            finding.expected,
            finding.first_in,
            finding.of,
            finding.verdict_in
        );
    }
}
