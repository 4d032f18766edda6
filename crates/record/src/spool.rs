//! The trace file of one process during the recording, with addresses instead of names.

use crate::blocked::Blocked;
use crate::process;
use azekura_trace::ReadError;
use azekura_trace::area::{
    Area, FOREIGN, MAIN, OPERATIONS, ProcessSlot, SITES, UNKNOWN_START, flag, process_id, site_of,
};
use azekura_trace::event::Event;
use azekura_trace::file::{ClockSample, CpuSource, Encoder, Module, SessionInfo, ThreadInfo, Trace};
use azekura_trace::parts::{CpuQuotas, machine_cpu_ns, parse_maps, process_cpu_ns_of, sample};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// Memory for one event when the recording is named at its end: about 75 bytes were measured for mutexes, and
/// waits for condition variables take more.
const BYTES_PER_EVENT: u64 = 128;
/// The part of the memory that naming may take.
const MEMORY_SHARE: u64 = 4;
/// Least time between two readings of the CPU quotas. The last reading may be needed at the end: a control
/// group is often removed as soon as its last process has ended.
const QUOTAS_EVERY: Duration = Duration::from_millis(100);

/// The recording of a process, in progress.
#[derive(Debug)]
pub(crate) struct Spool {
    process: u32,
    encoder: Encoder,
    out: Out,
    time: azekura_trace::file::TimeSource,
    /// The executable file, as the process reported it when it loaded the library.
    executable: PathBuf,
    /// The first mapping of the executable file at that time.
    program: Option<Module>,
    /// The mappings that were seen so far.
    modules: Vec<Module>,
    sites: HashSet<u32>,
    operations: HashSet<u16>,
    threads: HashMap<u32, ThreadTotals>,
    /// The process's CPU time at the last sample.
    cpu_ns: u64,
    /// The recording ends before it has more events.
    most_events: u64,
    /// The CPU quotas of the process, and the time of the last reading.
    quotas: (CpuQuotas, Instant),
    blocked: Blocked,
}

/// Sums over the drained events of a thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadTotals {
    events: u64,
    lost: u64,
    name: String,
}

/// A finished recording.
#[derive(Debug)]
pub(crate) struct Spooled {
    pub(crate) process: u32,
    pub(crate) path: PathBuf,
    threads: HashMap<u32, ThreadTotals>,
    /// Number of events of the threads without a slot.
    missed: u64,
    /// Samples of waits without a probe.
    pub(crate) blocked: Blocked,
    /// The error of the first write that failed, if any.
    pub(crate) failed: Option<io::Error>,
}

/// The reason for a recording's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The recording was stopped while the process ran.
    Stopped,
    /// The process has executed another program (`exec`).
    Replaced,
    /// The process has ended.
    Gone,
}

/// A file that receives no more writes after the first failed write.
#[derive(Debug)]
struct Out {
    path: PathBuf,
    file: Option<File>,
    failed: Option<io::Error>,
}

impl Out {
    fn create(path: PathBuf) -> Self {
        let (file, failed) = match File::create(&path) {
            Ok(file) => (Some(file), None),
            Err(error) => (None, Some(error)),
        };
        Self { path, file, failed }
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.failed.is_none()
            && let Some(file) = &mut self.file
        {
            self.failed = file.write_all(bytes).err();
        }
    }
}

impl Spool {
    /// Starts the recording of a process. It begins with the process's first event if that is later than
    /// `since`, else now.
    pub(crate) fn new(
        process: u32,
        slot: &ProcessSlot,
        info: &SessionInfo,
        since: u64,
        directory: &Path,
        path: PathBuf,
    ) -> Self {
        let maps = directory.join(format!("{}.maps", slot.serial.load(Relaxed)));
        // A process that may not write the file (RLIMIT_FSIZE) is asked, unless it has ended.
        let text = std::fs::read(maps).unwrap_or_else(|_| process::exe_and_maps(process).unwrap_or_default());
        let text = String::from_utf8_lossy(&text);
        let (executable, maps) = text.split_once('\n').unwrap_or_default();
        let executable = PathBuf::from(executable);
        let label = executable.file_name().map(|name| name.to_string_lossy().into_owned());
        let mut spool = Self {
            process,
            encoder: Encoder::new(),
            out: Out::create(path),
            time: info.time,
            executable,
            program: None,
            modules: Vec::new(),
            sites: HashSet::new(),
            operations: HashSet::new(),
            threads: HashMap::new(),
            cpu_ns: 0,
            most_events: azekura_base::memory::limit()
                .map_or(u64::MAX, |bytes| bytes / MEMORY_SHARE / BYTES_PER_EVENT),
            // A process of another PID namespace is taken to be in the recorder's group.
            quotas: (CpuQuotas::of((process & FOREIGN == 0).then_some(process)), Instant::now()),
            blocked: Blocked::default(),
        };
        let begun = clocks(slot, flag::RECORDS, &slot.begin).filter(|begun| begun.ticks >= since);
        let sample = begun.unwrap_or_else(|| spool.sample(slot));
        spool.cpu_ns = sample.process_cpu_ns;
        spool.encoder.session(&SessionInfo {
            process_id: process_id(process),
            label: label.unwrap_or_default(),
            ..info.clone()
        });
        spool.encoder.clock(&sample);
        machine_cpu_ns().into_iter().for_each(|ns| spool.encoder.machine(ns));
        spool.modules = parse_maps(maps);
        spool.encoder.modules(&spool.modules);
        let is_program = |module: &&Module| Path::new(&module.path) == spool.executable;
        spool.program = spool.modules.iter().find(is_program).cloned();
        spool
    }

