//! The serial buffer: in all groups that threads form, every record has its own LSN and its own bytes. A
//! flush reads exactly the copied bytes, and no thread waits forever.
#![cfg(loom)]

use azekura_base::Lsn;
use azekura_base::sync::{Arc, thread};
use azekura_wal::durable_lsn::DurableHorizon;
use azekura_wal::log_buffer::{Batch, Refused};
use azekura_wal::options::Admission;
use azekura_wal::serial::SerialBuffer;

struct Log {
    horizon: DurableHorizon,
    buffer: SerialBuffer,
}

impl Log {
    fn of(buffer: SerialBuffer) -> Arc<Self> {
        Arc::new(Self { horizon: DurableHorizon::new(1, Lsn(1)), buffer })
    }

    fn append(&self, body: u8) -> u64 {
        self.buffer.append(&self.horizon, &[body], Admission::All).expect("room").0.0
    }

    /// Flushes. Returns the taken records as (LSN, body), and the LSN below which the flush has taken
    /// everything.
    fn flush(&self) -> (Vec<(u64, u8)>, u64) {
        let mut taken = Batch::default();
        let covers = self.buffer.take(&self.horizon, &mut taken, Admission::All);
        let mut records = Vec::new();
        if taken.records > 0 {
            self.buffer.with_bytes(&taken, |bytes| {
                // A record is a frame of two bytes (no LSN skipped, a body of one byte), and the body.
                assert_eq!(bytes.len() as u64, 3 * taken.records);
                for (lsn, record) in (taken.first_lsn..).zip(bytes.chunks(3)) {
                    assert_eq!(record[..2], [0, 1], "record {lsn} was not copied yet");
                    records.push((lsn, record[2]));
                }
            });
            assert_eq!(taken.last_lsn, records.last().expect("one at least").0);
        }
        self.buffer.mark_durable(&self.horizon);
        (records, covers)
    }
}

fn model(bound: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(f);
}

#[test]
fn two_records_of_a_group_have_places_of_their_own() {
    model(3, || {
        let log = Log::of(SerialBuffer::with_groups_always(40));
        let other = log.clone();
        let second = thread::spawn(move || other.append(b'b'));
        let first = log.append(b'a');
        let second = second.join().expect("no panic");
        let mut expected = [(first, b'a'), (second, b'b')];
        expected.sort_unstable();
        assert_eq!(log.flush().0, expected);
        assert_eq!(log.horizon.compute(), Lsn(2));
    });
}

#[test]
fn a_flush_in_the_midst_of_insertions_reads_whole_records_and_leaves_none_behind() {
    model(2, || {
        let log = Log::of(SerialBuffer::with_groups_always(40));
        let others: Vec<_> = [b'b', b'c']
            .map(|body| {
                let log = log.clone();
                thread::spawn(move || (log.append(body), body))
            })
            .into();
        let (mut found, covers) = log.flush();
        assert!(found.iter().map(|r| r.0).eq(1..covers), "SERIAL-2");
        let expected: Vec<_> = others.into_iter().map(|t| t.join().expect("no panic")).collect();
        found.extend(log.flush().0);
        assert!(expected.iter().all(|record| found.contains(record)) && found.len() == 2);
        assert_eq!(log.horizon.compute(), Lsn(2));
    });
}

#[test]
fn the_latch_and_the_array_mix() {
    model(2, || {
        let log = Log::of(SerialBuffer::new(40));
        let others: Vec<_> = [b'b', b'c']
            .map(|body| {
                let log = log.clone();
                thread::spawn(move || (log.append(body), body))
            })
            .into();
        let first = (log.append(b'a'), b'a');
        let mut expected: Vec<_> = others.into_iter().map(|t| t.join().expect("no panic")).collect();
        expected.push(first);
        expected.sort_unstable();
        assert_eq!(log.flush().0, expected);
    });
}

#[test]
fn a_slot_serves_one_group_after_the_other() {
    model(2, || {
        let log = Log::of(SerialBuffer::with_groups_always(40));
        let other = log.clone();
        let second = thread::spawn(move || [(other.append(b'b'), b'b'), (other.append(b'c'), b'c')]);
        let mut expected = vec![(log.append(b'a'), b'a'), (log.append(b'd'), b'd')];
        expected.extend(second.join().expect("no panic"));
        expected.sort_unstable();
        assert!(expected.iter().map(|r| r.0).eq(1..=4), "LSNs are dense");
        assert_eq!(log.flush().0, expected);
    });
}

#[test]
fn a_group_without_buffer_space_is_refused_and_draws_no_lsn() {
    model(2, || {
        let log = Log::of(SerialBuffer::with_groups_always(12));
        for body in [b'w', b'x', b'y', b'z'] {
            log.append(body);
        }
        let other = log.clone();
        let append = |log: &Log, body| loop {
            match log.buffer.append(&log.horizon, &[body], Admission::All) {
                Ok((lsn, _)) => return lsn.0,
                Err(Refused::NoSpace { first_lsn, taken }) => {
                    assert_eq!(first_lsn, 1);
                    log.buffer.wait_for_space(taken);
                }
                Err(Refused::NotAdmitting) => panic!("admitting"),
            }
        };
        let second = thread::spawn(move || append(&other, b'b'));
        let flushed = log.flush().0;
        assert!(flushed.len() >= 4);
        let lsn = second.join().expect("no panic");
        assert_eq!(lsn, 5, "nothing was drawn in vain");
    });
}
