//! The recorder: the library in the programs, the area shared with them, and the thread that drains it.

use crate::directory::{LIBRARY_FILE, LOCK_FILE, PREFIX, create_locked, remove_stale};
use crate::drain::Drain;
use crate::error::RecordError;
use crate::kernel::KernelRecords;
use crate::name::name_with;
use crate::spool::Spooled;
use crate::symbols::Files;
use azekura_trace::Options;
use azekura_trace::area::{self, Area, DIRECTORY, Layout};
use azekura_trace::file::{Ending, Trace};
use azekura_trace::parts::session_info;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// The library that is loaded into programs, built by this crate's build script; empty if it cannot be built.
static LIBRARY: &[u8] = include_bytes!(env!("AZEKURA_PRELOAD_BUILT"));
/// Name of the environment variable with the path of another library to load.
const OTHER_LIBRARY: &str = "AZEKURA_PRELOAD";
/// Environment variable with the options of AddressSanitizer, and the option that allows another library
/// before its runtime. Without the option, the runtime ends a program that loads this library first.
const SANITIZER: &str = "ASAN_OPTIONS";
const IN_ANY_ORDER: &str = "verify_asan_link_order=0";
/// A directory in memory, without a disk.
const SHARED_MEMORY: &str = "/dev/shm";
const DEFAULT_RING_EVENTS: usize = 1 << 13;
/// Time between two drains. If a ring was half full, the thread drains again at once.
const DRAINS_EVERY: Duration = Duration::from_millis(4);

/// Records the programs that it has prepared, between [`Recorder::begin`] and [`Recorder::end`].
#[derive(Debug)]
pub struct Recorder {
    library: PathBuf,
    /// Contains the library, and the traces during the recording.
    directory: TempDir,
    /// The number of the current recording: the count of calls of `begin`.
    begun: u32,
    ring_events: usize,
    /// The traces stay in `directory`, because they could not be written elsewhere.
    keeps_recordings: bool,
    shared: Option<Shared>,
    /// [`LOCK_FILE`], locked.
    _lock: File,
}

/// The area and the thread that drains it; created when the first program is prepared.
#[derive(Debug)]
struct Shared {
    directory: TempDir,
    area: Area,
    drain: Arc<Mutex<Drain>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Finished recordings.
#[derive(Debug)]
pub struct Collected {
    /// The recordings that were written: that of process `first` of [`Recorder::collect`], then the others by
    /// falling number of events.
    pub recorded: Vec<Recorded>,
    /// Parts that the recordings lack, in sentences.
    pub missing: Vec<String>,
    /// The error of a recording that could not be written to its file ([`RecordError::Kept`]).
    pub unwritten: Option<RecordError>,
}

/// The recording of one process.
#[derive(Debug)]
pub struct Recorded {
    /// The file of the recording.
    pub file: PathBuf,
    /// The process id.
    pub process: u32,
    /// The program's name.
    pub program: String,
    /// Number of threads in the recording.
    pub threads: usize,
    /// Number of recorded events.
    pub events: u64,
    /// Number of events that were lost because a ring was full or a write failed.
    pub lost: u64,
    /// Set if the process was killed before its recording ended, or a disk was full.
    pub is_cut_short: bool,
}

impl Recorder {
    /// Creates a recorder; nothing is recorded yet.
    ///
    /// # Errors
    ///
    /// [`RecordError::NoLibrary`], [`RecordError::Directory`].
    pub fn new() -> Result<Self, RecordError> {
        let place = library_place(std::env::temp_dir());
        remove_stale(&place);
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&place);
        let directory = directory.map_err(|source| failed(&place, source))?;
        let lock = create_locked(&directory.path().join(LOCK_FILE));
        let lock = lock.map_err(|source| failed(directory.path(), source))?;
        let library = put_library(directory.path()).map_err(|error| match error {
            Put::No(error) => error,
            Put::Io(source) => failed(directory.path(), source),
        })?;
        let ring_events = DEFAULT_RING_EVENTS;
        let (begun, keeps_recordings, shared) = (0, false, None);
        Ok(Self { library, directory, begun, ring_events, keeps_recordings, shared, _lock: lock })
    }

    /// Sets the number of events that each thread's ring holds (default: 8192). With larger rings, fewer
    /// events are lost. Has no effect after a program was prepared.
    #[must_use]
    pub fn ring_events(mut self, events: usize) -> Self {
        self.ring_events = events;
        self
    }

