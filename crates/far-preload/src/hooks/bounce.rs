//! Ordinary memory through which a transfer goes when the kernel does not wait for far memory (F1).
//!
//! To touch the buffer and ask again is not enough for such calls: the page can leave again between the touch
//! and the call, and what a socket or an eventfd gave out before the kernel found the page away is gone. So
//! the kernel is given a *bounce*, and the program's own loads and stores, which do wait for pages, carry the
//! bytes between it and far memory.
//!
//! Bounces are taken from a few that stay, without a lock, since `read` and `write` may be called by signal
//! handlers; when all are taken, from the system. A thread that is canceled in the middle of a call keeps
//! its bounce for good.

use azekura_far::sys;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr,
    Ordering::{Acquire, Relaxed, Release},
};

/// Bytes of a bounce: more than any datagram, and enough that a call's own cost is lost beside the copying.
pub(super) const BOUNCE: usize = 1 << 20;
const KEPT: usize = 16;

struct Slot {
    taken: AtomicBool,
    at: AtomicPtr<u8>,
}

static SLOTS: [Slot; KEPT] =
    [const { Slot { taken: AtomicBool::new(false), at: AtomicPtr::new(ptr::null_mut()) } }; KEPT];

/// Memory of one transfer, aligned to a page of the system. To be given back; it has no destructor, as a
/// canceled thread unwinds through its owner.
pub(super) struct Bounce {
    at: *mut u8,
    slot: Option<usize>,
}

impl Bounce {
    /// `None` if the system has no memory.
    pub(super) fn take() -> Option<Self> {
        for (index, slot) in SLOTS.iter().enumerate() {
            // Acquire: pairs with Release in `give_back`: the last owner's accesses come before ours, and its
            // mapping is seen.
            if slot.taken.load(Relaxed) || slot.taken.swap(true, Acquire) {
                continue;
            }
            let mut at = slot.at.load(Relaxed); // ours until it is given back
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
            // SAFETY: mapped by `map`; no pointer to it is left.
            None => unsafe {
                sys::call(libc::SYS_munmap, [self.at as usize, BOUNCE, 0, 0, 0, 0]);
            },
        }
    }
}

/// From the kernel directly: `mmap` is one of our own hooks.
fn map() -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let arguments = [0, BOUNCE, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new mapping where the system likes.
    let at = unsafe { sys::call(libc::SYS_mmap, arguments) };
    if at < 0 { ptr::null_mut() } else { at as *mut u8 }
}

/// The parts of a buffer, as one row of bytes.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a>(pub(super) &'a [libc::iovec]);

impl Parts<'_> {
    /// Returns the sum of the bytes; `None` if the kernel would return `EINVAL`.
    pub(super) fn bytes(self) -> Option<usize> {
        let sum = self.0.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.iov_len))?;
        (sum <= isize::MAX as usize).then_some(sum)
    }

    /// Returns `true` if the kernel would not reach one of them.
    pub(super) fn are_unserved(self) -> bool {
        self.0
            .iter()
            .any(|part| part.iov_len > 0 && crate::session::is_unserved(part.iov_base as usize, part.iov_len))
    }

    /// Copies `bytes` bytes, from byte `from` on, out of the parts.
    ///
    /// # Safety
    ///
    /// The parts are the caller's to read, and there are so many bytes in them and at `to`.
    pub(super) unsafe fn gather(self, from: usize, to: *mut u8, bytes: usize) {
        // SAFETY: within the parts, by the caller's contract.
        self.each(from, bytes, |part, at, here| unsafe { ptr::copy_nonoverlapping(part, to.add(at), here) });
    }

    /// Copies into the parts.
    ///
    /// # Safety
    ///
    /// As `gather`, to write.
    pub(super) unsafe fn scatter(self, from: usize, source: *const u8, bytes: usize) {
        // SAFETY: within the parts, by the caller's contract.
        self.each(from, bytes, |part, at, here| unsafe {
            ptr::copy_nonoverlapping(source.add(at), part, here)
        });
    }

    /// Calls with each piece of a part in the range: its place, how many bytes came before it, its length.
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
