//! Free space in a log buffer: an appender that finds none sleeps until a flush takes the buffer.
//!
//! | wanted | state | left by |
//! |---|---|---|
//! | no | no append was refused since the last flush took the buffer | a refused append |
//! | yes | an appender sleeps, or is about to | the next flush: it changes the word and wakes |
//!
//! - **SPACE-1** The flag lies under the buffer's latch, and the word changes under it. A refused appender
//!   gets the word's value under the same latch, so the next flush changes the word that the appender sleeps
//!   on, and no wake-up is lost.

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::Ordering::{Relaxed, Release};
use azekura_trace::{Site, WaitKind};

/// Set if an append was refused since the buffer was last taken. Part of what the buffer's latch protects.
#[derive(Debug, Default)]
pub(crate) struct Wanted(bool);

/// The word that refused appenders sleep on.
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
    /// Space that no thread waits for; waits are traced at `site`.
    pub(crate) fn new(site: &'static Site) -> Self {
        Self { taken: WaitWord::new(0), site }
    }

    /// Under the latch: refuses an append. Returns the argument for [`wait`](Self::wait).
    pub(crate) fn refuse(&self, wanted: &mut Wanted) -> u32 {
        wanted.0 = true;
        // Relaxed: changes under the latch.
        self.taken.word().load(Relaxed)
    }

    /// Under the latch: the buffer is taken.
    pub(crate) fn release(&self, wanted: &mut Wanted) -> Sleepers<'_> {
        if std::mem::take(&mut wanted.0) { self.release_all() } else { Sleepers(None) }
    }

    /// Under the latch: all sleepers must check again, wanted or not.
    pub(crate) fn release_all(&self) -> Sleepers<'_> {
        // Release: what the caller did under the latch is visible to a thread that reads the new value.
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
    /// Wakes the sleepers. Call it without the latch, which they need.
    pub(crate) fn wake(self) {
        if let Some(space) = self.0 {
            space.taken.wake_all();
        }
    }
}
