//! Arrays that take memory only for used parts: they are zero until then, as the system returns memory.
//!
//! A page cache that holds few pages touches few pages of its arrays, and so does the lock table of a store
//! with few locks.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that arrays have from the system itself, beside the allocator. std's own atomic, Relaxed: a
/// statistic of the process.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of address space that the arrays of this process have from the system, outside of the
/// allocator.
#[must_use]
pub fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed) // a statistic
}

/// Types for which zero bytes are a valid value.
///
/// # Safety
///
/// Bytes that are all zero are a valid value, equal to the one that `make` of [`ZeroedArray::new`] returns;
/// the type has no padding and needs no drop.
pub unsafe trait ZeroIsValid {}

// SAFETY: an atomic integer has the layout of the integer.
unsafe impl ZeroIsValid for crate::sync::atomic::AtomicU32 {}

// SAFETY: as above.
#[cfg(any(loom, feature = "sim"))]
unsafe impl ZeroIsValid for crate::sync::atomic::AtomicU64 {}

// SAFETY: as above; the words of pages are std's atomics in models too.
unsafe impl ZeroIsValid for std::sync::atomic::AtomicU64 {}

#[cfg(not(loom))]
mod array {
    use std::alloc::{Layout, handle_alloc_error};
    use std::io;
    use std::ptr::NonNull;

    use super::ZeroIsValid;

    /// Cache lines: no item that fits one is in two.
    const ALIGNMENT: usize = 64;
    /// Arrays of this size or more are mapped from the system. An allocator may return memory that was used
    /// before, and write the zeroes itself.
    const MAPPED_BYTES: usize = 32 << 10;

    /// A fixed number of items, in memory that is zero until it is written.
    #[derive(Debug)]
    pub struct ZeroedArray<T> {
        /// ARRAY-1: the items lie in `memory`, aligned, and are valid as long as it.
        items: NonNull<T>,
        len: usize,
        _memory: Memory,
    }

    /// ARRAY-2: owned; freed by the drop alone.
    #[derive(Debug)]
    enum Memory {
        Allocated(NonNull<[u64]>),
        #[cfg(all(target_os = "linux", not(miri)))]
        Mapped(NonNull<u8>, usize),
    }

    // SAFETY: ARRAY-1 and ARRAY-2: it owns the items, as a box does.
    unsafe impl<T: Send> Send for ZeroedArray<T> {}
    // SAFETY: a shared reference gives shared references of the items only.
    unsafe impl<T: Sync> Sync for ZeroedArray<T> {}

    impl<T: ZeroIsValid> ZeroedArray<T> {
        /// An array of `len` items, each equal to the one that `make` returns. Ends the process if
        /// there is no memory, as a box does.
        #[must_use]
        pub fn new(len: usize, make: impl Fn() -> T) -> Self {
            let layout = Layout::array::<T>(len);
            Self::try_new(len, make)
                .unwrap_or_else(|_| handle_alloc_error(layout.unwrap_or(Layout::new::<T>())))
        }

        /// As [`new`](Self::new), with an error if there is no memory.
        ///
        /// # Errors
        ///
        /// The system's, if it has no memory for a large array.
        pub fn try_new(len: usize, make: impl Fn() -> T) -> io::Result<Self> {
            const { assert!(align_of::<T>() <= ALIGNMENT && !std::mem::needs_drop::<T>()) };
            debug_assert!(is_zero(&make()), "zero bytes are not what is made");
            let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
            let (first, memory) = Memory::zeroed(bytes)?;
            let items = NonNull::new(first.cast::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { items, len, _memory: memory })
        }
    }

    impl Memory {
        /// Zero bytes, and the first of them, aligned.
        fn zeroed(bytes: usize) -> io::Result<(*mut u8, Self)> {
            #[cfg(all(target_os = "linux", not(miri)))]
            if bytes >= MAPPED_BYTES {
                return Self::mapped(bytes);
            }
            let _ = MAPPED_BYTES;
            let words = Box::<[u64]>::new_zeroed_slice(bytes.div_ceil(8) + ALIGNMENT / 8);
            // SAFETY: zero is a valid integer.
            let words = Box::leak(unsafe { words.assume_init() });
            let first = words.as_mut_ptr().cast::<u8>();
            let skipped = first.addr().next_multiple_of(ALIGNMENT) - first.addr();
            let memory = Self::Allocated(NonNull::from(words));
            // SAFETY: the allocation has `ALIGNMENT` bytes more than were asked for.
            Ok((unsafe { first.add(skipped) }, memory))
        }

