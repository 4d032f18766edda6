//! Synchronous writers, each with its own region, as in the paper's simulation of log writing (§2.2, Fig. 3).

use super::ground::Site;
use crate::latency::Latencies;
use azekura_base::PageBuf;
use azekura_io::{File, OpenOptions};
use std::io;
use std::sync::Arc;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Results of the writers.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Bytes written.
    pub bytes: u64,
    /// Time from the start to the end of the last writer, in seconds.
    pub seconds: f64,
    /// Latencies of the writes.
    pub latencies: Latencies,
}

impl Written {
    /// Returns the MiB per second.
    #[must_use]
    pub fn mib_per_s(&self) -> f64 {
        self.bytes as f64 / f64::from(1 << 20) / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// Minimum bytes of each writer's region, and minimum number of writes that it holds.
const REGION_BYTES: u64 = 4 << 20;
const REGION_WRITES: u64 = 8;

/// Creates one file for each writer and fills it with zeros.
///
/// # Errors
///
/// An error of the file system.
pub fn regions(site: &Site, writers: usize, bytes: u64) -> io::Result<Vec<Arc<dyn File>>> {
    let region = |writer: usize| {
        let path = site.dir.join(format!("region-{writer}"));
        let file = site.fs.open(&path, OpenOptions::new().create(true).direct(true))?;
        if file.len()? != bytes {
            file.write_zeroes(0, bytes)?;
            file.sync()?;
        }
        Ok(file)
    };
    (0..writers).map(region).collect()
}

/// Lets `writers` threads write `io_bytes` bytes at a time, one write after another, cyclically through their
/// regions, for `time`.
///
/// # Errors
///
/// An error of the file system. Direct writes need sizes that the device supports.
pub fn run(site: &Site, writers: usize, io_bytes: usize, time: Duration) -> io::Result<Written> {
    let writes = (REGION_BYTES / io_bytes as u64).max(REGION_WRITES);
    let files = regions(site, writers, writes * io_bytes as u64)?;
    let start = Barrier::new(writers);
    let began = Instant::now();
    let write = |file: &dyn File| -> io::Result<Written> {
        let block = PageBuf::zeroed(io_bytes.next_multiple_of(4096));
        let mut written = Written::default();
        start.wait();
        let began = Instant::now();
        let mut before = began;
        for at in (0..writes).cycle() {
            file.write_at_sync(at * io_bytes as u64, &block[..io_bytes])?;
            let now = Instant::now();
            written.latencies.record(now - before);
            written.bytes += io_bytes as u64;
            before = now;
            if now - began >= time {
                break;
            }
        }
        written.seconds = (before - began).as_secs_f64();
        Ok(written)
    };
    let mut all = Written::default();
    let mut outcome = Ok(());
    std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| write(&**file))).collect();
        for thread in threads {
            match thread.join().unwrap_or_else(|_| Err(io::Error::other("a writer panicked"))) {
                Ok(written) => {
                    all.bytes += written.bytes;
                    all.seconds = all.seconds.max(written.seconds);
                    all.latencies.merge(&written.latencies);
                }
                Err(error) => outcome = Err(error),
            }
        }
    });
    debug_assert!(all.seconds <= began.elapsed().as_secs_f64());
    outcome.map(|()| all)
}

#[cfg(test)]
mod tests {
    use super::super::ground::{Choice, Ground};
    use super::*;
    use azekura_io::device::DeviceModel;

    #[test]
    fn every_byte_that_is_counted_went_to_the_device() {
        let ground = Ground::new(Choice::Model(DeviceModel::plp()), ".".as_ref());
        let site = ground.site().unwrap();
        let files = regions(&site, 3, 4 << 20).unwrap();
        assert_eq!(files.len(), 3);
        let before = ground.device().unwrap().counts();
        let written = run(&site, 3, 4096, Duration::from_millis(5)).unwrap();
        let after = ground.device().unwrap().counts();
        assert_eq!(written.bytes, after.bytes_written - before.bytes_written, "regions were there already");
        assert_eq!(written.latencies.count(), after.writes - before.writes);
        assert!(written.latencies.count() >= 3 && written.mib_per_s() > 0.0);
    }
}
