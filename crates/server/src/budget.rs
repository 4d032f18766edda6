//! Memory of all connections together: for incomplete requests, which have arrived in part or which `MULTI`
//! has queued, and for replies that are not sent yet. Each of the two has a [`Budget`].
//!
//! Up to [`FREE_BYTES`] of a connection do not count, because the number of connections is bounded. So a
//! connection without large requests never touches the shared count.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that each connection may hold without counting.
pub(crate) const FREE_BYTES: usize = 64 << 10;

/// Bytes held by the connections that hold more than [`FREE_BYTES`].
#[derive(Debug, Default)]
pub(crate) struct Budget(AtomicUsize);

impl Budget {
    /// Returns the bytes held now.
    pub(crate) fn held(&self) -> usize {
        // Relaxed: a count that orders nothing.
        self.0.load(Relaxed)
    }
}

/// The part of one connection. Release it by [`set`](Self::set) to 0.
#[derive(Debug, Default)]
pub(crate) struct Part(usize);

impl Part {
    /// Returns `true` if the connection holds at most its free bytes.
    pub(crate) const fn is_free(&self) -> bool {
        self.0 == 0
    }

    /// Sets the bytes that the connection holds. Returns `true` if all connections together hold at most
    /// `most`, or if this connection holds at most its free bytes.
    pub(crate) fn set(&mut self, budget: &Budget, bytes: usize, most: usize) -> bool {
        let counted = if bytes > FREE_BYTES { bytes } else { 0 };
        let before = std::mem::replace(&mut self.0, counted);
        if counted > before {
            // Relaxed, here and below: a count that orders nothing.
            budget.0.fetch_add(counted - before, Relaxed);
        } else if counted < before {
            budget.0.fetch_sub(before - counted, Relaxed);
        }
        counted == 0 || budget.held() <= most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_parts_count_together_and_small_ones_do_not() {
        let budget = Budget::default();
        let (mut one, mut two, mut small) = (Part::default(), Part::default(), Part::default());
        assert!(small.set(&budget, FREE_BYTES, 0));
        assert!(one.set(&budget, 600_000, 1_000_000));
        assert!(!two.set(&budget, 500_000, 1_000_000));
        assert!(small.set(&budget, 10, 1_000_000));
        assert!(two.set(&budget, 0, 1_000_000));
        assert!(one.set(&budget, 700_000, 1_000_000));
        assert_eq!(budget.held(), 700_000);
        assert!(one.set(&budget, 0, 0));
        assert_eq!(budget.held(), 0);
    }
}
