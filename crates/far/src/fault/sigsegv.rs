//! Paging by memory protection and SIGSEGV, as in the paper (§2.2): a page without access rights is paged out
//! or armed, and a read-only page is unmodified.
//!
//! The region is a memory file with two mappings. The program uses the first one, and its protection changes.
//! This layer uses the second one, which is always writable. A page is filled through the second mapping and
//! made accessible when it is complete (FAULT-2, F3). The program's access is removed before this layer reads
//! the page (FAULT-1).
//!
//! # The handler
//!
//! The handler (F2) makes no decision. It posts the fault in a fixed table (`requests`), notifies the pager
//! and sleeps. The pager's thread does the rest. All calls of the handler are async-signal-safe: atomics,
//! `write`, `futex`. The processor reports whether the access is a read or a write (bit 1 of the page fault's
//! error code). A fault outside of all regions goes to the program's own handler.
//!
//! # Limits
//!
//! A system call on a paged-out page returns `EFAULT` (F1). In a child process nothing is mapped at the
//! addresses of the region.

use super::arena::{Mapping, Notifier, notify};
use super::page_set::PageSet;
use super::requests::Requests;
use super::signals;
use super::{Allow, Backend, Event, Fault, Frame, Mechanism, Run, wait};
use crate::descriptors::Hidden;
use crate::replace::Access;
use crate::sys;
use std::ffi::{c_int, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Largest number of threads that wait for pages without spinning.
const REQUESTS: usize = 256;
/// Largest number of regions that use this mechanism in a process.
const REGIONS: usize = 32;

struct Place {
    /// Address of the region; 0 while the entry is unused.
    base: AtomicUsize,
    bytes: AtomicUsize,
    notifier: AtomicI32,
    /// Unmanaged pages of the region. Never freed, because a handler may still read the set.
    unmanaged: AtomicPtr<PageSet>,
    reserved: AtomicPtr<PageSet>,
    page_bytes: AtomicUsize,
}

#[cfg(not(loom))]
static TABLE: Requests<REQUESTS> = Requests::new();
#[cfg(loom)]
static TABLE: std::sync::LazyLock<Requests<REQUESTS>> = std::sync::LazyLock::new(Requests::new);
static PLACES: [Place; REGIONS] = [const {
    Place {
        base: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        notifier: AtomicI32::new(-1),
        unmanaged: AtomicPtr::new(ptr::null_mut()),
        reserved: AtomicPtr::new(ptr::null_mut()),
        page_bytes: AtomicUsize::new(1),
    }
}; REGIONS];
/// Last fault on an unmanaged page, by thread: see `is_repeated`.
static FAULTS: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
/// Serializes the registration of places and the installation of the handler.
static REGISTRY: Mutex<()> = Mutex::new(());
/// Set in a child process made by `fork`: no pager handles faults there, and the regions are not mapped. Not
/// set in a child that shares the parent's memory (`vfork`).
static FORKED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
pub(crate) struct SigsegvBackend {
    region: usize,
    file: Hidden<OwnedFd>,
    /// The mapping that the program uses.
    seen: Mapping,
    /// The mapping that this layer uses.
    alias: Mapping,
    frames: Mapping,
    /// Private anonymous memory that replaces unmanaged pages. The mapping is as long as the region, and each
    /// page is at its own offset, so that the kernel merges neighbors into one mapping again.
    private: Mapping,
    page_bytes: usize,
    notifier: Notifier,
    stopped: AtomicBool,
    unmanaged: &'static PageSet,
    reserved: &'static PageSet,
}

impl SigsegvBackend {
    pub(crate) fn new(bytes: usize, page_bytes: usize, frames: usize) -> io::Result<Self> {
        check_file_size(bytes)?;
        // SAFETY: the string ends in NUL.
        let fd = unsafe { libc::memfd_create(c"azekura-far".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made the descriptor, and no other value owns it.
        let file = Hidden::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the call accesses no memory of this process.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let seen = Mapping::of_file(&file, bytes, libc::PROT_NONE)?;
        let alias = Mapping::of_file(&file, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        seen.advise(libc::MADV_DONTFORK)?;
        let frames = Mapping::anonymous(frames * page_bytes)?;
        let private = Mapping::anonymous(bytes)?;
        // SAFETY: the mapping was just made. The write is needed because the kernel merges parts of a mapping
        // again only if the mapping had memory before it was split.
        unsafe { private.at().write_volatile(0) };
        let notifier = Notifier::new()?;
        let pages = u32::try_from(bytes.div_ceil(page_bytes)).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let unmanaged: &'static PageSet = Box::leak(Box::new(PageSet::none(pages)?));
        let reserved: &'static PageSet = Box::leak(Box::new(PageSet::none(pages)?));
        let region = enter(&seen, &notifier, [unmanaged, reserved], page_bytes)?;
        let stopped = AtomicBool::new(false);
        Ok(Self {
            region,
            file,
            seen,
            alias,
            frames,
            private,
            page_bytes,
            notifier,
            stopped,
            unmanaged,
            reserved,
        })
    }

    /// Bytes of `pages` pages.
    fn bytes(&self, pages: u32) -> usize {
        pages as usize * self.page_bytes
    }

    fn protect(&self, pages: Range<u32>, protection: i32) -> io::Result<()> {
        let at = self.seen.at().wrapping_add(self.bytes(pages.start));
        // SAFETY: the pages belong to our mapping, and the program expects that an access without rights
        // faults.
        let done =
            unsafe { super::arena::sys_mprotect(at.cast(), self.bytes(pages.end - pages.start), protection) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the memory of pages to the system. The program has no access to the pages.
    fn punch(&self, page: u32, pages: u32) -> io::Result<()> {
        let (offset, bytes) = (self.bytes(page) as libc::off_t, self.bytes(pages) as libc::off_t);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the call accesses no memory of this process. The range belongs to our file, and the program
        // has no access to it.
        let done = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, bytes) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Copies the bytes of pages without access to `private`. Holes of the file stay holes.
    fn copy_out(&self, pages: Range<u32>) -> io::Result<()> {
        let (mut at, end) = (self.bytes(pages.start), self.bytes(pages.end));
        let seek = |from: usize, whence: c_int| {
            // SAFETY: the call accesses no memory of this process.
            let found = unsafe { libc::lseek(self.file.as_raw_fd(), from as libc::off_t, whence) };
            usize::try_from(found).map_err(|_| io::Error::last_os_error())
        };
        while at < end {
            let from = match seek(at, libc::SEEK_DATA) {
                Ok(from) if from < end => from,
                Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
                _ => break, // no data after this offset
            };
            at = seek(from, libc::SEEK_HOLE)?.min(end);
            // SAFETY: both ranges belong to our own mappings, and the program has no access to the pages now.
            unsafe {
                ptr::copy_nonoverlapping(
                    self.alias.at().wrapping_add(from),
                    self.private.at().wrapping_add(from),
                    at - from,
                );
            }
        }
        self.punch(pages.start, pages.end - pages.start)
    }

    fn alias(&self, page: u32) -> *mut u8 {
        self.alias.at().wrapping_add(page as usize * self.page_bytes)
    }
}

/// Fails if the limit of file sizes counts the memory file: the kernel would end the process by SIGXFSZ.
fn check_file_size(bytes: usize) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the address is that of a local variable.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    if limit.rlim_cur >= bytes as u64 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "files are limited to {} KiB (RLIMIT_FSIZE, `ulimit -f`), and far memory of {} KiB is in one: remove \
         the limit, or use less far memory",
        limit.rlim_cur >> 10,
        bytes >> 10
    )))
}

fn protection(allow: Allow) -> i32 {
    match allow {
        Allow::Read => libc::PROT_READ,
        Allow::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    }
}

impl Backend for SigsegvBackend {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Sigsegv
    }

    fn base(&self) -> *mut u8 {
        self.seen.at()
    }

    fn frame(&self, frame: u32) -> *mut u8 {
        self.frames.at().wrapping_add(frame as usize * self.page_bytes)
    }

    fn tells_every_write(&self) -> bool {
        true
    }

    fn map_in(&self, run: Run, allow: Allow) -> io::Result<Frame> {
        // SAFETY: both ranges belong to our own mappings. The program has no access to the pages, so no other
        // thread reads or writes them.
        unsafe {
            ptr::copy_nonoverlapping(self.frame(run.frame), self.alias(run.page), self.bytes(run.len));
        }
        self.open(run.page..run.page + run.len, allow)?;
        Ok(Frame::Full)
    }

    fn map_out(&self, run: Run) -> io::Result<()> {
        self.protect(run.page..run.page + run.len, libc::PROT_NONE)?;
        // SAFETY: as in `map_in`.
        unsafe {
            ptr::copy_nonoverlapping(self.alias(run.page), self.frame(run.frame), self.bytes(run.len));
        }
        self.punch(run.page, run.len)
    }

    fn open(&self, pages: Range<u32>, allow: Allow) -> io::Result<()> {
        self.protect(pages, protection(allow))
    }

    fn arm_access(&self, run: Run) -> io::Result<bool> {
        self.protect(run.page..run.page + run.len, libc::PROT_NONE)?;
        Ok(false)
    }

    fn discard(&self, pages: Range<u32>) -> io::Result<()> {
        self.protect(pages.clone(), libc::PROT_NONE)?;
        self.punch(pages.start, pages.end - pages.start)
    }

    fn unmanage(&self, pages: Range<u32>) -> io::Result<()> {
        self.protect(pages.clone(), libc::PROT_NONE)?;
        self.copy_out(pages.clone())?;
        let (offset, bytes) = (self.bytes(pages.start), self.bytes(pages.end - pages.start));
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let (from, to) = (self.private.at().wrapping_add(offset), self.seen.at().wrapping_add(offset));
        // SAFETY: atomically replaces the program's mapping of the pages by our memory with the same bytes.
        let moved = unsafe {
            sys::call(libc::SYS_mremap, [from as usize, bytes, bytes, flags as usize, to as usize, 0])
        };
        if moved < 0 {
            return Err(io::Error::last_os_error());
        }
        // If this fails, the pages are missing in core files.
        let _ = super::arena::advise(to, bytes, libc::MADV_DODUMP);
        self.unmanaged.add(pages);
        Ok(())
    }

    fn retire(&self) {
        for ours in [&self.alias, &self.frames, &self.private] {
            ours.retire();
        }
    }

    fn unmanaged(&self) -> &PageSet {
        self.unmanaged
    }

    /// Changes only the set: the pages have no access rights in either state, because they are empty. The
    /// signal handler reads the set.
    fn set_reserved(&self, pages: Range<u32>, is_reserved: bool) -> io::Result<()> {
        self.reserved.set(pages, is_reserved);
        Ok(())
    }

    fn reserved(&self) -> &PageSet {
        self.reserved
    }

    fn address(&self, page: u32) -> *mut u8 {
        self.seen.at().wrapping_add(self.bytes(page))
    }

    fn page_of(&self, address: usize) -> Option<u32> {
        let offset = address.wrapping_sub(self.seen.at() as usize);
        #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
        (offset < self.seen.bytes()).then(|| (offset / self.page_bytes) as u32)
    }

    fn empty(&self, frame: u32) {
        let _ = super::arena::advise(self.frame(frame), self.page_bytes, libc::MADV_DONTNEED);
    }

    fn wake(&self, pages: Range<u32>) {
        let start = self.seen.at() as usize;
        let pages = self.bytes(pages.start)..self.bytes(pages.end);
        TABLE.finish(self.region, |address| pages.contains(&(address - start)));
    }

    fn next_fault(&self, within: Option<Duration>, streams: &mut [libc::pollfd]) -> io::Result<Event> {
        loop {
            if self.stopped.load(Relaxed) {
                return Ok(Event::Stopped);
            }
            let taken = TABLE.take(self.region);
            // If a fault is there, too: faults do not keep the pager from replies.
            let within = if taken.is_some() { Some(Duration::ZERO) } else { within };
            let [notified] = wait([self.notifier.fd()], streams, within)?;
            if let Some((address, access)) = taken {
                let offset = address - self.seen.at() as usize;
                #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
                return Ok(Event::Fault(Fault { page: (offset / self.page_bytes) as u32, access }));
            }
            if !notified {
                return Ok(Event::Nothing);
            }
            self.notifier.reset(); // the next loop checks the table again (REQUEST-3)
            if streams.iter().any(|stream| stream.revents != 0) {
                return Ok(Event::Nothing);
            }
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Relaxed);
        self.notifier.notify();
    }

    fn interrupt(&self) {
        self.notifier.notify();
    }
}

impl Drop for SigsegvBackend {
    fn drop(&mut self) {
        let _one = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        // Release: pairs with Acquire in `place_of`, so what another owner maps at these addresses later does
        // not count as a part of this region.
        PLACES[self.region].base.store(0, Release);
    }
}

/// Registers a region in a free entry. Installs the signal handler for the first region.
fn enter(
    seen: &Mapping,
    notifier: &Notifier,
    [unmanaged, reserved]: [&'static PageSet; 2],
    page_bytes: usize,
) -> io::Result<usize> {
    let _one = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    // A child process has none of its parent's regions, and from now on one of its own. Relaxed: the base of
    // the new region is stored with Release below.
    if FORKED.swap(false, Relaxed) {
        PLACES.iter().for_each(|place| place.base.store(0, Relaxed));
    }
    let free = PLACES.iter().position(|place| place.base.load(Relaxed) == 0);
    let Some(free) = free else {
        return Err(io::Error::other(format!("a process can have {REGIONS} regions by SIGSEGV")));
    };
    if !signals::are_held() {
        install()?;
    }
    let place = &PLACES[free];
    // Relaxed for all: published by the store of the base below.
    place.bytes.store(seen.bytes(), Relaxed);
    place.notifier.store(notifier.fd(), Relaxed);
    place.unmanaged.store(ptr::from_ref(unmanaged).cast_mut(), Relaxed);
    place.reserved.store(ptr::from_ref(reserved).cast_mut(), Relaxed);
    place.page_bytes.store(page_bytes, Relaxed);
    // Release: pairs with Acquire in `place_of`, which then reads the other fields.
    place.base.store(seen.at() as usize, Release);
    Ok(free)
}

fn install() -> io::Result<()> {
    // SAFETY: all zeros is a valid `sigaction`, and an empty set of signals. The handler has the type that
    // `SA_SIGINFO` requires.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if signals::kernel_action(libc::SIGSEGV, ptr::null(), &raw mut before) < 0 {
            return Err(io::Error::last_os_error());
        }
        signals::set_program_action(before);
        libc::pthread_atfork(None, None, Some(in_child));
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction =
            on_fault as extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        block_cancellation(&mut ours.sa_mask);
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        if signals::kernel_action(libc::SIGSEGV, &raw const ours, ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
        // A process may inherit a mask with SIGSEGV. An access to a page would then end it.
        let mut alone: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut alone, libc::SIGSEGV);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const alone, ptr::null_mut());
    }
    Ok(())
}

