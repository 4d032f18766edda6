//! Memory that a recorder shares with the programs that it records: a file that all of them map.
//!
//! ```text
//! area = header, processes, sites, operations, states of the thread slots, thread slots
//! slot = its head, the memory of its thread's recorder, a ring of events
//! ```
//!
//! A recorded thread only claims a slot and writes events into the slot's ring: it opens no file, starts no
//! thread, allocates nothing and takes no lock. The recorder, another process, drains the rings and writes
//! the trace files. So no recorded program writes to a file, and the events of a killed program are kept.
//!
//! | state of a slot | stored by | next |
//! |---|---|---|
//! | free | the recorder, when the slot is drained | claimed, by a thread's CAS |
//! | claimed | the thread that fills the head | live |
//! | live | the same thread | closed |
//! | closed | that thread at its end, or the recorder after the end of the thread or process | free |
//!
//! - **AREA-1** All fields are atomics: two processes write them, and a faulty recorded program may write any
//!   value. The recorder checks each number before using it as an index.
//! - **AREA-2** A slot belongs to one thread from its claim to its end; its ring has that thread as its
//!   producer and the recorder as its consumer.
//! - **AREA-3** A slot has memory before its thread uses it. The recorder allocates the memory of the first
//!   [`Header::ready`] slots before it stores the number. A thread that claims another slot allocates the
//!   memory itself ([`Area::populate`]), or gives the slot back. So a full disk is an error, and never a
//!   SIGBUS of a program.

mod called;
mod layout;

pub use called::{Called, NAMES, site_key, site_of};
pub use layout::Layout;

use crate::ring::{Counters, Memory, Slot};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Magic number of the header, which changes with every change of the layout.
pub const MAGIC: u64 = 0x415a_4b41_5245_4106;
/// Name of the area's file in the recorder's directory.
pub const FILE: &str = "area";
/// Environment variable with the recorder's directory.
pub const DIRECTORY: &str = "AZEKURA_TRACE_DIR";
/// Largest number of processes that are recorded at the same time.
pub const PROCESSES: usize = 4096;
/// Largest number of call sites.
pub const SITES: usize = 1 << 15;
/// Largest number of functions with which threads begin.
pub const OPERATIONS: usize = 1 << 12;
/// Largest number of threads that are recorded at the same time.
pub const MOST_SLOTS: usize = 1 << 14;
/// Operation key of a thread that was started without a hook: a process's first thread.
pub const MAIN: u64 = u64::MAX;
/// Operation key of a thread that was not started by the hooked `pthread_create`.
pub const UNKNOWN_START: u64 = u64::MAX - 1;
/// Bit of the number of a process in another PID namespace than the recorder's. Its process id has another
/// meaning for the recorder, or none.
pub const FOREIGN: u32 = 1 << 31;
/// Number of bits of a process id.
const ID_BITS: u32 = 22;
/// Bytes before a slot's ring: the head, then at [`OWN_AT`] the memory of the thread's recorder.
pub const SLOT_HEAD: usize = 4096;
/// Offset of the memory of the thread's recorder in its slot.
pub const OWN_AT: usize = 1024;

const PAGE: usize = 4096;
const PROCESSES_AT: usize = PAGE;
const SITES_AT: usize = PROCESSES_AT + PROCESSES * size_of::<ProcessSlot>();
const OPERATIONS_AT: usize = SITES_AT + SITES * 8;
const STATES_AT: usize = OPERATIONS_AT + OPERATIONS * 8;
const SLOTS_AT: usize = (STATES_AT + MOST_SLOTS * 8).next_multiple_of(PAGE);

/// States of a thread slot. The process's number is in the upper 32 bits of the word.
pub mod state {
    /// No thread owns the slot.
    pub const FREE: u64 = 0;
    /// A thread is filling the slot's head.
    pub const CLAIMED: u64 = 1;
    /// A thread records into the slot.
    pub const LIVE: u64 = 2;
    /// The slot's thread has ended; events may be left in the slot.
    pub const CLOSED: u64 = 3;
}

