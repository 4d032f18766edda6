//! Counts writes to cache lines that threads share, so that a test can say what a fix costs (goal tables count these, not times).

#[cfg(any(test, feature = "count-shared-writes"))]
thread_local! {
    static WRITES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Notes one write to a shared line; nothing unless the counting build is on.
#[inline]
pub(crate) fn shared_write() {
    #[cfg(any(test, feature = "count-shared-writes"))]
    WRITES.with(|writes| writes.set(writes.get() + 1));
}

/// Writes to shared lines by the calling thread so far.
#[cfg(any(test, feature = "count-shared-writes"))]
#[must_use]
pub fn on_this_thread() -> u64 {
    WRITES.with(std::cell::Cell::get)
}
