//! The pager: handles page faults, pages out to replicas, and pages in.
//!
//! One mutex protects the state of all pages. It is acquired by the fault thread, which also receives the
//! replies of the servers, by the replicas' threads, by the maintenance thread, and by the program's threads
//! when they free memory. No thread touches the region while it holds the mutex, so no thread can wait for
//! itself.
//!
//! | module | content |
//! |---|---|
//! | `state` | states of a page |
//! | `core` | state transitions: faults; submodules for arrivals, departures and lost replicas |
//! | `frames` | free frames |
//! | `prefetch` | prediction of the next pages |
//! | `fork` | the pager of a child process |
//! | `maintenance` | timers, attempts to reconnect lost servers |
//!
//! - **PAGER-1** The number of local pages (`Open`, `Coming`, `Staged`, `Resident`, `Armed`) is at most
//!   `limit`, and the number of pages being paged out is at most `slack`. Their sum is the program's budget,
//!   and the split adapts to the program (`core::slack`). When `limit` shrinks (UNMANAGED-2), the excess
//!   pages are paged out before another page is paged in.
//! - **PAGER-2** Only one mutable copy of a page's bytes exists, in the region. Before the bytes are dropped
//!   from the region or from a frame, one of three conditions holds: a replica has bytes with the same
//!   digest, the compressed tier has the bytes (`core::tier`), or all bytes are zero.
//! - **PAGER-3** A page without any holder is `Lost`, and ends the program when it is touched. It never reads
//!   as other bytes.
//! - **PAGER-4** A fault that waits for a frame is handled when a page has been paged out or in. While it
//!   waits, at least one page is in transfer.
//! - **PAGER-5** Once `thin_pages` is 0 with all servers connected, it stays 0 until a server is lost. No
//!   frame with a page's bytes is freed while fewer servers have the page than configured and another one is
//!   available. So after that the loss of any one server loses no page.
//! - **PAGER-6** A panic of a thread of this layer, or an access to a lost page, ends the process at once, so
//!   no thread waits forever. (The kernel's `UFFDIO_POISON` for lost pages is not used: it would raise a
//!   signal without a message.)

mod core;
mod fork;
mod frames;
mod maintenance;
mod prefetch;
mod state;

use crate::client::{Order, Replica, Sink, Verb};
use crate::error::{Loss, ReserveError};
use crate::fault::{Backend, Event};
use crate::needed;
use crate::poll;
use crate::signals_blocked::SignalsBlocked;
use crate::stats::{FarStats, MoreMemory};
use core::Core;
pub(crate) use core::Plan;
use core::calibration::Lap;
use core::replicas::LiveServers;
pub(crate) use core::slack::least as least_slack;
pub(crate) use fork::Frozen;
pub(crate) use maintenance::Server;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which the fault thread checks that its descriptors are open. If the program closes a
/// descriptor while the thread waits on it, the thread is not woken.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The pager of one region; see the [module](self).
pub(crate) struct Pager {
    backend: Arc<dyn Backend>,
    core: Mutex<Core>,
    /// Notified when the pager is closed.
    ends: Condvar,
    /// Addresses and options for reconnecting lost servers; set when the pager has started.
    servers: OnceLock<Arc<[Server]>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Bytes of pages for which the servers have reserved memory.
    reserved: Mutex<u64>,
    /// Set if the replicas or their streams have changed since the fault thread read them.
    changed: AtomicBool,
}

/// Divisor of the requested size: a reservation requests this part in addition, so that few allocations wait
/// for the servers. The addition is limited to `MOST_AHEAD` bytes.
const AHEAD: u64 = 8;
const MOST_AHEAD: u64 = 64 << 20;

impl Pager {
    /// Creates a pager that is not started and has no replicas.
    pub(crate) fn new(backend: Arc<dyn Backend>, plan: Plan) -> Arc<Self> {
        let core = Mutex::new(Core::new(Arc::clone(&backend), plan));
        Arc::new(Self {
            backend,
            core,
            ends: Condvar::new(),
            servers: OnceLock::new(),
            threads: Mutex::default(),
            reserved: Mutex::default(),
            changed: AtomicBool::new(false),
        })
    }

