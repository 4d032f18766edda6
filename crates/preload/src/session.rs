//! When recording begins and ends in this process; forks; the page that the recorder shares with us.
//!
//! `azekura trace record` gives a directory in the environment. In it lies a page, [`Control`], that all
//! recorded processes map; each writes its own trace file beside it. A process records from its first thread
//! or its first contended wait on: a process without threads leaves no file.
//!
//! | command | means |
//! |---|---|
//! | 0 | pass everything on |
//! | n | the n-th recording is under way |
//!
//! A thread of ours looks at the command every few milliseconds and ends the recording when it has changed;
//! so does the end of the process. A killed process leaves a file that is cut short.

use crate::quiet::{is_quiet, quietly, stay_quiet};
use crate::sites::STARTS;
use azekura_trace::{Operation, Options};
use std::cell::Cell;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};
use std::{mem, ptr};

/// The environment's name of the directory. The recorder knows it too.
const DIRECTORY: &CStr = c"AZEKURA_TRACE_DIR";
/// Events a thread's ring holds.
const RING_EVENTS: &CStr = c"AZEKURA_TRACE_RING";
const DEFAULT_RING_EVENTS: usize = 1 << 13;
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The shared page: what the recorder wants, and what it learns.
#[repr(C)]
struct Control {
    command: AtomicU32,
    /// Processes into which this library was loaded.
    loaded: AtomicU32,
    /// Recordings that could not be started.
    failed: AtomicU32,
    /// How long the mutex below is to be held longer than its program wants, ns.
    plant_ns: AtomicU32,
    /// A mutex, or 0: see [`planted`].
    plant: AtomicU64,
}

/// Null until the constructor found the page, and again when this process is to record no more.
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(ptr::null_mut());
/// The command under which this process records, 0 when it does not.
static RECORDING: AtomicU32 = AtomicU32::new(0);
/// The process that records; another after a fork.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// Held while a recording is started or stopped.
static TURN: Mutex<()> = Mutex::new(());

static MAIN: Operation = Operation::at("main", "", 0);

thread_local! {
    /// The recording that this thread's operation was told to.
    static JOINED: Cell<u32> = const { Cell::new(0) };
    /// What this thread began with; null for the first thread.
    static START: Cell<*const Operation> = const { Cell::new(ptr::null()) };
}

fn control() -> Option<&'static Control> {
    // Acquire: pairs with the Release in `load`.
    let page = CONTROL.load(Acquire);
    // SAFETY: null, or a mapping that is never undone; its fields are atomics, shared with other processes.
    unsafe { page.as_ref() }
}

/// The command now; 0 when nobody records.
#[inline]
fn command() -> u32 {
    control().map_or(0, |control| control.command.load(Relaxed))
}

/// Whether a hook is to do more than pass on.
#[inline]
pub(crate) fn is_on() -> bool {
    command() != 0 && !is_quiet()
}

/// Runs `record` as part of the recording under way, which begins now if it has not, with the thread's
/// operation told.
#[inline]
pub(crate) fn recording<R>(record: impl FnOnce() -> R) -> R {
    quietly(|| {
        let command = command();
        if JOINED.get() != command {
            join(command);
        }
        record()
    })
}

/// As [`recording`], for what is not worth the beginning of a recording.
#[inline]
pub(crate) fn if_recording(record: impl FnOnce()) {
    let now = RECORDING.load(Relaxed);
    if now != 0 {
        quietly(|| {
            if JOINED.get() != now {
                join(now);
            }
            record();
        });
    }
}

/// Whether a recording is under way in this process: for hooks that are no reason to begin one.
#[inline]
pub(crate) fn is_recording() -> bool {
    RECORDING.load(Relaxed) != 0 && is_on()
}

