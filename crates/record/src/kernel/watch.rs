//! Records switches and calls of functions through the kernel while a program runs.

use super::drain::{Drain, Sink, common, processors, u32_at, u64_at};
use super::functions::{Function, Probe};
use crate::error::RecordError;
use crate::process::threads;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of each ring for switches, and of each ring for a function. Halved while the kernel refuses the
/// size.
const SWITCH_RING: usize = 256 << 10;
const FUNCTION_RING: usize = 128 << 10;
const LEAST_RING: usize = 8 << 10;
/// Bytes of the ring for samples. It receives only a few samples between two drains (2 ms).
const SAMPLE_RING: usize = 16 << 10;
/// CPU time between two samples of a thread, in ns: about 200 samples per second. Not a multiple of a timer's
/// period, so that samples do not coincide with timers.
const SAMPLE_PERIOD: u64 = 4_997_003;
/// Source number of the event that records switches. A function's calls have its index as source number, its
/// returns the index plus [`RETURNS`].
const SWITCHES: u32 = u32::MAX;
const RETURNS: u32 = 1 << 16;
/// Source number of the event that samples the program counter.
const SAMPLES: u32 = u32::MAX - 1;

/// Source number of the event that records page faults which wait for a device.
const FAULTS: u32 = u32::MAX - 2;

/// Kinds and flags of records (`enum perf_event_type`).
pub(super) mod record {
    pub(crate) const LOST: u32 = 2;
    pub(crate) const SAMPLE: u32 = 9;
    pub(crate) const SWITCH: u32 = 14;
    pub(crate) const MISC_OUT: u16 = 1 << 13;
    pub(crate) const MISC_PREEMPTED: u16 = 1 << 14;
}

/// Memory for one switch or call at the end of a recording, with copies.
const BYTES_PER_RECORD: u64 = 128;

/// Returns the number of records of this size that need a quarter of the memory; `None` if it is unknown.
pub(super) fn most_records(bytes: u64) -> Option<usize> {
    usize::try_from(azekura_base::memory::limit()? / 4 / bytes).ok()
}

/// Threads to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// All threads and processes that the calling thread starts from now on.
    Started,
    /// A process with all its present and future threads.
    Process(u32),
}

/// A watch in progress.
pub struct Watch {
    drain: Drain<Records>,
    period: Arc<Period>,
}

/// The time of the recording, in ns of `CLOCK_MONOTONIC`. Records of other times are not kept, so that a long
/// run of the program before or after the recording takes no memory.
#[derive(Debug)]
struct Period {
    /// `u64::MAX` before the beginning.
    since: AtomicU64,
    /// `u64::MAX` before the end.
    until: AtomicU64,
}

impl Default for Period {
    fn default() -> Self {
        Self { since: AtomicU64::new(u64::MAX), until: AtomicU64::new(u64::MAX) }
    }
}

// Relaxed in both functions: times that publish no other data.
impl Period {
    /// Begins or ends the recording at `now`, unless it has begun or ended before.
    fn set(&self, is_recording: bool, now: u64) {
        let moment = if is_recording { &self.since } else { &self.until };
        if moment.load(Relaxed) == u64::MAX && (is_recording || self.since.load(Relaxed) != u64::MAX) {
            moment.store(now, Relaxed);
        }
    }

