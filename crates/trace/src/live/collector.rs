//! The collector: takes events from the rings, and encodes and writes them, or keeps them and encodes them at
//! the end.

use super::event_buffer::{self, EventBuffer};
use super::plain_mutex::PlainMutex;
use super::quota::CpuQuotas;
use super::registry::{OPERATIONS, SITES};
use super::session::SESSION;
use super::{clock, machine, thread_state};
use crate::error::{StartError, StopError};
use crate::event::{Event, EventKind, SWITCHED};
use crate::file::{CpuSource, Encoder, SessionInfo, ThreadInfo, TimeSource};
use crate::recording::Recording;
use crate::ring::Consumer;
use crate::site::Definition;
use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::Ordering::Relaxed;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::ptr;
use std::time::Duration;

/// Rings that the collector has not taken over yet.
pub(super) static JOINING: PlainMutex<Vec<Joining>> = PlainMutex::new(Vec::new());

/// A ring that the collector has not taken over yet.
pub(super) struct Joining {
    pub(super) session: u32,
    pub(super) thread: ThreadInfo,
    pub(super) consumer: Consumer,
}

/// The next action of the collector's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub(super) enum Task {
    /// Drain the rings at intervals.
    #[default]
    Drain = 0,
    /// Sleep: the recording is suspended.
    Rest = 1,
    /// End the thread. No other task follows.
    End = 2,
}

/// Sets the task of the collector's thread, and wakes it.
///
/// Uses a wait word instead of a condition variable of the workspace, for the reason of [`PlainMutex`].
#[derive(Default)]
pub(super) struct Notifier(WaitWord);

impl Notifier {
    /// Sets the task. Called by one thread at a time (SESSION-1).
    pub(super) fn request(&self, task: Task) {
        // Relaxed: the word publishes no other data; the events are in the rings.
        self.0.word().store(task as u32, Relaxed);
        self.0.wake_all();
    }

    fn is(&self, task: Task) -> bool {
        self.0.word().load(Relaxed) == task as u32
    }

    /// Sleeps while `task` is current; setting another task wakes it.
    fn wait(&self, task: Task, at_most: Option<Duration>) {
        self.0.wait(task as u32, at_most);
    }
}

/// Runs the collector's thread: drains and sleeps until the task is [`Task::End`]. Does not sleep while a
/// ring fills quickly.
pub(super) fn collect(mut collector: Box<Collector>, notifier: &Notifier, pause: Duration) -> Box<Collector> {
    loop {
        let busy = collector.drain();
        if !busy {
            notifier.wait(Task::Drain, Some(pause));
        }
        while notifier.is(Task::Rest) {
            notifier.wait(Task::Rest, None);
        }
        if notifier.is(Task::End) {
            return collector;
        }
    }
}

/// Destination of the encoded bytes.
enum Sink {
    Memory,
    File { path: PathBuf, file: File, failed: Option<io::Error> },
}

/// The ring of a thread that was alive at the last drain.
struct Open {
    tag: u32,
    os_id: u32,
    cpu: CpuSource,
    /// Ticks of the thread's latest event.
    last: u64,
    consumer: Consumer,
}

impl Open {
    /// Returns an anchor with the thread's current CPU time, so that the CPU time since its last event is
    /// known. `None` if the thread has ended or CPU time is not recorded.
    fn last_anchor(&self, time: TimeSource) -> Option<Event> {
        if self.cpu == CpuSource::None || self.last == 0 {
            return None;
        }
        let ticks = clock::ticks(time).max(self.last);
        let object = clock::cpu_ns_of(self.os_id)?;
        Some(Event { object, flags: SWITCHED, ..Event::new(ticks, EventKind::Anchor) })
    }
}

/// The state of the collector, which drains rings, encodes events, and writes them.
pub(super) struct Collector {
    session: u32,
    time: TimeSource,
    encoder: Encoder,
    sink: Sink,
    rings: Vec<Open>,
    /// Number of events that closed rings have lost.
    lost_before: u64,
    threads: u64,
    sites_seen: *const Definition,
    operations_seen: *const Definition,
    kept: EventBuffer,
    quotas: CpuQuotas,
}

// SAFETY: the two pointers are positions in the registries' lists of statics, which any thread may follow.
unsafe impl Send for Collector {}

