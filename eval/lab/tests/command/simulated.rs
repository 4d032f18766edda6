//! Options of measurements beside `--simulate`.

use crate::support::Run;

#[test]
fn a_simulation_refuses_options_that_it_would_ignore() {
    let wal =
        ["--part=log", "--log=paper", "--workers=1", "--in-flight=2", "--seconds=1", "--runs=1", "--dir=."];
    let cache = ["--quick", "--threads=1", "--seconds=1", "--runs=1", "--dir=."];
    for (lab, options) in [("p-wal", &wal[..]), ("nb-gclock", &cache[..])] {
        for option in options {
            let run = Run::of(&[lab, "--simulate", "2", option]);
            let name = option.split('=').next().unwrap_or_default();
            let is_named = run.stderr.contains("--simulate") && run.stderr.contains(name);
            assert!(run.code == 2 && is_named && run.stdout.is_empty(), "{run:?}");
        }
    }
}

#[test]
fn a_window_needs_a_simulation_and_simulations_have_neither_seconds_nor_threads() {
    let scale = &["sim", "scale"][..];
    for (lab, option) in [
        (&["p-wal"][..], "--window-us=1"),
        (&["nb-gclock"], "--window-us=1"),
        (&["bottleneck"], "--window-us=1"),
        (&["p-wal", "--simulate", "2"], "--window-us=0"),
        (&["p-wal", "--simulate", "2"], "--threads=1"),
        (&["bottleneck", "--simulate", "2"], "--seconds=1"),
        (&["bottleneck", "--simulate", "2"], "--threads=1"),
        (scale, "--seconds=1"),
        (scale, "--threads=1"),
    ] {
        let run = Run::of(&[lab, &[option]].concat());
        let name = option.split('=').next().unwrap_or_default();
        assert!(run.code == 2 && run.stderr.contains(name) && run.stdout.is_empty(), "{run:?}");
    }
}
