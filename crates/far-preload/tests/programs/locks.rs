//! Locks, conditions, semaphores, barriers and calls that run once, in far memory.

use azekura_far::launch::Launch;
use azekura_far::{Policy, Server};

use crate::support::{launch, mechanisms, same, same_with};

#[test]
fn locks_and_conditions_may_lie_in_pages_that_leave() {
    mechanisms().into_iter().for_each(|mechanism| same("locks", &[], mechanism));
}

/// The default policy keeps pages that are used this often.
#[test]
fn locks_of_c11_and_calls_that_run_once_may_lie_in_pages_that_leave() {
    let fifo = |server: &Server, mechanism| Launch { mechanism, policy: Policy::Fifo, ..launch(server) };
    mechanisms().into_iter().for_each(|mechanism| same_with("standard", &[], fifo, mechanism));
}
