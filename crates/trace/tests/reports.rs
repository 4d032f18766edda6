//! Report formats: text with the required content, JSON that parses, a page without network access, a
//! Perfetto file with every slice, and a difference with its noise.
#![cfg(feature = "analyze")]

mod common;

use azekura_trace::WaitKind::{Device, Latch};
use azekura_trace::event::{Event, EventKind, UNWOKEN};
use azekura_trace::file::{CpuQuota, CpuSample, CpuSource, Ending, Trace};
use azekura_trace::report::{Format, ReportError, ReportOptions, diff, diff_files, report, report_file};
use common::simulator::Duration::Exponential;
use common::simulator::Machine;
use common::simulator::Step::{Compute, Enter, Exit, Unlock};
use common::{Script, label, trace};
use std::collections::BTreeMap;

fn written(trace: &Trace, options: &ReportOptions) -> Vec<u8> {
    let mut out = Vec::new();
    report(trace, options, &mut out).expect("memory takes all");
    out
}

fn as_format(trace: &Trace, format: Format) -> Vec<u8> {
    written(trace, &ReportOptions { format, ..ReportOptions::default() })
}

fn text(trace: &Trace, options: &ReportOptions) -> String {
    String::from_utf8(written(trace, options)).expect("text")
}

fn sample() -> Trace {
    let script = Script::default()
        .anchor(0, 0)
        .enter(0, 1)
        .begin(1_000, 1, 0xabc, Latch)
        .end(4_000, 1, 0xabc)
        .begin(5_000, 2, 0, Device)
        .end(9_000, 2, 0)
        .exit(10_000)
        .enter(20_000, 1)
        .exit(21_000)
        .enter(30_000, 2)
        .begin(31_000, 1, 0xabc, Latch);
    trace(1_000_000, &["get", "<script>alert(1)</script>"], &["cache", "disk"], vec![script])
}

