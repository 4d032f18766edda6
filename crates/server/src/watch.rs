//! Watched keys: whether one changed between `WATCH` and `EXEC`.
//!
//! - **WATCH-1** A writer tells ([`Watches::touch`]) while it holds the key's exclusive lock.
//! - **WATCH-2** `WATCH` registers, and then takes the key's lock once before it answers: a writer that had
//!   told before is over by then, and a writer that comes after sees the registration.
//! - **WATCH-3** `EXEC` holds the locks of its watched keys before it asks: a client that changed one of them
//!   before has reported the change.
//! - **WATCH-4** `FLUSHALL` tells nothing. A key that was present at `WATCH` is absent at `EXEC`, which
//!   compares that too, or was stored again, and that writer has told. A key that was absent has not changed.
//!
//! So `EXEC` misses no change. A writer that told and then rolled back makes it answer nil without need; the
//! client tries again.
//!
//! Model: `tests/loom_watch.rs`.

use std::collections::HashMap;

use azekura_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use azekura_base::sync::{Arc, Mutex};

/// Set once a key of a connection's set has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed(Arc<AtomicBool>);

impl Changed {
    /// Returns `true` if a watched key has changed.
    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: WATCH-3, the key's lock orders it.
        self.0.load(Relaxed)
    }
}

/// The watched keys and their watchers.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_key: Mutex<HashMap<Vec<u8>, Vec<Changed>>>,
    /// Entries of `by_key`; changed under its mutex.
    count: AtomicUsize,
}

impl Watches {
    /// Registers: `changed` will be set by the next change of `key`.
    pub(crate) fn register(&self, key: &[u8], changed: &Changed) {
        let mut by_key = self.by_key.lock();
        by_key.entry(key.to_vec()).or_default().push(changed.clone());
        self.count.store(by_key.len(), Relaxed);
    }

    /// Takes the registration back.
    pub(crate) fn forget(&self, key: &[u8], changed: &Changed) {
        let mut by_key = self.by_key.lock();
        if let Some(watchers) = by_key.get_mut(key) {
            watchers.retain(|watcher| !Arc::ptr_eq(&watcher.0, &changed.0));
            if watchers.is_empty() {
                by_key.remove(key);
            }
        }
        self.count.store(by_key.len(), Relaxed);
    }

    /// Tells that `key` changes (WATCH-1).
    pub(crate) fn touch(&self, key: &[u8]) {
        // Relaxed: a registration that matters happened before the caller got the key's lock (WATCH-2).
        if self.count.load(Relaxed) == 0 {
            return;
        }
        if let Some(watchers) = self.by_key.lock().get(key) {
            watchers.iter().for_each(|watcher| watcher.0.store(true, Relaxed));
        }
    }

    /// Keys that are watched.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }
}

/// The keys that one connection watches.
#[derive(Debug, Default)]
pub(crate) struct WatchSet {
    changed: Changed,
    /// Each key, and whether it was there.
    keys: Vec<(Vec<u8>, bool)>,
}

impl WatchSet {
    pub(crate) const fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.keys.iter().any(|(watched, _)| watched == key)
    }

    pub(crate) const fn changed(&self) -> &Changed {
        &self.changed
    }

    /// Notes a key that is registered.
    pub(crate) fn add(&mut self, key: &[u8], was_there: bool) {
        self.keys.push((key.to_vec(), was_there));
    }

    /// Says of the key noted last whether it is there.
    pub(crate) fn note(&mut self, is_there: bool) {
        if let Some((_, was_there)) = self.keys.last_mut() {
            *was_there = is_there;
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (&[u8], bool)> {
        self.keys.iter().map(|(key, was_there)| (key.as_slice(), *was_there))
    }

    /// Registers no more.
    pub(crate) fn clear(&mut self, watches: &Watches) {
        for (key, _) in self.keys.drain(..) {
            watches.forget(&key, &self.changed);
        }
        self.changed = Changed::default();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_reaches_those_who_watch_the_key_and_no_others() {
        let watches = Watches::default();
        let (a, b) = (Changed::default(), Changed::default());
        watches.register(b"x", &a);
        watches.register(b"y", &b);
        watches.touch(b"x");
        assert!(a.is_set() && !b.is_set());
        watches.forget(b"x", &a);
        watches.forget(b"y", &b);
        assert_eq!(watches.len(), 0);
        watches.touch(b"y");
        assert!(!b.is_set());
    }
}
