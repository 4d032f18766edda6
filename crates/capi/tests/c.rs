//! Tests of the C interface. The header matches the code. The C example compiles without warnings and runs,
//! with AddressSanitizer if the compiler supports it. The library exports only the names in the header.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
const FLAGS: [&str; 4] = ["-std=c99", "-Wall", "-Wextra", "-Werror"];

/// Returns the path of the library that cargo built for this test.
fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("has a path");
    let deps = test.parent().expect("lies in a directory");
    let places = [deps.join(name), deps.parent().expect("is below target").join(name)];
    places.into_iter().find(|path| path.exists()).unwrap_or_else(|| panic!("no {name} at {}", deps.display()))
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn succeeds(command: &mut Command) -> String {
    let output = run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}{complained}", output.status);
    said
}

fn compile(source: &Path, flags: &[&str], to: &Path) -> Command {
    let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    command.args(FLAGS).args(flags).arg("-I").arg(Path::new(CRATE).join("include")).arg(source);
    command.arg(library("libazekura_c.a")).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(to);
    command
}

#[test]
fn the_header_is_the_one_that_cbindgen_makes() {
    let config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).expect("is well formed");
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(Path::new(CRATE).join("src/lib.rs")) // includes its modules
        .generate()
        .expect("the interface has C types only");
    let mut made = Vec::new();
    bindings.write(&mut made);
    let made = String::from_utf8(made).expect("is UTF-8");
    let path = Path::new(CRATE).join("include/azekura.h");
    if std::env::var_os("AZEKURA_UPDATE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("writes");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == kept,
        "{} is not that of the code; run this test with AZEKURA_UPDATE_HEADER=1",
        path.display()
    );
}

#[test]
fn the_example_runs_and_again_with_address_sanitizer() {
    runs_and_again_with_address_sanitizer("examples/shop.c");
}

#[test]
fn the_example_of_upkeep_runs_and_again_with_address_sanitizer() {
    runs_and_again_with_address_sanitizer("examples/upkeep.c");
}

#[test]
fn the_example_of_multimap_tables_and_parts_runs_and_again_with_address_sanitizer() {
    runs_and_again_with_address_sanitizer("examples/photos.c");
}

#[test]
fn a_transaction_moves_to_another_thread() {
    runs_and_again_with_address_sanitizer("tests/threads.c");
}

#[test]
fn random_calls_have_the_results_of_a_model() {
    runs_and_again_with_address_sanitizer("tests/calls.c");
}

fn runs_and_again_with_address_sanitizer(source: &str) {
    let scratch = tempfile::tempdir().expect("is made");
    let source = Path::new(CRATE).join(source);
    let empty = scratch.path().join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").expect("writes");
    let sanitizer = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let probe = scratch.path().join("probe");
    let has_sanitizer = run(&mut compile(&empty, &sanitizer, &probe)).status.success()
        && run(&mut Command::new(&probe)).status.success();
    let all: [&[&str]; 2] = [&["-O1"], &sanitizer];
    for (n, flags) in all.into_iter().take(1 + usize::from(has_sanitizer)).enumerate() {
        let (program, data) =
            (scratch.path().join(format!("program{n}")), scratch.path().join(format!("data{n}")));
        std::fs::create_dir(&data).expect("is made");
        succeeds(&mut compile(&source, flags, &program));
        assert_eq!(succeeds(Command::new(&program).arg(&data)), "well\n");
    }
}

#[test]
fn the_shared_library_exports_names_of_the_header_only() {
    let header = std::fs::read_to_string(Path::new(CRATE).join("include/azekura.h")).expect("reads");
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(library("libazekura_c.so"));
    if Command::new("nm").arg("--version").output().is_err() {
        return; // binutils are not installed
    }
    let names: Vec<String> =
        succeeds(&mut nm).lines().filter_map(|line| line.split(' ').next_back().map(str::to_owned)).collect();
    assert!(names.len() >= 20, "{names:?}");
    for name in &names {
        assert!(name.starts_with("azk_") && header.contains(&format!("{name}(")), "{name}");
    }
    let name_of = |line: &str| line.split_once('(')?.0.rsplit([' ', '*']).next().map(str::to_owned);
    let declared: Vec<String> =
        header.lines().filter_map(name_of).filter(|name| name.starts_with("azk_")).collect();
    assert!(declared.len() >= 30, "{declared:?}");
    for name in &declared {
        assert!(names.contains(name), "{name} is declared, but not exported");
    }
}
