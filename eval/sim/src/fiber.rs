//! A thread of the machine: a coroutine with a stack of its own. One operating-system thread runs all
//! coroutines.
//!
//! - **FIBER-1** [`YIELDER`] is null, or belongs to the running coroutine. A coroutine sets it when it starts
//!   and after each switch; the code that resumes coroutines clears it. A coroutine's yielder is valid as
//!   long as its stack.

use crate::handle::{end_thread, freed};
use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ops::Range;
use std::ptr;

thread_local! {
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(ptr::null()) };
}

/// A coroutine and its stack.
pub(crate) struct Fiber {
    coroutine: Coroutine<(), (), ()>,
    /// Address range of the stack.
    stack: Range<usize>,
}

impl Fiber {
    /// Returns a thread that will run `body` on a stack of `stack_bytes`. Memory is used only for the part of
    /// the stack that is touched.
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

    /// Runs the thread until it gives way; returns `true` if it has ended. The simulated machine then treats
    /// its stack as freed.
    pub(crate) fn resume(&mut self) -> bool {
        let result = self.coroutine.resume(());
        YIELDER.set(ptr::null());
        let has_ended = matches!(result, CoroutineResult::Return(()));
        if has_ended {
            freed(self.stack.start, self.stack.len());
        }
        has_ended
    }

    /// Leaves the thread as it is, forever: its borrows remain, and its stack is leaked.
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }
}

/// Switches away from the running thread; returns when it is resumed.
pub(crate) fn give_way() {
    let yielder = YIELDER.get();
    assert!(!yielder.is_null(), "only a thread of a machine gives way");
    // SAFETY: FIBER-1: the yielder belongs to the running coroutine, on the current stack.
    unsafe { (*yielder).suspend(()) };
    YIELDER.set(yielder);
}