/// Flags of a process: [`ProcessSlot::flags`].
pub mod flag {
    /// The process has recorded.
    pub const RECORDS: u32 = 1;
    /// The process has ended by itself; no event follows.
    pub const ENDED: u32 = 2;
}

/// Returns the number of a process of another PID namespace, which is given by its inode.
#[must_use]
pub const fn foreign(namespace: u64, process_id: u32) -> u32 {
    FOREIGN | (namespace as u32) << ID_BITS & !FOREIGN | process_id & ((1 << ID_BITS) - 1)
}

/// Returns the process id, in the process's own PID namespace, of a process's number.
#[must_use]
pub const fn process_id(number: u32) -> u32 {
    if number & FOREIGN == 0 { number } else { number & ((1 << ID_BITS) - 1) }
}

/// Returns the inode of this process's PID namespace; 0 if it is unknown.
#[must_use]
pub fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid")
        .map_or(0, |namespace| std::os::unix::fs::MetadataExt::ino(&namespace))
}

/// The header of an area, which all recorded processes read, and which has their common counters.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// Number of the current recording; 0 if none is running.
    pub command: AtomicU32,
    /// Number of programs into which the library was loaded. Each program draws its serial number here.
    pub loaded: AtomicU32,
    /// The source of CPU time: a [`CpuSource`](crate::file::CpuSource).
    pub cpu: AtomicU32,
    /// Additional time for which the mutex `plant` is held, in nanoseconds.
    pub plant_ns: AtomicU32,
    /// Address of the mutex that is held longer, or 0.
    pub plant: AtomicU64,
    /// Number of events that a ring holds; a power of two.
    pub ring_events: AtomicU32,
    /// Number of slots that the area can have.
    pub slots: AtomicU32,
    /// Number of slots with memory that the recorder has allocated (AREA-3).
    pub ready: AtomicU32,
    /// Threads have claimed slots below this number only.
    pub claimed: AtomicU32,
    /// Index of a slot that was free recently.
    pub hint: AtomicU32,
    /// Number of thread numbers drawn so far.
    pub tags: AtomicU32,
    /// Number of threads that found no slot.
    pub threads_missed: AtomicU32,
    /// Number of processes that found no entry in the table.
    pub processes_missed: AtomicU32,
    /// Number of processes that ended their recordings because they restricted their system calls.
    pub sandboxed: AtomicU32,
    /// The recorder's PID namespace, by its inode; 0 if unknown.
    pub namespace: AtomicU64,
}

/// The entry of one process.
#[derive(Debug)]
#[repr(C)]
pub struct ProcessSlot {
    /// The process's number in the upper 32 bits, and the number of this use of the entry; 0 if the entry is
    /// free. The number is the process id, or that of [`foreign`].
    pub owner: AtomicU64,
    /// The program's serial number, which is the name of the file with its mappings.
    pub serial: AtomicU32,
    /// Flags of the process, see [`flag`].
    pub flags: AtomicU32,
    /// Ticks, `CLOCK_MONOTONIC`, and CPU time of the process at the start of its recording.
    pub begin: [AtomicU64; 3],
    /// The three clocks at the end of the process.
    pub end: [AtomicU64; 3],
    /// Number of the process's threads that found no slot.
    pub threads_missed: AtomicU32,
    /// Number of waits of these threads.
    pub waits_missed: AtomicU32,
}

