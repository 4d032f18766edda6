//! Conformance tests for engine adapters, without which their figures would mean nothing. They test correct
//! answers, no changes by failed transactions, and no lost updates. Each check panics with the engine's name
//! if it fails.

use crate::engine::{Engine, EngineSettings, Reader, Sink, Store, Writer};
use crate::error::EngineError;
use azekura_workload::Value;
use std::path::Path;

/// Opens a small store.
///
/// # Panics
///
/// If the engine cannot open the store.
#[must_use]
pub fn open(engine: &dyn Engine, dir: &Path) -> Box<dyn Store> {
    let settings = EngineSettings {
        cache_bytes: Some(16 << 20),
        expected_bytes: 1 << 20,
        sessions: 8,
        bypass_page_cache: false,
    };
    engine.open(dir, &settings).unwrap_or_else(|error| panic!("{}: {error:?}", engine.name()))
}

fn value(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 100];
    Value(number).fill(&mut bytes);
    bytes
}

/// Scans the store. Returns the number of records, and a checksum of them that depends on their order.
fn scan(name: &str, store: &dyn Store, from: &[u8], limit: u64) -> (u64, u64) {
    let mut sink = Sink::checking();
    let mut session = store.session().expect("a session");
    let result = session.read(&mut |reader| {
        sink = Sink::checking();
        reader.scan(from, limit, &mut sink)
    });
    result.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_eq!(sink.damaged(), 0, "{name}: damaged values");
    (sink.records(), sink.mixed())
}

/// Returns the result of [`scan`] for these keys and numbers of values.
fn expected(records: impl Iterator<Item = (u64, u64)>) -> (u64, u64) {
    let mut sink = Sink::default();
    records.for_each(|(key, number)| sink.add(&key.to_be_bytes(), &value(number)));
    (sink.records(), sink.mixed())
}

/// Checks that scans return committed records in key order, also after closing and opening again. `dir` must
/// be empty.
///
/// # Panics
///
/// If a record is missing, out of order or damaged.
pub fn keeps_what_was_committed(engine: &dyn Engine, dir: &Path) {
    let store = open(engine, dir);
    {
        let mut session = store.session().expect("a session");
        session
            .write(&mut |w| (0..100u64).try_for_each(|k| w.append(&(2 * k).to_be_bytes(), &value(k))))
            .expect("appends");
        session
            .write(&mut |w| {
                w.put(&6u64.to_be_bytes(), &value(1_000))?;
                w.put(&7u64.to_be_bytes(), &value(1_001))
            })
            .expect("puts");
    }
    let mut all: Vec<(u64, u64)> = (0..100).map(|k| (2 * k, k)).collect();
    all[3].1 = 1_000;
    all.insert(4, (7, 1_001));
    scans_are(engine.name(), store.as_ref(), &all);
    store.close().expect("closes");
    let store = open(engine, dir);
    scans_are(engine.name(), store.as_ref(), &all);
    store.close().expect("closes");
}

fn scans_are(name: &str, store: &dyn Store, all: &[(u64, u64)]) {
    let part = |from: usize, to: usize| expected(all[from..to].iter().copied());
    assert_eq!(scan(name, store, &[], u64::MAX), part(0, all.len()), "{name}: everything");
    let from = 7u64.to_be_bytes();
    assert_eq!(scan(name, store, &from, u64::MAX), part(4, all.len()), "{name}: from a key that is there");
    let from = 9u64.to_be_bytes();
    assert_eq!(scan(name, store, &from, 3), part(6, 9), "{name}: three from a key that is not there");
    assert_eq!(scan(name, store, &u64::MAX.to_be_bytes(), 9).0, 0, "{name}: from beyond the end");
}

/// Checks that reads find exactly the existing records, and that transactions read their own writes. `dir`
/// must be empty.
///
/// # Panics
///
/// If a read returns a wrong answer.
pub fn finds_what_is_there(engine: &dyn Engine, dir: &Path) {
    let name = engine.name();
    let store = open(engine, dir);
    let mut session = store.session().expect("a session");
    session.write(&mut |w| w.put(b"key", &value(1))).expect("puts");
    let (mut sink, mut found) = (Sink::checking(), (false, true));
    let look = &mut |r: &mut dyn Reader| {
        found = (r.get(b"key", &mut sink)?, r.get(b"kez", &mut sink)?);
        Ok(())
    };
    session.read(look).expect("reads");
    assert_eq!(found, (true, false), "{name}");
    let change = &mut |w: &mut dyn Writer| {
        found.0 = w.get(b"key", &mut sink)?;
        w.put(b"key", &value(2))
    };
    session.write(change).expect("reads and writes");
    assert_eq!((found.0, sink.records(), sink.damaged()), (true, 2, 0), "{name}");
}

