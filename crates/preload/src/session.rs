//! The recorder's area of this process, mapped when the library is loaded.
//!
//! `azekura trace record` passes a directory in the environment, which contains the area. All recorded
//! processes map the area while they are loaded, so later changes of a program's rights, files or descriptors
//! have no effect. A process records from its first new thread on, or from its first wait for a contended
//! lock, a file sync or epoll events. A process without any of these records nothing.
//!
//! The pointer to the session is in a page that the kernel clears in the child of a fork. So a child without
//! this library's fork handler (a bare `clone`) records nothing, and never writes into a slot of its parent.

use crate::callers;
use crate::local::{is_quiet, local, quietly};
use crate::recorder::{Thread, join};
use azekura_trace::area::{self, Area, Header, ProcessSlot, flag, state};
use azekura_trace::parts::{cpu_ns_of, detect_clock, sample, time_source};
use std::ffi::{CStr, c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};
use std::time::{Duration, Instant};

/// [`area::DIRECTORY`] as a C string.
const DIRECTORY: &CStr = c"AZEKURA_TRACE_DIR";

/// The state of recording in this process.
pub(crate) struct Session {
    pub(crate) area: Area,
    process_id: u32,
    /// The number in [`ProcessSlot::owner`].
    number: u32,
    process_index: usize,
    owner: u64,
    /// The program's serial number.
    serial: u32,
}

impl Session {
    pub(crate) fn process_id(&self) -> u32 {
        self.process_id
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn process_index(&self) -> usize {
        self.process_index
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    fn header(&self) -> &'static Header {
        self.area.header()
    }

    pub(crate) fn process(&self) -> &'static ProcessSlot {
        self.area.process(self.process_index)
    }
}

/// A null session pointer, used until the constructor has created a page.
static NOWHERE: AtomicPtr<Session> = AtomicPtr::new(ptr::null_mut());
/// The word with the session's address: first [`NOWHERE`], then a word in a page of its own. The word is null
/// until the constructor has found the area, and after the end of recording.
static PAGE: AtomicPtr<AtomicPtr<Session>> = AtomicPtr::new((&raw const NOWHERE).cast_mut());
/// The session's memory. Written by the constructor, and in the child of a fork, while the process has one
/// thread.
static mut SESSION: MaybeUninit<Session> = MaybeUninit::uninit();
/// The key with the destructor that records a thread's end; [`NO_KEY`] if each key that was free would
/// allocate.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;
/// The planted object before the area is mapped: none.
static NO_PLANT: AtomicU64 = AtomicU64::new(0);
/// The word with the address of the mutex that is held longer: first [`NO_PLANT`], then a word in the area's
/// header.
static PLANT: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NO_PLANT).cast_mut());
/// Number of slots that this process may use. Slots with larger numbers may be unmapped.
static SLOTS: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Set when the program restricts its system calls. The children of forks inherit the restriction.
static IS_SANDBOXED: AtomicBool = AtomicBool::new(false);

#[inline]
fn word() -> &'static AtomicPtr<Session> {
    // SAFETY: the static, or the page of `make_page`, which is never unmapped. Relaxed: stored while the
    // process had one thread.
    unsafe { &*PAGE.load(Relaxed) }
}

#[inline]
fn session() -> Option<&'static Session> {
    // Acquire: pairs with the Release in `register`.
    let session = word().load(Acquire);
    // SAFETY: null or SESSION, which is written before its address is stored.
    unsafe { session.as_ref() }
}

/// Returns the number of the current recording; 0 if there is none.
#[inline]
fn command() -> u32 {
    session().map_or(0, |session| session.header().command.load(Relaxed))
}

/// Returns `true` if hooks record; otherwise, they only call the next function.
#[inline]
pub(crate) fn is_on() -> bool {
    command() != 0 && !is_quiet()
}

/// Runs `record` with this thread's recorder for the current recording, which is created now if necessary.
#[inline]
pub(crate) fn recording<R>(record: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    let session = session()?;
    let command = session.header().command.load(Relaxed);
    if command == 0 {
        return None;
    }
    quietly(|| {
        let thread = if local().command.get() == command && !local().thread.get().is_null() {
            local().thread.get()
        } else {
            joined(session, command)
        };
        // SAFETY: null, or this thread's own recorder, which lives as long as the thread. `quietly` prevents
        // a second reference.
        unsafe { thread.as_mut() }.map(record)
    })
}

/// Runs `record` as [`recording`] does, but only if this process records already: for calls that do not start
/// a recording.
#[inline]
pub(crate) fn if_recording<R>(record: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    if is_recording() { recording(record) } else { None }
}

