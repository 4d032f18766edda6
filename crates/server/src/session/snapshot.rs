//! `AZ.SNAPSHOT`: snapshots that several connections can read; in a cluster, one snapshot of each node.
//!
//! A connection opens a snapshot and receives its number. Any connection of this server reads the snapshot
//! with `AZ.BEGIN RO AT number`. The snapshot stays open until its connection closes it, resets or ends, and
//! the last transaction that reads the snapshot has ended.

use std::collections::HashMap;
use std::sync::Arc;

use azekura::Snapshot;
use azekura_base::sync::Mutex;

use super::Session;
use crate::cluster::SharedSnapshot;
use crate::command::{self, integer, is_word};
use crate::error::{CommandError, Failure};
use crate::resp::{Reply, Request};

/// Maximum of open snapshots of one connection. Each snapshot keeps row versions in memory.
const MAX_OPEN: usize = 16;

/// The snapshots of all connections.
pub(crate) type Snapshots = Mutex<Numbered>;

/// Open snapshots by number. A number is not reused while the server runs.
#[derive(Debug, Default)]
pub(crate) struct Numbered {
    open: HashMap<u64, SharedSnapshot>,
    last: u64,
}

impl Numbered {
    /// Adds a snapshot of this server's store, opened at `now_ms`; returns its number.
    fn insert_own(&mut self, snapshot: Snapshot, now_ms: u64) -> u64 {
        // The store gives two snapshots of the same state the same number, but each open snapshot needs its
        // own.
        self.last = snapshot.number().max(self.last + 1);
        self.open.insert(self.last, SharedSnapshot::Own(snapshot, now_ms));
        self.last
    }
}

/// The snapshots that one connection has opened.
#[derive(Debug, Default)]
pub(crate) struct Exported {
    all: Option<Arc<Snapshots>>,
    own: Vec<u64>,
}

impl Exported {
    pub(super) fn clear(&mut self) {
        for number in self.own.drain(..) {
            if let Some(all) = &self.all {
                all.lock().open.remove(&number);
            }
        }
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Parses the number of a snapshot.
fn number(argument: &[u8]) -> Result<u64, CommandError> {
    u64::try_from(integer(argument)?).map_err(|_| CommandError::NotAnInteger)
}

impl Session {
    /// Runs `AZ.SNAPSHOT [OPEN] | CLOSE number`.
    pub(super) fn snapshot(&mut self, request: Request<'_>) -> Result<Reply, CommandError> {
        let word = request.arg(1);
        match request.len() {
            1 => self.open_snapshot(),
            2 if is_word(word, "OPEN") => self.open_snapshot(),
            3 if is_word(word, "CLOSE") => self.close_snapshot(number(request.arg(2))?),
            2 | 3 if is_word(word, "OPEN") || is_word(word, "CLOSE") => Err(CommandError::Syntax),
            _ => Err(CommandError::UnknownWord("az.snapshot", command::short_text(word))),
        }
    }

    fn open_snapshot(&mut self) -> Result<Reply, CommandError> {
        if self.snapshots.own.len() >= MAX_OPEN {
            return Err(CommandError::Snapshots(MAX_OPEN));
        }
        let all = Arc::clone(self.snapshots.all.get_or_insert_with(|| Arc::clone(&self.shared.snapshots)));
        let number = match self.shared.cluster.get() {
            Some(cluster) => {
                let snapshot = cluster.snapshot()?;
                let number = snapshot.number();
                all.lock().open.insert(number, SharedSnapshot::Cluster(Arc::new(snapshot)));
                number
            }
            None => {
                let engine = &self.shared.engine;
                let snapshot = engine.db.snapshot().map_err(Failure::from)?;
                all.lock().insert_own(snapshot, engine.clock.now_ms())
            }
        };
        self.snapshots.own.push(number);
        Ok(Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn close_snapshot(&mut self, number: u64) -> Result<Reply, CommandError> {
        let own = &mut self.snapshots.own;
        let at = own.iter().position(|&open| open == number).ok_or(CommandError::NoSnapshot(number))?;
        own.swap_remove(at);
        self.shared.snapshots.lock().open.remove(&number);
        Ok(Reply::OK)
    }

    /// Returns the open snapshot with the number in `argument`.
    pub(super) fn snapshot_at(&self, argument: &[u8]) -> Result<SharedSnapshot, CommandError> {
        let number = number(argument)?;
        self.shared.snapshots.lock().open.get(&number).cloned().ok_or(CommandError::NoSnapshot(number))
    }
}
