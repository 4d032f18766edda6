//! Address space of this layer: mappings that are removed when dropped, and a descriptor to wake a thread.
//!
//! The calls go to the kernel directly. In a program with the preload library, the functions of the C library
//! are hooks of that library. The hooks would treat this layer's memory as the program's, and would call this
//! layer again while it holds the pager's lock.

use crate::descriptors::{self, Hidden};
use crate::sys;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Alignment of frames and regions: the size of a huge page.
const ALIGN: usize = 2 << 20;

/// A mapping, aligned to 2 MiB.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: *mut u8,
    bytes: usize,
    is_retired: AtomicBool,
}

// SAFETY: an address and a length. The owner of the mapping controls access to its memory.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps private zeroed memory that is allocated when it is touched and does not count as committed.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        Ok(Self::reserve(bytes, libc::PROT_READ | libc::PROT_WRITE)?.without_core())
    }

    /// Maps a memory file.
    pub(crate) fn of_file(file: &OwnedFd, bytes: usize, protection: i32) -> io::Result<Self> {
        let mapping = Self::reserve(bytes, libc::PROT_NONE)?;
        // SAFETY: replaces the mapping that was made above, to which no pointer exists.
        let at = unsafe {
            sys_mmap(
                mapping.at.cast(),
                bytes,
                protection,
                libc::MAP_SHARED | libc::MAP_FIXED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapping.without_core()) }
    }

    /// Excludes the mapping from core files. A core file would be as long as the region, and the kernel would
    /// allocate the pages of a memory file while it writes them.
    fn without_core(self) -> Self {
        // If this fails, core files are longer.
        let _ = self.advise(libc::MADV_DONTDUMP);
        self
    }

    /// Maps new memory in place of existing memory.
    pub(super) fn in_place_of(range: &Range<usize>) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let at = ptr::with_exposed_provenance_mut::<libc::c_void>(range.start);
        // SAFETY: the caller of `adopt` guarantees that no thread uses the range and that its bytes are kept
        // elsewhere.
        let got = unsafe { sys_mmap(at, range.len(), libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at: at.cast(), bytes: range.len(), is_retired: AtomicBool::new(false) })
    }

    fn reserve(bytes: usize, protection: i32) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let Some(with_margin) = bytes.checked_add(ALIGN) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        // SAFETY: a new mapping at an address that the system chooses.
        let at = unsafe { sys_mmap(ptr::null_mut(), with_margin, protection, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = at.cast::<u8>();
        let head = at.align_offset(ALIGN);
        // SAFETY: head and tail are inside the mapping and begin at page boundaries, and no pointer to them
        // exists.
        unsafe {
            let start = at.add(head);
            if head > 0 {
                sys_munmap(at.cast(), head);
            }
            sys_munmap(start.add(bytes).cast(), ALIGN - head);
            Ok(Self { at: start, bytes, is_retired: AtomicBool::new(false) })
        }
    }

    /// Returns the mapping at the same addresses in a child process, which has its own copy of the memory.
    pub(super) fn for_child(&self) -> Self {
        let is_retired = AtomicBool::new(self.is_retired.load(Relaxed)); // Relaxed: a child has one thread
        Self { at: self.at, bytes: self.bytes, is_retired }
    }

    pub(crate) fn at(&self) -> *mut u8 {
        self.at
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Unmaps the memory early, so that it does not count for a limit of the process. No thread uses it any
    /// more, nor its address, which a later mapping may get.
    pub(super) fn retire(&self) {
        // Relaxed: the swap decides which caller unmaps; no memory is read afterward.
        if !self.is_retired.swap(true, Relaxed) {
            // SAFETY: the mapping belongs to this value, and no thread uses the memory any more.
            unsafe { sys_munmap(self.at.cast(), self.bytes) };
        }
    }

    pub(crate) fn advise(&self, advice: i32) -> io::Result<()> {
        advise(self.at, self.bytes, advice)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The owner keeps no reference to the memory.
        self.retire();
    }
}

pub(crate) fn advise(at: *mut u8, bytes: usize, advice: i32) -> io::Result<()> {
    // SAFETY: callers pass ranges of their own mappings, and they accept that the advice may discard the
    // content.
    if unsafe { sys_madvise(at.cast(), bytes, advice) } < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Removes all access to memory of this layer: an access causes SIGSEGV.
pub(super) fn close(at: *mut u8, bytes: usize) -> io::Result<()> {
    // SAFETY: callers pass ranges of their own mappings.
    let done = unsafe { sys_mprotect(at.cast(), bytes, libc::PROT_NONE) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Restores access to memory of this layer.
pub(super) fn reopen(at: *mut u8, bytes: usize) -> io::Result<()> {
    // SAFETY: callers pass ranges of their own mappings.
    let done = unsafe { sys_mprotect(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the addresses of the system pages in a range that have no memory or were swapped out, and the size
/// of a system page.
pub(super) fn missing(at: *mut u8, bytes: usize) -> io::Result<(Vec<usize>, usize)> {
    let (there, piece) = residency(at, bytes)?;
    let missing = there.iter().enumerate().filter(|(_, there)| *there & 1 == 0);
    Ok((missing.map(|(i, _)| at as usize + i * piece).collect(), piece))
}

/// Returns the bytes of a range that have memory. Fails if a part of the range is not mapped.
pub(super) fn present(at: *mut u8, bytes: usize) -> io::Result<usize> {
    let (there, piece) = residency(at, bytes)?;
    Ok(there.iter().filter(|&there| there & 1 == 1).count() * piece)
}

/// Returns the kernel's answer to `mincore` for each system page of a range, and the size of a system page.
fn residency(at: *mut u8, bytes: usize) -> io::Result<(Vec<u8>, usize)> {
    // SAFETY: the call accesses no memory of this process.
    let piece = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
    let mut there = vec![0_u8; bytes.div_ceil(piece)];
    let arguments = [at as usize, bytes, there.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: the buffer has one byte for each system page in the range.
    if unsafe { sys::call(libc::SYS_mincore, arguments) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((there, piece))
}

/// A descriptor that becomes readable when notified.
#[derive(Debug)]
pub(crate) struct Notifier(Hidden<OwnedFd>);

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = descriptors::with_room(|| {
            // SAFETY: the call accesses no memory of this process.
            let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(fd) }
        })?;
        // SAFETY: the call has just made the descriptor, and no other value owns it.
        Ok(Self(Hidden::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Closes the descriptor of the parent in a child process, which never uses it.
    pub(super) fn abandon(&self) {
        descriptors::close(self.fd());
    }

    pub(crate) fn notify(&self) {
        notify(self.fd());
    }

    /// Resets the notification.
    pub(crate) fn reset(&self) {
        let mut count = 0_u64;
        // SAFETY: reads the eight bytes of an eventfd counter into a variable of that size.
        unsafe {
            libc::read(self.fd(), ptr::from_mut(&mut count).cast(), 8);
        }
    }
}

/// Notifies a descriptor. May be called from a signal handler. The C library's `write` is not used, because
/// it is a cancellation point: a thread that is canceled there would wait for a signal that the handler
/// blocks.
pub(crate) fn notify(fd: RawFd) {
    let one = 1_u64;
    // SAFETY: writes the eight bytes of an eventfd counter, which cannot overflow with fewer than 2^64
    // faults.
    unsafe {
        sys::call(libc::SYS_write, [fd as usize, ptr::from_ref(&one).addr(), 8, 0, 0, 0]);
    }
}

/// # Safety
///
/// The contract of `mmap`.
unsafe fn sys_mmap(
    at: *mut libc::c_void,
    bytes: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> *mut libc::c_void {
    let arguments = [
        at as usize,
        bytes,
        protection as usize,
        flags as usize,
        fd as usize,
        offset.cast_unsigned() as usize,
    ];
    // SAFETY: the caller keeps the contract of `mmap`.
    let at = unsafe { sys::call(libc::SYS_mmap, arguments) };
    at as *mut libc::c_void
}

/// # Safety
///
/// The contract of `munmap`.
unsafe fn sys_munmap(at: *mut libc::c_void, bytes: usize) -> isize {
    // SAFETY: the caller keeps the contract of `munmap`.
    unsafe { sys::call(libc::SYS_munmap, [at as usize, bytes, 0, 0, 0, 0]) }
}

/// # Safety
///
/// The contract of `madvise`.
unsafe fn sys_madvise(at: *mut libc::c_void, bytes: usize, advice: i32) -> isize {
    // SAFETY: the caller keeps the contract of `madvise`.
    unsafe { sys::call(libc::SYS_madvise, [at as usize, bytes, advice as usize, 0, 0, 0]) }
}

/// # Safety
///
/// The contract of `mprotect`.
pub(super) unsafe fn sys_mprotect(at: *mut libc::c_void, bytes: usize, protection: i32) -> isize {
    // SAFETY: the caller keeps the contract of `mprotect`.
    unsafe { sys::call(libc::SYS_mprotect, [at as usize, bytes, protection as usize, 0, 0, 0]) }
}
