//! Moves the events of all recorded programs from the area to one file per process.
//!
//! One thread of the recorder drains all rings every few milliseconds, and at once if a ring is half full. It
//! also detects threads and processes that have ended, frees their slots, and allocates more slots before
//! they are needed. Threads that start faster allocate slots themselves (AREA-3).

use crate::process;
use crate::spool::{End, Spool, Spooled, cpu_source};
use azekura_trace::area::{Area, FOREIGN, Mapped, PROCESSES, ProcessSlot, flag, state};
use azekura_trace::event::{Event, EventKind, SWITCHED};
use azekura_trace::file::{SessionInfo, ThreadInfo};
use azekura_trace::parts::{ticks, time_source};
use azekura_trace::ring::Consumer;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Largest number of slots at the start, and the largest memory of these: with large rings there are fewer
/// slots, at least one. More slots are created when fewer than half of them are free, or if a thread has
/// found none.
const SPARE_SLOTS: usize = 32;
const SPARE_BYTES: usize = 16 << 20;
const PROCESSES_EVERY: Duration = Duration::from_millis(20);
const THREADS_EVERY: Duration = Duration::from_millis(500);
/// Time without further attempts to create slots after there was no memory for them: an attempt uses up the
/// memory for a moment.
const FULL_FOR: Duration = Duration::from_secs(1);
/// Least age of a file of mappings that is removed because no process in the table has its serial number. A
/// process writes the file shortly before its entry in the table.
const MAPS_STAY: Duration = Duration::from_secs(2);
/// Time between two samples of waits, and the number of threads sampled then: 200 samples per second, which
/// take the recorder 20 microseconds each, so less than 1 % of a processor.
const SAMPLES_EVERY: Duration = Duration::from_millis(10);
const SAMPLES_AT_ONCE: usize = 2;

/// The recorder's side of an area.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) area: Area,
    file: File,
    /// The directory of the area.
    directory: PathBuf,
    /// The directory of the traces.
    spools: PathBuf,
    info: SessionInfo,
    /// The number of the current or last recording; `since` is its start, in ticks.
    number: u32,
    since: u64,
    is_recording: bool,
    /// Number of slots that existed at the start.
    spare: usize,
    ready: usize,
    open: HashMap<usize, Open>,
    programs: HashMap<u64, Program>,
    /// The finished files of recording `number`.
    finished: Vec<Spooled>,
    /// Number of threads that had found no slot at the last turn.
    missed: u32,
    /// The last time at which there was no memory for more slots.
    full_since: Option<Instant>,
    looked_at_processes: Instant,
    looked_at_threads: Instant,
    sampled_at: Instant,
    /// The slot to sample next.
    next_sampled: usize,
    events: Vec<Event>,
}

/// A slot in use.
#[derive(Debug)]
struct Open {
    owner: u64,
    tag: u32,
    os_id: u32,
    /// The slot belongs to the current recording.
    is_recorded: bool,
    /// Ticks of the slot's latest event.
    last: u64,
    /// Ticks and CPU time at the latest check whether the thread has ended.
    seen: Option<(u64, u64)>,
    consumer: Consumer<Mapped>,
}

/// A process that is being recorded.
#[derive(Debug)]
struct Program {
    index: usize,
    spool: Spool,
    has_news: bool,
}

impl Drain {
    pub(crate) fn new(
        area: Area,
        file: File,
        directory: PathBuf,
        spools: PathBuf,
        info: SessionInfo,
    ) -> io::Result<Self> {
        let spare = area.layout().slots_within(SPARE_BYTES).clamp(1, SPARE_SLOTS);
        let ready = area.grow(&file, 0, spare)?;
        let (since, now) = (ticks(time_source()), Instant::now());
        Ok(Self {
            area,
            file,
            directory,
            spools,
            info,
            number: 0,
            since,
            is_recording: false,
            spare,
            ready,
            open: HashMap::new(),
            programs: HashMap::new(),
            finished: Vec::new(),
            missed: 0,
            full_since: None,
            looked_at_processes: now,
            looked_at_threads: now,
            sampled_at: now,
            next_sampled: 0,
            events: Vec::new(),
        })
    }

    /// Starts recording `number`.
    pub(crate) fn begin(&mut self, number: u32) {
        self.number = number;
        self.is_recording = true;
        self.since = ticks(time_source());
        self.finished.clear();
        (0..PROCESSES).for_each(|index| reset_missed(self.area.process(index)));
        self.area.header().command.store(number, Release);
    }

