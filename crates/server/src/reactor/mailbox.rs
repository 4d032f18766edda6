//! The mailbox of a reactor: it holds the reactor while its thread blocks, collects connections that other
//! threads return, and records the committer. All state is under one mutex.
//!
//! | the reactor is | in `parked` | may be changed by |
//! |---|---|---|
//! | driven | no | the thread that owns it, by [`Mailbox::park`] |
//! | parked | yes | any thread, which then drives it: by [`Mailbox::reclaim`] or [`Mailbox::post`] |
//! | closed | no, permanently | – |
//!
//! - **MAILBOX-1** A reactor is a value: one thread owns it, or `parked` does. It is never copied.
//! - **MAILBOX-2** The reactor is parked only while no connection is posted. A thread that posts to a parked
//!   reactor receives the reactor, and first collects the posted connection.
//! - **MAILBOX-3** A thread that posts work for the driver receives [`Posted::Wake`], unless an earlier
//!   wake-up has not reached the driver yet.
//! - **MAILBOX-4** An event for a connection that another thread has is *missed*. Under one lock the driver
//!   searches the posted connections and, if the connection is not among them, records its token. So either
//!   the driver finds the connection, or the returning thread finds the record and wakes the driver.
//! - **MAILBOX-5** At most one thread, the *committer*, waits for commits of the reactor's connections.
//!   While there is a committer, further commits are queued for it. It resigns only under the lock under
//!   which it finds the queue empty. So no queued commit is forgotten, and a batch contains everything that
//!   arrived during one flush.
//!
//! No other lock is taken and no other code is called under the mutex. Model: `tests/loom_handover.rs`.

use azekura_base::sync::Mutex;

/// A connection that returns to a reactor, or is new to it.
#[derive(Debug)]
pub(crate) struct Arrival<C> {
    /// Poll token; `None` if the connection is not registered yet.
    pub(crate) token: Option<usize>,
    /// The connection.
    pub(crate) item: C,
    /// The driver must serve it: it has work, or missed an event.
    pub(crate) is_ready: bool,
}

/// Action that the posting thread must take.
#[derive(Debug)]
#[must_use = "the reactor, or its wake-up, is lost"]
pub(crate) enum Posted<R, C> {
    /// No action: the driver will collect the connection later.
    Quiet,
    /// Wake the driver.
    Wake,
    /// Drive this reactor: its thread blocks.
    Take(R),
    /// The reactor is closed; the connection is returned.
    Closed(Arrival<C>),
}

/// Mailbox of one reactor of type `R`, for connections of type `C` and commit waits of type `W`.
#[derive(Debug)]
pub(crate) struct Mailbox<R, C, W> {
    state: Mutex<State<R, C, W>>,
}

#[derive(Debug)]
struct State<R, C, W> {
    parked: Option<R>,
    posted: Vec<Arrival<C>>,
    /// Tokens with missed events (MAILBOX-4).
    missed: Vec<usize>,
    /// A wake-up is in flight (MAILBOX-3).
    is_called: bool,
    is_closed: bool,
    /// There is a committer (MAILBOX-5).
    is_committing: bool,
    to_commit: Vec<W>,
}

impl<R, C, W> Default for Mailbox<R, C, W> {
    /// Creates the mailbox of a driven reactor.
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                parked: None,
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

impl<R, C, W> Mailbox<R, C, W> {
    /// Parks the reactor for the next thread that needs it.
    ///
    /// # Errors
    ///
    /// Returns the reactor if it has posted work or is closed.
    pub(crate) fn park(&self, reactor: R) -> Result<(), R> {
        let mut state = self.state.lock();
        if !state.posted.is_empty() || state.is_called || state.is_closed {
            return Err(reactor);
        }
        state.parked = Some(reactor);
        Ok(())
    }

    /// Parks the reactor although connections are posted: only the parking thread is available to drive it.
    pub(crate) fn park_always(&self, reactor: R) {
        let mut state = self.state.lock();
        if !state.is_closed {
            state.parked = Some(reactor);
        }
    }

    /// Reclaims the parked reactor, unless another thread has taken it.
    pub(crate) fn reclaim(&self) -> Option<R> {
        self.state.lock().parked.take()
    }

    /// Posts a connection to the driver of the reactor.
    pub(crate) fn post(&self, mut arrival: Arrival<C>) -> Posted<R, C> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Posted::Closed(arrival);
        }
        if let Some(at) = arrival.token.and_then(|token| state.missed.iter().position(|&m| m == token)) {
            state.missed.swap_remove(at);
            arrival.is_ready = true;
        }
        let is_ready = arrival.is_ready;
        state.posted.push(arrival);
        if let Some(reactor) = state.parked.take() {
            return Posted::Take(reactor); // MAILBOX-2
        }
        if is_ready && !std::mem::replace(&mut state.is_called, true) { Posted::Wake } else { Posted::Quiet }
    }

    /// Moves the posted connections to `found`, for the driver, and records the tokens of `missed` that are
    /// not among them (MAILBOX-4).
    pub(crate) fn collect(&self, missed: &[usize], found: &mut Vec<Arrival<C>>) {
        let mut state = self.state.lock();
        state.is_called = false;
        let is_found = |token: &usize| state.posted.iter().any(|arrival| arrival.token == Some(*token));
        let absent: Vec<usize> = missed.iter().copied().filter(|token| !is_found(token)).collect();
        found.append(&mut state.posted);
        state.missed.extend(absent);
    }

    /// Removes the record of a missed event: the driver itself had the connection.
    pub(crate) fn forget_missed(&self, token: usize) {
        self.state.lock().missed.retain(|&missed| missed != token);
    }

    /// Appends `batch` to the committer's queue and empties `batch`. Returns `false` if there is no
    /// committer; the caller then becomes the committer.
    pub(crate) fn queue_commits(&self, batch: &mut Vec<W>) -> bool {
        let mut state = self.state.lock();
        if state.is_committing {
            state.to_commit.append(batch);
            return true;
        }
        state.is_committing = true;
        false
    }

    /// Moves the queued commits to the empty `batch`, for the committer. If none is queued, the caller stops
    /// being the committer.
    pub(crate) fn next_commits(&self, batch: &mut Vec<W>) {
        let mut state = self.state.lock();
        std::mem::swap(&mut state.to_commit, batch);
        state.is_committing = !batch.is_empty();
    }

    /// Closes the mailbox permanently. Returns the parked reactor and the posted connections.
    pub(crate) fn close(&self) -> (Option<R>, Vec<Arrival<C>>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        (state.parked.take(), std::mem::take(&mut state.posted))
    }
}
