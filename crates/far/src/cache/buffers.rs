//! Buffers for images in flight: to a server, or to a thread that waits for the image.
//!
//! The thread that took a buffer owns it until it gives the buffer back. While an order for the buffer is
//! open, the replica owns it (KEEPER-1).

/// State of a buffer that waits for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Awaited,
    Came,
    Failed,
}

#[derive(Debug)]
pub(super) struct Buffers {
    /// The memory of all buffers, one after the other.
    memory: *mut [u8],
    page_bytes: usize,
    replies: Vec<Reply>,
    free: Vec<u32>,
}

// SAFETY: the memory is accessed through `&mut self`, and by the replica that has an order for a buffer
// (KEEPER-1).
unsafe impl Send for Buffers {}

impl Buffers {
    pub(super) fn new(count: u32, page_bytes: usize) -> Self {
        let memory = Box::into_raw(vec![0_u8; count as usize * page_bytes].into_boxed_slice());
        Self { memory, page_bytes, replies: vec![Reply::Failed; count as usize], free: (0..count).collect() }
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn give(&mut self, buffer: u32) {
        debug_assert!(!self.free.contains(&buffer), "buffer {buffer} is given back twice");
        self.free.push(buffer);
    }

    /// Returns the address of a buffer's first byte.
    pub(super) fn at(&self, buffer: u32) -> *mut u8 {
        assert!((buffer as usize) < self.replies.len());
        self.memory.cast::<u8>().wrapping_add(buffer as usize * self.page_bytes)
    }

    /// Returns the buffer that begins at an address.
    pub(super) fn of(&self, at: *mut u8) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "at most `BUFFERS`")]
        let buffer = ((at as usize - self.memory.cast::<u8>() as usize) / self.page_bytes) as u32;
        buffer
    }

    pub(super) fn fill(&mut self, buffer: u32, image: &[u8]) {
        assert_eq!(image.len(), self.page_bytes);
        // SAFETY: the buffer is one page long and does not overlap the image. It was taken, and no order for
        // it is open, so nothing else accesses it.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), self.at(buffer), self.page_bytes) }
    }

    /// Returns the received content of a buffer.
    pub(super) fn bytes(&self, buffer: u32) -> &[u8] {
        assert_eq!(self.replies[buffer as usize], Reply::Came);
        // SAFETY: the buffer is one page long. Its order has been returned, and the buffer is still taken.
        unsafe { std::slice::from_raw_parts(self.at(buffer), self.page_bytes) }
    }

    pub(super) fn await_reply(&mut self, buffer: u32) {
        self.replies[buffer as usize] = Reply::Awaited;
    }

    pub(super) fn reply_with(&mut self, buffer: u32, came: bool) {
        self.replies[buffer as usize] = if came { Reply::Came } else { Reply::Failed };
    }

    pub(super) fn reply(&self, buffer: u32) -> Reply {
        self.replies[buffer as usize]
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: `new` made it from a box. No order is open: while replicas work, they hold the cache's
        // `Shared`, which contains these buffers.
        drop(unsafe { Box::from_raw(self.memory) });
    }
}
