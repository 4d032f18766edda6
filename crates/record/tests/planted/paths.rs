//! Call paths: the stacks of a sample of the waits are in the trace file, and all reports use them.

use super::{build, record, scratch, turn};
use azekura_trace::analyze::{Analysis, AnalyzeOptions};
use azekura_trace::event::EventKind;
use azekura_trace::file::Trace;
use azekura_trace::report::{Format, ReportOptions, report};

/// Two functions take one lock, three to one, in the same order in each thread. A sample with a period would
/// show one of them only.
#[test]
fn two_call_paths_to_one_lock_are_shown_with_their_shares() {
    let mut programs = turn();
    let program = build("two_paths", &mut programs);
    let output = scratch().join("two_paths.trace");
    assert_eq!(record(&program, &[], &output), Ok(0));
    let trace = Trace::read(&output).unwrap();
    let events = || trace.threads.iter().flat_map(|thread| &thread.events);
    assert!(events().all(|event| event.kind != EventKind::Mark), "marks of callers became stacks");
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    let lock = analysis.waits.iter().find(|row| row.site.starts_with("vault_mutex, mutex")).unwrap();
    let of_path = |caller: &str| {
        let is_it = |frames: &[String]| {
            frames[0].starts_with("open_vault (planted/two_paths.c:")
                && frames[1].starts_with(caller)
                && frames[2].starts_with("customer")
        };
        let stacks = lock.stacks.iter().filter(|stack| is_it(&stack.frames));
        stacks.fold((0, 0.0), |(count, share), stack| (count + stack.count, share + stack.share))
    };
    let (paid, drawn) = (of_path("pay_in"), of_path("draw"));
    // One of 16 waits is sampled, about 200 in all. Even a sample of 30 has a standard deviation of 8 %.
    let sampled = paid.0 + drawn.0;
    assert!(sampled >= 30, "{:#?}", lock.stacks);
    let part = paid.0 as f64 / sampled as f64;
    assert!((0.4..0.98).contains(&part) && paid.1 > 0.0 && drawn.1 > 0.0, "{:#?}", lock.stacks);
    let written = |format| {
        let mut out = Vec::new();
        report(&trace, &ReportOptions { format, ..ReportOptions::default() }, &mut out).unwrap();
        String::from_utf8_lossy(&out).into_owned()
    };
    let has_both = |text: &str| ["pay_in", "draw"].iter().all(|caller| text.contains(caller));
    let text = written(Format::Text);
    let paths = text.split("Call paths of the longest waits").nth(1).expect("a section");
    assert!(has_both(paths) && paths.contains("% open_vault ("), "{text}");
    let page = written(Format::Html);
    let flame = page.split("class=\"flame\"").nth(1).and_then(|rest| rest.split("<pre").next()).unwrap();
    assert!(has_both(flame), "{flame}");
    assert!(has_both(&written(Format::Perfetto)));
}

/// A path with more frames than the layers of a library shows the function that the thread called.
#[test]
fn the_caller_of_a_deep_recursion_is_in_the_stacks_of_its_waits() {
    let mut programs = turn();
    let program = build("deep", &mut programs);
    let output = scratch().join("deep.trace");
    assert_eq!(record(&program, &[], &output), Ok(0));
    let analysis = Analysis::new(&Trace::read(&output).unwrap(), &AnalyzeOptions::default()).unwrap();
    let lock = analysis.waits.iter().find(|row| row.site.starts_with("deep_mutex, mutex")).unwrap();
    let has_caller = |frames: &[String]| frames.iter().any(|frame| frame.starts_with("dig ("));
    let whole = lock.stacks.iter().filter(|stack| has_caller(&stack.frames));
    let (whole, all) =
        (whole.map(|stack| stack.count).sum::<u64>(), lock.stacks.iter().map(|stack| stack.count));
    // The first wait of each of the two threads had more frames than the others before.
    let mut text = Vec::new();
    report(&Trace::read(&output).unwrap(), &ReportOptions::default(), &mut text).unwrap();
    assert!(String::from_utf8_lossy(&text).contains(" x24 < "), "a recursion is one item of a path");
    assert!(whole == all.sum::<u64>() && whole > 2, "{:#?}", lock.stacks);
}