    fn contains(&self, ns: u64) -> bool {
        (self.since.load(Relaxed)..=self.until.load(Relaxed)).contains(&ns)
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Starts to watch samples of the program counter, calls of `functions`, and switches. Switches are
    /// watched if requested, or if there are functions. If the kernel does not permit samples or page faults,
    /// the watch runs without them, and the first error of each is returned too.
    ///
    /// # Errors
    ///
    /// [`RecordError::NotPermitted`] names the missing right; [`RecordError::Kernel`].
    pub fn start(
        target: Target,
        functions: &[Function],
        switches: bool,
    ) -> Result<(Self, [Option<RecordError>; 2]), RecordError> {
        let has_switches = switches || !functions.is_empty();
        let period = Arc::<Period>::default();
        let (most, of_records) = (most_records(BYTES_PER_RECORD), Arc::clone(&period));
        let records = Records { has_switches, most, period: of_records, ..Records::default() };
        let watch = Self { drain: Drain::start(records)?, period };
        let (mut no_samples, mut no_faults) = (None, None);
        let mut open = |thread: Option<i32>| -> Result<(), RecordError> {
            for cpu in processors() {
                if has_switches {
                    watch.open_switches(thread, cpu)?;
                }
                if no_samples.is_none() {
                    no_samples = unless_ended(watch.open_samples(thread, cpu))?;
                }
                if no_faults.is_none() {
                    no_faults = unless_ended(watch.open_faults(thread, cpu))?;
                }
            }
            Ok(())
        };
        match target {
            Target::Started => open(None)?,
            Target::Process(process) => for_each_thread(process, |thread| open(Some(thread)))?,
        }
        for cpu in processors() {
            for (number, function) in functions.iter().enumerate() {
                watch.open_function(cpu, number as u32, function)?;
            }
        }
        Ok((watch, [no_samples, no_faults]))
    }

    /// Starts or stops keeping records.
    pub(super) fn keep(&self, keep: bool) {
        let now = clock_gettime(ClockId::Monotonic);
        self.period.set(keep, now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs());
    }

    /// Opens the samples, in user mode only: the kernel permits these to every user for the user's own
    /// processes.
    fn open_samples(&self, thread: Option<i32>, cpu: usize) -> Result<(), RecordError> {
        let mut builder = Builder::new(Software::CPU_CLOCK);
        observe(common(&mut builder, cpu), thread).sample(SampleFlag::IP).sample_period(SAMPLE_PERIOD);
        self.open(SAMPLES, &builder, SAMPLE_RING)
            .map_err(|source| refused("samples of the program counter", source))
    }

    /// Opens the page faults that wait for a device, in user mode only. A fault in the kernel, as in `read`
    /// into a mapped file, is not recorded.
    fn open_faults(&self, thread: Option<i32>, cpu: usize) -> Result<(), RecordError> {
        let mut builder = Builder::new(Software::PAGE_FAULTS_MAJ);
        observe(common(&mut builder, cpu), thread).sample(SampleFlag::IP).sample_period(1);
        self.open(FAULTS, &builder, SAMPLE_RING).map_err(|source| refused("page faults", source))
    }

    fn open_switches(&self, thread: Option<i32>, cpu: usize) -> Result<(), RecordError> {
        let mut builder = Builder::new(Software::DUMMY);
        observe(common(&mut builder, cpu), thread).context_switch(true);
        self.open(SWITCHES, &builder, SWITCH_RING).map_err(|source| refused("its switches", source))
    }

    /// Opens the events of a function for all processes that run the file. Such an event cannot be inherited:
    /// the kernel would look up the file name again, in the memory of the thread that starts another one.
    /// Records of threads that are not in the trace are ignored later.
    fn open_function(&self, cpu: usize, number: u32, function: &Function) -> Result<(), RecordError> {
        for &offset in &function.offsets {
            for returns in [false, true] {
                let probe = Probe::new(&function.file, offset, returns)
                    .map_err(|source| refused("user probes (uprobes)", source))?;
                let mut builder = Builder::new(probe);
                common(&mut builder, cpu).any_pid().inherit(false).sample_period(1);
                let source = number + if returns { RETURNS } else { 0 };
                self.open(source, &builder, FUNCTION_RING)
                    .map_err(|source| refused("user probes (uprobes)", source))?;
            }
        }
        Ok(())
    }

    fn open(&self, source: u32, builder: &Builder<'_>, ring: usize) -> io::Result<()> {
        let mut ring = ring;
        loop {
            match self.drain.open(source, builder, ring) {
                // The kernel limits the memory that a user may lock.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && ring > LEAST_RING => {
                    ring /= 2
                }
                other => return other,
            }
        }
    }

    /// Ends the watch.
    #[must_use]
    pub fn finish(self) -> Watched {
        self.drain.finish().unwrap_or_default().sorted()
    }
}

fn observe<'a, 'b>(builder: &'b mut Builder<'a>, thread: Option<i32>) -> &'b mut Builder<'a> {
    match thread {
        None => builder.observe_self(),
        Some(thread) => builder.observe_pid(thread),
    }
}

