//! Models of the commit gate: no thread sleeps forever, and no commit is reported as durable too early. No
//! record is lost or written twice while buffers are exchanged during appends.
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use azekura_base::Lsn;
use azekura_base::sync::{Arc, thread};
use azekura_wal::commit_gate::{CommitGate, Lead, Turn};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::log_buffer::{Batch, LogBuffer};
use azekura_wal::notifier::Notifier;
use azekura_wal::options::Admission;

/// One stream with its log buffers, as in `Log`. The disk has one bit per LSN.
struct Log {
    horizon: DurableHorizon,
    buffers: Vec<LogBuffer>,
    gate: CommitGate,
    disk: AtomicU64,
    leading: AtomicU64,
}

impl Log {
    fn new(log_buffers: usize) -> Arc<Self> {
        Self::with_gate(log_buffers, CommitGate::new())
    }

    fn with_gate(log_buffers: usize, gate: CommitGate) -> Arc<Self> {
        Arc::new(Self {
            horizon: DurableHorizon::new(log_buffers, Lsn(1)),
            buffers: (0..log_buffers).map(|w| LogBuffer::new(w, 1000)).collect(),
            gate,
            disk: AtomicU64::new(0),
            leading: AtomicU64::new(0),
        })
    }

    fn append(&self, log_buffer: usize) -> u64 {
        self.buffers[log_buffer].append(&self.horizon, b"x", Admission::All).expect("room").0.0
    }

    fn make_durable(&self, lsn: u64) {
        self.make_durable_with(None, lsn);
    }

    /// Makes `lsn` durable; `thread` is a flusher that writes on request, if there is one.
    fn make_durable_with(&self, thread: Option<&Notifier>, lsn: u64) {
        while !self.horizon.has_reached(Lsn(lsn)) {
            let is_needed = || self.horizon.pending(0..self.buffers.len()).is_some_and(|mark| mark <= lsn);
            if let Turn::Lead(lead, taken) = self.gate.join(lsn, thread, is_needed, || self.take()) {
                self.lead(lead, &taken);
            }
        }
        assert!(self.disk.load(SeqCst) & 1 << lsn != 0, "{lsn} is acknowledged and not durable");
    }

    fn lead(&self, lead: Lead<'_>, taken: &[Batch]) {
        assert_eq!(self.leading.fetch_add(1, SeqCst), 0, "GATE-1");
        taken.iter().filter(|batch| batch.records > 0).for_each(|batch| self.write(batch));
        self.buffers.iter().for_each(|buffer| buffer.mark_durable(&self.horizon));
        self.leading.fetch_sub(1, SeqCst);
        lead.finish();
    }

    fn take(&self) -> (u64, Vec<Batch>) {
        let mut taken: Vec<Batch> = self.buffers.iter().map(|_| Batch::default()).collect();
        let buffers = self.buffers.iter().zip(&mut taken);
        let covers = buffers.map(|(b, t)| b.take(&self.horizon, t, Admission::All)).min();
        (covers.expect("log buffers"), taken)
    }

    /// Runs the flusher: writes on request until this number of records is durable.
    fn write_when_asked(&self, notifier: &Notifier, records: u64) {
        while self.horizon.compute() < Lsn(records) {
            if !notifier.take_request() {
                thread::yield_now(); // `Notifier::rest` has its own model
                continue;
            }
            let lsn = self.horizon.next_lsn().0 - 1;
            let is_needed = || self.horizon.pending(0..self.buffers.len()).is_some_and(|mark| mark <= lsn);
            if let Turn::Lead(lead, taken) = self.gate.enter(lsn, is_needed, || self.take()) {
                self.lead(lead, &taken);
            }
        }
    }

    fn write(&self, batch: &Batch) {
        // A batch of at most two records has only a first and a last one.
        assert!(batch.records <= 2);
        let mut bits = 1 << batch.first_lsn;
        bits |= 1 << batch.last_lsn;
        assert_eq!(self.disk.fetch_or(bits, SeqCst) & bits, 0, "written twice");
    }
}

fn model(bound: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(f);
}

#[test]
fn two_committers_of_one_log_buffer_both_return() {
    model(3, || {
        let log = Log::new(1);
        let other = log.clone();
        let second = thread::spawn(move || {
            let lsn = other.append(0);
            other.make_durable(lsn);
        });
        let lsn = log.append(0);
        log.make_durable(lsn);
        second.join().expect("no panic");
        assert_eq!(log.horizon.compute(), Lsn(2));
    });
}

#[test]
fn three_committers_of_two_log_buffers_all_return() {
    model(1, || {
        let log = Log::new(2);
        let threads: Vec<_> = (0..2)
            .map(|w| {
                let log = log.clone();
                thread::spawn(move || {
                    let lsn = log.append(w);
                    log.make_durable(lsn);
                })
            })
            .collect();
        let lsn = log.append(0);
        log.make_durable(lsn);
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        assert_eq!(log.horizon.compute(), Lsn(3));
        assert_eq!(log.disk.load(SeqCst), 0b1110);
    });
}