    /// Returns all clocks as of now, or as of the end of the process if it has ended.
    fn sample(&mut self, slot: &ProcessSlot) -> ClockSample {
        ended(slot).unwrap_or_else(|| {
            self.cpu_ns = process_cpu_ns_of(self.process).unwrap_or(self.cpu_ns).max(self.cpu_ns);
            ClockSample { process_cpu_ns: self.cpu_ns, ..sample(self.time) }
        })
    }

    /// Records a thread before its first event.
    pub(crate) fn thread(&mut self, thread: &ThreadInfo) {
        self.encoder.thread(thread);
        self.threads
            .insert(thread.tag, ThreadTotals { name: thread.name.clone(), ..ThreadTotals::default() });
    }

    /// Records the present name of a thread.
    pub(crate) fn rename(&mut self, tag: u32, name: String) {
        if let Some(totals) = self.threads.get_mut(&tag).filter(|_| !name.is_empty()) {
            totals.name = name;
        }
    }

    /// Samples a thread, which is in a call with a probe if `waiting` is not 0.
    pub(crate) fn sample_wait(&mut self, thread: u32, tag: u32, waiting: &AtomicU32) {
        if let Some(maps) = self.blocked.sample((self.process, thread, tag), waiting) {
            self.add_modules(Some(maps));
        }
    }

    /// Records the present mappings of the process, unless it has executed a program meanwhile. `maps` is the
    /// text of its `maps` file, if that was read already.
    fn add_modules(&mut self, maps: Option<String>) {
        if process::executable(self.process).is_none_or(|now| now != self.executable) {
            return;
        }
        let Some(maps) = maps.or_else(|| process::maps(self.process)) else { return };
        let modules = parse_maps(&maps);
        // If the process has executed the same program again, the kernel has mapped it elsewhere. At the same
        // address, the names are the same, too.
        if self.program.as_ref().is_none_or(|program| modules.contains(program)) {
            add_mappings(&mut self.modules, modules);
            self.encoder.modules(&self.modules);
        }
    }

    /// Appends events of a thread; `lost` is the number of events that the thread has lost so far.
    pub(crate) fn events(&mut self, area: &Area, tag: u32, lost: u64, events: &[Event]) {
        let is_new = self.name_new(area, events);
        if is_new {
            // The process may have loaded more libraries since the last call.
            self.add_modules(None);
        }
        self.encoder.events(tag, lost, events);
        if self.encoder.event_count() > self.most_events && self.out.failed.is_none() {
            self.out.failed = Some(io::Error::other(format!(
                "more than {} events would need too much memory at the end; record for a shorter time",
                self.most_events
            )));
        }
        let totals = self.threads.entry(tag).or_default();
        totals.events += events.len() as u64;
        totals.lost = lost;
    }

    /// Writes the names of the sites and operations that occur in `events` for the first time. Returns `true`
    /// if there was a new call site.
    fn name_new(&mut self, area: &Area, events: &[Event]) -> bool {
        let before = self.sites.len();
        for event in events {
            // Relaxed: the key publishes no other data.
            if event.site != 0 && self.sites.insert(event.site) {
                let index = event.site as usize - 1;
                let key = if index < SITES { area.site(index).load(Relaxed) } else { 0 };
                if let Some((name, address)) = site_of(key) {
                    self.encoder.sites([(event.site, name, format!("@{address:x}").as_str(), 0)]);
                }
            }
            if event.operation != 0 && self.operations.insert(event.operation) {
                let index = usize::from(event.operation) - 1; // Relaxed: the key publishes no other data
                let key = if index < OPERATIONS { area.operation(index).load(Relaxed) } else { 0 };
                let (name, place) = match key {
                    0 => ("more threads", String::new()),
                    MAIN => ("main", String::new()),
                    UNKNOWN_START => ("thread", String::new()),
                    address => ("thread", format!("@{address:x}")),
                };
                self.encoder.operations([(event.operation.into(), name, place.as_str(), 0)]);
            }
        }
        self.sites.len() > before
    }

