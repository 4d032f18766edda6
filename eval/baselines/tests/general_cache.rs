//! The general cache under concurrent insertions, replacements, removals and evictions: a key has its own
//! value or none, borrowed values stay, and every value is dropped once.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use azekura_baselines::general_cache::{Cache, CacheOptions, Full, WhenAllPinned};
use azekura_buffer::{HandKind, Policy, PoolError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A hasher that gives all keys the same hash.
#[derive(Default)]
struct Constant;

impl Hasher for Constant {
    fn finish(&self) -> u64 {
        42
    }
    fn write(&mut self, _bytes: &[u8]) {}
}

const POLICIES: [Policy; 2] = [Policy::TwoRings, Policy::NbGclock(HandKind::Striped)];

fn with_policy<K: std::hash::Hash + Eq, V>(capacity: usize, policy: Policy) -> Cache<K, V> {
    Cache::with(capacity, CacheOptions { policy, ..CacheOptions::default() }, Default::default()).unwrap()
}

#[test]
fn inserted_keys_are_found_and_removed_keys_are_not() {
    let cache: Cache<u32, String> = Cache::new(100);
    for key in 0..100 {
        drop(cache.insert(key, key.to_string()).unwrap());
    }
    assert_eq!(cache.len(), 100);
    assert!((0..100).all(|key| *cache.get(&key).unwrap() == key.to_string()));
    assert!(cache.remove(&7) && !cache.remove(&7) && cache.get(&7).is_none());
    assert_eq!((cache.len(), cache.evictions()), (99, 0));
    assert_eq!(*cache.get_or_insert_with(7, || "seven".into()).unwrap(), "seven");
    assert_eq!(*cache.get_or_insert_with(7, || unreachable!("it is there")).unwrap(), "seven");
}

#[test]
fn a_borrowed_value_stays_when_its_key_is_removed_or_gets_another() {
    for policy in POLICIES {
        let cache = with_policy(4, policy);
        let old = cache.insert("a", 1).unwrap();
        let new = cache.insert("a", 2).unwrap();
        assert_eq!((*old, *new, cache.get("a").map(|v| *v)), (1, 2, Some(2)));
        assert!(cache.remove("a"));
        for key in ["b", "c", "d", "e", "f"] {
            drop(cache.insert(key, 0).unwrap());
        }
        assert_eq!((*old, *new, cache.get("a").map(|v| *v)), (1, 2, None));
        drop((old, new));
        // The frames of both entries can be used again.
        let all: Vec<_> = ["g", "h", "i", "j"].map(|key| cache.insert(key, 9).unwrap()).into();
        assert_eq!(all.len(), 4);
    }
}

#[test]
fn g6_when_all_entries_are_borrowed_an_insertion_gives_key_and_value_back() {
    let cache = Cache::new(2);
    let held = (cache.insert(1, "x".to_owned()).unwrap(), cache.insert(2, "y".to_owned()).unwrap());
    let Full { key, value, entries } = cache.insert(3, "z".to_owned()).unwrap_err();
    assert_eq!((key, value.as_str(), entries), (3, "z", 2));
    assert!(cache.get_or_insert_with(3, || "z".into()).is_err());
    drop(held);
    assert_eq!(*cache.insert(3, value).unwrap(), "z");
}

#[test]
fn g6_a_waiting_cache_waits_until_a_borrow_ends() {
    let options = CacheOptions { when_all_pinned: WhenAllPinned::Wait, ..CacheOptions::default() };
    let cache: Cache<u32, u32> = Cache::with(1, options, Default::default()).unwrap();
    let held = cache.insert(1, 1).unwrap();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| *cache.insert(2, 2).unwrap());
        std::thread::sleep(Duration::from_millis(20)); // time for several attempts, which must all fail
        assert!(!waiting.is_finished(), "the only entry is borrowed");
        drop(held);
        assert_eq!(waiting.join().unwrap(), 2);
    });
}

#[test]
fn keys_with_one_hash_replace_each_other_and_never_pass_for_each_other() {
    let cache: Cache<u32, u32, BuildHasherDefault<Constant>> =
        Cache::with(8, CacheOptions::default(), Default::default()).unwrap();
    for key in 0..50 {
        drop(cache.insert(key, key * 2).unwrap());
        assert_eq!(cache.get(&key).map(|value| *value), Some(key * 2));
        assert!(key == 0 || cache.get(&(key - 1)).is_none());
        assert!(!cache.remove(&(key + 1)));
        assert_eq!(*cache.get_or_insert_with(key + 100, || 7).unwrap(), 7);
        assert!(cache.get(&key).is_none());
    }
}

