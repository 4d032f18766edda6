//! The lifetime of an open store: the handles and transactions that keep it open, and the two ways of
//! closing.
//!
//! | state | means | leaves it |
//! |---|---|---|
//! | open | transactions begin and run | `close`; the drop of the last handle and of the last transaction |
//! | closing | `close` counts open transactions; a transaction that begins waits for the result | `close` |
//! | closed | everything is on disk, the directory is unlocked; each call fails with [`Error::Closed`] | – |
//!
//! - **LIFE-1** A transaction increments a count before it reads the state; `close` changes the state before
//!   it reads the counts. Both access the count by read-modify-write operations with Acquire and Release,
//!   which have a single order. So either the count that `close` reads includes the transaction, or the
//!   transaction sees that the store is closing.
//! - **LIFE-2** The directory is unlocked only after the last write to its files: no transaction is open, the
//!   store's background jobs have ended, the log is closed.
//! - **LIFE-3** In a process that was forked from the one that opened the store, each call fails with
//!   [`Error::Forked`], and dropped objects are leaked. The files, their locks and the threads belong to the
//!   parent.
//!
//! A ticket keeps the memory of the log allocated, but does not keep the store open: closing the store makes
//! the ticket's commit durable.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;

use azekura_base::PerStripe;
use azekura_base::striped::stripe_count;
use azekura_base::sync::atomic::{
    AtomicU8, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Release,
};
use azekura_base::sync::{Mutex, machine};
use azekura_buffer::Cleaner;
use azekura_io::FileLock;
use tracing::{error, info};

use crate::Error;
use crate::checkpoint::Checkpointer;
use crate::database::Shared;
use crate::opener::Opener;
use crate::ticket::TicketLog;

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const CLOSED: u8 = 2;

/// The state of a store (open, closing, closed), and the locks on its directory.
#[derive(Debug)]
pub(crate) struct Lifetime {
    /// The state; written under `closing`, or by the last owner.
    state: AtomicU8,
    /// A mutex that `close` holds from its first check to its last step.
    closing: Mutex<()>,
    locks: Mutex<Vec<Box<dyn FileLock>>>,
    opener: Opener,
    /// The store's directory, for errors.
    path: PathBuf,
}

impl Lifetime {
    /// Returns the lifetime of a store in directory `path` that this process is opening, with these locks on
    /// the directory.
    pub(crate) fn new(path: PathBuf, locks: Vec<Box<dyn FileLock>>) -> Self {
        Self {
            state: AtomicU8::new(OPEN),
            closing: Mutex::new(()),
            locks: Mutex::new(locks),
            opener: Opener::this_process(),
            path,
        }
    }

    /// Returns an error in a process that was forked from the one that opened the store (LIFE-3).
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        self.opener.check()
    }

    /// Runs a call that writes files outside of a transaction. The store stays open meanwhile.
    pub(crate) fn while_open<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.check_process()?;
        let _not_closing = self.closing.lock();
        match self.state.load(Acquire) {
            OPEN => call().map_err(|error| error.in_store(&self.path)),
            _ => Err(Error::Closed),
        }
    }

    /// Returns `Some` if a transaction may begin, and `None` while `close` is deciding (LIFE-1).
    fn admits(&self) -> Result<Option<()>, Error> {
        self.check_process()?;
        // Acquire: pairs with the Release in `set`, so all writes before the close are visible.
        match self.state.load(Acquire) {
            OPEN => Ok(Some(())),
            CLOSING => Ok(None),
            _ => Err(Error::Closed),
        }
    }

    fn set(&self, state: u8) {
        self.state.store(state, Release); // Release: pairs with the Acquire in `admits`
    }
}

/// The number of open transactions of some threads, aligned so that each count has its own cache line.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Stripe {
    shared: Arc<Shared>,
    tickets: Arc<TicketLog>,
    /// Closes the store when the last owner is dropped; declared after the other fields, so that it is
    /// dropped after them.
    _threads: Arc<Threads>,
    /// Number of open transactions (LIFE-1).
    open: AtomicUsize,
}

/// A transaction's reference to the store, which keeps the store open.
#[derive(Debug)]
pub(crate) struct Use(Arc<Stripe>);

impl Use {
    pub(crate) fn tickets(&self) -> &Arc<TicketLog> {
        &self.0.tickets
    }
}

impl Deref for Use {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.0.shared
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Release); // Release: pairs with the AcqRel in `Owners::open`
    }
}

/// The state that all handles of a store share.
#[derive(Debug)]
pub(crate) struct Owners {
    threads: Arc<Threads>,
    /// The stripes, allocated for their first transactions. If `close` finds no stripe, the transactions of
    /// that stripe read the state that `close` has set.
    stripes: PerStripe<Arc<Stripe>>,
}

