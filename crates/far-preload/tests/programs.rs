//! Unmodified programs behave with far memory as without it: C programs, and GNU sort.
//! `scripts/far-programs.py` runs programs that are not available everywhere.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

#[path = "programs/children.rs"]
mod children;
#[path = "programs/common.rs"]
mod common;
#[path = "programs/counts.rs"]
mod counts;
#[path = "programs/inside.rs"]
mod inside;
#[path = "programs/limits.rs"]
mod limits;
#[path = "programs/locks.rs"]
mod locks;
#[path = "programs/memory.rs"]
mod memory;
#[allow(dead_code, reason = "blocks of their own are mapped by the library only")]
#[path = "../src/pool.rs"]
mod pool;
#[path = "programs/random.rs"]
mod random;
#[path = "../src/ranges.rs"]
mod ranges;
#[path = "programs/signals.rs"]
mod signals;
#[path = "programs/sort.rs"]
mod sort;
#[path = "programs/support.rs"]
mod support;
#[path = "programs/tools.rs"]
mod tools;

use azekura_far::launch::Launch;
use azekura_far::{Compression, Mechanism, Server};
use ranges::Ranges;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};
use support::{
    compiled, launch, mechanisms, mechanisms_of_calls, run, same, same_of, same_with, server, with_allocator,
};

#[test]
fn ranges_are_what_a_set_of_numbers_is() {
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((random >> 33) % below) as usize
    };
    let (mut ranges, mut set) = (Ranges::new(), BTreeSet::new());
    for _ in 0..5000 {
        let start = draw(60);
        let range = start..start + draw(9);
        if draw(2) == 0 {
            ranges.insert(range.clone());
            set.extend(range.clone());
        } else {
            ranges.remove(range.clone());
            set.retain(|number| !range.contains(number));
        }
        let probe = draw(50);
        let probe = probe..probe + draw(20);
        let within = |number: &usize| set.contains(number);
        assert!(ranges.iter().flatten().eq(set.iter().copied()));
        assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.end < b.start));
        assert!(ranges.within(&probe).flatten().eq(probe.clone().filter(within)));
        assert!(ranges.without(&probe).into_iter().flatten().eq(probe.clone().filter(|n| !within(n))));
        assert_eq!(ranges.meets(&probe), probe.clone().any(|n| within(&n)));
        assert_eq!(ranges.covers(&probe), probe.clone().all(|n| within(&n)));
        assert_eq!((ranges.total(), ranges.is_empty()), (set.len(), set.is_empty()));
    }
}

#[test]
fn a_block_grows_where_it_lies_until_another_lies_behind() {
    for (arguments, moves) in [(&[][..], "0\n"), (&["others"], "1\n")] {
        let mut command = Command::new(compiled("grows"));
        command.args(arguments);
        let server = server();
        let out = run(command, Some(&launch(&server)));
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stdout));
        assert_eq!(String::from_utf8_lossy(&out.stdout), moves, "{arguments:?}");
    }
}

#[test]
fn blocks_come_grow_and_go() {
    mechanisms().into_iter().for_each(|mechanism| same("blocks", &[], mechanism));
}

/// An allocator with small blocks in far maps, as in redis with jemalloc.
#[test]
fn blocks_of_an_allocator_that_lies_in_far_memory_stay_its_own() {
    let program = with_allocator("owners");
    mechanisms().into_iter().for_each(|mechanism| same_of(&program, &[], mechanism));
}

#[test]
fn threads_share_far_memory() {
    mechanisms().into_iter().for_each(|mechanism| same("threads", &[], mechanism));
}

#[test]
fn static_arrays_are_far_and_children_have_them() {
    let gives = |mechanism: &Mechanism| *mechanism != Mechanism::Sigsegv;
    mechanisms().into_iter().filter(gives).for_each(|mechanism| same("statics", &[], mechanism));
}

#[test]
fn maps_are_cut_moved_and_emptied() {
    // Less far memory than all pieces together.
    let small = |server: &Server, mechanism| Launch { mechanism, space: 64 << 20, ..launch(server) };
    mechanisms().into_iter().for_each(|mechanism| same_with("maps", &[], small, mechanism));
}

