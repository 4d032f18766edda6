//! A small mutex whose contended waits are traced: invariant 8 of the architecture.

use azekura_base::sync::{Mutex, MutexGuard};
use azekura_trace::{Site, WaitKind};

/// A value under a latch. Held for some hundred instructions, never across a sleep.
#[derive(Debug)]
pub(crate) struct Latched<T>(Mutex<T>);

impl<T> Latched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Takes the latch; `site` names the wait if somebody else has it.
    #[inline]
    pub(crate) fn latch(&self, site: &'static Site) -> MutexGuard<'_, T> {
        // No first try in a model: it would double the schedules and show nothing.
        if cfg!(not(loom))
            && let Some(guard) = self.0.try_lock()
        {
            return guard;
        }
        self.latch_contended(site)
    }

    #[cold]
    fn latch_contended(&self, site: &'static Site) -> MutexGuard<'_, T> {
        let _waiting = azekura_trace::wait(site, (&raw const *self).addr(), WaitKind::Latch);
        self.0.lock()
    }
}
