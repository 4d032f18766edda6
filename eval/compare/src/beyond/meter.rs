//! Measures the processor time of this process, and the bytes transferred by the device of a directory.

use anyhow::{Context, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Ticks per second in `/proc/self/stat`: `USER_HZ` is 100 on all supported architectures.
const TICKS: f64 = 100.0;
/// Bytes of a sector in the statistics of a block device, for devices of any sector size.
const SECTOR: u64 = 512;

/// The counters at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// Processor time of all threads, in user mode and in the kernel.
    pub(super) cpu_seconds: f64,
    /// Bytes that the device read, for all programs.
    pub(super) read: u64,
    /// Bytes that the device wrote, for all programs.
    pub(super) written: u64,
}

/// Reads the counters.
#[derive(Debug)]
pub(super) struct Meter {
    dir: PathBuf,
    device: PathBuf,
}

impl Meter {
    /// Returns a meter for the device of `dir`.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let dev = std::fs::metadata(dir).with_context(|| format!("look at {}", dir.display()))?.dev();
        let (major, minor) = ((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xf_ff00));
        Ok(Self { dir: dir.to_owned(), device: format!("/sys/dev/block/{major}:{minor}/stat").into() })
    }

    /// Returns the present counters. The device's bytes are 0 for a directory without a block device.
    pub(super) fn read(&self) -> Reading {
        let field = |text: &str, nth: usize| text.split_whitespace().nth(nth).and_then(|n| n.parse().ok());
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The program's name, in parentheses, may contain blanks.
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        let ticks = |nth| field(after_name, nth).unwrap_or(0);
        let device = std::fs::read_to_string(&self.device).unwrap_or_default();
        let bytes = |nth| field(&device, nth).unwrap_or(0) * SECTOR;
        Reading { cpu_seconds: (ticks(11) + ticks(12)) as f64 / TICKS, read: bytes(2), written: bytes(6) }
    }

    /// Writes all dirty data of the file system to the device, so that it is counted.
    pub(super) fn sync_files(&self) -> Result<()> {
        let dir = std::fs::File::open(&self.dir).with_context(|| format!("open {}", self.dir.display()))?;
        rustix::fs::syncfs(dir).context("write back the file system")
    }
}
