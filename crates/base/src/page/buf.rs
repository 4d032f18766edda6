//! A page image in memory of a single thread.

use super::MIN_PAGE_SIZE;

#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; MIN_PAGE_SIZE]);

/// Bytes owned by one thread, aligned for direct I/O. The length is a multiple of 4 KiB.
#[derive(Clone)]
pub struct PageBuf(Vec<Block>);

impl std::fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageBuf({} bytes)", self.len())
    }
}

impl PageBuf {
    /// Returns a buffer of `bytes` zero bytes, rounded up to a multiple of 4 KiB.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self(vec![Block([0; MIN_PAGE_SIZE]); bytes.div_ceil(MIN_PAGE_SIZE)])
    }
}

impl std::ops::Deref for PageBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `Block` is `repr(C)` around a byte array without padding (its size equals its alignment).
        // So the vector's blocks are contiguous initialized bytes, borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * MIN_PAGE_SIZE) }
    }
}

impl std::ops::DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * MIN_PAGE_SIZE) }
    }
}