/// Adds the signal of `pthread_cancel` to a mask. A thread that waits for a page is then canceled only after
/// the handler has returned. Otherwise the stack unwinding would remove the handler's frames, and its request
/// in the fault table would never be freed. (`sigaddset` refuses the number, because the C library reserves
/// it.)
fn block_cancellation(mask: &mut libc::sigset_t) {
    const SIGCANCEL: usize = 32;
    // SAFETY: signal n is bit n - 1 of the set, which has 1024 bits.
    unsafe { *ptr::from_mut(mask).cast::<u64>() |= 1 << (SIGCANCEL - 1) };
}

pub(super) extern "C" fn in_child() {
    // Relaxed: a child begins with one thread.
    FORKED.store(true, Relaxed);
}

fn place_of(address: usize) -> Option<usize> {
    PLACES.iter().position(|place| {
        // Acquire: pairs with Release in `enter`.
        let base = place.base.load(Acquire);
        base != 0 && address.wrapping_sub(base) < place.bytes.load(Relaxed)
    })
}

/// Returns `true` if an address of a region is on a page of a set.
fn is_in(set: impl Fn(&Place) -> &AtomicPtr<PageSet>, region: usize, address: usize) -> bool {
    let place = &PLACES[region];
    // Relaxed: `place_of` loaded the base with Acquire, so these fields are visible.
    let page = address.wrapping_sub(place.base.load(Relaxed)) / place.page_bytes.load(Relaxed);
    // SAFETY: the pointer is null, or the set is never freed; `place_of` loaded the base with Acquire.
    let set = unsafe { set(place).load(Relaxed).as_ref() };
    set.is_some_and(|set| u32::try_from(page).is_ok_and(|page| set.has(page)))
}