#[test]
fn heaps_that_are_reserved_and_committed_are_far_and_refuse_the_same_accesses() {
    for mechanism in mechanisms() {
        // With SIGSEGV a child has no far memory.
        let arguments: &[&str] = if mechanism == Mechanism::Sigsegv { &[] } else { &["fork"] };
        same("reserved", arguments, mechanism);
        // Small pages are made resident together, next to reserved ones.
        let paged = |server: &Server, mechanism| Launch { mechanism, page: 16 << 10, ..launch(server) };
        same_with("reserved", arguments, paged, mechanism);
    }
}

/// With `--block` below a page, small blocks are far, too. They share pages, also if they are larger than a
/// page.
#[test]
fn small_blocks_are_far_where_the_smallest_block_is_below_a_page() {
    // The two page sizes in turns: slabs do not depend on the mechanism.
    for (mechanism, page) in mechanisms().into_iter().zip([4 << 10, 16 << 10].into_iter().cycle()) {
        let small = |server: &Server, mechanism| Launch {
            mechanism,
            block: 32,
            page,
            local: 3 << 20,
            ..launch(server)
        };
        // With SIGSEGV a child has no far memory.
        let arguments: &[&str] = if mechanism == Mechanism::Sigsegv { &[] } else { &["fork"] };
        same_with("small", arguments, small, mechanism);
    }
}

/// Threads and child processes with pages in the compressed tier. Only with the best mechanism, because the
/// tier does not depend on the mechanism.
#[test]
fn with_a_compressed_tier_programs_print_the_same() {
    let directory = tempfile::tempdir().unwrap();
    for mechanism in mechanisms().into_iter().take(1).filter(|&best| best != Mechanism::Sigsegv) {
        for name in ["threads", "forks"] {
            let path = directory.path().join(format!("{name}-{mechanism}"));
            let server = server();
            let setting = Launch {
                mechanism,
                page: 16 << 10,
                compression: Compression::Lz4,
                stats_json: Some(path.clone()),
                ..launch(&server)
            };
            let plain = run(Command::new(compiled(name)), None).stdout;
            let far = run(Command::new(compiled(name)), Some(&setting));
            let said = String::from_utf8_lossy(&far.stderr);
            assert!(far.status.success(), "{name} by {mechanism}: {said}");
            assert_eq!(far.stdout, plain, "{name} by {mechanism}: {said}");
            let lines = std::fs::read_to_string(&path).unwrap();
            assert!(!lines.lines().all(|line| line.contains("\"compressed_ins\":0,")), "{name}: {lines}");
        }
    }
}

/// A program that mostly waits for pages gets a report at the end, and at each interval with `--progress`. A
/// program that fits into local memory gets none.
#[test]
fn a_thrashing_program_gets_a_message_with_the_memory_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    for (local, progress_ms) in [(2 << 20, 20), (64 << 20, 20), (2 << 20, 0)] {
        let path = directory.path().join(format!("{local}-{progress_ms}"));
        let server = server();
        let stats_json = Some(path.clone());
        let setting = Launch { local, page: 16 << 10, progress_ms, stats_json, ..launch(&server) };
        let lives_in = |said: &String| said.matches(" % of the time waited for pages; ").count();
        let expects_lives = local == 2 << 20 && progress_ms > 0;
        // On a busy machine the thread that reports may not run before the program ends.
        let mut trials = (0..20).map(|_| {
            let _ = std::fs::remove_file(&path); // each program appends a line
            let out = run(Command::new(compiled("thrashes")), Some(&setting));
            assert!(out.status.success(), "{out:?}");
            String::from_utf8_lossy(&out.stderr).into_owned()
        });
        let said = trials.find(|said| !expects_lives || lives_in(said) > 0).expect("lives in a trial");
        let line = std::fs::read_to_string(&path).unwrap();
        let warned = said.contains("% of the program's time was spent waiting for pages; --local larger by ");
        assert_eq!(warned, local == 2 << 20, "{said}");
        assert_eq!(line.contains("\"more_for_most_bytes\":null"), local != 2 << 20, "{line}");
        assert_eq!(lives_in(&said) > 0, expects_lives, "{said}");
    }
}

