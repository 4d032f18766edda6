//! Starting and stopping a recording, and its result.

use crate::error::ReadError;
use crate::file::Trace;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Method of measuring CPU time of operations and waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuTime {
    /// By restartable sequences where a test at the start shows that they work, else by the thread clock.
    #[default]
    Auto,
    /// By restartable sequences or not at all: an error where they do not work.
    Rseq,
    /// By the thread clock at every event: works everywhere, 200 ns an event.
    ThreadClock,
    /// Not at all.
    Off,
}

/// Options of a recording.
///
/// ```
/// use azekura_trace::Options;
/// let options = Options { label: "after the change".into(), ..Options::default() };
/// assert!(options.file.is_none(), "kept in memory unless told otherwise");
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// Destination file. `None`: the recording is kept in memory, about ten bytes an event; while it is under
    /// way, the last two million events are kept unencoded (32 bytes each), and encoded when no processor is
    /// needed for other work.
    pub file: Option<PathBuf>,
    /// Events that a thread's ring holds, 32 bytes each. A ring that fills up before it is drained loses
    /// events.
    pub ring_events: usize,
    /// Interval at which a background thread drains the rings (sooner when they fill). `None`: no thread, one
    /// drain at the end; each thread then keeps its first `ring_events` events.
    pub drain_every: Option<Duration>,
    /// Method of measuring CPU time.
    pub cpu: CpuTime,
    /// One of this number of holds is recorded (rounded up to a power of two, 32,768 at most); of the first
    /// ones, more.
    pub hold_sampling: u32,
    /// Largest number of executions per timed one, for operations that take less than forty microseconds
    /// (rounded as above): the shorter the operation, the fewer are timed. Of longer ones, and of the first
    /// ones, all are timed. Waits are recorded in all of them. 1: all are timed.
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

    /// Events recorded.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Events that found their ring full.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Threads that recorded something.
    #[must_use]
    pub fn threads(&self) -> u64 {
        self.threads
    }

    /// The file, if it was recorded into one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Place::Memory(_) => None,
            Place::File(path) => Some(path),
        }
    }

    /// The recording, decoded. 32 bytes of memory per event.
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

    /// Writes the recording to `path`; copies it if it is in a file already.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        match &self.place {
            Place::Memory(bytes) => std::fs::write(path, bytes),
            Place::File(from) => std::fs::copy(from, path).map(|_| ()),
        }
    }
}
