//! A program that `far` or `trace record` starts inherits the state that the command has inherited.

use std::process::Command;

use crate::support::Scratch;

/// Returns the output of a shell script that starts `$@`: this command, if there is one, and a program that
/// prints its blocked and ignored signals and its open descriptors.
fn state(script: &str, command: &[&str]) -> String {
    let scratch = Scratch::new();
    let command = command.iter().map(|argument| match *argument {
        "azekura" => env!("CARGO_BIN_EXE_azekura").to_owned(),
        "FILE" => scratch.path("file").to_str().expect("a name in UTF-8").to_owned(),
        argument => argument.to_owned(),
    });
    let tell = "grep -E '^Sig(Blk|Ign):' /proc/self/status; cd /proc/self/fd; echo ?";
    let out = Command::new("sh").args(["-c", script, "sh"]).args(command).args(["bash", "-c", tell]).output();
    let out = out.expect("there is a shell");
    assert!(out.status.success(), "{script}: {out:?}");
    String::from_utf8(out.stdout).expect("text").lines().map(without_signals_of_libc).collect()
}

/// Returns the line without signals 32 and 33, which the C library hides from programs and uses itself.
fn without_signals_of_libc(line: &str) -> String {
    let Some((name, signals)) = line.split_once(":\t") else { return format!("{line}\n") };
    let signals = u64::from_str_radix(signals, 16).expect("a mask");
    format!("{name}: {:016x}\n", signals & !(0b11 << 31))
}

#[test]
fn a_program_inherits_signals_and_closed_descriptors_from_the_command() {
    let blocks = Command::new("bash").args(["-c", "exec env --block-signal=USR1 true"]).output();
    if !blocks.is_ok_and(|out| out.status.success()) {
        return println!("not tried: there is no bash, or `env` cannot block signals");
    }
    for script in [
        r#"exec "$@""#,
        r#"exec "$@" <&-"#,
        r#"exec env --ignore-signal=PIPE "$@""#,
        r#"exec env --ignore-signal=INT,QUIT,XFSZ,TERM,HUP,USR2 "$@""#,
        r#"exec env --ignore-signal=CHLD "$@""#,
        r#"exec env --ignore-signal=PIPE,CHLD,INT --block-signal=USR1,TERM,ALRM "$@" <&-"#,
    ] {
        let plain = state(script, &[]);
        let far = state(script, &["azekura", "far", "--quiet", "--spill", "FILE", "--"]);
        assert_eq!(far, plain, "far: {script}");
        let recorded = state(script, &["azekura", "trace", "record", "--output", "FILE", "--"]);
        assert_eq!(recorded, plain, "trace record: {script}");
    }
}