    /// Writes the events of one round of the drain.
    pub(crate) fn flush(&mut self, slot: &ProcessSlot) {
        let (quotas, read_at) = &mut self.quotas;
        if read_at.elapsed() >= QUOTAS_EVERY {
            quotas.read();
            *read_at = Instant::now();
        }
        let sample = self.sample(slot);
        self.encoder.clock(&sample);
        self.write();
    }

    fn write(&mut self) {
        self.out.write(self.encoder.as_bytes());
        self.encoder.clear();
    }

    /// Ends the recording; `last` has the last event of each thread that is alive.
    pub(crate) fn finish(mut self, slot: &ProcessSlot, end: End, last: &[(u32, Event)]) -> Spooled {
        for (tag, event) in last {
            let totals = self.threads.entry(*tag).or_default();
            totals.events += 1;
            self.encoder.events(*tag, totals.lost, &[*event]);
        }
        let sample = self.sample(slot);
        let has_ended = ended(slot).is_some();
        // Relaxed: counters that publish no other data.
        let (threads, waits) = (slot.threads_missed.load(Relaxed), slot.waits_missed.load(Relaxed));
        self.encoder.unrecorded(threads.into());
        // A thread has two events, and a wait has two.
        let missed = 2 * (u64::from(threads) + u64::from(waits));
        self.encoder.clock(&sample);
        machine_cpu_ns().into_iter().for_each(|ns| self.encoder.machine(ns));
        self.quotas.0.read();
        self.encoder.quota(self.quotas.0.strictest());
        if has_ended || end != End::Gone {
            self.encoder.end(self.threads.values().map(|totals| totals.lost).sum());
        }
        self.write();
        let process = process_id(self.process);
        let (threads, blocked) = (self.threads, self.blocked);
        Spooled { process, path: self.out.path, threads, missed, blocked, failed: self.out.failed }
    }
}

impl Spooled {
    /// Returns the trace, in which each thread has lost the events that could not be written. The first
    /// thread has also lost the events of the threads without a slot.
    pub(crate) fn read(&self) -> Result<Trace, ReadError> {
        let mut trace = Trace::read(&self.path)?;
        let mut missing = self.missed;
        for (tag, totals) in &self.threads {
            match trace.threads.iter_mut().find(|thread| thread.tag == *tag) {
                Some(thread) => {
                    thread.lost = totals.lost + totals.events.saturating_sub(thread.events.len() as u64);
                    thread.name.clone_from(&totals.name);
                }
                None => missing += totals.events + totals.lost,
            }
        }
        if let Some(first) = trace.threads.first_mut() {
            first.lost += missing;
        }
        Ok(trace)
    }

    /// Returns the number of recorded events.
    pub(crate) fn recorded(&self) -> u64 {
        self.threads.values().map(|totals| totals.events).sum()
    }
}

/// Adds mappings to those that were seen earlier, which keep their names: a library may be unloaded, and the
/// kernel cuts the text off if the process ends meanwhile.
fn add_mappings(seen: &mut Vec<Module>, now: Vec<Module>) {
    let overlap = |a: &Module, b: &Module| a.base < b.base + b.len && b.base < a.base + a.len;
    seen.retain(|module| !now.iter().any(|new| overlap(module, new)));
    seen.extend(now);
    seen.sort_by_key(|module| module.base);
}

/// Returns the CPU source for its number in the area.
pub(crate) fn cpu_source(number: u32) -> CpuSource {
    match number {
        n if n == CpuSource::Rseq as u32 => CpuSource::Rseq,
        n if n == CpuSource::None as u32 => CpuSource::None,
        _ => CpuSource::ThreadClock,
    }
}

/// Returns the three clocks at the end of the process, if the process recorded them.
fn ended(slot: &ProcessSlot) -> Option<ClockSample> {
    clocks(slot, flag::ENDED, &slot.end)
}

