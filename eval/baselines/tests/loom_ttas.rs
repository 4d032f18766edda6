//! TTAS-1 in every interleaving of two threads.
#![cfg(loom)]

use azekura_baselines::TtasLock;
use loom::sync::Arc;

fn add_one(lock: &TtasLock<u32>) -> bool {
    lock.try_lock().map(|mut value| *value += 1).is_some()
}

#[test]
fn one_at_a_time_and_each_sees_the_last() {
    loom::model(|| {
        let lock = Arc::new(TtasLock::new(0));
        let other = {
            let lock = Arc::clone(&lock);
            loom::thread::spawn(move || add_one(&lock))
        };
        let mine = add_one(&lock);
        let others = other.join().unwrap();
        assert_eq!(*lock.try_lock().unwrap(), u32::from(mine) + u32::from(others));
        assert!(mine || others, "a lock refused to one is held by the other");
    });
}
