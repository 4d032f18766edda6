//! Requests for keys of this node, run on the thread of their connection. They need no task of the node's
//! thread, and join groups as at a server without a cluster.
//!
//! A request enters the gate of the node's keys ([`LocalKeys`](azekura_fatbtree::LocalKeys)) and leaves it
//! after the commit, so no leaf with one of its keys moves meanwhile (LOCAL-1).
//!
//! - **HERE-1** A thread inside the gate waits at most [`LOCK_WAIT`] for a lock, and never for the node's
//!   thread (LOCAL-2). A member of a group never waits for a lock (GROUP-1), and a group is closed before its
//!   thread waits for a [pipeline](super::Pipeline). A request that does not get its locks in time is rolled
//!   back, and is sent through the node's thread like a request for another node's keys.

use std::cell::Cell;

use azekura::Snapshot;
use azekura_fatbtree::{Growth, LocalEntry};

use super::Cluster;
use super::owner::LOCK_WAIT;
use crate::command::{self, CommandResult, Spec};
use crate::engine::Pending;
use crate::error::{CommandError, Failure};
use crate::keyspace::Keyspace;
use crate::resp::{Reply, Request};
use crate::server::Shared;

impl Cluster {
    /// Enters the gate for a key, if this thread may serve the key.
    pub(crate) fn enter(&self, key: &[u8]) -> Option<LocalEntry> {
        self.local_keys.enter(key)
    }

    /// Returns `true` if this thread probably may serve the request.
    pub(crate) fn serves(&self, spec: &Spec, request: Request<'_>) -> bool {
        command::key_places(spec, request.len()).all(|at| self.local_keys.serves(request.arg(at)))
    }

    /// Runs a request as its own transaction on this thread. Returns `None` if the request must go through
    /// the node.
    pub(crate) fn run_here(
        &self,
        shared: &Shared,
        spec: &Spec,
        apply: fn(&Keyspace<'_>, Request<'_>) -> CommandResult,
        request: Request<'_>,
        pending: &mut Pending,
    ) -> Option<Result<Reply, CommandError>> {
        let mut keys = command::key_places(spec, request.len()).map(|at| request.arg(at));
        let first = keys.next()?;
        let entry = self.enter(first)?;
        if !keys.all(|key| entry.serves(key)) {
            return None;
        }
        let grown = Cell::new((0, 0));
        let done = shared.engine.attempt(LOCK_WAIT, pending, |keys| {
            let reply = apply(keys, request)?;
            grown.set((keys.added().records, keys.written_bytes()));
            Ok(reply)
        });
        drop(entry); // leaves the gate after the commit
        let reply = done.transpose()?; // `None`: it did not get its locks (HERE-1)
        self.served_here.add(1);
        if spec.is_write && reply.is_ok() {
            let (rows, bytes) = grown.get();
            self.note_growth(first, rows, bytes);
        }
        Some(reply)
    }

    /// Opens a snapshot for a command that reads ranges or all keys, if all keys are at this node. Otherwise
    /// the command runs leaf by leaf. Leaves that move later do not matter, because the snapshot keeps their
    /// rows.
    pub(crate) fn snapshot_of_all(&self, shared: &Shared) -> Option<Result<Snapshot, Failure>> {
        let entry = self.local_keys.enter_all()?;
        let snapshot = shared.engine.snapshot();
        drop(entry);
        self.served_here.add(1);
        Some(snapshot)
    }

    /// Records the growth by a write of this thread. The node splits and merges leaves by these records.
    pub(crate) fn note_growth(&self, key: &[u8], rows: i64, bytes: usize) {
        if let Some(growth) = self.local_keys.note_growth(Growth { rows, bytes }) {
            let key = key.to_vec();
            self.node.tell(move |here| Box::pin(async move { here.node.note_growth(key, growth).await }));
        }
    }
}
