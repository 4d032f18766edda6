//! The paper's machine (Tables 2 and 3) in virtual time. Each PE has one processor, a page server of five
//! threads with an LRU cache, and a disk that serves five accesses at once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::sim::{Delivery, Executor};
use azekura_fatbtree::{Access, Clock, PageNo, PageService, PeId, Task};

/// Costs of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Processor time of a lock at the PE itself.
    pub lock: Duration,
    /// Processor time of sending a message.
    pub message: Duration,
    /// Time of a message on the network.
    pub wire: Duration,
    /// Processor time of an access to a cached page.
    pub hit: Duration,
    /// Time of reading a page from disk, and of writing back a dirty page.
    pub disk: Duration,
    /// Number of threads of the page server, and of concurrent disk accesses.
    pub threads: usize,
}

impl Costs {
    /// Returns the paper's costs. `wire` is the rest of a remote lock's 310 µs after two messages and a lock.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            lock: Duration::from_micros(11),
            message: Duration::from_nanos(127_200),
            wire: Duration::from_nanos((310_000 - 2 * 127_200 - 11_000) / 2),
            hit: Duration::from_micros(10),
            disk: Duration::from_micros(11_700),
            threads: 5,
        }
    }
}

/// The hardware of all PEs. Clones share their state.
#[derive(Clone)]
pub struct Hardware(Rc<Inner>);

struct Inner {
    executor: Executor,
    costs: Costs,
    cache_pages: usize,
    pes: RefCell<BTreeMap<PeId, Pe>>,
}

struct Pe {
    processor_free: Duration,
    threads_free: Vec<Duration>,
    disks_free: Vec<Duration>,
    cache: Cache,
    accesses: u64,
    hits: u64,
}

/// An LRU cache.
#[derive(Default)]
struct Cache {
    pages: BTreeMap<PageNo, Cached>,
    order: BTreeSet<(u64, PageNo)>,
    clock: u64,
}

struct Cached {
    used: u64,
    is_dirty: bool,
    /// Time at which the disk has delivered the page.
    ready: Duration,
}

impl std::fmt::Debug for Hardware {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hardware").field("costs", &self.0.costs).finish_non_exhaustive()
    }
}

impl Hardware {
    /// Returns hardware without PEs; each PE is added when it is first used.
    #[must_use]
    pub fn new(executor: Executor, costs: Costs, cache_pages: usize) -> Self {
        Self(Rc::new(Inner { executor, costs, cache_pages, pes: RefCell::default() }))
    }

    /// Returns the page server of a PE.
    #[must_use]
    pub fn pages(&self, pe: PeId) -> Rc<dyn PageService> {
        Rc::new(Pages { hardware: self.clone(), pe })
    }

    /// Returns the number of page reads and of cache hits so far, of one PE or of all.
    #[must_use]
    pub fn reads(&self, of: Option<PeId>) -> (u64, u64) {
        let pes = self.0.pes.borrow();
        let counted = pes.iter().filter(|(pe, _)| of.is_none_or(|of| of == **pe));
        counted.fold((0, 0), |(reads, hits), (_, pe)| (reads + pe.accesses, hits + pe.hits))
    }

