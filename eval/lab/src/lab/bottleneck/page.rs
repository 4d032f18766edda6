//! The study as one HTML page that needs no network.

use super::front::search::Latch;
use super::study::{CHOSEN, Measured, Recorded, Study};
use super::text;
use crate::plot::bars::{Bars, Stack};
use crate::plot::escape;
use crate::plot::xy::{Curve, Xy};
use std::fmt::Write;

/// Returns the HTML page.
#[must_use]
pub fn html(study: &Study) -> String {
    let mut out = String::from(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Bottlenecks by event tracing, \
         again</title>\n\
         <style>body{font-family:sans-serif;max-width:75em;margin:2em auto;padding:0 1em}\
         pre{overflow-x:auto;background:#f6f6f6;padding:1em}svg{max-width:760px;width:100%;height:auto}\
         .ok{color:#060}.failed{color:#a00;font-weight:bold}\
         .pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(30em,1fr));gap:1em}</style>\n\
         <h1>Bottlenecks by event tracing, again</h1>\n",
    );
    let _ = writeln!(out, "<p>{}</p>", escape(&study.conditions));
    for finding in &study.findings {
        let (class, word) = if finding.holds { ("ok", "found") } else { ("failed", "NOT found") };
        let _ = writeln!(
            out,
            "<p class=\"{class}\">{}: <b>{}</b> {word}: first among the waits in {} of {} recordings</p>",
            escape(finding.latch.name()),
            escape(finding.expected),
            finding.first_in,
            finding.of
        );
    }
    for processors in text::processors(study) {
        figures(&mut out, study, processors);
    }
    let _ = writeln!(out, "<h2>All numbers</h2><pre>{}</pre>", escape(&text::render(study)));
    out.push_str("</html>\n");
    out
}

fn figures(out: &mut String, study: &Study, processors: usize) {
    let _ = writeln!(out, "<h2>Processors: {processors}</h2><div class=\"pair\">");
    for latch in text::latches(study) {
        out.push_str(&throughput(study, latch, processors));
    }
    out.push_str(&waits(study, processors));
    out.push_str("</div>\n");
}

/// Draws Figs 3, 4, 10 and 11: throughput by number of users, one line per limit.
fn throughput(study: &Study, latch: Latch, processors: usize) -> String {
    let of_kind = |m: &&Measured| m.point.latch == latch && m.point.processors == processors;
    let mut curves: Vec<Curve> = Vec::new();
    for measured in study.points.iter().filter(of_kind) {
        let name = format!("conc_lock {}", measured.point.limit_name());
        let note = format!("{} users: {:.0} BT/s", measured.point.users, measured.rate);
        let point = (measured.cpu * 100.0, measured.rate, note);
        match curves.iter_mut().find(|c| c.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve { name, points: vec![point] }),
        }
    }
    let title = format!("{}: latch state: {}", text::figure_of_throughput(latch), latch.name());
    Xy { title, x: "CPU, %".into(), curves }.render()
}

/// Draws Figs 5, 6, 12 and 13: the waits of the chosen operation, by lock.
fn waits(study: &Study, processors: usize) -> String {
    let of_kind = |r: &&Recorded| r.point.processors == processors;
    let stacks = study.recorded.iter().filter(of_kind).map(|recorded| Stack {
        name: format!("{}, {}", recorded.point.latch.name(), recorded.point.limit_name()),
        parts: text::bars(&recorded.analysis)
            .into_iter()
            .map(|w| (w.site.clone(), w.per_execution_ns / 1e3))
            .collect(),
    });
    Bars { title: format!("Figs 5, 6, 12, 13: lock wait of one {CHOSEN}, µs"), stacks: stacks.collect() }
        .render()
}
