//! Where a session is found again whose connection broke.
//!
//! A session has one thread from its beginning to its end. When its stream breaks, the thread waits at its door; a client that comes with another stream
//! and shows that it knows the session's name leaves the stream there.
//!
//! | state | the session's thread | leaves it by |
//! |---|---|---|
//! | served | serves a stream | the stream breaks → waiting; a newcomer → waiting, as the old stream is ended for it |
//! | waiting | waits at its door | a newcomer → served; the time is over, or others want its room → gone |
//! | gone | ends, and gives the room back | – |
//!
//! - **DOOR-1** Only its own thread serves a session, one stream at a time; newcomers only leave theirs.
//! - **DOOR-2** A stream is left by those alone who showed the session's name in that stream's own handshake (F6).
//! - **DOOR-3** Who waits gives way to who needs the room, the longest first: a client that has ended without a word must not cost others theirs.

use super::Seat;
use crate::wire::auth::Meeting;
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A session that was told to go is gone by then.
const GOES_WITHIN: Duration = Duration::from_secs(5);

/// Doors of all sessions, by name.
#[derive(Debug, Default)]
pub(super) struct Doors {
    all: Mutex<HashMap<u128, Arc<Door>>>,
    left: Condvar,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Door {
    inner: Mutex<Inner>,
    moved: Condvar,
}

#[derive(Debug)]
struct Inner {
    /// The connection that is served, or was.
    connection: u64,
    waiting: Option<Instant>,
    newcomer: Option<Newcomer>,
    gone: bool,
}

/// Another stream for a session.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub(super) stream: TcpStream,
    pub(super) seat: Seat,
    /// Of the request that brought it.
    pub(super) tag: u64,
}

/// A session's own door; closed for good when dropped.
#[derive(Debug)]
pub(super) struct OwnDoor<'a> {
    doors: &'a Doors,
    name: u128,
    door: Arc<Door>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Doors {
    /// A door for the session of this name, which is served over this connection.
    pub(super) fn open(&self, name: u128, connection: u64) -> OwnDoor<'_> {
        let inner = Inner { connection, waiting: None, newcomer: None, gone: false };
        let door = Arc::new(Door { inner: Mutex::new(inner), moved: Condvar::new() });
        lock(&self.all).insert(name, Arc::clone(&door));
        OwnDoor { doors: self, name, door }
    }

    /// Sessions that are served or wait.
    pub(super) fn count(&self) -> usize {
        lock(&self.all).len()
    }

    /// Sessions that wait.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.all).values().filter(|door| lock(&door.inner).waiting.is_some()).count()
    }

    /// Leaves a newcomer at the door whose name it shows. Returns the connection that is to be ended for it, if the session does not wait;
    /// gives the newcomer back if there is no such session.
    pub(super) fn leave(
        &self,
        meeting: &Meeting,
        proof: &[u8],
        newcomer: Newcomer,
    ) -> Result<Option<u64>, Newcomer> {
        let all = lock(&self.all);
        let Some((_, door)) = all.iter().find(|(name, _)| meeting.proves(**name, proof)) else {
            return Err(newcomer);
        };
        let mut inner = lock(&door.inner);
        if inner.gone {
            return Err(newcomer);
        }
        inner.newcomer = Some(newcomer); // one that came before is of no more use
        door.moved.notify_all();
        Ok(inner.waiting.is_none().then_some(inner.connection))
    }

    /// Has the session go that has waited longest, and waits for its room. False if none waits.
    pub(super) fn make_way(&self) -> bool {
        let mut all = lock(&self.all);
        let longest = all.iter().filter_map(|(name, door)| {
            let inner = lock(&door.inner);
            inner.waiting.filter(|_| inner.newcomer.is_none()).map(|since| (since, *name))
        });
        let Some((_, name)) = longest.min() else { return false };
        all[&name].tell_to_go(false);
        let goes = |all: &mut HashMap<u128, Arc<Door>>| {
            // It may have been found again in the meantime: then another is looked for.
            all.get(&name).is_some_and(|door| lock(&door.inner).gone)
        };
        (all, _) =
            self.left.wait_timeout_while(all, GOES_WITHIN, goes).unwrap_or_else(PoisonError::into_inner);
        drop(all);
        true
    }

    /// Nobody waits any more, now or later.
    pub(super) fn close(&self) {
        // Relaxed: whoever is about to wait looks at it under its door's lock, which we take after this.
        self.closed.store(true, Relaxed);
        lock(&self.all).values().for_each(|door| door.tell_to_go(true));
    }
}

impl Door {
    /// If it waits for nobody who is there already, or in any case.
    fn tell_to_go(&self, always: bool) {
        let mut inner = lock(&self.inner);
        if always || inner.waiting.is_some() && inner.newcomer.is_none() {
            inner.gone = true;
            self.moved.notify_all();
        }
    }
}

impl OwnDoor<'_> {
    /// The next stream, if one comes within so long; after `None` none will.
    pub(super) fn wait(&self, linger: Duration) -> Option<Newcomer> {
        let closed = || self.doors.closed.load(Relaxed);
        let mut inner = lock(&self.door.inner);
        inner.waiting = Some(Instant::now());
        let nobody = |inner: &mut Inner| inner.newcomer.is_none() && !inner.gone && !closed();
        (inner, _) =
            self.door.moved.wait_timeout_while(inner, linger, nobody).unwrap_or_else(PoisonError::into_inner);
        inner.waiting = None;
        let newcomer = inner.newcomer.take().filter(|_| !inner.gone);
        match &newcomer {
            Some(newcomer) => inner.connection = newcomer.seat.number(),
            None => inner.gone = true,
        }
        newcomer
    }
}

impl Drop for OwnDoor<'_> {
    fn drop(&mut self) {
        lock(&self.doors.all).remove(&self.name);
        self.doors.left.notify_all();
        // Who left a stream meanwhile sees it end.
        let newcomer = lock(&self.door.inner).newcomer.take();
        drop(newcomer);
    }
}
