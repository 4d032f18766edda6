//! Child processes that are not made by the C library's `fork`: by `_Fork`, by `clone` without the parent's
//! memory, and by the numbers of these calls. Such a child is treated as a child of `fork`
//! (`session::children`). Children that share the parent's memory (`vfork`, `posix_spawn`, `CLONE_VM`) need
//! nothing.
//!
//! The handlers of `fork` of this library are registered before those of all other libraries. So no other
//! handler runs while paging is stopped: it could touch a page that is paged out, or wait for a lock of an
//! allocator while another thread holds that lock and waits for a page.
//!
//! The C library releases its allocator's locks only in a child of `fork`. If another thread was inside the
//! allocator during one of the other calls, the child may wait for that lock forever, as in any program.

use crate::next::Next;
use crate::session::{prepare_forks, unmanage, with_child};
use azekura_far::sys;
use libc::c_long;
use std::ffi::{c_int, c_void};
use std::ptr;

pub(super) type Entry = extern "C" fn(*mut c_void) -> c_int;

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

static FORK: Next<unsafe extern "C" fn() -> libc::pid_t> = Next::new(c"_Fork");
static REGISTER: Next<Register> = Next::new(c"__register_atfork");

/// Indexes of words of `struct clone_args`.
const FLAGS: usize = 0;
const STACK: usize = 5;
/// Addresses of numbers that the kernel writes: the process descriptor, and the number of the child, twice.
const NUMBERS: [usize; 3] = [1, 2, 3];

/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn _Fork() -> libc::pid_t {
    // SAFETY: the caller keeps the contract of the C function.
    with_child(0, || unsafe { FORK.get()() }.into()) as libc::pid_t
}

/// Hook of `pthread_atfork`, which is a part of each library and calls this function.
///
/// # Safety
///
/// The contract of the C library's function.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn __register_atfork(
    before: Handler,
    in_parent: Handler,
    in_child: Handler,
    library: *mut c_void,
) -> c_int {
    prepare_forks();
    // SAFETY: the caller keeps the contract of the C function.
    unsafe { REGISTER.get()(before, in_parent, in_child, library) }
}

/// Returns `true` if a call of `clone` with these flags makes a child with its own copy of the memory.
pub(super) fn copies(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0
}

/// Makes a word leave far memory in which the kernel stores the number of a child. The kernel clears the
/// word when the child ends (`CLONE_CHILD_CLEARTID`), and ignores a word that it cannot access: a thread that
/// waits for the child would wait forever. No mechanism makes the kernel wait for a page on behalf of a child
/// that ends.
pub(super) fn before_number(at: usize) {
    unmanage(at, size_of::<c_int>());
}

/// Arguments of a child of `clone`: its function, the function's argument, and the flags.
pub(super) struct Birth {
    pub(super) entry: Entry,
    pub(super) argument: *mut c_void,
    pub(super) flags: usize,
}

impl Birth {
    /// Runs first in the child, and calls the child's function.
    pub(super) extern "C" fn begin(birth: *mut c_void) -> c_int {
        // SAFETY: the hook of `clone` passes a pointer to its value, of which the child has a copy.
        let Self { entry, argument, flags } = unsafe { birth.cast::<Self>().read() };
        crate::session::child_begins(flags);
        entry(argument)
    }
}

/// Executes these calls by their system call numbers. Returns `None` for other numbers, and for a child with
/// another stack: the child would return on a stack that does not contain this function's frame.
///
/// # Safety
///
/// The contract of the system call with this number.
pub(super) unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller keeps the contract of the system call.
    let call = || unsafe { sys::call(number, arguments) as c_long };
    let [first, second, ..] = arguments;
    if number == libc::SYS_clone {
        arguments[2..5].iter().for_each(|&at| before_number(at));
    }
    let flags = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => 0,
        libc::SYS_clone if second == 0 => first,
        libc::SYS_clone3 if first != 0 && second > STACK * 8 => {
            let words = ptr::with_exposed_provenance::<u64>(first);
            // SAFETY: the caller's `clone_args`, which has at least this many bytes.
            let (flags, stack) = unsafe {
                NUMBERS.into_iter().for_each(|index| before_number(*words.add(index) as usize));
                (*words.add(FLAGS), *words.add(STACK))
            };
            if stack != 0 {
                return None;
            }
            flags as usize
        }
        _ => return None,
    };
    copies(flags).then(|| with_child(flags, call))
}

/// Finds the C library's functions.
pub(super) fn resolve() {
    FORK.resolve();
    REGISTER.resolve();
}