#[test]
fn the_text_has_the_papers_tables_and_a_verdict() {
    let options = ReportOptions { baseline_per_second: Some(4_000.0), ..ReportOptions::default() };
    let text = text(&sample(), &options);
    let line = |start: &str| text.lines().find(|l| l.trim_start().starts_with(start)).unwrap_or_default();
    let cells =
        |start: &str| line(start).split("  ").map(str::trim).filter(|c| !c.is_empty()).collect::<Vec<_>>();
    // executions, elapsed, CPU, lock, I/O, idle, other, CPU in wait, mean, p99
    let get = cells("get ");
    assert_eq!(get[..6], ["get", "2", "11.0 us", "11.0 us", "3.00 us", "4.00 us"], "{text}");
    assert!(line("cache").contains("1.50 us"), "wait per execution\n{text}");
    for expected in
        ["No event was lost", "rseq", "Own cost: 11 events at 10.0 ns", "50.0 % lost", "Still going on"]
    {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
}

#[test]
fn t2_lost_events_and_cut_traces_are_reported_first() {
    let mut trace = sample();
    trace.threads[0].lost = 11;
    trace.ending = Ending::CutShort { offset: 4711 };
    let text = text(&trace, &ReportOptions::default());
    assert!(text.contains("LOST: 11 events (50.0 %)"), "{text}");
    assert!(text.contains("CUT SHORT: the file ends at byte 4711"), "{text}");
}

#[test]
fn a_recording_that_lost_events_or_threads_does_not_show_that_nothing_stands_out() {
    let script = Script::default().anchor(0, 0).begin(10, 1, 1, Device).end(30, 1, 1);
    let whole = trace(100, &["get"], &["disk"], vec![script]);
    assert!(text(&whole, &ReportOptions::default()).contains("Nothing stands out"));
    let mut without_events = whole.clone();
    without_events.threads[0].lost = 3;
    let mut without_threads = whole;
    without_threads.unrecorded_threads = 1;
    for (trace, expected) in
        [(without_events, "50 % of the events and 0 %"), (without_threads, "50 % of the threads")]
    {
        let text = text(&trace, &ReportOptions::default());
        assert!(text.contains("Not known: ") && text.contains(expected), "{text}");
        assert_eq!(text.contains("NOT RECORDED: 1 of 2 threads"), trace.unrecorded_threads == 1, "{text}");
    }
}

#[test]
fn busy_processors_do_not_explain_the_time_of_threads_that_hardly_run() {
    const END: u64 = 200_000_000;
    let first_lines_of = |cpu| {
        let script = Script::default().enter(0, 1).anchor(0, 0).anchor(END, cpu).switched().exit(END);
        let mut trace = trace(END, &["get"], &["gate"], vec![script]);
        trace.machine_cpu_ns = Some((0, 64 * 190_000_000));
        text(&trace, &ReportOptions::default())
    };
    let (runs, hardly) = (first_lines_of(END / 10), first_lines_of(END / 1000));
    assert!(runs.contains("The processors are busy"), "{runs}");
    assert!(hardly.contains("off the processor without a probe"), "{hardly}");
}

#[test]
fn sampled_waits_without_a_probe_explain_time_off_the_processor() {
    const END: u64 = 200_000_000;
    const SITE: &str = "futex in malloc of libc.so.6";
    let in_all = |blocked: u64, is_busy: bool| {
        let script = Script::default().enter(0, 1).anchor(0, 0).anchor(END, END / 4).switched().exit(END);
        let mut trace = trace(END, &["get"], &[SITE], vec![script, Script::default()]);
        let sample = |tag, site, count| CpuSample { tag, address: 0, site, count };
        // The second thread has not executed the operation.
        trace.blocked = vec![sample(1, 0, 100 - blocked), sample(1, 1, blocked), sample(2, 1, 900)];
        trace.machine_cpu_ns = is_busy.then_some((0, 64 * 190_000_000));
        text(&trace, &ReportOptions::default())
    };
    // A thread that waits in the kernel does not wait for a processor.
    let (queues, waits) = (in_all(50, true), in_all(70, true));
    assert!(
        queues.contains("The processors are busy") && waits.contains("by samples in"),
        "{queues}\n{waits}"
    );
    let with_samples = |blocked| in_all(blocked, false);
    let (most, some, few) = (with_samples(60), with_samples(20), with_samples(5));
    assert!(
        most.contains(&format!("75 % of the time is off the processor, by samples in {SITE} (")),
        "{most}"
    );
    assert!(most.contains("(60 %).") && !most.contains("without a probe"), "{most}");
    assert!(some.contains("without a probe that says why") && some.contains("Samples show a part of it in"));
    assert!(some.contains("20.0 %") && !few.contains("Samples show"), "{some}\n{few}");
}

/// Returns the report of a thread that runs for a quarter of 200 ms, under a quota that throttles its control
/// group for `throttled` ns.
fn under_quota(throttled: u64) -> String {
    const END: u64 = 200_000_000;
    let script = Script::default().enter(0, 1).anchor(0, 0).anchor(END, END / 4).switched().exit(END);
    let mut trace = trace(END, &["get"], &["gate"], vec![script]);
    trace.end.process_cpu_ns = END / 4;
    trace.quota = Some(CpuQuota { millis: 250, throttled_ns: throttled });
    text(&trace, &ReportOptions::default())
}

#[test]
fn a_quota_that_throttles_the_threads_is_named_with_its_figures() {
    let throttled = under_quota(150_000_000);
    let sentence = "CPU quota of the control group (0.25 processors): the threads were throttled for 75 % of \
                    the time in which they could run.";
    assert!(throttled.contains(sentence), "{throttled}");
    let figures = "CPU quota of the control group: 0.25 processors, threads throttled for 150";
    assert!(throttled.contains(figures), "{throttled}");
    // A quota that seldom throttles is not the reason for the time off the processors.
    let free = under_quota(4_000_000);
    assert!(free.contains("off the processor without a probe") && free.contains("0.25 processors"), "{free}");
}

#[test]
fn the_wait_of_a_canceled_thread_ends_with_the_thread() {
    let canceled = Script::default().anchor(0, 0).enter(0, 1).begin(1_000, 1, 0xabc, Device).exit(3_000);
    let trace = trace(1_000_000, &["get"], &["disk"], vec![canceled]);
    let json = as_format(&trace, Format::Json);
    let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(value["sites"][0]["net_ns"], 2_000);
    assert_eq!(value["open"], serde_json::json!([]));
}

#[test]
fn json_is_the_whole_analysis() {
    let value: serde_json::Value = serde_json::from_slice(&as_format(&sample(), Format::Json)).unwrap();
    assert_eq!(value["operations"][0]["name"], "get");
    assert_eq!(value["operations"][0]["lock_wait_ns"], 3_000);
    assert_eq!(value["sites"][0]["kind"], "device");
    assert_eq!(value["verdict"]["what"], "io");
    assert_eq!(value["open"][0]["so_far_ns"], 970_000);
    assert_eq!(value["recorded"]["cpu_by_rseq"], 1);
}

#[test]
fn the_page_needs_nothing_else_and_names_cannot_break_it() {
    let page = String::from_utf8(as_format(&sample(), Format::Html)).unwrap();
    for foreign in ["http:", "https:", "//cdn", "@import", "url(", "<link", "src="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(!page.contains("<script>alert"), "a name is data");
    assert!(!page.contains("{{"), "every place is filled");
    let from = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
    let data = &page[from..from + page[from..].find("</script>").unwrap()];
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["analysis"]["operations"][0]["executions"], 2);
    assert_eq!(data["timeline"]["threads"][0]["name"], "worker 1 (1)");
    let cells = data["timeline"]["threads"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[0]["lock"], 719, "3000 of the first 4167 ns");
}

#[test]
fn the_page_has_a_flame_graph_of_waits_off_the_processor() {
    let page = |trace: &Trace| String::from_utf8(as_format(trace, Format::Html)).unwrap();
    let script = Script::default().anchor(0, 0).enter(0, 1).begin(1_000, 1, 0xabc, Latch);
    let script = script.end(4_000, 1, 0xabc).begin(5_000, 2, 0, Device).end(6_000, 2, 0).exit(10_000);
    let mut trace = trace(1_000_000, &["<b>\"get\""], &["<i>cache</i>", "disk"], vec![script]);
    trace.threads[0].cpu = CpuSource::None;
    let page_of_waits = page(&trace);
    let (_, graph) = page_of_waits.split_once("<div class=\"flame\">").expect("a graph");
    let (graph, _) = graph.split_once("</main>").expect("an end");
    let operation = "&lt;b&gt;&quot;get&quot;";
    for expected in [
        "<div class=\"box\" style=\"width:100.0000%\"><span class=\"all\" title=\"all waits: 0.004 ms, ",
        "<div class=\"box\" style=\"width:75.0000%\"><span class=\"lock\" title=\"latch: 0.003 ms, 75.00 % ",
        "<div class=\"box\" style=\"width:25.0000%\"><span class=\"io\" title=\"device: 0.001 ms, 25.00 % ",
        &format!("title=\"{operation}: 0.003 ms, 75.00 % of all waits\">{operation}</span>"),
        "&lt;i&gt;cache&lt;/i&gt; (",
    ] {
        assert!(graph.contains(expected), "{expected} in\n{graph}");
    }
    assert!(!graph.contains("<b>") && !graph.contains("<i>"), "names are escaped\n{graph}");
    assert!(!page_of_waits.contains("<details"), "visible without unfolding");
    assert!(page_of_waits.contains("The recording has no call stacks"));
    assert!(page_of_waits.contains("The CPU time is not known"));
}

#[test]
fn the_page_of_a_recording_without_waits_says_so() {
    let script = Script::default().anchor(0, 0).enter(0, 1).exit(10_000);
    let page = as_format(&trace(10_000, &["get"], &[], vec![script]), Format::Html);
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("No wait off the processor was recorded.") && !page.contains("class=\"flame\""));
}

