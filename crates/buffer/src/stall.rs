//! Points at which a test can stall a thread permanently: one `sync_point!()` between any two steps that
//! other threads can observe (G10).
//!
//! Outside unit tests the points compile to nothing. In loom models each point adds to one shared counter.
//! Relaxed: this orders nothing, and makes the point one at which loom switches threads. (loom 0.7 stores
//! only the last access to an atomic when it looks for switch points, so a load followed by a CAS of the same
//! word would hide the load.)

/// A point between two atomic steps; its name is the completed step.
macro_rules! sync_point {
    ($name:literal) => {
        #[cfg(all(test, not(loom)))]
        crate::stall::reached($name);
        #[cfg(loom)]
        crate::stall::step();
    };
}
pub(crate) use sync_point;

#[cfg(loom)]
loom::lazy_static! {
    static ref STEPS: azekura_base::sync::atomic::AtomicU64 = azekura_base::sync::atomic::AtomicU64::new(0);
}

/// Marks a point at which loom switches threads.
#[cfg(loom)]
pub fn step() {
    STEPS.fetch_add(1, azekura_base::sync::atomic::Ordering::Relaxed);
}

#[cfg(all(test, not(loom)))]
pub(crate) use hook::{Gate, Point, reached, stalling_at};

#[cfg(all(test, not(loom)))]
#[expect(clippy::unwrap_used, reason = "only tests use this")]
mod hook {
    use std::cell::RefCell;
    use std::sync::{Arc, Condvar, Mutex};

    /// State shared by the stalled thread and its test.
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

    /// The point at which to stop.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Point {
        /// At the n-th point reached, from 0.
        Nth(usize),
        /// At the point with this name.
        Named(&'static str),
    }

    thread_local! {
        static PLAN: RefCell<Option<(Point, Arc<Gate>)>> = const { RefCell::new(None) };
    }

    /// Runs `work` on this thread, which stops once at `point` until the gate opens.
    pub(crate) fn stalling_at<T>(point: Point, gate: &Arc<Gate>, work: impl FnOnce() -> T) -> T {
        PLAN.set(Some((point, Arc::clone(gate))));
        let done = work();
        PLAN.set(None);
        gate.state.lock().unwrap().has_ended = true;
        gate.changed.notify_all();
        done
    }

    pub(crate) fn reached(place: &'static str) {
        let gate = PLAN.with_borrow_mut(|plan| {
            let (point, _) = plan.as_mut()?;
            let is_here = match point {
                Point::Nth(0) => true,
                Point::Nth(left) => {
                    *left -= 1;
                    false
                }
                Point::Named(name) => *name == place,
            };
            if is_here { plan.take().map(|(_, gate)| gate) } else { None }
        });
        if let Some(gate) = gate {
            let mut state = gate.state.lock().unwrap();
            state.stopped_at = Some(place);
            gate.changed.notify_all();
            let _open = gate.changed.wait_while(state, |state| !state.is_open).unwrap();
        }
    }

    impl Gate {
        /// Waits until the thread has stopped, and returns the name of the point; `None` if the thread ended
        /// before its point.
        pub(crate) fn stopped_at(&self) -> Option<&'static str> {
            let state = self.state.lock().unwrap();
            let state = self.changed.wait_while(state, |s| s.stopped_at.is_none() && !s.has_ended).unwrap();
            state.stopped_at
        }

        /// Resumes the stopped thread.
        pub(crate) fn open(&self) {
            self.state.lock().unwrap().is_open = true;
            self.changed.notify_all();
        }
    }
}
