//! File descriptors of this layer, hidden from the program: their numbers are above the program's own, and
//! calls of the program that close or replace descriptors skip them.
//!
//! - **DESCRIPTOR-1** A hidden descriptor is in the table from the moment it is used until it is closed, so a
//!   hook that asks the table never lets the program close one.

use crate::sys;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{
    AtomicI32,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// As many as can be hidden: 15 servers with one more stream each while a broken one is replaced, the
/// mechanism's, the spill file, standard error.
const MOST: usize = 64;
/// The highest number that is chosen: the kernel's table of a process is as long as its highest descriptor,
/// and is copied by `fork`.
const HIGHEST: u64 = 1 << 16;
const FREE: i32 = -1;

static TABLE: [AtomicI32; MOST] = [const { AtomicI32::new(FREE) }; MOST];
/// Descriptors are moved to this number or above; 0 if they stay where they are.
static BASE: AtomicI32 = AtomicI32::new(0);

/// From now on descriptors are placed at the top of the process's table: above the soft limit where the hard
/// limit allows it, so that the program cannot even name them; else just below it.
pub fn place_high() {
    let (soft, hard) = limits();
    let room = MOST as u64;
    let base =
        if soft <= HIGHEST && hard >= soft + room { soft } else { soft.min(HIGHEST).saturating_sub(room) };
    BASE.store(i32::try_from(base).unwrap_or(0), Relaxed); // before there are other threads
}

fn limits() -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    set_limit(0, (&raw mut limit) as usize);
    (limit.rlim_cur, limit.rlim_max)
}

/// `prlimit` on the number of descriptors.
fn set_limit(new: usize, old: usize) {
    // SAFETY: addresses of limits, or null.
    unsafe { sys::call(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, new, old, 0, 0]) };
}

/// A copy of a descriptor at the top of the table; `None` if there is no room.
fn copy_high(fd: RawFd) -> Option<RawFd> {
    let base = BASE.load(Relaxed);
    if base == 0 {
        return None;
    }
    let copy = || {
        let arguments = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, base as usize, 0, 0, 0];
        // SAFETY: no memory is passed.
        let copy = unsafe { sys::call(libc::SYS_fcntl, arguments) };
        RawFd::try_from(copy).ok().filter(|&copy| copy >= 0)
    };
    copy().or_else(|| {
        // The number is above the soft limit, which is raised for a moment.
        let (soft, hard) = limits();
        let raised = libc::rlimit { rlim_cur: hard.min(base as u64 + MOST as u64), rlim_max: hard };
        let before = libc::rlimit { rlim_cur: soft, rlim_max: hard };
        set_limit((&raw const raised) as usize, 0);
        let copied = copy();
        set_limit((&raw const before) as usize, 0);
        copied
    })
}

/// Returns whether a descriptor is one of the layer's.
pub fn is_hidden(fd: RawFd) -> bool {
    // Acquire: pairs with AcqRel in `hide`, which comes before any use of the descriptor.
    fd >= 0 && TABLE.iter().any(|hidden| hidden.load(Acquire) == fd)
}

/// The hidden descriptors, in order, behind entries of -1. Allocates nothing, as a child of `vfork` may call
/// it.
pub fn hidden() -> [RawFd; MOST] {
    let mut all = [FREE; MOST];
    for (fd, hidden) in all.iter_mut().zip(&TABLE) {
        *fd = hidden.load(Acquire); // pairs with AcqRel in `hide`
    }
    all.sort_unstable();
    all
}

/// Places a descriptor high and hides it; returns its number from now on.
pub fn hide(fd: OwnedFd) -> OwnedFd {
    // SAFETY: the copy was just made, and no other value owns it.
    let fd = copy_high(fd.as_raw_fd()).map_or(fd, |copy| unsafe { OwnedFd::from_raw_fd(copy) });
    // Acquire and release: pairs with `is_hidden` and the next `hide`. A full table leaves it unhidden.
    TABLE.iter().any(|slot| slot.compare_exchange(FREE, fd.as_raw_fd(), AcqRel, Relaxed).is_ok());
    fd
}

fn show(fd: RawFd) {
    for slot in &TABLE {
        // Acquire and release: as in `hide`; a failed exchange reads nothing else.
        let _ = slot.compare_exchange(fd, FREE, AcqRel, Relaxed);
    }
}

/// Closes a hidden descriptor by its number: in a child, where its owner is not dropped.
pub fn close(fd: RawFd) {
    show(fd);
    // SAFETY: the layer's own, and no longer used.
    unsafe { sys::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// The owner of a hidden descriptor.
#[derive(Debug)]
pub(crate) struct Hidden<T: AsRawFd>(ManuallyDrop<T>);

impl<T: AsRawFd + From<OwnedFd> + Into<OwnedFd>> Hidden<T> {
    pub(crate) fn new(owner: T) -> Self {
        Self(ManuallyDrop::new(T::from(hide(owner.into()))))
    }
}

impl<T: AsRawFd> Deref for Hidden<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsRawFd> Drop for Hidden<T> {
    fn drop(&mut self) {
        // The owner is not dropped: that would close by the C library's name, which may be a hook.
        close(self.0.as_raw_fd());
    }
}
