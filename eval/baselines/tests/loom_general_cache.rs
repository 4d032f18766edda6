//! Models of the general cache with few forced switches. An entry is read only under its own key, and never
//! while it is stored or removed (CACHE-1). Two threads that miss on one key receive the same value
//! (CACHE-2).
#![cfg(loom)]
#![expect(clippy::unwrap_used, reason = "a failed step ends the model")]

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use azekura_base::sync::{Arc, thread};
use azekura_baselines::general_cache::{Cache, CacheOptions};
use azekura_buffer::{HandKind, Policy};

/// Runs a model with at most `switches` forced switches and counts its schedules; fewer than `at_least` are a
/// failure.
fn model(name: &str, switches: usize, at_least: usize, run: impl Fn() + Sync + Send + 'static) {
    let schedules = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&schedules);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(switches);
    builder.max_branches = 100_000;
    builder.check(move || {
        counted.fetch_add(1, SeqCst);
        run();
    });
    let schedules = schedules.load(SeqCst);
    println!("{name}: {schedules} schedules");
    assert!(schedules >= at_least, "{name}: only {schedules} schedules");
}

/// A hasher that is the same in every run of a model.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {}
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

type Modeled = Cache<u64, u64, BuildHasherDefault<Identity>>;

fn cache(capacity: usize) -> Arc<Modeled> {
    let options = CacheOptions { policy: Policy::NbGclock(HandKind::Atomic), ..CacheOptions::default() };
    Arc::new(Cache::with(capacity, options, Default::default()).unwrap())
}

fn spawn<T: 'static>(
    cache: &Arc<Modeled>,
    run: impl FnOnce(&Modeled) -> T + 'static,
) -> thread::JoinHandle<T> {
    let cache = Arc::clone(cache);
    thread::spawn(move || run(&cache))
}

#[test]
fn cache_1_a_hit_beside_an_eviction_reads_its_own_entry() {
    model("get, insert into the only frame", 3, 1_000, || {
        let cache = cache(1);
        drop(cache.insert(1, 10).unwrap());
        let other = spawn(&cache, |cache| drop(cache.insert(2, 20)));
        if let Some(found) = cache.get(&1) {
            assert_eq!((*found.key(), *found), (1, 10));
        }
        other.join().unwrap();
        assert!(cache.get(&1).is_none_or(|found| *found == 10));
    });
}

#[test]
fn cache_2_two_that_miss_on_one_key_get_one_value() {
    model("two misses on one key", 3, 5_000, || {
        let cache = cache(2);
        let other = spawn(&cache, |cache| {
            let value = *cache.get_or_insert_with(7, || 1).unwrap();
            assert_eq!(*cache.get(&7).unwrap(), value);
        });
        let value = *cache.get_or_insert_with(7, || 2).unwrap();
        other.join().unwrap();
        assert_eq!(*cache.get(&7).unwrap(), value, "what one was given stays");
    });
}

#[test]
fn a_replacement_beside_a_removal_and_a_hit_leaves_the_new_value_or_none() {
    model("replace, remove", 3, 5_000, || {
        let cache = cache(2);
        drop(cache.insert(7, 1).unwrap());
        let other = spawn(&cache, |cache| {
            cache.remove(&7);
        });
        drop(cache.insert(7, 2).unwrap());
        let seen = cache.get(&7).map(|found| *found);
        assert_ne!(seen, Some(1), "replaced before we looked");
        other.join().unwrap();
        assert_ne!(cache.get(&7).map(|found| *found), Some(1));
    });
}

#[test]
fn of_two_removals_of_one_entry_one_succeeds() {
    model("two removals", 3, 500, || {
        let cache = cache(2);
        drop(cache.insert(7, 1).unwrap());
        let other = spawn(&cache, |cache| cache.remove(&7));
        let ours = cache.remove(&7);
        assert!(ours != other.join().unwrap());
    });
}
