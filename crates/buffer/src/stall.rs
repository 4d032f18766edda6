//! Where a test can stop a thread for ever: one `sync_point!()` between any two steps that others can see (G10).
//!
//! Outside unit tests the points are no code at all.

/// A place between two atomic steps.
macro_rules! sync_point {
    () => {
        #[cfg(all(test, not(loom)))]
        crate::stall::reached(concat!(file!(), ":", line!()));
    };
}
pub(crate) use sync_point;

#[cfg(all(test, not(loom)))]
pub(crate) use hook::{Gate, reached, stalling_at};

#[cfg(all(test, not(loom)))]
#[expect(clippy::unwrap_used, reason = "only tests use this")]
mod hook {
    use std::cell::RefCell;
    use std::sync::{Arc, Condvar, Mutex};

    /// What the stopped thread and its test share.
    #[derive(Debug, Default)]
    pub(crate) struct Gate {
        state: Mutex<State>,
        changed: Condvar,
    }

    #[derive(Debug, Default)]
    struct State {
        stopped_at: Option<&'static str>,
        has_ended: bool,
        is_open: bool,
    }

    thread_local! {
        static PLAN: RefCell<Option<(usize, Arc<Gate>)>> = const { RefCell::new(None) };
    }

    /// Runs `work` on this thread, which stops at the `n`-th point it reaches until the gate opens.
    pub(crate) fn stalling_at<T>(n: usize, gate: &Arc<Gate>, work: impl FnOnce() -> T) -> T {
        PLAN.set(Some((n, Arc::clone(gate))));
        let done = work();
        PLAN.set(None);
        gate.state.lock().unwrap().has_ended = true;
        gate.changed.notify_all();
        done
    }

    pub(crate) fn reached(place: &'static str) {
        let gate = PLAN.with_borrow_mut(|plan| match plan {
            Some((0, _)) => plan.take().map(|(_, gate)| gate),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        });
        if let Some(gate) = gate {
            let mut state = gate.state.lock().unwrap();
            state.stopped_at = Some(place);
            gate.changed.notify_all();
            let _open = gate.changed.wait_while(state, |state| !state.is_open).unwrap();
        }
    }

    impl Gate {
        /// Waits until the thread has stopped, and says where; `None` if it ended before its point.
        pub(crate) fn stopped_at(&self) -> Option<&'static str> {
            let state = self.state.lock().unwrap();
            let state = self.changed.wait_while(state, |s| s.stopped_at.is_none() && !s.has_ended).unwrap();
            state.stopped_at
        }

        /// Lets the stopped thread go on.
        pub(crate) fn open(&self) {
            self.state.lock().unwrap().is_open = true;
            self.changed.notify_all();
        }
    }
}
