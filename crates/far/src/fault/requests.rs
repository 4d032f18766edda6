//! The fault table: a signal handler passes a fault to the pager and sleeps until the fault is handled.
//!
//! All actions of a handler are async-signal-safe: atomics, a futex, a yield. The table has a fixed size, so
//! nothing is allocated. A handler that finds the table full retries until a request is free.
//!
//! | word | state | left by |
//! |---|---|---|
//! | 0 | free | any handler, by CAS, to 1 |
//! | 1 | claimed | that handler, to 2 |
//! | 2 | posted | the region's pager, to 3 |
//! | 3 | taken | the region's pager, to 4 |
//! | 4 | done | the handler that posted it, to 0 |
//!
//! - **REQUEST-1** Address, access and region of a request change only in state 1.
//! - **REQUEST-2** A handler returns only after state 4. The pager sets state 4 after it has made the page
//!   accessible, or when access will never be needed.
//! - **REQUEST-3** No posted request is missed: a handler posts and then notifies. A notified pager resets
//!   the notifier, then reads all requests, and waits only if it found none.
//! - **REQUEST-4** One thread at a time completes requests of a region, because it holds the pager's mutex.
//!   So only that thread changes the requests that it finds taken. Otherwise a late completion could set
//!   state 4 in a request that is already free, and no handler would ever free the request.
//!
//! `tests/loom_requests.rs` runs handlers and a pager in every interleaving.

use crate::replace::Access;
use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use azekura_base::sync::thread;

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const POSTED: u32 = 2;
const TAKEN: u32 = 3;
const DONE: u32 = 4;

/// A table of faults; see the [module](self).
#[derive(Debug)]
pub(crate) struct Requests<const N: usize>([Request; N]);

#[derive(Debug)]
struct Request {
    state: WaitWord,
    region: AtomicUsize,
    address: AtomicUsize,
    wrote: AtomicBool,
}

impl<const N: usize> Requests<N> {
    /// Returns a table in which all requests are free.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self(
            [const {
                Request {
                    state: WaitWord::new(FREE),
                    region: AtomicUsize::new(0),
                    address: AtomicUsize::new(0),
                    wrote: AtomicBool::new(false),
                }
            }; N],
        )
    }

    /// Returns a table in which all requests are free. The atomics of the model checker have no `const`
    /// constructor.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Request {
            state: WaitWord::new(FREE),
            region: AtomicUsize::new(0),
            address: AtomicUsize::new(0),
            wrote: AtomicBool::new(false),
        }))
    }

    /// Handler: posts a fault, notifies the pager, and sleeps until the fault is handled.
    pub(crate) fn post(&self, region: usize, address: usize, access: Access, notify: impl FnOnce()) {
        let request = self.claim();
        // Relaxed for all three: published by the store of POSTED below (REQUEST-1).
        request.region.store(region, Relaxed);
        request.address.store(address, Relaxed);
        request.wrote.store(access == Access::Write, Relaxed);
        // Release: pairs with Acquire in `take`, which then reads the fields of this request.
        request.state.word().store(POSTED, Release);
        notify();
        loop {
            // Acquire: pairs with Release in `finish`, so this thread sees the page as the pager made it
            // (REQUEST-2).
            let state = request.state.word().load(Acquire);
            if state == DONE {
                break;
            }
            request.state.wait(state, None);
        }
        // Release: pairs with Acquire in `claim`.
        request.state.word().store(FREE, Release);
    }

    fn claim(&self) -> &Request {
        loop {
            // Acquire: pairs with Release at the end of `post`, so the writes of this thread come after those
            // of the previous handler. Relaxed on failure: no field of the request is read.
            let free =
                |r: &&Request| r.state.word().compare_exchange(FREE, CLAIMED, Acquire, Relaxed).is_ok();
            if let Some(request) = self.0.iter().find(free) {
                return request;
            }
            thread::yield_now();
        }
    }

    /// Pager: takes a posted fault of the region, if there is one. Only one thread takes the faults of a
    /// region.
    pub(crate) fn take(&self, region: usize) -> Option<(usize, Access)> {
        self.0.iter().find_map(|request| {
            // Acquire: pairs with Release in `post`, so region, address and access are those of this request.
            if request.state.word().load(Acquire) != POSTED || request.region.load(Relaxed) != region {
                return None;
            }
            let access = if request.wrote.load(Relaxed) { Access::Write } else { Access::Read };
            let address = request.address.load(Relaxed);
            // A store suffices, because only this thread changes POSTED for this region. Release: pairs with
            // Acquire in `finish`, which another thread of the pager may call and which then reads the region
            // and address of this request.
            request.state.word().store(TAKEN, Release);
            Some((address, access))
        })
    }

    /// Pager: completes the taken faults of the region for which `is_meant` returns `true`. Called by one
    /// thread at a time (REQUEST-4).
    pub(crate) fn finish(&self, region: usize, is_meant: impl Fn(usize) -> bool) {
        for request in &self.0 {
            // Acquire: pairs with Release in `take`.
            if request.state.word().load(Acquire) != TAKEN || request.region.load(Relaxed) != region {
                continue;
            }
            if is_meant(request.address.load(Relaxed)) {
                // Release: pairs with Acquire in `post`.
                request.state.set_and_wake(DONE);
            }
        }
    }
}