/// Holds a mutex that was just taken longer, if the recorder asks for it: a delay planted under one lock
/// shows up in whatever else counts the waits for it, and so tells what that calls it.
#[inline]
pub(crate) fn planted(object: usize) {
    if let Some(control) = control()
        && control.plant.load(Relaxed) == object as u64
    {
        let until = Instant::now() + Duration::from_nanos(control.plant_ns.load(Relaxed).into());
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

/// This thread begins with this function.
pub(crate) fn thread_begins(function: usize) {
    START.set(quietly(|| STARTS.of("thread", function)));
    if is_on() {
        recording(|| ());
    }
}

#[cold]
fn join(command: u32) {
    if command == 0 {
        return;
    }
    if RECORDING.load(Acquire) != command {
        begin(command);
    }
    JOINED.set(command);
    // SAFETY: null, or from `STARTS.of`, which gives out statics.
    let operation: &'static Operation = unsafe { START.get().as_ref() }.unwrap_or(&MAIN);
    // Ended by the thread's end, or the recording's: see `Recorder::drop` and crates/record.
    mem::forget(azekura_trace::operation(operation));
}

fn begin(command: u32) {
    let _turn = TURN.lock();
    if RECORDING.load(Relaxed) == command {
        return;
    }
    let _ = azekura_trace::stop(); // one of an earlier command, if its end was not noticed yet
    let process = std::process::id();
    PROCESS.store(process, Relaxed);
    let Some(directory) = variable(DIRECTORY) else { return };
    let path = PathBuf::from(directory).join(format!("{process}-{command}.trace"));
    let ring_events = variable(RING_EVENTS).and_then(|n| n.parse().ok()).unwrap_or(DEFAULT_RING_EVENTS);
    let options = Options {
        file: Some(path),
        ring_events,
        modules: true,
        collector_begins: Some(stay_quiet),
        label: program(),
        ..Options::default()
    };
    let started = azekura_trace::start(options).is_ok();
    // Also when it failed: one try for each command. Before the watching thread looks.
    RECORDING.store(command, Release);
    if !(started && watch(command))
        && let Some(control) = control()
    {
        control.failed.fetch_add(1, Relaxed);
    }
}

/// Starts the thread that ends the recording when the command changes.
fn watch(command_then: u32) -> bool {
    let look = move || {
        stay_quiet();
        while command() == command_then && RECORDING.load(Relaxed) == command_then {
            std::thread::sleep(LOOK_EVERY);
        }
        end(command_then);
    };
    azekura_trace::without_signals(|| {
        std::thread::Builder::new().name("azekura-watch".to_owned()).stack_size(128 << 10).spawn(look).is_ok()
    })
}

fn end(command: u32) {
    let _turn = TURN.lock();
    if RECORDING.load(Relaxed) == command {
        let _ = azekura_trace::stop(); // what went wrong shows in the file
        RECORDING.store(0, Release);
    }
}

/// Ends the recording if this process has one: it is about to end, or to become another program.
pub(crate) fn process_ends() {
    let recording = RECORDING.load(Acquire);
    if recording != 0 && PROCESS.load(Relaxed) == std::process::id() {
        // Threads that still run must not begin another.
        CONTROL.store(ptr::null_mut(), Release);
        quietly(|| end(recording));
    }
}

fn program() -> String {
    std::fs::read_link("/proc/self/exe")
        .ok()
        .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
        .unwrap_or_default()
}

fn variable(name: &CStr) -> Option<String> {
    // SAFETY: a name ends in NUL, and so does the value, which is copied at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

/// The loader calls it before the program's `main`.
extern "C" fn load() {
    quietly(|| {
        let Some(page) = variable(DIRECTORY).and_then(|directory| map(&directory)) else { return };
        // SAFETY: just mapped, for good.
        unsafe { &*page }.loaded.fetch_add(1, Relaxed);
        // SAFETY: the handler is a function without state.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        // Release: pairs with the Acquire in `control`.
        CONTROL.store(page, Release);
    });
}

/// The loader calls it after the program's end.
extern "C" fn unload() {
    process_ends();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;

/// In the child of a fork: it has one thread and no collector.
unsafe extern "C" fn forked() {
    quietly(|| {
        azekura_trace::forget_after_fork();
        RECORDING.store(0, Relaxed);
        JOINED.set(0);
        // `TURN` may be held by a thread that is not here: then this process records nothing.
        if TURN.try_lock().is_err() {
            CONTROL.store(ptr::null_mut(), Release);
        }
    });
}

fn map(directory: &str) -> Option<*mut Control> {
    let file =
        std::fs::OpenOptions::new().read(true).write(true).open(format!("{directory}/control")).ok()?;
    if file.metadata().ok()?.len() < size_of::<Control>() as u64 {
        return None;
    }
    let (rights, fd) = (libc::PROT_READ | libc::PROT_WRITE, std::os::fd::AsRawFd::as_raw_fd(&file));
    // SAFETY: a new mapping, wherever the kernel likes; the file is long enough.
    let page = unsafe { libc::mmap(ptr::null_mut(), size_of::<Control>(), rights, libc::MAP_SHARED, fd, 0) };
    (page != libc::MAP_FAILED).then_some(page.cast())
}
