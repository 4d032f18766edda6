//! Recording does no harm: programs write, read and end as they do without the recorder.

use super::{build, scratch, turn};
use azekura_record::{Launch, Launched, RecordError, launch};
use azekura_trace::analyze::{Analysis, AnalyzeOptions};
use azekura_trace::file::{Ending, Trace};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

/// Runs a program in a directory of its own, recorded or not, with its output redirected to a file. Returns
/// the output and the status.
fn run(program: &Path, arguments: &[String], directory: &Path, is_recorded: bool) -> (String, ExitStatus) {
    let script = r#"cd "$0" && exec "$@" >out 2>&1 </dev/null"#;
    let mut command: Vec<std::ffi::OsString> =
        vec!["sh".into(), "-c".into(), script.into(), directory.into()];
    command.push(program.into());
    command.extend(arguments.iter().map(Into::into));
    let status = if is_recorded {
        let launched = launch(&Launch { command, output: directory.join("trace"), ..Launch::default() });
        launched.expect("the program runs").status
    } else {
        Command::new(&command[0]).args(&command[1..]).status().expect("a shell")
    };
    (std::fs::read_to_string(directory.join("out")).expect("its output"), status)
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(scratch()).expect("a directory")
}

/// As with jemalloc, each call of the allocator takes a mutex, so that a hook runs inside the allocator.
#[test]
fn a_program_with_a_mutex_in_its_allocator_runs_unchanged() {
    let mut programs = turn();
    let program = build("own_malloc", &mut programs);
    let place = directory();
    let (output, status) = run(&program, &[], place.path(), true);
    assert_eq!((output.as_str(), status.code()), ("1\n", Some(0)), "{status}");
    let trace = Trace::read(place.path().join("trace")).expect("a recording");
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    let name = "heap_mutex, the allocator's lock (malloc of the program)";
    let is_named = analysis.sites.iter().any(|site| site.name.starts_with(name));
    assert!(is_named, "{:#?}", analysis.sites);
    assert_eq!(trace.ending, Ending::Complete);
}

/// The program counts instructions by single steps. Each step is a context switch to the recorder, so the
/// recorder must not wait for an interval without one.
#[cfg(target_arch = "x86_64")]
#[test]
fn an_uncontended_mutex_costs_few_instructions_more() {
    /// Additional instructions for a lock and an unlock, including the one hold of 256 that is recorded.
    /// Measured: 52.
    const MOST: u64 = 60;
    let mut programs = turn();
    let program = build("steps", &mut programs);
    let [plain, recorded] = [false, true].map(|is_recorded| {
        let place = directory();
        let (output, status) = run(&program, &[], place.path(), is_recorded);
        assert_eq!(status.code(), Some(0), "{status}");
        if is_recorded {
            let trace = Trace::read(place.path().join("trace")).expect("a recording");
            assert!(trace.event_count() > 0, "holds were drawn");
        }
        output.trim().parse::<u64>().expect("instructions")
    });
    assert!(recorded <= plain + MOST, "{plain} without, {recorded} with the recorder");
}

#[test]
fn no_byte_of_a_recording_gets_into_files_of_a_program_that_reuses_descriptors() {
    let mut programs = turn();
    let program = build("descriptors", &mut programs);
    let place = directory();
    let (output, status) = run(&program, &[], place.path(), true);
    assert_eq!((output.as_str(), status.code()), ("", Some(0)), "{status}");
    let trace = Trace::read(place.path().join("trace")).expect("a recording");
    assert!(trace.event_count() > 100, "it was recorded all the time: {}", trace.event_count());
}

#[test]
fn a_recording_made_before_an_exec_is_kept_beside_the_one_made_after() {
    let mut programs = turn();
    let program = build("becomes", &mut programs);
    let place = directory();
    let output = place.path().join("trace");
    let launched = launch(&Launch { command: vec![program.into()], output, ..Launch::default() }).unwrap();
    assert_eq!(launched.recorded.len(), 2, "{launched:?}");
    let traces = launched.recorded.iter().map(|recorded| Trace::read(&recorded.file).unwrap());
    let traces: Vec<Trace> = traces.collect();
    assert!(traces.iter().all(|trace| trace.ending == Ending::Complete));
    let is_of = |trace: &&Trace, mutex| trace.sites.values().any(|site| site.name.starts_with(mutex));
    for mutex in ["first_mutex", "second_mutex"] {
        assert_eq!(traces.iter().filter(|trace| is_of(trace, mutex)).count(), 1, "{mutex}");
    }
    assert_eq!(launched.recorded[0].process, launched.recorded[1].process);
}

