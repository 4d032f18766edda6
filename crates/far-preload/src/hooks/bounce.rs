//! Bounce buffers: ordinary memory for a transfer if the kernel does not wait for far memory (F1).
//!
//! For such a transfer it is not enough to touch the buffer and repeat the call. The page can be paged out
//! again between the touch and the call, and data that a socket or an eventfd has already delivered would be
//! lost. So the kernel gets a *bounce* buffer. The calling thread copies the bytes between the bounce buffer
//! and far memory by loads and stores, which do wait for pages.
//!
//! Some bounce buffers are kept for reuse and acquired without a lock, because signal handlers may call
//! `read` and `write`. If all are in use, memory is mapped. A thread that is canceled during a call keeps its
//! bounce buffer permanently.

use azekura_far::sys;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

/// Size of a bounce buffer in bytes: more than any datagram, and large enough that the cost of a system call
/// is small compared with the copying.
pub(super) const BOUNCE: usize = 1 << 20;
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
                sys::call(libc::SYS_munmap, [self.at as usize, BOUNCE, 0, 0, 0, 0]);
            },
        }
    }
}

/// Maps memory by a system call, because `mmap` is a hook of this library.
fn map() -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let arguments = [0, BOUNCE, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping at an address that the system chooses.
    let at = unsafe { sys::call(libc::SYS_mmap, arguments) };
    if at < 0 { ptr::null_mut() } else { at as *mut u8 }
}

/// The parts of a buffer, treated as one sequence of bytes.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a>(pub(super) &'a [libc::iovec]);

impl Parts<'_> {
    /// Returns the sum of the bytes; `None` if the kernel would return `EINVAL`.
    pub(super) fn bytes(self) -> Option<usize> {
        let sum = self.0.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))?;
        (sum <= isize::MAX as usize).then_some(sum)
    }

    /// Returns `true` if the kernel could not access some part.
    pub(super) fn are_unserved(self) -> bool {
        // Called for each part, because a part that is far memory in part leaves far memory.
        let is_bounced =
            |part: &libc::iovec| crate::session::is_bounced(part.iov_base as usize, part.iov_len);
        self.0.iter().fold(false, |any, part| is_bounced(part) | any)
    }

    /// Copies `bytes` bytes from the parts to `to`, beginning at byte `from` of the parts.
    ///
    /// # Safety
    ///
    /// The caller may read the parts. The parts and `to` have at least this many bytes.
    pub(super) unsafe fn gather(self, from: usize, to: *mut u8, bytes: usize) {
        // SAFETY: inside the parts, by the caller's contract.
        self.each(from, bytes, |part, at, here| unsafe { ptr::copy_nonoverlapping(part, to.add(at), here) });
    }

    /// Copies `bytes` bytes from `source` into the parts, beginning at byte `from` of the parts.
    ///
    /// # Safety
    ///
    /// The contract of `gather`, for writing the parts.
    pub(super) unsafe fn scatter(self, from: usize, source: *const u8, bytes: usize) {
        // SAFETY: inside the parts, by the caller's contract.
        self.each(from, bytes, |part, at, here| unsafe {
            ptr::copy_nonoverlapping(source.add(at), part, here)
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
            let here = (part.iov_len - from).min(bytes - done);
            one(part.iov_base.cast::<u8>().wrapping_add(from), done, here);
            (done, from) = (done + here, 0);
            if done == bytes {
                return;
            }
        }
    }
}
