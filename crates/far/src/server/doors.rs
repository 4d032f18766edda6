//! Where a session is found again whose connection broke.
//!
//! A session has one thread from its beginning to its end. When its stream breaks, the thread waits at its
//! door; a client that comes with another stream and shows that it knows the session's name leaves the stream
//! there.
//!
//! | state | the session's thread | leaves it by |
//! |---|---|---|
//! | served | serves a stream | the stream breaks → waiting; a newcomer → waiting, as the old stream is ended for it |
//! | waiting | waits at its door | a newcomer → served; the time is over, or others want its room → gone |
//! | gone | ends, and gives the room back | – |
//!
//! - **DOOR-1** Only its own thread serves a session, one stream at a time; newcomers only leave theirs.
//! - **DOOR-2** A stream is left by those alone who showed the session's name in that stream's own handshake
//!   (F6).
//! - **DOOR-3** Who waits gives way to who needs the room, the longest first: a client that has ended without
//!   a word must not cost others theirs.
//! - **DOOR-4** A stream that was taken at a door is served, or closed: by then its client knows that there
//!   is no session to go on with.
//!
//! Locks: that of all doors before that of one. `tests/loom_doors.rs` runs a session, newcomers and who needs
//! room in every interleaving.

use azekura_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use azekura_base::sync::time::Instant;
use azekura_base::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::time::Duration;

/// A session that was told to go is gone by then.
const GOES_WITHIN: Duration = Duration::from_secs(5);

/// Another stream for a session, with what came with it.
pub(crate) trait Visitor {
    /// Of its connection.
    fn number(&self) -> u64;
}

/// Doors of all sessions, by name.
#[derive(Debug)]
pub(crate) struct Doors<V> {
    all: Mutex<Names<V>>,
    left: Condvar,
    closed: AtomicBool,
}

type Names<V> = BTreeMap<u128, Arc<Door<V>>>;

#[derive(Debug)]
struct Door<V> {
    inner: Mutex<Inner<V>>,
    moved: Condvar,
}

#[derive(Debug)]
struct Inner<V> {
    /// The connection that is served, or was.
    connection: u64,
    waiting: Option<Instant>,
    newcomer: Option<V>,
    gone: bool,
}

/// A session's own door; closed for good when dropped.
#[derive(Debug)]
pub(crate) struct OwnDoor<'a, V> {
    doors: &'a Doors<V>,
    name: u128,
    door: Arc<Door<V>>,
}

/// Waits while this holds, and no longer than so.
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

impl<V> Default for Doors<V> {
    fn default() -> Self {
        Self { all: Mutex::new(BTreeMap::new()), left: Condvar::new(), closed: AtomicBool::new(false) }
    }
}

impl<V: Visitor> Doors<V> {
    /// A door for the session of this name, which is served over this connection.
    pub(crate) fn open(&self, name: u128, connection: u64) -> OwnDoor<'_, V> {
        let inner = Inner { connection, waiting: None, newcomer: None, gone: false };
        let door = Arc::new(Door { inner: Mutex::new(inner), moved: Condvar::new() });
        self.all.lock().insert(name, Arc::clone(&door));
        OwnDoor { doors: self, name, door }
    }

    /// Sessions that are served or wait.
    pub(crate) fn count(&self) -> usize {
        self.all.lock().len()
    }

    /// Sessions that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.all.lock().values().filter(|door| door.inner.lock().waiting.is_some()).count()
    }

    /// Leaves a newcomer at the door whose name it shows (`proves`). Returns the connection that is to be
    /// ended for it, if the session does not wait; gives the newcomer back if there is no such session.
    pub(crate) fn leave(&self, proves: impl Fn(u128) -> bool, newcomer: V) -> Result<Option<u64>, V> {
        let all = self.all.lock();
        let Some((_, door)) = all.iter().find(|(name, _)| proves(**name)) else {
            return Err(newcomer);
        };
        let mut inner = door.inner.lock();
        if inner.gone {
            return Err(newcomer);
        }
        inner.newcomer = Some(newcomer); // one that came before is of no more use
        door.moved.notify_all();
        Ok(inner.waiting.is_none().then_some(inner.connection))
    }

    /// Has the session go that has waited longest, and waits for its room. False if none waits.
    pub(crate) fn make_way(&self) -> bool {
        let mut all = self.all.lock();
        let longest = all.iter().filter_map(|(name, door)| {
            let inner = door.inner.lock();
            inner.waiting.filter(|_| inner.newcomer.is_none()).map(|since| (since, *name))
        });
        let Some((_, name)) = longest.min() else { return false };
        all[&name].tell_to_go(false);
        let goes = |all: &Names<V>| {
            // It may have been found again in the meantime: then another is looked for.
            all.get(&name).is_some_and(|door| door.inner.lock().gone)
        };
        wait_while(&self.left, &mut all, GOES_WITHIN, goes);
        true
    }

    /// Nobody waits any more, now or later.
    pub(crate) fn close(&self) {
        // Relaxed: whoever is about to wait looks at it under its door's lock, which we take after this.
        self.closed.store(true, Relaxed);
        self.all.lock().values().for_each(|door| door.tell_to_go(true));
    }
}

impl<V> Door<V> {
    /// If it waits for nobody who is there already, or in any case.
    fn tell_to_go(&self, always: bool) {
        let mut inner = self.inner.lock();
        if always || inner.waiting.is_some() && inner.newcomer.is_none() {
            inner.gone = true;
            self.moved.notify_all();
        }
    }
}

impl<V: Visitor> OwnDoor<'_, V> {
    /// The next stream, if one comes within so long; after `None` none will.
    pub(crate) fn wait(&self, linger: Duration) -> Option<V> {
        // Relaxed: see `close`.
        let closed = || self.doors.closed.load(Relaxed);
        let mut inner = self.door.inner.lock();
        inner.waiting = Some(Instant::now());
        let nobody = |inner: &Inner<V>| inner.newcomer.is_none() && !inner.gone && !closed();
        wait_while(&self.door.moved, &mut inner, linger, nobody);
        inner.waiting = None;
        let newcomer = inner.newcomer.take().filter(|_| !inner.gone);
        match &newcomer {
            Some(newcomer) => inner.connection = newcomer.number(),
            None => inner.gone = true,
        }
        newcomer
    }
}

impl<V> Drop for OwnDoor<'_, V> {
    fn drop(&mut self) {
        self.doors.all.lock().remove(&self.name);
        self.doors.left.notify_all();
        // Who left a stream meanwhile sees it end (DOOR-4); nobody finds the door any more.
        let newcomer = self.door.inner.lock().newcomer.take();
        drop(newcomer);
    }
}
