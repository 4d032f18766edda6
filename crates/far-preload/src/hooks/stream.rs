//! Streams of the C library enter the kernel by a way of their own, so their large transfers go piece by piece where the kernel does not wait
//! for far memory (F1): what is smaller than a stream's buffer is copied by the C library itself, and waits.

use super::bounce::{BOUNCE, Bounce};
use crate::next::Next;
use crate::session::is_unserved;
use libc::{FILE, size_t};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

type In = unsafe extern "C" fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t;
type Out = unsafe extern "C" fn(*const c_void, size_t, size_t, *mut FILE) -> size_t;
type Text = unsafe extern "C" fn(*const c_char, *mut FILE) -> c_int;
type Line = unsafe extern "C" fn(*const c_char) -> c_int;

static FREAD: Next<In> = Next::new(c"fread");
static FREAD_UNLOCKED: Next<In> = Next::new(c"fread_unlocked");
static FWRITE: Next<Out> = Next::new(c"fwrite");
static FWRITE_UNLOCKED: Next<Out> = Next::new(c"fwrite_unlocked");
static FPUTS: Next<Text> = Next::new(c"fputs");
static FPUTS_UNLOCKED: Next<Text> = Next::new(c"fputs_unlocked");
static PUTS: Next<Line> = Next::new(c"puts");

/// Whether the kernel could be asked to take or fill the program's own buffer, and would not reach it. If the sizes are no sizes, the C
/// library says so.
fn goes_by_bounce(at: usize, size: size_t, count: size_t) -> Option<usize> {
    const SMALL: usize = 1024; // no stream that has a buffer passes by it for so little
    size.checked_mul(count).filter(|&bytes| bytes >= SMALL && is_unserved(at, bytes))
}

/// Items done, by pieces that each say how many bytes they did, until one came short.
fn in_pieces(size: size_t, bytes: usize, one: impl Fn(*mut u8, usize, usize) -> usize) -> Option<size_t> {
    let bounce = Bounce::take()?;
    let mut done = 0;
    while done < bytes {
        let piece = (bytes - done).min(BOUNCE);
        let here = one(bounce.at(), done, piece);
        done += here;
        if here < piece {
            break;
        }
    }
    bounce.give_back();
    Some(done / size)
}

unsafe fn read_by(next: In, at: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
    // SAFETY: passed on; pieces are within the caller's buffer, and no longer than the bounce.
    unsafe {
        let bounced = goes_by_bounce(at as usize, size, count).and_then(|bytes| {
            in_pieces(size, bytes, |bounce, from, piece| {
                let got = next(bounce.cast(), 1, piece, stream);
                ptr::copy_nonoverlapping(bounce, at.cast::<u8>().add(from), got);
                got
            })
        });
        bounced.unwrap_or_else(|| next(at, size, count, stream))
    }
}

unsafe fn write_by(next: Out, at: *const c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
    // SAFETY: as above.
    unsafe {
        let bounced = goes_by_bounce(at as usize, size, count).and_then(|bytes| {
            in_pieces(size, bytes, |bounce, from, piece| {
                ptr::copy_nonoverlapping(at.cast::<u8>().add(from), bounce, piece);
                next(bounce.cast(), 1, piece, stream)
            })
        });
        bounced.unwrap_or_else(|| next(at, size, count, stream))
    }
}

/// Writes a text by `fwrite` if it is far, with a line's end or without.
unsafe fn put_by(next: Out, text: *const c_char, stream: *mut FILE, ends_line: bool) -> Option<c_int> {
    if !is_unserved(text as usize, 1) {
        return None;
    }
    // SAFETY: the caller's text ends in NUL.
    unsafe {
        let bytes = CStr::from_ptr(text).count_bytes();
        let done = write_by(next, text.cast(), 1, bytes, stream) == bytes
            && (!ends_line || next(c"\n".as_ptr().cast(), 1, 1, stream) == 1);
        Some(if done { 1 } else { libc::EOF })
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fread(
    at: *mut c_void,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    // SAFETY: passed on.
    unsafe { read_by(FREAD.get(), at, size, count, stream) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fread_unlocked(
    at: *mut c_void,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    // SAFETY: passed on.
    unsafe { read_by(FREAD_UNLOCKED.get(), at, size, count, stream) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fwrite(
    at: *const c_void,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    // SAFETY: passed on.
    unsafe { write_by(FWRITE.get(), at, size, count, stream) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fwrite_unlocked(
    at: *const c_void,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    // SAFETY: passed on.
    unsafe { write_by(FWRITE_UNLOCKED.get(), at, size, count, stream) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fputs(text: *const c_char, stream: *mut FILE) -> c_int {
    // SAFETY: passed on.
    unsafe { put_by(FWRITE.get(), text, stream, false).unwrap_or_else(|| FPUTS.get()(text, stream)) }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int {
    // SAFETY: passed on.
    unsafe {
        put_by(FWRITE_UNLOCKED.get(), text, stream, false)
            .unwrap_or_else(|| FPUTS_UNLOCKED.get()(text, stream))
    }
}

/// # Safety
///
/// As the C library's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn puts(text: *const c_char) -> c_int {
    unsafe extern "C" {
        static stdout: *mut FILE;
    }
    // SAFETY: passed on; the C library's own stream.
    unsafe { put_by(FWRITE.get(), text, stdout, true).unwrap_or_else(|| PUTS.get()(text)) }
}

/// Finds the C library's functions.
pub(super) fn settle() {
    FREAD.settle();
    FREAD_UNLOCKED.settle();
    FWRITE.settle();
    FWRITE_UNLOCKED.settle();
    FPUTS.settle();
    FPUTS_UNLOCKED.settle();
    PUTS.settle();
}
