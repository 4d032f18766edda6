//! Arrays that use memory only for the parts that are used. Unused parts are zero, as the system provides
//! memory.
//!
//! A page cache that holds few pages touches few pages of its arrays, and so does the lock table of a store
//! with few locks.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes that arrays have mapped from the system, outside of the allocator. std's own atomic, Relaxed: a
/// statistic of the process.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Returns the bytes of address space that the arrays of this process have mapped from the system, outside of
/// the allocator.
#[must_use]
pub fn mapped_bytes() -> usize {
    MAPPED.load(Relaxed) // Relaxed: a statistic
}

/// Types for which zero bytes are a valid value.
///
/// # Safety
///
/// A value of only zero bytes is valid, and equals the one that `make` of [`ZeroedArray::new`] returns. The
/// type has no padding and needs no drop.
pub unsafe trait ZeroIsValid {}

// SAFETY: zero is a valid byte.
unsafe impl ZeroIsValid for u8 {}

// SAFETY: an atomic integer has the layout of the integer.
unsafe impl ZeroIsValid for crate::sync::atomic::AtomicU32 {}

// SAFETY: as for `AtomicU32`.
#[cfg(any(loom, feature = "sim"))]
unsafe impl ZeroIsValid for crate::sync::atomic::AtomicU64 {}

// SAFETY: as for `AtomicU32`. The words of pages are std's atomics in models, too.
unsafe impl ZeroIsValid for std::sync::atomic::AtomicU64 {}

#[cfg(not(loom))]
mod array {
    use std::alloc::{Layout, handle_alloc_error};
    use std::io;
    use std::ptr::NonNull;
    use std::sync::Arc;

    use super::ZeroIsValid;

    /// Alignment in bytes: that of a cache line, so that no item that fits into one line is on two lines.
    const ALIGNMENT: usize = 64;
    /// Size in bytes from which arrays are mapped from the system, of which they use at least one page. An
    /// allocator writes the zeros itself, because its memory may have been used before.
    const MAPPED_BYTES: usize = 3 << 10;

    /// A fixed number of items, in memory that is zero until it is written.
    #[derive(Debug)]
    pub struct ZeroedArray<T> {
        /// ARRAY-1: the items are in `memory`, aligned, in no other array, and are valid as long as `memory`
        /// exists.
        items: NonNull<T>,
        len: usize,
        _memory: Arc<Memory>,
    }

    /// Memory for several arrays of one owner: small arrays share pages of the system.
    #[derive(Debug)]
    pub struct ZeroedMemory {
        memory: Option<Arc<Memory>>,
        /// The first byte that is in no array, aligned.
        next: *mut u8,
        /// Number of bytes from `next` on.
        left: usize,
    }

    /// Memory of arrays. ARRAY-2: owned by them, and freed only by the drop.
    #[derive(Debug)]
    enum Memory {
        Allocated(NonNull<[u64]>),
        #[cfg(all(target_os = "linux", not(miri)))]
        Mapped(NonNull<u8>, usize),
    }

    // SAFETY: ARRAY-2: nothing but the drop uses the pointers, and any thread may free the memory.
    unsafe impl Send for Memory {}
    // SAFETY: a shared reference gives no access.
    unsafe impl Sync for Memory {}

    // SAFETY: ARRAY-1 and ARRAY-2: the array owns the items, as a box does.
    unsafe impl<T: Send> Send for ZeroedArray<T> {}
    // SAFETY: a shared reference to the array gives only shared references to the items.
    unsafe impl<T: Sync> Sync for ZeroedArray<T> {}

    impl<T: ZeroIsValid> ZeroedArray<T> {
        /// Returns an array of `len` items, each equal to the one that `make` returns. Ends the process if
        /// there is no memory, as a box does.
        #[must_use]
        pub fn new(len: usize, make: impl Fn() -> T) -> Self {
            let layout = Layout::array::<T>(len);
            Self::try_new(len, make)
                .unwrap_or_else(|_| handle_alloc_error(layout.unwrap_or(Layout::new::<T>())))
        }

        /// Creates an array as [`new`](Self::new) does, with an error if there is no memory.
        ///
        /// # Errors
        ///
        /// The error of the system, if it has no memory for a large array.
        pub fn try_new(len: usize, make: impl Fn() -> T) -> io::Result<Self> {
            let bytes = len.checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
            ZeroedMemory::try_new(bytes)?.place(len, make).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
        }
    }

    impl ZeroedMemory {
        /// Returns memory for arrays of together `bytes` bytes.
        ///
        /// # Errors
        ///
        /// The error of the system, if it has no memory.
        pub fn try_new(bytes: usize) -> io::Result<Self> {
            let (next, memory) = Memory::zeroed(bytes)?;
            Ok(Self { memory: Some(Arc::new(memory)), next, left: bytes })
        }

        /// Returns no memory: each array has its own.
        #[must_use]
        pub const fn none() -> Self {
            Self { memory: None, next: std::ptr::null_mut(), left: 0 }
        }

        /// Returns an array in this memory, or, if there is no room, one with memory of its own, as
        /// [`ZeroedArray::new`] does.
        #[must_use]
        pub fn array<T: ZeroIsValid>(&mut self, len: usize, make: impl Fn() -> T) -> ZeroedArray<T> {
            self.place(len, &make).unwrap_or_else(|| ZeroedArray::new(len, make))
        }

