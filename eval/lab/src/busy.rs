//! Use of the processors during a measurement, by this program and by all other processes.

use azekura_base::sync::machine::simulated;
use azekura_base::sync::processor_time;
use azekura_base::sync::time::Instant;
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Start of a measurement of processor use.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    begin: Instant,
    own: Duration,
    machine: Duration,
}

/// Average numbers of processors that were busy during a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Busy {
    /// Processors that ran this program.
    pub own: f64,
    /// Processors that ran other processes or other guests of the host; 0 where the system does not report
    /// this. The resolution is 10 ms of processor time.
    pub others: f64,
}

impl Watch {
    /// Begins a measurement.
    #[must_use]
    pub fn begin() -> Self {
        Self { begin: Instant::now(), own: processor_time(), machine: of_machine() }
    }

    /// Returns the time since [`begin`](Self::begin), and the use of the processors.
    #[must_use]
    pub fn end(&self) -> (Duration, Busy) {
        let time = self.begin.elapsed();
        let own = processor_time().saturating_sub(self.own);
        let others = of_machine().saturating_sub(self.machine).saturating_sub(own);
        let part = |cpu: Duration| cpu.as_secs_f64() / time.as_secs_f64().max(f64::MIN_POSITIVE);
        (time, Busy { own: part(own), others: part(others) })
    }
}

/// Returns the processor time of the calling thread, which must not be a simulated thread.
pub(crate) fn of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the CPU time of the whole machine since it started, in steps of 10 ms; zero if unknown.
fn of_machine() -> Duration {
    if simulated().is_some() {
        return processor_time(); // a simulated machine runs nothing but this program
    }
    busy(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Adds up user, nice, system, irq, softirq and steal time in the first line of /proc/stat.
fn busy(stat: &str) -> Duration {
    let first = stat.lines().next().unwrap_or_default();
    let ticks = |at: usize| first.split_whitespace().nth(at).and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
    Duration::from_millis([1, 2, 3, 6, 7, 8].map(ticks).iter().sum::<u64>() * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_was_not_idle_is_busy_and_stolen_time_too() {
        assert_eq!(busy("cpu  10 1 5 1000 50 2 3 4 0 0\ncpu0 1 2 3 4\n"), Duration::from_millis(250));
        assert_eq!(busy(""), Duration::ZERO);
    }

    #[test]
    fn a_program_that_computes_is_busy() {
        let watch = Watch::begin();
        let before = processor_time();
        while processor_time() < before + Duration::from_millis(3) {
            std::hint::spin_loop();
        }
        let (time, busy) = watch.end();
        let own = Duration::from_secs_f64(busy.own * time.as_secs_f64());
        assert!(own >= Duration::from_millis(2), "{own:?} of {time:?}");
    }
}
