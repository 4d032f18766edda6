//! Limits of a program, and ends of a program, that concern the layer's descriptors and messages.

use azekura_far::Mechanism;
use azekura_far::launch::Launch;
use std::fs::File;
use std::process::{Command, Stdio};

use crate::support::{compiled, launch, mechanisms_of_calls, run, same, same_with, server};

/// The kernel sends a signal to a thread that writes to such a file. The program would end before it has
/// written its own output.
#[test]
fn a_program_ends_as_without_far_memory_if_the_layer_cannot_write_its_report() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("output");
    let run_with = |setting: &Launch, limit: &str, errors: Stdio| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limit} exec {}", compiled("written").display())]);
        setting.prepare(&mut command).unwrap();
        let status =
            command.stdin(Stdio::null()).stdout(File::create(&path).unwrap()).stderr(errors).status();
        assert_eq!(status.unwrap().code(), Some(5), "{limit}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1\n", "{limit}");
    };
    let server = server();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    run_with(&launch(&server), "", writer.into());
    // The file of the statistics is as long as the limit, in blocks of 1024 or 512 bytes.
    let stats_json = Some(directory.path().join("far.json"));
    std::fs::write(directory.path().join("far.json"), vec![b' '; 8192]).unwrap();
    let limited = Launch { stats_json, mechanism: Mechanism::UserModeCopy, quiet: true, ..launch(&server) };
    run_with(&limited, "ulimit -f 8;", Stdio::null());
}

#[test]
fn a_limit_of_file_sizes_makes_spilled_memory_ordinary_memory() {
    let directory = tempfile::tempdir().unwrap();
    for mechanism in mechanisms_of_calls() {
        let spill = || Some(directory.path().join("pages"));
        let spilled = Launch { mechanism, servers: Vec::new(), spill: spill(), ..launch(&server()) };
        let mut command = Command::new(compiled("rights"));
        command.arg("files");
        let out = run(command, Some(&spilled));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), &out.stdout[..]), (Some(0), &b"0 0 0\n"[..]), "{mechanism}: {said}");
        assert!(said.contains("RLIMIT_FSIZE"), "{mechanism}: {said}");
    }
}

#[test]
fn a_process_ends_with_its_last_thread_without_a_free_descriptor_and_without_proc() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    for mechanism in mechanisms_of_calls() {
        same("last", &[], mechanism);
        same("last", &[root], mechanism);
    }
}

#[test]
fn f1_arguments_of_new_programs_may_be_longer_than_local_memory() {
    let small = |server: &_, mechanism| Launch { mechanism, page: 4096, local: 1 << 20, ..launch(server) };
    mechanisms_of_calls().into_iter().for_each(|mechanism| same_with("arguments", &[], small, mechanism));
}