/// Tests the table in `hooks/kernel.rs`, part by part.
#[test]
fn memory_calls_that_only_the_kernel_can_do_have_their_ordinary_effect() {
    let parts = ["protection", "locks", "remaps", "fixed", "advice", "nodes", "faultfd", "mixed", "raw"];
    let program = compiled("kernel");
    for mechanism in mechanisms() {
        // With SIGSEGV a child has no far memory, and a child reads far memory in the part on advice.
        let has = |part: &&&str| **part != "advice" || mechanism != Mechanism::Sigsegv;
        parts.iter().filter(has).for_each(|part| same_of(&program, &[part], mechanism));
    }
}

#[test]
fn stacks_of_threads_contexts_and_handlers_may_lie_in_large_blocks() {
    for mechanism in mechanisms() {
        // With SIGSEGV no signal handler can run on a paged-out stack that the layer was not informed of.
        let arguments: &[&str] = if mechanism == Mechanism::Sigsegv { &[] } else { &["own"] };
        same("stacks", arguments, mechanism);
    }
}

#[test]
fn threads_end_in_every_way() {
    mechanisms().into_iter().for_each(|mechanism| same("ends", &[], mechanism));
}

#[test]
fn children_of_every_birth_have_their_parents_bytes_or_its_memory() {
    for mechanism in mechanisms() {
        // With SIGSEGV a child has no copy of the far memory.
        let arguments: &[&str] = if mechanism == Mechanism::Sigsegv { &["shared"] } else { &[] };
        same("births", arguments, mechanism);
    }
}

#[test]
fn a_child_that_shares_descriptors_gets_the_reason_for_no_far_memory() {
    for mechanism in mechanisms() {
        let server = server();
        let mut command = Command::new(compiled("births"));
        command.arg("files");
        let out = run(command, Some(&Launch { mechanism, ..launch(&server) }));
        let said = String::from_utf8_lossy(&out.stderr);
        // With SIGSEGV static arrays are ordinary memory.
        let array = if mechanism == Mechanism::Sigsegv { 0 } else { 71 };
        let ends = format!("reads an array: {array}, 0\nclone with files: 71, 0\n");
        assert_eq!(String::from_utf8_lossy(&out.stdout), ends, "{mechanism}: {said}");
        assert!(said.contains("CLONE_FILES") && said.contains("(address 0x"), "{mechanism}: {said}");
    }
}

#[test]
fn programs_may_restrict_their_rights_and_their_system_calls() {
    for mechanism in mechanisms() {
        // The program sets limits below `space`.
        for part in ["strict", "addresses", "private", "alone", "descriptors", "network"] {
            same("rights", &[part], mechanism);
        }
        // With SIGSEGV a child has no far memory.
        if mechanism != Mechanism::Sigsegv {
            same("rights", &[], mechanism);
        }
    }
}

