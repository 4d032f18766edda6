//! One primitive of Rust's standard library under one load of primitives.c: `primitives PRIMITIVE LOAD`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock, mpsc};
use std::thread;
use std::time::Duration;

fn sleep_us(us: u64) {
    thread::sleep(Duration::from_micros(us));
}

#[derive(Default)]
struct Locks {
    mutex: Mutex<u64>,
    rwlock: RwLock<u64>,
    is_taken: Mutex<bool>,
    freed: Condvar,
}

fn turn(primitive: &str, locks: &Locks) {
    match primitive {
        "mutex" => {
            let mut held = locks.mutex.lock().unwrap();
            sleep_us(1000);
            *held += 1;
        }
        "rwlock" => {
            let mut held = locks.rwlock.write().unwrap();
            sleep_us(1000);
            *held += 1;
        }
        "condvar" => {
            let mut taken = locks.is_taken.lock().unwrap();
            while *taken {
                taken = locks.freed.wait(taken).unwrap();
            }
            *taken = true;
            drop(taken);
            sleep_us(1000);
            *locks.is_taken.lock().unwrap() = false;
            locks.freed.notify_one();
        }
        other => panic!("no primitive {other}"),
    }
    sleep_us(50);
}

fn pool(primitive: &str) {
    let (send, receive) = mpsc::channel::<u64>();
    let receive = Arc::new(Mutex::new(receive));
    let queue = Arc::new((Mutex::new(0_i64), Condvar::new()));
    // The channel has one consumer: several would wait for the lock around its receiver.
    let threads = if primitive == "mpsc" { 1 } else { 4 };
    let (is_mpsc, all) = (primitive == "mpsc", AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..threads {
            let (receive, queue, all) = (receive.clone(), queue.clone(), &all);
            scope.spawn(move || {
                if is_mpsc {
                    let receive = receive.lock().unwrap();
                    while receive.recv().is_ok() {
                        // Relaxed: the counter orders no other data.
                        all.fetch_add(1, Ordering::Relaxed);
                    }
                    return;
                }
                loop {
                    let mut jobs = queue.0.lock().unwrap();
                    while *jobs == 0 {
                        jobs = queue.1.wait(jobs).unwrap();
                    }
                    if *jobs < 0 {
                        return;
                    }
                    *jobs -= 1;
                }
            });
        }
        for job in 0..50 {
            sleep_us(10_000);
            send.send(job).unwrap();
            *queue.0.lock().unwrap() += 1;
            queue.1.notify_one();
        }
        drop(send);
        *queue.0.lock().unwrap() = -1;
        queue.1.notify_all();
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, primitive, load] = &arguments[..] else { panic!("usage: primitives PRIMITIVE LOAD") };
    if load == "pool" {
        return pool(primitive);
    }
    let locks: Vec<Locks> = (0..4).map(|_| Locks::default()).collect();
    thread::scope(|scope| {
        for index in 0..4 {
            let locks = &locks[if load == "contended" { 0 } else { index }];
            let work = move || (0..150).for_each(|_| turn(primitive, locks));
            // A thread with a name is identified by it, others by their function.
            let name = if primitive == "mutex" { format!("teller-{index}") } else { String::new() };
            let thread = thread::Builder::new();
            let thread = if name.is_empty() { thread } else { thread.name(name) };
            thread.spawn_scoped(scope, work).unwrap();
        }
    });
}
