//! Starting and stopping a recording, and its result.

use crate::error::ReadError;
use crate::file::Trace;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Method of measuring CPU time of operations and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuTime {
    /// By restartable sequences if a test at the start shows that they work, otherwise by the thread clock.
    #[default]
    Auto,
    /// By restartable sequences; an error if they do not work.
    Rseq,
    /// By the thread clock at every event: works everywhere, costs 200 ns per event.
    ThreadClock,
    /// No CPU time.
    Off,
}

/// Options of a recording.
///
/// ```
/// use azekura_trace::Options;
/// let options = Options { label: "after the change".into(), ..Options::default() };
/// assert!(options.file.is_none(), "kept in memory by default");
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// Destination file. `None`: the recording is kept in memory, with about ten bytes per event. During the
    /// recording, up to two million events are kept unencoded (32 bytes each); they are encoded after its
    /// end.
    pub file: Option<PathBuf>,
    /// Number of events that a thread's ring holds, 32 bytes each. If a ring fills up before it is drained,
    /// events are lost.
    pub ring_events: usize,
    /// Interval at which a background thread drains the rings (sooner if they fill quickly). `None`: no
    /// background thread, but one drain at the end, which finds the first `ring_events` events of each
    /// thread.
    pub drain_every: Option<Duration>,
    /// Method of measuring CPU time.
    pub cpu: CpuTime,
    /// One of this number of holds is recorded (rounded up to a power of two, at most 32,768). More of the
    /// first holds are recorded.
    pub hold_sampling: u32,
    /// Largest number of executions per timed execution (rounded up to a power of two), for operations that
    /// take less than forty microseconds. The shorter the operation, the fewer executions are timed. All
    /// executions of longer operations, and the first executions, are timed. Waits are recorded in all
    /// executions. 1: all executions are timed.
    pub operation_sampling: u32,
    /// Label of the recording in reports.
    pub label: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            file: None,
            ring_events: 1 << 14,
            drain_every: Some(Duration::from_millis(10)),
            cpu: CpuTime::Auto,
            hold_sampling: 256,
            operation_sampling: 256,
            label: String::new(),
        }
    }
}

/// A finished recording: bytes in memory, or a file.
#[derive(Debug)]
pub struct Recording {
    events: u64,
    lost: u64,
    threads: u64,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<u8>),
    File(PathBuf),
}

impl Recording {
    #[cfg_attr(any(feature = "off", loom), expect(dead_code, reason = "nothing is recorded"))]
    pub(crate) fn in_memory(events: u64, lost: u64, threads: u64, bytes: Vec<u8>) -> Self {
        Self { events, lost, threads, place: Place::Memory(bytes) }
    }

    #[cfg_attr(any(feature = "off", loom), expect(dead_code, reason = "nothing is recorded"))]
    pub(crate) fn in_file(events: u64, lost: u64, threads: u64, path: PathBuf) -> Self {
        Self { events, lost, threads, place: Place::File(path) }
    }

    /// Returns the number of recorded events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the number of events that were lost because their ring was full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of threads that recorded events.
    #[must_use]
    pub fn threads(&self) -> u64 {
        self.threads
    }

    /// Returns the path of the file, if the recording is in a file.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::Memory(_) => None,
            Place::File(path) => Some(path),
        }
    }

    /// Returns the decoded recording. Takes 32 bytes of memory per event.
    ///
    /// # Errors
    ///
    /// [`ReadError`]: the file was removed or changed by another program.
    pub fn trace(&self) -> Result<Trace, ReadError> {
        match &self.place {
            Place::Memory(bytes) => Trace::from_bytes(bytes),
            Place::File(path) => Trace::read(path),
        }
    }

    /// Writes the recording to `path`. A recording in a file is copied.
    ///
    /// # Errors
    ///
    /// An error of the operating system.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        match &self.place {
            Place::Memory(bytes) => std::fs::write(path, bytes),
            Place::File(from) => std::fs::copy(from, path).map(|_| ()),
        }
    }
}
