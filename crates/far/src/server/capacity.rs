//! The memory of all sessions together.
//!
//! A session reserves bytes when it opens. Bytes beyond its reservation are taken from the unreserved rest.
//! So a client can always store as many bytes as it reserved.
//!
//! - **CAPACITY-1** `promised` is the sum over sessions of max(reserved, held), and never above the capacity.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug)]
pub(super) struct Capacity {
    capacity: u64,
    promised: AtomicU64,
    held: AtomicU64,
}

/// The memory of one session; returned when dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    pool: &'a Capacity,
    reserved: u64,
    held: u64,
    quota: u64,
}

impl Capacity {
    pub(super) fn new(capacity: u64) -> Self {
        Self { capacity, promised: AtomicU64::new(0), held: AtomicU64::new(0) }
    }

    // Relaxed in this file: the counters order no other accesses. The pages that they count stay with one
    // thread.
    pub(super) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    pub(super) fn promised(&self) -> u64 {
        self.promised.load(Relaxed)
    }

    fn promise(&self, bytes: u64) -> Result<(), u64> {
        let more = |promised: u64| promised.checked_add(bytes).filter(|&sum| sum <= self.capacity);
        // Relaxed: see `held`.
        self.promised
            .try_update(Relaxed, Relaxed, more)
            .map(drop)
            .map_err(|promised| self.capacity - promised)
    }

    /// Reserves bytes for a session. The error is the number of bytes that are left.
    pub(super) fn reserve(&self, bytes: u64, quota: u64) -> Result<Share<'_>, u64> {
        if bytes > quota {
            return Err(quota);
        }
        self.promise(bytes)?;
        Ok(Share { pool: self, reserved: bytes, held: 0, quota })
    }
}

impl Share<'_> {
    /// Returns the largest number of bytes that the session may hold.
    pub(super) fn quota(&self) -> u64 {
        self.quota.min(self.pool.capacity)
    }

    /// Raises the number of reserved bytes. The error is the largest number that would be possible.
    pub(super) fn reserve(&mut self, bytes: u64) -> Result<(), u64> {
        if bytes > self.quota {
            return Err(self.quota);
        }
        let promised = self.reserved.max(self.held);
        if bytes > promised {
            self.pool.promise(bytes - promised).map_err(|left| promised + left)?;
        }
        self.reserved = self.reserved.max(bytes);
        Ok(())
    }

    /// Takes bytes for a page. The error is the number of bytes that are left.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), u64> {
        let after = self.held.saturating_add(bytes);
        if after > self.quota {
            return Err(self.quota - self.held);
        }
        let beyond = after.saturating_sub(self.reserved.max(self.held));
        if beyond > 0 {
            self.pool.promise(beyond)?;
        }
        self.held = after;
        self.pool.held.fetch_add(bytes, Relaxed); // Relaxed: see `Capacity::held`
        Ok(())
    }

    /// Releases the bytes of a page.
    pub(super) fn give_back(&mut self, bytes: u64) {
        let before = self.held;
        self.held -= bytes;
        let beyond = before.saturating_sub(self.held.max(self.reserved));
        self.pool.promised.fetch_sub(beyond, Relaxed);
        self.pool.held.fetch_sub(bytes, Relaxed);
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        // Relaxed: see `Capacity::held`.
        self.pool.promised.fetch_sub(self.reserved.max(self.held), Relaxed);
        self.pool.held.fetch_sub(self.held, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_raised_as_far_as_there_is_room() {
        let pool = Capacity::new(100);
        let (mut a, mut b) = (pool.reserve(0, 90).unwrap(), pool.reserve(0, 90).unwrap());
        assert_eq!((a.reserve(60), a.reserve(50), pool.promised()), (Ok(()), Ok(()), 60));
        assert_eq!(b.take(30), Ok(()));
        assert_eq!(b.reserve(41), Err(40));
        assert_eq!((b.reserve(40), b.reserve(95), pool.promised()), (Ok(()), Err(90), 100));
        assert_eq!((a.take(60), b.take(10), b.take(1)), (Ok(()), Ok(()), Err(0)));
        drop(a);
        assert_eq!((b.reserve(90), pool.promised()), (Ok(()), 90));
        drop(b);
        assert_eq!((pool.held(), pool.promised()), (0, 0));
    }

    #[test]
    fn f6_reserved_space_is_not_given_to_another_client() {
        let pool = Capacity::new(100);
        let mut a = pool.reserve(60, 80).unwrap();
        assert_eq!(pool.reserve(50, 100).unwrap_err(), 40);
        let mut b = pool.reserve(10, 100).unwrap();
        assert_eq!(b.take(40), Ok(()));
        assert_eq!(b.take(1), Err(0), "60 are promised to the other");
        assert_eq!(a.take(60), Ok(()));
        assert_eq!(a.take(1), Err(0));
        b.give_back(20);
        assert_eq!(a.take(20), Ok(()));
        assert_eq!(a.take(1), Err(0), "its quota");
        assert_eq!((pool.held(), pool.promised()), (100, 100));
        drop((a, b));
        assert_eq!((pool.held(), pool.promised()), (0, 0));
    }
}