#[test]
fn the_layers_descriptors_survive_programs_that_close_all() {
    for mechanism in mechanisms() {
        same("descriptors", &[], mechanism);
        if mechanism != Mechanism::Sigsegv {
            same("descriptors", &["full"], mechanism);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_closes_descriptors_by_raw_calls_ends_with_the_reason() {
    for mechanism in mechanisms() {
        let server = server();
        let mut command = Command::new(compiled("descriptors"));
        command.arg("raw");
        let out = run(command, Some(&Launch { mechanism, ..launch(&server) }));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(71), "{mechanism}: {said}");
        assert!(said.contains("raw system call"), "{mechanism}: {said}");
    }
}

/// Starts `losses` with this part, calls `lose` when the program has filled its memory, and returns its
/// output.
fn end_of(part: &str, setting: &Launch, lose: impl FnOnce()) -> Output {
    let mut command = Command::new(compiled("losses"));
    command.arg(part).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A second arena would reserve addresses before the limit is set.
    command.env("MALLOC_ARENA_MAX", "1");
    setting.prepare(&mut command).unwrap();
    let mut program = command.spawn().unwrap();
    let mut line = [0; 7];
    let filled = program.stdout.as_mut().unwrap().read_exact(&mut line).is_ok();
    if filled {
        lose();
        program.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    program.wait_with_output().unwrap()
}

/// Returns the message of a program that ends with code 71 and prints nothing else.
fn message_of(part: &str, setting: &Launch, lose: impl FnOnce()) -> String {
    let out = end_of(part, setting, lose);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!((out.status.code(), &out.stdout[..]), (Some(71), &b""[..]), "{part}: {said}");
    said
}

/// Each program has 12 MiB, of which 8 MiB must be at the server.
#[test]
fn a_program_that_asks_for_more_than_a_server_has_left_ends_neither_itself_nor_another() {
    let server = Server::builder().capacity(14 << 20).listen("127.0.0.1:0").unwrap();
    let setting = launch(&server);
    let first = end_of("first", &setting, || {
        let second = end_of("second", &setting, || ());
        let said = String::from_utf8_lossy(&second.stderr);
        assert_eq!((second.status.code(), &second.stdout[..]), (Some(0), &b"0\n"[..]), "{said}");
        assert!(said.contains("12288 KiB in all were ordinary memory: memory server"), "{said}");
        let said = message_of("strict", &Launch { strict: true, ..setting.clone() }, || ());
        assert!(said.contains("are available here") && said.contains("--spill FILE"), "{said}");
    });
    let said = String::from_utf8_lossy(&first.stderr);
    assert_eq!((first.status.code(), &first.stdout[..]), (Some(0), &b"0\n"[..]), "{said}");
}

#[test]
fn server_space_is_reserved_when_memory_is_allocated() {
    let server = server();
    let out = end_of("first", &launch(&server), || {
        let stats = server.stats();
        assert!(stats.promised_bytes >= 12 << 20 && stats.held_bytes < stats.promised_bytes, "{stats:?}");
    });
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn static_arrays_for_which_a_server_has_no_room_are_refused_before_main() {
    let gives = |mechanism: &Mechanism| *mechanism != Mechanism::Sigsegv;
    for mechanism in mechanisms().into_iter().filter(gives) {
        let server = Server::builder().capacity(5 << 20).listen("127.0.0.1:0").unwrap();
        let out = run(Command::new(compiled("statics")), Some(&Launch { mechanism, ..launch(&server) }));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(71), 0), "{mechanism}: {said}");
        assert!(
            said.contains("refused: ") && said.contains("5242880 are available here"),
            "{mechanism}: {said}"
        );
    }
}

#[test]
fn a_loss_ends_the_program_with_the_page_its_addresses_the_reason_and_the_remedy() {
    for mechanism in mechanisms() {
        let holds = |said: &str, parts: &[&str]| {
            assert!(parts.iter().all(|part| said.contains(part)), "{mechanism}, {parts:?}: {said}");
        };
        let mut server = server();
        let setting = Launch { mechanism, ..launch(&server) };
        let said = message_of("server", &setting, || server.shutdown());
        holds(&said, &["is lost", " page ", "addresses 0x", "--spill FILE"]);
        let server = Server::builder().capacity(5 << 20).listen("127.0.0.1:0").unwrap();
        let said = message_of("full", &Launch { mechanism, ..launch(&server) }, || ());
        holds(&said, &["no server stored page", "left", "addresses 0x", "--spill FILE"]);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn without_memory_for_its_tables_the_layer_reports_the_reason() {
    for mechanism in mechanisms() {
        let server = Server::builder().capacity(1 << 30).listen("127.0.0.1:0").unwrap();
        let setting = Launch { mechanism, page: 4096, local: 1 << 20, ..launch(&server) };
        let said = message_of("tables", &setting, || ());
        assert!(said.contains("the layer's own tables") && said.contains("RLIMIT_AS"), "{mechanism}: {said}");
    }
}

#[test]
fn children_are_born_and_run_other_programs() {
    mechanisms().into_iter().for_each(|mechanism| same("children", &[], mechanism));
}

#[test]
fn children_have_their_parents_bytes_and_neither_sees_what_the_other_writes() {
    let gives = |mechanism: &Mechanism| *mechanism != Mechanism::Sigsegv;
    mechanisms().into_iter().filter(gives).for_each(|mechanism| same("forks", &[], mechanism));
}

#[test]
fn children_have_their_parents_spilled_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let gives = |mechanism: &Mechanism| *mechanism != Mechanism::Sigsegv;
    let Some(mechanism) = mechanisms().into_iter().find(gives) else { return };
    for place in [directory.path().to_path_buf(), directory.path().join("pages")] {
        let server = server();
        let setting = Launch { mechanism, servers: Vec::new(), spill: Some(place), ..launch(&server) };
        let far = run(Command::new(compiled("forks")), Some(&setting));
        assert!(far.status.success() && far.stdout == b"well\n", "{far:?}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "spill files have no names");
}

#[test]
fn a_child_for_whose_pages_the_server_has_no_room_is_stopped() {
    let gives = |mechanism: &Mechanism| *mechanism != Mechanism::Sigsegv;
    let Some(mechanism) = mechanisms().into_iter().find(gives) else { return };
    let server = Server::builder().capacity(13 << 20).listen("127.0.0.1:0").unwrap();
    let mut command = Command::new(compiled("children"));
    command.arg("touch");
    let far = run(command, Some(&Launch { mechanism, ..launch(&server) }));
    let said = String::from_utf8_lossy(&far.stderr);
    assert_eq!(String::from_utf8_lossy(&far.stdout), "the child was stopped\n", "{said}");
    assert!(said.contains("a child process cannot have") && said.contains("are available here"), "{said}");
}

#[test]
fn a_child_that_cannot_have_its_parents_far_memory_is_stopped_and_reads_no_zeros() {
    same("children", &["touch"], Mechanism::Sigsegv);
}

#[test]
fn f1_system_calls_on_pages_that_are_away_are_served() {
    mechanisms_of_calls().into_iter().for_each(|mechanism| same("transfers", &[], mechanism));
}

#[test]
fn f1_direct_reads_reach_blocks_whose_pages_leave_meanwhile() {
    for mechanism in mechanisms() {
        same("direct", &["fork", "asynchronous"], mechanism);
        same("rings", &[], mechanism);
    }
}

#[test]
fn f1_calls_of_every_kind_work_on_pages_that_are_away() {
    mechanisms_of_calls().into_iter().for_each(|mechanism| same("calls", &[], mechanism));
    mechanisms_of_calls().into_iter().for_each(|mechanism| same("numbers", &[], mechanism));
}

#[test]
fn f1_a_time_limit_and_a_signal_end_waits_with_arguments_that_are_away() {
    mechanisms_of_calls().into_iter().for_each(|mechanism| same("waits", &[], mechanism));
}

#[test]
fn f1_names_and_results_of_calls_may_be_on_pages_that_are_away() {
    mechanisms_of_calls()
        .into_iter()
        .filter(|mechanism| *mechanism != Mechanism::Sigsegv)
        .for_each(|mechanism| same("names", &[], mechanism));
}

#[test]
fn f1_streams_write_and_read_through_buffers_that_are_away() {
    mechanisms_of_calls().into_iter().for_each(|mechanism| same("streams", &[], mechanism));
}

#[test]
fn f1_kernel_buffers_of_the_c_library_in_far_memory_are_served() {
    let program = with_allocator("streams");
    mechanisms_of_calls().into_iter().for_each(|mechanism| same_of(&program, &[], mechanism));
}

#[test]
fn a_failed_setup_is_refused_before_main() {
    let mut setting = launch(&server());
    setting.servers = vec!["127.0.0.1:1".into()];
    let out = run(Command::new(compiled("blocks")), Some(&setting));
    assert_eq!(out.status.code(), Some(71));
    assert!(out.stdout.is_empty());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.starts_with("azekura far: cannot connect to memory server 127.0.0.1:1: "), "{said}");
}

#[test]
fn a_program_under_valgrind_is_refused_before_main() {
    let server = server();
    let mut command = Command::new(compiled("blocks"));
    launch(&server).prepare(&mut command).unwrap();
    let library = command.get_envs().find(|(name, _)| *name == "LD_PRELOAD").unwrap().1.unwrap().to_owned();
    // The loader reports that it does not find this library, and continues.
    let mut both = library;
    both.push(":/nowhere/vgpreload_core-amd64-linux.so");
    command.env("LD_PRELOAD", both);
    let out = run(command, None);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(71), 0), "{said}");
    assert!(said.contains("runs under valgrind"), "{said}");
}

/// The shell has no far memory yet when it sets the limit. The program that it then executes inherits the
/// limit.
#[test]
fn a_program_under_a_limit_that_counts_all_of_space_is_refused_before_main() {
    for (flag, name) in [("-v", "RLIMIT_AS"), ("-d", "RLIMIT_DATA")] {
        let server = server();
        let mut command = Command::new("sh");
        let script = format!("ulimit -S {flag} 4000000 && exec {}", compiled("blocks").display());
        command.args(["-c", &script]);
        let out = run(command, Some(&launch(&server)));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(71), "{name}: {said}");
        assert!(
            out.stdout.is_empty() && said.contains("4000000 KiB") && said.contains(name),
            "{name}: {said}"
        );
    }
}

/// Blocks that do not fit into `space`, and memory beyond `local` that leaves far memory.
#[test]
fn an_exceeded_budget_is_reported_and_with_strict_ends_the_program() {
    let parts: [(&str, &[&str], usize, &str); 2] = [
        ("threads", &[], 8 << 20, "--max-far 8 MiB"),
        ("kernel", &["protection"], 512 << 20, "--local 4 MiB"),
    ];
    for (name, arguments, space, setting) in parts {
        for strict in [false, true] {
            let server = server();
            let mut command = Command::new(compiled(name));
            command.args(arguments);
            let out = run(command, Some(&Launch { space, strict, ..launch(&server) }));
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(if strict { 71 } else { 0 }), "{name}: {said}");
            assert_eq!(said.contains("warning"), !strict, "{name}: {said}");
            assert!(said.contains(setting), "{name}: {said}");
        }
    }
}

