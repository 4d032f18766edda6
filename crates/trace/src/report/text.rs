//! The report for a terminal.

use super::diff::Diff;
use super::significance::rule;
use super::table::{Table, change, grouped, known, number, percent, time};
use crate::analyze::{Analysis, DamageRow, OperationRow, Preemption, Recorded, StackRow, Verdict};
use std::fmt::Write;

/// Returns the whole report.
pub(super) fn text(analysis: &Analysis, top: usize) -> String {
    let mut out = String::new();
    head(analysis, &mut out);
    operations(analysis, top, &mut out);
    waits(analysis, top, &mut out);
    call_paths(analysis, &mut out);
    sites(analysis, top, &mut out);
    spins(analysis, top, &mut out);
    faults(analysis, top, &mut out);
    blocked(analysis, top, &mut out);
    blame(analysis, top, &mut out);
    what_if(analysis, top, &mut out);
    open(analysis, &mut out);
    trust(analysis, &mut out);
    out
}

fn title(out: &mut String, title: &str) {
    let _ = writeln!(out, "\n{title}");
}

fn head(analysis: &Analysis, out: &mut String) {
    let r = &analysis.recorded;
    let label = if r.label.is_empty() { String::new() } else { format!("{}: ", r.label) };
    let _ = writeln!(
        out,
        "{label}{} recorded, {} threads, {} processors, {} events",
        time(r.duration_ns as f64),
        r.threads,
        r.processors,
        grouped(r.events as i64)
    );
    let about = if analysis.operation.is_empty() { "" } else { " of " };
    let _ = writeln!(out, "Bottleneck{about}{}: {}", analysis.operation, analysis.verdict.sentence());
    if let Some(sentence) = Verdict::waits_sentence(analysis) {
        let _ = writeln!(out, "  Besides: {sentence}");
    }
}

fn operations(analysis: &Analysis, top: usize, out: &mut String) {
    title(out, "Where the time of each operation went (sums over its executions)");
    let head = [
        "operation",
        "executions",
        "elapsed",
        "CPU",
        "lock wait",
        "I/O wait",
        "idle",
        "other",
        "preempted",
        "CPU in wait",
        "mean",
        "p99",
    ];
    let mut table = Table::new(1, &head);
    for row in analysis.operations.iter().take(top).chain([&analysis.total]) {
        table.row(operation(row));
    }
    table.write(out);
    out.push_str(
        "  elapsed = CPU + lock wait + I/O wait + idle + other - CPU in wait: a thread that spins both waits \
         and uses CPU.\n  Inner operations are part of the outer; (all) has the outermost ones. Other: off \
         the processor, no probe says why; of it, preempted: another thread had the processor.\n",
    );
}

fn operation(row: &OperationRow) -> Vec<String> {
    let ns = |ns: u64| time(ns as f64);
    vec![
        row.name.clone(),
        grouped(row.executions as i64),
        ns(row.elapsed_ns),
        known(row.cpu_ns),
        ns(row.lock_wait_ns),
        ns(row.io_wait_ns),
        ns(row.idle_wait_ns),
        known(row.other_ns),
        known(row.preempted_ns),
        known(row.cpu_while_waiting_ns),
        time(row.elapsed_ns as f64 / row.executions.max(1) as f64),
        ns(row.p99_ns),
    ]
}

fn waits(analysis: &Analysis, top: usize, out: &mut String) {
    let head = ["site", "kind", "wait per execution", "of elapsed", "waits", "mean", "longest", "CPU burnt"];
    let mut table = Table::new(2, &head);
    let elapsed = analysis.chosen().map_or(0, |o| o.elapsed_ns).max(1) as f64;
    for row in analysis.waits.iter().filter(|w| w.operation == analysis.operation).take(top) {
        table.row(vec![
            row.site.clone(),
            row.kind.map_or("", |k| k.name()).into(),
            time(row.per_execution_ns),
            percent(row.net_ns as f64 / elapsed),
            grouped(row.count as i64),
            time(row.gross_ns as f64 / row.count.max(1) as f64),
            time(row.longest_ns as f64),
            known(row.cpu_ns),
        ]);
    }
    if !table.is_empty() {
        title(out, &format!("What one execution of {} waits for", analysis.operation));
        table.write(out);
    }
}