    /// Sends the answer to a client at the end of an operation.
    pub fn answer(&self, pe: PeId) -> Task<'static, ()> {
        let sent = self.compute(pe, self.0.costs.message) + self.0.costs.wire;
        self.0.executor.sleep(sent.saturating_sub(self.0.executor.now()))
    }

    fn with<T>(&self, pe: PeId, run: impl FnOnce(&mut Pe) -> T) -> T {
        let threads = self.0.costs.threads;
        run(self.0.pes.borrow_mut().entry(pe).or_insert_with(|| Pe {
            processor_free: Duration::ZERO,
            threads_free: vec![Duration::ZERO; threads],
            disks_free: vec![Duration::ZERO; threads],
            cache: Cache::default(),
            accesses: 0,
            hits: 0,
        }))
    }

    /// Returns the time at which the processor of `pe` completes work of length `time` that is requested now.
    fn compute(&self, pe: PeId, time: Duration) -> Duration {
        let now = self.0.executor.now();
        self.with(pe, |pe| {
            pe.processor_free = pe.processor_free.max(now) + time;
            pe.processor_free
        })
    }

    /// Returns the time at which a page that is requested now is in memory.
    fn fix(&self, pe: PeId, page: PageNo, access: Access) -> Duration {
        let (now, costs) = (self.0.executor.now(), self.0.costs);
        let computed = self.compute(pe, costs.hit);
        self.with(pe, |pe| {
            pe.accesses += 1;
            if access == Access::Again {
                pe.hits += 1;
                return computed;
            }
            let thread = first_free(&mut pe.threads_free);
            let begun = now.max(*thread);
            let mut end = (begun + costs.hit).max(computed);
            if let Some(ready) = pe.cache.touch(page) {
                pe.hits += 1;
                end = end.max(ready);
            } else {
                let evicted_dirty = pe.cache.make_room(self.0.cache_pages);
                let disk = first_free(&mut pe.disks_free);
                // A missing page costs one disk access, and a dirty victim one more for its write-back.
                end = end.max(*disk) + costs.disk * (1 + u32::from(evicted_dirty));
                *disk = end;
                pe.cache.put(page, end);
            }
            if access != Access::Read {
                pe.cache.soil(page);
            }
            *first_free(&mut pe.threads_free) = end;
            end
        })
    }
}

fn first_free(free: &mut [Duration]) -> &mut Duration {
    free.iter_mut().min().expect("there are threads")
}

impl Cache {
    fn touch(&mut self, page: PageNo) -> Option<Duration> {
        self.clock += 1;
        let cached = self.pages.get_mut(&page)?;
        self.order.remove(&(cached.used, page));
        cached.used = self.clock;
        self.order.insert((cached.used, page));
        Some(cached.ready)
    }

    /// Evicts a page if the cache is full. Returns whether the victim was dirty.
    fn make_room(&mut self, capacity: usize) -> bool {
        if self.pages.len() < capacity {
            return false;
        }
        let victim = self.order.pop_first().and_then(|(_, page)| self.pages.remove(&page));
        victim.is_some_and(|cached| cached.is_dirty)
    }

    fn put(&mut self, page: PageNo, ready: Duration) {
        self.pages.insert(page, Cached { used: self.clock, is_dirty: false, ready });
        self.order.insert((self.clock, page));
    }

    fn soil(&mut self, page: PageNo) {
        if let Some(cached) = self.pages.get_mut(&page) {
            cached.is_dirty = true;
        }
    }
}

impl Delivery for Hardware {
    fn leave(&self, from: PeId) -> Duration {
        self.compute(from, self.0.costs.message)
    }
}

struct Pages {
    hardware: Hardware,
    pe: PeId,
}

impl Pages {
    fn until(&self, moment: Duration) -> Task<'_, ()> {
        let executor = &self.hardware.0.executor;
        executor.sleep(moment.saturating_sub(executor.now()))
    }
}

impl PageService for Pages {
    fn fix(&self, page: PageNo, access: Access) -> Task<'_, ()> {
        self.until(self.hardware.fix(self.pe, page, access))
    }

    fn lock(&self) -> Task<'_, ()> {
        self.until(self.hardware.compute(self.pe, self.hardware.0.costs.lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u64) -> PageNo {
        PageNo::leaf(number).expect("fits")
    }

    fn costs_us(hardware: &Hardware, number: u64, access: Access) -> u128 {
        let (pages, executor) = (hardware.pages(PeId(0)), hardware.0.executor.clone());
        let began = executor.now();
        executor.block_on(async move { pages.fix(page(number), access).await }).expect("it ends");
        (hardware.0.executor.now() - began).as_micros()
    }

    #[test]
    fn pages_cost_what_the_paper_says() {
        let hardware = Hardware::new(Executor::new(1), Costs::paper(), 2);
        assert_eq!(costs_us(&hardware, 1, Access::Read), 11_710);
        assert_eq!(costs_us(&hardware, 1, Access::Change), 10);
        assert_eq!(costs_us(&hardware, 2, Access::Read), 11_710);
        assert_eq!(costs_us(&hardware, 3, Access::Read), 2 * 11_700 + 10, "page 1 is written back first");
        assert_eq!(costs_us(&hardware, 1, Access::Read), 11_710, "page 2 was clean");
        assert_eq!(hardware.reads(None), (5, 1));
    }
}
