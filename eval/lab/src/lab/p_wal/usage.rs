//! Resources that the process uses: processor time, and context switches of its threads.

use std::time::Duration;

/// Use of resources by all threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time.
    pub cpu: Duration,
    /// Number of voluntary and involuntary context switches of the living threads, if the system counts them
    /// (Linux).
    pub switches: Option<u64>,
}

impl Usage {
    /// Returns the use since the start of the process.
    #[must_use]
    pub fn now() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu =
            Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0));
        Self { cpu, switches: switches() }
    }

    /// Returns the use since `before`. The switches are exact only if the same threads were alive all the
    /// time.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        let switches = self.switches.zip(before.switches).map(|(now, before)| now.saturating_sub(before));
        Self { cpu: self.cpu.saturating_sub(before.cpu), switches }
    }
}

fn switches() -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let of = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    Some(of.map(|status| of_status(&status)).sum())
}

/// Returns the number of voluntary and involuntary switches of one thread.
fn of_status(status: &str) -> u64 {
    let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
    counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t30\n";
        assert_eq!(of_status(status), 42);
        assert_eq!(of_status("Name:\tx\n"), 0);
    }

    #[test]
    fn usage_grows() {
        let before = Usage::now();
        let mut sum = 0_u64;
        while Usage::now().cpu == before.cpu {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let after = Usage::now();
        assert!(after.since(before).cpu > Duration::ZERO);
        assert_eq!(after.switches.is_some(), before.switches.is_some());
    }
}
