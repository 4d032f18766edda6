//! The interface to a simulated machine, which is called before each access to shared memory.
//!
//! One operating-system thread runs all threads of a simulated machine, in turn; while it does, [`Enter`]
//! keeps the machine in a thread-local of that thread, and the types of [`sync`](super) (feature `sim`) call
//! it. Without the feature no calls are made, and a machine sees nothing.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

/// Effect of an access on its cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Load,
    /// Writes it; the processor need not wait for the write.
    Store,
    /// Reads and writes it in one step: compare-and-swap, exchange.
    Swap,
    /// Reads and writes it in one step which cannot fail: some machines have no such instruction and try a
    /// compare-and-swap until it succeeds.
    Add,
}

/// A simulated machine. A call may switch to another thread of the machine before it returns (except for
/// [`Machine::unpark`], and reading the clock). The code after it, up to the next call, is one step that is
/// atomic for other threads.
pub trait Machine {
    /// The calling thread is about to do `access` to `bytes` at `address`, at this place in the source. For 0
    /// bytes nothing is done.
    fn access(&self, address: usize, bytes: usize, access: Access, place: &'static Location<'static>);
    /// A fence that makes earlier stores visible before later loads.
    fn full_fence(&self);
    /// One turn of a spin.
    fn pause(&self);
    /// Yields the processor to another runnable thread.
    fn yield_now(&self);
    /// Sleeps.
    fn sleep(&self, time: Duration);
    /// Time since the machine was started.
    fn now(&self) -> Duration;
    /// Sleeps until woken at `address`, or timed out. Never switches before the thread counts as asleep: a
    /// condition that was read in the same step still holds.
    fn park(&self, address: usize, timeout: Option<Duration>);
    /// Wakes at most `at_most` sleepers at `address`, the longest asleep first, and returns their number.
    /// Does not switch to another thread.
    fn unpark(&self, address: usize, at_most: usize) -> usize;
    /// Takes the time of plain work.
    fn work(&self, work: Work);
    /// Processors.
    fn processors(&self) -> usize;
    /// Time for which a thread, or all of them together, have had processors.
    fn processor_time(&self, thread: Option<usize>) -> Duration;
    /// The number of the cache line at `address`: the same in each run, unlike addresses.
    fn line(&self, address: usize) -> usize;
    /// Returns a random number, from the run's seed.
    fn random(&self) -> u64;
    /// Number of the calling thread, from 0.
    fn thread_number(&self) -> usize;
    /// Starts a thread of the machine; returns its number.
    fn spawn(&self, body: Box<dyn FnOnce()>) -> usize;
    /// Sleeps until a thread has ended.
    fn join(&self, thread: usize);
    /// The calling thread's value of a thread-local, made if it has none yet.
    fn local(&self, key: usize, make: &dyn Fn() -> Rc<dyn Any>) -> Rc<dyn Any>;
}

/// Work between accesses, if it is more than a few instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Copies this number of bytes.
    Copy(usize),
    /// Enters the kernel and comes back.
    SystemCall,
    /// Computes for this number of nanoseconds.
    Nanoseconds(u64),
}

thread_local! {
    static CURRENT: Cell<Option<&'static dyn Machine>> = const { Cell::new(None) };
}

/// The machine that the calling thread belongs to.
#[inline]
#[must_use]
pub fn current() -> Option<&'static dyn Machine> {
    CURRENT.get()
}

/// While it exists, the calling operating-system thread runs threads of a machine.
#[derive(Debug)]
#[must_use = "dropping it leaves the machine"]
pub struct Enter(PhantomData<*const ()>);

impl Enter {
    /// Enters `machine`. (A machine is a few words that live as long as the program; only its content is
    /// replaced.)
    ///
    /// # Panics
    ///
    /// If the thread runs another machine.
    pub fn new(machine: &'static dyn Machine) -> Self {
        assert!(current().is_none(), "one machine at a time");
        CURRENT.set(Some(machine));
        Self(PhantomData)
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        CURRENT.set(None);
    }
}

/// Runs `f` as if the calling thread belonged to no machine, so that work that a process does once is not
/// charged to the first run. `f` must not wait for other threads.
pub fn outside<R>(f: impl FnOnce() -> R) -> R {
    struct Back(Option<&'static dyn Machine>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _back = simulated().map(|machine| {
        CURRENT.set(None);
        Back(Some(machine))
    });
    f()
}

/// Reports to the machine, if there is one, a read of plain data that other threads write too, under a lock
/// or latch.
#[inline]
#[track_caller]
pub fn reads<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), size_of_val(data), Access::Load);
}

/// Reports to the machine, if there is one, a write of plain data that other threads use too, under a lock or
/// latch.
#[inline]
#[track_caller]
pub fn writes<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), size_of_val(data), Access::Store);
}

/// Returns the machine of the calling thread, for measurements: none, at no cost, without simulation.
#[inline]
#[must_use]
pub fn simulated() -> Option<&'static dyn Machine> {
    if cfg!(feature = "sim") { current() } else { None }
}

/// Returns a number for distributing objects by their address: that of the cache line, which is the same in
/// each run of a machine.
#[inline]
#[must_use]
pub fn line_of(address: usize) -> usize {
    simulated().map_or(address >> 6, |machine| machine.line(address))
}

/// Reports to the machine, if there is one, an atomic addition to data of a type that does not report by
/// itself: the count of an `Arc`.
#[inline]
#[track_caller]
pub fn adds<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), 1, Access::Add);
}

/// Reports work to the machine, if there is one.
#[inline]
pub fn works(work: Work) {
    if cfg!(feature = "sim")
        && let Some(machine) = current()
    {
        machine.work(work);
    }
}

#[inline]
#[track_caller]
fn tell(address: usize, bytes: usize, access: Access) {
    if cfg!(feature = "sim")
        && let Some(machine) = current()
    {
        machine.access(address, bytes, access, Location::caller());
    }
}
