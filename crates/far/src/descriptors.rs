//! File descriptors of this layer, hidden from the program: their numbers are above the program's own, and
//! calls of the program that close or replace descriptors skip them.
//!
//! - **DESCRIPTOR-1** A hidden descriptor is in the table from before its first use until it is closed. So a
//!   hook that checks the table never lets the program close a hidden descriptor.
//! - **DESCRIPTOR-2** If the program closes a hidden descriptor by a raw system call, its number is not used
//!   for another hidden descriptor. So each use of the closed one fails, and the process ends with the
//!   reason.

use crate::sys;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{
    AtomicI32,
    Ordering::{AcqRel, Acquire, Relaxed},
};

/// Largest number of hidden descriptors: one for each of 15 servers and one more while a broken stream is
/// replaced, the descriptors of the mechanism, the spill file, and standard error.
const MOST: usize = 64;
/// Highest number that is chosen. The kernel's descriptor table of a process is as long as its highest
/// descriptor, and `fork` copies the table.
const HIGHEST: u64 = 1 << 16;
const FREE: i32 = -1;

static TABLE: [AtomicI32; MOST] = [const { AtomicI32::new(FREE) }; MOST];
/// Lowest number of hidden descriptors; 0 if descriptors keep their numbers.
static BASE: AtomicI32 = AtomicI32::new(0);

/// Places later hidden descriptors at the top of the process's table: above the soft limit if the hard limit
/// allows it, so that the program cannot use these numbers; otherwise just below the soft limit.
pub fn place_high() {
    let (soft, hard) = limits();
    let room = MOST as u64;
    let base =
        if soft <= HIGHEST && hard >= soft + room { soft } else { soft.min(HIGHEST).saturating_sub(room) };
    BASE.store(i32::try_from(base).unwrap_or(0), Relaxed); // Relaxed: no other thread exists yet
}

fn limits() -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    set_limit(0, (&raw mut limit) as usize);
    (limit.rlim_cur, limit.rlim_max)
}

/// Calls `prlimit` for the number of descriptors. Both arguments are addresses of limits, or 0.
fn set_limit(new: usize, old: usize) {
    // SAFETY: the addresses are those of limits, or null.
    unsafe { sys::call(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, new, old, 0, 0]) };
}

/// Copies a descriptor to the top of the table; `None` if the table is full there.
fn copy_high(fd: RawFd) -> Option<RawFd> {
    let base = BASE.load(Relaxed);
    if base == 0 {
        return None;
    }
    let copy = || {
        let mut least = base;
        loop {
            let arguments = [fd as usize, libc::F_DUPFD_CLOEXEC as usize, least as usize, 0, 0, 0];
            // SAFETY: the call accesses no memory of this process.
            let copy = RawFd::try_from(unsafe { sys::call(libc::SYS_fcntl, arguments) }).ok()?;
            if copy < 0 || !is_hidden(copy) {
                return Some(copy).filter(|&copy| copy >= 0);
            }
            // DESCRIPTOR-2
            close_number(copy);
            least = copy + 1;
        }
    };
    // The number is above the soft limit.
    copy().or_else(|| with_raised_limit(copy))
}

/// Makes a call while the soft limit leaves room for the hidden descriptors, as far as the hard limit allows
/// it.
fn with_raised_limit<T>(call: impl FnOnce() -> T) -> T {
    let (soft, hard) = limits();
    let base = u64::try_from(BASE.load(Relaxed)).unwrap_or(0); // Relaxed: set before other threads exist
    let room = soft.max(base).saturating_add(MOST as u64);
    let raised = libc::rlimit { rlim_cur: hard.min(room), rlim_max: hard };
    let before = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    set_limit((&raw const raised) as usize, 0);
    let result = call();
    set_limit((&raw const before) as usize, 0);
    result
}

/// Makes a call that creates a descriptor, also if the program uses all numbers up to the soft limit.
pub(crate) fn with_room<T>(create: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match create() {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => with_raised_limit(create),
        done => done,
    }
}

/// Returns `true` if a descriptor is a hidden one.
pub fn is_hidden(fd: RawFd) -> bool {
    // Acquire: pairs with AcqRel in `hide`, which comes before any use of the descriptor.
    fd >= 0 && TABLE.iter().any(|hidden| hidden.load(Acquire) == fd)
}

/// Returns the hidden descriptors in ascending order, after entries of -1. Does not allocate, because a child
/// of `vfork` may call it.
pub fn hidden() -> [RawFd; MOST] {
    let mut all = [FREE; MOST];
    for (fd, hidden) in all.iter_mut().zip(&TABLE) {
        *fd = hidden.load(Acquire); // pairs with AcqRel in `hide`
    }
    all.sort_unstable();
    all
}

/// Moves a descriptor to the top of the table and hides it. Returns the moved descriptor.
pub fn hide(fd: OwnedFd) -> OwnedFd {
    let fd = match copy_high(fd.as_raw_fd()) {
        None => fd,
        Some(copy) => {
            close(fd.into_raw_fd());
            // SAFETY: the call has just made the copy, and no other value owns it.
            unsafe { OwnedFd::from_raw_fd(copy) }
        }
    };
    // AcqRel: pairs with Acquire in `is_hidden` and the next `hide`; Relaxed on failure, because no other
    // memory is read. If the table is full, the descriptor stays visible to the program.
    TABLE.iter().any(|slot| slot.compare_exchange(FREE, fd.as_raw_fd(), AcqRel, Relaxed).is_ok());
    fd
}

fn show(fd: RawFd) {
    for slot in &TABLE {
        // AcqRel as in `hide`; Relaxed on failure, because no other memory is read.
        let _ = slot.compare_exchange(fd, FREE, AcqRel, Relaxed);
    }
}

/// Closes a hidden descriptor by its number. For a child process, where the owner of the descriptor is not
/// dropped.
pub fn close(fd: RawFd) {
    show(fd);
    close_number(fd);
}

fn close_number(fd: RawFd) {
    // SAFETY: the descriptor belongs to this layer and is not used any more.
    unsafe { sys::call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// The owner of a hidden descriptor. Closes the descriptor by a raw system call.
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
        // The inner owner is not dropped: it would call `close` of the C library, which may be a hook.
        close(self.0.as_raw_fd());
    }
}
