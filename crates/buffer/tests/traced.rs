//! Invariant 8: the trace of a wait for a page that another thread reads, or for a frame, contains the
//! blocking thread.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::sync::{Arc, Condvar, Mutex};

use azekura_base::durable::NoLog;
use azekura_base::{PageBuf, PageId};
use azekura_buffer::{BufferPool, MemStore, PageStore, PoolOptions, StoreError};
use azekura_trace::event::EventKind;
use azekura_trace::{CpuTime, Options, ThreadTag, WaitKind, start, stop, thread_tag};

const PAGE: usize = 4096;

/// A store in which the first read lasts until a second read has begun.
#[derive(Debug)]
struct Meeting {
    pages: MemStore,
    /// The threads that read, in the order of their reads.
    readers: Mutex<Vec<ThreadTag>>,
    came: Condvar,
}

impl PageStore for Meeting {
    fn read_page(&self, id: PageId, out: &mut [u8]) -> Result<(), StoreError> {
        let mut readers = self.readers.lock().unwrap();
        readers.push(thread_tag());
        self.came.notify_all();
        drop(self.came.wait_while(readers, |readers| readers.len() < 2).unwrap());
        self.pages.read_page(id, out)
    }

    fn write_pages(&self, batch: &mut [(PageId, PageBuf)]) -> Result<(), StoreError> {
        self.pages.write_pages(batch)
    }

    fn sync(&self) -> Result<(), StoreError> {
        self.pages.sync()
    }
}

/// One thread waits for a while for the read of the other one before it reads too, so its wait has been
/// traced by then. If the system does not run the other thread meanwhile, the waiter is the first to read.
#[test]
fn a_wait_for_a_page_names_the_reading_thread() {
    let store =
        Arc::new(Meeting { pages: MemStore::new(PAGE), readers: Mutex::default(), came: Condvar::new() });
    let options = PoolOptions { page_size: PAGE, capacity_bytes: 8 * PAGE, ..PoolOptions::default() };
    let pool = BufferPool::new(options, Arc::clone(&store) as _, Arc::new(NoLog)).unwrap();
    start(Options { cpu: CpuTime::Off, ..Options::default() }).unwrap();
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| drop(pool.fix(PageId(7)).unwrap()));
        }
    });
    let trace = stop().unwrap().trace().unwrap();
    let [first, second] = store.readers.lock().unwrap()[..] else { panic!("two read") };
    let mut waits = Vec::new();
    for thread in &trace.threads {
        let begun = thread.events.iter().filter(|e| e.kind == EventKind::WaitBegin);
        let of_pages = begun.filter(|e| e.argument as u8 == WaitKind::PageIn as u8);
        waits.extend(of_pages.map(|e| (thread.tag, (e.argument >> 32) as u32)));
    }
    let [wait] = waits[..] else { panic!("one waits: {waits:?}") };
    assert!([(second.0, first.0), (first.0, second.0)].contains(&wait), "{wait:?} of {first:?}, {second:?}");
}
