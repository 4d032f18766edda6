//! The library in the program, the page shared with it, its files.
//!
//! The page is a file in a directory of our own; recorded processes map it. We write the command into it and
//! read what they count, by ordinary reads and writes, which the kernel keeps the same as the mapping.

use crate::error::RecordError;
use crate::kernel::Seen;
use crate::name::name;
use azekura_trace::file::{Ending, Trace};
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The library that is loaded into programs, built by this crate's build script; empty where it cannot be.
static LIBRARY: &[u8] = include_bytes!(env!("AZEKURA_PRELOAD_BUILT"));
const LIBRARY_FILE: &str = "libazekura_preload.so";
/// The environment's name of another library to load instead of ours.
const OTHER_LIBRARY: &str = "AZEKURA_PRELOAD";
/// The environment's name of the directory; the library knows it too.
const DIRECTORY: &str = "AZEKURA_TRACE_DIR";
const RING_EVENTS: &str = "AZEKURA_TRACE_RING";
const PAGE_BYTES: u64 = 4096;
/// Longest time to wait for processes to end their recordings.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// What is shared with recorded processes: four numbers of 32 bits, and one of 64.
#[derive(Clone, Copy)]
enum Word {
    Command = 0,
    Loaded = 4,
    Failed = 8,
    PlantNs = 12,
    Plant = 16,
}

/// Records programs that were prepared by it, between [`Recorder::begin`] and [`Recorder::end`].
#[derive(Debug)]
pub struct Recorder {
    library: PathBuf,
    directory: TempDir,
    page: File,
    /// How often `begin` was called: the number of the recording under way.
    begun: u32,
    ring_events: Option<usize>,
}

/// One process's recording.
#[derive(Debug)]
pub struct Recorded {
    /// Where it was written.
    pub file: PathBuf,
    /// The process.
    pub process: u32,
    /// The program's name.
    pub program: String,
    /// Threads that recorded something.
    pub threads: usize,
    /// Events.
    pub events: u64,
    /// Events that found their ring full.
    pub lost: u64,
    /// The process was killed, or became another program, before its recording ended.
    pub is_cut_short: bool,
}

impl Recorder {
    /// A recorder that records nothing yet.
    ///
    /// # Errors
    ///
    /// [`RecordError::NoLibrary`], [`RecordError::Directory`].
    pub fn new() -> Result<Self, RecordError> {
        let directory = tempfile::Builder::new().prefix("azekura-record-").tempdir();
        let directory = directory.map_err(|source| failed(&std::env::temp_dir(), source))?;
        let library = put_library(directory.path())?;
        let page = make_page(directory.path()).map_err(|source| failed(directory.path(), source))?;
        Ok(Self { library, directory, page, begun: 0, ring_events: None })
    }

    /// Events that each thread's ring holds, instead of 8192; more lose less.
    #[must_use]
    pub fn ring_events(mut self, events: usize) -> Self {
        self.ring_events = Some(events);
        self
    }

    /// Puts the library before the program's own. What the program starts in turn is recorded as well.
    pub fn prepare(&self, program: &mut Command) {
        let mut preload = OsString::from(&self.library);
        if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        program.env("LD_PRELOAD", preload).env(DIRECTORY, self.directory.path());
        if let Some(events) = self.ring_events {
            program.env(RING_EVENTS, events.to_string());
        }
    }

    /// From now on prepared programs record; those that run already, from their next wait on.
    ///
    /// # Errors
    ///
    /// [`RecordError::Directory`].
    pub fn begin(&mut self) -> Result<(), RecordError> {
        self.begun += 1;
        self.command(self.begun)
    }

