//! Requests for keys of this node, on the thread of their connection: no task of the node's thread runs for
//! them, and they join groups as at a server without a cluster.
//!
//! The request enters the gate of the node's keys ([`LocalKeys`](azekura_fatbtree::LocalKeys)) and leaves it
//! after its commit, so no leaf with one of its keys moves meanwhile (LOCAL-1).
//!
//! - **HERE-1** A thread inside the gate waits at most [`LOCK_WAIT`] for a lock, a member of a group not at
//!   all (GROUP-1), and never for the node's thread (LOCAL-2): a group is closed before its thread waits for
//!   a [pipeline](super::Pipeline). A request that does not get its locks in time is rolled back and goes to
//!   the node's thread like one for another node's keys.

use std::cell::Cell;

use azekura::Snapshot;
use azekura_fatbtree::{Growth, LocalEntry};

use super::Cluster;
use super::owner::LOCK_WAIT;
use crate::command::{self, CommandResult, Run, Spec};
use crate::engine::Pending;
use crate::error::CommandError;
use crate::keyspace::Keyspace;
use crate::resp::{Reply, Request};
use crate::server::Shared;

impl Cluster {
    /// Begins a request for a key, if this thread may serve it.
    pub(crate) fn enter(&self, key: &[u8]) -> Option<LocalEntry> {
        self.local_keys.enter(key)
    }

    /// Returns `true` if this thread may probably serve the request.
    pub(crate) fn serves(&self, spec: &Spec, request: Request<'_>) -> bool {
        command::key_places(spec, request.len()).all(|at| self.local_keys.serves(request.arg(at)))
    }

    /// Runs a request as a transaction of its own on this thread; `None` if it has to go through the node.
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
        let added = Cell::new(0);
        let done = shared.engine.attempt(LOCK_WAIT, pending, |keys| {
            let reply = apply(keys, request)?;
            added.set(keys.added());
            Ok(reply)
        });
        drop(entry); // after the commit
        let reply = done.transpose()?; // without its locks it goes through the node (HERE-1)
        self.served_here.add(1);
        if spec.is_write && reply.is_ok() {
            self.note_growth(first, added.get(), request.bytes());
        }
        Some(reply)
    }

    /// Opens a snapshot for a command that reads ranges or all keys, if all keys are at this node; else the
    /// command goes from leaf to leaf. The leaves may move later: the snapshot has the rows.
    pub(crate) fn snapshot_of_all(
        &self,
        shared: &Shared,
        run: Run,
    ) -> Option<Result<Snapshot, CommandError>> {
        let reads = matches!(run, Run::Range(_) | Run::Walk(_));
        let entry = reads.then(|| self.local_keys.enter_all())??;
        let snapshot = shared.engine.snapshot();
        drop(entry);
        self.served_here.add(1);
        Some(snapshot)
    }

    /// Notes a write of this thread; the node splits or merges leaves by that.
    pub(crate) fn note_growth(&self, key: &[u8], rows: i64, bytes: usize) {
        if let Some(growth) = self.local_keys.note_growth(Growth { rows, bytes }) {
            let key = key.to_vec();
            self.node.tell(move |here| Box::pin(async move { here.node.note_growth(key, growth).await }));
        }
    }
}
