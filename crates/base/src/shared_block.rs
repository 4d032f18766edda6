//! Bytes with a header and a shared value, in one allocation with a reference count.
//!
//! A [`SharedBlock`] either has a value, or refers to a block that has one. So a group of blocks shares one
//! value without a separate allocation. A reference is one pointer.
//!
//! - **SHARED-1** After a block was created, only its reference count changes, and state that the value
//!   changes through a shared reference.
//! - **SHARED-2** The drop of the last reference frees the block. Each other drop is ordered before it by the
//!   Release and the Acquire of the count.
//! - **BLOCK-3** If a block refers to another one for its value, that other block contains the value itself.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::{ManuallyDrop, offset_of};
use std::ptr::{self, NonNull};

use crate::prefetch;
use crate::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

union Owner<V, H: Copy> {
    own: ManuallyDrop<V>,
    other: ManuallyDrop<SharedBlock<V, H>>,
}

#[repr(C)]
struct Header<V, H: Copy> {
    owner: Owner<V, H>,
    references: AtomicU32,
    len: u32,
    head: H,
    has_value: bool,
}

/// A counted reference to a block of bytes with a header `H` and a value `V`, which blocks can share.
pub struct SharedBlock<V, H: Copy>(NonNull<Header<V, H>>);

// SAFETY: only the count and the value change (SHARED-1), and any thread can drop the last reference
// (SHARED-2).
unsafe impl<V: Send + Sync, H: Copy + Send + Sync> Send for SharedBlock<V, H> {}
// SAFETY: as for `Send`.
unsafe impl<V: Send + Sync, H: Copy + Send + Sync> Sync for SharedBlock<V, H> {}

impl<V: fmt::Debug, H: Copy + fmt::Debug> fmt::Debug for SharedBlock<V, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, len) = (self.head(), self.bytes().len());
        f.debug_struct("SharedBlock")
            .field("head", &head)
            .field("value", self.value())
            .field("len", &len)
            .finish()
    }
}

impl<V, H: Copy> SharedBlock<V, H> {
    /// Offset of the bytes: the end of the header without its padding.
    const BYTES_AT: usize = offset_of!(Header<V, H>, has_value) + 1;

    fn layout(bytes: usize) -> Layout {
        let header = Layout::new::<Header<V, H>>();
        // At least the size of the header, because its padding belongs to it.
        let size = (Self::BYTES_AT + bytes).max(header.size());
        Layout::from_size_align(size, header.align()).expect("the bytes exist in memory already")
    }

    /// Returns the size of the allocation of a block with `bytes` bytes.
    #[must_use]
    pub fn size(bytes: usize) -> usize {
        Self::layout(bytes).size()
    }

    /// Creates a block with a value. Its bytes are those of `parts`, one after the other.
    ///
    /// # Panics
    ///
    /// If the bytes are 4 GiB or more.
    #[must_use]
    pub fn with_value(value: V, head: H, parts: [&[u8]; 2]) -> Self {
        Self::new(Owner { own: ManuallyDrop::new(value) }, true, head, parts)
    }

    /// Creates a block that shares the value of `other`.
    ///
    /// # Panics
    ///
    /// If the bytes are 4 GiB or more.
    #[must_use]
    pub fn beside(other: &Self, head: H, parts: [&[u8]; 2]) -> Self {
        let home = other.home().clone(); // BLOCK-3
        Self::new(Owner { other: ManuallyDrop::new(home) }, false, head, parts)
    }

    fn new(owner: Owner<V, H>, has_value: bool, head: H, [first, second]: [&[u8]; 2]) -> Self {
        let len = first.len() + second.len();
        let layout = Self::layout(len);
        let len = u32::try_from(len).expect("less than 4 GiB");
        // SAFETY: the size of the layout is at least that of a header, and not 0.
        let memory = unsafe { alloc(layout) };
        let Some(at) = NonNull::new(memory.cast::<Header<V, H>>()) else { handle_alloc_error(layout) };
        // SAFETY: the memory has the size of `layout`: a header, and the bytes from `BYTES_AT` on. The header
        // is written first, because its padding overlaps the bytes.
        unsafe {
            at.write(Header { owner, references: AtomicU32::new(1), len, head, has_value });
            let bytes = memory.add(Self::BYTES_AT);
            ptr::copy_nonoverlapping(first.as_ptr(), bytes, first.len());
            ptr::copy_nonoverlapping(second.as_ptr(), bytes.add(first.len()), second.len());
        }
        Self(at)
    }

