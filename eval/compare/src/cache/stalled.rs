//! Stops one thread at an arbitrary instruction, and measures the progress of the others.
//!
//! A signal stops the thread: its handler waits until it is released. This simulates a thread that loses its
//! processor for a long time. So it stops at any instruction: in the table, in a sweep, while it reads or
//! writes a page, or while it holds a lock. (SIGSTOP would stop the whole process.)
//!
//! Each stop is compared with a rest of the same length, in which the same thread waits between two visits
//! and holds nothing.

use std::io::{PipeWriter, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use azekura_base::CachePadded;
use azekura_lab::lab::nb_gclock::cache::PageCache;
use azekura_lab::lab::nb_gclock::zipf::{References, Skew};

/// Number of pages visited; the cache holds a part of them.
pub(super) const PAGES: u64 = 40_000;
/// Number of frames of the cache.
pub(super) const FRAMES: usize = 4_096;
/// Time for which a thread stays stopped.
const STOP: Duration = Duration::from_millis(4);
/// Additional time for another thread to finish a visit, because it may only have waited for a processor.
const BENEFIT_OF_DOUBT: Duration = Duration::from_millis(200);

/// Set while the thread is in the handler or rests.
static IS_STOPPED: AtomicBool = AtomicBool::new(false);
/// Descriptor from which the stopped thread reads the byte that releases it.
static GATE: AtomicI32 = AtomicI32::new(-1);

/// Waits for a byte. Calls only read(2), which a signal handler may call.
extern "C" fn stop(_signal: libc::c_int) {
    // SAFETY: errno belongs to this thread, and its address is valid while the thread runs.
    let errno = unsafe { *libc::__errno_location() };
    IS_STOPPED.store(true, SeqCst);
    let mut byte = 0u8;
    // SAFETY: reads one byte into a local variable. The descriptor is never closed.
    while unsafe { libc::read(GATE.load(SeqCst), (&raw mut byte).cast(), 1) } < 0 {}
    IS_STOPPED.store(false, SeqCst);
    // SAFETY: the same address.
    unsafe { *libc::__errno_location() = errno };
}

/// Installs the handler once. Returns the end of the pipe to which the releasing bytes are written.
fn gate() -> Result<&'static Mutex<PipeWriter>> {
    static WRITER: OnceLock<Mutex<PipeWriter>> = OnceLock::new();
    if let Some(writer) = WRITER.get() {
        return Ok(writer);
    }
    let (reader, writer) = std::io::pipe()?;
    GATE.store(reader.into_raw_fd(), SeqCst);
    ensure!(writer.as_raw_fd() >= 0);
    // SAFETY: an all-zero `sigaction` is a valid one; its fields are set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = stop as extern "C" fn(libc::c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: `action` is a valid `sigaction`; its handler calls only async-signal-safe functions, and
    // nothing else here uses SIGUSR2.
    let result = unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) };
    ensure!(result == 0, "install a signal handler: {}", std::io::Error::last_os_error());
    Ok(WRITER.get_or_init(|| Mutex::new(writer)))
}

/// The progress of the other threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stalled {
    /// Percentage of the stops during which at least one other thread finished no visit, even in the
    /// additional time.
    pub(super) stopped: f64,
    /// The other threads' visits per second during stops, divided by those during rests.
    pub(super) kept: f64,
}

/// State shared by the threads.
struct Scene<'c> {
    cache: &'c dyn PageCache,
    /// Number of visits of each other thread.
    visits: Vec<CachePadded<AtomicU64>>,
    is_over: AtomicBool,
    /// The thread that is stopped; set before it rests for the first time.
    one: AtomicU64,
    /// Set when the thread must rest.
    must_rest: AtomicBool,
}

