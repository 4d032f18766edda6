//! B+trees of pages.

pub mod change;
pub mod descent;
mod destroy;
mod env;
mod error;
mod locks;
mod next;
pub mod node;
mod overflow;
pub mod record;
mod redo;
mod rollback;
mod scan;
pub mod space;
mod structure;
mod tree;
mod undo;
mod verify;
mod write;

pub use change::{ApplyError, PageOp};
pub use destroy::free_step;
pub use env::{Env, EnvOptions, Log, Writer};
pub use error::{RecordError, TreeError};
pub use locks::{Blocked, GapWant, KeyLocks, NextKey, NoLocks, Outcome};
pub use node::{max_inline_value, max_key};
pub use overflow::{MAX_VALUE, OverflowRef};
pub use record::{Head, Record};
pub use redo::redo;
pub use rollback::{roll_back_to, undo_one};
pub use scan::{LeafBatch, Scan, ValueRef};
pub use tree::{Tree, WriteCtx};
pub use undo::{Deferred, UndoLog, UndoOp};
pub use verify::{Finding, Report, TreeReport, verify};
pub use write::{PutMode, Written};