    /// Loads the library into the program, before its other libraries. Processes that the program starts are
    /// recorded as well.
    ///
    /// # Errors
    ///
    /// [`RecordError::Directory`]: the memory shared with the program cannot be created.
    pub fn prepare(&mut self, program: &mut Command) -> Result<(), RecordError> {
        let shared = self.shared()?.directory.path().to_owned();
        let mut preload = OsString::from(&self.library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        program.env("LD_PRELOAD", preload).env(DIRECTORY, shared);
        program.env(SANITIZER, with_option(std::env::var_os(SANITIZER), IN_ANY_ORDER));
        Ok(())
    }

    /// Returns the directory of the traces.
    fn spools(&self) -> PathBuf {
        self.directory.path().join("recordings")
    }

    fn shared(&mut self) -> Result<&mut Shared, RecordError> {
        if self.shared.is_none() {
            let spools = self.spools();
            std::fs::create_dir_all(&spools).map_err(|source| failed(&spools, source))?;
            private(&spools, 0o700).map_err(|source| failed(&spools, source))?;
            self.shared = Some(Shared::new(self.ring_events, spools)?);
        }
        Ok(self.shared.as_mut().expect("made above"))
    }

    /// Starts a recording in all prepared programs. Threads that run already record from their next wait on.
    ///
    /// # Errors
    ///
    /// [`RecordError::Directory`].
    pub fn begin(&mut self) -> Result<(), RecordError> {
        self.begun += 1;
        let number = self.begun;
        self.shared()?.lock().begin(number);
        Ok(())
    }

    /// Ends the recording in all prepared programs.
    pub fn end(&self) {
        if let Some(shared) = &self.shared {
            shared.lock().end();
        }
    }

    /// Lengthens every hold of the mutex at address `object` by `delay` while a recording runs; address 0
    /// stands for no mutex. Addresses are [`InstanceRow::object`](azekura_trace::analyze::InstanceRow) and
    /// are valid in one process only.
    pub fn plant(&self, object: u64, delay: Duration) {
        if let Some(shared) = &self.shared {
            let header = shared.area.header();
            // Relaxed: programs read both values from time to time.
            header.plant_ns.store(u32::try_from(delay.as_nanos()).unwrap_or(u32::MAX), Relaxed);
            header.plant.store(object, Relaxed);
        }
    }

    /// Returns the number of processes that have loaded the library so far.
    #[must_use]
    pub fn loaded(&self) -> u32 {
        self.shared.as_ref().map_or(0, |shared| shared.area.header().loaded.load(Relaxed))
    }

    /// Ends the recording, names the addresses in the last recording, and writes it. The trace of process
    /// `first` is written to `output`; if that process has no recording, the one with the most events is. The
    /// others are written to files beside `output`, with the process id appended to the name.
    ///
    /// # Errors
    ///
    /// [`RecordError`]: nothing was recorded, or none of the recordings could be read.
    pub fn collect(&mut self, output: &Path, first: u32) -> Result<Collected, RecordError> {
        self.collect_with(output, first, &KernelRecords::default())
    }

    /// Ends the recording as [`Recorder::collect`] does, and adds the kernel's events.
    ///
    /// # Errors
    ///
    /// The errors of [`Recorder::collect`].
    pub fn collect_with(
        &mut self,
        output: &Path,
        first: u32,
        seen: &KernelRecords,
    ) -> Result<Collected, RecordError> {
        self.end();
        let loaded = self.loaded();
        let Some(shared) = &self.shared else { return Err(RecordError::NotLoaded) };
        let mut missing = shared.missing();
        let mut finished = shared.lock().take_finished();
        finished.retain(|spooled| spooled.recorded() > 0);
        if finished.is_empty() {
            return Err(if loaded == 0 { RecordError::NotLoaded } else { RecordError::NothingRecorded });
        }
        finished.sort_by_key(|of| (of.process != first, std::cmp::Reverse(of.recorded()), of.process));
        let mut recorded = Vec::new();
        let (mut first_error, mut unwritten) = (None, None);
        let (mut names, mut files) = (Names::new(output), Files::default());
        for spooled in &finished {
            match write_one(spooled, seen, &mut files, names.next(spooled.process)) {
                Ok(one) => {
                    missing.extend(why_cut(spooled, &one));
                    recorded.push(one);
                }
                Err(error @ RecordError::Write { .. }) if unwritten.is_none() => unwritten = Some(error),
                Err(error) => {
                    missing.push(crate::error::in_full(&error));
                    first_error = first_error.or(Some(error));
                }
            }
        }
        let unwritten = unwritten.map(|error| self.keep(error));
        match first_error {
            Some(error) if recorded.is_empty() && unwritten.is_none() => Err(error),
            _ => Ok(Collected { recorded, missing, unwritten }),
        }
    }

    /// Returns the library's path if processes of the recorded programs still run. The programs that these
    /// start load the library, so it is not removed with the recorder.
    #[must_use]
    pub fn library_in_use(&self) -> Option<&Path> {
        let shared = self.shared.as_ref()?;
        (self.library.starts_with(self.directory.path()) && shared.lock().is_in_use())
            .then_some(self.library.as_path())
    }

    /// Keeps the recordings in the temporary directory, because they could not be written to the requested
    /// file.
    fn keep(&mut self, error: RecordError) -> RecordError {
        self.keeps_recordings = true;
        self.directory.disable_cleanup(true);
        // Without this file, no other recorder removes the directory.
        let _ = std::fs::remove_file(self.directory.path().join(LOCK_FILE));
        RecordError::Kept { path: self.spools(), source: Box::new(error) }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if self.library_in_use().is_some() {
            self.directory.disable_cleanup(true);
            if !self.keeps_recordings {
                let _ = std::fs::remove_dir_all(self.spools()); // otherwise, temporary files stay
            }
        }
    }
}

impl Shared {
    fn new(ring_events: usize, spools: PathBuf) -> Result<Self, RecordError> {
        let layout = Layout::new(ring_events);
        let info = session_info(&Options::default()).expect("no source of CPU time was insisted on");
        // Includes the memory of the first slots, for which a small `/dev/shm` has no room.
        let make = |place: &Path| -> io::Result<(TempDir, Area, Drain)> {
            let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
            private(directory.path(), 0o700)?;
            let file = create_locked(&directory.path().join(area::FILE))?;
            let area = Area::create(&file, layout)?;
            let drain = Drain::new(area, file, directory.path().to_owned(), spools.clone(), info.clone())?;
            Ok((directory, area, drain))
        };
        remove_stale(Path::new(SHARED_MEMORY));
        let temporary = std::env::temp_dir();
        let made = make(Path::new(SHARED_MEMORY)).or_else(|_| make(&temporary));
        let (directory, area, drain) = made.map_err(|source| failed(&temporary, source))?;
        // Relaxed: programs are started after these stores.
        area.header().cpu.store(info.cpu as u32, Relaxed);
        area.header().namespace.store(area::namespace(), Relaxed);
        let drain = Arc::new(Mutex::new(drain));
        let is_over = Arc::new(AtomicBool::new(false));
        let (theirs, over) = (Arc::clone(&drain), Arc::clone(&is_over));
        let work = move || {
            // Relaxed: a flag that publishes no other data.
            while !over.load(Relaxed) {
                let is_busy = theirs.lock().unwrap_or_else(PoisonError::into_inner).turn();
                if is_busy {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(DRAINS_EVERY);
                }
            }
        };
        let thread = std::thread::Builder::new().name("azekura-drain".into()).spawn(work);
        let thread = Some(thread.map_err(|source| failed(directory.path(), source))?);
        Ok(Self { directory, area, drain, is_over, thread })
    }