#[test]
fn statistics_are_appended_as_json() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("far.json");
    let server = server();
    let setting = Launch { stats_json: Some(path.clone()), quiet: true, ..launch(&server) };
    for _ in 0..2 {
        let out = run(Command::new(compiled("maps")), Some(&setting));
        assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    }
    let lines = std::fs::read_to_string(&path).unwrap();
    let peak =
        |line: &str| line.rsplit_once("\"peak_resident_bytes\":")?.1.strip_suffix('}')?.parse::<u64>().ok();
    assert!(lines.lines().all(|line| peak(line).is_some_and(|bytes| bytes > 1 << 20)), "{lines}");
    let counts = [
        "managed_bytes",
        "refused_bytes",
        "peak_local_bytes",
        "unmanaged_bytes",
        "overflow_bytes",
        "ordinary_bytes",
    ];
    assert!(counts.iter().all(|name| lines.contains(&format!("\"{name}\":"))), "{lines}");
    assert_eq!(
        lines.lines().filter(|line| line.starts_with("{\"region_bytes\":536870912,")).count(),
        2,
        "{lines}"
    );
}

/// Each kind with its size, and large blocks in none of the kinds.
#[test]
fn the_report_says_how_much_was_managed_and_why_the_rest_was_not() {
    let directory = tempfile::tempdir().unwrap();
    for mechanism in mechanisms() {
        let path = directory.path().join(mechanism.name());
        let server = server();
        let setting = Launch { mechanism, stats_json: Some(path.clone()), ..launch(&server) };
        let out = run(Command::new(compiled("kinds")), Some(&setting));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        let line = std::fs::read_to_string(&path).unwrap();
        let mib = |name: &str| {
            let rest = line.split_once(&format!("\"{name}\":")).unwrap().1;
            rest[..rest.find([',', '}']).unwrap()].parse::<u64>().unwrap() >> 20
        };
        let holds = |name: &str, least: u64, most: u64| {
            assert!((least..=most).contains(&mib(name)), "{mechanism} {name}: {line}");
        };
        holds("managed_bytes", 3, 4);
        holds("small_block_bytes", 5, 8);
        // 8 MiB of small mappings, and the memory of the layer.
        holds("other_mapping_bytes", 8, 13);
        holds("excluded_mapping_bytes", 24, 24);
        holds("shared_bytes", 3, 3);
        let warned = said.contains("small blocks and other mappings take more than --local 4 MiB");
        assert!(warned && said.contains("mappings of 24 MiB were executable"), "{said}");
    }
}