/// Appends the call stacks of the operation's longest waits; of all operations' if this operation has none.
fn call_paths(analysis: &Analysis, out: &mut String) {
    const SITES: usize = 3;
    const STACKS: usize = 4;
    let mut of_row: Vec<_> = analysis.waits.iter().filter(|w| w.operation == analysis.operation).collect();
    of_row.sort_by_key(|row| std::cmp::Reverse(row.net_ns));
    let mut longest: Vec<(&str, u64, &[StackRow])> =
        of_row.iter().take(SITES).map(|row| (&*row.site, row.count, &*row.stacks)).collect();
    if longest.iter().all(|(_, _, stacks)| stacks.is_empty()) {
        longest =
            analysis.sites.iter().take(SITES).map(|row| (&*row.label, row.count, &*row.stacks)).collect();
    }
    longest.retain(|(_, _, stacks)| !stacks.is_empty());
    if longest.is_empty() {
        return;
    }
    title(
        out,
        "Call paths of the longest waits (the waiting function first; shares of the sampled waits' time)",
    );
    for (site, count, stacks) in longest {
        let sampled: u64 = stacks.iter().map(|stack| stack.count).sum();
        let (sampled, count) = (grouped(sampled as i64), grouped(count as i64));
        let _ = writeln!(out, "  {site}: {sampled} of {count} waits");
        for stack in stacks.iter().take(STACKS) {
            let _ = writeln!(out, "    {:>7} {}", percent(stack.share), path(stack));
        }
        let rest: f64 = stacks.iter().skip(STACKS).map(|stack| stack.share).sum();
        if stacks.len() > STACKS {
            let _ = writeln!(out, "    {:>7} (others)", percent(rest));
        }
    }
    if analysis.recorded.stacks_are_guesses {
        out.push_str(
            "  The kernel recorded words of the waiters' memory that follow call instructions: frames may be \
             missing or false.\n",
        );
    }
}

/// Returns a stack as one line. Equal frames in a row, of a recursion, are written once, with their number.
fn path(stack: &StackRow) -> String {
    if stack.frames.is_empty() {
        return "(others)".into();
    }
    let run = |run: &[String]| match run.len() {
        1 => run[0].clone(),
        count => format!("{} x{count}", run[0]),
    };
    stack.frames.chunk_by(|a, b| a == b).map(run).collect::<Vec<_>>().join(" < ")
}

fn sites(analysis: &Analysis, top: usize, out: &mut String) {
    let head =
        ["site", "kind", "waits", "net wait", "gross wait", "CPU burnt", "instances", "worst instance"];
    let mut table = Table::new(2, &head);
    for row in analysis.sites.iter().take(top) {
        let worst = row.worst.first().map_or_else(String::new, |w| {
            format!("{:#x}: {}", w.object, percent(w.net_ns as f64 / row.net_ns.max(1) as f64))
        });
        table.row(vec![
            row.label.clone(),
            row.kind.map_or("", |k| k.name()).into(),
            grouped(row.count as i64),
            time(row.net_ns as f64),
            time(row.gross_ns as f64),
            known(row.cpu_ns),
            grouped(row.instances as i64),
            worst,
        ]);
    }
    if !table.is_empty() {
        title(out, "All waits, by site (net: without the waits inside them, so that nothing counts twice)");
        table.write(out);
    }
}

fn spins(analysis: &Analysis, top: usize, out: &mut String) {
    let mut table = Table::new(1, &["site", "samples", "of all CPU time"]);
    for row in analysis.spins.iter().take(top) {
        table.row(vec![row.site.clone(), grouped(row.samples as i64), percent(row.share)]);
    }
    if !table.is_empty() {
        title(out, "Spin loops, by samples of the program counter");
        table.write(out);
    }
}

fn faults(analysis: &Analysis, top: usize, out: &mut String) {
    let mut table = Table::new(1, &["site", "faults"]);
    for row in analysis.faults.iter().take(top) {
        table.row(vec![row.site.clone(), grouped(row.count as i64)]);
    }
    if !table.is_empty() {
        title(out, "Page faults that waited for a device (mapped files, swapped memory)");
        table.write(out);
    }
}

fn blocked(analysis: &Analysis, top: usize, out: &mut String) {
    let mut table = Table::new(1, &["site", "samples", "of the threads' time"]);
    for row in analysis.blocked.iter().take(top) {
        table.row(vec![row.site.clone(), grouped(row.samples as i64), percent(row.share)]);
    }
    if !table.is_empty() {
        title(out, &format!("Waits outside of probes, by samples of the threads of {}", analysis.operation));
        table.write(out);
    }
}

fn blame(analysis: &Analysis, top: usize, out: &mut String) {
    let head = [
        "waiter",
        "site",
        "holder",
        "waits",
        "wait",
        "holder ran",
        "holder waited",
        "holder off CPU",
        "preempted",
        "handover",
        "via",
    ];
    let mut table = Table::new(3, &head);
    for row in analysis.blame.iter().take(top) {
        let part = |ns: u64| percent(ns as f64 / row.wait_ns.max(1) as f64);
        let holder_known = row.holder.is_some();
        let part = |ns: u64| if holder_known { part(ns) } else { "-".into() };
        table.row(vec![
            row.operation.clone(),
            row.site.clone(),
            row.holder.clone().unwrap_or_else(|| "unknown".into()),
            grouped(row.count as i64),
            time(row.wait_ns as f64),
            part(row.holder_ran_ns),
            part(row.holder_waited_ns),
            part(row.holder_off_ns),
            row.holder_preempted_ns.map_or_else(|| "-".into(), part),
            part(row.handover_ns),
            row.via.clone().unwrap_or_default(),
        ]);
    }
    if !table.is_empty() {
        title(out, "Waits by holder, and the holder's state meanwhile");
        table.write(out);
    }
}

