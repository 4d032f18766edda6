//! WATCH-1 to WATCH-3: an `EXEC` that goes ahead has seen no change of a watched key since the client read it.
//!
//! The key's lock is a mutex with the key's value in it, as the store's exclusive lock orders its holders.
#![cfg(loom)]

use azekura_base::sync::{Arc, Mutex, thread};

#[path = "../src/watch.rs"]
#[allow(dead_code, reason = "what the model needs of it")]
mod watch;

use watch::{Changed, Watches};

#[derive(Default)]
struct Store {
    watches: Watches,
    key: Mutex<u32>,
}

impl Store {
    /// A write of another client: changes the value, and tells while it holds the key's lock (WATCH-1).
    fn write(&self) {
        let mut value = self.key.lock();
        *value += 1;
        self.watches.touch(b"k");
    }

    /// `WATCH`, `GET`, and `EXEC` of an increment. Whether it went ahead.
    fn watched_increment(&self) -> bool {
        let changed = Changed::default();
        // WATCH-2: the registration, then the lock once.
        self.watches.register(b"k", &changed);
        drop(self.key.lock());
        let read = *self.key.lock();
        // WATCH-3: the lock, then the question.
        let mut value = self.key.lock();
        let goes_ahead = !changed.is_set();
        if goes_ahead {
            assert_eq!(*value, read, "a change was missed");
            *value = read + 1;
            self.watches.touch(b"k");
        }
        drop(value);
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
        assert_eq!(*store.key.lock(), 1 + u32::from(went_ahead));
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
        assert_eq!(*store.key.lock(), u32::from(first) + u32::from(second));
    });
}