/// Calls `open` for each thread of a process, also for those that start meanwhile. Ignores errors of ended
/// threads.
pub(super) fn for_each_thread(
    process: u32,
    mut open: impl FnMut(i32) -> Result<(), RecordError>,
) -> Result<(), RecordError> {
    let mut opened = HashSet::new();
    // A thread that is not watched yet may start another one meanwhile, which the next iteration finds.
    loop {
        let threads = threads(process).map_err(|source| RecordError::NoProcess { process, source })?;
        let new: Vec<i32> = threads.into_iter().filter(|&thread| opened.insert(thread)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in new {
            match open(thread) {
                Err(error) if is_of_ended_thread(&error) => {}
                other => other?,
            }
        }
    }
}

fn is_of_ended_thread(error: &RecordError) -> bool {
    let RecordError::Kernel { source, .. } = error else { return false };
    source.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Returns the error of an event that could not be opened, for a recording without it. Fails if the thread
/// has ended.
fn unless_ended(opened: Result<(), RecordError>) -> Result<Option<RecordError>, RecordError> {
    match opened {
        Err(error) if is_of_ended_thread(&error) => Err(error),
        other => Ok(other.err()),
    }
}

/// Returns the error for an event that the kernel refused, with the remedy.
pub(super) fn refused(what: &'static str, source: io::Error) -> RecordError {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            RecordError::NotPermitted { what, paranoid: paranoid.trim().to_owned() }
        }
        _ => RecordError::Kernel { what, source },
    }
}

/// An interval off a processor, in ns of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Off {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) preempted: bool,
}

/// A function was entered or left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) ns: u64,
    /// Index of the function among the requested ones.
    pub(super) function: u32,
    pub(super) returns: bool,
}

/// The records of a finished watch, by thread.
#[derive(Debug, Default)]
pub struct Watched {
    pub(super) off: HashMap<u32, Vec<Off>>,
    pub(super) calls: HashMap<u32, Vec<Call>>,
    /// Number of samples of the program counter, by thread and address.
    pub(super) samples: HashMap<u32, HashMap<u64, u64>>,
    /// Number of page faults that waited for a device, by thread and address of the instruction.
    pub(super) faults: HashMap<u32, HashMap<u64, u64>>,
    /// Set if switches were watched.
    pub(super) has_switches: bool,
    /// Number of records that did not fit into a ring.
    pub(super) lost: u64,
}

/// Records of switches in the order of arrival, which differs between processors.
#[derive(Debug, Default)]
pub(super) struct Switches {
    /// (thread, time, true if the thread came back to a processor, true if it was preempted)
    records: Vec<(u32, u64, bool, bool)>,
}

impl Switches {
    pub(super) fn take(&mut self, misc: u16, bytes: &[u8]) {
        let (thread, ns) = (u32_at(bytes, 4), u64_at(bytes, 8));
        let preempted = misc & record::MISC_PREEMPTED != 0;
        self.records.push((thread, ns, misc & record::MISC_OUT == 0, preempted));
    }

    /// Returns the number of records.
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns the intervals off a processor, by thread. A thread that is off a processor at the beginning or
    /// at the end of the records is off it before the beginning, or after the end.
    pub(super) fn sorted(mut self) -> HashMap<u32, Vec<Off>> {
        // The sort is stable: the records of one processor at the same instant keep their order.
        self.records.sort_by_key(|(thread, ns, ..)| (*thread, *ns));
        let of_thread = |records: &[(u32, u64, bool, bool)]| {
            let (mut off, mut left) = (Vec::new(), Some((0, false)));
            for &(_, ns, came_back, preempted) in records {
                if !came_back {
                    left = Some((ns, preempted));
                } else if let Some((begin, preempted)) = left.take() {
                    off.push(Off { begin, end: ns, preempted });
                }
            }
            off.extend(left.map(|(begin, preempted)| Off { begin, end: u64::MAX, preempted }));
            (records[0].0, off)
        };
        self.records.chunk_by(|a, b| a.0 == b.0).map(of_thread).collect()
    }
}

