//! The application's part of a node: requests that run at the owner of a key.

use std::fmt;

use crate::key::{Key, KeyRange, Target};
use crate::leaf::LeafHead;
use crate::message::Find;
use crate::node::open::OpenTransaction;
use crate::world::Task;

/// A request to the application at the owner of some keys, while their leaves are locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// A key, or the end of a backward scan.
    pub target: Target,
    /// The leaf of the target. Other keys may be touched if they are among `others`.
    pub range: KeyRange,
    /// Further keys, in order.
    pub others: Vec<Key>,
    /// `true` if it may change rows.
    pub is_write: bool,
    /// Opaque bytes of the application.
    pub bytes: Vec<u8>,
}

impl Asked {
    /// By a request that has found its leaf.
    pub(super) fn at(leaf: &LeafHead, find: &Find, is_write: bool, others: &[Key], bytes: &[u8]) -> Self {
        let (target, range) = (find.target.clone(), leaf.range.clone());
        Self { target, range, others: others.to_vec(), is_write, bytes: bytes.to_vec() }
    }
}

/// Result of the application.
#[derive(Default)]
pub struct Ran {
    /// Opaque bytes of the application.
    pub bytes: Vec<u8>,
    /// Rows that the leaf has more now, about.
    pub rows: isize,
    /// Bytes that the leaf has more now, about.
    pub more_bytes: usize,
    /// Ends when it will not be lost, if it is not durable yet. Waited for without the leaf's lock.
    pub durable: Option<Task<'static, Result<(), String>>>,
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ran").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The reason that an application did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// The outcome is unknown: rows may have changed.
    #[error("{0}")]
    Failed(String),
}

/// Runs the requests that an application sends to the owner of a key ([`Work::Run`](crate::Work::Run)).
pub trait Application {
    /// Runs it on the rows of this node, in a transaction of its own.
    fn run(&self, asked: Asked) -> Task<'_, Result<Ran, RunError>>;

    /// The time by which it judges rows, in milliseconds since 1970; `None`: it does not. Clocks of nodes
    /// that are too far off from each other are refused ([`Options::max_clock_offset`](crate::Options)).
    fn clock_ms(&self) -> Option<u64> {
        None
    }

    /// Makes ready for a transaction that stays open over several requests
    /// ([`Work::Step`](crate::Work::Step), [`Work::Read`](crate::Work::Read)). Nothing happens before its
    /// first step. A `reader` takes no locks: all its steps see the state of this node at the first step.
    ///
    /// # Errors
    ///
    /// [`RunError::Refused`]: it has no such transactions.
    fn open(&self, reader: bool) -> Result<Box<dyn OpenTransaction>, RunError> {
        let kind = if reader { "reads" } else { "transactions" };
        Err(RunError::Refused(format!("{kind} over several requests are not offered at this node")))
    }
}

/// No application: refuses.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoApplication;

impl Application for NoApplication {
    fn run(&self, _: Asked) -> Task<'_, Result<Ran, RunError>> {
        let error = RunError::Refused("no application runs at this node".to_owned());
        Box::pin(std::future::ready(Err(error)))
    }
}