/// The head of a thread's slot.
#[derive(Debug)]
#[repr(C)]
pub struct ThreadSlot {
    /// Number of the recording to which the slot belongs.
    pub command: AtomicU32,
    /// The operating system's number of the thread.
    pub os_id: AtomicU32,
    /// The thread's number in traces.
    pub tag: AtomicU32,
    /// The index of the thread's process in the table of processes.
    pub process: AtomicU32,
    /// The owner of that entry when the slot was claimed: the entry may have another owner since.
    pub owner: AtomicU64,
    /// Source of the thread's CPU time: a [`CpuSource`](crate::file::CpuSource).
    pub cpu: AtomicU32,
    /// Number of calls, one inside the other, that the thread is in and that are recorded if they wait.
    pub waiting: AtomicU32,
    /// The thread's name, 16 bytes.
    pub name: [AtomicU64; 2],
    /// Ticks and CPU time at the end of the thread's process.
    pub end: [AtomicU64; 2],
    /// The ring's counters.
    pub counters: Counters,
}

/// A mapped area.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the address is of memory that is never unmapped, and all its fields are atomics (AREA-1).
unsafe impl Send for Area {}
// SAFETY: as for `Send`.
unsafe impl Sync for Area {}

impl Area {
    /// Makes an empty file an area without slots, and maps it for the lifetime of this process. If the
    /// address space of this process is limited (`RLIMIT_AS`), the area can have fewer slots: see
    /// [`Layout::slots_of_limited`].
    ///
    /// # Errors
    ///
    /// An error of the operating system: there is no space for the area.
    pub fn create(file: &File, layout: Layout) -> io::Result<Self> {
        allocate(file, 0, SLOTS_AT)?;
        let layout = layout.limited_to(limit(libc::RLIMIT_AS));
        let bytes = layout.bytes(layout.slots);
        // A thread can allocate memory only within the file (`populate`).
        if limit(libc::RLIMIT_FSIZE) >= bytes {
            file.set_len(bytes as u64)?;
        }
        let area = Self { base: map(file, bytes)?, layout };
        let header = area.header();
        // Relaxed: programs that map the area are started later.
        header.ring_events.store(layout.ring_events as u32, Relaxed);
        header.slots.store(layout.slots as u32, Relaxed);
        header.magic.store(MAGIC, Relaxed);
        area.site(0).store(site_key(Called::More, 0), Relaxed);
        Ok(area)
    }

    /// Allocates the memory of more slots, up to `slots` in total. Returns the number of slots with memory.
    ///
    /// # Errors
    ///
    /// An error of the operating system: there is no space for more slots. Existing slots are unchanged.
    pub fn grow(&self, file: &File, ready: usize, slots: usize) -> io::Result<usize> {
        let slots = slots.min(self.layout.slots);
        if slots > ready {
            let (from, to) = (self.layout.bytes(ready), self.layout.bytes(slots));
            allocate(file, from, to - from)?;
            // Release: pairs with the Acquire of threads that look for a slot (AREA-3).
            self.header().ready.store(slots as u32, std::sync::atomic::Ordering::Release);
        }
        Ok(slots)
    }