#[test]
fn a_recording_is_whole_if_its_process_executes_a_program_that_ends_at_once() {
    let mut programs = turn();
    let program = build("becomes", &mut programs);
    let place = directory();
    for _ in 0..3 {
        let command = vec![program.clone().into(), "true".into()];
        let output = place.path().join("trace");
        let launched = launch(&Launch { command, output, ..Launch::default() }).unwrap();
        assert_eq!(launched.recorded.len(), 1, "{launched:?}");
        assert_eq!(Trace::read(&launched.recorded[0].file).unwrap().ending, Ending::Complete);
    }
}

#[test]
fn only_its_user_can_read_or_change_what_a_recording_shares_with_programs() {
    let _turn = turn();
    let place = directory();
    let script = r#"stat -c '%a' "$AZEKURA_TRACE_DIR" "$AZEKURA_TRACE_DIR"/area"#;
    let (output, status) = run(Path::new("/bin/sh"), &["-c".into(), script.into()], place.path(), true);
    assert_eq!((output.as_str(), status.code()), ("700\n600\n", Some(0)));
}

#[test]
fn the_number_of_ended_programs_does_not_grow_the_memory_that_is_shared() {
    let _turn = turn();
    let place = directory();
    // The recorder removes a file some seconds after its program's end. The loop starts few programs itself.
    let script = r#"
        for i in $(seq 100); do env true; done
        for try in $(seq 15); do
            sleep 4
            files=$(ls "$AZEKURA_TRACE_DIR" | wc -l)
            [ "$files" -lt 20 ] && break
        done
        echo "$files"
    "#;
    let (output, status) = run(Path::new("/bin/sh"), &["-c".into(), script.into()], place.path(), true);
    assert_eq!(status.code(), Some(0));
    let files: u32 = output.trim().parse().expect("a number of files");
    assert!(files < 20, "{files} files for the shell and the programs that run");
}

/// A process of one thread begins to record when it finds the lock taken. Its child finds the lock free.
#[test]
fn a_process_of_one_thread_that_waits_for_a_lock_of_a_file_is_recorded() {
    let mut programs = turn();
    let program = build("file_lock", &mut programs);
    for (how, called) in [("fcntl", "fcntl lock"), ("flock", "flock")] {
        let place = directory();
        let (output, status) = run(&program, &[how.into()], place.path(), true);
        assert_eq!((output.as_str(), status.code()), ("end\n", Some(0)), "{how}: {status}");
        let files = std::fs::read_dir(place.path()).unwrap().flatten().map(|file| file.file_name());
        let recordings: Vec<_> = files.filter(|name| name.to_string_lossy().starts_with("trace")).collect();
        assert_eq!(recordings, ["trace"], "{how}");
        let trace = Trace::read(place.path().join("trace")).expect("a recording");
        let is_wait = |name: &str| name == format!("{called} in take");
        assert!(trace.sites.values().any(|site| is_wait(&site.name)), "{how}: {:?}", trace.sites);
    }
}

#[test]
fn a_process_whose_first_thread_ends_is_recorded_to_the_end_of_the_others() {
    let mut programs = turn();
    let program = build("ends", &mut programs);
    let place = directory();
    let (_, status) = run(&program, &["without main".into()], place.path(), true);
    assert_eq!(status.code(), Some(0), "{status}");
    let trace = Trace::read(place.path().join("trace")).expect("a recording");
    assert_eq!(trace.ending, Ending::Complete);
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    let stayers = analysis.operations.iter().find(|row| row.name == "stayer").expect("they were recorded");
    // Each of two threads has the mutex for 10 * 20 ms.
    assert!(stayers.executions == 2 && stayers.elapsed_ns >= 400_000_000, "{stayers:?}");
}

