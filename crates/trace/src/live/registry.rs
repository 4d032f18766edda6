//! The recorded sites and operations: lists that only grow, without locks and allocations.
//!
//! A definition gets its id when it is first recorded, by a CAS from 0. The thread that succeeds pushes the
//! definition onto a list that links the definitions themselves, which are statics. The collector reads the
//! list. It may find an id in an event one drain before the id's definition, but not earlier.

use crate::site::Definition;
use azekura_base::sync::atomic::{
    AtomicPtr, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use azekura_base::sync::machine;
use std::ptr;

/// The registration of a definition: its id, and its link in the list.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The id: 0 until the definition is first recorded, then constant.
    id: AtomicU32,
    /// The definition that was registered before this one. Written before the push that publishes this
    /// definition.
    next: AtomicPtr<Definition>,
}

impl Registration {
    pub(crate) const fn new() -> Self {
        Self { id: AtomicU32::new(0), next: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// All definitions of one type that were recorded in this process.
pub(super) struct Registry {
    newest: AtomicPtr<Definition>,
    ids: AtomicU32,
}

pub(super) static SITES: Registry = Registry::new();
pub(super) static OPERATIONS: Registry = Registry::new();

impl Registry {
    const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()), ids: AtomicU32::new(0) }
    }

    /// Returns the definition's id; draws one if it has none.
    #[inline]
    pub(super) fn id(&self, definition: &'static Definition) -> u32 {
        // Relaxed: only the id itself is used.
        match definition.registration.id.load(Relaxed) {
            0 => self.register(definition),
            id => id,
        }
    }

    /// Returns the definition's id; 0 if it has none yet.
    #[inline]
    pub(super) fn known(definition: &Definition) -> u32 {
        definition.registration.id.load(Relaxed) // as in `id`
    }

    /// Registers a definition, outside of a simulated machine: this happens once per process, so only a first
    /// run would contain it.
    #[cold]
    fn register(&self, definition: &'static Definition) -> u32 {
        machine::outside(|| self.push(definition))
    }

    fn push(&self, definition: &'static Definition) -> u32 {
        let drawn = self.ids.fetch_add(1, Relaxed) + 1;
        let registration = &definition.registration;
        if let Err(theirs) = registration.id.compare_exchange(0, drawn, Relaxed, Relaxed) {
            return theirs; // another thread was first; this number stays unused
        }
        let mut newest = self.newest.load(Relaxed);
        loop {
            registration.next.store(newest, Relaxed); // published by the CAS
            let ours = ptr::from_ref(definition).cast_mut();
            // Release: pairs with the Acquire in `since`; `next` and `id` become visible.
            match self.newest.compare_exchange_weak(newest, ours, Release, Relaxed) {
                Ok(_) => return drawn,
                Err(now) => newest = now,
            }
        }
    }

    /// Returns the definitions registered since the last call with `seen`, newest first, with their ids.
    /// `seen` is null at first. Runs outside of a simulated machine, because the number of definitions
    /// depends on earlier runs.
    pub(super) fn since(&self, seen: &mut *const Definition) -> Vec<(u32, &'static Definition)> {
        machine::outside(|| self.walk(seen))
    }

    fn walk(&self, seen: &mut *const Definition) -> Vec<(u32, &'static Definition)> {
        // Acquire: pairs with the Release in `register`.
        let newest = self.newest.load(Acquire).cast_const();
        let mut found = Vec::new();
        let mut at = newest;
        while at != *seen {
            // SAFETY: only `register` stores pointers in the list, all from `&'static Definition`. `seen` is
            // in the list or null, so the walk reaches it before the list ends.
            let definition: &'static Definition = unsafe { &*at };
            found.push((definition.registration.id.load(Relaxed), definition));
            at = definition.registration.next.load(Relaxed).cast_const();
        }
        *seen = newest;
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_gets_one_id_however_many_threads_ask() {
        static REGISTRY: Registry = Registry::new();
        static DEFINITIONS: [Definition; 8] = [const { Definition::new("d", "f", 1) }; 8];
        let ask = || DEFINITIONS.iter().map(|d| REGISTRY.id(d)).collect::<Vec<_>>();
        let answers = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4).map(|_| s.spawn(ask)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(answers.iter().all(|a| *a == answers[0]));
        let mut seen = ptr::null();
        let mut ids: Vec<_> = REGISTRY.since(&mut seen).into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        let mut expected = answers[0].clone();
        expected.sort_unstable();
        assert_eq!(ids, expected);
        assert!(REGISTRY.since(&mut seen).is_empty());
    }
}
