//! An HTML page with all charts, tables and settings that needs no network.

use super::svg::escape;
use crate::report::Report;
use crate::table;
use std::fmt::Write;

/// Returns an HTML document that needs no network; `title` is text and `body` is HTML.
#[must_use]
pub fn document(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}\
         pre{{overflow-x:auto;background:#f6f6f6;padding:1em}}svg{{width:100%;height:auto}}</style>\n\
         <h1>{title}</h1>\n{body}</html>\n"
    )
}

/// Returns the HTML page for a set of reports.
#[must_use]
pub fn html(reports: &[Report]) -> String {
    let mut out = String::new();
    if let Some(first) = reports.first() {
        let machine = &first.machine;
        let _ = writeln!(
            out,
            "<p>{}, {} cores, {}{}; {}{}</p>",
            escape(machine.cpu.as_deref().unwrap_or("unknown processor")),
            machine.cores,
            escape(&machine.system),
            machine.file_system.as_ref().map_or_else(String::new, |fs| format!(", {}", escape(fs))),
            escape(&first.date),
            first.revision.as_ref().map_or_else(String::new, |r| format!("; revision {}", escape(r))),
        );
    }
    for workload in super::workloads(reports) {
        let rows: Vec<Report> = reports.iter().filter(|r| r.workload == workload).cloned().collect();
        let _ = writeln!(out, "<h2>{}</h2>", escape(workload));
        out.push_str(&super::svg(workload, &rows));
        let _ = writeln!(out, "<pre>{}</pre>", escape(&table::render(&rows)));
    }
    document("Azekura benchmarks", &out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::sample;

    #[test]
    fn every_workload_has_a_chart_and_a_table() {
        let mut other = sample("b", 1, 5.0);
        other.workload = "u10".into();
        let page = html(&[sample("a", 1, 10.0), sample("a", 2, 20.0), other]);
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<pre>").count(), 2);
        assert_eq!(page.matches("<circle").count(), 3);
    }
}
