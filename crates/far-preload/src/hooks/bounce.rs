//! Bounce buffers: ordinary memory for a transfer if the kernel does not wait for far memory (F1).
//!
//! For such a transfer it is not enough to touch the buffer and repeat the call. The page can be paged out
//! again between the touch and the call, and data that a socket or an eventfd has already delivered would be
//! lost. So the kernel gets a *bounce* buffer. The calling thread copies the bytes between the bounce buffer
//! and far memory by loads and stores, which do wait for pages.
//!
//! Of several parts only the far ones are in the bounce buffer. The kernel accesses the others itself, and so
//! determines the result if the program may not access one of them.
//!
//! Some bounce buffers are kept for reuse and acquired without a lock, because signal handlers may call
//! `read` and `write`. If all are in use, memory is mapped. A thread that is canceled during a call keeps its
//! bounce buffer permanently.

use crate::session::{heap, is_bounced};
use azekura_far::sys;
use libc::iovec;
use std::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};
use std::{ptr, slice};

/// Size of a bounce buffer in bytes: more than any datagram, and large enough that the cost of a system call
/// is small compared with the copying.
pub(super) const BOUNCE: usize = 1 << 20;
/// Size of the list of parts behind a bounce buffer.
const LIST: usize = MOST_PARTS * size_of::<iovec>();
/// Largest number of parts that the kernel accepts in one call.
pub(super) const MOST_PARTS: usize = 1024;
const KEPT: usize = 16;

struct Slot {
    taken: AtomicBool,
    at: AtomicPtr<u8>,
}

static SLOTS: [Slot; KEPT] =
    [const { Slot { taken: AtomicBool::new(false), at: AtomicPtr::new(ptr::null_mut()) } }; KEPT];

/// A bounce buffer, aligned to a page of the system. The owner calls `give_back`. There is no destructor,
/// because a canceled thread unwinds through the owner.
pub(super) struct Bounce {
    at: *mut u8,
    slot: Option<usize>,
}

impl Bounce {
    /// Acquires a bounce buffer; `None` if the system has no memory.
    pub(super) fn take() -> Option<Self> {
        for (index, slot) in SLOTS.iter().enumerate() {
            // Acquire: pairs with Release in `give_back`, so the accesses of the previous owner come before
            // those of this thread, and the address of the mapping is visible.
            if slot.taken.load(Relaxed) || slot.taken.swap(true, Acquire) {
                continue;
            }
            let mut at = slot.at.load(Relaxed); // Relaxed: this thread owns the slot
            if at.is_null() {
                at = map();
                slot.at.store(at, Relaxed);
            }
            if at.is_null() {
                slot.taken.store(false, Release);
                return None;
            }
            return Some(Self { at, slot: Some(index) });
        }
        let at = map();
        (!at.is_null()).then_some(Self { at, slot: None })
    }

    pub(super) fn at(&self) -> *mut u8 {
        self.at
    }

    pub(super) fn give_back(self) {
        match self.slot {
            // Release: pairs with Acquire in `take`.
            Some(index) => SLOTS[index].taken.store(false, Release),
            // SAFETY: mapped by `map`, and no pointer to the mapping is left.
            None => unsafe {
                sys::call(libc::SYS_munmap, [self.at as usize, BOUNCE + LIST, 0, 0, 0, 0]);
            },
        }
    }
}

/// Maps memory by a system call, because `mmap` is a hook of this library.
fn map() -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let arguments = [0, BOUNCE + LIST, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe { sys::call(libc::SYS_mmap, arguments) };
    if at < 0 { ptr::null_mut() } else { at as *mut u8 }
}

/// Returns `true` if a piece of a part is in the bounce buffer: it is far memory without reserved pages. A
/// piece that is far memory in part leaves far memory.
fn is_far(at: usize, bytes: usize) -> bool {
    let is_whole = || heap().is_some_and(|heap| heap.memory().manages_all(at..at.saturating_add(bytes)));
    is_bounced(at, bytes) || is_whole()
}

/// The parts of a buffer, treated as one sequence of bytes.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a>(pub(super) &'a [iovec]);

impl Parts<'_> {
    /// Returns the sum of the bytes; `None` if the kernel would return `EINVAL`.
    pub(super) fn bytes(self) -> Option<usize> {
        let sum = self.0.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))?;
        (sum <= isize::MAX as usize).then_some(sum)
    }

    /// Returns `true` if the kernel could not access some part. Parts that are far memory in part leave far
    /// memory.
    pub(super) fn are_unserved(self) -> bool {
        // Called for each part, because a part that is far memory in part leaves far memory.
        self.0.iter().fold(false, |any, part| is_bounced(part.iov_base as usize, part.iov_len) | any)
    }

    /// Returns the list for the kernel of a range of the parts, at most [`BOUNCE`] bytes: far pieces are
    /// replaced by memory of the bounce buffer.
    ///
    /// # Safety
    ///
    /// The caller owns the bounce buffer, and uses no other list of it.
    pub(super) unsafe fn laid_out(self, from: usize, bytes: usize, bounce: &Bounce) -> &[iovec] {
        // SAFETY: the list is behind the bounce buffer, at an address of a page.
        let list = unsafe { bounce.at.add(BOUNCE).cast::<iovec>() };
        let mut count = 0;
        self.each(from, bytes, |piece, before, here| {
            let base = if is_far(piece as usize, here) { bounce.at.wrapping_add(before) } else { piece };
            // SAFETY: there are at most `MOST_PARTS` parts, and each has at most one piece.
            unsafe { list.add(count).write(iovec { iov_base: base.cast(), iov_len: here }) };
            count += 1;
        });
        // SAFETY: initialized above.
        unsafe { slice::from_raw_parts(list, count) }
    }

    /// Copies the far pieces of the range of a list into the bounce buffer.
    ///
    /// # Safety
    ///
    /// The caller may read the parts. The list is that of the range that begins at byte `from` of the parts.
    pub(super) unsafe fn gather(self, from: usize, list: &[iovec]) {
        let mut list = list.iter();
        let bytes = list.clone().map(|piece| piece.iov_len).sum();
        self.each(from, bytes, |piece, _, here| {
            let Some(to) = list.next().map(|to| to.iov_base.cast::<u8>()).filter(|&to| to != piece) else {
                return;
            };
            // SAFETY: inside the parts, and inside the bounce buffer.
            unsafe { ptr::copy_nonoverlapping(piece, to, here) };
        });
    }

    /// Copies the first `bytes` bytes of a list into the far pieces.
    ///
    /// # Safety
    ///
    /// The contract of `gather`, for writing the parts.
    pub(super) unsafe fn scatter(self, from: usize, list: &[iovec], bytes: usize) {
        let mut list = list.iter();
        self.each(from, bytes, |piece, _, here| {
            let Some(got) = list.next().map(|got| got.iov_base.cast::<u8>()).filter(|&got| got != piece)
            else {
                return;
            };
            // SAFETY: inside the bounce buffer, and inside the parts.
            unsafe { ptr::copy_nonoverlapping(got, piece, here) };
        });
    }

    /// Calls `one` for each piece of a part in the range: its address, the number of bytes before it in the
    /// range, and its length.
    fn each(self, mut from: usize, bytes: usize, mut one: impl FnMut(*mut u8, usize, usize)) {
        let mut done = 0;
        for part in self.0 {
            if from >= part.iov_len {
                from -= part.iov_len;
                continue;
            }
            if done == bytes {
                return;
            }
            let here = (part.iov_len - from).min(bytes - done);
            one(part.iov_base.cast::<u8>().wrapping_add(from), done, here);
            (done, from) = (done + here, 0);
        }
    }
}
