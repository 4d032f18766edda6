//! The trace file: the format of a recording on disk, and the decoded recording in memory.
//!
//! ```text
//! file  = magic "AZKTRACE", version u32, CRC-32C of the twelve bytes before u32, blocks
//! block = kind u8, low 24 bits of the CRC-32C of kind and length, payload length u32,
//!         CRC-32C of these eight bytes and the payload u32, payload
//! ```
//!
//! | kind | payload |
//! |---|---|
//! | 1 session | [`SessionInfo`]; the first block, once |
//! | 2 sites, 3 operations | id, name, file, line of each newly recorded name |
//! | 4 thread | [`ThreadTrace`] without its events; before the thread's first events |
//! | 5 events | a thread's tag, its losses and events so far, and delta-coded events (ten bytes each) |
//! | 6 clock | [`ClockSample`]; one at the start, one with each drain, one at the end |
//! | 7 end | number of all events and losses; the last block |
//! | 8 modules | [`Module`]s; each such block replaces the previous one |
//! | 9 machine | CPU time of all processes on the usable processors; one at the start, one at the end |
//! | 10 switches | [`Switches`]: presence of the kernel's records of switches; at most once |
//! | 11 off | a thread's tag and its [`OffCpu`]s, delta-coded; after the thread |
//! | 12 samples | [`CpuSample`]s of all threads |
//! | 13 unrecorded | number of threads without a recording; at most once |
//! | 14 quota | [`CpuQuota`]; at most once |
//! | 15 frames | id, name, file, line of each frame of a stack |
//! | 16 stacks | id, number of frames, ids of the frames, the innermost first |
//! | 17 faults | [`CpuSample`]s of page faults of all threads |
//! | 18 blocked | [`CpuSample`]s of threads that wait outside of probes, and of all others with site 0 |
//!
//! Events are in *rounds*: in a round each thread has at most one block of events. Events of a later round
//! happened later, except those that a thread wrote while the other rings were drained. So a file can be read
//! window by window.
//!
//! Integers in payloads are LEB128 ([`azekura_base::varint`]), those of heads little endian. There is no
//! index: the file of a killed writer is read up to its last whole block, and [`Ending::CutShort`] says so.
//! Blocks of unknown kind are skipped. So are damaged blocks after the first clock sample ([`Damage`]). All
//! other deviations are a typed [`ReadError`](crate::ReadError).

mod blocks;
mod codec;
mod damage;
mod outline;
mod read;
mod write;

pub use damage::Damage;
pub use outline::{Outline, Windows};
pub use write::{Encoder, ThreadInfo};

use crate::event::Event;
use std::collections::BTreeMap;

const MAGIC: &[u8; 8] = b"AZKTRACE";
/// Version of the format. Version 3 added stacks, and the number of a thread's earlier events to each block
/// of events. Earlier versions are refused.
const VERSION: u32 = 3;

/// Kinds of blocks.
mod block {
    pub(super) const SESSION: u8 = 1;
    pub(super) const SITES: u8 = 2;
    pub(super) const OPERATIONS: u8 = 3;
    pub(super) const THREAD: u8 = 4;
    pub(super) const EVENTS: u8 = 5;
    pub(super) const CLOCK: u8 = 6;
    pub(super) const END: u8 = 7;
    pub(super) const MODULES: u8 = 8;
    pub(super) const MACHINE: u8 = 9;
    pub(super) const SWITCHES: u8 = 10;
    pub(super) const OFF: u8 = 11;
    pub(super) const SAMPLES: u8 = 12;
    pub(super) const UNRECORDED: u8 = 13;
    pub(super) const QUOTA: u8 = 14;
    pub(super) const FRAMES: u8 = 15;
    pub(super) const STACKS: u8 = 16;
    pub(super) const FAULTS: u8 = 17;
    pub(super) const BLOCKED: u8 = 18;
    /// Bytes before a block's payload.
    pub(super) const HEAD: usize = 12;

    /// Returns the first eight bytes of a block. These bytes have their own checksum, which distinguishes a
    /// damaged length from a truncated file.
    pub(super) fn head(kind: u8, len: u32) -> [u8; 8] {
        let mut head = [0; 8];
        head[0] = kind;
        head[4..].copy_from_slice(&len.to_le_bytes());
        let crc = azekura_base::checksum::crc32c(&head);
        head[1..4].copy_from_slice(&crc.to_le_bytes()[..3]);
        head
    }
}

