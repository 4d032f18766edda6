//! Model of WATCH-1 to WATCH-3: an `EXEC` that runs its queue has missed no change of a watched key since
//! `WATCH`.
//!
//! A mutex models the key's lock, because the store's exclusive lock orders its holders in the same way. The
//! client reads the value after `WATCH` without a lock, because it may learn the value in any way.
#![cfg(loom)]

use azekura_base::sync::atomic::{AtomicU32, Ordering::SeqCst};
use azekura_base::sync::{Arc, Mutex, thread};

#[path = "../src/watch.rs"]
#[allow(dead_code, reason = "the model uses only a part of the module")]
mod watch;

use watch::{Changed, Watches};

#[derive(Default)]
struct Store {
    watches: Watches,
    key: Mutex<()>,
    /// Value of the key; changed under the lock. SeqCst: the ordering of the value is not part of the model.
    value: AtomicU32,
}

impl Store {
    /// Models a write of another client: marks the key and changes the value while holding the key's lock
    /// (WATCH-1).
    fn write(&self) {
        let _lock = self.key.lock();
        self.watches.touch(b"k", None);
        self.value.fetch_add(1, SeqCst);
    }

    /// Models `WATCH`, `GET`, and `EXEC` of an increment. Returns `true` if `EXEC` ran the increment.
    fn watched_increment(&self) -> bool {
        let changed = Changed::default();
        // WATCH-2: registers first, then acquires the lock once.
        self.watches.register(b"k", &changed);
        drop(self.key.lock());
        let read = self.value.load(SeqCst);
        // WATCH-3: acquires the lock first, then reads the mark.
        let lock = self.key.lock();
        let goes_ahead = !changed.is_set();
        if goes_ahead {
            assert_eq!(self.value.load(SeqCst), read, "a change was missed");
            self.watches.touch(b"k", Some(&changed));
            self.value.store(read + 1, SeqCst);
        }
        drop(lock);
        self.watches.forget(b"k", &changed);
        goes_ahead
    }
}

#[test]
fn a_change_between_watch_and_exec_is_never_missed() {
    loom::model(|| {
        let store = Arc::new(Store::default());
        let other = store.clone();
        let writer = thread::spawn(move || other.write());
        let went_ahead = store.watched_increment();
        writer.join().expect("no panic");
        assert_eq!(store.value.load(SeqCst), 1 + u32::from(went_ahead));
    });
}

#[test]
fn of_two_watched_increments_none_is_lost() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let store = Arc::new(Store::default());
        let other = store.clone();
        let second = thread::spawn(move || other.watched_increment());
        let first = store.watched_increment();
        let second = second.join().expect("no panic");
        assert!(first || second, "one of them goes ahead");
        assert_eq!(store.value.load(SeqCst), u32::from(first) + u32::from(second));
    });
}