    /// Ends the current recording and writes all recorded events to the files.
    pub(crate) fn end(&mut self) {
        if !self.is_recording {
            return;
        }
        self.area.header().command.store(0, Release);
        // Gives threads time to finish an event that they are writing.
        std::thread::sleep(Duration::from_millis(1));
        self.look_at_processes(true);
        self.turn();
        let owners: Vec<(u64, usize)> =
            self.programs.iter().map(|(owner, program)| (*owner, program.index)).collect();
        for (owner, index) in owners {
            let end = if self.is_alive(index, owner) { End::Stopped } else { End::Gone };
            self.finish(owner, end);
        }
        self.open.values_mut().for_each(|open| open.is_recorded = false);
        self.is_recording = false;
    }

    /// Returns `true` if the owner of an entry of the table of processes has not ended. A process of another
    /// PID namespace cannot be looked up; it records its end itself, unless it is killed.
    fn is_alive(&self, index: usize, owner: u64) -> bool {
        // Acquire: pairs with the Release of the process that recorded its end.
        let has_ended = || self.area.process(index).flags.load(Acquire) & flag::ENDED != 0;
        let number = process_of(owner);
        process::is_alive(number) && !(number & FOREIGN != 0 && has_ended())
    }

    /// Returns `true` if a running program uses the area.
    pub(crate) fn is_in_use(&self) -> bool {
        let owners = (0..PROCESSES).map(|index| (index, self.area.process(index).owner.load(Acquire)));
        owners.filter(|(_, owner)| *owner != 0).any(|(index, owner)| self.is_alive(index, owner))
    }

    /// Frees the area's memory, if no running program uses it.
    pub(crate) fn close(&mut self) {
        if !self.is_in_use() {
            self.open.clear();
            self.ready = 0;
            let _ = self.area.empty(&self.file); // otherwise, the memory is freed when this process ends
        }
    }

    /// Returns the finished files of recording `number`, and removes them from the list.
    pub(crate) fn take_finished(&mut self) -> Vec<Spooled> {
        std::mem::take(&mut self.finished)
    }

    /// Drains all rings; returns `true` if one was at least half full, or slots were created because threads
    /// needed them.
    pub(crate) fn turn(&mut self) -> bool {
        let (mut busy, mut free, mut first_free) = (false, 0, None);
        let in_use = self.area.slots_in_use();
        for index in 0..in_use {
            // Acquire: pairs with the Release of the thread that stored the state; the head is visible.
            let word = self.area.state(index).load(Acquire);
            match word & u64::from(u32::MAX) {
                state::LIVE => busy |= self.take(index, word, false),
                state::CLOSED => busy |= self.take(index, word, true),
                state::FREE => {
                    free += usize::from(index < self.ready);
                    first_free = first_free.or(Some(index));
                }
                _ => {}
            }
        }
        // Relaxed: the hint orders nothing else.
        self.area.header().hint.store(first_free.unwrap_or(in_use) as u32, Relaxed);
        let missed = self.area.header().threads_missed.load(Relaxed); // Relaxed: publishes no other data
        let wanted = missed.saturating_sub(std::mem::replace(&mut self.missed, missed)) as usize;
        let is_full = self.full_since.is_some_and(|since| since.elapsed() < FULL_FOR);
        if !is_full && (free < self.spare.div_ceil(2) || free < wanted) {
            // If threads cannot allocate slots themselves (before Linux 5.14), many may be waiting for them.
            let more = self.ready + if wanted > 0 { self.spare.max(self.ready / 2) } else { self.spare };
            match self.area.grow(&self.file, self.ready, more) {
                Ok(ready) => busy |= std::mem::replace(&mut self.ready, ready) < ready,
                // The existing slots remain in use. Threads without a slot are counted.
                Err(_) => self.full_since = Some(Instant::now()),
            }
        }
        if self.is_recording && self.sampled_at.elapsed() >= SAMPLES_EVERY {
            self.sample_waits();
        }
        for program in self.programs.values_mut().filter(|program| program.has_news) {
            program.has_news = false;
            program.spool.flush(self.area.process(program.index));
        }
        if self.looked_at_processes.elapsed() >= PROCESSES_EVERY {
            self.look_at_processes(false);
        }
        busy
    }

    /// Samples some of the recorded threads, each in its turn.
    fn sample_waits(&mut self) {
        self.sampled_at = Instant::now();
        let mut left = SAMPLES_AT_ONCE;
        let slots = self.area.slots_in_use();
        for _ in 0..slots {
            let index = self.next_sampled % slots;
            self.next_sampled = index + 1;
            let Some(open) = self.open.get(&index).filter(|open| open.is_recorded) else { continue };
            // Relaxed: a thread that has ended cannot be sampled. A process of another PID namespace cannot
            // be looked up.
            let is_live = self.area.state(index).load(Relaxed) & u64::from(u32::MAX) == state::LIVE;
            if is_live
                && process_of(open.owner) & FOREIGN == 0
                && let Some(program) = self.programs.get_mut(&open.owner)
            {
                program.spool.sample_wait(open.os_id, open.tag, &self.area.slot(index).waiting);
                left -= 1;
                if left == 0 {
                    return;
                }
            }
        }
    }

