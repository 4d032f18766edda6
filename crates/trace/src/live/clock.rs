//! The one clock of a recording (hazard T3), and CPU clocks.
//!
//! If the processor's time-stamp counter runs at a constant rate in all states (CPUID's "invariant TSC",
//! which the kernel shows as `constant_tsc` and `nonstop_tsc`), a tick is a count of `rdtsc`. Reading it
//! takes 8 ns, and processors' counts are comparable. Otherwise a tick is a nanosecond of `CLOCK_MONOTONIC`.
//! From samples of both clocks at start and stop, the analyzer converts ticks to nanoseconds.

use crate::file::{ClockSample, TimeSource};
use azekura_base::sync::machine::simulated;
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;

/// Returns the clock of this machine; determined once. A simulated machine has a clock of nanoseconds.
#[must_use]
pub fn time_source() -> TimeSource {
    if simulated().is_some() {
        return TimeSource::Monotonic;
    }
    static SOURCE: OnceLock<TimeSource> = OnceLock::new();
    *SOURCE.get_or_init(|| if has_invariant_tsc() { TimeSource::Tsc } else { TimeSource::Monotonic })
}

#[cfg(target_arch = "x86_64")]
fn has_invariant_tsc() -> bool {
    use std::arch::x86_64::__cpuid;
    const POWER_MANAGEMENT: u32 = 0x8000_0007;
    const INVARIANT_TSC: u32 = 1 << 8;
    __cpuid(0x8000_0000).eax >= POWER_MANAGEMENT && __cpuid(POWER_MANAGEMENT).edx & INVARIANT_TSC != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn has_invariant_tsc() -> bool {
    false
}

/// Returns the clock's current reading. There is no fence: neighboring instructions may be reordered with the
/// reading by a few nanoseconds.
#[inline]
#[must_use]
pub fn ticks(source: TimeSource) -> u64 {
    match source {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has the instruction; TimeSource::Tsc is chosen only if it counts
        // time.
        TimeSource::Tsc => unsafe { std::arch::x86_64::_rdtsc() },
        _ => monotonic_ns(),
    }
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, or of the simulated machine's clock.
pub(super) fn monotonic_ns() -> u64 {
    if let Some(machine) = simulated() {
        return machine.now().as_nanos() as u64;
    }
    nanoseconds(ClockId::Monotonic)
}

/// Returns the exact CPU time of the calling thread. Takes about 200 ns.
pub(super) fn thread_cpu_ns() -> u64 {
    if let Some(machine) = simulated() {
        return machine.processor_time(Some(machine.thread_number())).as_nanos() as u64;
    }
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Returns the CPU time of another thread of this process; `None` if the thread has ended.
#[must_use]
pub fn cpu_ns_of(os_id: u32) -> Option<u64> {
    if let Some(machine) = simulated() {
        let thread = (os_id as usize).checked_sub(1)?;
        return Some(machine.processor_time(Some(thread)).as_nanos() as u64);
    }
    /// The kernel's encoding of "CPU clock of one thread": the id's complement over three bits of kind.
    const PER_THREAD_SCHED: i32 = 0b110;
    let clock = !i32::try_from(os_id).ok()? << 3 | PER_THREAD_SCHED;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes into `time` or fails.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (done == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Returns both clocks at one instant: of several tries, the one with the least time between its two tick
/// readings.
#[must_use]
pub fn sample(source: TimeSource) -> ClockSample {
    let (_, ticks, monotonic_ns) = (0..16)
        .map(|_| {
            let before = ticks(source);
            let ns = monotonic_ns();
            let after = ticks(source);
            (after.saturating_sub(before), before + after.saturating_sub(before) / 2, ns)
        })
        .min()
        .unwrap_or_default();
    let monotonic_ns = if source == TimeSource::Monotonic { ticks } else { monotonic_ns };
    ClockSample { ticks, monotonic_ns, process_cpu_ns: process_cpu_ns() }
}

/// Returns the CPU time of the process; on a simulated machine, that of all its threads.
pub(super) fn process_cpu_ns() -> u64 {
    match simulated() {
        Some(machine) => machine.processor_time(None).as_nanos() as u64,
        None => nanoseconds(ClockId::ProcessCPUTime),
    }
}

/// Returns the CPU time of another process; `None` if the process has ended.
#[must_use]
pub fn process_cpu_ns_of(process: u32) -> Option<u64> {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both calls write into their arguments or fail.
    let done = unsafe {
        libc::clock_getcpuclockid(i32::try_from(process).ok()?, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    done.then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns the operating system's number of the calling thread, from 1.
#[must_use]
pub fn thread_id() -> u32 {
    match simulated() {
        Some(machine) => machine.thread_number() as u32 + 1,
        None => rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
    }
}

/// Returns the system's name of the calling thread. Threads of a simulated machine have no names; the name of
/// the thread that runs them does not matter.
pub(super) fn thread_name() -> String {
    match simulated() {
        Some(_) => String::new(),
        None => {
            rustix::thread::name().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
        }
    }
}

/// Returns the wall clock in nanoseconds since 1970, which only labels the recording. A simulated machine
/// starts in 1970.
pub(super) fn wall_ns() -> u64 {
    simulated().map_or_else(|| nanoseconds(ClockId::Realtime), |machine| machine.now().as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_another_thread_is_its_own_clock() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let begin = thread_cpu_ns();
            while thread_cpu_ns() < begin + 3_000_000 {}
            let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            sender.send((id, thread_cpu_ns())).unwrap();
            let _ = ended.recv();
            thread_cpu_ns()
        });
        let (id, before) = receiver.recv().unwrap();
        let seen = cpu_ns_of(id).expect("it lives");
        drop(end);
        assert!((before..=thread.join().unwrap()).contains(&seen));
        assert_eq!(cpu_ns_of(u32::MAX), None);
    }

    #[test]
    fn both_sources_run_forward_and_agree_about_a_while() {
        for source in [time_source(), TimeSource::Monotonic] {
            let a = sample(source);
            while monotonic_ns() < a.monotonic_ns + 2_000_000 {}
            let b = sample(source);
            assert!(b.ticks > a.ticks, "{source:?}");
            assert!(b.process_cpu_ns > a.process_cpu_ns, "{source:?}");
        }
    }
}
