//! Streams (`FILE`) of the C library make their own system calls (F1). Each kind of stream has a table of
//! functions. Three of them make system calls on memory or positions of the program: `_IO_file_read`,
//! `_IO_file_write` and `_IO_file_seek`. Hooks replace these functions in the tables. A stream may be the
//! memory of this process (`own`). If the kernel does not wait for far memory, far memory is transferred
//! through a bounce buffer.
//!
//! So all kinds of buffers work: a large block that `fwrite`, `printf` or `fread` transfers without the
//! stream's buffer; a buffer of the program (`setvbuf`); and the stream's own buffer, which the C library
//! takes from the program's allocator and which may be far memory, too. The stream's buffer was touched just
//! before, so without the hooks a call fails only if the page was paged out since: redis with jemalloc, under
//! load, then reported "Bad address" and saved nothing.
//!
//! The tables are constant after the program is loaded, so they are made writable for a short time before
//! `main`. Their content identifies them: they contain the addresses of these functions, which the C
//! library has exported under these names since 1997.

use super::own;
use super::transfer::{one_in, one_out};
use crate::next::{Next, exists};
use crate::session::is_unserved;
use libc::{FILE, off_t, ssize_t};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

type Read = unsafe extern "C" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;
type Write = unsafe extern "C" fn(*mut FILE, *const c_void, ssize_t) -> ssize_t;
type Seek = unsafe extern "C" fn(*mut FILE, off_t, c_int) -> off_t;

static READ: Next<Read> = Next::new(c"_IO_file_read");
static WRITE: Next<Write> = Next::new(c"_IO_file_write");
static SEEK: Next<Seek> = Next::new(c"_IO_file_seek");

unsafe extern "C" fn read(stream: *mut FILE, at: *mut c_void, bytes: ssize_t) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function. The C library requests no negative number of
    // bytes.
    unsafe {
        let length = usize::try_from(bytes).unwrap_or(0);
        own::before_transfer(libc::fileno(stream), || length);
        if !is_unserved(at as usize, length) {
            return READ.get()(stream, at, bytes);
        }
        // One call: the first part from a pipe suffices, and the C library reads again if it needs more.
        one_in(at, length, || false, |to, n, _| READ.get()(stream, to, n.cast_signed()))
    }
}

unsafe extern "C" fn write(stream: *mut FILE, at: *const c_void, bytes: ssize_t) -> ssize_t {
    // SAFETY: the caller keeps the contract of the C function.
    unsafe {
        let length = usize::try_from(bytes).unwrap_or(0);
        own::before_transfer(libc::fileno(stream), || length);
        if is_unserved(at as usize, length) {
            let put = |from, n: usize, _| WRITE.get()(stream, from, n.cast_signed());
            let written = one_out(at, length, || true, put);
            // Without memory for a bounce buffer, the C library's function may still succeed if the page is
            // resident. Otherwise it marks the stream as failed.
            if written >= 0 {
                return written;
            }
        }
        WRITE.get()(stream, at, bytes)
    }
}

unsafe extern "C" fn seek(stream: *mut FILE, offset: off_t, whence: c_int) -> off_t {
    // SAFETY: the caller keeps the contract of the C function.
    let reached = unsafe { SEEK.get()(stream, offset, whence) };
    own::after_seek(reached);
    reached
}

/// Error: the tables of the C library's streams could not be changed.
#[derive(Debug)]
pub(crate) struct UnknownStreams;

impl std::fmt::Display for UnknownStreams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "the tables of this C library's streams are not where they are known to be, and the \
            kernel does not wait for far memory; where it does (as root, say) they are not needed",
        )
    }
}

impl std::error::Error for UnknownStreams {}

/// Redirects the system calls of streams to this module. Takes effect at the first call, before there are
/// other threads.
pub(crate) fn take_over() -> Result<(), UnknownStreams> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.load(Acquire) {
        return Ok(());
    }
    if ![c"_IO_file_read", c"_IO_file_write", c"_IO_file_seek"].into_iter().all(exists) {
        return Err(UnknownStreams);
    }
    let theirs = [READ.get() as usize, WRITE.get() as usize, SEEK.get() as usize];
    let ours = [read as Read as usize, write as Write as usize, seek as Seek as usize];
    let tables = tables(theirs[0]).ok_or(UnknownStreams)?;
    let protect = |protection: c_int| {
        // SAFETY: the C library's constants, which stay readable.
        unsafe { libc::mprotect(tables.start as *mut c_void, tables.len(), protection) == 0 }
    };
    if !protect(libc::PROT_READ | libc::PROT_WRITE) {
        return Err(UnknownStreams);
    }
    let mut found = [0; 3];
    for word in tables.clone().step_by(size_of::<usize>()) {
        // SAFETY: inside the tables, aligned, and writable now. Only the loader writes there.
        let word = unsafe { AtomicUsize::from_ptr(word as *mut usize) };
        // Relaxed: both functions of a word are valid, so a stream in use may call either.
        if let Some(which) = theirs.iter().position(|&theirs| theirs == word.load(Relaxed)) {
            word.store(ours[which], Relaxed);
            found[which] += 1;
        }
    }
    protect(libc::PROT_READ);
    if found.contains(&0) {
        return Err(UnknownStreams);
    }
    // Release: pairs with Acquire above. A later caller is on the same thread, or on a thread that was
    // started after this store.
    DONE.store(true, Release);
    Ok(())
}

/// Returns the address range that the loader made read-only in the library with this function.
fn tables(function: usize) -> Option<Range<usize>> {
    let mut search: (usize, Option<Range<usize>>) = (function, None);
    // SAFETY: the callback gets a pointer to `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.1.filter(|tables| !tables.is_empty())
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: the loader passes an object with this number of headers, and the pointer to `search`.
    let (base, headers, search) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (info.dlpi_addr as usize, headers, &mut *data.cast::<(usize, Option<Range<usize>>)>())
    };
    let place = |header: &libc::Elf64_Phdr| {
        let start = base + header.p_vaddr as usize;
        start..start + header.p_memsz as usize
    };
    let has =
        |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && place(header).contains(&search.0);
    if headers.iter().find(has).is_none() {
        return 0;
    }
    // The loader protects whole pages, and omits a last page that also has writable data.
    let constants = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO).map(place);
    // SAFETY: the call accesses no memory of this process.
    let piece = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    search.1 = constants.map(|all| all.start / piece * piece..all.end / piece * piece);
    1
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    READ.resolve();
    WRITE.resolve();
    SEEK.resolve();
}
