//! GNU sort in far memory.

use azekura_far::launch::Launch;
use std::process::Command;

use super::support::{launch, mechanisms, run, server};

/// Half of the 23 MiB that `sort` touches are local, and pages are small, because merges compare lines all
/// over the text. With less local memory than the 4 MiB of text, each comparison would fetch a page.
#[test]
fn gnu_sort_sorts_in_far_memory() {
    let version = Command::new("sort").arg("--version").output();
    if !version.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("GNU")) {
        return println!("skipped: no GNU sort here");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("numbers");
    let lines: String = (1..300_000_u64).map(|i| format!("{} {i}\n", i * 7919 % 1_000_003)).collect();
    std::fs::write(&path, lines).unwrap();
    let command = || {
        let mut command = Command::new("sort");
        command.args(["-S", "24M", "--parallel=2", "-k1,1n"]).arg(&path).env("LC_ALL", "C");
        command
    };
    let plain = run(command(), None).stdout;
    for mechanism in mechanisms() {
        let server = server();
        let setting = Launch { mechanism, local: 11 << 20, page: 64 << 10, ..launch(&server) };
        let far = run(command(), Some(&setting));
        let said = String::from_utf8_lossy(&far.stderr);
        assert!(far.status.success() && far.stdout == plain, "{mechanism}: {said}");
        assert!(server.stats().puts > 10, "{mechanism}: {:?}", server.stats());
        // The program closes its standard error before it ends.
        assert!(said.lines().count() >= 3 && said.contains(" faults"), "{mechanism}: {said}");
    }
}
