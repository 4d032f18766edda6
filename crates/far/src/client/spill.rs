//! A local file as one more keeper of pages: page N lies at N times the page size.
//!
//! The file outlives no session (it is unlinked as soon as it is open), so it is never synced.

use super::{Keeper, Order, Sink, Verb};
use crate::digest::Digest;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};

#[derive(Default)]
struct Queue {
    orders: VecDeque<Order>,
    closed: bool,
}

struct Shared {
    name: String,
    index: usize,
    file: File,
    queue: Mutex<Queue>,
    moved: Condvar,
    sink: Weak<dyn Sink>,
}

/// Keeps pages in a file.
pub(crate) struct Spill {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Spill {
    pub(crate) fn create(path: &Path, index: usize, sink: Weak<dyn Sink>) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        std::fs::remove_file(path)?;
        let shared = Arc::new(Shared {
            name: format!("spill file {}", path.display()),
            index,
            file,
            queue: Mutex::default(),
            moved: Condvar::new(),
            sink,
        });
        let working = Arc::clone(&shared);
        let thread = thread::Builder::new().name("far-spill".into()).spawn(move || working.work())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }
}

impl Keeper for Spill {
    fn submit(&self, order: Order) -> Result<(), Order> {
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(order);
        }
        match order.verb {
            Verb::Get => queue.orders.push_front(order),
            Verb::Put => queue.orders.push_back(order),
        }
        drop(queue);
        self.shared.moved.notify_one();
        Ok(())
    }

    fn forget(&self, _page: u32) {} // its place is written again one day

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.moved.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(mut order) = self.next() {
            let done = self.carry_out(&mut order);
            let Some(sink) = self.sink.upgrade() else { return };
            match done {
                Ok(()) => sink.finished(self.index, order, None),
                // A full disk refuses pages; those it has it can still give.
                Err(error) if order.verb == Verb::Put => {
                    sink.finished(self.index, order, Some(error.to_string()))
                }
                Err(error) => {
                    let mut queue = self.lock();
                    queue.closed = true;
                    let mut orders = vec![order];
                    orders.extend(queue.orders.drain(..));
                    drop(queue);
                    return sink.lost(self.index, error.to_string(), orders);
                }
            }
        }
    }

    fn next(&self) -> Option<Order> {
        let mut queue = self.lock();
        loop {
            if let Some(order) = queue.orders.pop_front() {
                return Some(order);
            }
            if queue.closed {
                return None;
            }
            queue = self.moved.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carry_out(&self, order: &mut Order) -> io::Result<()> {
        let offset = u64::from(order.page) * order.bytes as u64;
        match order.verb {
            Verb::Put => self.file.write_all_at(order.source(), offset),
            Verb::Get => {
                self.file.read_exact_at(order.target(), offset)?;
                if Digest::of(order.source()) == order.digest {
                    return Ok(());
                }
                let why = format!("page {} came back with other bytes than it left with", order.page);
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
        }
    }
}