        fn place<T: ZeroIsValid>(&mut self, len: usize, make: impl Fn() -> T) -> Option<ZeroedArray<T>> {
            const { assert!(align_of::<T>() <= ALIGNMENT && !std::mem::needs_drop::<T>()) };
            debug_assert!(is_zero(&make()), "zero bytes are not what is made");
            let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= self.left)?;
            let memory = Arc::clone(self.memory.as_ref()?);
            let items = NonNull::new(self.next.cast::<T>())?;
            let used = bytes.next_multiple_of(ALIGNMENT).min(self.left);
            // SAFETY: `left` bytes of one allocation follow.
            self.next = unsafe { self.next.add(used) };
            self.left -= used;
            Some(ZeroedArray { items, len, _memory: memory })
        }
    }

    impl Memory {
        /// Returns zero bytes, and the address of the first aligned byte.
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
            // SAFETY: the allocation has `ALIGNMENT` bytes more than were requested.
            Ok((unsafe { first.add(skipped) }, memory))
        }

        #[cfg(all(target_os = "linux", not(miri)))]
        fn mapped(bytes: usize) -> io::Result<(*mut u8, Self)> {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping at an address that the system chooses, so it overlaps no other memory. It
            // is zeroed, and aligned to a page of the system.
            let first =
                unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
            let first = first.cast::<u8>();
            let memory = NonNull::new(first).ok_or(io::ErrorKind::OutOfMemory)?;
            super::MAPPED.fetch_add(bytes, super::Relaxed); // Relaxed: a statistic
            Ok((first, Self::Mapped(memory, bytes)))
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            match *self {
                // SAFETY: ARRAY-2: the box was leaked by `zeroed`.
                Self::Allocated(words) => drop(unsafe { Box::from_raw(words.as_ptr()) }),
                #[cfg(all(target_os = "linux", not(miri)))]
                Self::Mapped(first, bytes) => {
                    // SAFETY: ARRAY-2: mapped by `mapped` with this size. If the call fails, the memory stays
                    // mapped.
                    let _ = unsafe { rustix::mm::munmap(first.as_ptr().cast(), bytes) };
                    super::MAPPED.fetch_sub(bytes, super::Relaxed); // Relaxed: a statistic
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

        /// Returns the items. The first one of an array with at least 4 KiB of its own memory is aligned to a
        /// page of the system.
        #[inline]
        pub const fn items_mut(&mut self) -> &mut [T] {
            // SAFETY: ARRAY-1: no other array has these items, and `self` is borrowed exclusively.
            unsafe { std::slice::from_raw_parts_mut(self.items.as_ptr(), self.len) }
        }
    }

    impl<T: ZeroIsValid + Copy + Default> Clone for ZeroedArray<T> {
        fn clone(&self) -> Self {
            let mut copy = Self::new(self.len, T::default);
            copy.items_mut().copy_from_slice(self.items());
            copy
        }
    }
}

#[cfg(loom)]
mod array {
    use super::ZeroIsValid;

    /// An array for models, in which atomics must be created one by one.
    #[derive(Debug)]
    pub struct ZeroedArray<T>(Box<[T]>);

    impl<T: ZeroIsValid> ZeroedArray<T> {
        /// Returns an array of `len` items, created by `make`.
        #[must_use]
        pub fn new(len: usize, make: impl Fn() -> T) -> Self {
            Self((0..len).map(|_| make()).collect())
        }

        /// Creates an array as [`new`](Self::new) does.
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

        /// Returns the items.
        pub fn items_mut(&mut self) -> &mut [T] {
            &mut self.0
        }
    }

    impl<T: Clone> Clone for ZeroedArray<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }

    /// Memory for several arrays, which models allocate one by one.
    #[derive(Debug)]
    pub struct ZeroedMemory(());

    impl ZeroedMemory {
        /// Returns memory for any arrays.
        ///
        /// # Errors
        ///
        /// None in models.
        pub fn try_new(_bytes: usize) -> std::io::Result<Self> {
            Ok(Self(()))
        }

        /// Returns the memory of `try_new`.
        #[must_use]
        pub const fn none() -> Self {
            Self(())
        }

        /// Returns an array of `len` items, created by `make`.
        #[must_use]
        pub fn array<T: ZeroIsValid>(&mut self, len: usize, make: impl Fn() -> T) -> ZeroedArray<T> {
            ZeroedArray::new(len, make)
        }
    }
}

pub use array::{ZeroedArray, ZeroedMemory};

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

    // SAFETY: the type consists of plain bytes.
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

    #[test]
    fn arrays_of_one_memory_are_apart_and_outlive_it() {
        let memory = |bytes| ZeroedMemory::try_new(bytes).expect("memory");
        for mut memory in [ZeroedMemory::none(), memory(1), memory(200), memory(5000)] {
            let arrays: Vec<_> = (0..20).map(|len| memory.array(len, || AtomicU64::new(0))).collect();
            drop(memory);
            let numbers = || arrays.iter().flat_map(|array| array.iter()).zip(0..);
            // Relaxed: one thread.
            assert!(numbers().all(|(number, _)| number.load(Relaxed) == 0));
            numbers().for_each(|(number, n)| number.store(n, Relaxed));
            assert!(numbers().all(|(number, n)| number.load(Relaxed) == n));
            assert!(arrays.iter().all(|array| array.as_ptr().addr().is_multiple_of(64)));
        }
    }
}
