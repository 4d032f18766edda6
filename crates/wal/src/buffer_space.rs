//! Free space in a log buffer: an appender that finds none sleeps until a flush takes the buffer.
//!
//! | wanted | state | left by |
//! |---|---|---|
//! | no | no append was refused since the last flush took the buffer | a refused append |
//! | yes | an appender sleeps, or is about to | the next flush: it changes the word and wakes |
//!
//! - **SPACE-1** The buffer's latch protects the flag, and the word changes under the latch. A refused
//!   appender reads the word under the same latch, so the next flush changes the word on which the appender
//!   sleeps. No wake-up is lost.

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::Ordering::{Relaxed, Release};
use azekura_trace::{Site, WaitKind};

/// A flag that is set if an append was refused since the buffer was last taken. Protected by the buffer's
/// latch.
#[derive(Debug, Default)]
pub(crate) struct AppendRefused(bool);

/// The word on which refused appenders sleep.
#[derive(Debug)]
pub(crate) struct BufferSpace {
    taken: WaitWord,
    site: &'static Site,
}

/// Sleepers to wake once the latch is released.
#[derive(Debug)]
#[must_use = "the sleepers are not woken"]
pub(crate) struct Sleepers<'s>(Option<&'s BufferSpace>);

impl BufferSpace {
    /// Returns a space without waiting threads; waits are traced at `site`.
    pub(crate) fn new(site: &'static Site) -> Self {
        Self { taken: WaitWord::new(0), site }
    }

    /// Refuses an append. Called under the latch. Returns the argument for [`wait`](Self::wait).
    pub(crate) fn refuse(&self, wanted: &mut AppendRefused) -> u32 {
        wanted.0 = true;
        // Relaxed: the word changes under the latch.
        self.taken.word().load(Relaxed)
    }

    /// Releases the sleepers of a buffer that is taken. Called under the latch.
    pub(crate) fn release(&self, wanted: &mut AppendRefused) -> Sleepers<'_> {
        if std::mem::take(&mut wanted.0) { self.release_all() } else { Sleepers(None) }
    }

    /// Releases all sleepers to check again, regardless of the flag. Called under the latch.
    pub(crate) fn release_all(&self) -> Sleepers<'_> {
        // Release: the caller's writes under the latch are visible to a thread that reads the new value.
        self.taken.word().fetch_add(1, Release);
        Sleepers(Some(self))
    }

    /// Sleeps until a flush takes the buffer; `taken` came from [`refuse`](Self::refuse). May return early.
    pub(crate) fn wait(&self, taken: u32) {
        let _wait = azekura_trace::wait(self.site, std::ptr::from_ref(self).addr(), WaitKind::Log);
        azekura_base::blocking::announce();
        self.taken.wait(taken, None);
    }
}

impl Sleepers<'_> {
    /// Wakes the sleepers. The caller has released the latch, which the sleepers need.
    pub(crate) fn wake(self) {
        if let Some(space) = self.0 {
            space.taken.wake_all();
        }
    }
}