    /// Ends the recording in all prepared programs, and waits until their files are whole.
    ///
    /// # Errors
    ///
    /// [`RecordError::Directory`].
    pub fn end(&self) -> Result<(), RecordError> {
        self.command(0)?;
        let until = Instant::now() + ENDS_WITHIN;
        while Instant::now() < until && self.files()?.iter().any(|file| is_alive(file) && !is_whole(file)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// From now on, while recording, every hold of the mutex at this address lasts longer by `delay`; 0 is no
    /// mutex. Addresses are [`InstanceRow::object`](azekura_trace::analyze::InstanceRow), good in one process
    /// only.
    ///
    /// # Errors
    ///
    /// [`RecordError::Directory`].
    pub fn plant(&self, object: u64, delay: Duration) -> Result<(), RecordError> {
        let ns = u32::try_from(delay.as_nanos()).unwrap_or(u32::MAX);
        let written = self
            .page
            .write_all_at(&ns.to_ne_bytes(), Word::PlantNs as u64)
            .and_then(|()| self.page.write_all_at(&object.to_ne_bytes(), Word::Plant as u64));
        written.map_err(|source| failed(self.directory.path(), source))
    }

    /// Processes that loaded the library so far.
    #[must_use]
    pub fn loaded(&self) -> u32 {
        self.read(Word::Loaded)
    }

    /// Ends the recording, gives names to what was recorded last, and writes it: process `first` into
    /// `output` (if it recorded, else the one with the most events), others beside it with their number at
    /// the end.
    ///
    /// # Errors
    ///
    /// [`RecordError`]: nothing was recorded, or it could not be read or written.
    pub fn collect(&self, output: &Path, first: u32) -> Result<Vec<Recorded>, RecordError> {
        self.collect_with(output, first, &Seen::default())
    }

    /// As [`Recorder::collect`], with what the kernel saw meanwhile.
    ///
    /// # Errors
    ///
    /// [`RecordError`], likewise.
    pub fn collect_with(&self, output: &Path, first: u32, seen: &Seen) -> Result<Vec<Recorded>, RecordError> {
        self.end()?;
        let mut traces = Vec::new();
        for file in self.files()? {
            let Some(process) = process_of(&file, self.begun) else { continue };
            match Trace::read(&file) {
                // One that ended at the moment it began has nothing to tell.
                Ok(trace) if trace.event_count() > 0 => traces.push((process, trace)),
                Ok(_) => {}
                // A process that died while it began to record.
                Err(azekura_trace::ReadError::NoHead { .. }) => {}
                Err(source) => return Err(RecordError::Read { process, source }),
            }
        }
        if traces.is_empty() {
            return Err(self.why_nothing());
        }
        traces.sort_by_key(|(process, trace)| {
            (*process != first, std::cmp::Reverse(trace.event_count()), *process)
        });
        let write = |(index, (process, mut trace)): (usize, (u32, Trace))| {
            seen.add_to(&mut trace);
            let file = if index == 0 { output.to_owned() } else { beside(output, process) };
            write(process, &name(trace), file)
        };
        traces.into_iter().enumerate().map(write).collect()
    }

    fn why_nothing(&self) -> RecordError {
        match (self.read(Word::Failed), self.loaded()) {
            (0, 0) => RecordError::NotLoaded,
            (0, _) => RecordError::NothingRecorded,
            (failed, _) => RecordError::Failed { failed, path: self.directory.path().to_owned() },
        }
    }

    fn files(&self) -> Result<Vec<PathBuf>, RecordError> {
        let entries =
            std::fs::read_dir(self.directory.path()).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let entries = entries.map_err(|source| failed(self.directory.path(), source))?;
        Ok(entries
            .iter()
            .map(std::fs::DirEntry::path)
            .filter(|p| process_of(p, self.begun).is_some())
            .collect())
    }

    fn command(&self, command: u32) -> Result<(), RecordError> {
        let written = self.page.write_all_at(&command.to_ne_bytes(), Word::Command as u64);
        written.map_err(|source| failed(self.directory.path(), source))
    }

    fn read(&self, word: Word) -> u32 {
        let mut bytes = [0; 4];
        self.page.read_exact_at(&mut bytes, word as u64).map_or(0, |()| u32::from_ne_bytes(bytes))
    }
}

fn failed(path: &Path, source: io::Error) -> RecordError {
    RecordError::Directory { path: path.to_owned(), source }
}

fn make_page(directory: &Path) -> io::Result<File> {
    let path = directory.join("control");
    let page = File::options().read(true).write(true).create_new(true).open(&path)?;
    page.set_len(PAGE_BYTES)?;
    if rustix::process::geteuid().is_root() {
        // A server that gives up its rights after the start must still be able to write here.
        std::fs::set_permissions(directory, Permissions::from_mode(0o1777))?;
        page.set_permissions(Permissions::from_mode(0o666))?;
    }
    Ok(page)
}

/// The process whose file of the `n`-th recording this is.
fn process_of(file: &Path, n: u32) -> Option<u32> {
    let (process, number) = file.file_name()?.to_str()?.strip_suffix(".trace")?.split_once('-')?;
    (number.parse() == Ok(n)).then(|| process.parse().ok())?
}

fn is_alive(file: &Path) -> bool {
    let process = file.file_name().and_then(|name| name.to_str()).and_then(|name| name.split('-').next());
    process.is_some_and(|process| Path::new("/proc").join(process).exists())
}

fn is_whole(file: &Path) -> bool {
    Trace::read(file).is_ok_and(|trace| trace.ending == Ending::Complete)
}

fn beside(output: &Path, process: u32) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(format!(".{process}"));
    name.into()
}

pub(crate) fn write(process: u32, trace: &Trace, file: PathBuf) -> Result<Recorded, RecordError> {
    std::fs::write(&file, trace.to_bytes())
        .map_err(|source| RecordError::Write { path: file.clone(), source })?;
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

/// Writes the library where the loader of programs finds it: into our directory, which lasts as long as the
/// recorder.
fn put_library(directory: &Path) -> Result<PathBuf, RecordError> {
    if let Some(value) = std::env::var_os(OTHER_LIBRARY) {
        let path = std::path::absolute(&value).ok().filter(|path| path.is_file());
        return path.ok_or_else(|| RecordError::OtherLibrary { value: value.to_string_lossy().into_owned() });
    }
    if LIBRARY.is_empty() {
        return Err(RecordError::NoLibrary);
    }
    let path = directory.join(LIBRARY_FILE);
    std::fs::write(&path, LIBRARY).map_err(|source| failed(&path, source))?;
    Ok(path)
}
