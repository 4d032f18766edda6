//! Watched keys: detect whether a key changed between `WATCH` and `EXEC`.
//!
//! - **WATCH-1** A writer marks a key as changed ([`Watches::touch`]) while it holds the key's exclusive
//!   lock.
//! - **WATCH-2** `WATCH` registers the key, and then acquires the key's lock once before the reply. A writer
//!   that marked the key before the registration has ended by then. A later writer finds the registration.
//! - **WATCH-3** `EXEC` holds the locks of its watched keys before it reads the mark. So every client that
//!   has changed one of the keys has set the mark.
//! - **WATCH-4** `FLUSHALL` marks no key. A key that existed at `WATCH` is either absent at `EXEC`, which
//!   checks that too, or was stored again, and that writer has marked it. A key that was absent at `WATCH` is
//!   not changed by `FLUSHALL`.
//! - **WATCH-5** The transaction of `EXEC` does not set its own mark. After a deadlock `EXEC` runs again, and
//!   the changes that were rolled back must not count as changes of another client.
//!
//! So `EXEC` misses no change. If a writer marks a key and then rolls back, `EXEC` replies nil without need,
//! and the client tries again.
//!
//! Model: `tests/loom_watch.rs`.

use std::collections::{BTreeMap, HashMap};

use azekura_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use azekura_base::sync::{Arc, Mutex};

/// Mark of one connection: set once one of its watched keys has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed(Arc<AtomicBool>);

impl Changed {
    /// Returns `true` if a watched key has changed.
    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: the key's lock orders the mark (WATCH-3).
        self.0.load(Relaxed)
    }
}

/// The watched keys and their watchers.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    by_key: Mutex<HashMap<Vec<u8>, Vec<Changed>>>,
    /// Number of entries of `by_key`; changed under its mutex.
    count: AtomicUsize,
}

impl Watches {
    /// Registers a watcher: the next change of `key` sets `changed`.
    pub(crate) fn register(&self, key: &[u8], changed: &Changed) {
        let mut by_key = self.by_key.lock();
        by_key.entry(key.to_vec()).or_default().push(changed.clone());
        self.count.store(by_key.len(), Relaxed);
    }

    /// Removes the registration of a watcher.
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

    /// Marks `key` as changed for its watchers (WATCH-1), except for the writer's own mark (WATCH-5).
    pub(crate) fn touch(&self, key: &[u8], own: Option<&Changed>) {
        // Relaxed: a registration that matters happened before the caller acquired the key's lock (WATCH-2).
        if self.count.load(Relaxed) == 0 {
            return;
        }
        if let Some(watchers) = self.by_key.lock().get(key) {
            let is_own = |watcher: &&Changed| own.is_some_and(|own| Arc::ptr_eq(&watcher.0, &own.0));
            let others = watchers.iter().filter(|watcher| !is_own(watcher));
            others.for_each(|watcher| watcher.0.store(true, Relaxed));
        }
    }

    /// Returns the number of watched keys.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Relaxed)
    }
}

/// The keys that one connection watches.
#[derive(Debug, Default)]
pub(crate) struct WatchSet {
    changed: Changed,
    /// Each key, and whether the key existed at `WATCH`.
    keys: BTreeMap<Vec<u8>, bool>,
}

impl WatchSet {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    pub(crate) const fn changed(&self) -> &Changed {
        &self.changed
    }

    /// Adds a registered key.
    pub(crate) fn add(&mut self, key: &[u8], was_there: bool) {
        self.keys.insert(key.to_vec(), was_there);
    }

    /// Records whether a key of the set exists.
    pub(crate) fn note(&mut self, key: &[u8], is_there: bool) {
        if let Some(was_there) = self.keys.get_mut(key) {
            *was_there = is_there;
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (&[u8], bool)> {
        self.keys.iter().map(|(key, was_there)| (key.as_slice(), *was_there))
    }

    /// Removes all keys and their registrations.
    pub(crate) fn clear(&mut self, watches: &Watches) {
        for key in std::mem::take(&mut self.keys).into_keys() {
            watches.forget(&key, &self.changed);
        }
        self.changed = Changed::default();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_notifies_the_watchers_of_the_key_only() {
        let watches = Watches::default();
        let (a, b) = (Changed::default(), Changed::default());
        watches.register(b"x", &a);
        watches.register(b"y", &b);
        watches.touch(b"x", Some(&a));
        assert!(!a.is_set());
        watches.touch(b"x", Some(&b));
        assert!(a.is_set() && !b.is_set());
        watches.forget(b"x", &a);
        watches.forget(b"y", &b);
        assert_eq!(watches.len(), 0);
        watches.touch(b"y", None);
        assert!(!b.is_set());
    }
}
