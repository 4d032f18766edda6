//! Paging by memory protection and SIGSEGV, as in the paper (§2.2): a page without access is paged out or
//! armed, a read-only page is unmodified.
//!
//! The region is a memory file with two mappings: the program's, with changing protection, and this layer's,
//! always writable. A page is filled through the second mapping and made accessible when it is whole
//! (FAULT-2, F3). The program's access is removed before this layer reads the page (FAULT-1).
//!
//! # The handler
//!
//! The handler (F2) makes no decision. It posts the fault in a fixed table (`requests`), notifies the pager
//! and sleeps; the pager's thread does the rest. All its calls are async-signal-safe: atomics, `write`,
//! `futex`. The processor reports a read or a write (bit 1 of the page fault's error code). A fault outside
//! all regions goes to the previously installed handler.
//!
//! # Limits
//!
//! A system call on a paged-out page returns `EFAULT` (F1). Child processes have no mapping in place of the
//! region.

use super::arena::{Mapping, Notifier, notify};
use super::page_set::PageSet;
use super::requests::Requests;
use super::signals;
use super::userfault::wait;
use super::{Allow, Backend, Event, Fault, Frame, Mechanism, Run};
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

/// Threads that can wait for pages at once; more spin.
const REQUESTS: usize = 256;
/// Regions of a process that use this mechanism.
const REGIONS: usize = 32;