#[test]
fn w2_a_record_without_a_waiter_is_flushed_with_a_later_commit() {
    model(3, || {
        let log = Log::new(2);
        let other = log.clone();
        let open = thread::spawn(move || {
            other.append(0);
            other.append(0);
        });
        let lsn = log.append(1);
        log.make_durable(lsn);
        open.join().expect("no panic");
        log.make_durable(3);
        assert_eq!(log.disk.load(SeqCst), 0b1110);
    });
}

#[test]
fn the_next_leader_without_work_wakes_another() {
    model(3, || {
        let gate = Arc::new(CommitGate::new());
        let needed = Arc::new(loom::sync::atomic::AtomicBool::new(true));
        let Turn::Lead(lead, ()) = gate.enter(1, || true, || (2, ())) else { panic!("idle") };
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let (gate, needed) = (gate.clone(), needed.clone());
                thread::spawn(move || {
                    // The thread expects to need the next flush, but the current one suffices.
                    match gate.enter(5, || needed.load(SeqCst), || (9, ())) {
                        Turn::Lead(lead, ()) => drop(lead),
                        Turn::NotNeeded | Turn::Finished => {}
                    }
                })
            })
            .collect();
        needed.store(false, SeqCst);
        lead.finish();
        sleepers.into_iter().for_each(|t| t.join().expect("no panic"));
    });
}

#[test]
fn a_failure_wakes_sleeping_committers() {
    model(3, || {
        let gate = Arc::new(CommitGate::new());
        let failed = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let (other, has_failed) = (gate.clone(), failed.clone());
        let Turn::Lead(lead, ()) = gate.enter(1, || true, || (1, ())) else { panic!("idle") };
        let sleeper = thread::spawn(move || {
            // The thread needs the next flush; the current one fails.
            loop {
                let is_needed = || !has_failed.load(SeqCst);
                match other.enter(5, is_needed, || (9, ())) {
                    Turn::NotNeeded => return,
                    Turn::Lead(lead, ()) => drop(lead),
                    Turn::Finished => {}
                }
                if has_failed.load(SeqCst) {
                    return;
                }
                thread::yield_now();
            }
        });
        failed.store(true, SeqCst);
        gate.wake_everyone();
        drop(lead);
        sleeper.join().expect("no panic");
    });
}

/// Commits twice, so that the second commit may wait for the other committers of the first flush.
fn commit_twice(log: &Log) {
    for _ in 0..2 {
        let lsn = log.append(0);
        log.make_durable(lsn);
    }
}

#[test]
fn committers_that_wait_for_each_other_all_return() {
    model(2, || {
        let log = Log::with_gate(1, CommitGate::with_unlimited_delay());
        let other = log.clone();
        let second = thread::spawn(move || commit_twice(&other));
        commit_twice(&log);
        second.join().expect("no panic");
        assert_eq!(log.disk.load(SeqCst), 0b11110);
    });
}

#[test]
fn a_commit_thread_without_other_committers_leads_alone() {
    model(2, || {
        let log = Log::with_gate(1, CommitGate::with_unlimited_delay());
        let other = log.clone();
        let second = thread::spawn(move || {
            let lsn = other.append(0);
            other.make_durable(lsn);
        });
        commit_twice(&log);
        second.join().expect("no panic");
        assert_eq!(log.disk.load(SeqCst), 0b1110);
    });
}

#[test]
fn a_fallback_leader_ends_with_a_flush_or_a_failure() {
    model(2, || {
        let log = Log::with_gate(1, CommitGate::with_unlimited_delay());
        let (second, third) = (log.clone(), log.clone());
        let threads = [
            thread::spawn(move || commit_twice(&second)),
            thread::spawn(move || {
                // A flusher, which waits for no committer.
                let begin = || (u64::MAX, ());
                if let Turn::Lead(lead, ()) = third.gate.enter(1, || true, begin) {
                    third.gate.wake_everyone();
                    drop(lead);
                }
            }),
        ];
        let lsn = log.append(0);
        log.make_durable(lsn);
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        assert_eq!(log.disk.load(SeqCst), 0b1110);
    });
}

/// Makes `commits` commits; the flusher may write each of them.
fn commit_with_thread(log: &Log, notifier: &Notifier, commits: usize) {
    for _ in 0..commits {
        let lsn = log.append(0);
        log.make_durable_with(Some(notifier), lsn);
    }
}

/// Runs committers, and a flusher with a pending request.
fn committers_and_the_thread(bound: usize, commits: [usize; 2]) {
    model(bound, move || {
        let log = Log::with_gate(1, CommitGate::with_alternating_leaders());
        let notifier = Arc::new(Notifier::new());
        notifier.request();
        let (of_thread, of_second) = ((log.clone(), notifier.clone()), (log.clone(), notifier.clone()));
        let all = commits.iter().sum::<usize>() as u64;
        let threads = [
            thread::spawn(move || of_thread.0.write_when_asked(&of_thread.1, all)),
            thread::spawn(move || commit_with_thread(&of_second.0, &of_second.1, commits[1])),
        ];
        commit_with_thread(&log, &notifier, commits[0]);
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        assert_eq!(log.disk.load(SeqCst), (2 << all) - 2);
    });
}

