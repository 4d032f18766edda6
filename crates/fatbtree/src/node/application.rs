//! The application's part of a node: requests that run at the owner of a key.

use std::fmt;
use std::time::Duration;

use crate::frame;
use crate::id::PeId;
use crate::key::{Key, KeyRange, Target};
use crate::message::{Find, Refusal};
use crate::node::Node;
use crate::node::open::OpenTransaction;
use crate::world::Task;

/// A request to the application at the owner of its keys. The leaves of the keys are locked. A request to a
/// node ([`Work::AtNode`](crate::Work::AtNode)) has an empty range and no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// A key, or the end of a backward scan.
    pub target: Target,
    /// The leaf of the target. The application may also use keys outside it that are among `others`.
    pub range: KeyRange,
    /// Further keys of the request, in order.
    pub others: Vec<Key>,
    /// `true` if the request may change rows.
    pub is_write: bool,
    /// Opaque bytes of the application.
    pub bytes: Vec<u8>,
    /// Time in which the request may be executed (FIND-1). A request that is refused at its end is answered
    /// in time.
    pub time_left: Duration,
    /// Maximum size of the answer in bytes. A request with a longer answer must change nothing.
    pub most_bytes: usize,
}

/// Maximum size of an answer to another node: a frame without the space for the other fields, of which the
/// keys of the leaf's route entry are the largest.
const MOST_ANSWER_BYTES: usize = frame::MAX_BYTES - (64 << 10);

impl Asked {
    /// Creates the application's request from a request that has found its leaf.
    pub(super) fn at(
        node: &Node,
        range: KeyRange,
        find: &Find,
        is_write: bool,
        others: &[Key],
        bytes: &[u8],
    ) -> Self {
        Self {
            target: find.target.clone(),
            range,
            others: others.to_vec(),
            is_write,
            bytes: bytes.to_vec(),
            time_left: node.time_left(find),
            most_bytes: if find.id.origin == node.me { usize::MAX } else { MOST_ANSWER_BYTES },
        }
    }
}

/// Result of a request to the application.
#[derive(Default)]
pub struct Ran {
    /// Opaque bytes of the application.
    pub bytes: Vec<u8>,
    /// Estimated growth of the leaf in rows.
    pub rows: isize,
    /// Estimated growth of the leaf in bytes.
    pub more_bytes: usize,
    /// Task that ends when the result is durable; `None` if it is already durable. It is awaited without the
    /// leaf's lock.
    pub durable: Option<Task<'static, Result<(), String>>>,
}

impl fmt::Debug for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ran").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The reason that an application did not execute a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// Nothing was changed. The text is the application's own error, which its client receives unchanged.
    #[error("{0}")]
    Application(String),
    /// The outcome is unknown: rows may have changed.
    #[error("{0}")]
    Failed(String),
}

impl RunError {
    /// Converts the error of the application of node `pe`.
    pub(super) fn into_refusal(self, pe: PeId) -> Refusal {
        match self {
            Self::Refused(reason) => Refusal::Store { pe, reason },
            Self::Application(reason) => Refusal::Application { reason },
            Self::Failed(reason) => Refusal::Failed { pe, reason },
        }
    }
}

/// Runs the requests that an application sends to the owner of a key ([`Work::Run`](crate::Work::Run)), or to
/// a node ([`Work::AtNode`](crate::Work::AtNode)).
pub trait Application {
    /// Runs a request on the rows of this node, in a separate transaction.
    fn run(&self, asked: Asked) -> Task<'_, Result<Ran, RunError>>;

    /// Returns the clock by which rows expire, in milliseconds since 1970, or `None` if rows do not expire.
    /// Nodes with clocks that differ too much refuse each other
    /// ([`Options::max_clock_offset`](crate::Options)).
    fn clock_ms(&self) -> Option<u64> {
        None
    }

    /// Prepares a transaction that stays open over several requests ([`Work::Step`](crate::Work::Step),
    /// [`Work::Read`](crate::Work::Read)). The transaction begins with its first step. A `reader` acquires no
    /// locks: all its steps read the state of this node at the first step.
    ///
    /// # Errors
    ///
    /// [`RunError::Refused`]: the application has no such transactions.
    fn open(&self, reader: bool) -> Result<Box<dyn OpenTransaction>, RunError> {
        let kind = if reader { "reads" } else { "transactions" };
        Err(RunError::Refused(format!("{kind} over several requests are not offered at this node")))
    }
}

/// An application that refuses all requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoApplication;

impl Application for NoApplication {
    fn run(&self, _: Asked) -> Task<'_, Result<Ran, RunError>> {
        let error = RunError::Refused("no application runs at this node".to_owned());
        Box::pin(std::future::ready(Err(error)))
    }
}
