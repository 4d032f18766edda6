//! The verdict: one sentence that names the bottleneck. A lock is named only if the prediction says that
//! throughput would rise noticeably without it, because a long wait alone is no bottleneck. Otherwise the
//! processors, the devices, or nothing is named.

use super::{Analysis, OperationRow, faults};
use crate::WaitKind;
use serde::Serialize;
use std::fmt::Write;

/// Smallest predicted gain of throughput without a lock that makes the lock a bottleneck.
const LEAST_GAIN: f64 = 0.05;
/// Largest predicted gain that is printed. A thread that waits forever has any gain.
const MOST_GAIN: f64 = 1000.0;
/// Utilization from which on the processors are the bottleneck if no lock is.
const BUSY: f64 = 0.85;
/// Fraction of the elapsed time from which on I/O or unexplained time is named.
const LARGE: f64 = 0.30;

/// Fraction of the events, or of the threads, from which on their loss may hide a bottleneck.
const LOST: f64 = 0.05;
/// Fraction of the elapsed time in waits of one class from which on the report names these waits.
const WAITS: f64 = 0.10;
/// Fraction of the program's CPU time in one spin loop from which on the loop is the bottleneck. An
/// uncontended atomic instruction takes about 20 processor cycles, a smaller fraction of any work of 80
/// cycles or more.
const SPINS: f64 = 0.20;
/// Fraction of the time off the processor from which on the sampled waits outside of probes explain it.
const EXPLAINED: f64 = 0.5;
/// Fraction of wake-ups in vain from which on the waiters are reported as a thundering herd.
const HERD: f64 = 0.5;
/// Fraction of unexplained elapsed time off the processors from which on busy processors are the reason.
const QUEUES: f64 = 0.10;
/// Fraction of the recording, and of the time in which threads could run, from which on the throttled time of
/// a control group may be the reason for time off the processors.
const THROTTLED: f64 = 0.10;
/// Largest ratio of the time that threads wait for busy processors to the CPU time that they get, because the
/// scheduler gives each thread its turn. With a larger ratio, they wait for something else without a probe.
/// On a machine with five runnable threads for each processor, a ratio of 22 was measured for threads that
/// compute, and ratios of 64 to 10,000 for threads that wait.
const MOST_QUEUED: u64 = 50;

/// Bottleneck of the chosen operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Verdict {
    /// A lock.
    Lock {
        /// The label of the lock's site.
        site: String,
        /// Predicted throughput without the lock, divided by the measured one, minus 1.
        gain: f64,
        /// `true` if the lock limits the number of threads inside, so that it hides the cost of the code that
        /// it protects. Record again without the lock.
        is_limit: bool,
        /// `true` if the waiters mostly waited for a holder that was off its processor or waking up, and the
        /// processors were busy.
        holder_off_cpu: bool,
        /// Fraction of the waits that was CPU time of spinning waiters; `None` if unknown.
        burnt: Option<f64>,
        /// Fraction of the wake-ups after which the thread did not get the lock and waited again.
        vain: f64,
    },
    /// A spin loop: threads wait for each other and keep processors busy meanwhile.
    Spin {
        /// The label of the loop's site.
        site: String,
        /// Fraction of the program's CPU time.
        share: f64,
    },
    /// The processors are busy, or the operation's threads compute nearly all of the time.
    Cpu {
        /// Fraction of all processors' time that was used.
        utilisation: f64,
        /// Fraction of all processors' time that the recorded process used.
        own: f64,
    },
    /// The CPU quota of the process's control group.
    Quota {
        /// The quota, as a number of processors.
        processors: f64,
        /// Fraction of the time in which the threads could run, running or throttled, in which they were
        /// throttled.
        throttled: f64,
    },
    /// Devices, network or the log.
    Io {
        /// The site with the longest waits.
        site: String,
        /// Fraction of the elapsed time.
        share: f64,
        /// The kind of the waits at that site.
        kind: Option<WaitKind>,
    },
    /// Time off the processor in page faults: the threads read mapped files, or swapped memory.
    PageFaults {
        /// Fraction of the elapsed time off the processor without another reason.
        share: f64,
        /// Number of page faults that waited for a device.
        count: u64,
        /// The site with most of them.
        site: String,
    },
    /// Time off the processor that no probe explains: other processes, or waits without a probe.
    OffCpu {
        /// Fraction of the elapsed time.
        share: f64,
        /// The sites of most samples of waits outside of probes, and the fraction of all samples; at most
        /// three.
        waits: Vec<(String, f64)>,
    },
    /// Waits, none of which is known to limit the operation.
    Waits {
        /// Fraction of the elapsed time in waits for work.
        idle: f64,
        /// Fraction of the elapsed time in waits for locks that do not limit throughput.
        lock: f64,
        /// Fraction of the elapsed time in waits for devices, network and log.
        io: f64,
        /// The sites with the longest waits, and the fraction of each; at most three.
        largest: Vec<(String, f64)>,
        /// `true` if the fractions are of the time of all operations, because those of the chosen one are
        /// small.
        of_all: bool,
    },
    /// No bottleneck was found, but the recording was cut short, so most of the run may be missing.
    CutShort {
        /// Recorded time in nanoseconds.
        duration_ns: u64,
    },
    /// No bottleneck was found among the recorded events, but so many were lost that they may hide one.
    Lost {
        /// Fraction of the events that were lost.
        events: f64,
        /// Fraction of the threads without a recording.
        threads: f64,
    },
    /// No bottleneck was found.
    Nothing,
}