struct Place {
    /// Zero while the entry is unused.
    base: AtomicUsize,
    bytes: AtomicUsize,
    notifier: AtomicI32,
    /// Of the region; never dropped, as a handler may still look at it.
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
/// The last fault on an unmanaged page, by thread: see `is_repeated`.
static FAULTS: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
/// Serializes the registration of places and the installation of the handler.
static REGISTRY: Mutex<()> = Mutex::new(());
/// This process is a child made by fork: no pager answers here, and the regions are not mapped. A child that
/// shares the parent's memory (vfork) does not set this.
static FORKED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
pub(crate) struct SigsegvBackend {
    region: usize,
    file: Hidden<OwnedFd>,
    /// The program's view.
    seen: Mapping,
    /// As we see it.
    alias: Mapping,
    frames: Mapping,
    /// Private anonymous memory that replaces unmanaged pages. One mapping as long as the region, each page
    /// at its own offset, so that the kernel merges neighbors into one mapping again.
    private: Mapping,
    page_bytes: usize,
    notifier: Notifier,
    stopped: AtomicBool,
    unmanaged: &'static PageSet,
    reserved: &'static PageSet,
}

impl SigsegvBackend {
    pub(crate) fn new(bytes: usize, page_bytes: usize, frames: usize) -> io::Result<Self> {
        // SAFETY: a name that ends in NUL.
        let fd = unsafe { libc::memfd_create(c"azekura-far".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and no other value owns it.
        let file = Hidden::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: no memory is passed.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let seen = Mapping::of_file(&file, bytes, libc::PROT_NONE)?;
        let alias = Mapping::of_file(&file, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
        seen.advise(libc::MADV_DONTFORK)?;
        let frames = Mapping::anonymous(frames * page_bytes)?;
        let private = Mapping::anonymous(bytes)?;
        // SAFETY: just made. The kernel joins mappings only if one of them had memory before they were cut.
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
        // SAFETY: pages of our mapping; they are to be inaccessible to the program without a fault.
        let done =
            unsafe { super::arena::sys_mprotect(at.cast(), self.bytes(pages.end - pages.start), protection) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Gives the memory of pages back that are closed to the program.
    fn punch(&self, page: u32, pages: u32) -> io::Result<()> {
        let (offset, bytes) = (self.bytes(page) as libc::off_t, self.bytes(pages) as libc::off_t);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no memory is passed; the emptied range is ours and closed to the program.
        let done = unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, bytes) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Copies the bytes of closed pages into `private`; holes of the file stay holes.
    fn copy_out(&self, pages: Range<u32>) -> io::Result<()> {
        let (mut at, end) = (self.bytes(pages.start), self.bytes(pages.end));
        let seek = |from: usize, whence: c_int| {
            // SAFETY: no memory is passed.
            let found = unsafe { libc::lseek(self.file.as_raw_fd(), from as libc::off_t, whence) };
            usize::try_from(found).map_err(|_| io::Error::last_os_error())
        };
        while at < end {
            let from = match seek(at, libc::SEEK_DATA) {
                Ok(from) if from < end => from,
                Err(error) if error.raw_os_error() != Some(libc::ENXIO) => return Err(error),
                _ => break, // no data behind
            };
            at = seek(from, libc::SEEK_HOLE)?.min(end);
            // SAFETY: our view of the pages, which the program cannot touch now, and our own memory.
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
        // SAFETY: our view of the pages and our frames; the program's view is closed, so no other thread
        // reads or writes them.
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
        // SAFETY: memory of ours, with the pages' bytes, replaces the program's view of them at one instant.
        let moved = unsafe {
            sys::call(libc::SYS_mremap, [from as usize, bytes, bytes, flags as usize, to as usize, 0])
        };
        if moved < 0 {
            return Err(io::Error::last_os_error());
        }
        self.unmanaged.add(pages);
        Ok(())
    }

    fn retire(&self) {
        // If this fails, they still take the memory that they took before.
        for ours in [&self.alias, &self.frames, &self.private] {
            let _ = ours.advise(libc::MADV_DONTNEED);
            let _ = super::arena::close(ours.at(), ours.bytes());
        }
    }

    fn unmanaged(&self) -> &PageSet {
        self.unmanaged
    }

    /// The pages are closed as long as they are empty; the handler of the signal tells the two apart.
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

    fn next_fault(&self, within: Option<Duration>) -> io::Result<Event> {
        loop {
            if self.stopped.load(Relaxed) {
                return Ok(Event::Stopped);
            }
            if let Some((address, access)) = TABLE.take(self.region) {
                let offset = address - self.seen.at() as usize;
                #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
                return Ok(Event::Fault(Fault { page: (offset / self.page_bytes) as u32, access }));
            }
            if !wait(&[self.notifier.fd()], within)? {
                return Ok(Event::Nothing);
            }
            self.notifier.reset(); // and then looks again (REQUEST-3)
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Relaxed);
        self.notifier.notify();
    }
}

impl Drop for SigsegvBackend {
    fn drop(&mut self) {
        let _one = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
        // Release: pairs with Acquire in `place_of`: what follows the region's end is not seen as the
        // region's.
        PLACES[self.region].base.store(0, Release);
    }
}

/// Takes a place for a region, and the signal when it is the first.
fn enter(
    seen: &Mapping,
    notifier: &Notifier,
    [unmanaged, reserved]: [&'static PageSet; 2],
    page_bytes: usize,
) -> io::Result<usize> {
    let _one = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let free = PLACES.iter().position(|place| place.base.load(Relaxed) == 0);
    let Some(free) = free else {
        return Err(io::Error::other(format!("a process can have {REGIONS} regions by SIGSEGV")));
    };
    if !signals::are_held() {
        install()?;
    }
    let place = &PLACES[free];
    // Relaxed, all: published by the store of the base below.
    place.bytes.store(seen.bytes(), Relaxed);
    place.notifier.store(notifier.fd(), Relaxed);
    place.unmanaged.store(ptr::from_ref(unmanaged).cast_mut(), Relaxed);
    place.reserved.store(ptr::from_ref(reserved).cast_mut(), Relaxed);
    place.page_bytes.store(page_bytes, Relaxed);
    // Release: pairs with Acquire in `place_of`, which then finds the rest.
    place.base.store(seen.at() as usize, Release);
    Ok(free)
}

fn install() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction; the handler has the type that SA_SIGINFO asks for.
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
    }
    Ok(())
}

/// Adds the signal of `pthread_cancel`. A thread that waits for a page is canceled when the handler has
/// returned; else the unwinding of its stack would take the handler's frames, and its place in the table of
/// faults would stay taken. (The C library reserves the number, and `sigaddset` refuses it.)
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

/// Returns whether an address of a region is on a page of a set.
fn is_in(set: impl Fn(&Place) -> &AtomicPtr<PageSet>, region: usize, address: usize) -> bool {
    let place = &PLACES[region];
    // Relaxed: `place_of` saw the base, and with it what was stored before.
    let page = address.wrapping_sub(place.base.load(Relaxed)) / place.page_bytes.load(Relaxed);
    // SAFETY: null, or a table that is never dropped; `place_of` saw what was stored with the base.
    let set = unsafe { set(place).load(Relaxed).as_ref() };
    set.is_some_and(|set| u32::try_from(page).is_ok_and(|page| set.has(page)))
}

/// Returns whether this thread faults twice in a row at an address of an unmanaged page. The first fault may
/// have come about while the page was still managed, so the access is tried again; the second is the
/// program's own.
fn is_repeated(address: usize) -> bool {
    // SAFETY: no memory is passed.
    let thread = unsafe { sys::call(libc::SYS_gettid, [0; 6]) } as usize;
    let fault = address ^ thread << 48 | 1;
    let last = &FAULTS[thread % FAULTS.len()];
    // Relaxed: threads that share a place only make each other try once more.
    let is_repeated = last.swap(fault, Relaxed) == fault;
    if is_repeated {
        last.store(0, Relaxed);
    }
    is_repeated
}

/// The signal handler: see the head of this file. The program's own handler, which it may call, can end the
/// thread, and so unwind its stack.
extern "C-unwind" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both for a fault; errno is this thread's.
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

/// Access type according to the processor.
#[cfg(target_arch = "x86_64")]
unsafe fn was_write(context: *mut c_void) -> bool {
    // SAFETY: with SA_SIGINFO the third argument is a ucontext.
    unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_ERR as usize] & 2 != 0 }
}

/// Counts every access as a write, because the error code is not known on this architecture: more pages are
/// written back, and no change is lost.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn was_write(_context: *mut c_void) -> bool {
    true
}

/// Calls the program's own action for faults outside of our regions.
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the action is the one that the program had set, with the arguments of its flags; SIGSEGV stays
    // unblocked meanwhile, as the handler may touch far memory.
    unsafe {
        let Some(action) = signals::program_action() else { return };
        if matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            // Set back, the instruction is run again and ends the process in the ordinary way.
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            signals::kernel_action(signal, &raw const default, ptr::null_mut());
            if (*info).si_code <= 0 {
                libc::raise(signal); // it was sent, and no instruction repeats it
            }
            return;
        }
        if action.sa_flags & libc::SA_RESETHAND != 0 {
            signals::reset_program_action();
        }
        let (mut mask, mut before) = (action.sa_mask, std::mem::zeroed());
        libc::sigdelset(&raw mut mask, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, &raw mut before);
        // The C library takes the signal of `pthread_cancel` out of a whole mask, so it is open again.
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
