//! Encodes a recording as blocks in a buffer, which is written to a file or stays in memory.

use super::{
    ClockSample, CpuQuota, CpuSample, CpuSource, MAGIC, Module, OffCpu, SessionInfo, Switches, ThreadTrace,
    VERSION, block, codec,
};
use crate::event::Event;
use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_base::varint::{put_bytes, put_u64};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// An encoder that appends a recording's blocks to a buffer.
///
/// Order: [`Encoder::session`] first, [`Encoder::end`] last, a thread before its events. The rest of the
/// order is free.
#[derive(Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
    payload: Vec<u8>,
    events: u64,
    /// Number of events of each thread, by tag.
    of_thread: BTreeMap<u32, u64>,
}

/// The properties of a thread, which precede its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadInfo {
    /// The thread's number in traces.
    pub tag: u32,
    /// The operating system's number.
    pub os_id: u32,
    /// The thread's name, or empty.
    pub name: String,
    /// Source of the thread's CPU time.
    pub cpu: CpuSource,
}

impl Encoder {
    /// Returns an encoder without any block.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes the head of the file and the session.
    pub fn session(&mut self, session: &SessionInfo) {
        let mut head = [0; 12];
        head[..8].copy_from_slice(MAGIC);
        head[8..].copy_from_slice(&VERSION.to_le_bytes());
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(&crc32c(&head).to_le_bytes());
        self.block(block::SESSION, |out| {
            out.extend_from_slice(&[session.time as u8, session.cpu as u8]);
            for number in [
                u64::from(session.hold_sampling),
                session.event_cost_ps,
                session.ticks_per_second,
                session.process_id.into(),
                session.processors.into(),
                session.started_wall_ns,
            ] {
                put_u64(out, number);
            }
            put_bytes(out, session.label.as_bytes());
        });
    }

