//! Throughput of long writing, with trim and without (§5.5, Fig. 15).
//!
//! Each writer has a file of two halves and fills them in turn. With trim, a half is discarded as soon as it
//! is full. The paper discards blocks of a device. Here a hole is punched into a file, so that the next write
//! there allocates blocks again, as in a log that really trims. Flash memory that wears out or collects
//! garbage shows a falling curve. A modeled device does not age, and a cloud volume hides aging.

use super::ground::Site;
use azekura_base::PageBuf;
use azekura_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use azekura_io::{File, OpenOptions};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Settings of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Long {
    /// Number of writing threads; the paper has 16.
    pub writers: usize,
    /// Bytes of a write; the paper has 8 and 128 KiB.
    pub io_bytes: usize,
    /// Bytes of half a file; the paper has 4 GiB.
    pub half_bytes: u64,
    /// Discards each half of a file after it was filled.
    pub trim: bool,
    /// Duration.
    pub time: Duration,
    /// Time between two samples; the paper has 5 s.
    pub sample: Duration,
}

/// Throughput over time.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    /// Milliseconds since the start, and MiB per second since the previous sample.
    pub samples: Vec<(usize, f64)>,
    /// Number of discarded halves.
    pub trims: u64,
}

impl Long {
    /// Runs the measurement.
    ///
    /// # Errors
    ///
    /// An error of the file system; `Unsupported` if it cannot discard.
    pub fn run(&self, site: &Site) -> io::Result<Curve> {
        let files = self.files(site)?;
        let (bytes, trims, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let mut curve = Curve::default();
        std::thread::scope(|scope| {
            let (bytes, trims, stop) = (&bytes, &trims, &stop);
            let threads: Vec<_> = files
                .iter()
                .map(|file| scope.spawn(move || self.write(&**file, bytes, trims, stop)))
                .collect();
            let began = Instant::now();
            let mut last = (began, 0);
            while began.elapsed() < self.time && !stop.load(Relaxed) {
                std::thread::sleep(self.sample.min(self.time.saturating_sub(began.elapsed())));
                let now = (Instant::now(), bytes.load(Relaxed));
                let mib = (now.1 - last.1) as f64 / f64::from(1 << 20);
                let at = usize::try_from((now.0 - began).as_millis()).unwrap_or(usize::MAX);
                curve.samples.push((at, mib / (now.0 - last.0).as_secs_f64()));
                last = now;
            }
            stop.store(true, Relaxed);
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a writer panicked")))
            })
        })?;
        curve.trims = trims.load(Relaxed);
        Ok(curve)
    }

    fn files(&self, site: &Site) -> io::Result<Vec<Arc<dyn File>>> {
        let file = |writer: usize| {
            let path = site.dir.join(format!("long-{writer}"));
            let file = site.fs.open(&path, OpenOptions::new().create(true).direct(true))?;
            file.write_zeroes(0, 2 * self.half_bytes)?;
            file.sync()?;
            Ok(file)
        };
        (0..self.writers).map(file).collect()
    }

    fn write(
        &self,
        file: &dyn File,
        bytes: &AtomicU64,
        trims: &AtomicU64,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let _stop = StopAtEnd(stop);
        let block = PageBuf::zeroed(self.io_bytes);
        let writes = (self.half_bytes / self.io_bytes as u64).max(1);
        for half in [0, 1].into_iter().cycle() {
            for at in 0..writes {
                file.write_at_sync(half * self.half_bytes + at * self.io_bytes as u64, &block)?;
                // Relaxed: a sum, and a flag that may be noticed one write late.
                bytes.fetch_add(self.io_bytes as u64, Relaxed);
                if stop.load(Relaxed) {
                    return Ok(());
                }
            }
            if self.trim {
                file.discard(half * self.half_bytes, self.half_bytes)?;
                trims.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    }
}

/// Stops all writers when dropped, so that they end together after an error or a panic.
struct StopAtEnd<'s>(&'s AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ground::{Choice, Ground};
    use super::*;
    use azekura_io::device::DeviceModel;

    #[test]
    fn halves_are_trimmed_only_if_that_is_asked_for() {
        let ground = Ground::new(Choice::Model(DeviceModel::plp()), ".".as_ref());
        for trim in [false, true] {
            let run = |millis| {
                let site = ground.site().unwrap();
                let (time, sample) = (Duration::from_millis(millis), Duration::from_millis(10));
                Long { writers: 2, io_bytes: 8192, half_bytes: 32 << 10, trim, time, sample }.run(&site)
            };
            let is_written = |curve: &Curve| curve.samples.iter().any(|s| s.1 > 0.0);
            // On a busy machine the measurement is repeated with a longer time.
            let mut curve = run(30).unwrap();
            for millis in [300, 3_000, 30_000] {
                if is_written(&curve) && (curve.trims > 0 || !trim) {
                    break;
                }
                curve = run(millis).unwrap();
            }
            assert_eq!(curve.trims > 0, trim);
            assert!(is_written(&curve), "{curve:?}");
        }
    }

    #[test]
    fn a_device_without_trim_returns_an_error() {
        let fs: Arc<dyn azekura_io::Fs> = Arc::new(azekura_io::FaultFs::new());
        let file = fs.open("f".as_ref(), OpenOptions::new().create(true)).unwrap();
        assert_eq!(file.discard(0, 4096).unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
