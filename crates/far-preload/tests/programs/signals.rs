//! Signals, their masks and their handlers.

use azekura_far::Mechanism;
use azekura_far::launch::Launch;
use std::process::Command;

use crate::support::{compiled, launch, mechanisms, run, same, server};

#[test]
fn signals_of_the_process_are_left_to_the_threads_of_the_program() {
    mechanisms().into_iter().for_each(|mechanism| same("signals", &[], mechanism));
}

#[test]
fn handlers_use_pages_that_are_away_while_a_call_waits_with_a_mask() {
    mechanisms().into_iter().for_each(|mechanism| same("masks", &[], mechanism));
}

#[test]
fn signal_1_handlers_use_pages_that_are_away_wherever_they_interrupt_the_program() {
    for mechanism in mechanisms() {
        // With SIGSEGV a child has no far memory.
        let arguments: &[&str] = if mechanism == Mechanism::Sigsegv { &[] } else { &["fork"] };
        same("handlers", arguments, mechanism);
    }
}

/// A call of the handler needs the locks of the heap and of the order of forks.
#[test]
fn signal_1_handlers_map_memory_and_fork_wherever_they_interrupt_the_program() {
    mechanisms().into_iter().for_each(|mechanism| same("handlers", &["calls"], mechanism));
}

/// With one arena, every thread would wait for the lock that the interrupted thread holds.
#[test]
fn far_5_a_handler_uses_pages_that_are_away_while_the_allocator_is_locked() {
    for mechanism in mechanisms() {
        let server = server();
        let mut command = Command::new(compiled("interrupted"));
        command.env("MALLOC_ARENA_MAX", "1");
        let out = run(command, Some(&Launch { mechanism, ..launch(&server) }));
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{mechanism}: {}, {said}", out.status);
        assert_eq!(String::from_utf8_lossy(&out.stdout), "0 wrong, handled 1\n", "{mechanism}: {said}");
        assert!(server.stats().puts > 10, "{mechanism}: {:?} {said}", server.stats());
    }
}

/// Without privileges, such a pointer ends the program: the hooks read the lists.
#[test]
fn the_kernel_reports_pointers_that_cannot_be_read() {
    let serves = |mechanism: &Mechanism| mechanism.serves_system_calls();
    mechanisms().into_iter().filter(serves).for_each(|mechanism| same("pointers", &[], mechanism));
}