    fn header(&self) -> &Header<V, H> {
        // SAFETY: this reference keeps the block alive (SHARED-2), and only shared parts of it change
        // (SHARED-1).
        unsafe { self.0.as_ref() }
    }

    /// Prefetches the header into the processor's cache. A hint; does not wait.
    pub fn prefetch(&self) {
        prefetch(std::slice::from_ref(self.header()));
    }

    /// Returns the header.
    #[must_use]
    pub fn head(&self) -> H {
        self.header().head
    }

    /// Returns the bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let len = self.header().len as usize;
        // SAFETY: `new` has written this number of bytes there, and they never change (SHARED-1).
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(Self::BYTES_AT), len) }
    }

    /// Returns the block that contains the value.
    fn home(&self) -> &Self {
        match self.header().has_value {
            true => self,
            // SAFETY: `beside` has stored this member of the union.
            false => unsafe { &self.header().owner.other },
        }
    }

    /// Returns the value.
    #[must_use]
    pub fn value(&self) -> &V {
        // SAFETY: the block contains the value (BLOCK-3).
        unsafe { &self.home().header().owner.own }
    }
}

impl<V, H: Copy> Clone for SharedBlock<V, H> {
    fn clone(&self) -> Self {
        self.header().references.fetch_add(1, Relaxed); // Relaxed: `self` keeps the block alive
        Self(self.0)
    }
}

impl<V, H: Copy> Drop for SharedBlock<V, H> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the last drop (SHARED-2).
        if self.header().references.fetch_sub(1, Release) > 1 {
            return;
        }
        fence(Acquire); // Acquire: pairs with the Release of all earlier drops
        let layout = Self::layout(self.header().len as usize);
        // SAFETY: no other reference is left (SHARED-2). `new` has created the header and the allocation with
        // this layout, and `has_value` determines the member of the union.
        unsafe {
            let header = self.0.as_mut();
            match header.has_value {
                true => ManuallyDrop::drop(&mut header.owner.own),
                false => ManuallyDrop::drop(&mut header.owner.other),
            }
            ptr::drop_in_place(&raw mut header.references);
            dealloc(self.0.as_ptr().cast(), layout);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    type Block = SharedBlock<Arc<u64>, u32>;

    #[test]
    fn blocks_share_a_value_until_the_last_one_is_dropped() {
        let value = Arc::new(7);
        let first = Block::with_value(Arc::clone(&value), 1, [b"key", b"value"]);
        let second = Block::beside(&first, 2, [b"", b""]);
        let third = Block::beside(&second, 3, [b"", b"x"]);
        let other = Block::with_value(Arc::clone(&value), 4, [b"", b""]);
        assert_eq!((first.head(), first.bytes()), (1, &b"keyvalue"[..]));
        assert_eq!((third.head(), third.bytes(), **third.value()), (3, &b"x"[..], 7));
        assert!(ptr::eq(third.value(), first.value()) && !ptr::eq(third.value(), other.value()));
        assert_eq!(Arc::strong_count(&value), 3, "two blocks have it");
        drop((first, other));
        assert_eq!((Arc::strong_count(&value), **second.value()), (2, 7));
        drop((third.clone(), third));
        assert_eq!(Arc::strong_count(&value), 2);
        drop(second);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn threads_drop_their_references_in_any_order() {
        let value = Arc::new(1);
        let first = Block::with_value(Arc::clone(&value), 1, [&[1; 100], &[2; 100]]);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let block = if n % 2 == 0 { first.clone() } else { Block::beside(&first, n, [b"a", b"b"]) };
                scope.spawn(move || (0..100).for_each(|_| assert_eq!(**block.clone().value(), 1)));
            }
            drop(first);
        });
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