    /// Writes names of sites: id, name, file, line.
    pub fn sites<'a>(&mut self, names: impl IntoIterator<Item = (u32, &'a str, &'a str, u32)>) {
        self.names(block::SITES, names);
    }

    /// Writes names of operations: id, name, file, line.
    pub fn operations<'a>(&mut self, names: impl IntoIterator<Item = (u32, &'a str, &'a str, u32)>) {
        self.names(block::OPERATIONS, names);
    }

    /// Writes frames of stacks: id, function, file, line.
    pub fn frames<'a>(&mut self, names: impl IntoIterator<Item = (u32, &'a str, &'a str, u32)>) {
        self.names(block::FRAMES, names);
    }

    /// Writes stacks: id, and the ids of the frames, the innermost first; nothing if there are none.
    pub fn stacks<'a>(&mut self, stacks: impl IntoIterator<Item = (u32, &'a [u32])>) {
        let mut stacks = stacks.into_iter().peekable();
        if stacks.peek().is_none() {
            return;
        }
        self.block(block::STACKS, |out| {
            for (id, frames) in stacks {
                put_u64(out, id.into());
                put_u64(out, frames.len() as u64);
                frames.iter().for_each(|frame| put_u64(out, (*frame).into()));
            }
        });
    }

    fn names<'a>(&mut self, kind: u8, names: impl IntoIterator<Item = (u32, &'a str, &'a str, u32)>) {
        let mut names = names.into_iter().peekable();
        if names.peek().is_none() {
            return;
        }
        self.block(kind, |out| {
            for (id, name, file, line) in names {
                put_u64(out, id.into());
                put_bytes(out, name.as_bytes());
                put_bytes(out, file.as_bytes());
                put_u64(out, line.into());
            }
        });
    }

    /// Writes a thread, before its first events.
    pub fn thread(&mut self, thread: &ThreadInfo) {
        self.block(block::THREAD, |out| {
            put_u64(out, thread.tag.into());
            put_u64(out, thread.os_id.into());
            out.push(thread.cpu as u8);
            put_bytes(out, thread.name.as_bytes());
        });
    }

    /// Writes more events of a thread; `lost` is the number of all its lost events so far.
    pub fn events(&mut self, tag: u32, lost: u64, events: &[Event]) {
        self.events += events.len() as u64;
        let so_far = self.of_thread.entry(tag).or_default();
        let before = std::mem::replace(so_far, *so_far + events.len() as u64);
        self.block(block::EVENTS, |out| {
            put_u64(out, tag.into());
            put_u64(out, lost);
            put_u64(out, before);
            codec::encode(events, out);
        });
    }

    /// Writes a reading of the clocks.
    pub fn clock(&mut self, sample: &ClockSample) {
        self.block(block::CLOCK, |out| {
            put_u64(out, sample.ticks);
            put_u64(out, sample.monotonic_ns);
            put_u64(out, sample.process_cpu_ns);
        });
    }

    /// Writes the mapped files and their addresses.
    pub fn modules(&mut self, modules: &[Module]) {
        self.block(block::MODULES, |out| {
            for module in modules {
                put_u64(out, module.base);
                put_u64(out, module.len);
                put_u64(out, module.offset);
                put_bytes(out, module.path.as_bytes());
            }
        });
    }

    /// Writes the CPU time of all processes so far on the processors that the process can use, in
    /// nanoseconds.
    pub fn machine(&mut self, cpu_ns: u64) {
        self.block(block::MACHINE, |out| put_u64(out, cpu_ns));
    }

    /// Writes the CPU quota of the process; nothing if there is none.
    pub fn quota(&mut self, quota: Option<CpuQuota>) {
        if let Some(CpuQuota { millis, throttled_ns }) = quota {
            self.block(block::QUOTA, |out| {
                put_u64(out, millis);
                put_u64(out, throttled_ns);
            });
        }
    }

    /// Writes the presence of the kernel's records of switches; nothing if they were not requested.
    pub fn switches(&mut self, switches: &Switches) {
        let (status, lost, reason) = match switches {
            Switches::NotAsked => return,
            Switches::Recorded { lost } => (1, *lost, ""),
            Switches::Unavailable { reason } => (2, 0, reason.as_str()),
        };
        self.block(block::SWITCHES, |out| {
            out.push(status);
            put_u64(out, lost);
            put_bytes(out, reason.as_bytes());
        });
    }

    /// Writes all intervals in which a thread was off its processor, in order of time.
    pub fn off(&mut self, tag: u32, off: &[OffCpu]) {
        self.block(block::OFF, |out| {
            put_u64(out, tag.into());
            let mut before = 0;
            for off in off {
                put_u64(out, off.begin_ns.wrapping_sub(before) << 1 | u64::from(off.preempted));
                put_u64(out, off.end_ns.wrapping_sub(off.begin_ns));
                before = off.begin_ns;
            }
        });
    }

    /// Writes samples of the program counter; nothing if there are none.
    pub fn samples(&mut self, samples: &[CpuSample]) {
        self.counts(block::SAMPLES, samples);
    }

    /// Writes page faults; nothing if there are none.
    pub fn faults(&mut self, faults: &[CpuSample]) {
        self.counts(block::FAULTS, faults);
    }

    /// Writes samples of waits outside of probes; nothing if there are none.
    pub fn blocked(&mut self, samples: &[CpuSample]) {
        self.counts(block::BLOCKED, samples);
    }

    fn counts(&mut self, kind: u8, samples: &[CpuSample]) {
        if samples.is_empty() {
            return;
        }
        self.block(kind, |out| {
            for sample in samples {
                put_u64(out, sample.tag.into());
                put_u64(out, sample.address);
                put_u64(out, sample.site.into());
                put_u64(out, sample.count);
            }
        });
    }

    /// Writes the number of threads without a recording; nothing if it is 0.
    pub fn unrecorded(&mut self, threads: u64) {
        if threads > 0 {
            self.block(block::UNRECORDED, |out| put_u64(out, threads));
        }
    }

    /// Writes the end of the recording.
    pub fn end(&mut self, lost: u64) {
        let events = self.events;
        self.block(block::END, |out| {
            put_u64(out, events);
            put_u64(out, lost);
        });
    }

    /// Returns the number of events encoded so far.
    #[must_use]
    pub fn event_count(&self) -> u64 {
        self.events
    }

    /// Returns the bytes since the last [`Encoder::clear`].
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.out
    }

    /// Removes the bytes from the buffer, after the caller has written them.
    pub fn clear(&mut self) {
        self.out.clear();
    }

    /// Returns the bytes since the last [`Encoder::clear`].
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    fn block(&mut self, kind: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        self.payload.clear();
        fill(&mut self.payload);
        let len = u32::try_from(self.payload.len()).expect("a block holds at most one ring of events");
        let head = block::head(kind, len);
        let crc = crc32c_append(crc32c(&head), &self.payload);
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(&crc.to_le_bytes());
        self.out.extend_from_slice(&self.payload);
    }
}