    /// Allocates the memory of a slot in the calling process, without a file descriptor. Returns `false` if
    /// there is no memory, or the kernel is older than Linux 5.14.
    #[must_use]
    pub fn populate(&self, slot: usize) -> bool {
        let (at, end) = (self.slot_at(slot), self.layout.bytes(slot + 1));
        // SAFETY: within the mapping. The call keeps the contents, and returns an error instead of a SIGBUS.
        unsafe { libc::madvise(self.base.add(at).as_ptr().cast(), end - at, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Returns the number of slots that may be in use: all others were never claimed.
    #[must_use]
    pub fn slots_in_use(&self) -> usize {
        let header = self.header();
        // Acquire: pairs with the Release in `grow` (AREA-3). Relaxed: only a bound of the slots to look at.
        // The state of a slot publishes its memory.
        let ready = header.ready.load(std::sync::atomic::Ordering::Acquire);
        (ready.max(header.claimed.load(Relaxed)) as usize).min(self.layout.slots)
    }

    /// Frees the file's memory, so that all fields are 0. The caller ensures that no other program maps the
    /// area any more. The mapping stays, because references to it may exist.
    ///
    /// # Errors
    ///
    /// An error of the operating system: the file system does not support the call.
    pub fn empty(&self, file: &File) -> io::Result<()> {
        let (mode, len) = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, file.metadata()?.len());
        // SAFETY: the call only reads its arguments.
        match unsafe { libc::fallocate(file.as_raw_fd(), mode, 0, len as libc::off_t) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Maps the area of a recorder; `None` if the file is no area, or the mapping fails. A process with
    /// limited address space (`RLIMIT_AS`) maps fewer slots: see [`Layout::slots_of_limited`].
    #[must_use]
    pub fn open(file: &File) -> Option<Self> {
        if file.metadata().ok()?.len() < SLOTS_AT as u64 {
            return None;
        }
        let empty = Layout { ring_events: 2, slots: 0 };
        let front = Self { base: map(file, SLOTS_AT).ok()?, layout: empty };
        let header = front.header();
        let ring_events = header.ring_events.load(Relaxed) as usize;
        let slots = header.slots.load(Relaxed) as usize;
        // Relaxed: stored before this program was started.
        let is_one = header.magic.load(Relaxed) == MAGIC
            && ring_events.is_power_of_two()
            && ring_events <= 1 << 24
            && slots <= MOST_SLOTS;
        // SAFETY: mapped above, and no other code has the address.
        unsafe { libc::munmap(front.base.as_ptr().cast(), SLOTS_AT) };
        let layout = Layout { ring_events, slots }.limited_to(limit(libc::RLIMIT_AS));
        is_one.then(|| Some(Self { base: map(file, layout.bytes(layout.slots)).ok()?, layout }))?
    }

    /// Removes the slots of a range from this process's memory, except those for which `is_used` returns
    /// `true`.
    ///
    /// # Safety
    ///
    /// The process has not removed any of these slots before, and accesses none of the removed ones later.
    pub unsafe fn unmap(&self, slots: Range<usize>, is_used: impl Fn(usize) -> bool) {
        let end = slots.end.min(self.layout.slots);
        let mut from = slots.start;
        for index in slots.start..=end {
            if index < end && !is_used(index) {
                continue;
            }
            if from < index {
                let (at, to) = (self.layout.bytes(from), self.layout.bytes(index));
                // SAFETY: within the mapping, and not used by the caller's contract.
                unsafe { libc::munmap(self.base.add(at).as_ptr().cast(), to - at) };
            }
            from = index + 1;
        }
    }

    /// Returns the area's sizes.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the area's header.
    #[must_use]
    pub fn header(&self) -> &'static Header {
        self.at(0)
    }

    /// Returns an entry of the table of processes.
    ///
    /// # Panics
    ///
    /// If the table has no such entry.
    #[must_use]
    pub fn process(&self, index: usize) -> &'static ProcessSlot {
        assert!(index < PROCESSES);
        self.at(PROCESSES_AT + index * size_of::<ProcessSlot>())
    }

    /// Returns the key of a site, 0 for none.
    ///
    /// # Panics
    ///
    /// If the table has no such entry.
    #[must_use]
    pub fn site(&self, index: usize) -> &'static AtomicU64 {
        assert!(index < SITES);
        self.at(SITES_AT + index * 8)
    }

    /// Returns the key of an operation, 0 for none.
    ///
    /// # Panics
    ///
    /// If the table has no such entry.
    #[must_use]
    pub fn operation(&self, index: usize) -> &'static AtomicU64 {
        assert!(index < OPERATIONS);
        self.at(OPERATIONS_AT + index * 8)
    }

