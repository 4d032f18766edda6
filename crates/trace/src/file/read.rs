//! Decodes bytes to a [`Trace`]. Every length is checked, and every checksum verified.

use super::damage::Gaps;
use super::outline::Source;
use super::{
    ClockSample, CpuQuota, CpuSample, CpuSource, Ending, MAGIC, Module, Name, OffCpu, SessionInfo, Switches,
    ThreadTrace, TimeSource, Trace, VERSION, block, codec,
};
use crate::error::ReadError;
use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_base::varint::{take_bytes, take_u8, take_u64};
use std::collections::BTreeMap;
use std::path::Path;

/// The reason that a payload is not valid.
pub(super) type Wrong = &'static str;

const EVENTS_OF_UNKNOWN: Wrong = "events of an unknown thread";

/// Largest number of frames of a stack. The recorder writes far fewer, and reports recurse for each frame.
const MOST_FRAMES: u64 = 1024;

impl Trace {
    /// Reads a trace file. Takes 32 to 64 bytes of memory per event.
    ///
    /// # Errors
    ///
    /// [`ReadError`]. A truncated file with a complete head is no error: see [`Trace::ending`]. Neither are
    /// damaged blocks: see [`Trace::damage`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        super::outline::read_trace(&Source::file(path.as_ref())?)
    }

    /// Reads the bytes of a trace file.
    ///
    /// # Errors
    ///
    /// The errors of [`Trace::read`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ReadError> {
        super::outline::read_bytes(bytes)
    }
}

/// Number of bytes before the first block.
pub(super) const HEAD: usize = 16;

/// Checks magic and version. Needs only the first [`HEAD`] bytes.
pub(super) fn check_head(bytes: &[u8]) -> Result<(), ReadError> {
    let found = &bytes[..bytes.len().min(MAGIC.len())];
    if found != &MAGIC[..found.len()] || found.is_empty() {
        return Err(ReadError::NotATrace { found: found.to_vec() });
    }
    let Some(head) = bytes.get(..HEAD) else { return Err(ReadError::NoHead { len: bytes.len() as u64 }) };
    let (found, expected) = (crc32c(&head[..12]), u32_at(head, 12));
    if found != expected {
        return Err(ReadError::Checksum { offset: 0, found, expected });
    }
    match u32_at(head, 8) {
        VERSION => Ok(()),
        found => Err(ReadError::Version { found, expected: VERSION }),
    }
}

/// Checks the first eight of a block's [`block::HEAD`] bytes. Returns the length of its payload.
pub(super) fn check_block_head(head: &[u8], offset: u64) -> Result<usize, ReadError> {
    let expected = block::head(head[0], u32_at(head, 4));
    if head[..8] != expected {
        let (found, expected) = (u32_at(head, 0) >> 8, u32_at(&expected, 0) >> 8);
        return Err(ReadError::Checksum { offset, found, expected });
    }
    Ok(u32_at(head, 4) as usize)
}