impl Verdict {
    pub(crate) fn of(analysis: &Analysis) -> Self {
        let recorded = &analysis.recorded;
        match (Self::found(analysis), recorded.cut_short_at) {
            (Self::Nothing, Some(_)) => Self::CutShort { duration_ns: recorded.duration_ns },
            (found, _) if found.needs_all_events() => Self::lost(recorded).unwrap_or(found),
            (found, _) => found,
        }
    }

    /// Returns `true` if lost waits could have led to another verdict: their time counts as time without a
    /// reason. The other verdicts name the reason of recorded time, or the whole program's use of processors.
    fn needs_all_events(&self) -> bool {
        match self {
            Self::Nothing | Self::OffCpu { .. } | Self::PageFaults { .. } => true,
            Self::Cpu { utilisation, .. } => *utilisation < BUSY,
            _ => false,
        }
    }

    fn lost(recorded: &super::Recorded) -> Option<Self> {
        let part = |lost: u64, kept: u64| lost as f64 / lost.saturating_add(kept).max(1) as f64;
        let events = part(recorded.lost, recorded.events);
        let threads = part(recorded.unrecorded_threads, recorded.threads);
        (events.max(threads) >= LOST).then_some(Self::Lost { events, threads })
    }

    fn found(analysis: &Analysis) -> Self {
        let Some(row) = analysis.chosen() else { return Self::Nothing };
        let own = analysis.cpu_utilisation.unwrap_or(0.0);
        let utilisation = analysis.machine_utilisation.unwrap_or(0.0).max(own);
        let is_busy = utilisation >= BUSY;
        // If threads wait longer for busy processors than for locks, they would wait even longer for
        // processors without the locks.
        let queued_ns = Self::queued_ns(analysis, row);
        let may_queue =
            queued_ns.zip(row.cpu_ns).is_none_or(|(queued_ns, cpu_ns)| queued_ns / MOST_QUEUED <= cpu_ns);
        let queues_more = is_busy && may_queue && queued_ns.is_some_and(|ns| ns > row.lock_wait_ns);
        let quota = Self::quota(analysis);
        let throttled_more = quota.is_some() && queued_ns.is_some_and(|ns| ns > row.lock_wait_ns);
        let lock = Self::lock(analysis, is_busy || quota.is_some());
        if let Some(lock) = lock.filter(|_| !queues_more && !throttled_more) {
            return match (lock, quota) {
                (Self::Lock { holder_off_cpu: true, .. }, Some(quota)) => quota,
                (lock, _) => lock,
            };
        }
        if let Some(spin) = Self::spin(analysis, row) {
            return spin;
        }
        let share = |ns: u64| ns as f64 / row.elapsed_ns.max(1) as f64;
        // If other processes keep the processors busy, this matters only to an operation that waits for
        // processors.
        let is_off = queued_ns.is_none_or(|ns| share(ns) >= QUEUES);
        let queues = may_queue && is_off;
        if let Some(quota) = quota.filter(|_| is_off) {
            return quota;
        }
        if own >= BUSY || (is_busy && queues) {
            return Self::Cpu { utilisation, own };
        }
        if share(row.io_wait_ns) >= LARGE {
            let (site, kind) = slowest_io(analysis, row).unwrap_or_default();
            return Self::Io { site, share: share(row.io_wait_ns), kind };
        }
        let off_cpu = row.other_ns.map_or(0.0, share);
        if off_cpu >= LARGE {
            return Self::off_cpu(analysis, off_cpu);
        }
        let small = (off_cpu > WAITS).then(|| Self::off_cpu(analysis, off_cpu));
        // Few threads leave most of the processors idle, and are limited by their own work.
        let computes = row.cpu_ns.is_some_and(|ns| share(ns) >= BUSY);
        let computing = computes.then_some(Self::Cpu { utilisation, own });
        let of_row = Self::waits(analysis, row).or(small).or(computing);
        of_row.or_else(|| Self::waits_of_all(analysis)).unwrap_or(Self::Nothing)
    }

