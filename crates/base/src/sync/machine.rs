//! A simulated machine, as the door sees it: what is asked before an access to memory that threads share.
//!
//! One operating-system thread runs all threads of a simulated machine, in turn; while it does, [`Enter`]
//! keeps the machine in a thread-local of that thread, and the door's types (feature `sim`) ask it. Without
//! the feature nobody asks, and a machine sees nothing.

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
    /// Writes it; the processor need not wait for that.
    Store,
    /// Reads and writes it in one step: compare-and-swap, exchange.
    Swap,
    /// Reads and writes it in one step which cannot fail: some machines have no such instruction and try a
    /// compare-and-swap until it succeeds.
    Add,
}

/// What the door asks. A call may switch to another thread of the machine before it returns (but for
/// [`Machine::unpark`], and reading the clock); what the caller does right after it, up to the next call, is
/// one step that no other thread sees in halves.
pub trait Machine {
    /// The calling thread is about to do `access` to `bytes` at `address`, at this place in the source; to
    /// none, nothing is done.
    fn access(&self, address: usize, bytes: usize, access: Access, place: &'static Location<'static>);
    /// A fence that makes earlier stores visible before later loads.
    fn full_fence(&self);
    /// One turn of a spin.
    fn pause(&self);
    /// Gives the processor to another thread, if one wants it.
    fn yield_now(&self);
    /// Sleeps.
    fn sleep(&self, time: Duration);
    /// Time since the machine was started.
    fn now(&self) -> Duration;
    /// Sleeps until woken at `address`, or timed out. Never switches before the thread counts as asleep: a
    /// condition that was looked at in the same step still holds.
    fn park(&self, address: usize, timeout: Option<Duration>);
    /// Wakes as many sleepers at `address`, the longest asleep first, and says how many there were. Switches
    /// to no other thread.
    fn unpark(&self, address: usize, at_most: usize) -> usize;
    /// Takes the time of plain work.
    fn work(&self, work: Work);
    /// Processors.
    fn processors(&self) -> usize;
    /// Time for which a thread, or all of them together, have had processors.
    fn processor_time(&self, thread: Option<usize>) -> Duration;
    /// The number of the cache line at `address`: the same in each run, unlike addresses.
    fn line(&self, address: usize) -> usize;
    /// A number by chance, from the run's seed.
    fn random(&self) -> u64;
    /// Number of the calling thread, from 0.
    fn thread_number(&self) -> usize;
    /// Starts a thread of the machine; gives its number.
    fn spawn(&self, body: Box<dyn FnOnce()>) -> usize;
    /// Sleeps until a thread has ended.
    fn join(&self, thread: usize);
    /// The calling thread's value of a thread-local, made if it has none yet.
    fn local(&self, key: usize, make: &dyn Fn() -> Rc<dyn Any>) -> Rc<dyn Any>;
}

/// Plain work between accesses, where it is more than a few instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Copies so many bytes.
    Copy(usize),
    /// Enters the kernel and comes back.
    SystemCall,
    /// So many nanoseconds of a processor.
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

/// While it lives, the calling operating-system thread runs threads of a machine.
#[derive(Debug)]
#[must_use = "dropping it leaves the machine"]
pub struct Enter(PhantomData<*const ()>);

impl Enter {
    /// Enters `machine`. (A machine is a few words that live as long as the program: it is the inside that
    /// comes and goes.)
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

/// Runs `f` as if the calling thread belonged to no machine: what a process does once is not to count in
/// whichever run comes first. `f` must wait for nobody.
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

/// Tells the machine, if there is one, that plain data is read that other threads write too, under a lock or
/// latch.
#[inline]
#[track_caller]
pub fn reads<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), size_of_val(data), Access::Load);
}

/// Tells the machine, if there is one, that plain data is written that other threads use too, under a lock or
/// latch.
#[inline]
#[track_caller]
pub fn writes<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), size_of_val(data), Access::Store);
}

/// The machine of the calling thread, for who measures: none, at no cost, where nothing is ever simulated.
#[inline]
#[must_use]
pub fn simulated() -> Option<&'static dyn Machine> {
    if cfg!(feature = "sim") { current() } else { None }
}

/// A number for what lies at `address`, to spread things by: of its cache line, the same in each run of a
/// machine.
#[inline]
#[must_use]
pub fn line_of(address: usize) -> usize {
    simulated().map_or(address >> 6, |machine| machine.line(address))
}

/// Tells the machine, if there is one, of an atomic addition to data whose type does not ask by itself: the
/// count of an `Arc`.
#[inline]
#[track_caller]
pub fn adds<T: ?Sized>(data: &T) {
    tell(std::ptr::from_ref(data).cast::<()>().addr(), 1, Access::Add);
}

/// Tells the machine, if there is one, of work.
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
