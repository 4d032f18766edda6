//! System calls on far memory where the kernel does not wait for pages (F1): it says `EFAULT`, we touch the buffer and ask again.
//!
//! Between the touch and the call a page can leave again, so the call is repeated; and it may do less than it was asked to, as it always may,
//! because no more than a piece of the buffer is touched each time. Streams of the C library enter the kernel by a way of their
//! own, so their large transfers go piece by piece through `fread` and `fwrite` here.

use super::{errno, fail};
use crate::next::Next;
use crate::session::heap_of;
use std::ffi::{c_int, c_void};

type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type ReadAt = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
type WriteAt = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;
type Receive = unsafe extern "C" fn(c_int, *mut c_void, usize, c_int) -> isize;
type Send = unsafe extern "C" fn(c_int, *const c_void, usize, c_int) -> isize;
type Stream = unsafe extern "C" fn(*mut c_void, usize, usize, *mut libc::FILE) -> usize;
type StreamOut = unsafe extern "C" fn(*const c_void, usize, usize, *mut libc::FILE) -> usize;

static READ: Next<Read> = Next::new(c"read");
static WRITE: Next<Write> = Next::new(c"write");
static PREAD: Next<ReadAt> = Next::new(c"pread64");
static PWRITE: Next<WriteAt> = Next::new(c"pwrite64");
static RECV: Next<Receive> = Next::new(c"recv");
static SEND: Next<Send> = Next::new(c"send");
static FREAD: Next<Stream> = Next::new(c"fread");
static FWRITE: Next<StreamOut> = Next::new(c"fwrite");

/// Touched at once: less than the smallest local memory.
const PIECE: usize = 64 << 10;
/// Somebody who fails so often in a row has another reason.
const TRIES: usize = 1000;
const STEP: usize = 4096;

/// Reads a byte of each 4 KiB, and writes it back if the kernel is going to write there.
unsafe fn touch(at: *mut u8, bytes: usize, writes: bool) {
    let mut offset = 0;
    while offset < bytes {
        // SAFETY: the caller lent the buffer for this call; a byte that is read and written back is as it was, and nobody else
        // may use a buffer that a call is filling.
        unsafe {
            let byte = at.add(offset);
            let value = byte.read_volatile();
            if writes {
                byte.write_volatile(value);
            }
        }
        offset = (offset + STEP).min(if offset + 1 < bytes { bytes - 1 } else { bytes }).max(offset + 1);
    }
}

/// Calls, and calls again with the buffer touched while the kernel cannot reach it.
unsafe fn served(at: *mut u8, bytes: usize, writes: bool, call: impl Fn(usize) -> isize) -> isize {
    let mut result = call(bytes);
    if result != -1 || errno() != libc::EFAULT || heap_of(at as usize).is_none() {
        return result;
    }
    let piece = bytes.min(PIECE);
    for _ in 0..TRIES {
        // SAFETY: within the caller's buffer.
        unsafe { touch(at, piece, writes) };
        result = call(piece);
        if result != -1 || errno() != libc::EFAULT {
            return result;
        }
    }
    fail(libc::EFAULT);
    result
}

macro_rules! transfer {
    ($name:ident, $next:ident, $buffer:ty, $writes:expr, ($($argument:ident: $kind:ty),*)) => {
        /// # Safety
        ///
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name(fd: c_int, at: $buffer, bytes: usize, $($argument: $kind),*) -> isize {
            // SAFETY: passed on.
            unsafe { served(at as *mut u8, bytes, $writes, |bytes| $next.get()(fd, at, bytes, $($argument),*)) }
        }
    };
}

transfer!(read, READ, *mut c_void, true, ());
transfer!(write, WRITE, *const c_void, false, ());
transfer!(pread, PREAD, *mut c_void, true, (offset: i64));
transfer!(pread64, PREAD, *mut c_void, true, (offset: i64));
transfer!(pwrite, PWRITE, *const c_void, false, (offset: i64));
transfer!(pwrite64, PWRITE, *const c_void, false, (offset: i64));
transfer!(recv, RECV, *mut c_void, true, (flags: c_int));
transfer!(send, SEND, *const c_void, false, (flags: c_int));

/// Whether a stream's transfer is to go in pieces: far memory, larger than what the stream buffers, and no help from the kernel.
fn in_pieces(at: usize, bytes: usize) -> bool {
    bytes >= STEP && heap_of(at).is_some_and(|heap| !heap.memory().mechanism().serves_system_calls())
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fread(
    at: *mut c_void,
    size: usize,
    count: usize,
    stream: *mut libc::FILE,
) -> usize {
    let bytes = size.wrapping_mul(count);
    // SAFETY: passed on, piece by piece; a piece that was just touched is within the buffer.
    unsafe {
        if !in_pieces(at as usize, bytes) {
            return FREAD.get()(at, size, count, stream);
        }
        in_turn(bytes, |from, piece| {
            touch(at.cast::<u8>().add(from), piece, true);
            FREAD.get()(at.cast::<u8>().add(from).cast(), 1, piece, stream)
        }) / size
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fwrite(
    at: *const c_void,
    size: usize,
    count: usize,
    stream: *mut libc::FILE,
) -> usize {
    let bytes = size.wrapping_mul(count);
    // SAFETY: as above.
    unsafe {
        if !in_pieces(at as usize, bytes) {
            return FWRITE.get()(at, size, count, stream);
        }
        in_turn(bytes, |from, piece| {
            touch(at.cast::<u8>().add(from).cast_mut(), piece, false);
            FWRITE.get()(at.cast::<u8>().add(from).cast(), 1, piece, stream)
        }) / size
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fread_unlocked(
    at: *mut c_void,
    size: usize,
    count: usize,
    stream: *mut libc::FILE,
) -> usize {
    // SAFETY: passed on; its lock is recursive and the caller's own or nobody's.
    unsafe { fread(at, size, count, stream) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fwrite_unlocked(
    at: *const c_void,
    size: usize,
    count: usize,
    stream: *mut libc::FILE,
) -> usize {
    // SAFETY: as above.
    unsafe { fwrite(at, size, count, stream) }
}

/// Bytes done until one piece came short.
fn in_turn(bytes: usize, mut one: impl FnMut(usize, usize) -> usize) -> usize {
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(PIECE);
        let here = one(done, piece);
        done += here;
        if here < piece {
            break;
        }
    }
    done
}
