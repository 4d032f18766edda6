//! The peers, each behind a feature of its own.
//!
//! All commit durably: when a write returns, it has been synced to the device. Beyond that each has its usual settings, no
//! compression (the values do not compress), and the cache it is told.

#[cfg(feature = "fjall")]
pub mod fjall;
#[cfg(feature = "lmdb")]
pub mod lmdb;
#[cfg(feature = "redb")]
pub mod redb;
#[cfg(feature = "rocksdb")]
pub mod rocksdb;
#[cfg(feature = "rocksdb")]
mod rocksdb_sys;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "wiredtiger")]
pub mod wiredtiger;

use azekura_bench::{Engine, EngineError};

/// Every peer that was built in, in the order of reports.
#[must_use]
pub fn all() -> Vec<Box<dyn Engine>> {
    vec![
        #[cfg(feature = "rocksdb")]
        Box::new(rocksdb::RocksDb::plain()),
        #[cfg(feature = "rocksdb")]
        Box::new(rocksdb::RocksDb::tuned()),
        #[cfg(feature = "rocksdb")]
        Box::new(rocksdb::RocksDb::transactional()),
        #[cfg(feature = "wiredtiger")]
        Box::new(wiredtiger::WiredTiger),
        #[cfg(feature = "lmdb")]
        Box::new(lmdb::Lmdb),
        #[cfg(feature = "redb")]
        Box::new(redb::Redb),
        #[cfg(feature = "fjall")]
        Box::new(fjall::Fjall::optimistic()),
        #[cfg(feature = "fjall")]
        Box::new(fjall::Fjall::single_writer()),
        #[cfg(feature = "sqlite")]
        Box::new(sqlite::Sqlite),
    ]
}

/// Wraps an engine's error with what was being done.
#[allow(dead_code, reason = "unused when every peer is left out")]
fn failed<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    doing: &'static str,
) -> impl FnOnce(E) -> EngineError {
    move |error| EngineError::failed(doing, error)
}

