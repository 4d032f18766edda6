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