/// Returns `true` if this thread faults twice in a row at an address of an unmanaged page. The page may still
/// have been managed at the first fault, so the access is retried. A second fault is caused by the program.
fn is_repeated(address: usize) -> bool {
    // SAFETY: the call accesses no memory of this process.
    let thread = unsafe { sys::call(libc::SYS_gettid, [0; 6]) } as usize;
    let fault = address ^ thread << 48 | 1;
    let last = &FAULTS[thread % FAULTS.len()];
    // Relaxed: if two threads share an entry, they only cause each other one more retry.
    let is_repeated = last.swap(fault, Relaxed) == fault;
    if is_repeated {
        last.store(0, Relaxed);
    }
    is_repeated
}

/// Handles SIGSEGV; see the module documentation. May call the program's own handler, which can end the
/// thread and so unwind its stack.
extern "C-unwind" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both pointers for a fault, and `errno` belongs to this thread.
    unsafe {
        let errno = libc::__errno_location();
        let kept = *errno;
        let address = (*info).si_addr() as usize;
        match place_of(address) {
            // A signal sent by a process has no fault address.
            Some(region) if (*info).si_code > 0 && is_in(|place| &place.reserved, region, address) => {
                pass_on(signal, info, context);
            }
            Some(region) if (*info).si_code > 0 && is_in(|place| &place.unmanaged, region, address) => {
                if is_repeated(address) {
                    pass_on(signal, info, context);
                }
            }
            Some(region) if (*info).si_code > 0 && !FORKED.load(Relaxed) => {
                let access = if was_write(context) { Access::Write } else { Access::Read };
                TABLE.post(region, address, access, || notify(PLACES[region].notifier.load(Relaxed)));
            }
            _ => pass_on(signal, info, context),
        }
        *errno = kept;
    }
}

