//! Context switches, messages and bytes per miss; the report about memory that is not managed.

use azekura_far::launch::Launch;
use std::process::Command;

use crate::support::{compiled, launch, mechanisms, run, server};

/// Measured on two processors: 1.9 to 2.2 context switches of the program's process per miss, 2.0 messages,
/// and 2.2 pages. A miss stores one changed page and fetches another. The program sleeps once, and the fault
/// thread at most three times: for the fault and for two replies.
#[test]
fn a_random_miss_takes_few_context_switches_messages_and_pages() {
    let directory = tempfile::tempdir().unwrap();
    for mechanism in mechanisms() {
        let path = directory.path().join(mechanism.name());
        let server = server();
        let stats_json = Some(path.clone());
        let setting = Launch { mechanism, page: 16 << 10, stats_json, ..launch(&server) };
        let out = run(Command::new(compiled("misses")), Some(&setting));
        assert!(out.status.success(), "{mechanism}: {out:?}");
        let switches: u64 = String::from_utf8_lossy(&out.stdout).trim().parse().unwrap();
        let line = std::fs::read_to_string(&path).unwrap();
        let count = |name: &str| -> u64 {
            let rest = line.split_once(&format!("\"{name}\":")).unwrap().1;
            rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
        };
        let misses = count("swap_ins");
        let messages = count("fetch_requests") + count("store_requests");
        let pages = count("swap_ins") + count("prefetches") + count("swap_outs");
        assert!(misses > 4000, "{mechanism}: {line}");
        assert!(switches < 4 * misses, "{mechanism}: {switches} context switches, {misses} misses");
        assert!(2 * messages < 5 * misses, "{mechanism}: {messages} messages, {misses} misses");
        assert!(pages < 3 * misses, "{mechanism}: {pages} pages, {misses} misses");
    }
}

#[test]
fn small_blocks_above_the_budget_are_reported_by_a_program_without_large_ones() {
    let server = server();
    let out = run(Command::new(compiled("unmanaged")), Some(&launch(&server)));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    assert!(said.contains("small blocks and other mappings take more than --local 4 MiB"), "{said}");
    assert!(said.contains("brk or from __libc_malloc is never far: raise --local"), "{said}");
}