fn clocks(slot: &ProcessSlot, flag: u32, clocks: &[AtomicU64; 3]) -> Option<ClockSample> {
    // Acquire: pairs with the Release of the process that recorded its clocks.
    let is_recorded = slot.flags.load(Acquire) & flag != 0;
    let [ticks, monotonic_ns, process_cpu_ns] = clocks.each_ref().map(|word| word.load(Relaxed));
    is_recorded.then_some(ClockSample { ticks, monotonic_ns, process_cpu_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_trace::Options;
    use azekura_trace::area::Layout;
    use azekura_trace::event::EventKind;
    use azekura_trace::parts::session_info;

    #[test]
    fn events_refused_by_a_full_disk_are_counted_as_lost() {
        let directory = tempfile::tempdir().unwrap();
        let area = Area::create(&tempfile::tempfile().unwrap(), Layout::new(2)).unwrap();
        let info = session_info(&Options::default()).unwrap();
        let path = directory.path().join("spool");
        let slot = area.process(0);
        let mut spool = Spool::new(std::process::id(), slot, &info, 0, directory.path(), path);
        let cpu = CpuSource::None;
        spool.thread(&ThreadInfo { tag: 1, os_id: 2, name: "one".into(), cpu });
        let events = |from: u64| [from, from + 1].map(|ticks| Event::new(ticks, EventKind::Mark));
        spool.events(&area, 1, 0, &events(1));
        spool.flush(slot);
        spool.out.file = Some(File::options().write(true).open("/dev/full").unwrap());
        spool.events(&area, 1, 3, &events(3));
        spool.flush(slot);
        spool.thread(&ThreadInfo { tag: 2, os_id: 3, name: "two".into(), cpu });
        spool.events(&area, 2, 0, &events(5));
        slot.threads_missed.store(9, Relaxed); // one thread
        let spooled = spool.finish(slot, End::Stopped, &[]);
        assert!(spooled.failed.is_some());
        let trace = spooled.read().unwrap();
        assert_eq!((trace.event_count(), trace.lost(), spooled.recorded()), (2, 3 + 2 + 2 + 2 * 9, 6));
    }

    #[test]
    fn a_recording_with_the_largest_number_of_events_ends_and_counts_the_others_as_lost() {
        let directory = tempfile::tempdir().unwrap();
        let area = Area::create(&tempfile::tempfile().unwrap(), Layout::new(2)).unwrap();
        let info = session_info(&Options::default()).unwrap();
        let path = directory.path().join("spool");
        let slot = area.process(0);
        let mut spool = Spool::new(std::process::id(), slot, &info, 0, directory.path(), path);
        assert!(spool.most_events > 1 << 16, "{}", spool.most_events);
        spool.most_events = 2;
        spool.thread(&ThreadInfo { tag: 1, os_id: 2, name: "one".into(), cpu: CpuSource::None });
        for from in [1, 3, 5] {
            spool.events(&area, 1, 0, &[from, from + 1].map(|ticks| Event::new(ticks, EventKind::Mark)));
            spool.flush(slot);
        }
        let spooled = spool.finish(slot, End::Stopped, &[]);
        assert!(spooled.failed.as_ref().unwrap().to_string().starts_with("more than 2 events"));
        let trace = spooled.read().unwrap();
        assert_eq!((trace.event_count(), trace.lost()), (2, 4));
    }

    #[test]
    fn mappings_that_are_missing_later_keep_their_names() {
        let module = |base, path: &str| Module { base, len: 0x1000, offset: 0, path: path.into() };
        let mut seen = vec![module(0x1000, "/program"), module(0x5000, "/a"), module(0x9000, "/b")];
        // Another library at the place of an unloaded one. The text ends before the last library.
        add_mappings(&mut seen, vec![module(0x1000, "/program"), module(0x4800, "/c")]);
        assert_eq!(seen, [module(0x1000, "/program"), module(0x4800, "/c"), module(0x9000, "/b")]);
    }

    #[test]
    fn threads_without_a_slot_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let area = Area::create(&tempfile::tempfile().unwrap(), Layout::new(2)).unwrap();
        let info = session_info(&Options::default()).unwrap();
        let path = directory.path().join("spool");
        let slot = area.process(0);
        let mut spool = Spool::new(std::process::id(), slot, &info, 0, directory.path(), path);
        spool.thread(&ThreadInfo { tag: 1, os_id: 2, name: "one".into(), cpu: CpuSource::None });
        spool.events(&area, 1, 0, &[Event::new(1, EventKind::Mark)]);
        slot.threads_missed.store(3, Relaxed); // one thread
        slot.waits_missed.store(4, Relaxed);
        let trace = spool.finish(slot, End::Stopped, &[]).read().unwrap();
        assert_eq!((trace.unrecorded_threads, trace.lost()), (3, 2 * 3 + 2 * 4));
    }
}
