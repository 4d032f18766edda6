//! Tickets: handles of commits, for a thread or a task that waits for durability later.

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

/// The waiting tasks, by the LSN that they wait for.
///
/// - **TICKET-1** A task registers, then reads the marks. A flush leader moves the marks, then reads the
///   registered tasks. Both execute a sequentially consistent fence in between, so at least one of them reads
///   the other's write. The task must read the marks themselves. The leader stores the computed horizon after
///   its fence, so a task that reads only the horizon can miss the flush while the leader misses the task.
#[derive(Debug, Default)]
pub struct Wakers {
    /// Wakers by the LSN that the horizon must reach, and the task's number.
    waiting: Mutex<BTreeMap<(u64, u64), Waker>>,
    /// Number of entries; changed under the mutex.
    count: AtomicU64,
    next_id: AtomicU64,
}

impl Wakers {
    /// Registers the task, or renews its waker, unless the commit is acknowledged. Returns `true` if the
    /// commit is acknowledged; after `false` a later flush wakes the task (TICKET-1).
    ///
    /// `is_acknowledged` computes from the marks; a result that another thread has computed is not enough.
    pub fn poll(
        &self,
        commit: Lsn,
        id: &mut Option<u64>,
        waker: &Waker,
        is_acknowledged: impl Fn() -> bool,
    ) -> bool {
        if is_acknowledged() {
            return true;
        }
        self.register(commit, id, waker);
        is_acknowledged()
    }

    /// Registers a task for a commit, or renews its waker. The caller reads the marks afterward (TICKET-1).
    fn register(&self, commit: Lsn, id: &mut Option<u64>, waker: &Waker) {
        // Relaxed: only distinctness matters.
        let id = *id.get_or_insert_with(|| self.next_id.fetch_add(1, Relaxed));
        let mut waiting = self.waiting.lock();
        let before = waiting.insert((commit.0, id), waker.clone());
        // Relaxed: ordered by the fence.
        self.count.store(waiting.len() as u64, Relaxed);
        drop(waiting);
        drop(before); // a waker may run code of the task: no lock is held
        fence(SeqCst); // pairs with the fence before a call of `wake_through`
    }

    /// Removes a task's entry.
    pub fn forget(&self, commit: Lsn, id: u64) {
        let mut waiting = self.waiting.lock();
        let forgotten = waiting.remove(&(commit.0, id));
        // Relaxed: a stale count causes at most a needless check.
        self.count.store(waiting.len() as u64, Relaxed);
        drop(waiting);
        drop(forgotten); // dropped without a lock, as in `register`
    }

    /// Wakes every task that waits for an LSN up to `lsn`, without holding a lock. The caller has moved the
    /// marks, then executed a fence, then computed `lsn` (TICKET-1).
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

    /// Wakes every task: the log failed.
    pub fn wake_everyone(&self) {
        self.wake_through(Lsn::MAX);
    }

    pub(crate) fn len(&self) -> u64 {
        self.count.load(Relaxed)
    }
}

/// A handle of a record, for waiting until the record is acknowledged: by blocking, polling, or `await`.
/// Dropping the ticket does not affect the record.
///
/// ```
/// use std::sync::Arc;
/// use azekura_base::Lsn;
/// use azekura_io::MemFs;
/// use azekura_wal::{LogIdentity, Wal, WalOptions};
///
/// let identity = LogIdentity { database_id: 7, incarnation: 1, first_lsn: Lsn(1) };
/// let wal = Wal::create(Arc::new(MemFs::new()), "/db/wal".as_ref(), identity, WalOptions::default())?;
/// let append = |body| wal.append(wal.log_buffer(), body).map(|lsn| wal.ticket(lsn));
/// let tickets = [&b"one"[..], b"two"].map(append);
/// for ticket in tickets {
///     ticket?.wait()?; // the second one most likely need not wait
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a commit is acknowledged only once its ticket says so"]
pub struct Ticket<W: Deref<Target = Wal> = Arc<Wal>> {
    wal: W,
    commit: Lsn,
    /// `true` if no flush of the record was requested yet; a poll requests the flush.
    is_quiet: bool,
    /// The number of the ticket's entry among the wakers, once registered.
    id: Option<u64>,
}

impl<W: Deref<Target = Wal>> Ticket<W> {
    pub(crate) const fn new(wal: W, commit: Lsn, is_quiet: bool) -> Self {
        Self { wal, commit, is_quiet, id: None }
    }

    /// Returns the LSN of the record.
    #[must_use]
    pub const fn lsn(&self) -> Lsn {
        self.commit
    }

    /// Returns the reference to the log that the ticket holds.
    pub const fn log_ref(&self) -> &W {
        &self.wal
    }

    /// Blocks until the record is acknowledged, see [`Wal::wait_acknowledged`]. The log's background jobs
    /// write. Without background jobs, or if no flush was requested before, the caller may write.
    ///
    /// # Errors
    ///
    /// [`LogFailed`]: the log failed before that. Only the next recovery finds out whether the record is on
    /// disk.
    pub fn wait(self) -> Result<(), LogFailed> {
        let log = self.wal.log();
        if self.is_quiet { log.wait_acknowledged(self.commit) } else { log.wait_requested(self.commit) }
    }

    /// Returns the ticket with the larger LSN, which is acknowledged after the other one.
    pub fn max(self, other: Self) -> Self {
        if other.commit > self.commit { other } else { self }
    }

    fn deregister(&mut self) {
        if let Some(id) = self.id.take() {
            self.wal.log().wakers.forget(self.commit, id);
        }
    }

    /// Returns `true` if the record is acknowledged. Never blocks.
    ///
    /// # Errors
    ///
    /// As [`Ticket::wait`].
    pub fn is_durable(&self) -> Result<bool, LogFailed> {
        let log = self.wal.log();
        if log.is_known_acknowledged(self.commit) {
            return Ok(true);
        }
        log.failure.check().map(|()| false)
    }
}

/// Waits for the acknowledgment. Without background jobs (`WalOptions::background`) a poll flushes, and so
/// blocks.
impl<W: Deref<Target = Wal> + Unpin> Future for Ticket<W> {
    type Output = Result<(), LogFailed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = &mut *self;
        let log = ticket.wal.log();
        if !log.options.background {
            return Poll::Ready(log.wait_acknowledged(ticket.commit));
        }
        let commit = ticket.commit;
        if log.wakers.poll(commit, &mut ticket.id, context.waker(), || log.is_acknowledged(commit)) {
            return Poll::Ready(Ok(()));
        }
        // After the registration: a later failure wakes the task.
        if let Err(failed) = log.failure.check() {
            return Poll::Ready(Err(failed));
        }
        if std::mem::take(&mut ticket.is_quiet) {
            log.request_soon(commit);
        }
        Poll::Pending
    }
}

/// Clones the handle; the copy refers to the same record.
impl<W: Deref<Target = Wal> + Clone> Clone for Ticket<W> {
    fn clone(&self) -> Self {
        Self { wal: self.wal.clone(), commit: self.commit, is_quiet: self.is_quiet, id: None }
    }
}

impl<W: Deref<Target = Wal>> Drop for Ticket<W> {
    fn drop(&mut self) {
        self.deregister();
    }
}