    /// Returns the state of a thread slot.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    #[must_use]
    pub fn state(&self, index: usize) -> &'static AtomicU64 {
        assert!(index < self.layout.slots);
        self.at(STATES_AT + index * 8)
    }

    /// Returns the head of a thread slot that has memory (AREA-3).
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    #[must_use]
    pub fn slot(&self, index: usize) -> &'static ThreadSlot {
        const { assert!(size_of::<ThreadSlot>() <= OWN_AT) };
        self.at(self.slot_at(index))
    }

    /// Returns the memory of the recorder of the slot's thread: [`SLOT_HEAD`] less [`OWN_AT`] bytes. Only
    /// that thread uses the memory.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    #[must_use]
    pub fn own(&self, index: usize) -> NonNull<u8> {
        // SAFETY: the offset is within the slot, which is mapped.
        unsafe { self.base.add(self.slot_at(index) + OWN_AT) }
    }

    /// Returns the ring of a slot.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    #[must_use]
    pub fn ring(&self, index: usize) -> Mapped {
        let slots: &'static Slot = self.at(self.slot_at(index) + SLOT_HEAD);
        // SAFETY: this number of slots follows in the mapping; any bytes are valid, and all fields are
        // atomics.
        let slots = unsafe { std::slice::from_raw_parts(slots, self.layout.ring_events_of(index)) };
        Mapped { counters: &self.slot(index).counters, slots }
    }

    fn slot_at(&self, index: usize) -> usize {
        assert!(index < self.layout.slots);
        self.layout.bytes(index)
    }

    fn at<T>(&self, offset: usize) -> &'static T {
        // SAFETY: the callers' offsets are within the mapping, which is never removed, and aligned for their
        // types. The types consist of atomics, for which any bytes are valid (AREA-1).
        unsafe { self.base.add(offset).cast().as_ref() }
    }
}

/// A ring in an area.
#[derive(Debug, Clone, Copy)]
pub struct Mapped {
    counters: &'static Counters,
    slots: &'static [Slot],
}

impl Memory for Mapped {
    #[inline]
    fn counters(&self) -> &Counters {
        self.counters
    }

    #[inline]
    fn slots(&self) -> &[Slot] {
        self.slots
    }
}

fn map(file: &File, len: usize) -> io::Result<NonNull<u8>> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the memory was just mapped. A hint: core dumps do not need the area.
    unsafe { libc::madvise(base, len, libc::MADV_DONTDUMP) };
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at no address"))
}

/// Returns a limit of this process.
fn limit(of: libc::__rlimit_resource_t) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills `limit`.
    let is_known = unsafe { libc::getrlimit(of, &raw mut limit) } == 0;
    if is_known { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { usize::MAX }
}