#[test]
fn reports_are_the_same_to_the_byte() {
    for format in [Format::Text, Format::Json, Format::Html, Format::Perfetto] {
        assert_eq!(as_format(&sample(), format), as_format(&sample(), format), "{format:?}");
    }
}

#[test]
fn an_empty_trace_is_a_report_too() {
    for format in [Format::Text, Format::Json, Format::Html, Format::Perfetto] {
        assert!(!as_format(&trace(0, &[], &[], vec![]), format).is_empty());
    }
}

/// Returns the fields of a protobuf message: (number, varint or bytes).
fn fields(mut bytes: &[u8]) -> Vec<(u64, Result<u64, &[u8]>)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = azekura_base::varint::take_u64(&mut bytes).expect("a key");
        let value = match key & 7 {
            0 => Ok(azekura_base::varint::take_u64(&mut bytes).expect("a number")),
            1 => {
                let (number, rest) = bytes.split_first_chunk().expect("eight bytes");
                bytes = rest;
                Ok(u64::from_le_bytes(*number))
            }
            2 => Err(azekura_base::varint::take_bytes(&mut bytes).expect("bytes")),
            wire => panic!("wire type {wire}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn bytes_of<'a>(fields: &[(u64, Result<u64, &'a [u8]>)], number: u64) -> Option<&'a [u8]> {
    fields.iter().find(|f| f.0 == number).and_then(|f| f.1.err())
}

fn number_of(fields: &[(u64, Result<u64, &[u8]>)], number: u64) -> Option<u64> {
    fields.iter().find(|f| f.0 == number).and_then(|f| f.1.ok())
}

#[test]
fn perfetto_gets_every_slice_nested_and_named() {
    let mut trace = sample();
    let lost = Event { object: 3, ..Event::new(40_000, EventKind::Lost) };
    trace.threads[0].events.push(lost);
    let bytes = as_format(&trace, Format::Perfetto);
    let (mut depth, mut slices, mut names, mut last) = (0i32, 0, Vec::new(), 0);
    // Names of the tracks by number, and texts by table and number.
    let (mut tracks, mut texts) = (BTreeMap::new(), BTreeMap::new());
    for (number, packet) in fields(&bytes) {
        assert_eq!(number, 1, "the trace is packets");
        let packet = fields(packet.expect_err("a message"));
        assert_eq!(number_of(&packet, 10), Some(1), "one sequence");
        if let Some(track) = bytes_of(&packet, 60).map(fields) {
            let is_first = number_of(&packet, 13) == Some(1);
            assert_eq!(is_first, tracks.is_empty(), "nothing was interned before the first packet");
            let (process, thread) = (bytes_of(&track, 3).map(fields), bytes_of(&track, 4).map(fields));
            let named = process.as_ref().map(|p| bytes_of(p, 6)).or(thread.as_ref().map(|t| bytes_of(t, 5)));
            let name = named.flatten().expect("a name");
            assert_eq!(tracks.insert(number_of(&track, 1).unwrap(), name), None, "exported once");
            continue;
        }
        for (table, entry) in bytes_of(&packet, 12).map(fields).unwrap_or_default() {
            let entry = fields(entry.unwrap_err());
            let text = String::from_utf8_lossy(bytes_of(&entry, 2).unwrap()).into_owned();
            assert_eq!(texts.insert((table, number_of(&entry, 1).unwrap()), text), None, "interned once");
        }
        let time = number_of(&packet, 8).unwrap();
        assert!(time >= last);
        last = time;
        let event = fields(bytes_of(&packet, 11).expect("a descriptor or an event"));
        assert_eq!(number_of(&event, 11), Some(3), "the thread's track");
        let text = |table, field| texts[&(table, number_of(&event, field).expect("a number"))].as_str();
        if number_of(&event, 9).unwrap() == 2 {
            depth -= 1;
        } else {
            assert_eq!(number_of(&packet, 13), Some(2), "it needs what was interned");
            let annotation = bytes_of(&event, 4).map(fields);
            let noted = annotation.map(|note| texts[&(3, number_of(&note, 1).unwrap())].as_str());
            match (text(1, 3), noted) {
                ("operation", None) | ("latch" | "device", Some("object")) => {
                    depth += 1;
                    slices += 1;
                    names.push(text(2, 10).to_owned());
                }
                output => assert_eq!((output, text(2, 10)), (("lost", Some("events")), "events lost")),
            }
        }
        assert!(depth >= 0);
    }
    assert_eq!((tracks.len(), slices, depth), (2, 6, 0), "the loss closes what was open");
    assert_eq!(names[1], "wait: cache (crates/store/src/cache.rs:10)");
}

/// Returns the ends of all flows: (flow, type of the event, track, time), in order.
fn flow_ends(trace: &Trace) -> Vec<(u64, u64, u64, u64)> {
    let bytes = as_format(trace, Format::Perfetto);
    let mut ends = Vec::new();
    for (_, packet) in fields(&bytes) {
        let packet = fields(packet.expect_err("a message"));
        let Some(event) = bytes_of(&packet, 11).map(fields) else { continue };
        let of_event = |number| number_of(&event, number).expect("is there");
        for (_, flow) in event.iter().filter(|field| field.0 == 47) {
            ends.push((
                flow.expect("a number"),
                of_event(9),
                of_event(11),
                number_of(&packet, 8).expect("a time"),
            ));
        }
    }
    ends.sort_unstable_by_key(|end| (end.0, end.3));
    ends
}

#[test]
fn perfetto_flows_lead_from_the_release_to_the_wait_that_it_ended() {
    const SLICE_END: u64 = 2;
    const INSTANT: u64 = 3;
    // The first thread holds the lock; the others get it in turn. The last wait ends by its time limit.
    let first = Script::default().anchor(0, 0).enter(0, 1).hold(1_000, 1, 7, 900).release(9_000, 2, 8);
    let second =
        Script::default().enter(0, 1).begin(200, 1, 7, Latch).end(1_100, 1, 7).hold(2_000, 1, 7, 900);
    let mut third = Script::default().enter(0, 1).begin(300, 1, 7, Latch).end(2_100, 1, 7);
    third = third.begin(8_000, 2, 8, Latch).end(9_500, 2, 8);
    let mut fourth = Script::default().enter(0, 1).begin(400, 1, 7, Latch).end(2_200, 1, 7);
    fourth.events.last_mut().unwrap().flags |= UNWOKEN;
    let scripts = vec![first.exit(9_900), second.exit(9_900), third.exit(9_900), fourth.exit(9_900)];
    let trace = trace(10_000, &["get"], &["cache", "tree"], scripts);
    let ends = flow_ends(&trace);
    // The track of the n-th thread is n + 2.
    let expected = [
        (1, INSTANT, 3, 1_000),
        (1, SLICE_END, 4, 1_100),
        (2, INSTANT, 4, 2_000),
        (2, SLICE_END, 5, 2_100),
        (3, INSTANT, 3, 9_000),
        (3, SLICE_END, 5, 9_500),
    ];
    assert_eq!(ends, expected, "each flow has two ends");
    // With sampled holds, an unrecorded hold may have followed a hold that ended long before.
    let mut sampled = trace;
    sampled.session.hold_sampling = 256;
    assert_eq!(flow_ends(&sampled), expected);
    for event in sampled.threads[1].events.iter_mut().filter(|event| event.kind != EventKind::WaitBegin) {
        event.ticks *= 100;
    }
    let of_second = |end: &&(u64, u64, u64, u64)| (end.1, end.2) == (SLICE_END, 4);
    assert_eq!(flow_ends(&sampled).iter().filter(of_second).count(), 0);
    sampled.session.hold_sampling = 1;
    assert_eq!(flow_ends(&sampled).iter().filter(of_second).count(), 1);
}

#[test]
fn perfetto_flows_of_a_file_have_two_ends() {
    let rounds = 30_000;
    let mut scripts = [Script::default().enter(0, 1), Script::default().enter(1, 1)];
    for at in (0..rounds).map(|round| 1_000 + round * 100) {
        let [holder, waiter] = scripts;
        let waiter = waiter.begin(at, 1, 7, Latch).end(at + 90, 1, 7);
        scripts = [holder.hold(at + 80, 1, 7, 90), waiter];
    }
    let scripts = scripts.into_iter().map(|script| script.exit(10_000_000)).collect();
    let trace = trace(10_000_000, &["get"], &["cache"], scripts);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.trace");
    std::fs::write(&path, trace.to_bytes()).unwrap();
    let options = ReportOptions { format: Format::Perfetto, ..ReportOptions::default() };
    let mut bytes = Vec::new();
    report_file(&path, &options, &mut bytes).unwrap();
    let mut ends: BTreeMap<u64, u64> = BTreeMap::new();
    for (_, packet) in fields(&bytes) {
        let Some(event) = bytes_of(&fields(packet.expect_err("a message")), 11).map(fields) else { continue };
        for (_, flow) in event.iter().filter(|field| field.0 == 47) {
            *ends.entry(flow.unwrap()).or_default() += 1;
        }
    }
    assert!(ends.values().all(|ends| *ends == 2), "each flow has two ends");
    let found = ends.len() as u64;
    assert!(found <= rounds && found + 8 > rounds, "{found}: at most one is lost at the border of a window");
}

/// A Perfetto export has less than 40 bytes per event, because it contains each name once.
#[test]
fn a_perfetto_export_has_each_name_once_and_less_than_forty_bytes_an_event() {
    let script = (0..1000).fold(Script::default(), |script, i| {
        let at = i * 1000;
        script.enter(at, 1).begin(at + 1, 1, 7, Latch).end(at + 500, 1, 7).exit(at + 900)
    });
    let long = "a_function_with_a_name_of_many_letters_as_templates_and_generic_types_have_them";
    let trace = trace(1_000_000, &[long], &[long], vec![script]);
    let bytes = as_format(&trace, Format::Perfetto);
    let times = bytes.windows(long.len()).filter(|part| *part == long.as_bytes()).count();
    assert_eq!(times, 2, "as an operation and as a site");
    assert!(bytes.len() < 4000 * 40, "{} bytes of 4000 events", bytes.len());
    let ratio = bytes.len() as f64 / trace.to_bytes().len() as f64;
    println!("{} bytes, {ratio:.1} times the trace file", bytes.len());
}

/// Returns a trace of threads with one execution each, which waits 150 times for a lock.
fn threads(seed: u64, waited: u64, others: u64) -> Trace {
    let script = |thread: u64| {
        let mut now = 0;
        let script = (0..150).fold(Script::default().enter(0, 1), |script, i| {
            let noise = (i * 7919 + thread * 104_729 + seed * 1_299_709) % 97;
            let begin = now + others + noise;
            now = begin + waited + if waited > 0 { noise } else { 0 };
            if waited > 0 { script.begin(begin, 1, 7, Latch).end(now, 1, 7) } else { script }
        });
        (now, script.exit(now))
    };
    let (ends, scripts): (Vec<u64>, Vec<Script>) = (0..4).map(script).unzip();
    trace(ends.into_iter().max().unwrap_or(0), &["worker"], &["gate"], scripts)
}

#[test]
fn a_cure_of_threads_that_are_one_execution_each_is_significant_and_noise_is_not() {
    let options = ReportOptions { format: Format::Json, ..ReportOptions::default() };
    let significant = |before: &Trace, after: &Trace| -> Vec<String> {
        let mut out = Vec::new();
        diff(before, after, &options, &mut out).unwrap();
        let diff: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let rows = diff["operations"].as_array().unwrap().iter().chain(diff["waits"].as_array().unwrap());
        let rows = rows.filter(|row| row["is_significant"] == true);
        rows.map(|row| row["metric"].as_str().unwrap().to_owned()).collect()
    };
    // The operation is 6.5 times as fast without the lock.
    let metrics = significant(&threads(1, 5_500, 1_000), &threads(2, 0, 1_000));
    for metric in ["per second", "elapsed", "lock wait", &label("gate", 1)] {
        assert!(metrics.iter().any(|found| found == metric), "{metric} of {metrics:?}");
    }
    let metrics = significant(&threads(3, 5_500, 1_000), &threads(4, 5_500, 1_000));
    assert!(metrics.is_empty(), "{metrics:?}");
}

#[test]
fn files_are_read_and_their_errors_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.trace");
    std::fs::write(&path, sample().to_bytes()).unwrap();
    let options = ReportOptions::default();
    let mut out = Vec::new();
    report_file(&path, &options, &mut out).unwrap();
    assert_eq!(out, written(&sample(), &options));
    diff_files(&path, &path, &options, &mut out).unwrap();
    let missing = report_file(dir.path().join("none"), &options, &mut Vec::new());
    assert!(matches!(missing, Err(ReportError::Read(_))));
    std::fs::write(&path, b"hello").unwrap();
    let error = report_file(&path, &options, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().starts_with("not a trace file"), "{error}");
    let whole = dir.path().join("y.trace");
    std::fs::write(&whole, sample().to_bytes()).unwrap();
    let error = diff_files(&whole, &path, &options, &mut Vec::new()).unwrap_err();
    assert!(matches!(&error, ReportError::OfFile { path: of, .. } if *of == path), "{error:?}");
    let bytes = sample().to_bytes();
    std::fs::write(&whole, &bytes[..bytes.len() - 1]).unwrap();
    for format in [Format::Text, Format::Perfetto] {
        let mut out = Vec::new();
        report_file(&whole, &ReportOptions { format, ..options.clone() }, &mut out).unwrap();
        assert!(String::from_utf8_lossy(&out).to_uppercase().contains("CUT SHORT"), "{format:?}");
    }
    let unknown = ReportOptions { operation: Some("nope".into()), ..options.clone() };
    let error = report(&sample(), &unknown, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("\"nope\"") && error.to_string().contains("get"), "{error}");
    let page = ReportOptions { format: Format::Html, ..options };
    assert!(matches!(
        diff(&sample(), &sample(), &page, &mut out),
        Err(ReportError::FormatOfDiff(Format::Html))
    ));
}

