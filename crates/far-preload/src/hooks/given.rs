//! Pointer arguments of system calls (F1): which of them are far, how their pages are made resident, and how
//! a call is repeated.

use super::{errno, fail};
use crate::session::{is_unserved, unmanage};
use azekura_far::sys;
use libc::{c_char, iovec, ssize_t};
use std::ffi::{c_int, c_long};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Number of repetitions after which the error is returned, because it has another cause.
pub(super) const TRIES: usize = 1000;
/// Number of repetitions of a call with an argument of unknown size. Each may page in up to [`MOST`] bytes.
const FEW_TRIES: usize = 30;
/// Number of bytes to touch in a buffer with a length that only the kernel determines.
pub(super) const SOME: usize = 4096;
/// Largest number of bytes to touch at an address of unknown kind.
const MOST: usize = 1 << 20;
const STEP: usize = 4096;
/// Largest number of strings in the arguments or the environment of a new program.
const MOST_STRINGS: usize = 1 << 16;
/// Largest number of bytes of such a string (`MAX_ARG_STRLEN`). Names of files are shorter.
const MOST_TEXT: usize = 32 * STEP;
/// Number of repetitions after which the argument's memory leaves far memory: its pages do not fit into the
/// local memory together.
const PATIENCE: usize = 20;
/// Number of words of a structure that may contain addresses.
const WORDS: usize = 32;

/// A pointer argument of a system call.
#[derive(Clone, Copy)]
pub(super) enum Given {
    /// Memory of this address and length that the kernel reads.
    Reads(usize, usize),
    /// Memory of this address and length that the kernel writes.
    Writes(usize, usize),
    /// Address of a string that the kernel reads.
    Text(usize),
    /// Address of an array of strings, ending with a null pointer, that the kernel reads.
    Texts(usize),
    /// A number, or the address of memory of unknown length. Its first [`WORDS`] words may be such addresses.
    Any(usize),
}

impl Given {
    /// Returns `true` if a part of the argument's memory is far.
    fn is_far(self) -> bool {
        match self {
            Self::Reads(at, bytes) | Self::Writes(at, bytes) => is_unserved(at, bytes),
            Self::Text(at) => is_unserved(at, 1),
            Self::Texts(at) => {
                // SAFETY: the program's array of strings, which ends with a null pointer.
                at != 0 && (is_unserved(at, 1) || unsafe { texts(at) }.any(|text| is_unserved(text, 1)))
            }
            Self::Any(at) => is_unserved(at, 1) || words(at).into_iter().any(|word| is_unserved(word, 1)),
        }
    }

    /// Touches the far pages of the argument, so that they are paged in. `tries` is the number of earlier
    /// attempts.
    ///
    /// # Safety
    ///
    /// The value is the caller's argument for this call.
    unsafe fn touch(self, tries: usize) {
        match self {
            Self::Writes(at, bytes) => steps(at, bytes).for_each(rewrite),
            // SAFETY: the program's buffer for this call.
            Self::Reads(at, bytes) => steps(at, bytes).for_each(|at| unsafe {
                ptr::with_exposed_provenance::<u8>(at).read_volatile();
            }),
            // SAFETY: the program's string for this call.
            Self::Text(at) => unsafe {
                std::hint::black_box(text_bytes(at));
            },
            // SAFETY: the program's strings for this call.
            Self::Texts(at) => unsafe { texts(at) }.for_each(|text| unsafe { Self::Text(text).touch(tries) }),
            Self::Any(at) => {
                // Most buffers are short. If the call still fails, the kernel has reached a later page.
                let bytes = SOME << (4 * tries).min((MOST / SOME).ilog2() as usize);
                steps(at, bytes).for_each(rewrite);
                words(at).into_iter().for_each(|word| steps(word, bytes).for_each(rewrite));
            }
        }
    }

    /// Makes the argument's memory leave far memory.
    ///
    /// # Safety
    ///
    /// The value is the caller's argument for this call.
    pub(super) unsafe fn leave(self) {
        match self {
            Self::Reads(at, bytes) | Self::Writes(at, bytes) if is_unserved(at, bytes) => {
                unmanage(at, bytes);
            }
            Self::Text(at) if at != 0 => {
                // SAFETY: the program's string for this call.
                let bytes = unsafe { text_bytes(at) } + 1;
                // The first page may have left with another string.
                if is_unserved(at, bytes) {
                    unmanage(at, bytes);
                }
            }
            Self::Texts(at) if self.is_far() => {
                // SAFETY: the program's strings for this call. Their array ends with a null pointer.
                let count = unsafe {
                    texts(at).for_each(|text| Self::Text(text).leave());
                    texts(at).count()
                };
                unmanage(at, (count + 1) * size_of::<usize>());
            }
            _ => (),
        }
    }
}

/// Touches a page of the program without a change. The page may have other data than the buffer, so a byte is
/// replaced by itself in one step, and no change by another thread is lost.
fn rewrite(at: usize) {
    // SAFETY: `steps` returns addresses of far memory only, which is readable and writable.
    let byte = unsafe { AtomicU8::from_ptr(ptr::with_exposed_provenance_mut(at)) };
    // Relaxed: the value is unchanged.
    let value = byte.load(Relaxed);
    let _ = byte.compare_exchange(value, value, Relaxed, Relaxed);
}

