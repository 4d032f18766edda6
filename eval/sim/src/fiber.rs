//! A thread of the machine: a coroutine with a stack of its own, all of them run by one operating-system
//! thread.
//!
//! - **FIBER-1** [`YIELDER`] is null, or belongs to the running coroutine: the code that resumes a coroutine
//!   sets it, and each coroutine sets it again when it goes on after a switch. A coroutine's yielder is valid
//!   as long as its stack.

use crate::handle::{end_thread, freed};
use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ops::Range;
use std::ptr;

thread_local! {
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A thread.
pub(crate) struct Fiber {
    coroutine: Coroutine<(), (), ()>,
    /// Addresses of its stack.
    stack: Range<usize>,
}

impl Fiber {
    /// A thread that will do `body` on a stack of so many bytes, which are touched only as far as they are
    /// used.
    pub(crate) fn new(body: impl FnOnce() + 'static, stack_bytes: usize) -> std::io::Result<Self> {
        let memory = DefaultStack::new(stack_bytes)?;
        let stack = memory.limit().get()..memory.base().get();
        let coroutine = Coroutine::with_stack(memory, move |yielder, ()| {
            YIELDER.set(ptr::from_ref(yielder));
            body();
            end_thread();
        });
        Ok(Self { coroutine, stack })
    }

    /// Lets it run until it gives way; whether it has ended. Its stack is freed then, as far as the machine
    /// is concerned.
    pub(crate) fn resume(&mut self) -> bool {
        let result = self.coroutine.resume(());
        YIELDER.set(ptr::null());
        let has_ended = matches!(result, CoroutineResult::Return(()));
        if has_ended {
            freed(self.stack.start, self.stack.len());
        }
        has_ended
    }

    /// Leaves it where it is, for ever: its borrows stay, its stack is lost.
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }
}

/// Gives way: returns when the running thread is resumed.
pub(crate) fn give_way() {
    let yielder = YIELDER.get();
    assert!(!yielder.is_null(), "only a thread of a machine gives way");
    // SAFETY: FIBER-1: it belongs to the running coroutine, on the current stack.
    unsafe { (*yielder).suspend(()) };
    YIELDER.set(yielder);
}