#[test]
fn a_capacity_out_of_bounds_is_refused() {
    for capacity in [0, 1 << 24] {
        let cache = Cache::<u8, u8>::with(capacity, CacheOptions::default(), Default::default());
        assert!(matches!(cache, Err(PoolError::Capacity { frames, .. }) if frames == capacity));
    }
}

#[test]
fn a_hit_on_a_hot_entry_writes_its_pin_twice_and_nothing_else_that_is_shared() {
    let cache: Cache<u32, u32> = Cache::new(16);
    drop(cache.insert(1, 1).unwrap());
    (0..20).for_each(|_| drop(cache.get(&1)));
    let before = azekura_buffer::count::on_this_thread();
    (0..100).for_each(|_| drop(cache.get(&1)));
    assert_eq!((azekura_buffer::count::on_this_thread() - before).shared_writes, 200);
    (0..100).for_each(|_| drop(cache.get(&2)));
    assert_eq!(
        (azekura_buffer::count::on_this_thread() - before).shared_writes,
        200,
        "a miss writes nothing"
    );
}

#[test]
fn making_a_value_may_panic_and_nothing_is_lost() {
    let cache: Cache<u32, u32> = Cache::new(2);
    for _ in 0..10 {
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = cache.get_or_insert_with(1, || panic!("injected"));
        }));
        assert!(made.is_err() && cache.get(&1).is_none());
    }
    let both = (cache.insert(1, 1).unwrap(), cache.insert(2, 2).unwrap());
    assert_eq!((*both.0, *both.1), (1, 2));
}

/// A value with its key, which counts the live values.
struct Counted {
    key: u64,
    version: u64,
    alive: Arc<AtomicU64>,
}

impl Counted {
    fn new(key: u64, version: u64, alive: &Arc<AtomicU64>) -> Self {
        alive.fetch_add(1, SeqCst);
        Self { key, version, alive: Arc::clone(alive) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        assert_ne!(self.alive.fetch_sub(1, SeqCst), 0, "dropped twice");
    }
}

/// Each key has one writer, which stores the last version that it has finished. After that, no thread may
/// read an older version, or a value of a removed key.
#[test]
fn under_threads_a_key_has_its_last_value_or_none_and_every_value_is_dropped_once() {
    const THREADS: u64 = 4;
    for (seed, capacity, policy) in
        [(1, 3, Policy::TwoRings), (2, 40, Policy::TwoRings), (3, 40, Policy::NbGclock(HandKind::Atomic))]
    {
        let alive = Arc::new(AtomicU64::new(0));
        let keys = capacity as u64 * 3;
        let finished: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
        let options = CacheOptions { policy, when_all_pinned: WhenAllPinned::Wait };
        let cache: Cache<u64, Counted> = Cache::with(capacity, options, Default::default()).unwrap();
        std::thread::scope(|s| {
            for thread in 0..THREADS {
                let (cache, finished, alive) = (&cache, &finished, &alive);
                s.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(seed * 100 + thread);
                    for version in 1..8_000 {
                        let key = rng.random_range(0..keys);
                        let least = finished[key as usize].load(SeqCst);
                        match rng.random_range(0..10) {
                            0..3 if key % THREADS == thread => {
                                drop(cache.insert(key, Counted::new(key, version, alive)));
                                finished[key as usize].store(version, SeqCst);
                            }
                            3 if key % THREADS == thread => {
                                cache.remove(&key);
                                finished[key as usize].store(version, SeqCst);
                                assert!(
                                    cache.get(&key).is_none(),
                                    "seed {seed}: removed, and only we insert it"
                                );
                            }
                            _ => {
                                if let Some(found) = cache.get(&key) {
                                    assert_eq!((found.key, *found.key()), (key, key), "seed {seed}");
                                    assert!(found.version >= least, "seed {seed}: an old value came back");
                                }
                            }
                        }
                    }
                });
            }
        });
        assert!(alive.load(SeqCst) <= capacity as u64, "seed {seed}");
        assert!(cache.evictions() > 100, "seed {seed}");
        drop(cache);
        assert_eq!(alive.load(SeqCst), 0, "seed {seed}: a value was never dropped");
    }
}

#[test]
fn threads_that_miss_on_one_key_get_one_value() {
    let cache: Cache<u64, u64> = Cache::new(1_000);
    for round in 0..200 {
        let values: Vec<u64> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..3)
                .map(|n| {
                    let cache = &cache;
                    s.spawn(move || *cache.get_or_insert_with(round, || round * 10 + n).unwrap())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(values.windows(2).all(|two| two[0] == two[1]), "{values:?}");
    }
}