/// The settings of an engine as the report lists them.
#[allow(dead_code, reason = "unused when every peer is left out")]
fn described<const N: usize>(pairs: [(&str, String); N]) -> std::collections::BTreeMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    //! Every engine must give the same answers, or its figures mean nothing.

    use super::*;
    use azekura_bench::{EngineSettings, Plan, Progress, Sink, Store, compare};
    use azekura_workload::{Value, Workload};
    use std::path::Path;
    use std::time::Duration;

    fn open(engine: &dyn Engine, dir: &Path) -> Box<dyn Store> {
        let settings = EngineSettings {
            cache_bytes: 16 << 20,
            expected_bytes: 1 << 20,
            sessions: 8,
            bypass_page_cache: false,
        };
        engine.open(dir, &settings).expect("opens")
    }

    fn value(n: u64) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        Value(n).fill(&mut bytes);
        bytes
    }

    /// All records from `from` on, as (records, mixture of their bytes).
    fn scan(store: &dyn Store, from: &[u8], limit: u64) -> (u64, u64) {
        let mut sink = Sink::checking();
        let mut session = store.session().expect("a session");
        session
            .read(&mut |reader| {
                sink = Sink::checking();
                reader.scan(from, limit, &mut sink)
            })
            .expect("scans");
        assert_eq!(sink.damaged(), 0);
        (sink.records(), sink.mixed())
    }

    fn expected(items: impl Iterator<Item = (u64, u64)>) -> (u64, u64) {
        let mut sink = Sink::default();
        items.for_each(|(key, number)| sink.add(&key.to_be_bytes(), &value(number)));
        (sink.records(), sink.mixed())
    }

    #[test]
    fn every_engine_keeps_what_was_committed_in_key_order_and_over_a_reopening() {
        for engine in all() {
            let dir = tempfile::tempdir().expect("a directory");
            let store = open(engine.as_ref(), dir.path());
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
            let check = |store: &dyn Store| {
                let name = engine.name();
                assert_eq!(scan(store, &[], u64::MAX), expected(all.iter().copied()), "{name}: everything");
                let from = 7u64.to_be_bytes();
                let tail = all[4..].iter().copied();
                assert_eq!(scan(store, &from, u64::MAX), expected(tail), "{name}: from a key that is there");
                let from = 9u64.to_be_bytes();
                let part = all[6..9].iter().copied();
                assert_eq!(scan(store, &from, 3), expected(part), "{name}: three from a key that is not");
                assert_eq!(scan(store, &u64::MAX.to_be_bytes(), 9).0, 0, "{name}: from beyond the end");
            };
            check(store.as_ref());
            store.close().expect("closes");
            let store = open(engine.as_ref(), dir.path());
            check(store.as_ref());
            store.close().expect("closes");
        }
    }

    #[test]
    fn every_engine_finds_what_is_there_and_only_that_and_reads_its_own_writes() {
        for engine in all() {
            let dir = tempfile::tempdir().expect("a directory");
            let store = open(engine.as_ref(), dir.path());
            let mut session = store.session().expect("a session");
            session.write(&mut |w| w.put(b"key", &value(1))).expect("puts");
            let mut sink = Sink::checking();
            let mut found = (false, true);
            session
                .read(&mut |r| {
                    found = (r.get(b"key", &mut sink)?, r.get(b"kez", &mut sink)?);
                    Ok(())
                })
                .expect("reads");
            assert_eq!(found, (true, false), "{}", engine.name());
            session
                .write(&mut |w| {
                    found.0 = w.get(b"key", &mut sink)?;
                    w.put(b"key", &value(2))
                })
                .expect("reads and writes");
            assert!(found.0, "{}", engine.name());
            assert_eq!((sink.records(), sink.damaged()), (2, 0), "{}", engine.name());
        }
    }

    #[test]
    fn work_that_fails_leaves_nothing_behind() {
        for engine in all() {
            let dir = tempfile::tempdir().expect("a directory");
            let store = open(engine.as_ref(), dir.path());
            let mut session = store.session().expect("a session");
            let result = session.write(&mut |w| {
                w.put(b"half", &value(1))?;
                Err(EngineError::failed("testing", "given up"))
            });
            assert!(result.is_err(), "{}", engine.name());
            assert_eq!(scan(store.as_ref(), &[], 9).0, 0, "{}", engine.name());
            session.write(&mut |w| w.put(b"whole", &value(1))).expect("the session goes on");
            assert_eq!(scan(store.as_ref(), &[], 9).0, 1, "{}", engine.name());
        }
    }

    #[test]
    fn engines_that_lock_or_validate_lose_no_update() {
        for engine in all() {
            // A batch has no isolation, and nobody says it has.
            if ["rocksdb", "rocksdb-tuned"].contains(&engine.name()) {
                continue;
            }
            let dir = tempfile::tempdir().expect("a directory");
            let store = open(engine.as_ref(), dir.path());
            store.session().expect("a session").write(&mut |w| w.put(b"n", &[0; 8])).expect("puts");
            let (threads, each) = (4, 25);
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let mut session = store.session().expect("a session");
                        for _ in 0..each {
                            session.write(&mut |w| increment(w)).expect("increments");
                        }
                    });
                }
            });
            let mut sink = Sink::default();
            let mut session = store.session().expect("a session");
            session.read(&mut |r| r.get(b"n", &mut sink).map(|_| ())).expect("reads");
            let mut total = Sink::default();
            total.add(b"n", &u64::to_le_bytes(threads * each));
            assert_eq!(sink.mixed(), total.mixed(), "{}", engine.name());
        }
    }

    /// Adds one to the number under `n`. What a sink saw of a lone eight-byte value tells the value.
    fn increment(writer: &mut dyn azekura_bench::Writer) -> Result<(), EngineError> {
        let (mut sink, mut zero) = (Sink::default(), Sink::default());
        writer.get(b"n", &mut sink)?;
        zero.add(b"n", &[0; 8]);
        writer.put(b"n", &((sink.mixed() ^ zero.mixed()) + 1).to_le_bytes())
    }

    #[test]
    fn every_workload_runs_over_every_engine() {
        let dir = tempfile::tempdir().expect("a directory");
        let plan = Plan {
            workloads: Workload::names()
                .map(|name| name.parse::<Workload>().expect("a name").with_records(2_000))
                .collect(),
            threads: vec![2],
            runs: 2,
            measured: Duration::from_millis(10),
            ..Plan::in_dir(dir.path())
        };
        let outcome = compare(&all(), &plan, &Progress::hidden(), &mut |_| {}).expect("runs");
        assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        assert_eq!(outcome.reports.len(), all().len() * plan.workloads.len());
    }
}