/// Records in the order of arrival, which differs between processors.
#[derive(Debug, Default)]
struct Records {
    switches: Switches,
    calls: Vec<(u32, Call)>,
    samples: HashMap<u32, HashMap<u64, u64>>,
    faults: HashMap<u32, HashMap<u64, u64>>,
    period: Arc<Period>,
    has_switches: bool,
    lost: u64,
    /// Number of switches and calls after which more are counted as lost.
    most: Option<usize>,
}

impl Sink for Records {
    fn take(&mut self, source: u32, kind: u32, misc: u16, bytes: &[u8]) {
        let is_full = self.most.is_some_and(|most| self.switches.len() + self.calls.len() >= most);
        // A sample and a fault begin with the program counter.
        let is_counted = source == SAMPLES || source == FAULTS;
        let ns = u64_at(bytes, if is_counted && kind == record::SAMPLE { 16 } else { 8 });
        match kind {
            record::SWITCH | record::SAMPLE if !self.period.contains(ns) => {}
            record::SWITCH | record::SAMPLE if is_full && !is_counted => self.lost += 1,
            record::SWITCH => {
                self.switches.take(misc, bytes);
            }
            record::SAMPLE if is_counted => {
                let (address, thread) = (u64_at(bytes, 0), u32_at(bytes, 12));
                let counts = if source == FAULTS { &mut self.faults } else { &mut self.samples };
                *counts.entry(thread).or_default().entry(address).or_default() += 1;
            }
            // A lost sample does not count as a lost record.
            record::LOST if is_counted => {}
            record::SAMPLE => {
                let thread = u32_at(bytes, 4);
                let (function, returns) = (source % RETURNS, source >= RETURNS);
                self.calls.push((thread, Call { ns, function, returns }));
            }
            record::LOST => self.lost += u64_at(bytes, 8),
            _ => {}
        }
    }
}

impl Records {
    fn sorted(mut self) -> Watched {
        self.calls.sort_by_key(|(thread, call)| (*thread, call.ns));
        let mut watched = Watched {
            off: self.switches.sorted(),
            samples: self.samples,
            faults: self.faults,
            has_switches: self.has_switches,
            lost: self.lost,
            ..Watched::default()
        };
        for (thread, call) in self.calls {
            watched.calls.entry(thread).or_default().push(call);
        }
        watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_off_the_processor_are_put_together_from_two_processors_records() {
        let mut records = Records::default();
        records.period.set(false, 10); // not begun
        records.period.set(true, 100);
        records.period.set(true, 120);
        records.period.set(false, 150);
        let mut switch = |thread: u32, ns: u64, misc: u16| {
            let mut bytes = [0; 16];
            bytes[4..8].copy_from_slice(&thread.to_ne_bytes());
            bytes[8..].copy_from_slice(&ns.to_ne_bytes());
            records.take(SWITCHES, record::SWITCH, misc, &bytes);
        };
        // The first processor's ring, then the second's: thread 5 has moved.
        switch(5, 100, record::MISC_OUT);
        switch(7, 101, 0);
        switch(7, 140, record::MISC_OUT | record::MISC_PREEMPTED);
        switch(5, 130, 0);
        switch(7, 150, 0);
        switch(8, 110, record::MISC_OUT);
        // Before and after the recording.
        switch(5, 90, record::MISC_OUT);
        switch(8, 160, 0);
        records.take(SWITCHES, record::LOST, 0, &[3_u64.to_ne_bytes(), 9_u64.to_ne_bytes()].concat());
        records.take(SWITCHES, 77, 0, &[]);
        records.take(SWITCHES, record::SWITCH, 0, &[1]); // truncated
        let watched = records.sorted();
        assert_eq!(watched.off[&5], [Off { begin: 100, end: 130, preempted: false }]);
        let [before, preempted] =
            [(0, 101, false), (140, 150, true)].map(|(begin, end, preempted)| Off { begin, end, preempted });
        assert_eq!(watched.off[&7], [before, preempted], "it was off before its first record");
        assert_eq!(watched.off[&8], [Off { begin: 110, end: u64::MAX, preempted: false }]);
        assert_eq!(watched.lost, 9);
    }
}