#[test]
fn committers_that_leave_some_flushes_to_the_thread_all_return() {
    committers_and_the_thread(1, [1, 1]);
}

#[test]
fn the_next_leader_does_not_rely_on_a_sleeping_thread() {
    model(3, || {
        let gate = Arc::new(CommitGate::with_alternating_leaders());
        let notifier = Arc::new(Notifier::new());
        let needed = Arc::new(loom::sync::atomic::AtomicBool::new(true));
        let Turn::Lead(first, ()) = gate.enter(1, || true, || (2, ())) else { panic!("idle") };
        let of_thread = (gate.clone(), notifier.clone(), needed.clone());
        let log_thread = thread::spawn(move || {
            let (gate, notifier, needed) = of_thread;
            notifier.request(); // stands for a request of another thread
            while needed.load(SeqCst) {
                if !notifier.take_request() {
                    thread::yield_now();
                } else if let Turn::Lead(lead, ()) = gate.enter(5, || needed.load(SeqCst), || (9, ())) {
                    needed.store(false, SeqCst);
                    lead.finish();
                }
            }
        });
        let other = gate.clone();
        let committer = thread::spawn(move || {
            while needed.load(SeqCst) {
                let turn = other.join(5, Some(&notifier), || needed.load(SeqCst), || (9, ()));
                if let Turn::Lead(lead, ()) = turn {
                    needed.store(false, SeqCst);
                    lead.finish();
                }
            }
        });
        first.finish(); // the flusher leads from now on
        [log_thread, committer].into_iter().for_each(|t| t.join().expect("no panic"));
    });
}

/// Follows flushes of a commit thread until `lsn` is durable; requests them by `notifier`.
fn follow(log: &Log, lsn: u64, notifier: &azekura_wal::notifier::Notifier) {
    while !log.horizon.has_reached(Lsn(lsn)) {
        let is_needed = || log.horizon.pending(0..1).is_some_and(|mark| mark <= lsn);
        log.gate.follow(lsn, is_needed, || notifier.request());
    }
    assert!(log.disk.load(SeqCst) & 1 << lsn != 0, "{lsn} is acknowledged and not durable");
}

#[test]
fn followers_of_a_commit_thread_all_return() {
    model(1, || {
        let log = Log::new(1);
        let notifier = Arc::new(azekura_wal::notifier::Notifier::new());
        let followers: Vec<_> = (0..2)
            .map(|_| {
                let (log, notifier) = (log.clone(), notifier.clone());
                thread::spawn(move || {
                    let lsn = log.append(0);
                    follow(&log, lsn, &notifier);
                })
            })
            .collect();
        // Acts as the commit thread until both records are on disk.
        while log.horizon.compute() < Lsn(2) {
            if notifier.take_request() {
                log.make_durable(log.horizon.next_lsn().0 - 1);
            } else {
                notifier.rest(std::time::Duration::from_secs(1), || false);
            }
        }
        followers.into_iter().for_each(|t| t.join().expect("no panic"));
        assert_eq!(log.disk.load(SeqCst), 0b110);
    });
}

/// A thread with a ticket follows, a lone committer leads, and the flusher writes when requested: all three
/// on one stream.
#[test]
fn a_ticket_waits_while_a_committer_leads() {
    model(1, || {
        let log = Log::new(1);
        let notifier = Arc::new(Notifier::new());
        let (of_thread, of_ticket) = ((log.clone(), notifier.clone()), (log.clone(), notifier.clone()));
        let threads = [
            thread::spawn(move || of_thread.0.write_when_asked(&of_thread.1, 2)),
            thread::spawn(move || {
                let (log, notifier) = of_ticket;
                let lsn = log.append(0);
                notifier.request();
                follow(&log, lsn, &notifier);
            }),
        ];
        let lsn = log.append(0);
        log.make_durable(lsn);
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        assert_eq!(log.disk.load(SeqCst), 0b110);
    });
}

#[test]
fn a_failure_wakes_followers() {
    model(3, || {
        let gate = Arc::new(CommitGate::new());
        let failed = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let (other, has_failed) = (gate.clone(), failed.clone());
        let follower = thread::spawn(move || {
            while !has_failed.load(SeqCst) {
                other.follow(5, || !has_failed.load(SeqCst), || ());
            }
        });
        failed.store(true, SeqCst);
        gate.wake_everyone();
        follower.join().expect("no panic");
    });
}

#[test]
fn a_follower_of_a_needless_flush_continues() {
    model(3, || {
        let gate = Arc::new(CommitGate::new());
        let follower = thread::spawn(move || {
            // The request acts as the commit thread, and finds nothing to write.
            let come = || {
                assert!(matches!(gate.enter(9, || false, || (10, ())), Turn::NotNeeded));
            };
            gate.follow(5, || true, come);
        });
        follower.join().expect("no panic");
    });
}
