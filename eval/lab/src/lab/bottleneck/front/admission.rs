//! `conc_lock` of InnoDB 5.0 (`innodb_thread_concurrency`): limits the number of threads in the engine and
//! admits them in order of arrival. An admitted thread may stay for a number of operations
//! (`innodb_concurrency_tickets`).
//!
//! - **GATE-1** No thread that waits here holds a lock of the store: a transaction enters at its first
//!   operation and stays to its end. (In InnoDB, a thread also leaves while it waits for a lock, and between
//!   rows when its tickets are used up.)

use azekura_base::sync::atomic::Ordering::Acquire;
use azekura_base::sync::{Mutex, WaitWord};
use azekura_trace::{Site, WaitKind, wait};
use std::collections::VecDeque;
use std::sync::Arc;

/// Wait site of `conc_lock` in recordings and reports.
pub static CONC_LOCK: Site = Site::new("conc_lock");

/// Number of operations for which an admitted thread may stay in the engine.
pub const TICKETS: u32 = 500;

/// Admission control with a first-in first-out queue.
#[derive(Debug)]
pub struct Gate {
    limit: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    inside: usize,
    waiting: VecDeque<Arc<WaitWord>>,
}

const WAITING: u32 = 0;
const CALLED: u32 = 1;

impl Gate {
    /// Returns a gate that admits `limit` threads at once.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), queue: Mutex::default() }
    }

    /// Waits until the calling thread is admitted: while the limit is reached, in order of arrival.
    pub fn enter(&self) -> Permit<'_> {
        let slot = {
            let mut queue = self.queue.lock();
            if queue.inside < self.limit {
                queue.inside += 1;
                return Permit { gate: self };
            }
            let slot = Arc::new(WaitWord::new(WAITING));
            queue.waiting.push_back(Arc::clone(&slot));
            slot
        };
        let _waiting = wait(&CONC_LOCK, &raw const *self as usize, WaitKind::Limit);
        // Acquire: pairs with the Release of `set_and_wake`.
        while slot.word().load(Acquire) == WAITING {
            slot.wait(WAITING, None);
        }
        Permit { gate: self }
    }

    fn leave(&self) {
        let mut queue = self.queue.lock();
        // The woken thread replaces the leaving one, so `inside` does not change.
        match queue.waiting.pop_front() {
            Some(slot) => {
                drop(queue);
                slot.set_and_wake(CALLED);
            }
            None => queue.inside -= 1,
        }
    }
}

/// The right to be in the engine; dropping it leaves the engine.
#[derive(Debug)]
#[must_use]
pub struct Permit<'g> {
    gate: &'g Gate,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.gate.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn never_more_than_the_limit_are_inside_and_all_get_in() {
        let gate = Gate::new(3);
        let (inside, most, passed) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..12 {
                s.spawn(|| {
                    for _ in 0..300 {
                        let _permit = gate.enter();
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                        passed.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(passed.into_inner(), 3_600);
        assert!(most.into_inner() <= 3);
        assert_eq!(gate.queue.lock().inside, 0);
    }
}
