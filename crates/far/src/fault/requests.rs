//! The fault table: a signal handler passes a fault to the pager and sleeps until it is answered.
//!
//! All actions of a handler are async-signal-safe: atomics, a futex, a yield. The table is fixed, so nothing
//! is allocated; a handler that finds it full tries again until a request is free.
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
//! - **REQUEST-2** A handler returns only after state 4. The pager sets it after the page was made
//!   accessible, or when access will never be needed.
//! - **REQUEST-3** No posted request is missed: a handler posts and then notifies. A pager that was
//!   notified resets the notifier, then reads all requests, and waits only if it found none.
//! - **REQUEST-4** One thread at a time completes requests of a region, because it holds the pager's mutex.
//!   So only that thread changes the requests that it finds taken. Otherwise a late answer could mark a
//!   request that is free by then as done, and no handler would ever free it.
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

/// See the [module](self).
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
    /// All free.
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

    /// The same; the model's atomics are not made at compile time.
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| Request {
            state: WaitWord::new(FREE),
            region: AtomicUsize::new(0),
            address: AtomicUsize::new(0),
            wrote: AtomicBool::new(false),
        }))
    }

    /// A handler's side: posts a fault, rings, and sleeps until it was answered.
    pub(crate) fn post(&self, region: usize, address: usize, access: Access, notify: impl FnOnce()) {
        let request = self.claim();
        // Relaxed, all three: published by the store of POSTED below (REQUEST-1).
        request.region.store(region, Relaxed);
        request.address.store(address, Relaxed);
        request.wrote.store(access == Access::Write, Relaxed);
        // Release: pairs with Acquire in `take`, which then sees this request's fault.
        request.state.word().store(POSTED, Release);
        notify();
        loop {
            // Acquire: pairs with Release in `finish`: the page is as the pager made it (REQUEST-2).
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
            // Acquire: pairs with Release at the end of `post`, so that what the last handler wrote into the
            // request does not come after what we write. Relaxed on failure: nothing of the request is read.
            let free =
                |r: &&Request| r.state.word().compare_exchange(FREE, CLAIMED, Acquire, Relaxed).is_ok();
            if let Some(request) = self.0.iter().find(free) {
                return request;
            }
            thread::yield_now();
        }
    }

    /// The pager's side: a posted fault of its region, if there is one. One thread takes for a region.
    pub(crate) fn take(&self, region: usize) -> Option<(usize, Access)> {
        self.0.iter().find_map(|request| {
            // Acquire: pairs with Release in `post`, so the region is that of this posting, and so are
            // address and access.
            if request.state.word().load(Acquire) != POSTED || request.region.load(Relaxed) != region {
                return None;
            }
            let access = if request.wrote.load(Relaxed) { Access::Write } else { Access::Read };
            let address = request.address.load(Relaxed);
            // Only this thread leaves POSTED for this region, so a store is enough. Release: pairs with
            // Acquire in `finish`, which another thread of the pager may call: it then sees this posting's
            // region and address.
            request.state.word().store(TAKEN, Release);
            Some((address, access))
        })
    }

    /// The pager's side: answers the taken faults of its region for which `is_meant` accepts the address. One
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
