//! The slot of a reactor: holds it while its thread blocks, collects work from other threads, and names the
//! committer.
//!
//! | the reactor is | in `left` | may be changed by |
//! |---|---|---|
//! | driven | no | the thread that has it, by [`Place::leave`] |
//! | left | yes | any thread, which then drives it: by [`Place::take_back`] or [`Place::post`] |
//! | closed | no, for ever | – |
//!
//! - **PLACE-1** A reactor is a value: one thread has it, or `left` does. Nobody copies it.
//! - **PLACE-2** The reactor is left only while nothing is posted. A thread that posts to a reactor that is
//!   left receives it, with the posted work: its first step is to collect.
//! - **PLACE-3** A thread that posts work for the driver receives [`Posted::Wake`], unless an earlier wake-up
//!   has not reached the driver yet.
//! - **PLACE-4** An event that comes for something another thread has is *missed*: the driver looks into the
//!   post and, if it is not there, notes its token, under one lock. So either the driver finds it, or its
//!   return finds the note and wakes the driver.
//! - **PLACE-5** One thread at most, the *committer*, waits for commits of the reactor's connections. What is
//!   to be waited for while there is one is queued for it; it stops being the committer only under the lock
//!   under which it sees that nothing is queued. So nothing queued is forgotten, and a batch is as large as
//!   what came during one flush.
//!
//! Nothing else is locked or called under the one mutex. Model: `tests/loom_handover.rs`.

use azekura_base::sync::Mutex;

/// A connection that comes back to a reactor, or is new to it.
#[derive(Debug)]
pub(crate) struct Arrival<C> {
    /// Token of its events; `None` if it has none yet.
    pub(crate) token: Option<usize>,
    /// The connection.
    pub(crate) item: C,
    /// The driver has to look at it: there is work, or an event was missed.
    pub(crate) is_ready: bool,
}

/// Remaining work of the posting thread.
#[derive(Debug)]
#[must_use = "the reactor, or its wake-up, is lost"]
pub(crate) enum Posted<R, C> {
    /// Nothing: the driver will find it when it next looks.
    Quiet,
    /// Wake the driver.
    Wake,
    /// Drive the reactor: its thread blocks.
    Take(R),
    /// Nobody drives it any more; here it is again.
    Closed(Arrival<C>),
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Place<R, C, W> {
    desk: Mutex<Desk<R, C, W>>,
}

#[derive(Debug)]
struct Desk<R, C, W> {
    left: Option<R>,
    posted: Vec<Arrival<C>>,
    /// Tokens with missed events (PLACE-4).
    missed: Vec<usize>,
    /// A wake-up is on its way (PLACE-3).
    is_called: bool,
    is_closed: bool,
    /// There is a committer (PLACE-5).
    is_committing: bool,
    to_commit: Vec<W>,
}

impl<R, C, W> Default for Place<R, C, W> {
    /// Of a reactor that is driven.
    fn default() -> Self {
        Self {
            desk: Mutex::new(Desk {
                left: None,
                posted: Vec::new(),
                missed: Vec::new(),
                is_called: false,
                is_closed: false,
                is_committing: false,
                to_commit: Vec::new(),
            }),
        }
    }
}

impl<R, C, W> Place<R, C, W> {
    /// Leaves the reactor for the next thread that needs it.
    ///
    /// # Errors
    ///
    /// It comes back if it is needed already.
    pub(crate) fn leave(&self, reactor: R) -> Result<(), R> {
        let mut desk = self.desk.lock();
        if !desk.posted.is_empty() || desk.is_called || desk.is_closed {
            return Err(reactor);
        }
        desk.left = Some(reactor);
        Ok(())
    }

    /// Leaves the reactor though something is posted: no thread is there for it but the one that left it.
    pub(crate) fn put(&self, reactor: R) {
        let mut desk = self.desk.lock();
        if !desk.is_closed {
            desk.left = Some(reactor);
        }
    }

    /// Takes the reactor that was left, unless another thread has.
    pub(crate) fn take_back(&self) -> Option<R> {
        self.desk.lock().left.take()
    }

    /// Hands a connection to the driver of the reactor.
    pub(crate) fn post(&self, mut arrival: Arrival<C>) -> Posted<R, C> {
        let mut desk = self.desk.lock();
        if desk.is_closed {
            return Posted::Closed(arrival);
        }
        if let Some(at) = arrival.token.and_then(|token| desk.missed.iter().position(|&m| m == token)) {
            desk.missed.swap_remove(at);
            arrival.is_ready = true;
        }
        let is_ready = arrival.is_ready;
        desk.posted.push(arrival);
        if let Some(reactor) = desk.left.take() {
            return Posted::Take(reactor); // PLACE-2
        }
        if is_ready && !std::mem::replace(&mut desk.is_called, true) { Posted::Wake } else { Posted::Quiet }
    }

    /// Appends what was posted to `found`, for the driver, and notes those of `missed` that are not among it
    /// (PLACE-4).
    pub(crate) fn collect(&self, missed: &[usize], found: &mut Vec<Arrival<C>>) {
        let mut desk = self.desk.lock();
        desk.is_called = false;
        let is_found = |token: &usize| desk.posted.iter().any(|arrival| arrival.token == Some(*token));
        let absent: Vec<usize> = missed.iter().copied().filter(|token| !is_found(token)).collect();
        found.append(&mut desk.posted);
        desk.missed.extend(absent);
    }

    /// Takes a note of a missed event back: the driver itself had what the event was for.
    pub(crate) fn forget_missed(&self, token: usize) {
        self.desk.lock().missed.retain(|&missed| missed != token);
    }

    /// Queues `batch` for the committer and empties it; `false`: there is none, now the caller is it.
    pub(crate) fn queue_commits(&self, batch: &mut Vec<W>) -> bool {
        let mut desk = self.desk.lock();
        if desk.is_committing {
            desk.to_commit.append(batch);
            return true;
        }
        desk.is_committing = true;
        false
    }

    /// Swaps what is queued into `batch`, which is empty, for the committer; if that is nothing, the caller
    /// is the committer no more.
    pub(crate) fn next_commits(&self, batch: &mut Vec<W>) {
        let mut desk = self.desk.lock();
        std::mem::swap(&mut desk.to_commit, batch);
        desk.is_committing = !batch.is_empty();
    }

    /// Nobody will drive the reactor again. Returns what lay here.
    pub(crate) fn close(&self) -> (Option<R>, Vec<Arrival<C>>) {
        let mut desk = self.desk.lock();
        desk.is_closed = true;
        (desk.left.take(), std::mem::take(&mut desk.posted))
    }
}
