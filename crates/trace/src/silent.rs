//! The probes when they are compiled out (feature `off`, or a loom model): the same names without code.

use crate::error::{StartError, StopError};
use crate::recording::{Options, Recording};
use crate::{HoldMode, Operation, Site, ThreadTag, WaitKind};
use std::marker::PhantomData;

/// The registration of a definition: empty, because no registry exists.
#[derive(Debug)]
pub(crate) struct Registration;

impl Registration {
    pub(crate) const fn new() -> Self {
        Self
    }
}

/// Starts a recording; compiled out.
///
/// # Errors
///
/// Always [`StartError::CompiledOut`].
pub fn start(_options: Options) -> Result<(), StartError> {
    Err(StartError::CompiledOut)
}

/// Ends the recording; compiled out.
///
/// # Errors
///
/// Always [`StopError::NotStarted`].
pub fn stop() -> Result<Recording, StopError> {
    Err(StopError::NotStarted)
}

/// A guard of a suspended recording; never created.
#[derive(Debug)]
#[must_use = "the recording continues after this is dropped"]
pub struct Suspension(());

/// Suspends the current recording; compiled out, so always returns `None`.
#[must_use]
pub fn suspend() -> Option<Suspension> {
    None
}

impl Drop for Suspension {
    fn drop(&mut self) {}
}

/// The time from [`operation`] to its drop.
#[derive(Debug)]
#[must_use = "the operation ends when this is dropped"]
pub struct OperationGuard(PhantomData<*const ()>);

/// The time from [`wait`] to its drop.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct WaitGuard(PhantomData<*const ()>);

/// The time from [`hold`] to its drop.
#[derive(Debug)]
#[must_use = "the hold ends when this is dropped"]
pub struct HoldGuard(PhantomData<*const ()>);

/// Begins an operation on this thread; compiled out.
#[inline(always)]
pub fn operation(_operation: &'static Operation) -> OperationGuard {
    OperationGuard(PhantomData)
}

/// Begins a contended wait; compiled out.
#[inline(always)]
pub fn wait(_site: &'static Site, _object: usize, _kind: WaitKind) -> WaitGuard {
    WaitGuard(PhantomData)
}

/// Begins a contended wait for a known holder; compiled out.
#[inline(always)]
pub fn wait_for(_site: &'static Site, _object: usize, _kind: WaitKind, _holder: ThreadTag) -> WaitGuard {
    WaitGuard(PhantomData)
}

/// Begins a hold; compiled out.
#[inline(always)]
pub fn hold(_site: &'static Site, _object: usize, _mode: HoldMode) -> HoldGuard {
    HoldGuard(PhantomData)
}

/// Records that a resource was released while others wait; compiled out.
#[inline(always)]
pub fn released(_site: &'static Site, _object: usize) {}

/// Marks an instant; compiled out.
#[inline(always)]
pub fn mark(_site: &'static Site, _value: u64) {}

/// Returns this thread's number in traces; compiled out.
#[inline(always)]
#[must_use]
pub fn thread_tag() -> ThreadTag {
    ThreadTag::NONE
}

/// Returns `true` if a recording is running; compiled out, so always `false`.
#[inline(always)]
#[must_use]
pub fn is_enabled() -> bool {
    false
}

// Guards have a `Drop` that does nothing, so that a caller's `drop(waiting)` has the same meaning in all
// builds.
impl Drop for OperationGuard {
    #[inline(always)]
    fn drop(&mut self) {}
}
impl Drop for WaitGuard {
    #[inline(always)]
    fn drop(&mut self) {}
}
impl Drop for HoldGuard {
    #[inline(always)]
    fn drop(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_out_guards_have_no_size() {
        assert_eq!(size_of::<OperationGuard>() + size_of::<WaitGuard>() + size_of::<HoldGuard>(), 0);
    }
}
