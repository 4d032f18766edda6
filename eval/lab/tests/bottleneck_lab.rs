//! The smallest bottleneck study has every table and figure, with consistent numbers. The findings are not
//! checked here, because they need an idle machine; `azekura-lab bottleneck` checks them.

use azekura_lab::Progress;
use azekura_lab::lab::bottleneck::front::Probes;
use azekura_lab::lab::bottleneck::front::search::Latch;
use azekura_lab::lab::bottleneck::{Settings, page, sliced, study, text};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Allows one recording at a time in this process.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_smallest_study_has_every_table_and_figure() {
    let _turn = turn();
    let directory = tempfile::tempdir().unwrap();
    let run = |millis| {
        let time = Duration::from_millis(millis);
        let settings = Settings {
            users: vec![800],
            limits: vec![Some(2), None],
            processors: vec![1],
            connections: 4,
            warm_up: Duration::from_millis(5),
            measured: time,
            recorded: time,
            recordings: 1,
            pairs: 1,
            ..Settings::quick()
        };
        study(&settings, Some(directory.path()), &Progress::hidden()).unwrap()
    };
    // On a busy machine no page may be served in the measured time: it is repeated with a longer time.
    let mut study = run(100);
    for millis in [1_000, 10_000] {
        let is_recorded = study.recorded.iter().all(|r| r.analysis.chosen().is_some());
        if is_recorded && study.points.iter().all(|p| p.rate > 0.0 && p.cpu > 0.0) {
            break;
        }
        study = run(millis);
    }

    assert_eq!(study.points.len(), 6, "two limits, three latches");
    assert!(study.points.iter().all(|p| p.rate > 0.0 && p.cpu > 0.0));
    // 800 users with a think time of 12 ms request at most 66,667 pages per second; the measured time ends a
    // little late.
    assert!(study.points.iter().all(|p| p.rate < 80_000.0), "{:?}", study.points);
    assert_eq!(study.findings.len(), 2);
    assert!(study.findings.iter().all(|f| f.of == 1 && f.first_in <= 1));
    for recorded in &study.recorded {
        let row = recorded.analysis.chosen().expect("index_read was recorded");
        assert!(row.executions > 0 && row.elapsed_ns > 0);
        let is_inner = |w: &&azekura_trace::analyze::WaitRow| w.site.starts_with("mutex of btr_search_latch");
        let inner = recorded.analysis.waits.iter().filter(is_inner).count();
        assert!(recorded.point.latch != Latch::Word || inner == 0, "the word has no mutex inside");
    }
    let parts: f64 = study.pages.iter().map(|p| p.part).sum();
    assert!((parts - 100.0).abs() < 1e-6, "{parts}");

    let shown = text::render(&study);
    for heading in ["Figs 3, 4", "Figs 10, 11", "Tables 2, 3", "Figs 5, 6, 12, 13", "Table 4", "index_read"] {
        assert!(shown.contains(heading), "{heading} is missing in\n{shown}");
    }
    let html = page::html(&study);
    assert_eq!(html.matches("<svg").count(), 4, "a figure for each latch, and the waits");
    let json: serde_json::Value = serde_json::to_value(&study).unwrap();
    assert_eq!(json["points"][0]["latch"], "mutex");
    for name in ["before.trace", "after.trace"] {
        azekura_trace::file::Trace::read(directory.path().join(name)).unwrap();
    }
}

#[test]
fn the_smallest_table_by_slices_has_every_case_and_a_control() {
    let _turn = turn();
    let settings = Settings {
        users: vec![40],
        processors: vec![1],
        connections: 4,
        warm_up: Duration::from_millis(5),
        blocks: 1,
        ..Settings::quick()
    };
    let rows = sliced(&settings, &Progress::hidden()).unwrap();
    let cases: Vec<_> = rows.iter().map(|row| (row.point.latch, row.probes)).collect();
    let (rows_told, pages_told) = (Some(Probes::Rows), Some(Probes::Pages));
    let [before, after] = [Latch::Account, Latch::Word];
    assert_eq!(
        cases,
        [(before, rows_told), (before, pages_told), (after, rows_told), (after, pages_told), (after, None)]
    );
    let control = &rows[4];
    assert_eq!((control.events, control.lost), (0.0, 0), "nothing was recorded");
    assert!(rows.iter().all(|row| row.blocks <= 1 && row.loss.interval.is_none()));
    let mut shown = String::new();
    text::sliced(&mut shown, &rows);
    for name in ["Table 4", "every operation on a row", "pages only", "nothing (control)", "one word"] {
        assert!(shown.contains(name), "{name} is missing in\n{shown}");
    }
    let json = serde_json::to_value(&rows).unwrap();
    assert_eq!((&json[0]["probes"], &json[4]["probes"]), (&"rows".into(), &serde_json::Value::Null));
}
