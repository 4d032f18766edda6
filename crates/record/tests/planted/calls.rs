//! Calls that the library intercepts, and programs that cannot load it.

use super::{build, others, record, scratch, turn};
use azekura_record::{Launch, RecordError, launch};
use azekura_trace::WaitKind;
use azekura_trace::analyze::{Analysis, AnalyzeOptions, Verdict};
use azekura_trace::file::Trace;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

fn analysis(name: &str, operation: &str) -> Analysis {
    let mut programs = turn(); // held to the end, because all tests use the same file for the recording
    let program = build("calls", &mut programs);
    analysis_in(&program, name, operation, &scratch().join("calls.trace"))
}

fn analysis_in(program: &Path, name: &str, operation: &str, output: &Path) -> Analysis {
    assert_eq!(record(program, &[name], output), Ok(0), "{name}: the number of functions without a hook");
    let options = AnalyzeOptions { operation: Some(operation.into()), ..AnalyzeOptions::default() };
    Analysis::new(&Trace::read(output).expect("a recording"), &options).expect("the thread's function")
}

#[test]
fn each_call_that_receives_from_a_socket_is_a_wait_for_the_network() {
    for (name, called) in [("recvfrom", "recv"), ("recvmsg", "recv"), ("readv", "read")] {
        let mut report = String::new();
        // One right recording of three is enough, as in the other tests.
        let is_right = (0..3).any(|_| {
            let analysis = analysis(name, "receiver");
            let site = analysis.sites.iter().find(|site| site.name == format!("{called} in receiver"));
            let is_network = site.is_some_and(|site| site.kind == Some(WaitKind::Network));
            let sentence = analysis.verdict.sentence();
            report = format!("{sentence} {:#?} of {:?}", analysis.sites, analysis.recorded);
            let is_disturbed = others(&analysis).is_none_or(|part| part > 0.2);
            is_network && (is_disturbed || sentence.contains("waiting for the network"))
        });
        assert!(is_right, "{name}: {report}");
    }
}

#[test]
fn a_wait_for_completions_of_io_uring_is_named() {
    let mut programs = turn();
    let program = build("io_ring", &mut programs);
    let output = scratch().join("io_ring.trace");
    match record(&program, &[], &output) {
        Ok(3) => println!("not judged: the system has no io_uring"),
        other => {
            assert_eq!(other, Ok(0));
            let analysis = Analysis::new(&Trace::read(&output).unwrap(), &AnalyzeOptions::default()).unwrap();
            let site = analysis.sites.iter().find(|site| site.name == "io_uring in wait_for_one");
            assert!(site.is_some_and(|site| site.count > 10), "{:#?}", analysis.sites);
        }
    }
}

#[test]
fn waits_for_pages_of_a_mapped_file_are_told_as_such() {
    let mut programs = turn();
    let program = build("mapped_file", &mut programs);
    let output = scratch().join("mapped_file.trace");
    let command = vec![program.into(), scratch().join("mapped").into()];
    let launched = launch(&Launch { command, output: output.clone(), ..Launch::default() }).unwrap();
    if launched.status.code() == Some(3) || !launched.refusals.is_empty() {
        println!("not judged: no device behind the file system, or {:?}", launched.refusals);
        return;
    }
    assert_eq!(launched.status.code(), Some(0));
    let options = AnalyzeOptions { operation: Some("reader".into()), ..AnalyzeOptions::default() };
    let analysis = Analysis::new(&Trace::read(&output).unwrap(), &options).unwrap();
    let is_told = |a: &Analysis| match &a.verdict {
        Verdict::PageFaults { count, site, .. } => *count > 100 && site.starts_with("page fault in reader"),
        // Other programs used the processors.
        Verdict::Cpu { .. } => others(a).is_none_or(|part| part > 0.2) && !a.faults.is_empty(),
        _ => false,
    };
    assert!(is_told(&analysis), "{} {:#?}", analysis.verdict.sentence(), analysis.faults);
}

