//! Planted bottlenecks with real threads. The assertions do not depend on the speed of the machine: they
//! check sites, operations, holders, and the consistency of sums.
#![cfg(all(feature = "analyze", not(any(loom, feature = "off"))))]

use azekura_trace::analyze::{Analysis, AnalyzeOptions, Verdict};
use azekura_trace::{
    HoldGuard, HoldMode, Operation, Options, Site, ThreadTag, WaitKind, hold, mark, operation, start, stop,
    thread_tag, wait, wait_for,
};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static READ: Operation = Operation::new("read");
static WRITE: Operation = Operation::new("write");
static BIG: Site = Site::new("big lock");
static SMALL: Site = Site::new("small lock");
static DISK: Site = Site::new("disk");
static QUEUE: Site = Site::new("queue");

fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = stop();
    turn
}

/// A mutex like those of the store: its waits and holds are traced, and it stores its holder.
struct Traced<T> {
    site: &'static Site,
    value: Mutex<T>,
    holder: AtomicU32,
}

impl<T> Traced<T> {
    fn new(site: &'static Site, value: T) -> Self {
        Self { site, value: Mutex::new(value), holder: AtomicU32::new(0) }
    }

    fn lock(&self) -> (HoldGuard, MutexGuard<'_, T>) {
        let object = &raw const self.value as usize;
        let value = self.value.try_lock().unwrap_or_else(|_| {
            let holder = ThreadTag(self.holder.load(Ordering::Relaxed));
            let _waiting = wait_for(self.site, object, WaitKind::Latch, holder);
            self.value.lock().unwrap_or_else(PoisonError::into_inner)
        });
        self.holder.store(thread_tag().0, Ordering::Relaxed);
        (hold(self.site, object, HoldMode::Exclusive), value)
    }
}

fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Records `work` on `threads` threads that begin together.
fn record(threads: usize, work: impl Fn(usize) + Sync) -> Analysis {
    start(Options::default()).expect("it is our turn");
    let barrier = Barrier::new(threads);
    std::thread::scope(|s| {
        for i in 0..threads {
            let (barrier, work) = (&barrier, &work);
            s.spawn(move || {
                barrier.wait();
                work(i);
            });
        }
    });
    let trace = stop().expect("started").trace().expect("just written");
    assert_eq!(trace.lost(), 0);
    let analysis = Analysis::new(&trace, &AnalyzeOptions::default()).expect("any operation will do");
    for row in &analysis.operations {
        let known = |ns: Option<u64>| ns.expect("CPU time is known");
        let parts =
            known(row.cpu_ns) + row.lock_wait_ns + row.io_wait_ns + row.idle_wait_ns + known(row.other_ns);
        let off = parts.abs_diff(row.elapsed_ns + known(row.cpu_while_waiting_ns));
        assert!(off as f64 <= 0.01 * row.elapsed_ns as f64 + 1_000.0, "parts sum to elapsed: {row:?}");
    }
    analysis
}

/// Runs a trial up to five times, until it is right: shares of the time are others in a run in which the
/// machine stops a thread for long.
fn right_once_in_five(trial: impl Fn() -> Result<(), String>) {
    let wrong: Vec<String> = (0..5).map_while(|_| trial().err()).collect();
    assert!(wrong.len() < 5, "{wrong:#?}");
}

#[test]
fn the_lock_held_over_a_sleep_is_the_bottleneck_and_not_the_popular_one() {
    let _turn = turn();
    right_once_in_five(|| {
        let (big, small) = (Traced::new(&BIG, 0u64), Traced::new(&SMALL, 0u64));
        let analysis = record(4, |_| {
            for _ in 0..15 {
                let _op = operation(&WRITE);
                *small.lock().1 += 1;
                let mut guard = big.lock();
                *guard.1 += 1;
                let _io = wait(&DISK, 0, WaitKind::Device);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let row = analysis.chosen().unwrap();
        assert_eq!((row.name.as_str(), row.executions, row.threads), ("write", 60, 4));
        assert!(row.io_wait_ns >= 60 * 1_000_000, "sixty sleeps of a millisecond");
        let is_big = |site: &str| site.starts_with("big lock");
        let (blame, lock) = (analysis.blame.first(), analysis.what_if.locks.first());
        let is_right = matches!(&analysis.verdict, Verdict::Lock { site, .. } if is_big(site))
            && blame.is_some_and(|b| is_big(&b.site) && b.holder.as_deref() == Some("write"))
            // Three of four threads wait for the lock while one sleeps.
            && row.lock_wait_ns > row.io_wait_ns
            && lock.is_some_and(|lock| is_big(&lock.site) && lock.utilisation > 0.3);
        let report = || format!("{:?}\n{blame:?}\n{lock:?}\n{row:?}", analysis.verdict);
        if is_right { Ok(()) } else { Err(report()) }
    });
}

#[test]
fn idle_threads_and_their_queue_are_no_bottleneck() {
    let _turn = turn();
    let analysis = record(3, |_| {
        for _ in 0..5 {
            let _op = operation(&READ);
            let _idle = wait(&QUEUE, 0, WaitKind::Idle);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let row = analysis.chosen().unwrap();
    assert_eq!((row.executions, row.lock_wait_ns, row.io_wait_ns), (15, 0, 0));
    assert!(row.idle_wait_ns >= 15 * 2_000_000);
    assert!(!matches!(analysis.verdict, Verdict::Lock { .. } | Verdict::Io { .. }), "{:?}", analysis.verdict);
}

#[test]
fn cpu_time_of_operations_is_that_of_the_thread_clock() {
    let _turn = turn();
    let clock = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    };
    right_once_in_five(|| {
        let used = Mutex::new(0u64);
        // There are more threads than processors, so they are preempted often.
        let analysis = record(5, |_| {
            // A thread's first probe allocates its ring, and belongs to no operation.
            mark(&QUEUE, 0);
            let before = clock();
            for i in 0..60 {
                let _op = operation(&READ);
                spin(Duration::from_micros(500));
                if i % 10 == 0 {
                    let _io = wait(&DISK, 0, WaitKind::Device);
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            *used.lock().unwrap() += clock() - before;
        });
        let (cpu, used) = (analysis.chosen().unwrap().cpu_ns.unwrap(), used.into_inner().unwrap());
        let off = cpu.abs_diff(used) as f64 / used as f64;
        let interpolated = analysis.recorded.interpolated_segments;
        let report = format!("operations {cpu} ns, threads {used} ns, {interpolated} segments interpolated");
        assert!(cpu as f64 <= 1.03 * used as f64, "{report}");
        // If other programs preempt the threads, up to a third of the threads' time is in no operation.
        let others = analysis.machine_utilisation.zip(analysis.cpu_utilisation).map(|(all, own)| all - own);
        let is_disturbed = others.is_none_or(|part| part > 0.2);
        if off < 0.03 || is_disturbed && off < 0.5 { Ok(()) } else { Err(report) }
    });
}

#[test]
fn a_spinning_waiter_uses_cpu_time() {
    let _turn = turn();
    let analysis = record(1, |_| {
        for _ in 0..20 {
            let _op = operation(&READ);
            let _wait = wait(&SMALL, 1, WaitKind::Latch);
            spin(Duration::from_micros(300));
        }
    });
    let row = analysis.chosen().unwrap();
    let burnt = row.cpu_while_waiting_ns.unwrap();
    // Regardless of preemptions, the thread used its processor time in the wait.
    assert!(burnt as f64 > 0.9 * row.cpu_ns.unwrap() as f64, "{row:?}");
    assert!(row.lock_wait_ns >= 20 * 300_000);
}