fn machine(seed: u64, free: Vec<u32>) -> Trace {
    let lock = common::simulator::Step::Lock {
        site: 1,
        object: 1,
        mode: common::simulator::Mode::Exclusive,
        kind: Latch,
        spin: false,
    };
    let program = vec![
        Enter(1),
        Compute(Exponential(20_000)),
        lock,
        Compute(Exponential(10_000)),
        Unlock { site: 1 },
        Exit,
    ];
    let machine = Machine { seed, free, ..Machine::default() };
    machine.run(50_000_000, &["get"], &["cache"], vec![program; 6]).trace
}

#[test]
fn equal_machines_with_other_random_seeds_seldom_differ() {
    let options = ReportOptions { format: Format::Json, ..ReportOptions::default() };
    let traces: Vec<Trace> = (1..=41).map(|seed| machine(seed * 0x9e37_79b9, vec![])).collect();
    let mut false_alarms = 0;
    for pair in traces.windows(2) {
        let mut out = Vec::new();
        diff(&pair[0], &pair[1], &options, &mut out).unwrap();
        let diff: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(diff["operations"][0]["metric"], "per second");
        assert_eq!(diff["operations"][0]["samples_before"], 15);
        let rows = diff["operations"].as_array().unwrap().iter().chain(diff["waits"].as_array().unwrap());
        false_alarms += u32::from(rows.into_iter().any(|row| row["is_significant"] == true));
    }
    // At a level of 5 %, two comparisons of forty have a significant row on average.
    assert!(false_alarms <= 2, "{false_alarms} of 40");
}

