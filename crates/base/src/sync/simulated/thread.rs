//! Threads: `yield_now` and `sleep` are the machine's, the rest is std's.

pub use std::thread::*;

use crate::sync::machine;
use std::time::Duration;

/// Gives the processor to another thread.
pub fn yield_now() {
    match machine::current() {
        Some(machine) => machine.yield_now(),
        None => std::thread::yield_now(),
    }
}

/// Sleeps, on the machine's clock.
pub fn sleep(time: Duration) {
    match machine::current() {
        Some(machine) => machine.sleep(time),
        None => std::thread::sleep(time),
    }
}
