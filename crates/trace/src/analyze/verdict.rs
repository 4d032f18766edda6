//! One sentence: what is in the way.
//!
//! A lock is accused only if the prediction says that throughput would rise noticeably without it; that is
//! the difference between a long bar and a bottleneck. Otherwise the processors, the devices, or nothing.

use super::{Analysis, OperationRow};
use crate::WaitKind;
use serde::Serialize;

/// A lock whose absence gains less than this is no bottleneck.
const LEAST_GAIN: f64 = 0.05;
/// Processors busier than this are the bottleneck if no lock is.
const BUSY: f64 = 0.85;
/// A part of the elapsed time that is worth naming.
const LARGE: f64 = 0.30;

/// A part of the elapsed time off the processors, unexplained, that makes busy processors the reason.
const QUEUES: f64 = 0.10;

/// What is in the way of the chosen operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Verdict {
    /// A lock.
    Lock {
        /// Its site's label.
        site: String,
        /// Predicted throughput without it, over what was measured, minus 1.
        gain: f64,
        /// It limits how many threads are let in: what it protects is hidden behind it. Record again without.
        is_limit: bool,
        /// Its waiters mostly waited for a holder that was off its processor or just waking up, not for the
        /// work under the lock.
        holder_off_cpu: bool,
    },
    /// The processors are busy.
    Cpu {
        /// Part of all processors' time that was used.
        utilisation: f64,
        /// Part of it that the recorded process used.
        own: f64,
    },
    /// Devices, network or the log.
    Io {
        /// The site with the longest waits.
        site: String,
        /// Part of the elapsed time.
        share: f64,
    },
    /// Time off the processor that no probe explains: other processes, or waits without a probe.
    OffCpu {
        /// Part of the elapsed time.
        share: f64,
    },
    /// Nothing stands out.
    Nothing,
}

impl Verdict {
    pub(crate) fn of(analysis: &Analysis) -> Self {
        let Some(row) = analysis.chosen() else { return Self::Nothing };
        let own = analysis.cpu_utilisation.unwrap_or(0.0);
        let utilisation = analysis.machine_utilisation.unwrap_or(0.0).max(own);
        let is_busy = utilisation >= BUSY;
        // Who stands in the queue for busy processors longer than for locks would only stand there longer
        // without them.
        let queues_more = is_busy && row.other_ns.is_some_and(|ns| ns > row.lock_wait_ns);
        if let Some(lock) = Self::lock(analysis).filter(|_| !queues_more) {
            return lock;
        }
        let share = |ns: u64| ns as f64 / row.elapsed_ns.max(1) as f64;
        // Where others keep the processors busy, that matters only to an operation that stands in the queue
        // for them.
        let queues = row.other_ns.is_none_or(|ns| share(ns) >= QUEUES);
        if own >= BUSY || (is_busy && queues) {
            return Self::Cpu { utilisation, own };
        }
        if share(row.io_wait_ns) >= LARGE {
            return Self::Io { site: slowest_io(analysis, row), share: share(row.io_wait_ns) };
        }
        match row.other_ns.map(share) {
            Some(share) if share >= LARGE => Self::OffCpu { share },
            _ => Self::Nothing,
        }
    }

    fn lock(analysis: &Analysis) -> Option<Self> {
        let what_if = &analysis.what_if;
        let best = what_if.locks.iter().max_by(|a, b| a.gain.total_cmp(&b.gain))?;
        if best.gain < LEAST_GAIN {
            return None;
        }
        let is_limit = analysis.sites.iter().any(|s| s.label == best.site && s.kind == Some(WaitKind::Limit));
        let blame = analysis.blame.iter().filter(|b| b.site == best.site);
        // What was waited for somebody unknown counts against this statement.
        let off_cpu =
            |b: &super::BlameRow| if b.holder.is_some() { b.holder_off_ns + b.handover_ns } else { 0 };
        let (waited, off) = blame.fold((0, 0), |(w, o), b| (w + b.wait_ns, o + off_cpu(b)));
        let holder_off_cpu = waited > 0 && off as f64 > 0.5 * waited as f64;
        Some(Self::Lock { site: best.site.clone(), gain: best.gain, is_limit, holder_off_cpu })
    }

    /// The verdict as a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Lock { site, gain, is_limit, holder_off_cpu } => {
                let mut sentence =
                    format!("{site}: without it throughput would rise by {:.0} %.", gain * 100.0);
                if *is_limit {
                    sentence +=
                        " It limits admission: what it protects is hidden behind it. Record again without.";
                }
                if *holder_off_cpu {
                    sentence += " Most of that wait was for holders that were off their processors or just \
                                 waking up: too few processors, rather than the work under the lock.";
                }
                sentence
            }
            Self::Cpu { utilisation, own } => {
                let (used, own) = (utilisation * 100.0, own / utilisation.max(f64::EPSILON) * 100.0);
                format!(
                    "No lock: the processors are busy ({used:.0} % used, {own:.0} % of it by this program)."
                )
            }
            Self::Io { site, share } => {
                format!("No lock: {:.0} % of the time is waiting for I/O, most at {site}.", share * 100.0)
            }
            Self::OffCpu { share } => format!(
                "No lock: {:.0} % of the time is off the processor without a probe that says why (other \
                 processes, or waits without a probe).",
                share * 100.0
            ),
            Self::Nothing => "Nothing stands out: no lock, device or processor limits this operation.".into(),
        }
    }
}

fn slowest_io(analysis: &Analysis, row: &OperationRow) -> String {
    let is_io = |site: &str| {
        analysis
            .sites
            .iter()
            .any(|s| s.label == site && s.kind.is_some_and(|k| k.class() == crate::WaitClass::Io))
    };
    let waits = analysis.waits.iter().filter(|w| w.operation == row.name && is_io(&w.site));
    waits.max_by_key(|w| w.net_ns).map_or_else(String::new, |w| w.site.clone())
}
