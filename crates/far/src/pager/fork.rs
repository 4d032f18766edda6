//! The pager of a child process made by `fork`.
//!
//! | | parent | child |
//! |---|---|---|
//! | 1 | blocks signals (SIGNAL-1); acquires the pager's lock, so no page is in transition | |
//! | 2 | makes the region inheritable; `fork` | |
//! | 3 | waits | copies the replicas, which have the parent's pages of this time |
//! | 4 | | starts its own pager; signals the parent |
//! | 5 | releases the lock; the pages of the two processes are now independent | may access all pages |
//!
//! The program's other threads wait only for these steps, and only if they touch a page that is paged out.

use super::Pager;
use super::core::Core;
use crate::descriptors::{Hidden, with_room};
use crate::error::ForkError;
use crate::signals_blocked::SignalsBlocked;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

/// A pager that is stopped while a child process is made.
pub(crate) struct Frozen<'a> {
    pager: &'a Pager,
    core: MutexGuard<'a, Core>,
    /// Read end of a pipe: the child writes a byte when it has started its pager.
    read_end: Hidden<File>,
    write_end: Hidden<File>,
    /// A signal neither interrupts the wait for the child nor runs a handler under the lock.
    blocked: SignalsBlocked,
}

impl Pager {
    /// Stops the pager. The calling thread forks and then calls one of the methods of [`Frozen`].
    pub(crate) fn freeze(&self) -> std::io::Result<Frozen<'_>> {
        let ends = with_room(|| {
            let mut ends = [0; 2];
            // SAFETY: the array has space for two descriptors.
            match unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } {
                0 => Ok(ends),
                _ => Err(std::io::Error::last_os_error()),
            }
        })?;
        // SAFETY: the call has just made the descriptors, and no other value owns them.
        let [read_end, write_end] =
            ends.map(|end| Hidden::new(File::from(unsafe { OwnedFd::from_raw_fd(end) })));
        let blocked = SignalsBlocked::new();
        let mut core = self.lock();
        core.close_all();
        self.backend.before_fork()?;
        Ok(Frozen { pager: self, core, read_end, write_end, blocked })
    }
}

impl Frozen<'_> {
    /// Continues in the parent after the child has started its pager or has ended.
    pub(crate) fn in_parent(self) {
        let Self { pager, core, read_end, write_end, blocked } = self;
        drop(write_end);
        // If the child ends, its end of the pipe is closed, and the read returns.
        let _ = (&*read_end).read(&mut [0]);
        pager.backend.after_fork();
        drop(core);
        drop(blocked);
    }

    /// Leaves the child process without far memory.
    ///
    /// # Safety
    ///
    /// The contract of `in_child`.
    pub(crate) unsafe fn abandon_in_child(self) {
        self.core.abandon();
        std::mem::forget(self.core);
    }

    /// Starts a pager in the child, where the calling thread is the only one.
    ///
    /// # Safety
    ///
    /// Called in the child. The frozen pager is not used there any more, and no part of it is dropped.
    pub(crate) unsafe fn in_child(self) -> Result<Arc<Pager>, ForkError> {
        let Self { pager, core, read_end, write_end, blocked } = self;
        drop(read_end);
        let backend = pager.backend.for_child().map_err(ForkError::Backend)?;
        // SAFETY: the guard is forgotten and its mutex is never used again, so there is still only one core.
        let core = unsafe {
            let moved = std::ptr::read(&raw const *core);
            std::mem::forget(core);
            moved
        };
        let servers = pager.servers.get().cloned().unwrap_or_default();
        let child = Arc::new(Pager {
            backend: Arc::clone(&backend),
            core: Mutex::new(core),
            ends: Condvar::new(),
            servers: OnceLock::new(),
            threads: Mutex::default(),
            reserved: Mutex::default(), // the sessions of the child have their own reservations
            changed: AtomicBool::new(false),
        });
        let mut core = child.lock();
        let sink = child.sink();
        core.begin_in_child(backend, |replica| replica.for_child(sink.clone()));
        drop(core);
        child.run(servers).map_err(ForkError::Threads)?;
        let _ = (&*write_end).write_all(&[1]);
        drop(blocked); // the new threads inherit the blocked signals
        Ok(child)
    }
}
