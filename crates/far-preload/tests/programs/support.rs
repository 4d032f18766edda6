//! Compiles the programs of this directory, and runs them without and with far memory.

use azekura_far::launch::Launch;
use azekura_far::{FarError, FarMemory, Mechanism, Server};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tempfile::TempDir;

/// Settings with much less local memory than the programs use. A busy machine may not run a server, which is
/// a thread of the test, for some seconds; a server that has ended is noticed by its connection.
pub(crate) fn launch(server: &Server) -> Launch {
    Launch {
        servers: vec![server.address().to_string()],
        local: 4 << 20,
        space: 512 << 20,
        page: 256 << 10,
        block: 256 << 10,
        stall_ms: 60_000,
        ..Launch::default()
    }
}

pub(crate) fn server() -> Server {
    Server::builder().capacity(128 << 20).listen("127.0.0.1:0").unwrap()
}

/// Returns the mechanisms that this system and user support.
pub(crate) fn mechanisms() -> Vec<Mechanism> {
    static FOUND: OnceLock<Vec<Mechanism>> = OnceLock::new();
    FOUND.get_or_init(find_mechanisms).clone()
}

/// Returns the mechanisms that differ in their treatment of system calls, for tests of hooks: one for which
/// the kernel waits, one for which it does not, and SIGSEGV. Whether pages are moved or copied makes no
/// difference to a hook.
pub(crate) fn mechanisms_of_calls() -> Vec<Mechanism> {
    let all = mechanisms();
    let waits = |mechanism: &&Mechanism| mechanism.serves_system_calls();
    let is_other = |mechanism: &&Mechanism| !waits(mechanism) && **mechanism != Mechanism::Sigsegv;
    let kinds = all.iter().find(waits).into_iter().chain(all.iter().rev().find(is_other));
    kinds.chain(all.iter().find(|mechanism| **mechanism == Mechanism::Sigsegv)).copied().collect()
}

fn find_mechanisms() -> Vec<Mechanism> {
    let can = |mechanism: &Mechanism| {
        let server = server();
        let made = FarMemory::builder()
            .bytes(1 << 20)
            .local(1 << 20)
            .page(4096)
            .mechanism(*mechanism)
            .servers([server.address().to_string()])
            .stall(Duration::from_secs(60))
            .build();
        match made {
            Ok(_) => true,
            Err(FarError::Mechanism { source, .. }) => {
                println!("skipped: {mechanism} is not to be had here: {source}");
                false
            }
            Err(error) => panic!("{error}"),
        }
    };
    Mechanism::LADDER.into_iter().filter(can).collect()
}

/// Makes a program or library once, because several tests may run the same one at the same time.
fn made(name: &str, make: impl FnOnce(&Path) -> Command) -> PathBuf {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    static MADE: Mutex<BTreeMap<String, Arc<OnceLock<()>>>> = Mutex::new(BTreeMap::new());
    let program = DIRECTORY.get_or_init(|| tempfile::tempdir().unwrap()).path().join(name);
    let made = Arc::clone(MADE.lock().unwrap().entry(name.to_owned()).or_default());
    made.get_or_init(|| {
        let out = make(&program).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    });
    program
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name).with_extension("c")
}

fn cc(source: &Path, to: &Path) -> Command {
    let mut command = Command::new("cc");
    command.args(["-O1", "-pthread", "-Wall"]).arg(source).arg("-o").arg(to);
    command
}

/// Returns the program compiled from `name.c`.
pub(crate) fn compiled(name: &str) -> PathBuf {
    made(name, |program| cc(&source(name), program))
}

/// Returns the library compiled from `name.c`.
pub(crate) fn library(name: &str) -> PathBuf {
    made(&format!("lib{name}.so"), |library| {
        let mut command = cc(&source(name), library);
        command.args(["-shared", "-fPIC", "-fno-builtin"]);
        command
    })
}

/// Returns the program linked with an allocator library.
pub(crate) fn with_allocator(name: &str) -> PathBuf {
    with_library(name, "allocator")
}

/// Returns the program linked with the library compiled from `other.c`.
pub(crate) fn with_library(name: &str, other: &str) -> PathBuf {
    let library = library(other);
    made(&format!("{name}-with-{other}"), |program| {
        let mut command = cc(&source(name), program);
        command.arg(&library).arg(format!("-Wl,-rpath,{}", library.parent().unwrap().display()));
        command
    })
}

pub(crate) fn run(mut command: Command, launch: Option<&Launch>) -> Output {
    if let Some(launch) = launch {
        launch.prepare(&mut command).unwrap();
    }
    command.stdin(Stdio::null()).output().unwrap()
}

/// Checks that the program's output is the same with far memory as without, and that pages were paged out.
pub(crate) fn same(name: &str, arguments: &[&str], mechanism: Mechanism) {
    same_of(&compiled(name), arguments, mechanism);
}

pub(crate) fn same_of(program: &Path, arguments: &[&str], mechanism: Mechanism) {
    same_by(program, arguments, |server, mechanism| Launch { mechanism, ..launch(server) }, mechanism);
}

/// Checks the output as [`same`] does, with another setting.
pub(crate) fn same_with(
    name: &str,
    arguments: &[&str],
    setting: impl Fn(&Server, Mechanism) -> Launch,
    mechanism: Mechanism,
) {
    same_by(&compiled(name), arguments, setting, mechanism);
}

/// Returns the output of a program without far memory. The program runs once for all mechanisms.
fn plain_output(command: Command) -> Vec<u8> {
    static KNOWN: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
    let name = format!("{command:?}");
    let known = KNOWN.lock().unwrap().get(&name).cloned();
    known.unwrap_or_else(|| {
        let output = run(command, None).stdout;
        KNOWN.lock().unwrap().insert(name, output.clone());
        output
    })
}

fn same_by(
    program: &Path,
    arguments: &[&str],
    setting: impl Fn(&Server, Mechanism) -> Launch,
    mechanism: Mechanism,
) {
    let name = program.display();
    let command = || {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    };
    let plain =
        if arguments == ["touch"] { b"the child was stopped\n".to_vec() } else { plain_output(command()) };
    let server = server();
    let far = run(command(), Some(&setting(&server, mechanism)));
    let said = String::from_utf8_lossy(&far.stderr);
    assert!(
        far.status.success(),
        "{name} by {mechanism}: {}, {}{said}",
        far.status,
        String::from_utf8_lossy(&far.stdout)
    );
    assert_eq!(
        String::from_utf8_lossy(&far.stdout),
        String::from_utf8_lossy(&plain),
        "{name} by {mechanism}: {said}"
    );
    assert!(said.contains(mechanism.name()), "{said}");
    assert!(server.stats().puts > 10, "{name} by {mechanism}: {:?} {said}", server.stats());
}
