//! Signals, their masks and their handlers.

use azekura_far::Mechanism;

use crate::support::{mechanisms, same};

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
