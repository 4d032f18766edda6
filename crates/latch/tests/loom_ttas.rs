//! TTAS-1 in every interleaving of two threads.
#![cfg(loom)]

use azekura_latch::TtasLock;
use loom::sync::Arc;

#[test]
fn one_at_a_time_and_each_sees_the_last() {
    loom::model(|| {
        let lock = Arc::new(TtasLock::new(0));
        let other = {
            let lock = Arc::clone(&lock);
            loom::thread::spawn(move || {
                if let Some(mut value) = lock.try_lock() {
                    *value += 1;
                }
            })
        };
        let mine = lock.try_lock().map(|mut value| *value += 1).is_some();
        other.join().unwrap();
        let value = *lock.try_lock().unwrap();
        assert!(value == 1 && !mine || value == 2 || value == 1 && mine);
    });
}
