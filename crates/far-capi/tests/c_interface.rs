//! The C example compiles with the header, links with the library, and prints the expected result.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use azekura_far::Server;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path at which cargo put the library.
fn library() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let places = here.ancestors().skip(1).take(2).map(|place| place.join("libazekura_far.so"));
    places
        .filter(|path| path.is_file())
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap())
        .expect("cargo built it")
}

#[test]
fn the_c_example_runs_and_gets_error_messages() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("far");
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1"])
        .arg(source.join("examples/far.c"))
        .arg("-I")
        .arg(source.join("include"))
        .arg(library())
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = |server: &str| {
        let path = library().parent().unwrap().to_owned();
        let out = Command::new(&program).arg(server).env("LD_LIBRARY_PATH", path).output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
    };
    let server = Server::builder().capacity(16 << 20).listen("127.0.0.1:0").unwrap();
    let address = server.address().to_string();
    // The example has the default time limit. A busy machine may stop the server's thread for so long that
    // the server counts as lost.
    let is_lost = |said: &String| said.contains(" is lost: ");
    let said = (0..2).map(|_| run(&address)).find(|said| !is_lost(said)).unwrap_or_else(|| run(&address));
    assert_eq!(said, "right, pages went: yes\n");
    assert!(run("127.0.0.1:1").starts_with("cannot connect to memory server 127.0.0.1:1: "));
}
