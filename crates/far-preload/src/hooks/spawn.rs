//! Functions that start programs by code inside the C library (F1): `posix_spawn` and `execl`.
//!
//! The child process of `posix_spawn` reads the file name, the attributes and the actions before it executes
//! the program. With the mechanism that uses SIGSEGV it has no far memory. So these arguments are ordinary
//! memory. The kernel alone reads the strings of the arguments and of the environment.

use super::again;
use super::given::{numbered, text, texts_at};
use super::once::Kept;
use crate::next::Next;
use crate::session::is_unserved;
use libc::{c_char, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use std::ffi::c_int;
use std::ptr;

type Path = *const c_char;
type Texts = *const Path;

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    Path,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    Texts,
    Texts,
) -> c_int;

static POSIX_SPAWN: Next<Spawn> = Next::new(c"posix_spawn");
static POSIX_SPAWNP: Next<Spawn> = Next::new(c"posix_spawnp");
static PIDFD_SPAWN: Next<Spawn> = Next::new(c"pidfd_spawn");
static PIDFD_SPAWNP: Next<Spawn> = Next::new(c"pidfd_spawnp");

/// Calls `run` with a file name in ordinary memory. The kernel refuses a longer name.
///
/// # Safety
///
/// The address is that of a string, or null.
unsafe fn with_name<R>(name: Path, run: impl FnOnce(Path) -> R) -> R {
    let mut kept = [0; libc::PATH_MAX as usize + 1];
    if !is_unserved(name as usize, 1) {
        return run(name);
    }
    // SAFETY: a far address is not null, so it is that of a string. The copy ends with a zero.
    unsafe {
        let bytes = libc::strnlen(name, kept.len() - 1);
        ptr::copy_nonoverlapping(name, kept.as_mut_ptr(), bytes);
    }
    run(kept.as_ptr())
}

macro_rules! spawn {
    ($($name:ident, $next:ident;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function.
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                process: *mut pid_t,
                path: Path,
                actions: *const posix_spawn_file_actions_t,
                attributes: *const posix_spawnattr_t,
                arguments: Texts,
                environment: Texts,
            ) -> c_int {
                // SAFETY: the caller keeps the contract of the C function. The copies are not changed, and
                // the array of actions belongs to the program's value.
                unsafe {
                    let mut actions = Kept::new(actions.cast_mut());
                    let mut attributes = Kept::new(attributes.cast_mut());
                    let (actions, attributes) = (actions.pointer(), attributes.pointer());
                    with_name(path, |path| {
                        numbered(&[text(path), texts_at(arguments), texts_at(environment)], || {
                            $next.get()(process, path, actions, attributes, arguments, environment)
                        })
                    })
                }
            }
        )+

        /// Finds the C library's functions.
        pub(super) fn resolve() {
            $($next.resolve();)+
        }
    };
}

spawn! {
    posix_spawn, POSIX_SPAWN;
    posix_spawnp, POSIX_SPAWNP;
    pidfd_spawn, PIDFD_SPAWN;
    pidfd_spawnp, PIDFD_SPAWNP;
}

/// Executes a program. The list contains its arguments, up to a null pointer, and then its environment.
unsafe extern "C" fn with_environment(path: Path, list: Texts) -> c_int {
    // SAFETY: the contract of `execle`: the list contains a null pointer, and the environment after it.
    unsafe {
        let mut end = list;
        while !(*end).is_null() {
            end = end.add(1);
        }
        again::execve(path, list, *end.add(1) as Texts)
    }
}

/// Defines a function with any number of arguments, all of which are pointers. It passes the first one, and
/// the address of the list of the others, to another function.
macro_rules! listed {
    ($($name:ident = $to:path;)+) => {
        $(
            /// # Safety
            ///
            /// The contract of the C library's function. The registers with arguments are stored below the
            /// arguments that are in memory.
            #[cfg(target_arch = "x86_64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() -> c_int {
                std::arch::naked_asm!(
                    "pop rax", // the return address, which is between them
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax",
                    "call {to}",
                    "pop rcx",
                    "add rsp, 40",
                    "push rcx",
                    "ret",
                    to = sym $to
                )
            }

            /// # Safety
            ///
            /// The contract of the C library's function. The registers with arguments are stored below the
            /// arguments that are in memory.
            #[cfg(target_arch = "aarch64")]
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub(super) unsafe extern "C" fn $name() -> c_int {
                std::arch::naked_asm!(
                    "sub sp, sp, #64",
                    "stp x30, x1, [sp]",
                    "stp x2, x3, [sp, #16]",
                    "stp x4, x5, [sp, #32]",
                    "stp x6, x7, [sp, #48]",
                    "add x1, sp, #8",
                    "bl {to}",
                    "ldr x30, [sp]",
                    "add sp, sp, #64",
                    "ret",
                    to = sym $to
                )
            }
        )+
    };
}

listed! {
    execl = again::execv;
    execlp = again::execvp;
    execle = with_environment;
}
