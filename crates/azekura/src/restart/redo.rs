//! Redo of the merged log: in the replaying thread, or by several threads, each with a share of the pages.
//!
//! The changes of a record to different pages are independent of each other ([`PageChange`]), and a page
//! always belongs to the same share. So each thread redoes its changes in log order, and no thread waits for
//! another. The replaying thread copies changes into the batch of their share, and sends a full batch to the
//! share's thread. A share queues up to [`QUEUED`] batches, so memory is bounded.
//!
//! - **REDO-1** The changes of one page are redone in LSN order: one share, one queue, one thread.
//! - **REDO-2** When [`Redo::finish`] returns `Ok`, all queued changes have been applied: `finish` closes the
//!   queues and joins the threads.
//! - **REDO-3** An error of a share is the error of the restart: a thread that fails drops its queue. The
//!   next send to that queue, or `finish`, detects this and returns the thread's error.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

use azekura_base::{Lsn, PageId};
use azekura_btree::{Env, PageChange, Record, TreeError};

use crate::Error;

/// Size of a batch of changes in bytes.
const BATCH_BYTES: usize = 64 << 10;
/// Largest number of batches that wait for a share's thread.
const QUEUED: usize = 4;

/// Changes of a share's pages, in LSN order.
#[derive(Debug, Default)]
struct Batch {
    /// For each change: the record's LSN, the page, and the end of the change in `bytes`.
    changes: Vec<(Lsn, PageId, usize)>,
    bytes: Vec<u8>,
}

impl Batch {
    fn push(&mut self, lsn: Lsn, change: PageChange<'_>) {
        self.bytes.extend_from_slice(change.bytes());
        self.changes.push((lsn, change.page_id(), self.bytes.len()));
    }

    fn redo(&self, env: &Env) -> Result<(), TreeError> {
        let mut from = 0;
        for &(lsn, page_id, to) in &self.changes {
            PageChange::from_bytes(page_id, &self.bytes[from..to]).redo(env, lsn)?;
            from = to;
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.changes.clear();
        self.bytes.clear();
    }
}

/// One redo thread with its queue.
#[derive(Debug)]
struct Share<'scope> {
    filling: Batch,
    full: SyncSender<Batch>,
    /// Empty batches that the thread returns for reuse.
    empty: Receiver<Batch>,
    thread: ScopedJoinHandle<'scope, Result<(), TreeError>>,
}

impl<'scope> Share<'scope> {
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        env: &'env Env,
        number: usize,
    ) -> std::io::Result<Self> {
        let (full, work) = sync_channel::<Batch>(QUEUED);
        let (done, empty) = sync_channel(QUEUED + 2);
        let redo_all = move || {
            for mut batch in work {
                batch.redo(env)?;
                batch.clear();
                let _ = done.send(batch); // an error means that the replaying thread fills no more batches
            }
            Ok(())
        };
        let thread = std::thread::Builder::new()
            .name(format!("azekura-redo-{number}"))
            .spawn_scoped(scope, redo_all)?;
        Ok(Self { filling: Batch::default(), full, empty, thread })
    }

    /// Sends the filled batch to the thread; returns `false` if the thread has failed.
    fn hand_over(&mut self) -> bool {
        let next = self.empty.try_recv().unwrap_or_default();
        self.full.send(std::mem::replace(&mut self.filling, next)).is_ok()
    }

    fn join(self) -> Result<(), TreeError> {
        drop(self.full);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// The redo of a restart, by several threads or by the replaying thread.
#[derive(Debug)]
pub(super) struct Redo<'scope, 'env> {
    env: &'env Env,
    /// The shares; empty if the replaying thread redoes all changes.
    shares: Vec<Share<'scope>>,
}

impl<'scope, 'env> Redo<'scope, 'env> {
    /// Starts `threads` threads, or as many as the system allows. With one or zero, the caller's thread
    /// redoes.
    pub(super) fn start(scope: &'scope Scope<'scope, 'env>, env: &'env Env, threads: usize) -> Self {
        let count = if threads > 1 { threads } else { 0 };
        let shares = (0..count).map_while(|number| Share::start(scope, env, number).ok()).collect();
        Self { env, shares }
    }

    /// Returns the number of threads that redo.
    pub(super) fn threads(&self) -> usize {
        self.shares.len().max(1)
    }

    /// Redoes the changes of a record, or queues them (REDO-2).
    pub(super) fn record(&mut self, lsn: Lsn, record: &Record<'_>) -> Result<(), Error> {
        for change in record.page_changes() {
            let change = change.map_err(TreeError::from)?;
            if self.shares.is_empty() {
                change.redo(self.env, lsn)?;
                continue;
            }
            let number = share_of(change.page_id(), self.shares.len());
            let share = &mut self.shares[number];
            share.filling.push(lsn, change);
            if share.filling.bytes.len() >= BATCH_BYTES && !share.hand_over() {
                return self.failed(number);
            }
        }
        Ok(())
    }

    /// Waits until all queued changes have been applied (REDO-2).
    pub(super) fn finish(mut self) -> Result<(), Error> {
        for number in 0..self.shares.len() {
            if !self.shares[number].hand_over() {
                return self.failed(number);
            }
        }
        self.shares.into_iter().try_for_each(Share::join).map_err(Error::from)
    }

    /// Returns the error of a share after its thread has ended with that error (REDO-3).
    fn failed(&mut self, number: usize) -> Result<(), Error> {
        match self.shares.swap_remove(number).join() {
            Err(error) => Err(error.into()),
            Ok(()) => unreachable!("a thread ends well only when its queue is closed"),
        }
    }
}

/// Returns the share of a page. The function distributes adjacent pages over the shares; any function of the
/// page would be correct (REDO-1).
fn share_of(page_id: PageId, shares: usize) -> usize {
    let mixed = page_id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    (mixed as usize) % shares
}