#[test]
fn a_program_that_a_signal_ends_is_reported_with_the_signal() {
    let mut programs = turn();
    let program = build("ends", &mut programs);
    let place = directory();
    let (_, status) = run(&program, &["abort".into()], place.path(), true);
    assert_eq!(status.signal(), Some(6), "{status}");
}

/// The program's exit status is returned whether or not there was something to record.
#[test]
fn a_program_without_threads_keeps_its_exit_status() {
    let _turn = turn();
    let command = vec!["sh".into(), "-c".into(), "exit 7".into()];
    let output = scratch().join("none.trace");
    let launched = launch(&Launch { command, output, ..Launch::default() }).unwrap();
    let Launched { status, recorded, nothing, .. } = launched;
    assert_eq!((status.code(), recorded.len()), (Some(7), 0));
    assert!(matches!(nothing, Some(RecordError::NothingRecorded)), "{nothing:?}");
}

#[test]
fn an_output_that_cannot_be_written_is_an_error_before_the_program_runs() {
    let _turn = turn();
    let place = directory();
    let ran = place.path().join("ran");
    let dangling = place.path().join("dangling");
    std::os::unix::fs::symlink("/nowhere/at/all", &dangling).unwrap();
    let command = vec!["touch".into(), ran.clone().into()];
    let launched = launch(&Launch { command, output: dangling, ..Launch::default() });
    assert!(matches!(launched, Err(RecordError::Write { .. })), "{launched:?}");
    assert!(!ran.exists());
}

#[test]
fn a_recording_that_finds_the_disk_full_at_its_end_is_kept_elsewhere() {
    let mut programs = turn();
    let program = build("becomes", &mut programs);
    let place = directory();
    let full = place.path().join("full");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let command = vec![program.into()];
    let launched = launch(&Launch { command, output: full, ..Launch::default() });
    let launched = launched.expect("the program ran");
    assert_eq!((launched.status.code(), launched.recorded.len()), (Some(0), 1), "the other is beside");
    let Some(RecordError::Kept { path: kept, source }) = &launched.unwritten else {
        panic!("{launched:?}");
    };
    assert!(source.to_string().starts_with("cannot write"), "{source}");
    assert_eq!(std::fs::read_dir(kept).expect("they are there").count(), 2, "{launched:?}");
    std::fs::remove_dir_all(kept.parent().unwrap()).unwrap();
}

/// Nothing is known of the last seconds of threads that sleep when their process is killed.
#[test]
fn threads_that_sleep_when_their_process_is_killed_have_no_processor_time() {
    let mut programs = turn();
    let program = build("killed", &mut programs);
    let place = directory();
    let (_, status) = run(&program, &[], place.path(), true);
    assert_eq!(status.signal(), Some(9), "{status}");
    let trace = Trace::read(place.path().join("trace")).expect("a recording");
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).unwrap();
    let sleepers = analysis.operations.iter().find(|row| row.name == "sleeper").expect("they were recorded");
    assert!(sleepers.elapsed_ns > 4_000_000_000, "{sleepers:?}");
    assert!(sleepers.cpu_ns.is_none_or(|cpu| cpu < sleepers.elapsed_ns / 4), "{sleepers:?}");
}

/// Runs the program of limits with and without the recorder, and returns the recording.
fn limits(kind: &str) -> Trace {
    let mut programs = turn();
    let program = build("limits", &mut programs);
    let [plain, recorded] = [false, true].map(|is_recorded| {
        let place = directory();
        let seen = run(&program, &[kind.to_owned()], place.path(), is_recorded);
        (seen, Trace::read(place.path().join("trace")).ok())
    });
    assert_eq!(plain.0, recorded.0, "{kind}");
    assert_eq!(plain.0.1.code(), Some(6), "{kind}");
    recorded.1.expect("a recording")
}

#[test]
fn a_thread_that_finds_semaphores_free_can_be_canceled() {
    limits("cancel");
}

#[test]
fn a_robust_mutex_that_is_not_recoverable_returns_this_each_time() {
    limits("robust");
}

#[test]
fn times_and_clocks_that_the_c_library_rejects_are_rejected() {
    limits("times");
}