    fn lock(&self) -> MutexGuard<'_, Drain> {
        self.drain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the threads and processes that were not recorded because the area was full.
    fn missing(&self) -> Vec<String> {
        let header = self.area.header();
        let (threads, processes) = (&header.threads_missed, &header.processes_missed);
        let mut missing = Vec::new();
        let (threads, processes) = (threads.swap(0, Relaxed), processes.swap(0, Relaxed));
        if threads > 0 {
            missing.push(format!(
                "{threads} threads were not recorded, because no event buffer was free; smaller buffers \
                 (--ring) take more threads at a time"
            ));
        }
        if processes > 0 {
            missing.push(format!("{processes} processes were not recorded: there was no room for more"));
        }
        let sandboxed = header.sandboxed.swap(0, Relaxed); // Relaxed: a number for a message
        if sandboxed > 0 {
            missing.push(format!(
                "{sandboxed} processes restricted their system calls (seccomp): recorded up to there"
            ));
        }
        missing
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Relaxed: programs and the draining thread read these flags from time to time.
        self.area.header().command.store(0, Relaxed);
        self.is_over.store(true, Relaxed);
        let _ = self.thread.take().map(JoinHandle::join); // the thread returns no value
        self.lock().close();
    }
}

fn failed(path: &Path, source: io::Error) -> RecordError {
    RecordError::Directory { path: path.to_owned(), source }
}

fn private(path: &Path, mode: u32) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Names of the files of the recordings: the first one has the requested name.
struct Names<'o> {
    output: &'o Path,
    used: Vec<PathBuf>,
}