/// Starts the recording of this process, if one was requested and has not started.
#[inline]
pub(crate) fn begins() {
    if is_on() && !is_recording() {
        recording(|_| ());
    }
}

/// Returns `true` if this process has begun to record.
#[inline]
pub(crate) fn is_recording() -> bool {
    is_on() && (!local().thread.get().is_null() || session().is_some_and(has_begun))
}

fn has_begun(session: &Session) -> bool {
    session.process().flags.load(Relaxed) & flag::RECORDS != 0
}

/// Returns `true` if the hold that begins is not recorded; counts it in this case.
#[inline]
pub(crate) fn passes_over_hold() -> bool {
    let left = local().holds_left.get();
    if left > 1 {
        local().holds_left.set(left - 1);
    }
    left > 1
}

/// Returns `true` if the recorder requests a longer hold of the mutex at `object`.
#[inline]
pub(crate) fn is_planted(object: usize) -> bool {
    // SAFETY: the static, or the header of the area, which is never unmapped. Relaxed: the pointer was stored
    // while the process had one thread, and the value may be outdated.
    unsafe { (*PLANT.load(Relaxed)).load(Relaxed) == object as u64 }
}

/// Delays the holder of a mutex that was just taken, if the recorder requests it. The delay shows up in any
/// other statistics about the lock, and so identifies the lock in them.
#[inline]
pub(crate) fn planted(object: usize) {
    if is_planted(object)
        && let Some(session) = session()
    {
        let until = Instant::now() + Duration::from_nanos(session.header().plant_ns.load(Relaxed).into());
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

/// Records the function that this thread begins with.
pub(crate) fn thread_begins(function: usize) {
    local().start.set(function);
    if is_on() {
        recording(|_| ());
    }
}

#[cold]
#[inline(never)]
fn joined(session: &Session, command: u32) -> *mut Thread {
    /// A thread without a slot searches for one in every call with this number, and as soon as there are more
    /// slots.
    const LOOK_EVERY: u32 = 16;
    let local = local();
    let is_first = local.command.replace(command) != command;
    if local.ended.get() {
        return ptr::null_mut();
    }
    leave();
    if is_first {
        local.looks.set(0);
    }
    let looks = local.looks.get();
    local.looks.set(looks.wrapping_add(1));
    let ready = session.header().ready.load(Relaxed); // Relaxed: `join` reads it again
    if !looks.is_multiple_of(LOOK_EVERY) && local.ready.replace(ready) == ready {
        return ptr::null_mut();
    }
    local.ready.set(ready);
    begin(session);
    let thread = join(session, command, is_first);
    local.forget();
    local.command.set(command);
    local.thread.set(thread);
    let key = KEY.load(Relaxed); // Relaxed: stored while the process had one thread
    if key != NO_KEY && !thread.is_null() {
        // SAFETY: a key of this library; only whether its value is null matters. Allocates nothing: see
        // `make_key`.
        unsafe { libc::pthread_setspecific(key, thread.cast()) };
    }
    thread
}

/// Counts a wait of this thread if the thread has no slot.
pub(crate) fn misses_wait() {
    if let Some(session) = session()
        && local().thread.get().is_null()
        && local().command.get() == command()
        && !local().ended.get()
    {
        session.process().waits_missed.fetch_add(1, Relaxed);
    }
}

/// Returns the number of slots that this process may use. Another thread may reduce it at any time.
pub(crate) fn usable_slots() -> usize {
    SLOTS.load(Relaxed) // Relaxed: `is_usable` checks the slot that is claimed
}

/// Returns `true` if this process may use the slot that the calling thread has just claimed.
pub(crate) fn is_usable(slot: usize) -> bool {
    // SeqCst: pairs with the fence in `limit_slots`. This thread finds the new number of slots, or that one
    // finds the claim.
    fence(SeqCst);
    slot < SLOTS.load(Relaxed)
}

/// Unmaps slots that this process does not use. Called when the program limits its memory to `bytes`, because
/// the limit counts the whole area.
pub(crate) fn limit_slots(bytes: u64) {
    let Some(session) = session() else { return };
    if session.process_id != std::process::id() {
        return; // the child of a vfork, in its parent's memory
    }
    quietly(|| {
        let area = session.area;
        let slots = area.layout().slots_of_limited(usize::try_from(bytes).unwrap_or(usize::MAX));
        let before = SLOTS.fetch_min(slots, Relaxed);
        // SeqCst: pairs with the fence in `is_usable`.
        fence(SeqCst);
        // Relaxed: ordered by the fence. Only this process writes its own number.
        let is_used = |index| area.state(index).load(Relaxed) >> 32 == u64::from(session.number);
        // SAFETY: slots before the earlier number were never unmapped. From now on, this process uses no slot
        // from the new number on, except those that its threads have claimed.
        unsafe { area.unmap(slots..before, is_used) };
    });
}

/// Starts the recording of this process, if it has not started.
fn begin(session: &Session) {
    let process = session.process();
    if process.flags.load(Relaxed) & flag::RECORDS != 0 {
        return;
    }
    let now = sample(time_source());
    if process.begin[0].compare_exchange(0, now.ticks, Relaxed, Relaxed).is_ok() {
        process.begin[1].store(now.monotonic_ns, Relaxed);
        process.begin[2].store(now.process_cpu_ns, Relaxed);
        // Release: pairs with the Acquire of the recorder; the three clocks are visible.
        process.flags.fetch_or(flag::RECORDS, Release);
    }
}

/// Closes the slot of this thread, if it has one.
fn leave() {
    let thread = local().thread.replace(ptr::null_mut());
    // SAFETY: null, or this thread's own recorder; the callers are inside `quietly`.
    if let Some(thread) = unsafe { thread.as_mut() } {
        thread.leave();
    }
}

/// Records a thread's end: the destructor of [`KEY`].
unsafe extern "C" fn thread_ends(_value: *mut c_void) {
    quietly(|| {
        if session().is_some() {
            leave();
        }
        local().ended.set(true);
    });
}

/// Ends the recording of this process, which is about to end.
pub(crate) fn process_ends() {
    let Some(session) = session() else { return };
    if session.process_id != std::process::id() {
        return; // the child of a vfork, in its parent's memory
    }
    quietly(|| {
        // AcqRel: exactly one thread records the end.
        if word().swap(ptr::null_mut(), AcqRel).is_null() {
            return;
        }
        let process = session.process();
        // Also without a recording, the entry shows that the process has replaced earlier programs by `exec`,
        // so only the recorder frees it. It cannot look up a process of another PID namespace, which records
        // its end therefore.
        let is_foreign = session.number & area::FOREIGN != 0;
        if process.flags.load(Relaxed) & flag::RECORDS == 0 && !is_foreign {
            return;
        }
        leave();
        let now = sample(time_source());
        let slots = session.area.slots_in_use();
        // Relaxed: only slots of this process match
        let live = u64::from(session.number) << 32 | state::LIVE;
        for index in (0..slots).filter(|&index| session.area.state(index).load(Relaxed) == live) {
            let slot = session.area.slot(index);
            if let Some(cpu) = cpu_ns_of(slot.os_id.load(Relaxed)) {
                // Relaxed: published by ENDED below.
                slot.end[1].store(cpu, Relaxed);
                slot.end[0].store(now.ticks, Relaxed);
            }
        }
        // Relaxed: published by ENDED below.
        process.end[0].store(now.ticks, Relaxed);
        process.end[1].store(now.monotonic_ns, Relaxed);
        process.end[2].store(now.process_cpu_ns, Relaxed);
        // Release: pairs with the Acquire of the recorder; all stores above are visible.
        process.flags.fetch_or(flag::ENDED, Release);
    });
}

/// Ends the recording of this process, which is about to restrict its system calls (seccomp): the kernel may
/// end a program that makes others, and those of a hook would be others.
pub(crate) fn sandboxes() {
    let Some(session) = session() else { return };
    // The child of a vfork restricts itself only, in its parent's memory.
    if session.process_id == std::process::id() {
        // Relaxed: read in the child of a fork.
        IS_SANDBOXED.store(true, Relaxed);
        session.header().sandboxed.fetch_add(1, Relaxed);
        process_ends();
    }
}

fn variable(name: &CStr) -> Option<String> {
    // SAFETY: the name ends with NUL. So does the value, which is copied at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
    }
}

/// Maps the area and prepares the recording. Called by the loader before the program's `main`. Everything
/// that must be allocated, opened or looked up is done here.
extern "C" fn load() {
    quietly(|| {
        callers::check_unwinder();
        let Some(directory) = variable(DIRECTORY) else { return };
        let Some(area) = attach(&directory) else { return };
        let serial = area.header().loaded.fetch_add(1, Relaxed) + 1;
        write_maps(&directory, serial);
        PLANT.store(ptr::from_ref(&area.header().plant).cast_mut(), Relaxed);
        make_page();
        make_key();
        // SAFETY: the handlers are functions without state. Handlers of `quick_exit` run in reverse order, so
        // this one is the last.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            __cxa_at_quick_exit(quick_exits, ptr::null_mut());
        }
        detect_clock();
        register(area, serial);
    });
}