#[test]
fn a_program_that_may_write_small_files_only_is_recorded_with_names() {
    let trace = limits("files");
    assert!(trace.sites.values().any(|site| site.name.starts_with("limit_mutex")), "{:?}", trace.sites);
}

#[test]
fn a_program_with_limited_address_space_can_use_nearly_all_of_it() {
    limits("memory");
}

#[test]
fn a_program_that_limits_its_own_address_space_can_use_nearly_all_of_it() {
    for kind in ["own memory", "own memory by number"] {
        let trace = limits(kind);
        assert_eq!(trace.threads.len(), 7, "threads that start later are recorded, too");
    }
}

#[test]
fn a_program_that_restricts_its_system_calls_is_recorded_up_to_there() {
    for kind in ["strict", "filter", "filter by number"] {
        limits(kind);
    }
}

/// Before Linux 5.14, the number of threads that find a ring depends on the speed of the recorder, which
/// makes rings meanwhile.
#[test]
fn ten_thousand_threads_at_a_time_are_recorded() {
    /// Memory of the rings, rounded up.
    const BYTES: u64 = 1 << 30;
    let mut programs = turn();
    let program = build("storm", &mut programs);
    let place = directory();
    let count = "10000";
    if !run(&program, &[count.into()], place.path(), false).1.success() {
        return println!("not tried: fewer threads are permitted");
    }
    let output = place.path().join("trace");
    let command = vec![program.into(), count.into()];
    let launched = launch(&Launch { command, output, ..Launch::default() });
    let launched = launched.expect("the program ran");
    assert_eq!(launched.status.code(), Some(0), "{launched:?}");
    let trace = Trace::read(place.path().join("trace")).expect("a recording");
    let (recorded, unrecorded) = (trace.threads.len() as u64, trace.unrecorded_threads);
    assert_eq!(recorded + unrecorded, 10_001, "{unrecorded} were not recorded");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release: Vec<u32> = release.split('.').map_while(|number| number.parse().ok()).collect();
    let shared = rustix::fs::statvfs("/dev/shm").map_or(0, |of| of.f_bavail * of.f_frsize);
    if release.as_slice() >= [5, 14].as_slice() && shared > BYTES {
        assert_eq!(unrecorded, 0, "{launched:?}");
    }
    let is_told = launched.missing.iter().any(|report| report.starts_with(&format!("{unrecorded} threads")));
    assert_eq!(is_told, unrecorded > 0, "{launched:?}");
}

/// In another PID namespace, the ids of processes and threads are those of other processes of the recorder's.
#[test]
fn a_program_in_a_pid_namespace_is_recorded_to_its_end_where_users_may_create_one() {
    let mut programs = turn();
    let program = build("limits", &mut programs);
    let script = r#"
        unshare --user --map-root-user --pid --fork true 2>/dev/null || { echo none; exit 6; }
        unshare --user --map-root-user --pid --fork sh -c 'true & wait; "$0" work & wait $!' "$0"
    "#;
    let place = directory();
    let arguments = ["-c".into(), script.into(), program.display().to_string()];
    let (output, status) = run(Path::new("/bin/sh"), &arguments, place.path(), true);
    if output == "none\n" {
        return println!("not tried: no namespace");
    }
    assert_eq!((output.as_str(), status.code()), ("end\n", Some(6)));
    let trace = Trace::read(place.path().join("trace")).expect("a recording");
    assert_eq!((trace.ending, trace.threads.len()), (Ending::Complete, 4));
    assert!(trace.event_count() > 600, "{}", trace.event_count());
}

#[test]
fn short_programs_in_a_pid_namespace_are_not_taken_for_running() {
    let _turn = turn();
    let place = directory();
    let script = r"
        unshare --user --map-root-user --pid --fork true 2>/dev/null || exit 6
        exec unshare --user --map-root-user --pid --fork sh -c '/bin/true; /bin/true; sleep 0.1'
    ";
    let command = vec!["sh".into(), "-c".into(), script.into()];
    let launched = launch(&Launch { command, output: place.path().join("trace"), ..Launch::default() });
    let launched = launched.expect("the program ran");
    assert!(launched.missing.is_empty(), "{launched:?}");
}

