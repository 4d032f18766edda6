//! G10 for the cache: a thread that stalls forever between any two steps blocks no other thread; and the
//! cache is consistent if the thread continues.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::sync::Arc;

use super::{Cache, CacheOptions};
use crate::stall::{Gate, Point, stalling_at};

/// Stops `work` at each of its points in turn, while another thread uses all keys.
fn others_go_on(work: impl Fn(&Cache<u64, u64>) + Sync) -> Vec<&'static str> {
    let mut places = Vec::new();
    for n in 0.. {
        let cache: Cache<u64, u64> = Cache::with(4, CacheOptions::default(), Default::default()).unwrap();
        (0..4).for_each(|key| drop(cache.insert(key, key).unwrap()));
        let gate = Arc::new(Gate::default());
        let stopped_at = std::thread::scope(|s| {
            s.spawn(|| stalling_at(Point::Nth(n), &gate, || work(&cache)));
            let stopped_at = gate.stopped_at();
            let wrong = (0..10).cycle().take(60).find(|&key| {
                let made = cache.get_or_insert_with(key, || key).map(|value| *value);
                drop(cache.insert(key, key));
                let found = cache.get(&key).map(|value| *value);
                cache.remove(&(key / 2));
                (made, found) != (Ok(key), Some(key))
            });
            gate.open(); // before anything is asserted: a stopped thread would keep the scope from ending
            assert_eq!(wrong, None, "{stopped_at:?}");
            stopped_at
        });
        // Every frame is found again.
        let all: Vec<_> = (20..24).map(|key| cache.insert(key, key).unwrap()).collect();
        assert_eq!(all.len(), 4, "{stopped_at:?}");
        let Some(place) = stopped_at else { break };
        places.push(place);
    }
    places
}

#[test]
fn g10_a_stopped_insertion_removal_or_hit_holds_nobody_up() {
    let evicting = others_go_on(|cache| drop(cache.insert(11, 11)));
    assert!(evicting.len() >= 6, "{evicting:?}");
    let replacing = others_go_on(|cache| drop(cache.insert(3, 3)));
    assert!(replacing.contains(&"found an entry to replace"), "{replacing:?}");
    assert!(others_go_on(|cache| assert!(cache.get(&3).is_none_or(|value| *value == 3))).len() >= 2);
    assert!(others_go_on(|cache| assert!(cache.remove(&3) || cache.get(&3).is_none())).len() >= 4);
}

/// | stale | loser | this thread |
/// |---|---|---|
/// | finds frame 0 in the table | | |
/// | | | removes the key; frame 0 is free |
/// | | publishes frame 0 with value 2 | |
/// | | | frame 1, value 3, is mapped |
/// | pins frame 0 | | |
/// | *must not return it* | | |
#[test]
fn cache_2_a_value_whose_insertion_lost_is_seen_by_nobody() {
    let cache: Cache<u64, u64> = Cache::new(2);
    drop(cache.insert(7, 1).unwrap());
    let (stale, loser) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    std::thread::scope(|s| {
        let stale_thread = s.spawn(|| {
            stalling_at(Point::Named("found a frame in the table"), &stale, || {
                cache.get(&7).map(|value| *value)
            })
        });
        assert!(stale.stopped_at().is_some());
        assert!(cache.remove(&7));
        let loser_thread = s.spawn(|| {
            stalling_at(Point::Named("published an entry"), &loser, || {
                *cache.get_or_insert_with(7, || 2).unwrap()
            })
        });
        assert!(loser.stopped_at().is_some());
        let ours = *cache.get_or_insert_with(7, || 3).unwrap();
        stale.open();
        let seen = stale_thread.join().unwrap();
        loser.open(); // before anything is asserted: a stopped thread would keep the scope from ending
        assert_eq!((ours, seen, loser_thread.join().unwrap()), (3, Some(3), 3));
    });
    assert_eq!(cache.get(&7).map(|value| *value), Some(3));
}