impl Owners {
    /// Starts the background jobs of a store.
    ///
    /// # Errors
    ///
    /// The system cannot create a thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self, Error> {
        let threads = Arc::new(Threads::start(shared)?);
        Ok(Self { threads, stripes: PerStripe::new(stripe_count()) })
    }

    fn make_stripe(&self) -> Arc<Stripe> {
        let shared = &self.threads.shared;
        Arc::new(Stripe {
            shared: Arc::clone(shared),
            tickets: Arc::new(TicketLog::new(Arc::clone(&shared.wal))),
            _threads: Arc::clone(&self.threads),
            open: AtomicUsize::new(0),
        })
    }

    /// Returns a reference that keeps the store open, unless the store is closed.
    pub(crate) fn enter(&self) -> Result<Use, Error> {
        let (_, stripe) = self.stripes.own(|| self.make_stripe());
        machine::adds(&**stripe);
        loop {
            // AcqRel: LIFE-1; pairs with the AcqRel in `open`.
            stripe.open.fetch_add(1, AcqRel);
            let using = Use(Arc::clone(stripe)); // decrements the count on drop
            if using.lifetime.admits()?.is_some() {
                return Ok(using);
            }
            drop(using);
            drop(stripe.shared.lifetime.closing.lock()); // waits until `close` has decided
        }
    }

    /// Returns the number of open transactions.
    fn open(&self) -> usize {
        // AcqRel: LIFE-1; pairs with `enter`, and with the Release in the drop of a use.
        self.stripes.visit().map(|(_, stripe)| stripe.open.fetch_add(0, AcqRel)).sum()
    }

    /// Closes the store for all its handles, unless a transaction is open.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let lifetime = &self.threads.shared.lifetime;
        lifetime.check_process()?;
        let _one_at_a_time = lifetime.closing.lock();
        if lifetime.state.load(Acquire) == CLOSED {
            return Ok(());
        }
        lifetime.set(CLOSING);
        let transactions = self.open();
        if transactions > 0 {
            lifetime.set(OPEN);
            return Err(Error::StillInUse { transactions });
        }
        self.threads.end()
    }
}

/// The background jobs of a store; dropping them closes the store.
#[derive(Debug)]
struct Threads {
    shared: Arc<Shared>,
    running: Mutex<Option<(Cleaner, Checkpointer)>>,
}

impl Threads {
    fn start(shared: &Arc<Shared>) -> Result<Self, Error> {
        let spawn = || {
            let cleaner = Cleaner::spawn(Arc::clone(&shared.pool))?;
            Ok((cleaner, Checkpointer::begin(shared)?))
        };
        let running = shared.options.has_jobs().then(spawn).transpose();
        let running = running.map_err(|e| Error::io("start a thread for", &shared.path, e))?;
        Ok(Self { shared: Arc::clone(shared), running: Mutex::new(running) })
    }

    /// Closes the store: writes the changed pages, ends the background jobs, takes a last checkpoint, closes
    /// the log, and unlocks the directory (LIFE-2).
    fn end(&self) -> Result<(), Error> {
        // Dropping a driver ends its jobs and waits for them.
        let running = self.running.lock().take();
        if let Some((cleaner, checkpointer)) = running {
            drop(checkpointer); // it also does deferred frees, which change pages
            self.shared.free_to_close();
            // The helper threads of the cleaner still run, so several batches are written at once. The last
            // checkpoint retries failed writes and reports an error.
            let _ = self.shared.write_pages_to_close();
            drop(cleaner);
        }
        let closed = self.shared.close().map_err(|error| error.in_store(&self.shared.path));
        let path = self.shared.path.display();
        match &closed {
            Ok(()) => info!(%path, "store closed"),
            Err(failed) => {
                let error = failed.full_message();
                error!(%path, %error, "store closed without a last checkpoint: the next opening recovers it");
            }
        }
        self.shared.lifetime.set(CLOSED);
        self.shared.lifetime.locks.lock().clear();
        closed
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.shared.lifetime.check_process().is_err() {
            // LIFE-3: a forked process has none of the threads, and the files belong to the parent.
            std::mem::forget(self.running.get_mut().take());
            std::mem::forget(Arc::clone(&self.shared));
        } else if self.shared.lifetime.state.load(Acquire) != CLOSED {
            // No caller can receive the error; the next opening recovers the rest.
            let _ = self.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use azekura_base::PageId;

    use super::*;

    /// The error of a checkpoint that finds a damaged page.
    #[test]
    fn the_error_of_a_call_without_a_transaction_names_the_file() {
        let lifetime = Lifetime::new("/shop.azk".into(), Vec::new());
        let damaged = || Err::<(), _>(Error::damaged(PageId(3), "no node".into()));
        let error = lifetime.while_open(damaged).expect_err("is damaged");
        assert!(error.to_string().starts_with("page 3 of /shop.azk/pages is damaged"), "{error}");
    }
}