fn what_if(analysis: &Analysis, top: usize, out: &mut String) {
    let what_if = &analysis.what_if;
    if what_if.throughput_per_second == 0.0 {
        return;
    }
    title(
        out,
        &format!(
            "What if a lock cost nothing ({}: {} per second on {} threads; the processors allow {})",
            analysis.operation,
            number(what_if.throughput_per_second),
            what_if.threads,
            what_if.cpu_ceiling_per_second.map_or_else(|| "-".into(), number),
        ),
    );
    let mut table =
        Table::new(1, &["site", "in use", "allows at most", "without it", "gain", "then limited by"]);
    for row in what_if.locks.iter().take(top) {
        table.row(vec![
            row.site.clone(),
            format!("{}{}", if row.is_inferred { "~ " } else { "" }, percent(row.utilisation)),
            row.ceiling_per_second.map_or_else(|| "-".into(), number),
            number(row.if_free_per_second),
            change(row.gain),
            row.then_limited_by.clone(),
        ]);
    }
    if table.is_empty() {
        out.push_str("  It waited for no lock.\n");
    } else {
        table.write(out);
        if what_if.locks.iter().any(|l| l.is_inferred) {
            out.push_str("  ~ inferred from waits: no hold of that lock was recorded.\n");
        }
    }
}

fn open(analysis: &Analysis, out: &mut String) {
    if analysis.open.is_empty() {
        return;
    }
    title(out, "Still going on when the recording ended (in no other table)");
    let mut table = Table::new(3, &["thread", "operation", "waiting at", "object", "so far"]);
    for row in &analysis.open {
        table.row(vec![
            row.thread.to_string(),
            row.operation.clone(),
            row.site.clone().unwrap_or_default(),
            if row.object == 0 { String::new() } else { format!("{:#x}", row.object) },
            time(row.so_far_ns as f64),
        ]);
    }
    table.write(out);
}

/// Appends facts about the reliability of the result: losses, sources, and the cost of recording.
fn trust(analysis: &Analysis, out: &mut String) {
    title(out, "How far to trust this");
    let r = &analysis.recorded;
    losses(r, out);
    timed_sampled(&analysis.operations, out);
    let sources = [
        (r.cpu_by_rseq, "by the kernel's sign of a switch (rseq)"),
        (r.cpu_by_thread_clock, "by the thread clock at each event"),
        (r.cpu_by_switches, "by the kernel's records of switches"),
        (r.cpu_unknown, "unknown"),
    ];
    let parts: Vec<_> =
        sources.iter().filter(|(n, _)| *n > 0).map(|(n, how)| format!("{n} threads {how}")).collect();
    if !parts.is_empty() {
        let _ = writeln!(out, "  CPU time: {}; clock: {}.", parts.join(", "), r.clock);
    }
    if r.interpolated_segments > 0 {
        let n = grouped(r.interpolated_segments as i64);
        let _ = writeln!(out, "  CPU time interpolated in {n} stretches between two switches.");
    }
    preemption(&r.switches, out);
    let _ = writeln!(
        out,
        "  CPU: process {}, recorded threads {}{}.",
        time(r.process_cpu_ns as f64),
        time(r.traced_cpu_ns as f64),
        [(analysis.cpu_utilisation, "by it"), (analysis.machine_utilisation, "in all")]
            .into_iter()
            .filter_map(|(used, by)| Some(format!("; processors {} busy {by}", percent(used?))))
            .collect::<String>()
    );
    if let Some(quota) = r.quota {
        let (millis, throttled) = (quota.millis as f64, time(quota.throttled_ns as f64));
        let _ = writeln!(
            out,
            "  CPU quota of the control group: {:.2} processors, threads throttled for {throttled}.",
            millis / 1e3
        );
    }
    let _ = writeln!(
        out,
        "  Own cost: {} events at {:.1} ns = {}{}.",
        grouped(r.events as i64),
        r.event_cost_ns,
        time(r.own_cost_ns as f64),
        r.own_cost_of_cpu.map_or_else(String::new, |p| format!(", {} of the CPU time used", percent(p)))
    );
    match &analysis.slowdown {
        Some(s) => {
            let (without, with) = (number(s.baseline_per_second), number(s.recorded_per_second));
            let lost = percent(s.slowdown);
            let _ =
                writeln!(out, "  Measured slowdown: {without} per second without, {with} with: {lost} lost.");
        }
        None => {
            out.push_str("  Slowdown not measured: give the throughput without recording as a baseline.\n")
        }
    }
}

