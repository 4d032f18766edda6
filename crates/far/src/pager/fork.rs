//! The pager of a child process made by `fork`.
//!
//! | | parent | child |
//! |---|---|---|
//! | 1 | takes the pager's lock, so no page is in transition; makes the region inheritable | |
//! | 2 | `fork` | |
//! | 3 | waits | takes copies of the replicas, which have the parent's pages as they are now |
//! | 4 | | starts a pager of its own; signals the parent |
//! | 5 | releases the lock; from now on each has its own pages | touches any page |
//!
//! The program's other threads wait at most for these few steps, and only if they touch a page that is away.

use super::Pager;
use super::core::Core;
use crate::error::ForkError;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

/// The pager stands still while a child process is made.
pub(crate) struct Frozen<'a> {
    pager: &'a Pager,
    core: MutexGuard<'a, Core>,
    /// The child writes a byte here once it has begun.
    heard: File,
    told: File,
}

impl Pager {
    /// Stands still. The thread that called it forks, and then calls one of the two.
    pub(crate) fn freeze(&self) -> std::io::Result<Frozen<'_>> {
        let mut ends = [0; 2];
        // SAFETY: there is room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: just made, and no other value owns them.
        let [heard, told] = ends.map(|end| File::from(unsafe { OwnedFd::from_raw_fd(end) }));
        let mut core = self.lock();
        core.close_all();
        self.backend.before_fork()?;
        Ok(Frozen { pager: self, core, heard, told })
    }
}

impl Frozen<'_> {
    /// Goes on in the parent, once the child has begun or there is none.
    pub(crate) fn in_parent(self) {
        let Self { pager, core, mut heard, told } = self;
        drop(told);
        // The end of a child closes its end, too.
        let _ = heard.read(&mut [0]);
        pager.backend.after_fork();
        drop(core);
    }

    /// The child is to have nothing of it.
    ///
    /// # Safety
    ///
    /// As `in_child`.
    pub(crate) unsafe fn abandon_in_child(self) {
        self.core.abandon();
        std::mem::forget(self.core);
    }

    /// Begins in the child, where this thread is the only one.
    ///
    /// # Safety
    ///
    /// Called in the child. The pager that was frozen is not used there any more, and neither it nor anything
    /// of it is dropped.
    pub(crate) unsafe fn in_child(self) -> Result<Arc<Pager>, ForkError> {
        let Self { pager, core, heard, mut told } = self;
        drop(heard);
        let backend = pager.backend.for_child().map_err(ForkError::Backend)?;
        // SAFETY: the guard is forgotten and its mutex never used again, so there is one core as before.
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
            reserved: Mutex::default(), // a child's sessions have promises of their own
        });
        let mut core = child.lock();
        let sink = child.sink();
        core.begin_in_child(backend, |replica| replica.for_child(sink.clone()));
        drop(core);
        child.run(servers).map_err(ForkError::Threads)?;
        let _ = told.write_all(&[1]);
        Ok(child)
    }
}