    /// Drains a slot's ring.
    fn take(&mut self, index: usize, word: u64, is_closed: bool) -> bool {
        self.admit(index);
        let Some(open) = self.open.get_mut(&index) else { return false };
        self.events.clear();
        let events = &mut self.events;
        let taken = open.consumer.drain(|event| events.push(event));
        open.last = events.iter().map(|event| event.ticks).fold(open.last, u64::max);
        let ended = self.area.slot(index).end.each_ref().map(|word| word.load(Relaxed));
        if is_closed && ended[0] != 0 && open.last != 0 {
            // The process recorded the thread's CPU time when the thread ended.
            events.push(anchor(ended[0].max(open.last), ended[1]));
        } else if is_closed
            && let Some((ticks, cpu_ns)) = open.seen.filter(|seen| seen.0 > open.last && open.last != 0)
        {
            // The thread was killed: this is the last that is known of its CPU time.
            events.push(anchor(ticks, cpu_ns));
        }
        if open.is_recorded
            && (taken > 0 || is_closed)
            && let Some(program) = self.programs.get_mut(&open.owner)
        {
            program.spool.events(&self.area, open.tag, open.consumer.lost(), &self.events);
            program.has_news = true;
            program.spool.rename(open.tag, name_in(self.area.slot(index).name.each_ref()));
        }
        let is_busy = taken * 2 >= open.consumer.capacity();
        if is_closed {
            self.open.remove(&index);
            // Release: pairs with the Acquire of the thread that claims the slot; all reads of the slot are
            // done. Relaxed on failure: the value is not used.
            let _ = self.area.state(index).compare_exchange(word, state::FREE, Release, Relaxed);
        }
        is_busy
    }

    /// Registers a slot that is drained for the first time, with its owner.
    fn admit(&mut self, index: usize) {
        if self.open.contains_key(&index) {
            return;
        }
        if index >= self.ready && !self.area.populate(index) {
            return; // the thread has memory there, but a faulty program may write any state
        }
        let slot = self.area.slot(index);
        let (owner, tag) = (slot.owner.load(Relaxed), slot.tag.load(Relaxed));
        let os_id = slot.os_id.load(Relaxed);
        let place = slot.process.load(Relaxed) as usize;
        // Relaxed: published by the slot's state, as the rest of the slot's head.
        let is_recorded = self.is_recording
            && slot.command.load(Relaxed) == self.number
            && place < PROCESSES
            && self.area.process(place).owner.load(Relaxed) == owner;
        if is_recorded {
            let program = self.programs.entry(owner).or_insert_with(|| {
                let process = process_of(owner);
                let path = self.spools.join(format!("{process}-{}-{}.trace", owner as u32, self.number));
                let slot = self.area.process(place);
                let spool = Spool::new(process, slot, &self.info, self.since, &self.directory, path);
                Program { index: place, spool, has_news: true }
            });
            let cpu = cpu_source(slot.cpu.load(Relaxed)); // Relaxed: published by the slot's state
            let name = name_in(slot.name.each_ref());
            program.spool.thread(&ThreadInfo { tag, os_id, name, cpu });
        }
        let consumer = Consumer::new(self.area.ring(index));
        self.open.insert(index, Open { owner, tag, os_id, is_recorded, last: 0, seen: None, consumer });
    }

    /// Finds processes that have ended, and periodically, threads that have ended.
    fn look_at_processes(&mut self, is_last: bool) {
        self.looked_at_processes = Instant::now();
        let area = self.area;
        let owners = || (0..PROCESSES).map(|index| (index, area.process(index).owner.load(Acquire)));
        let known: Vec<(usize, u64, bool)> = (owners().filter(|&(_, owner)| owner != 0))
            .map(|(index, owner)| (index, owner, self.is_alive(index, owner)))
            .collect();
        // The table is read again after the liveness checks. A process that has ended has made all its
        // entries, so an `exec` just before its end is found.
        let mut newest: HashMap<u32, u64> = HashMap::new();
        for (_, owner) in owners().filter(|&(_, owner)| owner != 0) {
            let newest = newest.entry(process_of(owner)).or_default();
            *newest = owner.max(*newest);
        }
        for (index, owner, is_alive) in known {
            if newest.get(&process_of(owner)).is_some_and(|newest| *newest != owner) {
                self.is_gone(index, owner, End::Replaced);
            } else if !is_alive {
                self.is_gone(index, owner, End::Gone);
            }
        }
        if is_last || self.looked_at_threads.elapsed() >= THREADS_EVERY {
            self.looked_at_threads = Instant::now();
            self.remove_maps();
            for open in self.open.values_mut().filter(|open| open.is_recorded) {
                let now = ticks(time_source());
                let cpu_ns = process::thread_cpu_ns(process_of(open.owner), open.os_id);
                open.seen = cpu_ns.map(|cpu_ns| (now, cpu_ns)).or(open.seen);
            }
            self.close_slots(|owner, open| {
                open.is_some_and(|open| !process::has_thread(process_of(owner), open.os_id))
            });
        }
    }