/// Programs that start after the recorder's end find the library, so the loader prints no error.
#[test]
fn processes_that_outlive_the_recorder_start_programs_normally() {
    let _turn = turn();
    let place = directory();
    let out = place.path().join("out");
    let over = place.path().join("over");
    let script = r#"
        exec >"$0" 2>&1
        (
            : >"$0.runs"
            for try in $(seq 600); do [ -e "$1" ] && break; sleep 0.1; done
            env echo later
        ) &
        until [ -e "$0.runs" ]; do sleep 0.1; done
        echo first
    "#;
    let command = vec!["sh".into(), "-c".into(), script.into(), out.clone().into(), over.clone().into()];
    let launched = launch(&Launch { command, output: place.path().join("trace"), ..Launch::default() });
    let launched = launched.expect("the program ran");
    let said = || std::fs::read_to_string(&out).expect("its output");
    assert_eq!((said().as_str(), launched.status.code()), ("first\n", Some(0)));
    std::fs::write(over, "").expect("the recorder's end is reported");
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !said().contains("later") && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(said(), "first\nlater\n");
    let report =
        launched.missing.iter().find_map(|report| report.split_once("need ")?.1.split_once("; remove"));
    let library = report.map(|(library, _)| library);
    let library = Path::new(library.expect("it says where the library is"));
    std::fs::remove_dir_all(library.parent().expect("a directory")).expect("it is there");
}

/// A library that the user loads before the C library keeps its place, also for functions of which the C
/// library has several versions.
#[test]
fn a_library_that_the_user_preloads_is_still_called() {
    let mut programs = turn();
    let program = build("storm", &mut programs);
    let library = scratch().join("interposer.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted/interposer.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let compiled = Command::new(compiler)
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .expect("a C compiler, as CONTRIBUTING says");
    assert!(compiled.success());
    let script = r#"LD_PRELOAD="$LD_PRELOAD:$0" exec "$1""#;
    let arguments = [script.into(), library.display().to_string(), program.display().to_string()];
    let arguments: Vec<String> = ["-c".to_owned()].into_iter().chain(arguments).collect();
    let [plain, recorded] = [false, true].map(|is_recorded| {
        let (output, status) = run(Path::new("/bin/sh"), &arguments, directory().path(), is_recorded);
        assert_eq!(status.code(), Some(0), "{output}");
        output
    });
    assert!(plain.contains("broadcast"), "{plain}");
    assert_eq!(recorded, plain);
}

/// Compares a program that is built with a sanitizer, with and without the recorder. A finding ends such a
/// program with another status.
#[test]
fn sanitizers_find_as_much_as_without_the_recorder() {
    let _turn = turn();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planted/storm.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    for sanitizer in ["address", "thread", "undefined"] {
        let program = scratch().join(format!("storm-{sanitizer}"));
        let compiled = Command::new(&compiler)
            .args([
                "-g",
                "-O1",
                "-pthread",
                &format!("-fsanitize={sanitizer}"),
                "-DTHREADS=20",
                "-DROUNDS=10",
            ])
            .arg("-o")
            .args([&program, &source])
            .output();
        let once = |is_recorded| run(&program, &[], directory().path(), is_recorded);
        if !compiled.is_ok_and(|compiled| compiled.status.success()) || once(false).1.code() != Some(0) {
            println!("not tried: {sanitizer} sanitizer");
            continue;
        }
        let (output, status) = once(true);
        assert_eq!((output.as_str(), status.code()), ("end\n", Some(0)), "{sanitizer}");
    }
}

/// The first signal is the program's own, and subshells send the others. This process handles `SIGINT`, so
/// the program starts with the default action: it cannot trap a signal that was ignored when it started.
#[test]
fn signals_of_other_processes_to_the_recorder_reach_the_program() {
    let _turn = turn();
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::default()).expect("a handler");
    let place = directory();
    let script = r#"
        trap 'echo own' USR2; kill -USR2 $PPID
        trap 'echo first; is_first=yes' TERM; trap 'echo second; is_second=yes' INT
        trap 'echo third; exit 4' USR1
        (kill -TERM $PPID; :); until [ "$is_first" ]; do sleep 0.1; done
        (kill -INT $PPID; :); until [ "$is_second" ]; do sleep 0.1; done; (kill -USR1 $PPID; :)
        for try in $(seq 600); do sleep 0.1; done
    "#;
    let (output, status) = run(Path::new("/bin/sh"), &["-c".into(), script.into()], place.path(), true);
    assert_eq!((output.as_str(), status.code()), ("first\nsecond\nthird\n", Some(4)));
}

