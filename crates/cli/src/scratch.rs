//! Scratch directories that SIGINT and SIGTERM remove too.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

/// The directories of this process that are to be removed if a signal ends it.
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Attempts to remove a directory after a signal, with a pause between: child processes get the same signal
/// and may still write for a moment.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// A temporary directory that is removed when the value is dropped and when SIGINT or SIGTERM ends the
/// process (exit code 128 + signal).
///
/// The first one of a process starts the thread that waits for the signals.
#[derive(Debug)]
pub struct Scratch {
    directory: TempDir,
}

impl Scratch {
    /// Makes a directory with a name that begins with `prefix`, in the directory for temporary files.
    ///
    /// # Errors
    ///
    /// The directory cannot be made, or the signals cannot be waited for.
    pub fn new(prefix: &str) -> io::Result<Self> {
        Self::new_in(prefix, std::env::temp_dir())
    }

    /// The same in `parent`.
    ///
    /// # Errors
    ///
    /// As [`Scratch::new`].
    pub fn new_in(prefix: &str, parent: impl AsRef<Path>) -> io::Result<Self> {
        wait_for_signals()?;
        let directory = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        live().push(directory.path().to_owned());
        Ok(Self { directory })
    }

    /// The directory.
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
        live().retain(|path| path != self.directory.path());
    }
}

fn live() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that removes the directories when a signal comes, once in a process.
fn wait_for_signals() -> io::Result<()> {
    static STARTED: OnceLock<Result<(), io::ErrorKind>> = OnceLock::new();
    let start = || {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let wait = move || {
            let Some(signal) = signals.forever().next() else { return };
            remove_all();
            std::process::exit(128 + signal);
        };
        thread::Builder::new().name("scratch-signals".into()).spawn(wait).map(drop)
    };
    STARTED.get_or_init(|| start().map_err(|error| error.kind())).map_err(io::Error::from)
}

fn remove_all() {
    for path in live().iter() {
        for _ in 0..ATTEMPTS {
            if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
                break;
            }
            thread::sleep(PAUSE);
        }
    }
}
