//! Programs in far memory: only messages and rejections. The tests of the library (`azekura-far-preload`)
//! cover the rest.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use azekura_far::FarMemory;

use crate::support::Run;

/// Runs `echo ran` with `value` as the library to preload.
fn with_library(value: &str) -> (bool, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_azekura"))
        .args(["far", "--server", "127.0.0.1:9", "--", "echo", "ran"])
        .env("AZEKURA_FAR_PRELOAD", value)
        .output()
        .expect("the command runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn a_library_that_is_not_there_is_refused_and_the_program_does_not_run_without() {
    for value in ["", "/no/such/library.so", "library.so", "/"] {
        let (went_well, out, error) = with_library(value);
        assert!(!went_well && out.is_empty(), "{value:?}: {out}{error}");
        assert!(error.contains(&format!("AZEKURA_FAR_PRELOAD is {value:?}")), "{error}");
    }
}

#[test]
fn the_help_names_the_default_policy() {
    let help = Run::of(&["far", "--help"]).well();
    assert!(help.contains("[default: adaptive]"), "{help}");
}

/// The server is stopped, so it cannot check anything itself; its parent is a shell.
#[test]
fn a_stopped_memory_server_ends_with_its_killed_parent() {
    let script = r#""$0" memory-server --listen 127.0.0.1:0 --with-parent $$ &
        read go; kill -STOP $! && echo $!; read end"#;
    let mut shell = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_azekura")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    let mut said = BufReader::new(shell.stdout.take().expect("a pipe"));
    let mut line = || {
        let mut line = String::new();
        said.read_line(&mut line).expect("it speaks");
        line
    };
    assert!(line().starts_with("listening on "));
    shell.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it listens");
    let server = line();
    shell.kill().expect("it is killed");
    shell.wait().expect("it has ended");
    // The pipe ends once no process has its write end open.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(said.read_to_end(&mut Vec::new()).is_ok()));
    let ended = receiver.recv_timeout(Duration::from_secs(60));
    if ended.is_err() {
        let _ = Command::new("kill").args(["-KILL", server.trim()]).status();
    }
    assert_eq!(ended, Ok(true), "the server, {server}, is still there");
}

/// Starts a memory server under a limit of open files, given as options of `ulimit`. Also returns its
/// address.
fn server_under(limit: &str) -> (Child, String) {
    let script = format!(r#"ulimit {limit} && exec "$0" memory-server --listen 127.0.0.1:0"#);
    let mut server = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_azekura")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut line).expect("it speaks");
    let address = line.trim().strip_prefix("listening on ").expect("its address").to_owned();
    (server, address)
}

/// Opens far memory at a server, at most 20 times, until the server does not answer within the stall time.
/// Each uses two descriptors of the server.
fn programs(address: &str, stall: Duration) -> Vec<FarMemory> {
    let open = || {
        FarMemory::builder()
            .bytes(1 << 20)
            .local(1 << 20)
            .page(4096)
            .servers([address.to_owned()])
            .stall(stall)
            .build()
    };
    (0..20).map_while(|_| open().ok()).collect()
}

#[test]
fn a_memory_server_without_free_descriptors_can_be_stopped() {
    let (mut server, address) = server_under("-n 24");
    let programs = programs(&address, Duration::from_secs(5));
    let number = server.id().to_string();
    let sent = |signal: &str| Command::new("kill").args([signal, &number]).status().is_ok();
    assert!(sent("-TERM"));
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(server.wait().is_ok()));
    let ended = receiver.recv_timeout(Duration::from_secs(60));
    assert!(ended.is_ok() || sent("-KILL"));
    assert_eq!(ended, Ok(true), "the server does not end");
    assert!((1..20).contains(&programs.len()), "{} programs", programs.len());
}

#[test]
fn a_memory_server_raises_its_limit_of_descriptors_for_its_programs() {
    let (mut server, address) = server_under("-S -n 24");
    let programs = programs(&address, Duration::from_secs(60)).len();
    server.kill().expect("it runs");
    server.wait().expect("it has ended");
    assert_eq!(programs, 20);
}

#[test]
fn a_memory_server_that_is_given_a_wrong_parent_is_refused() {
    let refused = Run::of(&["memory-server", "--listen", "127.0.0.1:0", "--with-parent", "4194305"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("process 4194305 did not start this one"), "{}", refused.stderr);
}
