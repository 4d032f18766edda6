//! Threads of Rust's standard library with names of their own, and a mutex that all clerks need.
use std::sync::Mutex;
use std::thread::{Builder, JoinHandle, sleep};
use std::time::Duration;

static LEDGER: Mutex<u64> = Mutex::new(0);

fn clerk() {
    for _ in 0..40 {
        let mut entries = LEDGER.lock().expect("no clerk panics");
        *entries += 1;
        sleep(Duration::from_micros(500));
    }
}

fn main() {
    let start = |name: String, work: fn()| Builder::new().name(name).spawn(work).expect("a thread");
    let mut threads: Vec<JoinHandle<()>> = (0..4).map(|i| start(format!("clerk-{i}"), clerk)).collect();
    threads.push(start("guard".into(), || sleep(Duration::from_millis(5))));
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}
