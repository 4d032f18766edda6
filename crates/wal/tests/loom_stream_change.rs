//! ASSIGN-1 to 3: while the number of streams in use changes, a committer's record goes to disk in a place
//! where recovery finds it, an appender that is refused meanwhile goes on, and nobody sleeps for ever. The
//! whole log is the model, on a file system in memory.
#![cfg(loom)]

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use azekura_base::sync::thread;
use azekura_base::{DurableLog, Lsn};
use azekura_io::{Fs, MemFs};
use azekura_wal::recovery::replay;
use azekura_wal::{LogIdentity, LogRange, StreamCount, Wal, WalOptions, WorkerId};

fn dir() -> &'static Path {
    Path::new("/wal")
}

/// So many workers and streams, of which one is in use; no threads.
fn create(fs: &Arc<dyn Fs>, workers: usize, streams: usize) -> Arc<Wal> {
    let identity = LogIdentity { database_id: 1, incarnation: 1, first_lsn: Lsn(1) };
    let options = WalOptions {
        workers,
        streams: StreamCount::UpTo(streams),
        segment_bytes: 32 << 10,
        buffer_bytes: 1 << 10,
        background: false,
        direct: false,
        ..WalOptions::default()
    };
    Wal::create(Arc::clone(fs), dir(), identity, options).expect("creates")
}

/// What a recovery would find now: every LSN up to the last must be there.
fn last_found(fs: &dyn Fs) -> u64 {
    let range = LogRange::open(1, Lsn(1));
    let mut next = 1;
    let found = replay(fs, dir(), 1, &[range], Lsn(1), &mut |lsn, _| {
        assert_eq!(lsn.0, next, "LSNs are dense");
        next += 1;
        Ok::<(), Infallible>(())
    });
    found.expect("a log that nobody damaged").last_lsn.0
}

/// Logs `records` and waits for each; the power might go right after that. All that is said to be durable
/// then must be there, of others too.
fn commit(wal: &Wal, fs: &dyn Fs, worker: usize, records: usize) {
    for _ in 0..records {
        let lsn = wal.append(WorkerId::from_index(worker), b"x").expect("appends");
        wal.make_durable(lsn).expect("durable");
        let durable = wal.durable_lsn();
        assert!(
            durable >= lsn && last_found(fs) >= durable.0,
            "{lsn:?} was acknowledged, {durable:?} durable"
        );
    }
}

fn model(bound: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 100_000;
    builder.check(f);
}

#[test]
fn a_committer_and_a_change_to_two_streams() {
    model(2, || {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let wal = create(&fs, 2, 2);
        let (other, disk) = (Arc::clone(&wal), Arc::clone(&fs));
        let committer = thread::spawn(move || commit(&other, &*disk, 1, 2));
        assert!(wal.use_streams(2).expect("changes"));
        committer.join().expect("no panic");
        assert_eq!(last_found(&*fs), 2);
    });
}

#[test]
fn a_flush_that_ends_when_the_number_changes_speaks_for_its_own_workers_only() {
    model(2, || {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let wal = create(&fs, 2, 2);
        let other = Arc::clone(&wal);
        let changer = thread::spawn(move || {
            assert!(other.use_streams(2).expect("changes"));
            // From now on worker 1 has a stream of its own, which writes this record.
            let lsn = other.append(WorkerId::from_index(1), b"x").expect("appends");
            other.make_durable(lsn).expect("durable");
        });
        // Leads a flush of both workers, and may be about to move worker 1's mark while the number changes.
        commit(&wal, &*fs, 0, 1);
        changer.join().expect("no panic");
    });
}

#[test]
fn a_resting_record_and_a_change_there_and_back() {
    model(2, || {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let wal = create(&fs, 2, 2);
        assert!(wal.use_streams(2).expect("changes"));
        // Worker 1's record rests while its worker comes back to the first stream.
        let other = Arc::clone(&wal);
        let appender = thread::spawn(move || {
            for _ in 0..2 {
                other.append(WorkerId::from_index(1), b"rests").expect("appends");
            }
        });
        assert!(wal.use_streams(1).expect("changes"));
        commit(&wal, &*fs, 0, 1);
        appender.join().expect("no panic");
        wal.make_durable(Lsn(3)).expect("durable");
        assert_eq!(last_found(&*fs), 3);
    });
}

#[test]
fn a_record_logged_in_the_midst_of_a_change_is_found() {
    model(2, || {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        // Worker 4 moves from the first stream to the second, which is in use already and writes worker 1's
        // record.
        let wal = create(&fs, 5, 3);
        assert!(wal.use_streams(2).expect("changes"));
        wal.append(WorkerId::from_index(1), b"rests").expect("appends");
        let other = Arc::clone(&wal);
        let appender = thread::spawn(move || {
            other.append(WorkerId::from_index(4), b"moves").expect("appends");
        });
        assert!(wal.use_streams(3).expect("changes"));
        appender.join().expect("no panic");
        wal.make_durable(Lsn(2)).expect("durable");
        assert_eq!(last_found(&*fs), 2);
    });
}

#[test]
fn two_changes_at_once_and_a_committer() {
    model(2, || {
        let fs: Arc<dyn Fs> = Arc::new(MemFs::new());
        let wal = create(&fs, 2, 2);
        let (second, third, disk) = (Arc::clone(&wal), Arc::clone(&wal), Arc::clone(&fs));
        let threads = [
            thread::spawn(move || commit(&second, &*disk, 1, 1)),
            thread::spawn(move || _ = third.use_streams(2).expect("changes")),
        ];
        wal.use_streams(2).expect("changes");
        wal.use_streams(1).expect("changes");
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        assert_eq!(last_found(&*fs), 1);
    });
}
