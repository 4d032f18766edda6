//! Tickets: a commit's promise that can be waited for later, by a thread or by a task.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use azekura_base::sync::Mutex;
use azekura_base::sync::atomic::{AtomicU64, Ordering::*, fence};
use azekura_base::{LogFailed, Lsn};

use crate::wal::Wal;

/// The tasks that wait for the horizon, by LSN.
///
/// - **TICKET-1** A task registers, then looks at the horizon; a flusher moves the marks, then looks at the tasks.
///   Both put a sequentially consistent fence between, so one of them sees the other.
#[derive(Debug, Default)]
pub struct Wakers {
    waiting: Mutex<BTreeMap<(u64, u64), Waker>>,
    /// Entries of `waiting`; changed under its mutex.
    count: AtomicU64,
    next_id: AtomicU64,
}

impl Wakers {
    /// Registers a task for `lsn`, or renews its waker. The caller looks at the horizon afterwards (TICKET-1).
    pub fn register(&self, lsn: u64, id: &mut Option<u64>, waker: &Waker) {
        // Relaxed: only distinctness matters.
        let id = *id.get_or_insert_with(|| self.next_id.fetch_add(1, Relaxed));
        let mut waiting = self.waiting.lock();
        waiting.insert((lsn, id), waker.clone());
        self.count.store(waiting.len() as u64, Relaxed);
        drop(waiting);
        fence(SeqCst); // pairs with the one in `wake_through`
    }

    /// Takes a task's entry out again.
    pub fn forget(&self, lsn: u64, id: u64) {
        let mut waiting = self.waiting.lock();
        let forgotten = waiting.remove(&(lsn, id));
        self.count.store(waiting.len() as u64, Relaxed);
        drop(waiting);
        drop(forgotten); // a task's own code may run here: no lock is held
    }

    /// Wakes every task that waits for an LSN up to this one, without a lock in hand. The caller has moved the marks,
    /// then put a fence, then computed `lsn` (TICKET-1).
    pub fn wake_through(&self, lsn: Lsn) {
        // Relaxed: ordered by the fences.
        if self.count.load(Relaxed) == 0 {
            return;
        }
        let mut waiting = self.waiting.lock();
        let later = lsn.0.checked_add(1).map(|next| waiting.split_off(&(next, 0))).unwrap_or_default();
        let ready = std::mem::replace(&mut *waiting, later);
        self.count.store(waiting.len() as u64, Relaxed);
        drop(waiting);
        ready.into_values().for_each(Waker::wake);
    }

    pub(crate) fn len(&self) -> u64 {
        self.count.load(Relaxed)
    }
}

/// A promise that a record will be durable: wait for it, ask it, or await it. Dropping it changes nothing.
///
/// ```
/// use std::sync::Arc;
/// use azekura_base::Lsn;
/// use azekura_io::MemFs;
/// use azekura_wal::{LogIdentity, Wal, WalOptions};
///
/// let identity = LogIdentity { database_id: 7, incarnation: 1, first_lsn: Lsn(1) };
/// let wal = Wal::create(Arc::new(MemFs::new()), "/db/wal".as_ref(), identity, WalOptions::default())?;
/// let tickets = [&b"one"[..], b"two"].map(|body| wal.append(wal.worker(), body).map(|lsn| wal.ticket(lsn)));
/// for ticket in tickets {
///     ticket?.wait()?; // the second one most likely need not wait
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a commit is acknowledged only once its ticket says so"]
pub struct Ticket<W: Deref<Target = Wal> = Arc<Wal>> {
    wal: W,
    lsn: Lsn,
    /// Nobody was asked to flush the record yet: who polls does.
    is_quiet: bool,
    /// Of our entry among the wakers, once there was one.
    id: Option<u64>,
}

impl<W: Deref<Target = Wal>> Ticket<W> {
    pub(crate) const fn new(wal: W, lsn: Lsn, is_quiet: bool) -> Self {
        Self { wal, lsn, is_quiet, id: None }
    }

    /// The record.
    #[must_use]
    pub const fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// Blocks until the record, and every one before it, is durable. The log's threads write; without them, or if nobody was asked for the flush before, the
    /// caller, as [`Wal::wait_acknowledged`] has it.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed before that; whether the record is on disk is unknown until the next recovery.
    pub fn wait(self) -> Result<(), LogFailed> {
        let log = self.wal.log();
        if self.is_quiet { log.wait_acknowledged(self.lsn) } else { log.wait_requested(self.lsn) }
    }

    /// The one of two that is durable last: when it is, both are.
    pub fn later(self, other: Self) -> Self {
        if other.lsn > self.lsn { other } else { self }
    }

    /// Whether the record, and every one before it, is durable. Never blocks.
    ///
    /// # Errors
    ///
    /// As [`Ticket::wait`].
    pub fn is_durable(&self) -> Result<bool, LogFailed> {
        let log = self.wal.log();
        if log.is_known_acknowledged(self.lsn) {
            return Ok(true);
        }
        log.failure.check().map(|()| false)
    }
}

/// Without a background thread (`WalOptions::background`) a poll flushes, and so blocks.
impl<W: Deref<Target = Wal> + Unpin> Future for Ticket<W> {
    type Output = Result<(), LogFailed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = &mut *self;
        let log = ticket.wal.log();
        if !log.options.background {
            return Poll::Ready(log.wait_acknowledged(ticket.lsn));
        }
        if !log.is_acknowledged(ticket.lsn) && log.failure.get().is_none() {
            log.wakers.register(ticket.lsn.0, &mut ticket.id, context.waker());
            if std::mem::take(&mut ticket.is_quiet) {
                ticket.wal.request_for_ticket(ticket.lsn);
            }
        }
        match ticket.is_durable() {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(Ok(())),
            Err(failed) => Poll::Ready(Err(failed)),
        }
    }
}

impl<W: Deref<Target = Wal>> Drop for Ticket<W> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.wal.log().wakers.forget(self.lsn.0, id);
        }
    }
}