    /// Returns the time in which threads may have waited for a processor: the time off the processor without
    /// a recorded reason, and without the waits that were sampled.
    fn queued_ns(analysis: &Analysis, row: &OperationRow) -> Option<u64> {
        let sampled: f64 = analysis.blocked.iter().map(|blocked| blocked.share).sum();
        Some(row.other_ns?.saturating_sub((sampled * row.elapsed_ns as f64) as u64))
    }

    /// Returns the verdict about time off the processor without a probe.
    fn off_cpu(analysis: &Analysis, share: f64) -> Self {
        match analysis.faults.first() {
            Some(most) if faults::explain(&analysis.faults, &analysis.total) => Self::PageFaults {
                share,
                count: analysis.faults.iter().map(|row| row.count).sum(),
                site: most.site.clone(),
            },
            _ => {
                let waits = analysis.blocked.iter().take(3).map(|row| (row.site.clone(), row.share));
                Self::OffCpu { share, waits: waits.collect() }
            }
        }
    }

    /// Returns the CPU quota, if threads were throttled for a large part of the time. Throttled time is a sum
    /// over the processors, as CPU time is.
    fn quota(analysis: &Analysis) -> Option<Self> {
        let recorded = &analysis.recorded;
        let quota = recorded.quota?;
        let part = |of: u64| quota.throttled_ns as f64 / of.max(1) as f64;
        let throttled = part(recorded.process_cpu_ns.saturating_add(quota.throttled_ns));
        let is_large = throttled.min(part(recorded.duration_ns)) >= THROTTLED;
        is_large.then_some(Self::Quota { processors: quota.millis as f64 / 1e3, throttled })
    }

    /// Returns the spin loop with most samples, if it takes a large part of the CPU time and of the
    /// operation's time.
    fn spin(analysis: &Analysis, row: &OperationRow) -> Option<Self> {
        let spin = analysis.spins.first().filter(|spin| spin.share >= SPINS)?;
        // Fraction of the time without waits for a processor.
        let known = row.elapsed_ns.saturating_sub(row.other_ns?).max(1);
        let is_large = spin.share * row.cpu_ns? as f64 >= WAITS * known as f64;
        is_large.then(|| Self::Spin { site: spin.site.clone(), share: spin.share })
    }

    /// Returns the operation's waits, if those of one class are more than a tenth of its time.
    fn waits(analysis: &Analysis, row: &OperationRow) -> Option<Self> {
        let share = |ns: u64| ns as f64 / row.elapsed_ns.max(1) as f64;
        let [idle, lock, io] = [row.idle_wait_ns, row.lock_wait_ns, row.io_wait_ns].map(share);
        let of_row = analysis.waits.iter().filter(|wait| wait.operation == row.name);
        let mut largest: Vec<_> = of_row.map(|wait| (wait.site.clone(), share(wait.net_ns))).collect();
        largest.sort_by(|a, b| b.1.total_cmp(&a.1));
        largest.truncate(3);
        let of_all = false;
        (idle.max(lock).max(io) > WAITS).then_some(Self::Waits { idle, lock, io, largest, of_all })
    }

