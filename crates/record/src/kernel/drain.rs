//! The rings that the kernel fills, and the thread that drains them.

use crate::error::RecordError;
use perf_event::{Builder, Clock, SampleFlag, Sampler};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two drains of the rings.
const PAUSE: Duration = Duration::from_millis(2);

/// Receives the records on the draining thread.
pub(super) trait Sink: Send + 'static {
    /// Receives one record of the event that was opened as `source`, without the record's header.
    fn take(&mut self, source: u32, kind: u32, misc: u16, bytes: &[u8]);
}

/// The draining thread. `finish` returns its sink.
pub(super) struct Drain<S> {
    rings: Sender<(u32, Sampler)>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<S>,
}

impl<S: Sink> Drain<S> {
    pub(super) fn start(sink: S) -> Result<Self, RecordError> {
        let (rings, theirs) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("azekura-kernel".to_owned());
        let thread = thread.spawn(move || drain(sink, &theirs, &flag));
        let thread =
            thread.map_err(|source| RecordError::Kernel { what: "a thread for its records", source })?;
        Ok(Self { rings, stop, thread })
    }

    /// Opens an event and adds its ring to the draining thread.
    pub(super) fn open(&self, source: u32, builder: &Builder<'_>, ring_bytes: usize) -> io::Result<()> {
        let sampler = builder.build()?.sampled(ring_bytes)?;
        self.rings.send((source, sampler)).map_err(|_| io::Error::other("the draining thread is gone"))
    }

    /// Drains all rings once more and closes the events.
    pub(super) fn finish(self) -> Option<S> {
        // Relaxed: a flag that publishes no other data.
        self.stop.store(true, Relaxed);
        self.thread.join().ok()
    }
}

fn drain<S: Sink>(mut sink: S, rings: &Receiver<(u32, Sampler)>, stop: &AtomicBool) -> S {
    let mut open: Vec<(u32, Sampler)> = Vec::new();
    loop {
        let last = stop.load(Relaxed);
        open.extend(rings.try_iter());
        for (source, ring) in &mut open {
            while let Some(record) = ring.next_record() {
                sink.take(*source, record.ty(), record.misc(), &record.to_contiguous());
            }
        }
        if last {
            return sink;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Sets the attributes that all events share: thread and time in every record, on `CLOCK_MONOTONIC`,
/// inherited by new threads.
pub(super) fn common<'a, 'b>(builder: &'b mut Builder<'a>, cpu: usize) -> &'b mut Builder<'a> {
    builder
        .one_cpu(cpu)
        .inherit(true)
        .enabled(true)
        .sample(SampleFlag::TID)
        .sample(SampleFlag::TIME)
        .sample_id_all(true)
        .clockid(Clock::MONOTONIC)
        .wakeup_watermark(usize::MAX >> 33)
}

/// Returns the numbers of the processors that are online.
pub(super) fn processors() -> Vec<usize> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut processors = Vec::new();
    for range in online.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            processors.extend(first..=last);
        }
    }
    if processors.is_empty() { vec![0] } else { processors }
}

/// Returns the 32-bit field at this offset of a record; 0 beyond the record's end.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

/// Returns the 64-bit field at this offset of a record; 0 beyond the record's end.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
