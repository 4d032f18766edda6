//! Small programs with one bottleneck each: `scenes SCENE`.
//!
//! `file`: threads sync a file under a mutex. `channel`: a channel of one place between a fast sender and a
//! slow receiver. `barrier`: four threads in phases, one is slow. `cache`: a map in an `RwLock`, of which all
//! readers are woken by each write. `park`: a thread that parks until another one has finished a step.
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::sync::{Barrier, Mutex, RwLock, mpsc};
use std::thread::{park, scope, sleep};
use std::time::Duration;

fn sleep_us(us: u64) {
    sleep(Duration::from_micros(us));
}

fn file() {
    let path = std::env::current_dir().unwrap().join(format!("scenes-{}", std::process::id()));
    let log = Mutex::new(File::create(&path).unwrap());
    std::fs::remove_file(path).unwrap();
    let append = || {
        for _ in 0..60 {
            let mut log = log.lock().unwrap();
            log.write_all(b"record").unwrap();
            log.sync_data().unwrap();
            sleep_us(1000); // also where a sync takes no time
        }
    };
    scope(|threads| (0..4).for_each(|_| _ = threads.spawn(append)));
}

fn channel() {
    let (sender, receiver) = mpsc::sync_channel(1);
    scope(|threads| {
        threads.spawn(move || (0..300).for_each(|n| sender.send(n).unwrap()));
        threads.spawn(move || receiver.iter().for_each(|_| sleep_us(2000)));
    });
}

fn barrier() {
    let phase = Barrier::new(4);
    scope(|threads| {
        for index in 0..4 {
            let phase = &phase;
            threads.spawn(move || {
                for _ in 0..100 {
                    sleep_us(if index == 0 { 6000 } else { 200 });
                    phase.wait();
                }
            });
        }
    });
}

fn cache() {
    let cache = RwLock::new(HashMap::new());
    scope(|threads| {
        for index in 0..4 {
            let cache = &cache;
            threads.spawn(move || {
                for round in 0..150 {
                    let key = round * 4 + index;
                    if !cache.read().unwrap().contains_key(&key) {
                        let mut cache = cache.write().unwrap();
                        sleep_us(1000); // loads the row
                        cache.insert(key, key);
                    }
                }
            });
        }
    });
}

fn steps() {
    scope(|threads| {
        let waiter = threads.spawn(|| (0..150).for_each(|_| park()));
        threads.spawn(move || {
            for _ in 0..200 {
                sleep_us(4000);
                waiter.thread().unpark();
            }
        });
    });
}

fn main() {
    match std::env::args().nth(1).unwrap_or_default().as_str() {
        "file" => file(),
        "channel" => channel(),
        "barrier" => barrier(),
        "cache" => cache(),
        "park" => steps(),
        scene => panic!("no scene {scene:?}"),
    }
}