    /// Returns the waits of all operations together, because another operation may wait more.
    fn waits_of_all(analysis: &Analysis) -> Option<Self> {
        let row = &analysis.total;
        let share = |ns: u64| ns as f64 / row.elapsed_ns.max(1) as f64;
        let [idle, lock, io] = [row.idle_wait_ns, row.lock_wait_ns, row.io_wait_ns].map(share);
        let largest = analysis.sites.iter().take(3).map(|site| (site.label.clone(), share(site.net_ns)));
        let largest = largest.collect();
        (idle.max(lock).max(io) > WAITS).then_some(Self::Waits { idle, lock, io, largest, of_all: true })
    }

    /// Returns a sentence about the waits of the chosen operation, or of all operations, if they are more
    /// than a tenth of the time. For verdicts about something other than waits.
    #[must_use]
    pub fn waits_sentence(analysis: &Analysis) -> Option<String> {
        let of_row = Self::waits(analysis, analysis.chosen()?);
        let verdict = of_row.or_else(|| Self::waits_of_all(analysis))?;
        (!matches!(analysis.verdict, Self::Waits { .. } | Self::Lock { .. })).then(|| verdict.sentence())
    }

    fn lock(analysis: &Analysis, is_busy: bool) -> Option<Self> {
        let what_if = &analysis.what_if;
        let best = what_if.locks.iter().max_by(|a, b| a.gain.total_cmp(&b.gain))?;
        if best.gain < LEAST_GAIN {
            return None;
        }
        let site = analysis.sites.iter().find(|site| site.label == best.site);
        let is_limit = site.is_some_and(|site| site.kind == Some(WaitKind::Limit));
        let part = |of: u64, all: u64| of as f64 / all.max(1) as f64;
        let burnt = site.and_then(|site| Some(part(site.cpu_ns?, site.net_ns)));
        let vain = site.map_or(0.0, |site| part(site.vain, site.count));
        let blame = analysis.blame.iter().filter(|b| b.site == best.site);
        // Waits for an unknown holder weaken this statement.
        let off_cpu =
            |b: &super::BlameRow| if b.holder.is_some() { b.holder_off_ns + b.handover_ns } else { 0 };
        let (waited, off) = blame.fold((0, 0), |(w, o), b| (w + b.wait_ns, o + off_cpu(b)));
        // If processors are idle, holders are off them because they sleep or wait without a probe.
        let holder_off_cpu = is_busy && waited > 0 && off as f64 > 0.5 * waited as f64;
        Some(Self::Lock { site: best.site.clone(), gain: best.gain, is_limit, holder_off_cpu, burnt, vain })
    }

