//! Interfaces of a program's memory and arrays.

use std::mem;

/// An element type of arrays: plain bytes, with all bits zero for the number zero.
pub trait Number: bytemuck::Pod {}

impl Number for f32 {}
impl Number for f64 {}
impl Number for i32 {}
impl Number for u32 {}

/// Alignment of arrays in bytes, so that no two arrays share a cache line.
const ALIGN: usize = 64;

/// The memory is too small for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an array of {wanted} bytes does not fit the {left} bytes that are left: give the program Kernel::bytes()"
)]
pub struct OutOfMemory {
    /// Bytes of the requested array.
    pub wanted: usize,
    /// Free bytes of the memory.
    pub left: usize,
}

/// A source of arrays, which are filled with zeros and live as long as the memory.
pub trait Memory {
    /// Type of the arrays.
    type Array<T: Number>: Array<T>;

    /// Allocates an array of zeros.
    ///
    /// # Errors
    ///
    /// If the memory is too small.
    fn array<T: Number>(&mut self, len: usize) -> Result<Self::Array<T>, OutOfMemory>;
}

/// An array of fixed length. An index out of range panics.
pub trait Array<T: Number> {
    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Returns whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an element.
    fn get(&self, at: usize) -> T;

    /// Replaces an element.
    fn set(&mut self, at: usize, value: T);

    /// Adds a value to an element.
    fn add(&mut self, at: usize, value: T)
    where
        T: std::ops::Add<Output = T>,
    {
        self.set(at, self.get(at) + value);
    }
}

/// A memory over borrowed bytes, of the heap or of a region of far memory.
#[derive(Debug)]
pub struct Arena<'m> {
    left: &'m mut [u8],
}

impl<'m> Arena<'m> {
    /// Returns a memory over bytes that must be zero, as those of fresh memory are. This function does not
    /// fill them, because that would touch every page. With other bytes a program's verification fails.
    #[must_use]
    pub fn of_zeroed(bytes: &'m mut [u8]) -> Self {
        Self { left: bytes }
    }
}

impl<'m> Memory for Arena<'m> {
    type Array<T: Number> = &'m mut [T];

    fn array<T: Number>(&mut self, len: usize) -> Result<&'m mut [T], OutOfMemory> {
        let wanted = padded::<T>(len);
        let skipped = self.left.as_ptr().align_offset(align_of::<T>());
        let all = mem::take(&mut self.left);
        if all.len() < wanted.saturating_add(skipped) {
            let left = all.len();
            self.left = all;
            return Err(OutOfMemory { wanted, left });
        }
        let (array, left) = all[skipped..].split_at_mut(wanted);
        self.left = left;
        Ok(bytemuck::cast_slice_mut(&mut array[..len * size_of::<T>()]))
    }
}

impl<T: Number> Array<T> for &mut [T] {
    fn len(&self) -> usize {
        (**self).len()
    }

    #[inline]
    fn get(&self, at: usize) -> T {
        self[at]
    }

    #[inline]
    fn set(&mut self, at: usize, value: T) {
        self[at] = value;
    }
}

/// Returns the bytes of an array with its padding.
#[must_use]
pub const fn padded<T: Number>(len: usize) -> usize {
    // If the sum saturates, the result exceeds every memory.
    len.saturating_mul(size_of::<T>()).saturating_add(ALIGN - 1) / ALIGN * ALIGN
}

/// Returns the bytes that a program needs for arrays of `arrays` bytes: an arena over unaligned bytes loses
/// up to [`ALIGN`] bytes.
pub(crate) const fn with_slack(arrays: usize) -> usize {
    arrays + ALIGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_apart_and_aligned_wherever_the_bytes_are() {
        let mut bytes = vec![0_u8; 1000];
        let mut memory = Arena::of_zeroed(&mut bytes[3..]);
        let mut a = memory.array::<f64>(9).unwrap();
        let mut b = memory.array::<u32>(5).unwrap();
        assert_eq!((a.len(), b.len()), (9, 5));
        (0..9).for_each(|at| a.set(at, 1.5));
        b.set(4, 7);
        b.add(4, 1);
        assert_eq!((a.get(8), b.get(0), b.get(4)), (1.5, 0, 8));
    }

    #[test]
    fn an_allocation_that_does_not_fit_is_refused_and_others_succeed() {
        let mut bytes = vec![0_u8; 256];
        let mut memory = Arena::of_zeroed(&mut bytes);
        assert!(memory.array::<f64>(1000).is_err());
        assert!(memory.array::<f64>(usize::MAX).is_err());
        assert!(memory.array::<f64>(8).is_ok());
    }
}