impl super::Trace {
    /// Returns the trace as the bytes of a trace file. [`Trace::from_bytes`](super::Trace::from_bytes)
    /// returns an equal trace; for a truncated trace, everything except the position of the cut is equal.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let written = self.write_to(&mut bytes);
        debug_assert!(written.is_ok(), "a vector takes all bytes");
        bytes
    }

    /// Writes the bytes of [`Trace::to_bytes`](super::Trace::to_bytes) in parts, with memory for one part.
    ///
    /// # Errors
    ///
    /// The first error of `out`.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut encoder = Encoder::new();
        encoder.session(&self.session);
        encoder.clock(&self.begin);
        encoder.switches(&self.switches);
        encoder.samples(&self.samples);
        encoder.faults(&self.faults);
        encoder.blocked(&self.blocked);
        encoder.unrecorded(self.unrecorded_threads);
        if let Some((first, last)) = self.machine_cpu_ns {
            encoder.machine(first);
            encoder.machine(last);
        }
        encoder.quota(self.quota);
        if !self.modules.is_empty() {
            encoder.modules(&self.modules);
        }
        encoder.sites(self.sites.iter().map(|(id, n)| (*id, n.name.as_str(), n.file.as_str(), n.line)));
        encoder.operations(
            self.operations.iter().map(|(id, n)| (u32::from(*id), n.name.as_str(), n.file.as_str(), n.line)),
        );
        encoder.frames(self.frames.iter().map(|(id, n)| (*id, n.name.as_str(), n.file.as_str(), n.line)));
        encoder.stacks(self.stacks.iter().map(|(id, frames)| (*id, frames.as_slice())));
        for thread in &self.threads {
            let (tag, os_id, cpu) = (thread.tag, thread.os_id, thread.cpu);
            encoder.thread(&ThreadInfo { tag, os_id, cpu, name: thread.name.clone() });
        }
        Rounds::of(&self.threads).write(&mut encoder, out)?;
        for thread in &self.threads {
            encoder.events(thread.tag, thread.lost, &[]);
            if !thread.off.is_empty() {
                encoder.off(thread.tag, &thread.off);
            }
        }
        encoder.clock(&self.end);
        if self.ending == super::Ending::Complete {
            encoder.end(self.lost());
        }
        out.write_all(encoder.as_bytes())
    }
}

/// Events of several threads in order of time, in rounds of about [`Rounds::EVENTS`] events.
struct Rounds<'t> {
    threads: &'t [ThreadTrace],
    /// By thread: number of written events, and the latest ticks of its next share.
    at: Vec<(usize, u64)>,
}

impl<'t> Rounds<'t> {
    const EVENTS: usize = 1 << 16;

    fn of(threads: &'t [ThreadTrace]) -> Self {
        let mut rounds = Self { threads, at: vec![(0, 0); threads.len()] };
        (0..threads.len()).for_each(|thread| rounds.look_ahead(thread));
        rounds
    }

    /// Returns the number of a thread's events in a round.
    fn share(&self) -> usize {
        (Self::EVENTS / self.threads.len().max(1)).max(16)
    }

    fn look_ahead(&mut self, thread: usize) {
        let share = self.share();
        let (written, latest) = &mut self.at[thread];
        let next = self.threads[thread].events[*written..].iter().take(share);
        *latest = next.map(|e| e.ticks).max().unwrap_or(u64::MAX);
    }

    /// Writes all rounds. A round ends when the first thread has used up its share.
    fn write(mut self, encoder: &mut Encoder, out: &mut dyn Write) -> io::Result<()> {
        while let Some(until) = self.until() {
            for (index, thread) in self.threads.iter().enumerate() {
                let rest = &thread.events[self.at[index].0..];
                let count = rest.iter().take_while(|e| e.ticks <= until).take(2 * self.share()).count();
                if count > 0 {
                    encoder.events(thread.tag, thread.lost, &rest[..count]);
                    self.at[index].0 += count;
                    self.look_ahead(index);
                }
            }
            out.write_all(encoder.as_bytes())?;
            encoder.clear();
        }
        Ok(())
    }

    /// Returns the ticks of the round's end; `None` if all events are written.
    fn until(&self) -> Option<u64> {
        let left =
            self.threads.iter().zip(&self.at).filter(|(thread, (written, _))| *written < thread.events.len());
        left.map(|(_, (_, latest))| *latest).min()
    }
}