impl<'o> Names<'o> {
    fn new(output: &'o Path) -> Self {
        Self { output, used: Vec::new() }
    }

    fn next(&mut self, process: u32) -> PathBuf {
        let beside = |end: String| {
            let mut name = self.output.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        };
        // A process has two recordings if it executed another program (`exec`).
        let ends = (2_u32..).map(|n| format!(".{process}.{n}"));
        let names = [String::new(), format!(".{process}")].into_iter().chain(ends);
        let skipped = usize::from(!self.used.is_empty());
        let name = names.skip(skipped).map(beside).find(|name| !self.used.contains(name));
        let name = name.expect("there is no end of names");
        self.used.push(name.clone());
        name
    }
}

fn write_one(
    spooled: &Spooled,
    seen: &KernelRecords,
    files: &mut Files,
    file: PathBuf,
) -> Result<Recorded, RecordError> {
    let process = spooled.process;
    let mut trace = spooled.read().map_err(|source| RecordError::Read { process, source })?;
    seen.add_to(&mut trace);
    write(process, &name_with(trace, files, &spooled.blocked), file)
}

/// Returns the reason that a recording is incomplete, unless the only reason is the end of its process.
fn why_cut(spooled: &Spooled, recorded: &Recorded) -> Option<String> {
    let error = spooled.failed.as_ref()?;
    let (process, lost) = (spooled.process, recorded.lost);
    Some(format!(
        "of process {process} the recording could not be written to its end: {error}; {lost} events lost"
    ))
}

pub(crate) fn write(process: u32, trace: &Trace, file: PathBuf) -> Result<Recorded, RecordError> {
    let failed = |source| RecordError::Write { path: file.clone(), source };
    let mut out = File::create(&file).map_err(failed)?;
    trace.write_to(&mut out).map_err(failed)?;
    Ok(Recorded {
        file,
        process,
        program: trace.session.label.clone(),
        threads: trace.threads.len(),
        events: trace.event_count(),
        lost: trace.lost(),
        is_cut_short: trace.ending != Ending::Complete,
    })
}

/// The error of [`put_library`].
enum Put {
    No(RecordError),
    Io(io::Error),
}

impl From<io::Error> for Put {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Returns options of a sanitizer with one more, which takes effect last.
fn with_option(options: Option<OsString>, option: &str) -> OsString {
    let mut options = options.unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push(option);
    options
}

/// Returns the directory for temporary files as an absolute path. Returns `/tmp` if that path has a space, a
/// colon or `$`: the loader splits `LD_PRELOAD` at spaces and colons, and replaces words after `$`.
fn library_place(temporary: PathBuf) -> PathBuf {
    let place = std::path::absolute(&temporary).unwrap_or(temporary);
    let is_split = place.as_os_str().as_encoded_bytes().iter().any(|byte| b" :$".contains(byte));
    if is_split { PathBuf::from("/tmp") } else { place }
}

/// Writes the library to a file that every user can read, because the recorded program may run as another
/// user. Without the library the loader would print a warning. The recordings are in directories that only
/// the recorder's user can read.
fn put_library(directory: &Path) -> Result<PathBuf, Put> {
    if let Some(value) = std::env::var_os(OTHER_LIBRARY) {
        let path = std::path::absolute(&value).ok().filter(|path| path.is_file());
        let error = || RecordError::OtherLibrary { value: value.to_string_lossy().into_owned() };
        return path.ok_or_else(|| Put::No(error()));
    }
    if LIBRARY.is_empty() {
        return Err(Put::No(RecordError::NoLibrary));
    }
    let path = directory.join(LIBRARY_FILE);
    std::fs::write(&path, LIBRARY)?;
    private(&path, 0o644)?;
    private(directory, 0o711)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_that_are_kept_stay_when_the_next_recorder_starts() {
        if LIBRARY.is_empty() {
            return; // no recorder in this build
        }
        let mut recorder = Recorder::new().unwrap();
        let lock = recorder.directory.path().join(LOCK_FILE);
        assert!(lock.exists());
        let error = RecordError::NothingRecorded;
        assert!(matches!(recorder.keep(error), RecordError::Kept { .. }));
        assert!(!lock.exists());
        recorder.directory.disable_cleanup(false);
    }

    #[test]
    fn the_library_is_below_a_path_that_the_loader_reads_as_one() {
        let place = |temporary: &str| library_place(temporary.into());
        assert_eq!(place("/var/tmp"), Path::new("/var/tmp"));
        assert!(place("here").is_absolute());
        for split in ["/my files", "/a:b", "/$LIB"] {
            assert_eq!(place(split), Path::new("/tmp"), "{split}");
        }
    }
}
