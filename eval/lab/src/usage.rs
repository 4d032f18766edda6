//! Resources that this process uses during a measurement.

use crate::machine::field;
use azekura_base::sync::processor_time;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;

/// Used resources; a counter is 0 if the system does not report it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time of all threads, in user and kernel mode.
    pub cpu_seconds: f64,
    /// Bytes read from storage.
    pub read_bytes: u64,
    /// Bytes written to storage: the log with its padding, data, compaction, and so on.
    pub written_bytes: u64,
    /// Peak of the resident memory, including pages of mapped files.
    pub peak_bytes: u64,
}

/// Counters at the beginning of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Meter {
    cpu: Duration,
    read: u64,
    written: u64,
}

impl Meter {
    /// Begins a measurement and resets the peak of the memory. Only one measurement of a process may run at a
    /// time.
    #[must_use]
    pub fn begin() -> Self {
        // If the system refuses the reset, the peak is that since the start of the process.
        let _ = fs::write("/proc/self/clear_refs", "5");
        let (read, written) = io();
        Self { cpu: processor_time(), read, written }
    }

    /// Returns the resources used since the beginning.
    #[must_use]
    pub fn end(&self) -> Usage {
        let (read, written) = io();
        Usage {
            cpu_seconds: processor_time().saturating_sub(self.cpu).as_secs_f64(),
            read_bytes: read.saturating_sub(self.read),
            written_bytes: written.saturating_sub(self.written),
            peak_bytes: kib(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmHWM"),
        }
    }
}

/// Returns the bytes that this process has read from and written to storage.
fn io() -> (u64, u64) {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let bytes = |name| field(&text, name).and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    (bytes("read_bytes"), bytes("write_bytes"))
}

/// Returns a field in kB as bytes.
fn kib(text: &str, name: &str) -> u64 {
    field(text, name).and_then(|v| v.trim_end_matches("kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_that_of_the_stretch() {
        const BYTES: usize = 64 << 20;
        let used = |bytes: usize| {
            let meter = Meter::begin();
            std::hint::black_box(vec![1_u8; bytes]);
            meter.end().peak_bytes
        };
        // Other tests of this process may use and release memory meanwhile.
        let mut pairs = (0..100).map(|_| (used(BYTES), used(1)));
        let is_of_stretch = |(large, small): (u64, u64)| small > 0 && large > small + BYTES as u64 / 2;
        assert!(pairs.any(is_of_stretch), "{} and {} bytes", used(BYTES), used(1));
    }

    #[test]
    fn sizes_in_kb_are_bytes() {
        assert_eq!(kib("VmPeak:   9 kB\nVmHWM:\t   24 kB\n", "VmHWM"), 24 << 10);
        assert_eq!(kib("", "VmHWM"), 0);
    }
}