/// Runs programs of random seeds, each with and without the recorder, and compares output and status.
fn stress(seeds: std::ops::Range<u64>) {
    let mut programs = turn();
    let program = build("random", &mut programs);
    for seed in seeds {
        let once = |is_recorded| {
            let place = directory();
            run(&program, &[seed.to_string()], place.path(), is_recorded)
        };
        let (with, without) = (once(true), once(false));
        assert_eq!(with, without, "seed {seed}: AZEKURA_STRESS_SEED={seed} runs it alone");
    }
}

#[test]
fn random_programs_write_and_end_as_they_do_without_the_recorder() {
    match std::env::var("AZEKURA_STRESS_SEED").map(|seed| seed.parse().expect("a number")) {
        Ok(seed) => stress(seed..seed + 1),
        Err(_) => stress(1..31),
    }
}

#[test]
#[ignore = "minutes: a thousand programs, each with and without the recorder"]
fn a_thousand_random_programs_write_and_end_as_they_do_without_the_recorder() {
    stress(1_000..2_000);
}

/// Tests other allocators where they are installed: `libjemalloc2`, `libtcmalloc-minimal4`, `libmimalloc2.0`.
#[test]
fn programs_on_other_installed_allocators_run_unchanged() {
    let mut programs = turn();
    let program = build("allocates", &mut programs);
    for (name, file) in [
        ("jemalloc", "libjemalloc.so.2"),
        ("tcmalloc", "libtcmalloc_minimal.so.4"),
        ("mimalloc", "libmimalloc.so.2"),
    ] {
        let found = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"]
            .into_iter()
            .flat_map(|place| [file.to_owned(), format!("{file}.0")].map(|file| Path::new(place).join(file)))
            .find(|path| path.exists());
        let Some(library) = found else {
            println!("not tried: {name} is not installed");
            continue;
        };
        let place = directory();
        let script = r#"LD_PRELOAD="$LD_PRELOAD:$0" exec "$1""#;
        let paths = [&library, &program].map(|path| path.display().to_string());
        let arguments = ["-c".to_owned(), script.to_owned()].into_iter().chain(paths).collect::<Vec<_>>();
        let (output, status) = run(Path::new("/bin/sh"), &arguments, place.path(), true);
        assert_eq!((output.as_str(), status.code()), ("done\n", Some(0)), "{name}: {status}");
        let trace = Trace::read(place.path().join("trace")).expect("a recording");
        assert!(trace.event_count() > 20, "{name}");
    }
}

/// redis-server allocates with jemalloc. Under the recorder it answers, saves, and stops.
#[test]
fn a_redis_server_runs_unchanged_if_installed() {
    let _turn = turn();
    let is_there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !is_there("redis-server") || !is_there("redis-cli") {
        return println!("not tried: redis-server is not installed");
    }
    let place = directory();
    let script = r#"
        redis-server --port 0 --unixsocket ./redis.sock --io-threads 3 --save '' --appendonly yes >log 2>&1 &
        cli() { redis-cli -s ./redis.sock "$@" 2>/dev/null; }
        for try in $(seq 600); do [ "$(cli ping)" = PONG ] && break; sleep 0.1; done
        for key in $(seq 20); do cli set key:$key "$key"; done | sort | uniq -c | tr -s ' '
        cli dbsize
        cli bgsave >/dev/null
        cli shutdown nosave
        wait $!
        echo "ended with $?"
    "#;
    let (output, status) = run(Path::new("/bin/sh"), &["-c".into(), script.into()], place.path(), true);
    let log = std::fs::read_to_string(place.path().join("log")).unwrap_or_default();
    assert_eq!((output.as_str(), status.code()), (" 20 OK\n20\nended with 0\n", Some(0)), "{log}");
}