/// Maps the recorder's area.
fn attach(directory: &str) -> Option<Area> {
    let path = format!("{directory}/{}", area::FILE);
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(path).ok()?;
    Area::open(&file)
}

/// Writes the program's path and mappings to a file for the recorder, because the program may have ended when
/// the recorder needs them.
fn write_maps(directory: &str, serial: u32) {
    let Ok(mut maps) = File::open("/proc/self/maps") else { return };
    let mut text =
        std::fs::read_link("/proc/self/exe").unwrap_or_default().into_os_string().into_encoded_bytes();
    text.push(b'\n');
    let path = format!("{directory}/{serial}.maps");
    if maps.read_to_end(&mut text).is_ok()
        && fits_in_file(text.len())
        && let Ok(mut file) = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    {
        let _ = file.write_all(&text); // without the file, the recorder asks the kernel
    }
}

/// Returns `true` if this process may write files of `len` bytes. A write above the limit would end the
/// program (SIGXFSZ).
fn fits_in_file(len: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills `limit`.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) == 0 && limit.rlim_cur >= len as u64 }
}

/// Creates a page that the kernel clears in the child of a fork.
fn make_page() {
    const LEN: usize = 4096;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address that the kernel chooses. If it cannot be cleared, it is used like
    // NOWHERE.
    unsafe {
        let page = libc::mmap(ptr::null_mut(), LEN, rights, kind, -1, 0);
        if page != libc::MAP_FAILED {
            libc::madvise(page, LEN, libc::MADV_WIPEONFORK);
            PAGE.store(page.cast(), Relaxed);
        }
    }
}

