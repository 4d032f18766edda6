//! Reconnection: a client continues its session over a new connection.
//!
//! A session has one thread from begin to end. When its stream breaks, the thread waits at the session's
//! resume point. A client that reconnects and proves that it has the session's name leaves the new stream
//! there.
//!
//! | state | thread of the session | transitions |
//! |---|---|---|
//! | served | serves a stream | stream broken → waiting; new stream → waiting, after the old one is closed |
//! | waiting | waits at its resume point | new stream → served; timeout, or memory is needed → ended |
//! | ended | ends, and frees its memory | – |
//!
//! - **RESUME-1** Only the session's own thread serves the session, one stream at a time. The threads of new
//!   connections only leave a stream.
//! - **RESUME-2** A stream is left for a session only if its client has proved the session's name in the
//!   handshake of that stream (F6).
//! - **RESUME-3** If another session needs memory, the session that has waited longest ends. So a client that
//!   has disappeared does not prevent other clients from storing pages.
//! - **RESUME-4** A stream that was left for a session is served or closed, so its client learns that the
//!   session has ended.
//!
//! Lock order: the table before a resume point. `tests/loom_resume.rs` runs a session, reconnecting clients
//! and a client that needs memory in every interleaving.

use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::sync::time::Instant;
use azekura_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest wait for a session to end after it was requested to end.
const GOES_WITHIN: Duration = Duration::from_secs(5);

/// A new stream for a session.
pub(crate) trait Visitor {
    /// Returns the number of the stream's connection.
    fn number(&self) -> u64;
}

/// Resume points of all sessions, by the name of the session.
#[derive(Debug)]
pub(crate) struct ResumeTable<V> {
    all: Mutex<Names<V>>,
    left: Condvar,
    closed: AtomicBool,
}

type Names<V> = BTreeMap<u128, Arc<ResumePoint<V>>>;

#[derive(Debug)]
struct ResumePoint<V> {
    inner: Mutex<Inner<V>>,
    moved: Condvar,
}

#[derive(Debug)]
struct Inner<V> {
    /// The connection that is served, or was served last.
    connection: u64,
    waiting: Option<Instant>,
    newcomer: Option<V>,
    gone: bool,
}

/// A session's handle of its resume point. Dropping it removes the resume point.
#[derive(Debug)]
pub(crate) struct OwnResumePoint<'a, V> {
    resume_table: &'a ResumeTable<V>,
    name: u128,
    resume_point: Arc<ResumePoint<V>>,
}

/// Waits while the condition holds, for at most `within`.
fn wait_while<T>(
    condition: &Condvar,
    guard: &mut MutexGuard<'_, T>,
    within: Duration,
    holds: impl Fn(&T) -> bool,
) {
    let began = Instant::now();
    while holds(guard) {
        let left = within.saturating_sub(began.elapsed());
        if left.is_zero() || condition.wait_for(guard, left).timed_out() {
            return;
        }
    }
}

impl<V> Default for ResumeTable<V> {
    fn default() -> Self {
        Self { all: Mutex::new(BTreeMap::new()), left: Condvar::new(), closed: AtomicBool::new(false) }
    }
}

impl<V: Visitor> ResumeTable<V> {
    /// Adds a resume point for a session that is served over connection `connection`.
    pub(crate) fn open(&self, name: u128, connection: u64) -> OwnResumePoint<'_, V> {
        let inner = Inner { connection, waiting: None, newcomer: None, gone: false };
        let resume_point = Arc::new(ResumePoint { inner: Mutex::new(inner), moved: Condvar::new() });
        self.all.lock().insert(name, Arc::clone(&resume_point));
        OwnResumePoint { resume_table: self, name, resume_point }
    }

    /// Returns the number of sessions that are served or waiting.
    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// Returns the number of waiting sessions.
    pub(crate) fn waiting(&self) -> usize {
        self.all.lock().values().filter(|resume_point| resume_point.inner.lock().waiting.is_some()).count()
    }

    /// Leaves a new stream at the resume point with a name that `proves` accepts. If the session is still
    /// served, returns its connection, which the caller closes. Returns the stream as the error if there is
    /// no such session.
    pub(crate) fn leave(&self, proves: impl Fn(u128) -> bool, newcomer: V) -> Result<Option<u64>, V> {
        let all = self.all.lock();
        let Some((_, resume_point)) = all.iter().find(|(name, _)| proves(**name)) else {
            return Err(newcomer);
        };
        let mut inner = resume_point.inner.lock();
        if inner.gone {
            return Err(newcomer);
        }
        inner.newcomer = Some(newcomer); // replaces an earlier stream
        resume_point.moved.notify_all();
        Ok(inner.waiting.is_none().then_some(inner.connection))
    }

    /// Ends the session that has waited longest, and waits until its memory is free. Returns `false` if no
    /// session waits.
    pub(crate) fn make_way(&self) -> bool {
        let mut all = self.all.lock();
        let longest = all.iter().filter_map(|(name, resume_point)| {
            let inner = resume_point.inner.lock();
            inner.waiting.filter(|_| inner.newcomer.is_none()).map(|since| (since, *name))
        });
        let Some((_, name)) = longest.min() else { return false };
        all[&name].tell_to_go(false);
        let goes = |all: &Names<V>| {
            // The client of the session may have reconnected in the meantime. Then the caller tries another
            // session.
            all.get(&name).is_some_and(|resume_point| resume_point.inner.lock().gone)
        };
        wait_while(&self.left, &mut all, GOES_WITHIN, goes);
        true
    }

    /// Ends all current and future waits.
    pub(crate) fn close(&self) {
        // Relaxed: a thread that is about to wait reads the flag under the lock of its resume point. This
        // call acquires that lock after the store.
        self.closed.store(true, Relaxed);
        self.all.lock().values().for_each(|resume_point| resume_point.tell_to_go(true));
    }
}

impl<V> ResumePoint<V> {
    /// Ends the session if it waits without a new stream, or unconditionally if `always` is set.
    fn tell_to_go(&self, always: bool) {
        let mut inner = self.inner.lock();
        if always || inner.waiting.is_some() && inner.newcomer.is_none() {
            inner.gone = true;
            self.moved.notify_all();
        }
    }
}

impl<V: Visitor> OwnResumePoint<'_, V> {
    /// Waits for the next stream, for at most `linger`. After `None` no stream will arrive.
    pub(crate) fn wait(&self, linger: Duration) -> Option<V> {
        // Relaxed: see `close`.
        let closed = || self.resume_table.closed.load(Relaxed);
        let mut inner = self.resume_point.inner.lock();
        inner.waiting = Some(Instant::now());
        let nobody = |inner: &Inner<V>| inner.newcomer.is_none() && !inner.gone && !closed();
        wait_while(&self.resume_point.moved, &mut inner, linger, nobody);
        inner.waiting = None;
        let newcomer = inner.newcomer.take().filter(|_| !inner.gone);
        match &newcomer {
            Some(newcomer) => inner.connection = newcomer.number(),
            None => inner.gone = true,
        }
        newcomer
    }
}

impl<V> Drop for OwnResumePoint<'_, V> {
    fn drop(&mut self) {
        self.resume_table.all.lock().remove(&self.name);
        self.resume_table.left.notify_all();
        // A stream that was left in the meantime is closed (RESUME-4). The resume point is no longer in the
        // table.
        let newcomer = self.resume_point.inner.lock().newcomer.take();
        drop(newcomer);
    }
}
