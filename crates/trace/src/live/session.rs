//! A recording from start to stop: its number, its collector, and its destination.
//!
//! | `SESSION` | meaning |
//! |---|---|
//! | 0 | off, or suspended: a probe is one relaxed load |
//! | n | the n-th recording of this process is running |
//!
//! A thread joins a recording at its first event: it creates a ring and puts the consumer end into
//! [`JOINING`](super::collector::JOINING). The collector takes the consumer from there. It drains all rings
//! every few milliseconds, encodes the events, and writes them. After `SESSION` has become 0 it drains once
//! more; an event that a thread is writing at that moment may be lost. A ring lives as long as either end, so
//! the order in which the ends are dropped does not matter.
//!
//! - **SESSION-1** `SESSION` and the collector's [`Notifier`] are written under [`ACTIVE`]'s lock; the thread
//!   that removed the recording from `ACTIVE` writes the notifier last. There is one exception: the collector
//!   itself ends a recording that it cannot write, by a compare-and-swap from that recording's number to 0 at
//!   each attempt to write, so that a concurrent resume is undone.
//! - **SESSION-2** An operation, wait or hold that began during a recording is recorded to its end even if
//!   `SESSION` is 0 by then, so a suspended recording has no unfinished spans. After [`stop`] no collector
//!   drains the ring, so such an event has no effect.

use super::collector::{Collector, JOINING, Joining, Notifier, Task, collect};
use super::plain_mutex::PlainMutex;
use super::recorder::{Common, Recorder};
use super::sample_counts::SampleCounts;
use super::sampler::MOST_LOG;
use super::stride::LONG_NS;
use super::track::When;
use super::{clock, cpu, machine};
use crate::error::{StartError, StopError};
use crate::event::EventKind;
use crate::file::{CpuSource, SessionInfo, ThreadInfo, TimeSource};
use crate::recording::{CpuTime, Options, Recording};
use crate::ring;
use azekura_base::CachePadded;
use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use azekura_base::sync::machine::simulated;
use std::sync::Arc;
use std::time::Duration;

/// Number of the current recording, 0 for none. Every probe reads it, so it has its own cache line. Relaxed
/// everywhere: a joining thread takes its data from [`ACTIVE`]'s mutex.
pub(super) static SESSION: CachePadded<AtomicU32> = CachePadded::new(AtomicU32::new(0));

/// The current recording. Its lock is held briefly, except by [`start`].
static ACTIVE: PlainMutex<Option<Active>> = PlainMutex::new(None);

/// The data of the current recording for joining threads and for [`stop`].
struct Active {
    session: u32,
    info: SessionInfo,
    ring_events: usize,
    operation_sampling: u32,
    drawn: Arc<SampleCounts>,
    collector: Collecting,
}

enum Collecting {
    /// The caller of [`stop`] collects: one drain at the end.
    AtStop(Box<Collector>),
    /// A background thread collects.
    Thread { notifier: Arc<Notifier>, thread: std::thread::JoinHandle<Box<Collector>> },
}

impl Collecting {
    fn request(&self, task: Task) {
        if let Self::Thread { notifier, .. } = self {
            notifier.request(task);
        }
    }
}

/// Starts a recording.
///
/// # Errors
///
/// [`StartError`]: another recording is running, or the file or the thread could not be created.
pub fn start(options: Options) -> Result<(), StartError> {
    static SESSIONS: AtomicU32 = AtomicU32::new(0);
    let mut active = ACTIVE.lock();
    if active.is_some() {
        return Err(StartError::AlreadyStarted);
    }
    let info = session_info(&options)?;
    let session = SESSIONS.fetch_add(1, Relaxed) + 1;
    let collector = Box::new(Collector::new(session, &info, options.file)?);
    let collector = match options.drain_every {
        None => Collecting::AtStop(collector),
        Some(pause) => spawn(collector, pause)?,
    };
    let (ring_events, operation_sampling) = (options.ring_events, options.operation_sampling);
    let drawn = Arc::default();
    *active = Some(Active { session, info, ring_events, operation_sampling, drawn, collector });
    SESSION.store(session, Relaxed);
    Ok(())
}

/// Ends the recording.
///
/// Blocks until the last events are written. Events that other threads are writing at this instant may be
/// missing.
///
/// # Errors
///
/// [`StopError`]: no recording is running, or the file could not be written.
pub fn stop() -> Result<Recording, StopError> {
    let active = {
        let mut active = ACTIVE.lock();
        SESSION.store(0, Relaxed);
        active.take().ok_or(StopError::NotStarted)?
    };
    let collector = match active.collector {
        Collecting::AtStop(collector) => collector,
        Collecting::Thread { notifier, thread } => {
            notifier.request(Task::End);
            thread.join().map_err(|_| StopError::CollectorDied)?
        }
    };
    collector.finish()
}

/// A guard of a suspended recording, which continues when the guard is dropped.
#[derive(Debug)]
#[must_use = "the recording continues after this is dropped"]
pub struct Suspension {
    session: u32,
}

