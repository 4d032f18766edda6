//! Process state that a command inherited and passes on unchanged to the program that it starts.
//!
//! A program under `azekura far` or `azekura trace record` starts as it does without them. But Rust's runtime
//! changes state before `main`: it ignores `SIGPIPE`, and opens closed standard descriptors as `/dev/null`.
//! [`Command`] changes more: the new program has the default action for `SIGPIPE`, and no blocked signals. So
//! the command calls [`note`] before the runtime starts, and [`pass_on`] for the program.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// State that [`note`] has found, as bits: bit `n` for closed descriptor `n`, and those below.
///
/// std's own atomic: stored before `main`, so no model needs to see it.
static NOTED: AtomicU32 = AtomicU32::new(0);
const IGNORES_PIPE: u32 = 1 << 8;
const IGNORES_CHILD: u32 = 1 << 9;
const IGNORES_FILE_SIZE: u32 = 1 << 10;

/// Signals of which the action changes in this process: the file size signal gets a handler in commands.
const IGNORED: [(u32, libc::c_int); 3] =
    [(IGNORES_PIPE, libc::SIGPIPE), (IGNORES_CHILD, libc::SIGCHLD), (IGNORES_FILE_SIZE, libc::SIGXFSZ)];

/// Notes the inherited state that the runtime and [`Command`] change.
///
/// If `SIGCHLD` is ignored, sets its default action: otherwise the kernel discards the exit status of each
/// child, and waits for children fail. Call from the section `.init_array` of a program; a program that does
/// not call it passes on what the runtime has left.
pub extern "C" fn note() {
    let is_closed = |descriptor: &i32| {
        // SAFETY: the call only reads the descriptor's flags.
        (unsafe { libc::fcntl(*descriptor, libc::F_GETFD) }) == -1
    };
    let closed = (0..3).filter(is_closed).fold(0, |bits, descriptor| bits | 1 << descriptor);
    let pipe = if is_ignored(libc::SIGPIPE) { IGNORES_PIPE } else { 0 };
    let child = if is_ignored(libc::SIGCHLD) { IGNORES_CHILD } else { 0 };
    if child != 0 {
        // SAFETY: the default action, in a process that has no handler and no children yet.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    let size = if is_ignored(libc::SIGXFSZ) { IGNORES_FILE_SIZE } else { 0 };
    NOTED.store(closed | pipe | child | size, Relaxed); // Relaxed: the process has one thread
}

/// Returns `true` if [`note`] has found this standard descriptor (0, 1 or 2) closed. It is `/dev/null` now,
/// so writes to it do not fail.
#[must_use]
pub fn was_closed(descriptor: u32) -> bool {
    NOTED.load(Relaxed) >> descriptor & 1 != 0 // Relaxed: stored before `main`
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a query, which fills `action` if it succeeds.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Makes `command` start its program with the inherited state: the ignored signals, the signals that the
/// calling thread blocks, and the closed ones among the standard descriptors. For a command that redirects
/// none of these descriptors.
pub fn pass_on(command: &mut Command) {
    let noted = NOTED.load(Relaxed); // Relaxed: stored before `main`
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: a query of the calling thread's mask, which fills `blocked`; it has no other error than that of
    // an unknown first argument.
    let blocked = unsafe {
        libc::sigemptyset(blocked.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), blocked.as_mut_ptr());
        blocked.assume_init()
    };
    let restore = move || -> io::Result<()> {
        // SAFETY: all four calls are async-signal-safe, and the process is about to execute the program.
        unsafe {
            for (bit, signal) in IGNORED {
                if noted & bit != 0 {
                    libc::signal(signal, libc::SIG_IGN);
                }
            }
            (0..3).filter(|descriptor| noted & 1 << descriptor != 0).for_each(|descriptor| {
                libc::close(descriptor);
            });
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock, so it may run after a fork.
    unsafe { command.pre_exec(restore) };
}
