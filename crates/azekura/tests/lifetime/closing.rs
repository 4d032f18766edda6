//! Tests of the pages that are written when a store is closed or recovered.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use azekura::{Builder, Database, Error, TableDefinition};
use azekura_io::{CountingFs, FaultFs, Fs};

use crate::held::{HeldFs, Hold};

/// Name of the threads that write pages in these tests.
const WRITER: &str = "writer of pages";

/// Returns a store with many dirty pages that are not written automatically.
fn changed(fs: Arc<dyn Fs>) -> Database {
    changed_by(Database::builder(), fs)
}

fn changed_by(builder: Builder, fs: Arc<dyn Fs>) -> Database {
    let rows = TableDefinition::<u64, [u8]>::new("values");
    let db = builder.cache_bytes(32 << 20).recovery_time(Duration::from_secs(3600));
    let db = db.file_system(fs).open("db").unwrap();
    let fill = |byte: u8| {
        for n in 0..20 {
            let put = |tx: &azekura::Transaction| {
                (n * 100..n * 100 + 100).try_for_each(|i| tx.table(&rows)?.insert(&i, &[byte; 2000][..]))
            };
            db.transact(put).unwrap();
        }
    };
    fill(1);
    db.checkpoint().unwrap(); // so that the file has all pages and does not grow later
    fill(2);
    assert!(db.stats().cache.dirty_pages > 400, "{:?}", db.stats().cache);
    db
}

/// Waits until a write of this thread is held, or the thread has ended: if the system does not run it, others
/// may write all pages before its first write.
fn wait_for_a_write<T>(hold: &Hold, writer: &JoinHandle<T>) {
    while hold.held() == 0 && !writer.is_finished() {
        thread::yield_now();
    }
}

/// Runs `write` in a thread, and holds the first write of this thread to the page file. Waits until other
/// threads have written to the page file meanwhile; returns the number of their bytes.
fn written_beside<T: Send + 'static>(
    fs: &CountingFs,
    hold: &Hold,
    write: impl FnOnce() -> T + Send + 'static,
) -> (T, u64) {
    let bytes = || fs.bytes_written_to(|path| path.ends_with("pages"));
    let before = bytes();
    let writer = thread::Builder::new().name(WRITER.into()).spawn(write).unwrap();
    wait_for_a_write(hold, &writer);
    let deadline = Instant::now() + Duration::from_secs(120);
    while bytes() == before && Instant::now() < deadline {
        thread::yield_now();
    }
    let beside = bytes() - before;
    hold.release();
    hold.note_return(); // no call waits for the held write here
    (writer.join().unwrap(), beside)
}

#[test]
fn closing_writes_several_batches_of_pages_at_once() {
    let fs = CountingFs::new(Arc::new(FaultFs::new()));
    let (held, hold) = HeldFs::over(Arc::new(fs.clone()), "pages", WRITER);
    let db = changed(Arc::new(held));
    let (closed, beside) = written_beside(&fs, &hold, move || db.close());
    closed.unwrap();
    assert!(beside > 0, "no other thread writes pages while one write is under way");
}

#[test]
fn opening_after_a_crash_writes_several_batches_of_pages_at_once() {
    let disk = FaultFs::new();
    let db = changed(Arc::new(disk.clone()));
    let killed = disk.kill();
    drop(db);
    let fs = CountingFs::new(Arc::new(killed));
    let (held, hold) = HeldFs::over(Arc::new(fs.clone()), "pages", WRITER);
    let open = move || Database::builder().cache_bytes(32 << 20).file_system(Arc::new(held)).open("db");
    let (db, beside) = written_beside(&fs, &hold, open);
    assert!(beside > 0, "no other thread writes pages while one write is under way");
    let db = db.unwrap();
    assert!(db.stats().recovery.records > 0, "{:?}", db.stats().recovery);
    assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
}

