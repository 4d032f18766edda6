//! The cache of keyed values on a machine. A thread that stops forever in a hit, an insertion or a removal
//! blocks no other thread (hazard G10). In random schedules no thread gets another key's value (CACHE-2).
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use azekura_baselines::general_cache::{Cache, CacheOptions};
use azekura_buffer::{HandKind, Policy};
use azekura_sim::LineAllocator;
use azekura_sim::explore::{Scene, at_random, stop_everywhere_under};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: LineAllocator = LineAllocator;

/// The cache under test. Its hash function is the same in each run.
type Values = Cache<u64, u64, BuildHasherDefault<DefaultHasher>>;

const POLICIES: [Policy; 2] = [Policy::NbGclock(HandKind::Striped), Policy::TwoRings];
const ENTRIES: u64 = 4;
const KEYS: u64 = 8;

fn cache(policy: Policy) -> Arc<Values> {
    let options = CacheOptions { policy, ..CacheOptions::default() };
    let cache = Values::with(ENTRIES as usize, options, BuildHasherDefault::default()).unwrap();
    (0..ENTRIES).for_each(|key| drop(cache.insert(key, key).unwrap()));
    Arc::new(cache)
}

/// The work of a thread.
type Work = fn(&Values);

fn all_of_it(cache: &Values) {
    for key in 0..KEYS {
        // Fails without waiting while other threads borrow every entry.
        if let Ok(made) = cache.get_or_insert_with(key, || key) {
            assert_eq!(*made, key);
        }
        assert!(cache.get(&key).is_none_or(|found| *found == key));
        cache.remove(&(key / 2));
    }
}

fn scene(policy: Policy, first: Work) -> Scene {
    let cache = cache(policy);
    let mut scene = Scene::new();
    for thread in 0..3 {
        let cache = Arc::clone(&cache);
        scene.thread(move || if thread == 0 { first(&cache) } else { all_of_it(&cache) });
    }
    scene.check(move || {
        // All entries can be used again.
        let all: Vec<_> = (20..20 + ENTRIES).map_while(|key| cache.insert(key, key).ok()).collect();
        match all.len() as u64 {
            ENTRIES => Ok(()),
            others => Err(format!("{others} of {ENTRIES} entries are left")),
        }
    });
    scene
}

const WORK: [(&str, Work); 4] = [
    ("hits", |cache| (0..ENTRIES).for_each(|key| assert!(cache.get(&key).is_none_or(|found| *found == key)))),
    ("insertions", |cache| (10..13).for_each(|key| drop(cache.insert(key, key)))),
    ("replacements", |cache| (1..4).for_each(|key| drop(cache.insert(key, key)))),
    ("removals", |cache| (0..ENTRIES).for_each(|key| assert!(cache.remove(&key) || cache.len() < 9))),
];

#[test]
fn g10_a_stop_in_a_hit_an_insertion_or_a_removal_blocks_no_thread() {
    for policy in POLICIES {
        for (name, work) in WORK {
            let stopped = stop_everywhere_under(1..4, || scene(policy, work));
            let stopped = stopped.unwrap_or_else(|why| panic!("{name}, {policy:?}: {why}"));
            assert!(stopped.accesses >= 5, "{name}, {policy:?}: {stopped:?}");
        }
    }
}

#[test]
fn cache_2_every_thread_gets_the_value_of_its_key_in_random_schedules() {
    for policy in POLICIES {
        at_random(200, 1, || scene(policy, all_of_it))
            .unwrap_or_else(|failure| panic!("{policy:?}: {failure}"));
    }
}
