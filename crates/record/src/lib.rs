//! Records what an unmodified program waits for, and gives names to what it saw.
//!
//! It is not a debugger: the program is started with one library put before its own (`crates/preload`), which
//! records contended waits by address. When it has ended, addresses are given the names that the program's
//! files have for them.
//!
//! ```no_run
//! use azekura_record::Recorder;
//! use std::path::Path;
//! use std::process::Command;
//!
//! let mut recorder = Recorder::new()?;
//! let mut program = Command::new("./server");
//! recorder.prepare(&mut program)?;
//! recorder.begin()?;
//! let mut child = program.spawn()?;
//! child.wait()?;
//! for recorded in recorder.collect(Path::new("server.trace"), child.id())?.recorded {
//!     println!("{}: {} events", recorded.file.display(), recorded.events);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | noun |
//! |---|---|
//! | `recorder` | the library in the programs, the area shared with them |
//! | `drain`, `spool` | takes events out of the area; the file of one process while it is recorded |
//! | `process` | what the kernel tells of a recorded process |
//! | `program` | programs that cannot be recorded |
//! | [`mod@launch`] | a program run under a recorder from start to end |
//! | [`kernel`] | what only the kernel sees: switches, calls of functions, a process that runs already |
//! | [`symbols`] | addresses to functions, variables and lines |
//! | `locks` | which name a lock gets: its variable, where it was made, or where it is waited for |
//! | `handoff` | locks with waiters that sleep on objects of their own |
//! | [`mod@name`] | a trace with addresses made into one with names |
//! | [`error`] | what can go wrong |

#![forbid(unsafe_code)]

mod drain;
pub mod error;
mod frames;
mod handoff;
pub mod kernel;
pub mod launch;
mod locks;
pub mod name;
mod process;
mod program;
mod recorder;
mod spool;
pub mod symbols;
mod threads;

pub use error::RecordError;
pub use launch::{Launch, Launched, attach_until, launch};
pub use recorder::{Collected, Recorded, Recorder};
