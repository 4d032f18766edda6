//! Prefetches of memory into the processor's cache.

/// Prefetches the cache lines of `items`. A hint; does not wait.
#[inline]
pub fn prefetch<T>(items: &[T]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const LINE: usize = 64;
        for line in items.chunks((LINE / size_of::<T>().max(1)).max(1)) {
            // SAFETY: a prefetch has no effect that the program can observe, and never faults. SSE, which
            // contains the instruction, is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
    // Other processors have no stable intrinsic for a prefetch.
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = items;
}