#[test]
fn a_difference_is_distinguished_from_noise() {
    let options = ReportOptions { format: Format::Json, ..ReportOptions::default() };
    let rows = |before: &Trace, after: &Trace| -> serde_json::Value {
        let mut out = Vec::new();
        diff(before, after, &options, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    };
    let significant = |diff: &serde_json::Value| {
        let rows = diff["operations"].as_array().unwrap().iter().chain(diff["waits"].as_array().unwrap());
        rows.filter(|r| r["is_significant"] == true).map(|r| r["metric"].clone()).collect::<Vec<_>>()
    };
    // In the second machine the lock costs nothing.
    let freed = rows(&machine(1, vec![]), &machine(2, vec![1]));
    let metrics = significant(&freed);
    for metric in ["per second", "elapsed", "lock wait", &label("cache", 1)] {
        assert!(metrics.contains(&metric.into()), "{metric} of {metrics:?}");
    }
    assert!(freed["verdict_before"].as_str().unwrap().contains("cache"));
    assert!(freed["operations"][0]["change"].as_f64().unwrap() > 0.5, "throughput first");
    let mut text = Vec::new();
    diff(&machine(1, vec![]), &machine(2, vec![1]), &ReportOptions::default(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("95 % interval") && text.contains("Holm's correction"), "{text}");
    let mut text = Vec::new();
    diff(&machine(1, vec![]), &machine(2, vec![]), &ReportOptions::default(), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("not significant") && !text.contains("   significant"), "{text}");
}

#[test]
fn a_spin_loop_with_a_fifth_of_the_cpu_time_is_the_bottleneck() {
    let first_lines = |spinning: u64, others: u64| {
        let script = Script::default().anchor(0, 0).enter(0, 1).exit(1_000_000);
        let mut trace = trace(1_000_000, &["get"], &["spin loop in lock"], vec![script]);
        let sample = |site, count| CpuSample { tag: 1, address: 0, site, count };
        trace.samples = vec![sample(0, others), sample(1, spinning)];
        let text = text(&trace, &ReportOptions::default());
        assert_eq!(text.contains("Spin loops, by samples"), spinning + others >= 20, "{text}");
        text.lines().take(2).collect::<String>()
    };
    let output = first_lines(30, 70);
    let sentence =
        format!("{}: 30 % of the program's CPU time is in this loop", label("spin loop in lock", 1));
    assert!(output.contains(&sentence), "{output}");
    assert!(!first_lines(19, 81).contains("in this loop"), "an uncontended lock takes that much");
    assert!(!first_lines(10, 9).contains("in this loop"), "too few samples");
}
