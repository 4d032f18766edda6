//! What a thread does before it blocks: a hook for schedulers that multiplex work over few threads.
//!
//! A thread that serves many callers, as the reactors of the server do, must not keep all of them waiting
//! when one of them has to wait. The store does not know who calls it; it only says "I am about to block"
//! ([`announce`]), and a thread that cares has said before what is to happen then ([`on_block`]). Go's
//! scheduler takes the processor from a thread in a system call in the same way.
//!
//! Announced is every wait that may take as long as a device, or as another transaction: calls of files, lock
//! requests that sleep, waits for a flush, for room in the log, for a page that another thread reads, for a
//! free frame, for a page's writer. Latches are not: whoever holds one waits for devices at most, never for a
//! transaction, so it goes on by itself.
//!
//! - **BLOCK-1** The hook is called while the store's latches may be held: it takes only locks under which
//!   nothing else is taken, and never calls the store.
//! - **BLOCK-2** It may be called several times in one wait, and before waits that turn out to be none.
//!
//! ```
//! use std::cell::Cell;
//! thread_local! { static BLOCKED: Cell<u32> = const { Cell::new(0) } }
//!
//! azekura_base::blocking::on_block(Some(|| BLOCKED.set(BLOCKED.get() + 1)));
//! azekura_base::blocking::announce(); // what the store does before it sleeps
//! assert_eq!(BLOCKED.get(), 1);
//! azekura_base::blocking::on_block(None);
//! ```

use std::cell::Cell;

thread_local! {
    static HOOK: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Sets what this thread does before it blocks; `None`: nothing.
pub fn on_block(hook: Option<fn()>) {
    HOOK.set(hook);
}

/// Says that this thread is about to block. One load of a thread's own memory if nobody wants to know.
#[inline]
pub fn announce() {
    if let Some(hook) = HOOK.get() {
        hook();
    }
}