    /// Returns the verdict as a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        match self {
            Self::Lock { site, gain, is_limit, holder_off_cpu, burnt, vain } => {
                let mut sentence = if *gain < MOST_GAIN {
                    format!("{site}: without it throughput would rise by {:.0} %.", gain * 100.0)
                } else {
                    format!("{site}: nearly all of the time is waiting for it.")
                };
                if *is_limit {
                    sentence +=
                        " It limits admission and hides the locks behind it: record again without it.";
                }
                if *holder_off_cpu {
                    sentence += " Most of that wait was for holders that were off their processors or just \
                                 waking up: too few processors, rather than the work under the lock.";
                }
                if let Some(burnt) = burnt.filter(|burnt| *burnt > WAITS) {
                    let _ = write!(
                        sentence,
                        " Its waiters spin: {:.0} % of their wait is CPU time.",
                        burnt * 100.0
                    );
                }
                if *vain > HERD {
                    let _ = write!(
                        sentence,
                        " Thundering herd: after {:.0} % of the wake-ups the thread did not get it and \
                         waited again. Wake one waiter for each grant.",
                        vain * 100.0
                    );
                }
                sentence
            }
            Self::Spin { site, share } => format!(
                "{site}: {:.0} % of the program's CPU time is in this loop, which waits for another thread \
                 and keeps a processor busy meanwhile.",
                share * 100.0
            ),
            Self::Cpu { utilisation, own } => {
                let (used, own) = (utilisation * 100.0, own / utilisation.max(f64::EPSILON) * 100.0);
                if *utilisation < BUSY {
                    return format!(
                        "Its threads compute nearly all of the time: a processor for each limits them \
                         ({used:.0} % of all processors used, {own:.0} % of it by this program)."
                    );
                }
                format!("The processors are busy ({used:.0} % used, {own:.0} % of it by this program).")
            }
            Self::Quota { processors, throttled } => format!(
                "CPU quota of the control group ({processors:.2} processors): the threads were throttled for \
                 {:.0} % of the time in which they could run.",
                throttled * 100.0
            ),
            Self::Io { site, share, kind } => {
                let what = match kind {
                    Some(WaitKind::Network) => "the network",
                    Some(WaitKind::Device) => "storage devices",
                    Some(WaitKind::Log) => "the log",
                    _ => "I/O",
                };
                format!("{:.0} % of the time is waiting for {what}, most at {site}.", share * 100.0)
            }
            Self::PageFaults { share, count, site } => format!(
                "{:.0} % of the time is off the processor, and is explained by {count} page faults of mapped \
                 files (or swapped memory) that waited for a device, most at {site}.",
                share * 100.0
            ),
            Self::OffCpu { share, waits } => off_cpu_sentence(*share, waits),
            Self::Waits { idle, lock, io, largest, of_all } => {
                let [idle, lock, io] = [idle, lock, io].map(|part| part * 100.0);
                let all = if *of_all { " of all operations" } else { "" };
                format!(
                    "Not known: {idle:.0} % of the time{all} is in waits that look idle, {lock:.0} % in \
                     waits for locks without which little would be gained, {io:.0} % in waits for I/O. \
                     Largest: {}.",
                    list(largest)
                )
            }
            Self::CutShort { duration_ns } => format!(
                "Not known: the recording was cut short, and nothing stands out in its {:.3} s.",
                *duration_ns as f64 / 1e9
            ),
            Self::Lost { events, threads } => format!(
                "Not known: {:.0} % of the events and {:.0} % of the threads were not recorded, and nothing \
                 stands out in the others.",
                events * 100.0,
                threads * 100.0
            ),
            Self::Nothing => "Nothing stands out: no lock, device or processor limits this operation.".into(),
        }
    }
}

/// Returns the sentence about time off the processor. It names the waits that were sampled if they explain
/// most of this time.
fn off_cpu_sentence(share: f64, waits: &[(String, f64)]) -> String {
    let sampled: f64 = waits.iter().map(|(_, part)| part).sum();
    let percent = share * 100.0;
    if sampled >= EXPLAINED * share {
        return format!("{percent:.0} % of the time is off the processor, by samples in {}.", list(waits));
    }
    let mut sentence = format!(
        "{percent:.0} % of the time is off the processor without a probe that says why (other processes, or \
         waits without a probe)."
    );
    if sampled > WAITS {
        let _ = write!(sentence, " Samples show a part of it in {}.", list(waits));
    }
    sentence
}

/// Returns sites with their fractions as a list.
fn list(sites: &[(String, f64)]) -> String {
    let tell = |(site, part): &(String, f64)| format!("{site} ({:.0} %)", part * 100.0);
    sites.iter().map(tell).collect::<Vec<String>>().join("; ")
}

/// Returns the site with the operation's longest waits for I/O, and the kind of the waits.
fn slowest_io(analysis: &Analysis, row: &OperationRow) -> Option<(String, Option<WaitKind>)> {
    let is_io = |kind: Option<WaitKind>| kind.is_some_and(|kind| kind.class() == crate::WaitClass::Io);
    let waits = analysis.waits.iter().filter(|wait| wait.operation == row.name && is_io(wait.kind));
    waits.max_by_key(|wait| wait.net_ns).map(|wait| (wait.site.clone(), wait.kind))
}