/// Checks a block's payload against its head.
pub(super) fn check_payload(head: &[u8], payload: &[u8], offset: u64) -> Result<(), ReadError> {
    let (found, expected) = (crc32c_append(crc32c(&head[..8]), payload), u32_at(head, 8));
    if found == expected { Ok(()) } else { Err(ReadError::Checksum { offset, found, expected }) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Counts of the events that were not kept.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PassedOver {
    pub(super) events: u64,
    /// The largest ticks of the first event of a block.
    pub(super) latest_first: u64,
}

/// Content of the blocks read so far.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Counts of the skipped events; `None` if events are kept.
    pub(super) passed_over: Option<PassedOver>,
    session: Option<SessionInfo>,
    clock: Option<(ClockSample, ClockSample)>,
    sites: BTreeMap<u32, Name>,
    operations: BTreeMap<u16, Name>,
    threads: BTreeMap<u32, ThreadTrace>,
    modules: Vec<Module>,
    machine: Option<(u64, u64)>,
    quota: Option<CpuQuota>,
    switches: Option<Switches>,
    samples: Vec<CpuSample>,
    faults: Vec<CpuSample>,
    blocked: Vec<CpuSample>,
    unrecorded: u64,
    frames: BTreeMap<u32, Name>,
    stacks: BTreeMap<u32, Vec<u32>>,
    gaps: Gaps,
    /// Number of the events that were inserted for missing ones.
    inserted: u64,
    /// Numbers of events and losses in the end block.
    end: Option<(u64, u64)>,
}

impl Parts {
    /// Returns an empty content that skips events.
    pub(super) fn passing_over_events() -> Self {
        Self { passed_over: Some(PassedOver::default()), ..Self::default() }
    }

    pub(super) fn take(&mut self, kind: u8, mut payload: &[u8]) -> Result<(), Wrong> {
        let input = &mut payload;
        match (kind, &self.session) {
            (block::SESSION, None) => self.session = Some(session(input)?),
            (block::SESSION, Some(_)) => return Err("a second session"),
            (_, None) => return Err("a block before the session"),
            (block::SITES, _) => self.take_sites(input)?,
            (block::OPERATIONS, _) => self.take_operations(input)?,
            (block::FRAMES, _) => self.take_frames(input)?,
            (block::STACKS, _) => self.take_stacks(input)?,
            (block::THREAD, _) => self.take_thread(input)?,
            (block::EVENTS, _) if self.passed_over.is_some() => return self.pass_over_events(input),
            (block::EVENTS, _) => self.take_events(input)?,
            (block::CLOCK, _) => self.take_clock(input)?,
            (block::END, _) => self.end = Some((number(input)?, number(input)?)),
            (block::MODULES, _) => self.take_modules(input)?,
            (block::SWITCHES, _) => self.take_switches(input)?,
            (block::OFF, _) => self.take_off(input)?,
            (block::SAMPLES, _) => take_samples(input, &mut self.samples)?,
            (block::FAULTS, _) => take_samples(input, &mut self.faults)?,
            (block::BLOCKED, _) => take_samples(input, &mut self.blocked)?,
            (block::UNRECORDED, _) => self.unrecorded = number(input)?,
            (block::QUOTA, _) => {
                self.quota = Some(CpuQuota { millis: number(input)?, throttled_ns: number(input)? });
            }
            (block::MACHINE, _) => {
                let now = number(input)?;
                self.machine = Some((self.machine.map_or(now, |(first, _)| first), now));
            }
            _ => return Ok(()), // a block of a later minor version
        }
        if payload.is_empty() { Ok(()) } else { Err("bytes behind the end of a block's content") }
    }

    fn take_sites(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        while !input.is_empty() {
            let (id, name) = named(input)?;
            self.sites.insert(id, name);
        }
        Ok(())
    }

    fn take_operations(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        while !input.is_empty() {
            let (id, name) = named(input)?;
            self.operations.insert(u16::try_from(id).map_err(|_| "an operation's id beyond 16 bits")?, name);
        }
        Ok(())
    }

    fn take_frames(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        while !input.is_empty() {
            let (id, name) = named(input)?;
            self.frames.insert(id, name);
        }
        Ok(())
    }

    fn take_stacks(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        while !input.is_empty() {
            let (id, count) = (small(input)?, number(input)?);
            if count > (input.len() as u64).min(MOST_FRAMES) {
                return Err("a stack with too many frames");
            }
            let frames = (0..count).map(|_| small(input)).collect::<Result<_, _>>()?;
            self.stacks.insert(id, frames);
        }
        Ok(())
    }

    /// Takes a damaged part of the file. Fails if it precedes the first clock sample, without which no time
    /// is known.
    pub(super) fn take_damaged(&mut self, offset: u64, bytes: u64) -> Result<(), ()> {
        let (_, last) = self.clock.ok_or(())?;
        self.gaps.damaged(offset, bytes, last.ticks);
        Ok(())
    }

    /// Returns the thread of a block; `unknown` is the error if the file has no such thread.
    fn thread_of(&mut self, tag: u32, unknown: Wrong) -> Result<&mut ThreadTrace, Wrong> {
        let cpu = self.session.as_ref().map_or(CpuSource::None, |session| session.cpu);
        if self.gaps.is_damaged() {
            // The block of the thread may be damaged.
            let nameless = || ThreadTrace {
                tag,
                os_id: 0,
                name: String::new(),
                cpu,
                lost: 0,
                events: Vec::new(),
                off: Vec::new(),
            };
            return Ok(self.threads.entry(tag).or_insert_with(nameless));
        }
        self.threads.get_mut(&tag).ok_or(unknown)
    }

    fn take_thread(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        let (tag, os_id, cpu) = (small(input)?, small(input)?, cpu_source(input)?);
        let thread =
            ThreadTrace { tag, os_id, cpu, name: text(input)?, lost: 0, events: Vec::new(), off: Vec::new() };
        match self.threads.insert(tag, thread) {
            None => Ok(()),
            Some(_) => Err("a second thread of the same number"),
        }
    }

    fn take_events(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        let tag = small(input)?;
        let thread = self.thread_of(tag, EVENTS_OF_UNKNOWN)?;
        thread.lost = number(input)?;
        let (before, at) = (number(input)?, thread.events.len());
        codec::decode(input, &mut thread.events)?;
        let (count, first) = (thread.events.len() - at, thread.events.get(at).map_or(0, |e| e.ticks));
        if let Some(lost) = self.gaps.block(tag, before, count as u64, first)? {
            self.threads.entry(tag).and_modify(|thread| thread.events.insert(at, lost));
            self.inserted += 1;
        }
        Ok(())
    }

    fn pass_over_events(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        let tag = small(input)?;
        self.thread_of(tag, EVENTS_OF_UNKNOWN)?.lost = number(input)?;
        let before = number(input)?;
        let (count, first) = codec::peek(input)?;
        self.gaps.block(tag, before, count, first)?;
        let seen = self.passed_over.get_or_insert_default();
        seen.events += count;
        seen.latest_first = seen.latest_first.max(first);
        Ok(())
    }

    /// Returns `true` if the end block was read.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn take_switches(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        let (status, lost, reason) = (take_u8(input).ok_or(CUT)?, number(input)?, text(input)?);
        let switches = match status {
            1 => Switches::Recorded { lost },
            2 => Switches::Unavailable { reason },
            _ => return Err("unknown state of the records of context switches"),
        };
        match self.switches.replace(switches) {
            None => Ok(()),
            Some(_) => Err("the state of the records of context switches comes twice"),
        }
    }

    fn take_off(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        const FAR: Wrong = "a time beyond 64 bits";
        let tag = small(input)?;
        let thread = self.thread_of(tag, "switches of an unknown thread")?;
        if !thread.off.is_empty() {
            return Err("the switches of a thread come twice");
        }
        let mut begin_ns = 0_u64;
        while !input.is_empty() {
            let (step, length) = (number(input)?, number(input)?);
            begin_ns = begin_ns.checked_add(step >> 1).ok_or(FAR)?;
            let end_ns = begin_ns.checked_add(length).ok_or(FAR)?;
            thread.off.push(OffCpu { begin_ns, end_ns, preempted: step & 1 != 0 });
        }
        Ok(())
    }

    fn take_modules(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        self.modules.clear();
        while !input.is_empty() {
            let (base, len, offset) = (number(input)?, number(input)?, number(input)?);
            self.modules.push(Module { base, len, offset, path: text(input)? });
        }
        Ok(())
    }

    fn take_clock(&mut self, input: &mut &[u8]) -> Result<(), Wrong> {
        let (ticks, monotonic_ns, process_cpu_ns) = (number(input)?, number(input)?, number(input)?);
        let sample = ClockSample { ticks, monotonic_ns, process_cpu_ns };
        let begin = self.clock.map_or(sample, |(begin, _)| begin);
        if sample.ticks < begin.ticks || sample.monotonic_ns < begin.monotonic_ns {
            return Err("the clock ran backwards");
        }
        self.clock = Some((begin, sample));
        self.gaps.clock(sample.ticks);
        Ok(())
    }

    pub(super) fn finish(self, offset: u64, len: u64) -> Result<Trace, ReadError> {
        let passed_over = self.passed_over.map_or(0, |p| p.events);
        let (Some(session), Some((begin, end))) = (self.session, self.clock) else {
            return Err(ReadError::NoHead { len });
        };
        let read = |trace: &Trace| trace.event_count() - self.inserted + passed_over;
        let ending = if self.end.is_some() { Ending::Complete } else { Ending::CutShort { offset } };
        let threads = self.threads.into_values().collect();
        let mut trace = Trace {
            session,
            begin,
            end,
            sites: self.sites,
            operations: self.operations,
            threads,
            unrecorded_threads: self.unrecorded,
            modules: self.modules,
            machine_cpu_ns: self.machine,
            quota: self.quota,
            switches: self.switches.unwrap_or_default(),
            samples: self.samples,
            faults: self.faults,
            blocked: self.blocked,
            frames: self.frames,
            stacks: self.stacks,
            ending,
            damage: None,
        };
        trace.damage = self.gaps.finish(read(&trace), self.end.map(|(events, _)| events), end.ticks);
        let is_wrong = |(events, lost)| match trace.damage {
            None => (events, lost) != (read(&trace), trace.lost()),
            Some(_) => events < read(&trace) || lost < trace.lost(),
        };
        match self.end {
            Some(counts) if is_wrong(counts) => {
                Err(ReadError::Malformed { offset, what: "the end counts other events than there are" })
            }
            Some(_) if offset != len => Err(ReadError::Malformed { offset, what: "bytes behind the end" }),
            _ => Ok(trace),
        }
    }
}