    /// Removes the files of mappings of processes that have ended: each program that is started writes one.
    /// If a file is missing later, the process itself is asked.
    fn remove_maps(&self) {
        // Relaxed: the entry's owner is not used.
        let serial = |index| self.area.process(index).serial.load(Relaxed);
        let has_owner = |index: &usize| self.area.process(*index).owner.load(Acquire) != 0;
        let used: HashSet<u32> = (0..PROCESSES).filter(has_owner).map(serial).collect();
        let Ok(files) = std::fs::read_dir(&self.directory) else { return };
        for file in files.flatten() {
            let name = file.file_name();
            let of = name.to_str().and_then(|name| name.strip_suffix(".maps")?.parse::<u32>().ok());
            let age = || file.metadata().ok()?.modified().ok()?.elapsed().ok();
            if of.is_some_and(|serial| !used.contains(&serial)) && age().is_some_and(|age| age > MAPS_STAY) {
                let _ = std::fs::remove_file(file.path()); // tried again at the next time
            }
        }
    }

    /// Handles the end of a process in the table: drains its slots, and frees its entry.
    fn is_gone(&mut self, index: usize, owner: u64, end: End) {
        let area = self.area;
        self.close_slots(|of, _| of == owner);
        for slot in 0..area.slots_in_use() {
            let word = area.state(slot).load(Acquire);
            if word & u64::from(u32::MAX) == state::CLOSED && area.slot(slot).owner.load(Relaxed) == owner {
                self.take(slot, word, true);
            }
        }
        self.finish(owner, end);
        reset(area.process(index));
        // Release: pairs with the Acquire of the process that claims the entry.
        let _ = area.process(index).owner.compare_exchange(owner, 0, Release, Relaxed);
    }

    /// Closes the live slots for which `is_gone` returns `true`, because their threads cannot.
    fn close_slots(&self, is_gone: impl Fn(u64, Option<&Open>) -> bool) {
        for index in 0..self.area.slots_in_use() {
            let word = self.area.state(index).load(Acquire);
            // Only a slot that is in use has memory to read.
            let owner = || self.area.slot(index).owner.load(Relaxed);
            match word & u64::from(u32::MAX) {
                state::LIVE if is_gone(owner(), self.open.get(&index)) => {
                    let closed = word >> 32 << 32 | state::CLOSED;
                    // AcqRel: the thread may have closed the slot since the load.
                    let _ = self.area.state(index).compare_exchange(word, closed, AcqRel, Relaxed);
                }
                // The slot's head may have any content, but the state word contains the process that claimed
                // the slot.
                state::CLAIMED if !process::is_alive((word >> 32) as u32) => {
                    let _ = self.area.state(index).compare_exchange(word, state::FREE, AcqRel, Relaxed);
                }
                _ => {}
            }
        }
    }

    /// Ends the recording of a process.
    fn finish(&mut self, owner: u64, end: End) {
        let Some(Program { index, mut spool, .. }) = self.programs.remove(&owner) else { return };
        let process = process_of(owner);
        let mut last = Vec::new();
        for open in self.open.values().filter(|open| open.owner == owner && open.is_recorded) {
            if let Some(cpu_ns) = process::thread_cpu_ns(process, open.os_id)
                && open.last > 0
            {
                last.push((open.tag, anchor(ticks(time_source()).max(open.last), cpu_ns)));
            }
            let name = process::thread_name(process, open.os_id);
            name.into_iter().for_each(|name| spool.rename(open.tag, name));
        }
        self.finished.push(spool.finish(self.area.process(index), end, &last));
    }
}

fn anchor(ticks: u64, cpu_ns: u64) -> Event {
    Event { object: cpu_ns, flags: SWITCHED, ..Event::new(ticks, EventKind::Anchor) }
}

fn process_of(owner: u64) -> u32 {
    (owner >> 32) as u32
}

fn reset(slot: &ProcessSlot) {
    // Relaxed: published by the store of 0 to the owner.
    slot.flags.store(0, Relaxed);
    reset_missed(slot);
    slot.begin.iter().chain(&slot.end).for_each(|word| word.store(0, Relaxed));
}

fn reset_missed(slot: &ProcessSlot) {
    // Relaxed: counters that publish no other data.
    slot.threads_missed.store(0, Relaxed);
    slot.waits_missed.store(0, Relaxed);
}

/// The name that a thread has stored in two words.
fn name_in(words: [&std::sync::atomic::AtomicU64; 2]) -> String {
    let bytes: Vec<u8> = words.into_iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}