/// Checks that a removed record is missing for its own transaction, for others, and after reopening; and that
/// a record that was stored again exists. `dir` must be empty.
///
/// # Panics
///
/// If a removed record is found, or a stored one is not.
pub fn removes_what_it_is_told(engine: &dyn Engine, dir: &Path) {
    let name = engine.name();
    let store = open(engine, dir);
    {
        let mut session = store.session().expect("a session");
        session.write(&mut |w| (0..9u64).try_for_each(|k| w.put(&k.to_be_bytes(), &value(k)))).expect("puts");
        let mut found = (true, 0);
        let change = &mut |w: &mut dyn Writer| {
            let mut sink = Sink::keeping();
            assert!(w.get_for_update(&4u64.to_be_bytes(), &mut sink)?, "{name}: it is there");
            assert_eq!(sink.take(), [(4u64.to_be_bytes().to_vec(), value(4))], "{name}");
            w.remove(&4u64.to_be_bytes())?;
            w.remove(&8u64.to_be_bytes())?;
            w.remove(&0u64.to_be_bytes())?;
            w.put(&0u64.to_be_bytes(), &value(0))?;
            found.0 = w.get(&4u64.to_be_bytes(), &mut sink)?;
            let mut sink = Sink::default();
            w.scan(&[], u64::MAX, &mut sink)?;
            found.1 = sink.records();
            Ok(())
        };
        session.write(change).expect("removes");
        assert_eq!(found, (false, 7), "{name}: inside of the transaction");
    }
    let left = expected([0, 1, 2, 3, 5, 6, 7].map(|k| (k, k)).into_iter());
    assert_eq!(scan(name, store.as_ref(), &[], u64::MAX), left, "{name}: for others");
    store.close().expect("closes");
    let store = open(engine, dir);
    assert_eq!(scan(name, store.as_ref(), &[], u64::MAX), left, "{name}: after closing");
}

/// Checks that a transaction that fails leaves no change, and that its session remains usable. `dir` must be
/// empty.
///
/// # Panics
///
/// If a change remains.
pub fn failed_work_leaves_nothing(engine: &dyn Engine, dir: &Path) {
    let name = engine.name();
    let store = open(engine, dir);
    let mut session = store.session().expect("a session");
    let result = session.write(&mut |w| {
        w.put(b"half", &value(1))?;
        Err(EngineError::failed("testing", "given up"))
    });
    assert!(result.is_err(), "{name}: the failure is returned");
    assert_eq!(scan(name, store.as_ref(), &[], 9).0, 0, "{name}: after the failure");
    session.write(&mut |w| w.put(b"whole", &value(1))).expect("the session goes on");
    assert_eq!(scan(name, store.as_ref(), &[], 9).0, 1, "{name}: after the next");
}

/// Checks that concurrent transactions that increment a number lose no update. `dir` must be empty.
///
/// # Panics
///
/// If an update is lost.
pub fn loses_no_update(engine: &dyn Engine, dir: &Path) {
    const THREADS: u64 = 4;
    const EACH: u64 = 25;
    let store = open(engine, dir);
    store.session().expect("a session").write(&mut |w| w.put(b"n", &[0; 8])).expect("puts");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut session = store.session().expect("a session");
                for _ in 0..EACH {
                    session.write(&mut |writer| increment(writer)).expect("increments");
                }
            });
        }
    });
    let mut total = 0;
    let mut session = store.session().expect("a session");
    session.read(&mut |r| number(r).map(|n| total = n)).expect("reads");
    assert_eq!(total, THREADS * EACH, "{}", engine.name());
}

fn increment(writer: &mut dyn Writer) -> Result<(), EngineError> {
    let next = number(writer)? + 1;
    writer.put(b"n", &next.to_le_bytes())
}

/// Reads the number stored under the key `n`.
fn number<R: Reader + ?Sized>(reader: &mut R) -> Result<u64, EngineError> {
    let (mut seen, mut zero) = (Sink::default(), Sink::default());
    reader.get(b"n", &mut seen)?;
    zero.add(b"n", &[0; 8]);
    Ok(seen.mixed() ^ zero.mixed())
}

/// Checks that asynchronous commits become durable without a wait, and that their records exist after
/// reopening. `dir` must be empty.
///
/// # Panics
///
/// If a commit does not become durable, or a record is missing.
pub fn tickets_come_true(engine: &dyn Engine, dir: &Path) {
    let store = open(engine, dir);
    {
        let mut session = store.session().expect("a session");
        let mut tickets = Vec::new();
        for key in 0..50u64 {
            let put = &mut |w: &mut dyn Writer| w.put(&key.to_be_bytes(), &value(key));
            tickets.push(session.write_async(put).expect("commits").1);
        }
        let last = tickets.pop().expect("fifty tickets");
        last.wait().expect("becomes durable");
        for ticket in tickets {
            assert!(ticket.is_durable().expect("the log works"), "{}: an earlier commit", engine.name());
        }
    }
    store.close().expect("closes");
    let store = open(engine, dir);
    let all = expected((0..50).map(|k| (k, k)));
    assert_eq!(scan(engine.name(), store.as_ref(), &[], u64::MAX), all, "{}", engine.name());
}
