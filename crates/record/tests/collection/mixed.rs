//! Small programs with one bottleneck each: `mixed SCENE`.
//!
//! `print`: threads that print while they hold the standard output. `pool`: six threads take two connections
//! from a list, with a condition variable. `once`: threads wait for the first value of a `OnceLock`. `lazy`:
//! threads compute without a lock. `spawn`: the main thread waits for short threads. `fair`: a ticket lock
//! made of a mutex and a condition variable. `sharded`: four threads, each with a mutex of its own.
use std::io::Write;
use std::sync::{Condvar, Mutex, OnceLock};
use std::thread::{scope, sleep};
use std::time::Duration;

fn sleep_us(us: u64) {
    sleep(Duration::from_micros(us));
}

fn in_threads(count: usize, work: impl Fn(usize) + Sync) {
    let work = &work;
    scope(|threads| (0..count).for_each(|index| _ = threads.spawn(move || work(index))));
}

fn print() {
    in_threads(5, |_| {
        for _ in 0..60 {
            let mut output = std::io::stdout().lock();
            writeln!(output, "a line").unwrap();
            sleep_us(1500);
        }
    });
}

struct Pool {
    free: Mutex<Vec<u32>>,
    returned: Condvar,
}

impl Pool {
    fn take(&self) -> u32 {
        let mut free = self.free.lock().unwrap();
        loop {
            match free.pop() {
                Some(connection) => return connection,
                None => free = self.returned.wait(free).unwrap(),
            }
        }
    }

    fn give(&self, connection: u32) {
        self.free.lock().unwrap().push(connection);
        self.returned.notify_one();
    }
}

fn pool() {
    let pool = Pool { free: Mutex::new(vec![1, 2]), returned: Condvar::new() };
    in_threads(6, |_| {
        for _ in 0..80 {
            let connection = pool.take();
            sleep_us(3000);
            pool.give(connection);
            sleep_us(200);
        }
    });
}

fn once() {
    let value = OnceLock::new();
    in_threads(4, |_| {
        value.get_or_init(|| sleep_us(600_000));
        sleep_us(20_000);
    });
}

fn compute(steps: u64) -> u64 {
    (0..steps).fold(1, |x: u64, _| std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005) + 1))
}

fn lazy() {
    let total = Mutex::new(0);
    in_threads(4, |_| {
        for _ in 0..100 {
            let part = compute(5_000_000);
            *total.lock().unwrap() ^= part;
        }
    });
}

fn spawn() {
    for _ in 0..100 {
        in_threads(3, |_| sleep_us(4000));
    }
}

struct Fair {
    tickets: Mutex<(u64, u64)>,
    served: Condvar,
}

impl Fair {
    fn lock(&self) {
        let mut tickets = self.tickets.lock().unwrap();
        let own = tickets.0;
        tickets.0 += 1;
        while tickets.1 != own {
            tickets = self.served.wait(tickets).unwrap();
        }
    }

    fn unlock(&self) {
        self.tickets.lock().unwrap().1 += 1;
        self.served.notify_all();
    }
}

fn fair() {
    let lock = Fair { tickets: Mutex::new((0, 0)), served: Condvar::new() };
    in_threads(5, |_| {
        for _ in 0..60 {
            lock.lock();
            sleep_us(1500);
            lock.unlock();
            sleep_us(300);
        }
    });
}

fn sharded() {
    let shards: Vec<Mutex<u64>> = (0..4).map(|_| Mutex::new(0)).collect();
    in_threads(4, |index| {
        for _ in 0..300 {
            let mut shard = shards[index].lock().unwrap();
            *shard += 1;
            sleep_us(2000);
        }
    });
}

fn main() {
    match std::env::args().nth(1).unwrap_or_default().as_str() {
        "print" => print(),
        "pool" => pool(),
        "once" => once(),
        "lazy" => lazy(),
        "spawn" => spawn(),
        "fair" => fair(),
        "sharded" => sharded(),
        scene => panic!("no scene {scene:?}"),
    }
}