fn preemption(preemption: &Preemption, out: &mut String) {
    let _ = match preemption {
        Preemption::NotAsked => return,
        Preemption::Kernel { stretches, lost } => {
            let lost = match lost {
                0 => String::new(),
                lost => format!(", {} LOST", grouped(*lost as i64)),
            };
            let n = grouped(*stretches as i64);
            writeln!(out, "  Preempted or blocked: by the kernel's records of {n} switches{lost}.")
        }
        Preemption::Unavailable { reason } => {
            writeln!(out, "  Preempted or blocked: not distinguished, {reason}.")
        }
    };
}

fn timed_sampled(operations: &[OperationRow], out: &mut String) {
    let sampled = || operations.iter().filter(|o| o.timed < o.executions);
    if sampled().next().is_some() {
        let sum = |of: fn(&OperationRow) -> u64| grouped(sampled().map(of).sum::<u64>() as i64);
        let (timed, all, of) = (sum(|o| o.timed), sum(|o| o.executions), sampled().count());
        let _ = writeln!(
            out,
            "  Short operations were sampled: {timed} of {all} executions of {of} operations. Waits were \
             recorded in all."
        );
    }
}

fn losses(r: &Recorded, out: &mut String) {
    if r.unrecorded_threads > 0 {
        let all = grouped(r.threads.saturating_add(r.unrecorded_threads) as i64);
        let threads = grouped(r.unrecorded_threads as i64);
        let _ = writeln!(
            out,
            "  NOT RECORDED: {threads} of {all} threads, because no ring was free for them. With smaller \
             rings there are more."
        );
    }
    if r.lost == 0 {
        out.push_str("  No event was lost.\n");
    } else {
        let all = r.events + r.lost;
        let part = percent(r.lost as f64 / all as f64);
        let (lost, unmatched) = (grouped(r.lost as i64), grouped(r.unmatched as i64));
        let _ = writeln!(
            out,
            "  LOST: {lost} events ({part}) found a ring full, or none free; {unmatched} beginnings or ends \
             had no partner. Times are too low; use larger rings."
        );
    }
    if let Some(damage) = &r.damage {
        let _ = writeln!(out, "  DAMAGED: {}.", damaged(damage));
    }
    if let Some(offset) = r.cut_short_at {
        let _ = writeln!(out, "  CUT SHORT: the file ends at byte {offset}, its writer did not finish it.");
    }
}

/// Returns a sentence about the damaged parts of the file.
fn damaged(damage: &DamageRow) -> String {
    let DamageRow { offset, parts, bytes, events, is_exact, from_ns, to_ns } = damage;
    let parts = if *parts == 1 { "1 part".to_owned() } else { format!("{parts} parts") };
    let skipped =
        format!("{parts} of the file skipped ({} bytes, from byte {offset} on)", grouped(*bytes as i64));
    let seconds = |ns: u64| ns as f64 / 1e9;
    match (events, is_exact) {
        (0, true) => format!("{skipped}; no event is missing, but names may be"),
        (0, false) => format!("{skipped}; the number of missing events is not known"),
        (events, is_exact) => format!(
            "{skipped}; {}{} events are missing, recorded between {:.3} s and {:.3} s. Times are too low",
            if *is_exact { "" } else { "at least " },
            grouped(*events as i64),
            seconds(*from_ns),
            seconds(*to_ns)
        ),
    }
}

/// Returns the report of the difference of two recordings.
pub(super) fn diff(diff: &Diff, top: usize) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "Before: {}  After: {}", diff.before, diff.after);
    let _ = writeln!(
        out,
        "Bottleneck before: {}\nBottleneck after:  {}",
        diff.verdict_before, diff.verdict_after
    );
    for (name, rows) in [("Operations", &diff.operations), ("Waits per execution", &diff.waits)] {
        let mut table =
            Table::new(2, &["operation", "of it", "before", "after", "change", "95 % interval", "judgment"]);
        for row in rows.iter().take(top * 5) {
            let value = |v: f64| if row.is_rate { number(v) } else { time(v) };
            table.row(vec![
                row.operation.clone(),
                row.metric.clone(),
                value(row.before),
                value(row.after),
                row.change.map_or_else(|| "-".into(), change),
                match (row.low, row.high) {
                    (Some(low), Some(high)) => format!("{} .. {}", value(low), value(high)),
                    _ => "-".into(),
                },
                row.judgment.name().into(),
            ]);
        }
        if !table.is_empty() {
            title(&mut out, name);
            table.write(&mut out);
        }
    }
    let _ = writeln!(out, "\n{}", rule(diff.rows_tested));
    out
}
