//! Scratch directories that are also removed after SIGINT and SIGTERM.
//!
//! After a signal, child processes are stopped first and killed last. So none of them writes into a directory
//! that is being removed, and the program does not start another child meanwhile. Threads of this process may
//! still create files: a directory counts as removed when it has stayed absent for some time. A thread that
//! has finished with its directory then waits for the end of the process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

/// The directories of this process, and whether a signal has arrived.
#[derive(Debug, Default)]
struct Live {
    paths: Vec<PathBuf>,
    is_ending: bool,
}

static LIVE: Mutex<Live> = Mutex::new(Live { paths: Vec::new(), is_ending: false });

/// Largest number of checks of the directories after a signal.
const MOST_LOOKS: u32 = 100;
/// Number of consecutive checks at which the directories must be absent.
const LOOKS_WITHOUT: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// A temporary directory that is removed when the value is dropped and when SIGINT or SIGTERM ends the
/// process (exit code 128 + signal). A signal also kills the child processes.
///
/// The first scratch directory of a process starts the thread that waits for the signals.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
}

impl Scratch {
    /// Creates a directory with a name that begins with `prefix`, in the directory for temporary files.
    ///
    /// # Errors
    ///
    /// The directory cannot be created, or the process cannot wait for signals.
    pub fn new(prefix: &str) -> io::Result<Self> {
        Self::new_in(prefix, std::env::temp_dir())
    }

    /// Creates a directory as [`Scratch::new`] does, in `parent`.
    ///
    /// # Errors
    ///
    /// As [`Scratch::new`].
    pub fn new_in(prefix: &str, parent: impl AsRef<Path>) -> io::Result<Self> {
        wait_for_signals()?;
        let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        live().paths.push(directory.path().to_owned());
        Ok(Self { directory })
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Keeps the directory and returns its path.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.path().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut live = live();
        if live.is_ending {
            drop(live);
            loop {
                thread::park(); // The signal thread ends the process.
            }
        }
        live.paths.retain(|path| path != self.directory.path());
    }
}

fn live() -> MutexGuard<'static, Live> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that removes the directories after a signal. It is started once per process.
fn wait_for_signals() -> io::Result<()> {
    static STARTED: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
    let start = || {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let wait = move || {
            let Some(signal) = signals.forever().next() else { return };
            end();
            std::process::exit(128 + signal);
        };
        thread::Builder::new().name("scratch-signals".into()).spawn(wait).map(drop)
    };
    STARTED.get_or_init(|| start().map_err(|error| error.kind())).map_err(io::Error::from)
}

fn end() {
    let paths = {
        let mut live = live();
        live.is_ending = true;
        live.paths.clone()
    };
    let mut absent = 0;
    for _ in 0..MOST_LOOKS {
        send_to_children(Signal::STOP);
        absent = if paths.iter().any(|path| path.exists()) { 0 } else { absent + 1 };
        if absent == LOOKS_WITHOUT {
            break;
        }
        for path in &paths {
            let _ = fs::remove_dir_all(path); // The next round checks the result.
        }
        thread::sleep(PAUSE);
    }
    send_to_children(Signal::KILL);
}

/// Sends a signal to all child processes.
fn send_to_children(signal: Signal) {
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for pid in children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
            let _ = kill_process(pid, signal); // The process may have ended.
        }
    }
}
