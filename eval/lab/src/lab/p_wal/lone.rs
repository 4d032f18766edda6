//! Latency of a commit without other committers, compared with one synchronous write of the device, its lower
//! bound.

use super::ground::Site;
use super::micro::failed;
use super::variant::Variant;
use super::writes;
use crate::error::BenchError;
use crate::latency::Latencies;
use azekura_base::{DurableLog, Lsn};
use azekura_wal::{LogBufferId, LogIdentity, Wal};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a write: the length of a chunk with one small transaction.
const WRITE_BYTES: usize = 4096;
/// Number of alternations between writes and commits, so that other load of the machine affects both.
const TURNS: u32 = 8;
/// Bytes of the records of a transaction without frames: BEGIN, UPDATE, END as in the paper.
const BODIES: [usize; 3] = [129, 153, 129];

/// Measured latencies.
#[derive(Clone, Debug, Default)]
pub struct Lone {
    /// Latencies of synchronous writes of 4 KiB, one after another.
    pub writes: Latencies,
    /// Latencies of commits, one after another, from the first record until the commit is acknowledged.
    pub commits: Latencies,
}

impl Lone {
    /// Returns the median latency of a commit, divided by that of a write.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.commits.quantile_us(0.5) / self.writes.quantile_us(0.5).max(f64::MIN_POSITIVE)
    }

    /// Measures writes and commits, for `time` each.
    ///
    /// # Errors
    ///
    /// An error of files or of the log.
    pub fn run(site: &Site, time: Duration) -> Result<Self, BenchError> {
        let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
        let options = Variant::Ours.wal_options(1);
        let wal = Wal::create(Arc::clone(&site.fs), &site.dir.join("wal"), identity, options)
            .map_err(failed("making the log"))?;
        let mut lone = Self::default();
        commit_for(&wal, time / 4, &mut Latencies::default())?; // warm-up, so that segments are ready
        for _ in 0..TURNS {
            let written = writes::run(site, 1, WRITE_BYTES, time / TURNS)
                .map_err(BenchError::io("writing beside", "the log"))?;
            lone.writes.merge(&written.latencies);
            commit_for(&wal, time / TURNS, &mut lone.commits)?;
        }
        wal.close().map_err(failed("closing the log"))?;
        Ok(lone)
    }
}

/// Commits one transaction after another.
fn commit_for(wal: &Wal, time: Duration, commits: &mut Latencies) -> Result<(), BenchError> {
    let worker = LogBufferId::from_index(0);
    let began = Instant::now();
    let mut before = began;
    while before - began < time {
        let mut last = Lsn(0);
        for bytes in BODIES {
            last = wal.append(worker, &[b'l'; 160][..bytes]).map_err(failed("logging"))?;
        }
        wal.wait_acknowledged(last).map_err(failed("writing the log"))?;
        let now = Instant::now();
        commits.record(now - before);
        before = now;
    }
    // If the release of segments fails, they only remain in use.
    let _ = wal.trim(wal.durable_lsn());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::ground::{Choice, Ground};
    use super::*;
    use azekura_io::device::DeviceModel;

    #[test]
    fn writes_and_commits_are_both_measured() {
        let ground = Ground::new(Choice::Model(DeviceModel::plp()), ".".as_ref());
        let lone = Lone::run(&ground.site().unwrap(), Duration::from_millis(16)).unwrap();
        assert!(lone.writes.count() >= u64::from(TURNS) && lone.commits.count() >= u64::from(TURNS));
        assert!(lone.ratio() > 0.0);
    }
}