#[test]
fn a_close_with_a_limit_of_time_leaves_pages_to_the_next_opening() {
    let rows = TableDefinition::<u64, [u8]>::new("values");
    let open =
        |disk: FaultFs| Database::builder().cache_bytes(32 << 20).file_system(Arc::new(disk)).open("db");
    for (time, background) in [(0, true), (0, false), (3600, true), (3600, false)] {
        let builder = Database::builder().close_time(Duration::from_secs(time)).background(background);
        let disk = FaultFs::new();
        let fs = CountingFs::new(Arc::new(disk.clone()));
        let db = changed_by(builder, Arc::new(fs.clone()));
        let relaxed = db.begin().unwrap();
        relaxed.set_durability(azekura::Durability::Relaxed);
        relaxed.table(&rows).unwrap().insert(&5_000, &[3; 10][..]).unwrap();
        relaxed.commit().unwrap();
        let written = || fs.bytes_written_to(|path| path.ends_with("pages"));
        let before = written();
        db.close().unwrap();
        drop(db);
        let written = written() - before;
        assert_eq!(written > 400 * 8192, time > 0, "{written} bytes of pages within {time} s");
        assert!(written == 0 || time > 0, "{written} bytes of pages");
        // The power fails right after the store was closed.
        let db = open(disk.crash_losing_all()).unwrap();
        let recovery = db.stats().recovery;
        assert_eq!(recovery.records > 0, time == 0, "{recovery:?}");
        let (changed, last) = db
            .transact(|tx| {
                let table = tx.table(&rows)?;
                let is_changed = |n: u64| Ok(table.get(&n)? == Some(vec![2; 2000]));
                let all = (0..2000).map(is_changed).collect::<Result<Vec<_>, Error>>()?;
                Ok((all.into_iter().filter(|&is_changed| is_changed).count(), table.get(&5_000)?))
            })
            .unwrap();
        assert_eq!((changed, last), (2000, Some(vec![3; 10])));
        assert!(db.check(&mut |_, _| ()).unwrap().is_clean());
    }
}

/// The store itself keeps a state for durable snapshots, and with it the pages of a replaced value.
#[test]
fn nothing_is_left_to_the_next_opening_after_a_durable_snapshot() {
    let rows = TableDefinition::<u64, [u8]>::new("values");
    for (time, background) in [(None, true), (None, false), (Some(3600), true), (Some(3600), false)] {
        let disk = FaultFs::new();
        let mut builder = Database::builder().background(background).cache_bytes(8 << 20);
        if let Some(time) = time {
            builder = builder.close_time(Duration::from_secs(time));
        }
        let db = builder.file_system(Arc::new(disk.clone())).open("db").unwrap();
        let put = |byte: u8| {
            let tx = db.begin().unwrap();
            tx.set_durability(azekura::Durability::Relaxed);
            tx.table(&rows).unwrap().insert(&1, &[byte; 50_000][..]).unwrap();
            tx.commit().unwrap();
        };
        let began = Instant::now();
        for byte in 1..4 {
            put(byte);
            drop(db.durable_snapshot().unwrap());
        }
        put(4);
        let is_kept = db.stats().snapshots.waiting_to_free > 0;
        assert!(is_kept || began.elapsed() >= Duration::from_secs(1), "the states are kept for a second");
        db.close().unwrap();
        let again = Database::builder().file_system(Arc::new(disk.crash_losing_all())).open("db").unwrap();
        let recovery = again.stats().recovery;
        assert_eq!(recovery.records, 0, "{time:?}, {background}: {recovery:?}");
        assert!(again.check(&mut |_, _| ()).unwrap().is_clean());
    }
}

/// A slow device delays a checkpoint. Other threads read, commit, and read the counters meanwhile.
#[test]
fn no_other_call_waits_for_a_checkpoint() {
    // The first write of a checkpoint to the page file, and its write of CONTROL.
    for file in ["pages", "CONTROL"] {
        let (fs, hold) = HeldFs::new(file, WRITER);
        let db = changed(Arc::new(fs));
        let of_checkpoint = db.clone();
        let checkpoint = move || of_checkpoint.checkpoint();
        let checkpoint = thread::Builder::new().name(WRITER.into()).spawn(checkpoint).unwrap();
        wait_for_a_write(&hold, &checkpoint);
        let other = db.clone();
        let (report, reports) = mpsc::channel();
        let calls = thread::spawn(move || {
            let rows = TableDefinition::<u64, [u8]>::new("values");
            let before = (other.id(), other.stats().log.scan_lsn);
            other.transact(|tx| tx.table(&rows)?.insert(&7, &[3][..])).unwrap();
            let snapshot = other.snapshot().unwrap();
            assert_eq!(snapshot.table(&rows).unwrap().get(&7).unwrap().unwrap(), [3]);
            let after = (other.id(), other.stats().log.scan_lsn);
            report.send(before == after).unwrap();
        });
        let unchanged = reports.recv_timeout(Duration::from_secs(120));
        let is_held = hold.held() > 0;
        hold.release();
        hold.note_return(); // no call waits for the held write here
        calls.join().unwrap();
        checkpoint.join().unwrap().unwrap();
        let unchanged = unchanged.unwrap_or_else(|_| panic!("a call waited for the write of {file}"));
        assert!(unchanged || !is_held, "the checkpoint has not ended");
    }
}
