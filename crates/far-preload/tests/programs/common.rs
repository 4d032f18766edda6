//! Programs that most machines have, in far memory: the same output and exit code as without.

use azekura_far::Mechanism;
use azekura_far::launch::Launch;
use std::path::Path;
use std::process::Command;

use crate::support::{launch, mechanisms_of_calls, run, server};

/// The arguments of each program. `FILE` is a text of 100,000 lines, and `OTHER` a similar one.
const PROGRAMS: [(&str, &[&str]); 16] = [
    (
        "sh",
        &["-c", "i=0; while [ $i -lt 3000 ]; do i=$((i + 1)); s=$s.$i; done; echo ${#s}; cat FILE | wc -l"],
    ),
    ("sort", &["-S", "8M", "-k2,2n", "-k1,1", "FILE"]),
    ("awk", &["{ s[$1 % 5003] += $2 } END { for (k in s) { n++; t += s[k] } print n, t }", "FILE"]),
    ("sed", &["s/7/seven/g", "FILE"]),
    ("grep", &["-n", "99[0-4]*1$", "FILE"]),
    ("gzip", &["-n", "-c", "FILE"]),
    ("bzip2", &["-1", "-c", "FILE"]),
    ("xz", &["-0", "-T1", "-c", "FILE"]),
    ("tac", &["FILE"]),
    ("diff", &["FILE", "OTHER"]),
    ("tar", &["-c", "-f", "-", "--sort=name", "--mtime=@0", "FILE", "OTHER"]),
    ("dd", &["if=FILE", "bs=1M", "conv=swab"]),
    ("sha256sum", &["FILE", "OTHER"]),
    ("perl", &["-e", "$s = 'abc' x 3000000; $s =~ tr/a-c/x-z/; print length($s), unpack('%32C*', $s)"]),
    ("python3", &["-c", "b = bytearray(range(256)) * 40000; c = b[::-1]; print(c.count(7), sum(c[::999]))"]),
    ("cc", &["-O1", "-S", "-o", "-", "SOURCE"]),
];

fn is_installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

#[test]
fn programs_of_a_distribution_print_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let text = |changed: u64| -> String {
        let line =
            |i: u64| format!("{} {}\n", i * 7919 % 1_000_003, i + u64::from(i.is_multiple_of(changed)));
        (1..100_000).map(line).collect()
    };
    std::fs::write(directory.path().join("FILE"), text(u64::MAX)).unwrap();
    std::fs::write(directory.path().join("OTHER"), text(97)).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/kernel.c");
    std::fs::copy(source, directory.path().join("SOURCE.c")).unwrap();
    let mechanisms = mechanisms_of_calls();
    let mut stored = vec![0; mechanisms.len()];
    for (name, arguments) in PROGRAMS {
        if !is_installed(name) {
            println!("skipped: no {name} here");
            continue;
        }
        let command = || {
            let mut command = Command::new(name);
            command.args(arguments.iter().map(|argument| argument.replace("SOURCE", "SOURCE.c")));
            command.current_dir(directory.path()).env("LC_ALL", "C").env("PYTHONHASHSEED", "0");
            command
        };
        let plain = run(command(), None);
        for (&mechanism, stored) in mechanisms.iter().zip(&mut stored) {
            *stored += pages_stored_by(name, command(), mechanism, &plain.stdout, plain.status.code());
        }
    }
    assert!(stored.iter().all(|&pages| pages > 100), "{mechanisms:?}: {stored:?} pages");
}

/// Compares a run in far memory with the plain output, and returns the number of pages that the server
/// stored.
fn pages_stored_by(
    name: &str,
    command: Command,
    mechanism: Mechanism,
    output: &[u8],
    code: Option<i32>,
) -> u64 {
    let server = server();
    let block = 64 << 10;
    let far = run(command, Some(&Launch { mechanism, page: 16 << 10, block, ..launch(&server) }));
    let said = String::from_utf8_lossy(&far.stderr);
    assert_eq!(far.status.code(), code, "{name} by {mechanism}: {said}");
    assert!(far.stdout == output, "{name} by {mechanism} prints other bytes: {said}");
    server.stats().puts
}
