//! `conc_lock` of InnoDB 5.0 (`innodb_thread_concurrency`): a limited number of threads is admitted to the
//! engine, in the order in which they came. An admitted thread may stay for a number of operations
//! (`innodb_concurrency_tickets`).
//!
//! - **GATE-1** No thread that waits here holds a lock of the store: a transaction is admitted at its first
//!   operation and stays to its end. (InnoDB lets threads out when they wait for a lock, and between rows
//!   when their tickets are used up.)

use azekura_base::sync::atomic::Ordering::Acquire;
use azekura_base::sync::{Mutex, WaitWord};
use azekura_trace::{Site, WaitKind, wait};
use std::collections::VecDeque;
use std::sync::Arc;

/// The name in reports.
pub static CONC_LOCK: Site = Site::new("conc_lock");

/// Operations for which a thread may stay in.
pub const TICKETS: u32 = 500;

/// The gate.
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
    /// Admits `limit` threads at once.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), queue: Mutex::default() }
    }

    /// Enters. Blocks while the limit is reached, and behind threads that came before.
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
        // The called thread takes the place of the leaving one.
        match queue.waiting.pop_front() {
            Some(slot) => {
                drop(queue);
                slot.set_and_wake(CALLED);
            }
            None => queue.inside -= 1,
        }
    }
}

/// The right to be inside.
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