/// Stops a thread `stops` times, while one other thread per processor runs.
pub(super) fn run(cache: &dyn PageCache, stops: usize) -> Result<Stalled> {
    let mut writer = gate()?.lock().unwrap_or_else(PoisonError::into_inner); // one measurement at a time
    let others = std::thread::available_parallelism().map_or(2, usize::from).max(2);
    let scene = Scene {
        cache,
        visits: (0..others).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
        is_over: AtomicBool::new(false),
        one: AtomicU64::new(0),
        must_rest: AtomicBool::new(false),
    };
    let (mut stopped, mut with, mut without) = (0, 0.0, 0.0);
    std::thread::scope(|s| {
        for n in 0..others {
            let scene = &scene;
            s.spawn(move || scene.visit(n));
        }
        s.spawn(|| scene.be_stopped());
        let mut go_on = || writer.write_all(&[1]).expect("the pipe's other end stays open");
        for turn in 0..stops as u64 {
            scene.must_rest.store(true, SeqCst);
            await_stop(true);
            without += scene.watch().iter().sum::<f64>();
            scene.must_rest.store(false, SeqCst);
            go_on();
            await_stop(false);
            // Stops at a random point of one of the following visits, after a different time in each turn.
            std::thread::sleep(Duration::from_micros(100 + turn * 37 % 400));
            let one = scene.one.load(SeqCst);
            // SAFETY: the thread has rested, so it has stored its id. It runs until `is_over` is set, and the
            // signal has a handler.
            let result = unsafe { libc::pthread_kill(one as libc::pthread_t, libc::SIGUSR2) };
            assert_eq!(result, 0, "a thread that runs can be signalled");
            await_stop(true);
            with += scene.watch().iter().sum::<f64>();
            stopped += usize::from(!scene.all_go_on());
            go_on();
            await_stop(false);
        }
        scene.is_over.store(true, SeqCst);
    });
    Ok(Stalled { stopped: stopped as f64 / stops as f64 * 100.0, kept: with / f64::max(without, 1.0) })
}

fn await_stop(is_stopped: bool) {
    while IS_STOPPED.load(SeqCst) != is_stopped {
        std::thread::sleep(Duration::from_micros(20));
    }
}

impl Scene<'_> {
    fn references(seed: u64) -> Vec<u64> {
        References::new(PAGES, Skew::NAMED_80_20, seed).take(1 << 16).collect()
    }

    /// Runs one of the other threads.
    fn visit(&self, n: usize) {
        for &page in Self::references(n as u64 + 2).iter().cycle() {
            assert_eq!(self.cache.visit(page), page, "the cache gave another page");
            let visits = &self.visits[n];
            visits.store(visits.load(Relaxed) + 1, Relaxed); // Relaxed: this thread is the only writer
            if self.is_over.load(Relaxed) {
                break;
            }
        }
    }

    /// Runs the thread that is stopped.
    fn be_stopped(&self) {
        // SAFETY: the call only reads the thread's id.
        self.one.store(unsafe { libc::pthread_self() } as u64, SeqCst);
        for &page in Self::references(1).iter().cycle() {
            assert_eq!(self.cache.visit(page), page, "the cache gave another page");
            if self.must_rest.load(Relaxed) {
                stop(0);
            }
            if self.is_over.load(Relaxed) {
                break;
            }
        }
    }

    /// Returns `true` if each of the other threads finishes a visit.
    fn all_go_on(&self) -> bool {
        let (before, deadline) = (self.count(), Instant::now() + BENEFIT_OF_DOUBT);
        loop {
            if before.iter().zip(self.count()).all(|(&before, after)| after > before) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn count(&self) -> Vec<u64> {
        self.visits.iter().map(|visits| visits.load(Relaxed)).collect()
    }

    /// Returns the rates of the other threads during one stop.
    fn watch(&self) -> Vec<f64> {
        let (began, before) = (Instant::now(), self.count());
        std::thread::sleep(STOP);
        let (seconds, after) = (began.elapsed().as_secs_f64(), self.count());
        before.iter().zip(after).map(|(before, after)| (after - before) as f64 / seconds).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_lab::lab::nb_gclock::cache::{Kind, Tally};
    use azekura_lab::lab::nb_gclock::device::Device;

    /// A cache with one lock, which a visit holds most of its time.
    struct OneLock(Mutex<u64>);
    impl PageCache for OneLock {
        fn visit(&self, page: u64) -> u64 {
            let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..20 {
                *last = std::hint::black_box(last.wrapping_mul(31)) ^ page;
            }
            page
        }
        fn tally(&self) -> Tally {
            Tally::default()
        }
    }

    #[test]
    fn a_stopped_lock_holder_blocks_others_and_a_stopped_fix_does_not() {
        // With many processors, or on a busy machine, the stopped thread rarely has the lock.
        let cache = OneLock(Mutex::new(0));
        let mut trials = (0..100).map(|_| run(&cache, 20).unwrap());
        assert!(trials.any(|locked| locked.stopped > 0.0), "no stop was at a held lock");
        let pool = Kind::TwoRings.build(FRAMES, Device::memory());
        let free = run(&*pool, 20).unwrap();
        assert!(free.kept > 0.0, "{free:?}");
    }
}
