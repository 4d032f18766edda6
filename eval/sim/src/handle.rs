//! The interface between `azekura_base::sync` and the world of this operating-system thread, and the switches
//! that the world requests.

use crate::fiber::give_way;
use crate::schedule::{Preemption, Step};
use crate::world::{Arrival, World};
use azekura_base::sync::machine::{Access, Machine, Work};
use std::any::Any;
use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Sets the world; returns the previous one.
pub(crate) fn replace(world: Option<World>) -> Option<World> {
    WORLD.replace(world)
}

/// Calls `f` with the world. `f` must not call this function.
pub(crate) fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| f(world.as_mut().expect("a machine runs")))
}

/// Ends the running thread: drops its thread-locals, the newest first, as an operating system does. Their
/// destructors may switch threads and create new thread-locals.
pub(crate) fn end_thread() {
    while let Some(local) = with(World::take_local) {
        drop(local);
    }
}

/// Reports a freed block to the world, if there is one.
pub(crate) fn freed(address: usize, bytes: usize) {
    let _ = WORLD.try_with(|world| {
        // If the world is borrowed, it frees memory of its own, which is not part of the simulated machine.
        if let Ok(mut world) = world.try_borrow_mut()
            && let Some(world) = world.as_mut()
        {
            world.freed(address, bytes);
        }
    });
}

/// The machine of `azekura_base::sync`; its state is the world of the calling thread.
#[derive(Debug)]
pub(crate) struct Handle;

pub(crate) static HANDLE: Handle = Handle;

impl Handle {
    /// Waits until the running thread is in turn, and makes the access. `writes` is as in
    /// [`access`](World::access).
    fn step(address: usize, access: Access, writes: bool, place: &'static Location<'static>) -> u32 {
        loop {
            let arrived = with(|world| match world.arrive() {
                Arrival::Goes => Ok(world.access(address, access, writes, place)),
                other => Err(other),
            });
            match arrived {
                Ok(line) => return line,
                Err(Arrival::Stops) => give_way(), // the thread arrives again after it was released
                Err(_) => {
                    give_way();
                    return with(|world| world.access(address, access, writes, place));
                }
            }
        }
    }
}

impl Machine for Handle {
    fn access(&self, address: usize, bytes: usize, access: Access, place: &'static Location<'static>) {
        // An empty slice may begin where its block ends; that line belongs to another block (NUMBER-1).
        let Some(more) = bytes.checked_sub(1) else { return };
        let last = address + more;
        if access != Access::Add || !with(|world| world.needs_loop(access, place)) {
            Self::step(address, access, access != Access::Load, place);
            let mut next = (address / crate::lines::LINE_BYTES + 1) * crate::lines::LINE_BYTES;
            while next <= last {
                Self::step(next, access, false, place);
                next += crate::lines::LINE_BYTES;
            }
            return;
        }
        loop {
            let line = Self::step(address, Access::Load, false, place);
            let seen = with(|world| world.directory.writes(line));
            Self::step(address, Access::Swap, false, place);
            // A write between the load and the swap makes the compare-and-swap fail.
            if with(|world| world.directory.writes(line)) == seen {
                with(|world| world.directory.wrote(line));
                return;
            }
        }
    }

    fn full_fence(&self) {
        with(World::full_fence);
    }

    fn pause(&self) {
        if with(World::pause) {
            give_way();
        }
    }

    fn yield_now(&self) {
        if with(World::yield_now) {
            give_way();
        }
    }

    fn sleep(&self, time: Duration) {
        let time = crate::coherence::picoseconds(time.as_secs_f64() * 1e9);
        if with(|world| world.sleep(0, Some(time))) {
            give_way();
        }
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(with(|world| world.me().time) / 1000)
    }

    fn park(&self, address: usize, timeout: Option<Duration>) {
        let time = timeout.map(|t| crate::coherence::picoseconds(t.as_secs_f64() * 1e9));
        if with(|world| world.sleep(address, time)) {
            give_way();
        }
    }

    fn unpark(&self, address: usize, at_most: usize) -> usize {
        with(|world| world.unpark(address, at_most))
    }

    fn work(&self, work: Work) {
        with(|world| world.work(work));
    }

    fn processors(&self) -> usize {
        with(|world| world.processor_count())
    }

    fn processor_time(&self, thread: Option<usize>) -> Duration {
        Duration::from_nanos(with(|world| world.processor_time(thread)) / 1000)
    }

    fn line(&self, address: usize) -> usize {
        with(|world| world.line(address)) as usize
    }

    fn random(&self) -> u64 {
        with(World::draw)
    }

    fn thread_number(&self) -> usize {
        with(|world| world.current)
    }

    fn spawn(&self, body: Box<dyn FnOnce()>) -> usize {
        with(|world| world.spawn(body))
    }

    fn join(&self, thread: usize) {
        if with(|world| world.must_join(thread)) {
            give_way();
        }
    }

    fn local(&self, key: usize, make: &dyn Fn() -> Rc<dyn Any>) -> Rc<dyn Any> {
        with(|world| world.local(key)).unwrap_or_else(|| {
            let value = make();
            with(|world| world.set_local(key, Rc::clone(&value)));
            value
        })
    }
}

thread_local! {
    /// The record of the last run on this operating-system thread, even of one that failed.
    static LAST: RefCell<(Vec<Preemption>, Vec<Step>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Stores the record of a run.
pub(crate) fn keep_last(world: &mut World) {
    let preemptions = world.chooser.as_mut().map(|chooser| std::mem::take(&mut chooser.taken));
    LAST.set((preemptions.unwrap_or_default(), world.trace.take().unwrap_or_default()));
}

/// Returns the interruptions of the last run.
pub(crate) fn last_preemptions() -> Vec<Preemption> {
    LAST.with_borrow(|(preemptions, _)| preemptions.clone())
}

/// Returns the accesses of the last run.
pub(crate) fn last_trace() -> Vec<Step> {
    LAST.with_borrow(|(_, trace)| trace.clone())
}