/// Returns the addresses to touch in a range: one per 4 KiB, and the last byte; only those in far memory. A
/// range of assumed length may extend beyond the program's memory.
fn steps(at: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let end = at.saturating_add(bytes);
    let is_far = bytes > 0 && is_unserved(at, bytes);
    let all = (at..end).step_by(STEP).chain([end.saturating_sub(1)]);
    all.take_while(move |_| is_far).filter(|&at| is_unserved(at, 1))
}

/// Returns the first words at an address; zeros if it is no address. The kernel copies them, because the
/// argument may be a number. If a page of them is far, it was touched before.
fn words(at: usize) -> [usize; WORDS] {
    let mut words = [0; WORDS];
    if at >= STEP {
        let kept = errno();
        let to = iovec { iov_base: words.as_mut_ptr().cast(), iov_len: size_of_val(&words) };
        let from = iovec { iov_base: ptr::with_exposed_provenance_mut(at), iov_len: size_of_val(&words) };
        let [to, from] = [&raw const to, &raw const from].map(|part| part as usize);
        // SAFETY: the kernel writes into `words`, and refuses to read what is not readable.
        unsafe {
            let own = libc::getpid() as usize;
            sys::call(libc::SYS_process_vm_readv, [own, to, 1, from, 1, 0]);
        }
        fail(kept);
    }
    words
}

/// Returns the length of a string, at most that of the longest argument of a program.
///
/// # Safety
///
/// The address is that of a string.
unsafe fn text_bytes(at: usize) -> usize {
    // SAFETY: the caller keeps this function's contract.
    unsafe { libc::strnlen(ptr::with_exposed_provenance(at), MOST_TEXT) }
}

/// Returns the addresses of the strings of an array, up to the null pointer.
unsafe fn texts(at: usize) -> impl Iterator<Item = usize> {
    let at = ptr::with_exposed_provenance::<usize>(at);
    // SAFETY: the program's array, which ends with a null pointer.
    (0..MOST_STRINGS).map(move |i| unsafe { at.add(i).read_unaligned() }).take_while(|&text| text != 0)
}

/// Touches the pages of a string if they are far. Returns `true` if they were.
///
/// # Safety
///
/// The address is that of a string, or null.
pub(super) unsafe fn touch_text(at: *const c_char) -> bool {
    let is_far = text(at).is_far();
    if is_far {
        // SAFETY: a string of the program; a far address is not null.
        unsafe { text(at).touch(0) };
    }
    is_far
}

/// Result of a function of the C library; `FAILED` (-1) after an error.
pub(super) trait Answer: Copy + PartialEq {
    const FAILED: Self;

    fn failed(self) -> bool {
        self == Self::FAILED
    }
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for ssize_t {
    const FAILED: Self = -1;
}

impl Answer for c_long {
    const FAILED: Self = -1;
}

impl<T> Answer for *mut T {
    const FAILED: Self = ptr::null_mut();
}

/// Makes a call. As long as the call fails and an argument is far, touches the far parts and repeats the
/// call.
pub(super) fn asked<R: Answer>(given: &[Given], call: impl Fn() -> R) -> R {
    let mut result = call();
    if !result.failed() || errno() != libc::EFAULT || !given.iter().any(|given| given.is_far()) {
        return result;
    }
    let is_known = given.iter().all(|given| !matches!(given, Given::Any(_)));
    for tries in 0..if is_known { TRIES } else { FEW_TRIES } {
        // SAFETY: the arguments are those of the program for this call.
        given
            .iter()
            .for_each(|given| unsafe { if tries < PATIENCE { given.touch(tries) } else { given.leave() } });
        result = call();
        if !result.failed() || errno() != libc::EFAULT {
            return result;
        }
    }
    fail(libc::EFAULT);
    result
}

/// Makes a call that returns the number of an error, as [`asked`] does.
pub(super) fn numbered(given: &[Given], call: impl Fn() -> c_int) -> c_int {
    let call = || {
        let number = call();
        fail(number);
        if number == 0 { 0 } else { -1 }
    };
    let kept = errno();
    let number = if asked(given, call) == 0 { 0 } else { errno() };
    fail(kept);
    number
}

pub(super) fn text(at: *const c_char) -> Given {
    Given::Text(at.expose_provenance())
}

pub(super) fn texts_at(at: *const *const c_char) -> Given {
    Given::Texts(at.expose_provenance())
}

pub(super) fn reads<T>(at: *const T, bytes: usize) -> Given {
    Given::Reads(at.expose_provenance(), bytes)
}

pub(super) fn writes<T>(at: *mut T, bytes: usize) -> Given {
    Given::Writes(at.expose_provenance(), bytes)
}

pub(super) fn filled<T>(at: *mut T) -> Given {
    writes(at, size_of::<T>())
}

pub(super) fn any<T>(at: *const T) -> Given {
    Given::Any(at.expose_provenance())
}