    /// Makes the servers reserve memory for `bytes` bytes of pages in total.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), ReserveError> {
        // Declared first, so that the signals stay blocked until the lock is released (SIGNAL-1).
        let _blocked = SignalsBlocked::new();
        let mut reserved = self.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes <= *reserved {
            return Ok(());
        }
        let LiveServers { servers, share } = self.lock().live_servers();
        let ask = |bytes: u64| {
            servers.iter().try_for_each(|server| {
                let refused = |why| ReserveError { server: server.name().to_owned(), why };
                server.reserve(share(bytes)).map_err(refused)
            })
        };
        let ahead = bytes + (bytes / AHEAD).min(MOST_AHEAD);
        *reserved = if ask(ahead).is_ok() {
            ahead
        } else {
            ask(bytes)?;
            bytes
        };
        Ok(())
    }

    pub(crate) fn sink(self: &Arc<Self>) -> Weak<dyn Sink> {
        let this = Arc::clone(self);
        let this: Arc<dyn Sink> = this;
        Arc::downgrade(&this)
    }

    /// Sets the replicas and starts the threads, which handle faults.
    pub(crate) fn start(
        self: &Arc<Self>,
        replicas: Vec<Arc<dyn Replica>>,
        servers: Vec<Server>,
    ) -> std::io::Result<()> {
        self.lock().begin(replicas, servers.len());
        self.run(servers.into())
    }

    /// Starts the threads.
    fn run(self: &Arc<Self>, servers: Arc<[Server]>) -> std::io::Result<()> {
        let _ = self.servers.set(Arc::clone(&servers));
        let faulting = Arc::clone(self);
        let maintained = Arc::clone(self);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.push(needed::spawn("far-fault", move || faulting.answer())?);
        threads.push(needed::spawn("far-maintenance", move || maintained.maintenance(&servers))?);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the fault thread, which handles faults and receives the servers' replies. A miss takes one thread
    /// less than with a thread for replies.
    fn answer(&self) {
        let mut replicas = self.lock().replicas();
        let mut streams: Vec<libc::pollfd> = Vec::new();
        loop {
            streams.clear();
            streams.extend(replicas.iter().map(|replica| poll::readable(replica.stream().unwrap_or(-1))));
            let event = self.backend.next_fault(Some(CHECK_INTERVAL), &mut streams);
            for (stream, replica) in streams.iter().zip(&replicas) {
                if stream.revents != 0 {
                    replica.receive();
                }
            }
            match event {
                Ok(Event::Fault(fault)) => self.lock().answer(fault),
                Ok(Event::Nothing) => {}
                Ok(Event::Stopped) => return,
                Err(error) => self.lock().stop_program(&Loss::Faults { source: error }),
            }
            // Acquire: pairs with Release in `streams_changed`. Relaxed: a hint; after `interrupt` this
            // thread looks again.
            if self.changed.load(Relaxed) && self.changed.swap(false, Acquire) {
                replicas = self.lock().replicas();
            }
        }
    }

    /// Makes the fault thread wait for the streams of the present replicas.
    fn streams_changed(&self) {
        self.changed.store(true, Release); // pairs with Acquire in `answer`
        self.backend.interrupt();
    }

    /// Measures the cost of a fault without the time of its handler, for policies that use this cost. No
    /// thread uses the region yet. Takes some hundred microseconds.
    pub(crate) fn calibrate(&self) {
        const LAPS: usize = 9;
        let first = self.backend.base();
        let touch = || {
            // SAFETY: the region's first byte can be read as long as the region exists, and no thread writes
            // it now.
            let _ = unsafe { first.read_volatile() };
        };
        let before = self.lock().begin_calibration();
        touch();
        let mut laps = [Lap::default(); LAPS];
        for done in &mut laps {
            let lap = self.lock().begin_lap();
            let began = Instant::now();
            touch();
            let whole = began.elapsed();
            // The fault thread holds the lock until it has recorded all times of the fault.
            *done = self.lock().end_lap(lap, whole);
        }
        self.lock().end_calibration(before, &mut laps);
    }

    pub(crate) fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }

    pub(crate) fn frames(&self) -> std::ops::Range<usize> {
        let at = self.backend.frame(0) as usize;
        at..at + self.lock().frame_bytes()
    }

    pub(crate) fn stats(&self) -> FarStats {
        self.lock().stats()
    }

    pub(crate) fn more_memory(&self) -> MoreMemory {
        self.lock().more_memory()
    }

    /// Discards these pages: they read as zeros, and no replica stores them.
    pub(crate) fn discard(&self, first: u32, count: u32) {
        self.lock().discard(first, count);
    }

    /// Passes pages to the kernel permanently, with their bytes. The caller holds no lock, because this call
    /// touches pages that are paged out.
    pub(crate) fn unmanage(&self, pages: std::ops::Range<u32>) {
        loop {
            let remote = {
                let _blocked = SignalsBlocked::new();
                self.lock().unmanage(pages.clone())
            };
            let Some(page) = remote else { return };
            // SAFETY: the page belongs to the region, which can be read as long as it exists. The page is
            // managed, so the program has set no protection on it.
            let _ = unsafe { self.backend.address(page).read_volatile() };
        }
    }

    /// Counts the unmanaged pages that have memory (UNMANAGED-3).
    pub(crate) fn count_unmanaged(&self) {
        if self.backend.unmanaged().len() > 0 {
            let page_bytes = self.lock().page_bytes();
            let pages = self.backend.unmanaged_bytes(page_bytes).div_ceil(page_bytes);
            let mut core = self.lock();
            core.count_unmanaged(pages);
            core.serve_waiting();
        }
    }

    /// Commits pages, or empties and reserves them.
    pub(crate) fn set_reserved(&self, pages: std::ops::Range<u32>, is_reserved: bool) {
        let first = pages.start;
        let done = if is_reserved {
            // Under one lock: otherwise a fault on a page beside them could fill the emptied pages again.
            let mut core = self.lock();
            core.discard(first, pages.end - first);
            self.backend.set_reserved(pages, true)
        } else {
            self.backend.set_reserved(pages, false)
        };
        if let Err(source) = done {
            let how = if is_reserved { "reserved" } else { "committed" };
            self.lock().stop_program(&Loss::Map { page: first, how, source });
        }
    }

    /// Ends all threads. The region must not be accessed any more.
    pub(crate) fn close(&self) {
        self.backend.stop();
        let replicas = self.lock().end();
        self.ends.notify_all();
        for replica in replicas {
            replica.close();
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Sink for Pager {
    fn finished(&self, replica: usize, run: Vec<Order>, refused: Option<String>) {
        let mut core = self.lock();
        if core.is_closing() {
            return; // `close` has taken the replicas, and no thread waits for a page.
        }
        match run.first().map(|order| order.verb) {
            Some(Verb::Get) => core.arrived(&run),
            Some(Verb::Put) => core.put_answered(&run, replica, refused),
            None => {}
        }
        core.serve_waiting();
        core.recopy();
    }

    fn resumed(&self, replica: usize) {
        self.lock().replica_resumed(replica);
        self.streams_changed();
    }

    fn lost(&self, replica: usize, why: String, orders: Vec<Order>) {
        self.lock().replica_lost(replica, &why, orders);
    }
}
