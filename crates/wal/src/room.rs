//! Room in a buffer: who finds none sleeps until a flush takes what is in it.
//!
//! | wanted | state | who may leave it |
//! |---|---|---|
//! | no | nobody was refused since the buffer was taken last | who is refused |
//! | yes | somebody sleeps, or is about to | who takes the buffer: changes the word, and wakes once the latch is let go |
//!
//! - **ROOM-1** The flag lies under the buffer's latch, and the word changes under it. Whoever is refused
//!   gets the word's value under the same latch, so the next taking changes the word that he sleeps on, and
//!   he does not sleep over it.

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::Ordering::{Relaxed, Release};
use azekura_trace::{Site, WaitKind};

/// Whether somebody was refused since the buffer was last taken. Part of what the buffer's latch protects.
#[derive(Debug, Default)]
pub(crate) struct Wanted(bool);

/// The word that those who were refused sleep on.
#[derive(Debug)]
pub(crate) struct Room {
    taken: WaitWord,
    site: &'static Site,
}

/// There is room again: to be told when the latch is let go.
#[derive(Debug)]
#[must_use = "those who wait are not woken"]
pub(crate) struct Made<'r>(Option<&'r Room>);

impl Room {
    /// Room that nobody waits for; waits are traced at `site`.
    pub(crate) fn new(site: &'static Site) -> Self {
        Self { taken: WaitWord::new(0), site }
    }

    /// Under the latch: somebody finds no room. Returns what he gives to [`wait`](Self::wait).
    pub(crate) fn refuse(&self, wanted: &mut Wanted) -> u32 {
        wanted.0 = true;
        // Relaxed: changes under the latch.
        self.taken.word().load(Relaxed)
    }

    /// Under the latch: the buffer is taken.
    pub(crate) fn make(&self, wanted: &mut Wanted) -> Made<'_> {
        if std::mem::take(&mut wanted.0) { self.make_for_all() } else { Made(None) }
    }

    /// Under the latch: whoever waits is to look again, wanted or not.
    pub(crate) fn make_for_all(&self) -> Made<'_> {
        self.taken.word().fetch_add(1, Release);
        Made(Some(self))
    }

    /// Sleeps until there is room; `ticket` came from [`refuse`](Self::refuse). May return early.
    pub(crate) fn wait(&self, ticket: u32) {
        let _wait = azekura_trace::wait(self.site, std::ptr::from_ref(self).addr(), WaitKind::Log);
        azekura_base::blocking::announce();
        self.taken.wait(ticket, None);
    }
}

impl Made<'_> {
    /// Wakes who waits. Best without the latch, which they need.
    pub(crate) fn tell(self) {
        if let Some(room) = self.0 {
            room.taken.wake_all();
        }
    }
}
