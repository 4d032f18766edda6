//! The interface to a simulated machine, which is called before each access to shared memory.
//!
//! One operating-system thread runs all threads of a simulated machine, in turn. While it does, [`Enter`]
//! keeps the machine in a thread-local of that thread, and the types of [`sync`](super) call it (feature
//! `sim`). Without the feature no calls are made, and a machine sees no accesses.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

/// Effect of an access on its cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads the line.
    Load,
    /// Writes the line. The processor does not wait for the write.
    Store,
    /// Reads and writes the line in one step: compare-and-swap, exchange.
    Swap,
    /// Reads and writes the line in one step that cannot fail. Some machines have no such instruction and
    /// repeat a compare-and-swap until it succeeds.
    Add,
}

/// A simulated machine. A call may switch to another thread of the machine before it returns, except for
/// [`Machine::unpark`] and reading the clock. The code after a call, up to the next call, is one atomic step
/// for other threads.
pub trait Machine {
    /// Reports that the calling thread is about to do `access` to `bytes` bytes at `address`, at this place
    /// in the source. Does nothing for 0 bytes.
    fn access(&self, address: usize, bytes: usize, access: Access, place: &'static Location<'static>);
    /// Executes a fence that makes earlier stores visible before later loads.
    fn full_fence(&self);
    /// Executes one iteration of a spin loop.
    fn pause(&self);
    /// Yields the processor to another runnable thread.
    fn yield_now(&self);
    /// Sleeps for `time`.
    fn sleep(&self, time: Duration);
    /// Returns the time since the machine was started.
    fn now(&self) -> Duration;
    /// Sleeps until woken at `address`, or timed out. Does not switch threads before the thread is registered
    /// as asleep, so a condition that was read in the same step still holds.
    fn park(&self, address: usize, timeout: Option<Duration>);
    /// Wakes at most `at_most` threads that sleep at `address`, the longest asleep first. Returns their
    /// number. Does not switch to another thread.
    fn unpark(&self, address: usize, at_most: usize) -> usize;
    /// Advances the clock by the time of this work.
    fn work(&self, work: Work);
    /// Returns the number of processors.
    fn processors(&self) -> usize;
    /// Returns the processor time of a thread, or of all threads together.
    fn processor_time(&self, thread: Option<usize>) -> Duration;
    /// Returns the number of the cache line at `address`. Unlike addresses, the number is the same in each
    /// run.
    fn line(&self, address: usize) -> usize;
    /// Returns a random number, from the run's seed.
    fn random(&self) -> u64;
    /// Returns the number of the calling thread, from 0.
    fn thread_number(&self) -> usize;
    /// Starts a thread of the machine. Returns its number.
    fn spawn(&self, body: Box<dyn FnOnce()>) -> usize;
    /// Waits until a thread has ended.
    fn join(&self, thread: usize);
    /// Returns the calling thread's value of a thread-local. Calls `make` if the thread has no value yet.
    fn local(&self, key: usize, make: &dyn Fn() -> Rc<dyn Any>) -> Rc<dyn Any>;
}

/// Work between accesses that takes more than a few instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A copy of this number of bytes.
    Copy(usize),
    /// A system call.
    SystemCall,
    /// Computation for this number of nanoseconds.
    Nanoseconds(u64),
}

thread_local! {
    static CURRENT: Cell<Option<&'static dyn Machine>> = const { Cell::new(None) };
}

/// Returns the machine to which the calling thread belongs.
#[inline]
#[must_use]
pub fn current() -> Option<&'static dyn Machine> {
    CURRENT.get()
}

/// Guard: while it exists, the calling operating-system thread runs threads of a machine.
#[derive(Debug)]
#[must_use = "dropping it leaves the machine"]
pub struct Enter(PhantomData<*const ()>);

impl Enter {
    /// Enters `machine`. (A machine is a few words that live as long as the program. Only its content is
    /// replaced.)
    ///
    /// # Panics
    ///
    /// If the thread already runs a machine.
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

/// Runs `f` as if the calling thread belonged to no machine. So work that a process does only once is not
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

/// Reports a read of plain data to the machine, if there is one. Other threads write the data too, under a
/// lock or latch.
#[inline]
#[track_caller]
pub fn reads<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), size_of_val(data), Access::Load);
}

/// Reports a write of plain data to the machine, if there is one. Other threads use the data too, under a
/// lock or latch.
#[inline]
#[track_caller]
pub fn writes<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), size_of_val(data), Access::Store);
}

/// Returns the machine of the calling thread, for measurements. Without simulation the result is `None`, at
/// no cost.
#[inline]
#[must_use]
pub fn simulated() -> Option<&'static dyn Machine> {
    if cfg!(feature = "sim") { current() } else { None }
}

/// Returns a number for distributing objects by their address: the number of the cache line, which is the
/// same in each run of a machine.
#[inline]
#[must_use]
pub fn line_of(address: usize) -> usize {
    simulated().map_or(address >> 6, |machine| machine.line(address))
}

/// Reports an atomic addition to the machine, if there is one, for types that do not report it themselves,
/// such as the count of an `Arc`.
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