        #[cfg(all(target_os = "linux", not(miri)))]
        fn mapped(bytes: usize) -> io::Result<(*mut u8, Self)> {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, at no given address, so nothing else is in it. It is zero, and aligned
            // to a page of the system.
            let first =
                unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
            let first = first.cast::<u8>();
            let memory = NonNull::new(first).ok_or(io::ErrorKind::OutOfMemory)?;
            super::MAPPED.fetch_add(bytes, super::Relaxed); // a statistic
            Ok((first, Self::Mapped(memory, bytes)))
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            match *self {
                // SAFETY: ARRAY-2: it was leaked by `zeroed`.
                Self::Allocated(words) => drop(unsafe { Box::from_raw(words.as_ptr()) }),
                #[cfg(all(target_os = "linux", not(miri)))]
                Self::Mapped(first, bytes) => {
                    // SAFETY: ARRAY-2: it was mapped by `mapped`, with this size. A failure leaves it mapped.
                    let _ = unsafe { rustix::mm::munmap(first.as_ptr().cast(), bytes) };
                    super::MAPPED.fetch_sub(bytes, super::Relaxed); // a statistic
                }
            }
        }
    }

    /// Returns `true` if all bytes are zero.
    fn is_zero<T: ZeroIsValid>(value: &T) -> bool {
        // SAFETY: a `ZeroIsValid` type has no padding, so each of its bytes is initialized.
        let bytes =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) };
        bytes.iter().all(|&byte| byte == 0)
    }

    impl<T> ZeroedArray<T> {
        #[inline]
        pub(super) const fn items(&self) -> &[T] {
            // SAFETY: ARRAY-1; zero bytes are valid items (`ZeroIsValid`).
            unsafe { std::slice::from_raw_parts(self.items.as_ptr(), self.len) }
        }
    }
}

#[cfg(loom)]
mod array {
    use super::ZeroIsValid;

    /// A model's atomics have to be made.
    #[derive(Debug)]
    pub struct ZeroedArray<T>(Box<[T]>);

    impl<T: ZeroIsValid> ZeroedArray<T> {
        /// An array of `len` items, made by `make`.
        #[must_use]
        pub fn new(len: usize, make: impl Fn() -> T) -> Self {
            Self((0..len).map(|_| make()).collect())
        }

        /// As [`new`](Self::new).
        ///
        /// # Errors
        ///
        /// None in models.
        pub fn try_new(len: usize, make: impl Fn() -> T) -> std::io::Result<Self> {
            Ok(Self::new(len, make))
        }
    }

    impl<T> ZeroedArray<T> {
        pub(super) fn items(&self) -> &[T] {
            &self.0
        }
    }
}

pub use array::ZeroedArray;

impl<T> Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.items()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[repr(align(64))]
    struct Line([u8; 64]);

    // SAFETY: plain bytes.
    unsafe impl ZeroIsValid for Line {}

    #[test]
    fn items_are_zero_aligned_and_apart() {
        for len in [0, 1, 7, 1000, 100_000] {
            let numbers = ZeroedArray::new(len, || AtomicU64::new(0));
            assert!(numbers.len() == len && numbers.iter().all(|number| number.load(Relaxed) == 0));
            // Relaxed: one thread.
            numbers.iter().zip(0..).for_each(|(number, n)| number.store(n, Relaxed));
            assert!(numbers.iter().zip(0..).all(|(number, n)| number.load(Relaxed) == n));
            let lines = ZeroedArray::new(len, || Line([0; 64]));
            assert!(lines.as_ptr().addr().is_multiple_of(64));
            assert!(lines.iter().all(|line| line.0 == [0; 64]));
        }
    }
}
