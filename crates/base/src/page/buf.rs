//! A page image in memory of a single thread.

use super::MIN_PAGE_SIZE;

#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; MIN_PAGE_SIZE]);

/// Bytes owned by one thread, aligned for direct I/O. The length is a multiple of 4 KiB.
#[derive(Clone)]
pub struct PageBuf(Bytes);

#[derive(Clone)]
enum Bytes {
    Allocated(Vec<Block>),
    #[cfg(all(target_os = "linux", not(miri), not(loom)))]
    Mapped(crate::zeroed::ZeroedArray<u8>),
}

/// Size in bytes from which the memory of a buffer comes from the system and returns to it. An allocator with
/// one arena per thread keeps freed memory of this size in each arena: measured, 16 threads that flushed the
/// log in turns kept 55 MiB.
#[cfg(all(target_os = "linux", not(miri), not(loom)))]
const MAPPED_BYTES: usize = 128 << 10;

impl std::fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageBuf({} bytes)", self.len())
    }
}

impl PageBuf {
    /// Returns a buffer of `bytes` zero bytes, rounded up to a multiple of 4 KiB.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        #[cfg(all(target_os = "linux", not(miri), not(loom)))]
        if bytes >= MAPPED_BYTES {
            let bytes = bytes.next_multiple_of(MIN_PAGE_SIZE);
            return Self(Bytes::Mapped(crate::zeroed::ZeroedArray::new(bytes, || 0)));
        }
        Self(Bytes::Allocated(vec![Block([0; MIN_PAGE_SIZE]); bytes.div_ceil(MIN_PAGE_SIZE)]))
    }
}

impl std::ops::Deref for PageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: `Block` is `repr(C)` around a byte array without padding (its size equals its
            // alignment). So the blocks are contiguous initialized bytes, borrowed as long as `self`.
            Bytes::Allocated(blocks) => unsafe {
                std::slice::from_raw_parts(blocks.as_ptr().cast(), blocks.len() * MIN_PAGE_SIZE)
            },
            #[cfg(all(target_os = "linux", not(miri), not(loom)))]
            Bytes::Mapped(bytes) => bytes,
        }
    }
}

impl std::ops::DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            // SAFETY: as in `deref`, and `self` is borrowed exclusively.
            Bytes::Allocated(blocks) => unsafe {
                std::slice::from_raw_parts_mut(blocks.as_mut_ptr().cast(), blocks.len() * MIN_PAGE_SIZE)
            },
            #[cfg(all(target_os = "linux", not(miri), not(loom)))]
            Bytes::Mapped(bytes) => bytes.items_mut(),
        }
    }
}