/// Creates a key with a destructor that records ends of threads. The C library stores the values of the first
/// 32 keys in the thread itself. It calls `calloc` for others, so these are not used; the recorder then
/// detects ends of threads by itself.
fn make_key() {
    const FIRST: u32 = 32;
    let mut key = 0;
    // SAFETY: the destructor is a function without state.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } == 0 && key < FIRST {
        KEY.store(key, Relaxed);
    }
}

/// Claims an entry in the table of processes. If none is free, this process is not recorded.
fn register(area: Area, serial: u32) {
    let process_id = std::process::id();
    let header = area.header();
    let number = match (header.namespace.load(Relaxed), area::namespace()) {
        (theirs, own) if theirs == own || theirs == 0 || own == 0 => process_id,
        (_, own) => area::foreign(own, process_id),
    };
    let owner = u64::from(number) << 32 | u64::from(header.tags.fetch_add(1, Relaxed) + 1);
    let free = (0..area::PROCESSES).find(|&index| {
        let word = &area.process(index).owner;
        // Acquire: pairs with the Release of the recorder that freed the entry.
        word.load(Relaxed) == 0 && word.compare_exchange(0, owner, Acquire, Relaxed).is_ok()
    });
    let Some(process_index) = free else {
        header.processes_missed.fetch_add(1, Relaxed);
        return;
    };
    area.process(process_index).serial.store(serial, Relaxed);
    // SAFETY: the process has one thread, and no reference to an earlier value is in use.
    let session = unsafe {
        let session = &raw mut SESSION;
        (*session).write(Session { area, process_id, number, process_index, owner, serial });
        session.cast::<Session>()
    };
    // Release: pairs with the Acquire in `session`.
    word().store(session, Release);
}

/// Registers the child of a fork, which has one thread.
unsafe extern "C" fn forked() {
    quietly(|| {
        local().forget();
        // SAFETY: initialized by `load`, which has registered this handler.
        let (area, serial) = unsafe {
            let session = &*(&raw const SESSION).cast::<Session>();
            (session.area, session.serial)
        };
        word().store(ptr::null_mut(), Relaxed);
        if !IS_SANDBOXED.load(Relaxed) {
            register(area, serial);
        }
    });
}

unsafe extern "C" {
    /// The C library's `at_quick_exit`, which is no function of the shared library.
    fn __cxa_at_quick_exit(handler: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

/// Ends the recording. Called by `quick_exit`, which calls no destructors.
extern "C" fn quick_exits(_argument: *mut c_void) {
    process_ends();
}

/// Ends the recording. Called by the loader after the program's end.
extern "C" fn unload() {
    process_ends();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