/// The clock that counts ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TimeSource {
    /// The processor's time-stamp counter, calibrated against `CLOCK_MONOTONIC`.
    Tsc = 1,
    /// `CLOCK_MONOTONIC`; a tick is a nanosecond.
    Monotonic = 2,
}

/// Source of a thread's CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CpuSource {
    /// No CPU time.
    None = 0,
    /// Known at every event: restartable sequences show context switches, and the thread clock is read once
    /// after each switch.
    Rseq = 1,
    /// The thread clock is read at every event, at 200 ns each.
    ThreadClock = 2,
    /// Computed from the kernel's records of switches between two readings of the thread clock, for a process
    /// that is recorded from outside.
    Switches = 3,
}

/// Readings of the clocks at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSample {
    /// The trace's clock.
    pub ticks: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic_ns: u64,
    /// CPU time of the whole process, ns.
    pub process_cpu_ns: u64,
}

/// Facts about a whole recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionInfo {
    /// The clock of the ticks.
    pub time: TimeSource,
    /// Source of CPU time for threads without another source.
    pub cpu: CpuSource,
    /// One of this number of holds is sampled at random.
    pub hold_sampling: u32,
    /// Cost of one event, picoseconds, measured when the recording started.
    pub event_cost_ps: u64,
    /// Ticks per second, as estimated at the start. Used if the file has no second clock sample.
    pub ticks_per_second: u64,
    /// The process's number.
    pub process_id: u32,
    /// Number of processors that the process could use.
    pub processors: u32,
    /// Start of the recording in nanoseconds since 1970.
    pub started_wall_ns: u64,
    /// The user's label.
    pub label: String,
}

/// A site's or operation's name and the line that created it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The name in the program.
    pub name: String,
    /// Source file.
    pub file: String,
    /// Source line.
    pub line: u32,
}

/// A mapping of a program or library in the process's memory, by which addresses are resolved to symbols.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Module {
    /// Address of a mapping of the file.
    pub base: u64,
    /// Length of the mapping in bytes.
    pub len: u64,
    /// Offset of the mapping in the file.
    pub offset: u64,
    /// The file.
    pub path: String,
}

/// An interval in which a thread was off its processor, as the kernel recorded it, in nanoseconds since the
/// start of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OffCpu {
    /// Time at which the thread left its processor.
    pub begin_ns: u64,
    /// Time at which the thread was on a processor again.
    pub end_ns: u64,
    /// `true` if the thread was preempted, `false` if it had blocked.
    pub preempted: bool,
}

/// Presence of the kernel's records of context switches in a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Switches {
    /// The records were not requested.
    #[default]
    NotAsked,
    /// The records are in the trace.
    Recorded {
        /// Number of records that were lost because the kernel's buffer was full.
        lost: u64,
    },
    /// The records were requested and not available.
    Unavailable {
        /// The reason.
        reason: String,
    },
}

/// The CPU quota of a control group that contains the process, and its effect during the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "analyze", derive(serde::Serialize))]
pub struct CpuQuota {
    /// The quota in thousandths of a processor.
    pub millis: u64,
    /// Time for which the kernel throttled the group's threads, in nanoseconds, as a sum over the processors.
    pub throttled_ns: u64,
}

/// Samples of a thread's program counter, taken at equal intervals of its CPU time, at page faults, or at
/// equal intervals of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSample {
    /// The thread's number in traces.
    pub tag: u32,
    /// The program counter; 0 once the recording has names.
    pub address: u64,
    /// The site of the spin loop, the page fault or the wait at the address; 0 if none is known.
    pub site: u32,
    /// Number of samples.
    pub count: u64,
}

/// One thread's part of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadTrace {
    /// The thread's number in traces.
    pub tag: u32,
    /// The operating system's number.
    pub os_id: u32,
    /// The thread's name, or empty.
    pub name: String,
    /// Source of its CPU time.
    pub cpu: CpuSource,
    /// Number of events that were lost because the ring was full (hazard T2).
    pub lost: u64,
    /// The events, in the order of their recording by the thread.
    pub events: Vec<Event>,
    /// Intervals in which the thread was off its processor, in order of time; empty unless
    /// [`Trace::switches`] is [`Switches::Recorded`].
    pub off: Vec<OffCpu>,
}

/// End of a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The file has its end block.
    Complete,
    /// The file is truncated, because the writer was killed. All complete blocks were read.
    CutShort {
        /// Offset of the end of the last complete block.
        offset: u64,
    },
}

