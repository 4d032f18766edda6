//! A queue of commits that are not durable yet, in the order in which their transactions began.

use std::collections::VecDeque;
use std::time::Instant;

use crate::engine::Ticket;
use crate::error::EngineError;

/// The handle of a commit that is not durable yet.
pub trait Promise {
    /// Error type of a failed commit.
    type Error;

    /// Returns whether the commit is durable. Never blocks.
    ///
    /// # Errors
    ///
    /// The log failed: the commit may be lost.
    fn is_kept(&self) -> Result<bool, Self::Error>;

    /// Waits until the commit is durable.
    ///
    /// # Errors
    ///
    /// The log failed: the commit may be lost.
    fn keep(self) -> Result<(), Self::Error>;
}

impl Promise for Box<dyn Ticket> {
    type Error = EngineError;
    fn is_kept(&self) -> Result<bool, EngineError> {
        self.is_durable()
    }
    fn keep(self) -> Result<(), EngineError> {
        self.wait()
    }
}

/// Commits in flight, each with data for its completion.
#[derive(Debug)]
pub struct Window<N, P>(VecDeque<(N, P)>);

impl<N, P> Default for Window<N, P> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<N, P: Promise> Window<N, P> {
    /// Adds a commit; `note` is passed to `done` when the commit is removed.
    pub fn push(&mut self, note: N, promise: P) {
        self.0.push_back((note, promise));
    }

    /// Removes durable commits from the front. While more than `most` are left, waits for the oldest. Calls
    /// `done` for each removed commit, with one clock read for all that were durable at the same time.
    ///
    /// # Errors
    ///
    /// The error of the commit, which remains in the queue unless `drain` waited for it.
    pub fn drain(&mut self, most: usize, mut done: impl FnMut(N, Instant)) -> Result<(), P::Error> {
        let mut now = None;
        while let Some((_, oldest)) = self.0.front() {
            let is_kept = oldest.is_kept()?;
            if !is_kept && self.0.len() <= most {
                break;
            }
            let Some((note, promise)) = self.0.pop_front() else { break };
            if !is_kept {
                promise.keep()?;
                now = None;
            }
            done(note, *now.get_or_insert_with(Instant::now));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A commit that is durable when the shared number is at least `self.0`. A wait raises the shared number.
    struct Nth(u32, Rc<Cell<u32>>);

    impl Promise for Nth {
        type Error = u32;
        fn is_kept(&self) -> Result<bool, u32> {
            if self.0 == 13 { Err(13) } else { Ok(self.1.get() >= self.0) }
        }
        fn keep(self) -> Result<(), u32> {
            self.1.set(self.1.get().max(self.0));
            Ok(())
        }
    }

    #[test]
    fn commits_leave_in_order_once_durable_and_the_oldest_is_waited_for_when_there_are_too_many() {
        let durable = Rc::new(Cell::new(2));
        let mut window = Window::default();
        (1..=5).for_each(|n| window.push(n, Nth(n, Rc::clone(&durable))));
        let mut left = Vec::new();
        window.drain(3, |n, _| left.push(n)).unwrap();
        assert_eq!((&left[..], durable.get()), (&[1, 2][..], 2), "three may stay");
        window.drain(1, |n, _| left.push(n)).unwrap();
        assert_eq!((&left[..], durable.get()), (&[1, 2, 3, 4][..], 4));
        window.push(13, Nth(13, Rc::clone(&durable)));
        assert_eq!(window.drain(0, |n, _| left.push(n)), Err(13));
        assert_eq!(left, [1, 2, 3, 4, 5]);
    }
}
