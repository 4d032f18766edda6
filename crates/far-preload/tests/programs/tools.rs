//! Programs that inspect memory: their own, or that of another process; sanitizers; handlers of `fork`.

use std::process::Command;

use azekura_far::Mechanism;
use azekura_far::launch::Launch;

use crate::support::{compiled, launch, library, mechanisms, run, same, same_of, server, with_library};

#[test]
fn f1_a_process_reads_and_writes_its_own_memory_as_that_of_another() {
    mechanisms().into_iter().for_each(|mechanism| same("own", &[], mechanism));
}

/// The handlers of this library are the first ones, so paging is not stopped when those of others run.
#[test]
fn handlers_of_fork_of_a_library_use_pages_that_are_away() {
    let program = with_library("atforks", "atfork");
    for mechanism in mechanisms() {
        // With SIGSEGV a child has no far memory.
        let arguments: &[&str] = if mechanism == Mechanism::Sigsegv { &[] } else { &["child"] };
        same_of(&program, arguments, mechanism);
    }
}

/// With SIGSEGV far memory is a memory file. The shell has its far memory before it sets the limit.
#[test]
fn a_limit_of_file_sizes_is_reported_before_main() {
    let server = server();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -S -f 1000 && exec {}", compiled("blocks").display())]);
    let out = run(command, Some(&Launch { mechanism: Mechanism::Sigsegv, ..launch(&server) }));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(71), 0), "{said}");
    assert!(said.contains("RLIMIT_FSIZE"), "{said}");
}

/// A sanitizer would crash or wait forever. It is recognized by its name, so the program needs none.
#[test]
fn a_program_with_a_sanitizer_is_refused_before_main() {
    let server = server();
    let out = run(Command::new(compiled("sanitized")), Some(&launch(&server)));
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(71), 0), "{said}");
    assert!(said.contains("this program contains a sanitizer"), "{said}");
}

/// The loader's lock is held while a library is loaded, and the layer's threads must not wait for it.
#[test]
fn far_1_a_constructor_of_a_library_uses_the_first_far_block() {
    let library = library("constructs");
    for mechanism in mechanisms() {
        same("loads", &[library.to_str().unwrap()], mechanism);
    }
}

/// The loader calls `realloc` and `free` while it makes the thread-local variables of a thread current.
#[test]
fn a_program_loads_many_libraries_with_thread_local_variables() {
    let (directory, one) = (tempfile::tempdir().unwrap(), library("variable"));
    for number in 0..24 {
        std::fs::copy(&one, directory.path().join(format!("{number}.so"))).unwrap();
    }
    for mechanism in mechanisms() {
        same("variables", &[directory.path().to_str().unwrap()], mechanism);
    }
}

/// No hook sees a system call that the program makes by its own instructions.
#[test]
fn f1_a_program_that_makes_io_urings_by_itself_is_refused_where_the_kernel_uses_pages_meanwhile() {
    for mechanism in mechanisms() {
        let server = server();
        let out = run(Command::new(compiled("ring")), Some(&Launch { mechanism, ..launch(&server) }));
        let said = String::from_utf8_lossy(&out.stderr);
        let pins = mechanism == Mechanism::UserfaultMove;
        assert_eq!(
            (out.status.code(), out.stdout.is_empty()),
            (Some(if pins { 0 } else { 71 }), !pins),
            "{said}"
        );
        assert_eq!(said.contains("creates io_urings by its own instructions"), !pins, "{said}");
    }
}

/// A tracer that stops all threads reads far memory: it waits for no page, and the program has its result.
#[test]
fn a_tracer_of_all_threads_waits_for_no_page() {
    let traced = || {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "60"]).arg(compiled("tracer")).arg(compiled("traced"));
        command
    };
    let server = server();
    let (plain, far) = (run(traced(), None), run(traced(), Some(&launch(&server))));
    let said = String::from_utf8_lossy(&far.stderr);
    assert_eq!((plain.status.code(), far.status.code()), (Some(0), Some(0)), "{said}");
    assert_eq!(far.stdout, plain.stdout);
    assert!(server.stats().puts > 10, "{said}");
    for mechanism in mechanisms().into_iter().filter(|mechanism| mechanism.serves_system_calls()) {
        let far = run(traced(), Some(&Launch { mechanism, ..launch(&server) }));
        let said = String::from_utf8_lossy(&far.stderr);
        assert_eq!((far.status.code(), far.stdout.len()), (Some(71), 0), "{said}");
        assert!(said.contains("a process traces this one"), "{said}");
    }
}
