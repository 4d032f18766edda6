//! A hook that runs before a thread blocks, for schedulers that multiplex work over few threads.
//!
//! A thread that serves many callers, such as a reactor of the server, must not delay all of them when one of
//! them has to wait. The store is independent of its caller. Before a wait it calls [`announce`], which runs
//! the hook that the thread has set with [`on_block`]. Go's scheduler reassigns the processor of a thread in
//! a system call in the same way.
//!
//! Every wait that may take as long as a device access, or as another transaction, is announced: file
//! operations, lock requests that sleep, and waits for a flush, for space in the log, for a page that another
//! thread reads, for a free frame, or for a page's writer. Latch waits are not announced: a latch holder may
//! wait for devices, but never for a transaction.
//!
//! - **BLOCK-1** The hook may be called while latches of the store are held. It acquires only locks under
//!   which no other lock is acquired, and never calls the store.
//! - **BLOCK-2** The hook may be called several times in one wait, and before waits that end at once.
//! - **BLOCK-3** The hook returns `false` if the thread's other work has to wait with the thread. A wait for
//!   the lock of another transaction then ends soon, with an error: that work may include the commit that
//!   releases the lock. All other waits end without the thread's other work and ignore the result.
//!
//! ```
//! use std::cell::Cell;
//! thread_local! { static BLOCKED: Cell<u32> = const { Cell::new(0) } }
//!
//! azekura_base::blocking::on_block(Some(|| {
//!     BLOCKED.set(BLOCKED.get() + 1);
//!     true
//! }));
//! azekura_base::blocking::announce(); // what the store does before it sleeps
//! assert_eq!(BLOCKED.get(), 1);
//! azekura_base::blocking::on_block(None);
//! ```

use std::cell::Cell;

thread_local! {
    static HOOK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Sets this thread's hook; `None` removes it.
pub fn on_block(hook: Option<fn() -> bool>) {
    HOOK.set(hook);
}

/// Calls this thread's hook, if it has one, and returns its result (BLOCK-3); `true` without a hook. Costs
/// one load of thread-local memory without a hook.
#[inline]
pub fn announce() -> bool {
    HOOK.get().is_none_or(|hook| hook())
}
