//! Records the waits of an unmodified program, and names the locks and operations in the recording.
//!
//! No debugger is involved: the program is started with one preloaded library (`crates/preload`), which
//! records contended waits by address. After the program has ended, the addresses are replaced by names from
//! its files.
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
//! | module | content |
//! |---|---|
//! | `recorder` | the library in the programs, the area shared with them |
//! | `directory` | directories of recorders, and their removal after a recorder was killed |
//! | `drain`, `spool` | moves events from the area to the file of each process during the recording |
//! | `process` | facts about a recorded process from the kernel |
//! | `program` | programs that cannot be recorded |
//! | [`mod@launch`] | a program run under a recorder from start to end |
//! | [`kernel`] | records of the kernel: context switches, calls of functions, a process that runs already |
//! | [`symbols`] | translates addresses to functions, variables and lines |
//! | `debug` | files with debug information that are installed apart from their programs |
//! | `allocators` | locks inside memory allocators |
//! | `locks` | names a lock by its variable, the place that created it, or the place of most waits |
//! | `handoff` | locks with a separate object for each waiter |
//! | `spins` | spin loops, by samples of the program counter |
//! | `faults` | page faults that waited for a device |
//! | `blocked` | waits without a probe, by samples of the threads |
//! | `threads` | names the operation of a thread |
//! | `stacks` | the call stacks of a sample of the waits |
//! | `frames` | the frame of a stack to show: the first one of the program's own code |
//! | [`mod@name`] | replaces the addresses of a trace by names |
//! | [`error`] | the errors of a recording |

#![forbid(unsafe_code)]

mod allocators;
mod blocked;
mod debug;
mod directory;
mod drain;
mod elf;
pub mod error;
mod faults;
mod frames;
mod handoff;
pub mod kernel;
pub mod launch;
mod locks;
pub mod name;
mod process;
mod program;
mod recorder;
mod spins;
mod spool;
mod stacks;
pub mod symbols;
mod threads;

pub use error::RecordError;
pub use launch::{Launch, Launched, attach_until, launch};
pub use recorder::{Collected, Recorded, Recorder};

/// The session of a trace for tests: times in nanoseconds, every hold recorded.
#[cfg(test)]
fn test_session(label: &str) -> azekura_trace::file::SessionInfo {
    use azekura_trace::file::{CpuSource, SessionInfo, TimeSource};
    SessionInfo {
        time: TimeSource::Monotonic,
        cpu: CpuSource::None,
        hold_sampling: 1,
        event_cost_ps: 0,
        ticks_per_second: 1_000_000_000,
        process_id: 1,
        processors: 1,
        started_wall_ns: 0,
        label: label.into(),
    }
}