#[test]
fn calls_that_send_wait_for_the_network_and_calls_that_wait_for_others_are_idle() {
    let sends = ["send", "sendto", "sendmsg", "sendfile"]
        .map(|name| (name, "sender", "send in send_part", WaitKind::Network));
    let idle = [
        ("waitpid", "waitpid in blocked"),
        ("waitid", "waitpid in blocked"),
        ("wait", "waitpid in blocked"),
        ("sleep", "sleep in blocked"),
        ("flock", "flock in blocked"),
        ("semop", "semop in blocked"),
        ("sigtimedwait", "sigwait in blocked"),
        ("epoll_pwait", "epoll in blocked"),
        ("fcntl", "fcntl lock in lock_byte"),
        ("lockf", "lockf in lock_byte"),
        ("description", "fcntl lock in lock_of_description"),
        ("futex_waitv", "word_list, futex, waited for in wait_for_words"),
        ("mq_receive", "mq_receive in blocked"),
        ("mq_send", "mq_send in blocked"),
    ]
    .map(|(name, site)| (name, "blocked", site, WaitKind::Idle));
    let others = [
        ("connect", "blocked", "connect in connect_once", WaitKind::Network),
        ("pi lock", "blocked", "pi_lock, futex, waited for in lock_in_kernel", WaitKind::Other),
    ];
    let has_queues = Path::new("/proc/sys/fs/mqueue").exists();
    let is_there = |name: &str| has_queues || !name.starts_with("mq_");
    let all: Vec<_> = sends.into_iter().chain(idle).chain(others).filter(|call| is_there(call.0)).collect();
    let mut programs = turn();
    let program = &build("calls", &mut programs);
    // The programs mostly sleep, so four run at once.
    thread::scope(|scope| {
        for (number, part) in all.chunks(all.len().div_ceil(4)).enumerate() {
            scope.spawn(move || {
                let output = scratch().join(format!("calls-{number}.trace"));
                for &(name, transaction, site, kind) in part {
                    // A thread that starts late may wait for no other one, so one right recording of three is
                    // enough.
                    let mut report = String::new();
                    let is_right = (0..3).any(|_| {
                        let analysis = analysis_in(program, name, transaction, &output);
                        report = format!("{:#?}", analysis.sites);
                        analysis.sites.iter().any(|found| found.name == site && found.kind == Some(kind))
                    });
                    assert!(is_right, "{name}: {report}");
                }
            });
        }
    });
}

#[test]
fn threads_and_timed_mutexes_of_iso_c_are_recorded() {
    // A thread that starts late may find the mutex free, so one right recording of three is enough.
    let mut report = String::new();
    let is_right = (0..3).any(|_| {
        let analysis = analysis("timed", "clerk");
        let clerk = analysis.chosen().expect("chosen");
        assert_eq!((clerk.executions, clerk.threads), (2, 2));
        report = format!("{:#?}", analysis.sites);
        assert!(analysis.sites.iter().any(|site| site.name == "sleep in pause_us"), "{report}");
        let is_ledger = |name: &str| name.starts_with("ledger, mutex, waited for in clerk");
        analysis.sites.iter().any(|site| is_ledger(&site.name) && site.count >= 1)
    });
    assert!(is_right, "{report}");
}

/// Returns the reason why a program was refused, and checks that it did not run: it would write a file.
fn refusal(program: &Path) -> String {
    let ran = scratch().join("refused.ran");
    let _ = std::fs::remove_file(&ran);
    let command = vec![program.into(), ran.clone().into()];
    let launched = launch(&Launch { command, output: scratch().join("no.trace"), ..Launch::default() });
    assert!(!ran.exists(), "it did not run");
    match launched {
        Err(RecordError::NotRecordable { reason, .. }) => reason.to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Compiles a program that writes the file named by its argument; `None` if the compiler fails with these
/// flags.
fn compiled(name: &str, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (scratch().join(format!("{name}.c")), scratch().join(name));
    let text = "#include <stdio.h>\nint main(int n, char **a) { return n != 2 || !fopen(a[1], \"w\"); }\n";
    std::fs::write(&source, text).expect("the scratch directory");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let done = Command::new(compiler).args(flags).arg("-o").args([&program, &source]).output();
    done.is_ok_and(|done| done.status.success()).then_some(program)
}

#[test]
fn programs_that_no_library_can_be_loaded_into_do_not_run() {
    let _turn = turn();
    match compiled("refused_static", &["-static"]) {
        Some(program) => {
            let reason = refusal(&program);
            assert!(reason.contains("statically linked") && reason.contains("--pid"), "{reason}");
        }
        None => println!("not tried: this compiler links no static program"),
    }
    let program = compiled("refused_other", &[]).expect("a C compiler, as CONTRIBUTING says");
    // Byte 18 of an ELF file is the processor; 8 is MIPS.
    let mut bytes = std::fs::read(&program).expect("just made");
    bytes[18] = 8;
    std::fs::write(&program, bytes).expect("just made");
    let reason = refusal(&program);
    assert!(reason.contains("another kind of processor") && reason.contains("--pid"), "{reason}");
}
