//! Programs in far memory, as far as they are refused or described; what they do there is tested with the library (`azekura-far-preload`).

use std::process::Command;

use crate::support::Run;

/// `echo ran`, with this as the library that is to be loaded.
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
    for command in [&["far", "--help"][..], &["lab", "far-goals", "--help"]] {
        let help = Run::of(command).well();
        assert!(help.contains("[default: swap-in-history]"), "{help}");
    }
}