fn allocate(file: &File, from: usize, len: usize) -> io::Result<()> {
    // SAFETY: the call only reads its arguments. It returns the error's number.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), from as libc::off_t, len as libc::off_t) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind};
    use crate::ring::{Consumer, Producer};

    #[test]
    fn one_mapping_receives_the_entries_of_another() {
        let file = tempfile::tempfile().unwrap();
        let layout = Layout::new(5);
        assert_eq!((layout.ring_events, layout.slots), (8, MOST_SLOTS));
        let ours = Area::create(&file, layout).unwrap();
        assert_eq!(ours.grow(&file, 0, 3).unwrap(), 3);
        let theirs = Area::open(&file).expect("an area");
        assert_eq!(theirs.layout(), layout);
        assert_eq!(theirs.header().ready.load(Relaxed), 3); // one thread
        let mut producer = Producer::new(theirs.ring(2));
        let mut consumer = Consumer::new(ours.ring(2));
        (0..9).for_each(|i| producer.push(Event::new(i, EventKind::Mark)));
        let mut taken = Vec::new();
        consumer.drain(|event| taken.push(event.ticks));
        assert_eq!((taken, consumer.lost()), ((0..8).collect(), 1));
    }

    #[test]
    fn a_thread_can_allocate_a_slot_itself() {
        let file = tempfile::tempfile().unwrap();
        let area = Area::create(&file, Layout::new(8)).unwrap();
        area.grow(&file, 0, 1).unwrap();
        let theirs = Area::open(&file).expect("an area");
        if !theirs.populate(7) {
            let error = io::Error::last_os_error().raw_os_error();
            return assert_eq!(error, Some(libc::EINVAL), "the error of kernels before Linux 5.14");
        }
        theirs.header().claimed.store(8, Relaxed); // one thread
        assert_eq!((area.slots_in_use(), theirs.slots_in_use()), (8, 8));
        theirs.slot(7).tag.store(3, Relaxed);
        assert_eq!(area.grow(&file, 1, 8).unwrap(), 8);
        assert_eq!(area.slot(7).tag.load(Relaxed), 3, "the recorder's allocation keeps the contents");
    }

    #[test]
    fn an_area_that_is_emptied_has_no_memory() {
        use std::os::unix::fs::MetadataExt;
        let file = tempfile::tempfile().unwrap();
        let area = Area::create(&file, Layout::new(64)).unwrap();
        area.grow(&file, 0, 2).unwrap();
        area.header().tags.store(7, Relaxed); // one thread
        let blocks = || file.metadata().unwrap().blocks();
        let before = blocks();
        area.empty(&file).unwrap();
        assert!(blocks() * 4 < before, "{before} blocks, then {}", blocks());
        assert_eq!(area.header().tags.load(Relaxed), 0); // one thread
    }

    #[test]
    fn removed_slots_take_no_address_space_and_the_others_stay() {
        let file = tempfile::tempfile().unwrap();
        let area = Area::create(&file, Layout { ring_events: 64, slots: 8 }).unwrap();
        area.grow(&file, 0, 8).unwrap();
        // SAFETY: only the slots 0 to 2 and 5 are accessed later.
        unsafe { area.unmap(3..100, |index| index == 5) };
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        // Device and inode of the file that is mapped at a slot. Another thread may use the freed address
        // space at once, but not with this file.
        let mapped_file = |index| {
            let address = area.own(index).as_ptr().addr();
            let is_there = |line: &&str| {
                let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
                let number = |text| usize::from_str_radix(text, 16).unwrap();
                (number(from)..number(to)).contains(&address)
            };
            let mut fields = maps.lines().find(is_there)?.split_whitespace();
            Some((fields.nth(3)?, fields.next()?))
        };
        let of_area = mapped_file(0).expect("not removed");
        let is_mapped = |index| mapped_file(index) == Some(of_area);
        assert_eq!([0, 1, 2, 5].map(is_mapped), [true; 4]);
        assert_eq!([3, 4, 6, 7].map(is_mapped), [false; 4]);
        assert_eq!(Layout::new(8192).slots_of_limited(1 << 30), 252);
    }

    #[test]
    fn a_file_that_is_no_area_is_none() {
        let file = tempfile::tempfile().unwrap();
        assert!(Area::open(&file).is_none());
        file.set_len(SLOTS_AT as u64).unwrap();
        assert!(Area::open(&file).is_none());
    }

    #[test]
    fn counters_that_a_program_has_overwritten_do_not_hang_the_recorder() {
        let file = tempfile::tempfile().unwrap();
        let area = Area::create(&file, Layout::new(8)).unwrap();
        area.grow(&file, 0, 1).unwrap();
        let mut consumer = Consumer::new(area.ring(0));
        // SAFETY: the mapping has these bytes, and they belong to atomics.
        unsafe { (&raw const area.slot(0).counters).cast_mut().cast::<u8>().write_bytes(0xa5, 256) };
        assert!(consumer.drain(|_| ()) <= 8);
    }

    #[test]
    fn processes_of_other_namespaces_have_numbers_of_their_own() {
        let [one, two] = [4_026_531_836, 4_026_531_837].map(|namespace| foreign(namespace, 7));
        assert_ne!(one, two);
        assert_eq!([one, two, 7].map(process_id), [7; 3]);
        assert_eq!([one, two, 7].map(|number| number & FOREIGN != 0), [true, true, false]);
    }
}