/// Suspends the current recording. Until the guard is dropped, probes cost as little as without a recording,
/// and the collector sleeps. Returns `None` if no recording is running, if it is suspended already, or if its
/// file could not be written (which [`stop`] reports).
///
/// Used to measure the cost of recording in turns of some milliseconds, without starting a recording in each
/// turn. Spans that began before are recorded to their end; spans that begin meanwhile are not recorded.
/// Reports do not consider suspensions: the threads appear idle, and rates per second refer to the whole
/// time. Blocks while another thread starts a recording.
#[must_use]
pub fn suspend() -> Option<Suspension> {
    let active = ACTIVE.lock();
    let active = active.as_ref()?;
    // Relaxed: as for all accesses of `SESSION`.
    SESSION.compare_exchange(active.session, 0, Relaxed, Relaxed).ok()?;
    active.collector.request(Task::Rest);
    Some(Suspension { session: active.session })
}

impl Drop for Suspension {
    fn drop(&mut self) {
        let active = ACTIVE.lock();
        // The recording may have been stopped meanwhile, and another one started.
        if let Some(active) = active.as_ref().filter(|active| active.session == self.session) {
            SESSION.store(self.session, Relaxed);
            active.collector.request(Task::Drain);
        }
    }
}

/// Returns the properties of a recording that starts now in this process: its clocks and their cost.
///
/// # Errors
///
/// [`StartError::NoRseq`]: restartable sequences were requested and do not work.
pub fn session_info(options: &Options) -> Result<SessionInfo, StartError> {
    let time = clock::time_source();
    let first = clock::sample(time);
    // Sleeps a millisecond, which also gives a first estimate of the clock's rate. A simulated machine does
    // not report switches.
    let works = simulated().is_none() && cpu::rseq_works();
    let second = clock::sample(time);
    let cpu = match options.cpu {
        CpuTime::Off => CpuSource::None,
        CpuTime::ThreadClock => CpuSource::ThreadClock,
        CpuTime::Auto if !works => CpuSource::ThreadClock,
        CpuTime::Rseq if !works => return Err(StartError::NoRseq),
        CpuTime::Auto | CpuTime::Rseq => CpuSource::Rseq,
    };
    let (ticks, ns) = (second.ticks - first.ticks, (second.monotonic_ns - first.monotonic_ns).max(1));
    Ok(SessionInfo {
        time,
        cpu,
        hold_sampling: options.hold_sampling.clamp(1, 1 << MOST_LOG).next_power_of_two(),
        event_cost_ps: event_cost_ps(time, cpu),
        ticks_per_second: match time {
            TimeSource::Monotonic => 1_000_000_000,
            TimeSource::Tsc => (u128::from(ticks) * 1_000_000_000 / u128::from(ns)) as u64,
        },
        process_id: machine::process_id(),
        processors: machine::processors(),
        started_wall_ns: clock::wall_ns(),
        label: options.label.clone(),
    })
}

/// Measures the current cost of an event on this machine: the smallest mean over several batches, which
/// excludes the influence of other processes.
fn event_cost_ps(time: TimeSource, cpu: CpuSource) -> u64 {
    const BATCH: u64 = 256;
    let (producer, mut consumer) = ring::ring(4 * BATCH as usize);
    let drawn = Arc::default();
    let common = Common { session: 0, time, cpu, hold_sampling: 1, operation_sampling: 1, long: 1, drawn };
    let mut recorder = Recorder::new(common, 0, producer);
    let cheapest = (0..20).map(|_| {
        let begin = clock::monotonic_ns();
        for i in 0..BATCH {
            recorder.record(When::After, EventKind::Mark, 1, i, i);
        }
        let ns = clock::monotonic_ns() - begin;
        consumer.drain(|_| ());
        ns * 1000 / BATCH
    });
    cheapest.min().unwrap_or(0)
}

/// Adds the calling thread to the current recording; `None` if no recording is running any more.
pub(super) fn join(tag: u32) -> Option<Recorder> {
    let (common, ring_events) = {
        let active = ACTIVE.lock();
        let active = active.as_ref()?;
        let info = &active.info;
        let common = Common {
            session: active.session,
            time: info.time,
            cpu: info.cpu,
            hold_sampling: info.hold_sampling,
            operation_sampling: active.operation_sampling,
            long: (u128::from(LONG_NS) * u128::from(info.ticks_per_second) / 1_000_000_000) as u64,
            drawn: Arc::clone(&active.drawn),
        };
        (common, active.ring_events)
    };
    let session = common.session;
    let (producer, consumer) = ring::ring(ring_events);
    let recorder = Recorder::new(common, tag, producer);
    let thread =
        ThreadInfo { tag, os_id: clock::thread_id(), name: clock::thread_name(), cpu: recorder.cpu_source() };
    JOINING.lock().push(Joining { session, thread, consumer });
    Some(recorder)
}

fn spawn(collector: Box<Collector>, pause: Duration) -> Result<Collecting, StartError> {
    let notifier = Arc::new(Notifier::default());
    let theirs = Arc::clone(&notifier);
    let spawned = without_signals(|| {
        std::thread::Builder::new()
            .name("azekura-trace".to_owned())
            .spawn(move || collect(collector, &theirs, pause))
    });
    let thread = spawned.map_err(|source| StartError::Thread { source })?;
    Ok(Collecting::Thread { notifier, thread })
}

/// Runs `f` with all signals blocked. A thread that `f` starts inherits this, so that no signal handler of
/// the program runs in that thread. For threads that serve the recording.
fn without_signals<R>(f: impl FnOnce() -> R) -> R {
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the calls initialize both sets before they are read; the mask is restored.
    unsafe {
        let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigfillset(all.as_mut_ptr());
        let masked = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) == 0;
        let result = f();
        if masked {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
        result
    }
}