impl Collector {
    pub(super) fn new(session: u32, info: &SessionInfo, path: Option<PathBuf>) -> Result<Self, StartError> {
        let sink = match path {
            None => Sink::Memory,
            Some(path) => match File::create(&path) {
                Ok(file) => Sink::File { path, file, failed: None },
                Err(source) => return Err(StartError::Create { path, source }),
            },
        };
        let mut encoder = Encoder::new();
        encoder.session(info);
        encoder.clock(&clock::sample(info.time));
        machine::cpu_ns().into_iter().for_each(|ns| encoder.machine(ns));
        let mut collector = Self {
            session,
            time: info.time,
            encoder,
            sink,
            rings: Vec::new(),
            lost_before: 0,
            threads: 0,
            sites_seen: ptr::null(),
            operations_seen: ptr::null(),
            kept: EventBuffer::default(),
            quotas: CpuQuotas::of(None),
        };
        collector.write();
        match collector.sink {
            Sink::File { path, failed: Some(source), .. } => Err(StartError::Create { path, source }),
            _ => Ok(collector),
        }
    }

    /// Drains all rings and writes their events. Returns `true` if some ring was half full.
    fn drain(&mut self) -> bool {
        self.admit();
        let kept = &mut self.kept;
        let (mut busy, mut any) = (false, false);
        let mut gone = 0;
        self.rings.retain_mut(|Open { tag, consumer, last, .. }| {
            let closed = consumer.is_closed(); // before the drain (RING-3)
            let (taken, latest) = kept.take(*tag, consumer);
            *last = latest.map_or(*last, |ticks| ticks.max(*last));
            busy |= taken * 2 >= consumer.capacity();
            any |= taken > 0 || closed;
            if closed {
                gone += consumer.lost();
            } else {
                kept.forget_last_if_empty();
            }
            !closed
        });
        self.lost_before += gone;
        if any {
            self.encoder.clock(&clock::sample(self.time));
            self.name_new();
            let is_to_stay = matches!(self.sink, Sink::Memory) && self.kept.len() < event_buffer::MOST;
            if !is_to_stay {
                self.kept.encode(&mut self.encoder);
                self.write();
            }
        }
        busy
    }

    fn admit(&mut self) {
        for joining in std::mem::take(&mut *JOINING.lock()) {
            // A thread may have joined a recording that ended before: its ring is dropped here.
            if joining.session == self.session {
                self.encoder.thread(&joining.thread);
                let (tag, os_id, cpu) = (joining.thread.tag, joining.thread.os_id, joining.thread.cpu);
                self.rings.push(Open { tag, os_id, cpu, last: 0, consumer: joining.consumer });
                self.threads += 1;
            }
        }
    }

    fn name_new(&mut self) {
        let tell = |(id, d): (u32, &'static Definition)| (id, d.name, d.file, d.line);
        self.encoder.sites(SITES.since(&mut self.sites_seen).into_iter().map(tell));
        self.encoder.operations(OPERATIONS.since(&mut self.operations_seen).into_iter().map(tell));
    }

    /// Writes the encoded bytes to the file, if there is one. A failure ends the recording: probes are
    /// switched off, and [`stop`] returns the reason.
    fn write(&mut self) {
        let Sink::File { file, failed, .. } = &mut self.sink else { return };
        if failed.is_none() {
            *failed = file.write_all(self.encoder.as_bytes()).err();
        }
        if failed.is_some() {
            // Repeated at each write, because a suspended recording may have been resumed. The exchange ends
            // only this recording; a later one cannot begin before `stop` has removed this one.
            let _ = SESSION.compare_exchange(self.session, 0, Relaxed, Relaxed);
        }
        self.encoder.clear();
    }

    pub(super) fn finish(mut self) -> Result<Recording, StopError> {
        self.drain();
        self.kept.encode(&mut self.encoder);
        for ring in &self.rings {
            // The open operation that the thread has not recorded yet: the thread may hang in it.
            let open = thread_state::unrecorded(ring.tag).filter(|open| open.since >= ring.last);
            let open =
                open.map(|o| Event { operation: o.operation, ..Event::new(o.since, EventKind::Enter) });
            let last: Vec<Event> = open.into_iter().chain(ring.last_anchor(self.time)).collect();
            self.encoder.events(ring.tag, ring.consumer.lost(), &last);
        }
        let lost = self.lost_before + self.rings.iter().map(|r| r.consumer.lost()).sum::<u64>();
        self.encoder.clock(&clock::sample(self.time));
        machine::cpu_ns().into_iter().for_each(|ns| self.encoder.machine(ns));
        self.quotas.read();
        self.encoder.quota(self.quotas.strictest());
        self.name_new();
        self.encoder.end(lost);
        self.write();
        let (events, threads) = (self.encoder.event_count(), self.threads);
        match self.sink {
            Sink::Memory => Ok(Recording::in_memory(events, lost, threads, self.encoder.into_bytes())),
            Sink::File { path, failed: None, .. } => Ok(Recording::in_file(events, lost, threads, path)),
            Sink::File { path, failed: Some(source), .. } => Err(StopError::Write { path, source }),
        }
    }
}