/// A decoded recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Facts about the whole recording.
    pub session: SessionInfo,
    /// The first clock sample.
    pub begin: ClockSample,
    /// The last clock sample.
    pub end: ClockSample,
    /// Names of sites, by id.
    pub sites: BTreeMap<u32, Name>,
    /// Names of operations, by id.
    pub operations: BTreeMap<u16, Name>,
    /// Threads, by tag.
    pub threads: Vec<ThreadTrace>,
    /// Number of threads that are not in `threads`, because no ring was free for them.
    pub unrecorded_threads: u64,
    /// Mapped files and their addresses, in recordings of other programs.
    pub modules: Vec<Module>,
    /// CPU time of all processes since the machine's start, on the processors that the process could use, in
    /// nanoseconds, at the first and last reading; `None` if unknown.
    pub machine_cpu_ns: Option<(u64, u64)>,
    /// The CPU quota that throttled the process most; `None` if it has none, or if this is unknown.
    pub quota: Option<CpuQuota>,
    /// Presence of the kernel's records of switches.
    pub switches: Switches,
    /// Samples of the program counter, by thread; empty if there are none.
    pub samples: Vec<CpuSample>,
    /// Page faults that waited for a device (major faults), by thread and instruction: `site` is the
    /// function.
    pub faults: Vec<CpuSample>,
    /// Samples of threads at equal intervals of time: `site` is the place of a wait outside of probes, and 0
    /// for a thread that ran or was in a recorded wait. Empty if there are none.
    pub blocked: Vec<CpuSample>,
    /// Frames of stacks, by id.
    pub frames: BTreeMap<u32, Name>,
    /// Stacks of waits, by id: the ids of the frames, the innermost first.
    pub stacks: BTreeMap<u32, Vec<u32>>,
    /// Completeness of the file.
    pub ending: Ending,
    /// The parts of the file that could not be read; `None` if there are none.
    pub damage: Option<Damage>,
}

/// The conversion of ticks to nanoseconds since the start of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calibration {
    begin: u64,
    /// Nanoseconds per tick, times 2^32.
    scale: u64,
}

impl Calibration {
    /// Returns the conversion that follows from two samples. Uses `ticks_per_second` if the samples are less
    /// than a millisecond apart, which is too close for a rate.
    #[must_use]
    pub fn new(begin: &ClockSample, end: &ClockSample, ticks_per_second: u64) -> Self {
        let ns = end.monotonic_ns.saturating_sub(begin.monotonic_ns);
        let ticks = end.ticks.saturating_sub(begin.ticks);
        let (ns, ticks) =
            if ns < 1_000_000 || ticks == 0 { (1_000_000_000, ticks_per_second.max(1)) } else { (ns, ticks) };
        let scale = (u128::from(ns) << 32) / u128::from(ticks);
        Self { begin: begin.ticks, scale: u64::try_from(scale).unwrap_or(u64::MAX) }
    }

    /// Returns the nanoseconds since the beginning; 0 for times before it.
    #[inline]
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        self.span_ns(ticks.saturating_sub(self.begin))
    }

    /// Returns the nanoseconds of a number of ticks.
    #[inline]
    #[must_use]
    pub fn span_ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.scale)) >> 32) as u64
    }
}

impl Trace {
    /// Returns the trace's conversion of ticks.
    #[must_use]
    pub fn calibration(&self) -> Calibration {
        Calibration::new(&self.begin, &self.end, self.session.ticks_per_second)
    }

    /// Returns the number of events of all threads.
    #[must_use]
    pub fn event_count(&self) -> u64 {
        self.threads.iter().map(|t| t.events.len() as u64).sum()
    }

    /// Returns the number of events that all threads have lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.threads.iter().map(|t| t.lost).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ticks: u64, monotonic_ns: u64) -> ClockSample {
        ClockSample { ticks, monotonic_ns, process_cpu_ns: 0 }
    }

    #[test]
    fn t3_ticks_become_nanoseconds_by_two_samples() {
        let c = Calibration::new(&sample(1000, 77), &sample(2_600_001_000, 1_000_000_077), 1);
        assert_eq!(c.ns(1000), 0);
        assert_eq!(c.ns(900), 0, "before the beginning");
        assert!(c.ns(2_600_001_000).abs_diff(1_000_000_000) <= 1);
        assert!(c.span_ns(26).abs_diff(10) <= 1);
    }

    #[test]
    fn a_single_sample_falls_back_to_the_estimate() {
        let c = Calibration::new(&sample(5, 5), &sample(5, 5), 2_000_000_000);
        assert_eq!(c.ns(2_000_000_005), 1_000_000_000);
    }
}