fn session(input: &mut &[u8]) -> Result<SessionInfo, Wrong> {
    let time = match take_u8(input).ok_or(CUT)? {
        1 => TimeSource::Tsc,
        2 => TimeSource::Monotonic,
        _ => return Err("a clock of unknown kind"),
    };
    Ok(SessionInfo {
        time,
        cpu: cpu_source(input)?,
        hold_sampling: small(input)?,
        event_cost_ps: number(input)?,
        ticks_per_second: number(input)?,
        process_id: small(input)?,
        processors: small(input)?,
        started_wall_ns: number(input)?,
        label: text(input)?,
    })
}

fn take_samples(input: &mut &[u8], samples: &mut Vec<CpuSample>) -> Result<(), Wrong> {
    while !input.is_empty() {
        let (tag, address) = (small(input)?, number(input)?);
        samples.push(CpuSample { tag, address, site: small(input)?, count: number(input)? });
    }
    Ok(())
}

fn named(input: &mut &[u8]) -> Result<(u32, Name), Wrong> {
    Ok((small(input)?, Name { name: text(input)?, file: text(input)?, line: small(input)? }))
}

const CUT: Wrong = "a field is cut off";

pub(super) fn number(input: &mut &[u8]) -> Result<u64, Wrong> {
    take_u64(input).ok_or(CUT)
}

pub(super) fn small(input: &mut &[u8]) -> Result<u32, Wrong> {
    u32::try_from(number(input)?).map_err(|_| "a number beyond 32 bits")
}

fn text(input: &mut &[u8]) -> Result<String, Wrong> {
    let bytes = take_bytes(input).ok_or(CUT)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| "a name that is not UTF-8")
}

fn cpu_source(input: &mut &[u8]) -> Result<CpuSource, Wrong> {
    Ok(match take_u8(input).ok_or(CUT)? {
        0 => CpuSource::None,
        1 => CpuSource::Rseq,
        2 => CpuSource::ThreadClock,
        3 => CpuSource::Switches,
        _ => return Err("a CPU clock of unknown kind"),
    })
}
