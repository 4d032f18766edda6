//! Locks inside allocators.

use super::{build, judge_runs, scratch, turn};
use azekura_record::{RecordError, attach_until};
use azekura_trace::WaitKind;
use azekura_trace::analyze::{Analysis, AnalyzeOptions};
use azekura_trace::file::Trace;
use std::process::Command;
use std::time::Duration;

/// As root, the lock of glibc's only arena has the allocator's name.
#[test]
fn waits_for_the_lock_of_an_arena_are_for_the_allocator() {
    let mut programs = turn();
    let program = build("arena", &mut programs);
    judge_runs("arena", || {
        let mut server = Command::new(&program).spawn().unwrap();
        let tasks = format!("/proc/{}/task", server.id());
        while std::fs::read_dir(&tasks).expect("it runs").count() < 5 {
            std::thread::yield_now();
        }
        let output = scratch().join("arena.trace");
        let recorded = attach_until(server.id(), Some(Duration::from_secs(1)), &output);
        server.kill().unwrap();
        server.wait().unwrap();
        if let Err(error @ (RecordError::NotPermitted { .. } | RecordError::Kernel { .. })) = recorded {
            println!("not judged: {error}");
            return None;
        }
        recorded.unwrap();
        let analysis = Analysis::new(&Trace::read(&output).unwrap(), &AnalyzeOptions::default()).unwrap();
        let lock = analysis.sites.iter().find(|site| site.kind == Some(WaitKind::Other));
        let name = "the allocator's lock (glibc arena), waited for in churn";
        let is_right = lock.is_some_and(|lock| lock.name.starts_with(name));
        let message = format!("{:#?}", analysis.sites);
        (!is_right).then_some((analysis, message))
    });
}