/// Returns `true` if the processor reports a write.
#[cfg(target_arch = "x86_64")]
unsafe fn was_write(context: *mut c_void) -> bool {
    // SAFETY: with `SA_SIGINFO` the third argument points to a `ucontext_t`.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0 }
}

/// Treats every access as a write, because the error code is not known on this architecture. More pages are
/// written back, but no change is lost.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn was_write(_context: *mut c_void) -> bool {
    true
}

/// Executes the program's own action.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: calls the handler that the program has set, with the arguments that its flags require. SIGSEGV
    // stays unblocked during the call, because the handler may access far memory.
    unsafe {
        let Some(action) = signals::program_action() else { return };
        if matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            // With the default action the instruction is executed again and ends the process in the ordinary
            // way.
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            signals::kernel_action(signal, &raw const default, ptr::null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal); // a process sent the signal, so no instruction repeats it
            }
            return;
        }
        if action.sa_flags & libc::SA_RESETHAND != 0 {
            signals::reset_program_action();
        }
        let (mut mask, mut before) = (action.sa_mask, std::mem::zeroed());
        libc::sigdelset(&raw mut mask, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, &raw mut before);
        // A mask in which all signals are set must not block the signal of `pthread_cancel`. The C library
        // removes that signal from the mask when it reads or sets the mask.
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut());
        if action.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(action.sa_sigaction);
            handler(signal, info, context);
        } else {
            let handler: extern "C-unwind" fn(c_int) = std::mem::transmute(action.sa_sigaction);
            handler(signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
    }
}
