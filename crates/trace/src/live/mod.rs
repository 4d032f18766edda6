//! The probes of a build that records.
//!
//! Without a recording, a probe is one relaxed load and a branch, and its guard records no end. During a
//! recording, a probe finds the thread's recorder through a thread-local pointer without destructor, and
//! writes 32 bytes.
//!
//! - **PROBE-1** [`RECORDER`] is null or the only pointer to a `Recorder` that this thread created. Only this
//!   thread frees the recorder, in [`renew`] or in [`Owner`]'s destructor, and sets the pointer to null
//!   before.
//! - **PROBE-2** No code of the program runs while a reference to the recorder exists (no callback, no
//!   allocation, no foreign destructor), so there is never a second reference. Signal handlers must not call
//!   probes.

mod clock;
mod collector;
mod cpu;
mod event_buffer;
mod instance;
mod machine;
pub mod parts;
mod plain_mutex;
mod quota;
mod recorder;
mod registry;
mod sample_counts;
mod sampler;
mod session;
mod signal;
mod stack;
mod stride;
mod thread_state;
mod track;

pub(crate) use registry::Registration;
pub use session::{Suspension, start, stop, suspend};

use crate::event::{Event, EventKind, SHARED};
use crate::{HoldMode, Operation, Site, ThreadTag, WaitKind};
use azekura_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use azekura_base::sync::machine::simulated;
use recorder::Recorder;
use registry::{OPERATIONS, Registry, SITES};
use session::SESSION;
use std::cell::Cell;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ptr;
use track::When;

// `per_thread!` gives each thread of a simulated machine its own value.
azekura_base::per_thread! { static RECORDER: Cell<*mut Recorder> = const { Cell::new(ptr::null_mut()) }; }
azekura_base::per_thread! { static STATE: Cell<State> = const { Cell::new(State::Open) }; }
azekura_base::per_thread! { static OWNER: Owner = const { Owner }; }
azekura_base::per_thread! { static TAG: Cell<u32> = const { Cell::new(0) }; }
// Number of holds up to and including the next recorded one; 0 before the first hold. A separate
// thread-local, because most holds are only counted. The next recording continues the count of an earlier
// one: draws are independent.
azekura_base::per_thread! { static HOLDS_LEFT: Cell<u32> = const { Cell::new(0) }; }
// The remaining count while the next hold is recorded out of turn, because the thread waited; otherwise 0.
azekura_base::per_thread! { static HOLDS_KEPT: Cell<u32> = const { Cell::new(0) }; }

/// Returns `true` if the hold that begins is not recorded, and counts it.
#[inline]
fn is_passed_over() -> bool {
    let left = HOLDS_LEFT.get();
    if left > 1 {
        HOLDS_LEFT.set(left - 1);
    }
    left > 1
}

/// Makes the next hold reach the recorder, because the thread waited.
fn look_at_next_hold() {
    if HOLDS_KEPT.get() == 0 && HOLDS_LEFT.get() > 1 {
        HOLDS_KEPT.set(HOLDS_LEFT.replace(1));
    }
}

/// State of this thread's recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The thread is creating its recorder: an allocator with probes must not create another one.
    Making,
    /// The thread is ending.
    Ended,
}

/// Frees the thread's recorder when the thread ends.
struct Owner;

impl Drop for Owner {
    fn drop(&mut self) {
        STATE.set(State::Ended);
        discard();
    }
}

fn discard() {
    let recorder = RECORDER.replace(ptr::null_mut());
    if !recorder.is_null() {
        // SAFETY: PROBE-1: made by Box::into_raw in `renew`, and the pointer was removed from RECORDER.
        drop(unsafe { Box::from_raw(recorder) });
    }
}

/// Runs `f` with this thread's recorder of `session`, if `session` is still the current recording.
#[inline]
fn with_recorder<R>(session: u32, f: impl FnOnce(&mut Recorder) -> R) -> Option<R> {
    let mut recorder = RECORDER.get();
    // SAFETY: PROBE-1.
    if recorder.is_null() || unsafe { (*recorder).session } != session {
        recorder = renew(session)?;
    }
    // SAFETY: PROBE-1, PROBE-2: every `f` in this module only records.
    Some(f(unsafe { &mut *recorder }))
}

/// Runs `f` with this thread's recorder of `session`, if there is one already. For ends, which are recorded
/// even if the recording is suspended (SESSION-2).
#[inline]
fn with_recorder_of<R>(session: u32, f: impl FnOnce(&mut Recorder) -> R) -> Option<R> {
    // SAFETY: PROBE-1, PROBE-2: as in `with_recorder`.
    unsafe { RECORDER.get().as_mut() }.filter(|recorder| recorder.session == session).map(f)
}

/// Creates the thread's recorder at its first event in a recording. Allocates, once per thread and recording.
#[cold]
#[inline(never)]
fn renew(session: u32) -> Option<*mut Recorder> {
    if SESSION.load(Relaxed) != session || STATE.get() != State::Open {
        return None;
    }
    STATE.set(State::Making);
    discard();
    // From here on the destructor runs at the thread's end. If the thread is already ending, nothing is
    // recorded.
    let recorder = OWNER
        .try_with(|_| ())
        .ok()
        .and_then(|()| session::join(thread_tag().0))
        .map(|recorder| (recorder.session == session, Box::into_raw(Box::new(recorder))));
    STATE.set(State::Open);
    let (current, recorder) = recorder?;
    RECORDER.set(recorder);
    current.then_some(recorder)
}

/// A guard of an operation, which lasts from [`operation`] to the drop. Belongs to the thread that began the
/// operation.
#[derive(Debug)]
#[must_use = "the operation ends when this is dropped"]
pub struct OperationGuard {
    /// The recording; 0 if no end is recorded.
    session: u32,
    depth: u32,
    here: PhantomData<*const ()>,
}

/// Begins an operation on this thread, inside the thread's current operation, if there is one.
///
/// Costs one relaxed load without a recording. During a recording, costs a nanosecond, and another one at the
/// end. A timed execution costs about twenty nanoseconds. All executions of operations of forty microseconds
/// or more are timed, and a random sample of shorter ones
/// ([`Options::operation_sampling`](crate::Options::operation_sampling)). Never blocks; the thread's first
/// event in a recording allocates its ring.
#[inline]
pub fn operation(operation: &'static Operation) -> OperationGuard {
    match SESSION.load(Relaxed) {
        0 => OperationGuard { session: 0, depth: 0, here: PhantomData },
        session => enter(session, operation),
    }
}

/// Begins an operation on the fast path of most executions, which is inlined; the others use
/// [`enter_slowly`].
#[inline]
fn enter(session: u32, operation: &'static Operation) -> OperationGuard {
    let id = Registry::known(&operation.0);
    // SAFETY: PROBE-1, PROBE-2.
    let recorder = unsafe { RECORDER.get().as_mut() };
    if (1..=MOST_OPERATIONS).contains(&id)
        && let Some(recorder) = recorder
        && recorder.session == session
        && let Some(depth) = recorder.enter_silently(id as u16)
    {
        return OperationGuard { session, depth: depth as u32, here: PhantomData };
    }
    enter_slowly(session, operation)
}

/// Largest number of an operation: events have 16 bits for it. Further operations are not recorded.
const MOST_OPERATIONS: u32 = u16::MAX as u32;

#[inline(never)]
fn enter_slowly(session: u32, operation: &'static Operation) -> OperationGuard {
    let id = u16::try_from(OPERATIONS.id(&operation.0)).unwrap_or(0);
    match with_recorder(session, |r| r.enter(id)).flatten() {
        Some(depth) => OperationGuard { session, depth: depth as u32, here: PhantomData },
        None => OperationGuard { session: 0, depth: 0, here: PhantomData },
    }
}

impl Drop for OperationGuard {
    #[inline]
    fn drop(&mut self) {
        if self.session == 0 {
            return;
        }
        // SAFETY: PROBE-1, PROBE-2. The state of the recording does not matter here: no event is recorded.
        let is_left = unsafe { RECORDER.get().as_mut() }
            .is_some_and(|r| r.session == self.session && r.leave_silently(self.depth as usize));
        if !is_left {
            leave(self);
        }
    }
}

#[inline(never)]
fn leave(guard: &OperationGuard) {
    with_recorder_of(guard.session, |r| r.leave(guard.depth as usize));
}

/// A guard of a wait, which lasts from [`wait`] to the drop. Belongs to the thread that waits.
#[derive(Debug)]
#[must_use = "the wait ends when this is dropped"]
pub struct WaitGuard {
    session: u32,
    site: u32,
    object: u64,
    here: PhantomData<*const ()>,
}

/// Begins a contended wait for `object`, an instance of `site`; the guard's drop ends it.
///
/// Call this function only if the resource was not available at once: an uncontended acquisition is no wait,
/// and recording it would distort the result (hazard T1). Waits may be nested (hazard T4).
#[inline]
pub fn wait(site: &'static Site, object: usize, kind: WaitKind) -> WaitGuard {
    wait_for(site, object, kind, ThreadTag::NONE)
}

/// Begins a wait as [`wait`] does, for a resource with a known holder, which the report then names.
#[inline]
pub fn wait_for(site: &'static Site, object: usize, kind: WaitKind, holder: ThreadTag) -> WaitGuard {
    match SESSION.load(Relaxed) {
        0 => WaitGuard { session: 0, site: 0, object: 0, here: PhantomData },
        session => begin_wait(session, site, instance::number(object), kind, holder),
    }
}

#[inline(never)]
fn begin_wait(
    session: u32,
    site: &'static Site,
    object: u64,
    kind: WaitKind,
    holder: ThreadTag,
) -> WaitGuard {
    let site = SITES.id(&site.0);
    let operation = thread_state::operation_of(holder);
    let argument = kind as u64 | u64::from(operation) << 8 | u64::from(holder.0) << 32;
    let begun =
        with_recorder(session, |r| r.record(When::Before, EventKind::WaitBegin, site, object, argument));
    let session = if begun.is_some() { session } else { 0 };
    WaitGuard { session, site, object, here: PhantomData }
}

impl Drop for WaitGuard {
    #[inline]
    fn drop(&mut self) {
        if self.session != 0 {
            end_wait(self);
        }
    }
}

#[inline(never)]
fn end_wait(guard: &WaitGuard) {
    let is_suspended = SESSION.load(Relaxed) != guard.session;
    with_recorder_of(guard.session, |r| {
        // `Later`: the waiter now holds the resource, and others may wait for it.
        r.record(When::Later, EventKind::WaitEnd, guard.site, guard.object, 0);
        // While the recording is suspended, the hold that follows is not recorded.
        r.waited = if is_suspended { (0, 0) } else { (guard.site, guard.object) };
    });
    if !is_suspended {
        look_at_next_hold();
    }
}

/// A guard of a hold, which lasts from [`hold`] to the drop.
#[derive(Debug)]
#[must_use = "the hold ends when this is dropped"]
pub struct HoldGuard {
    /// The hold; `None` if it is not recorded.
    held: Option<Held>,
    here: PhantomData<*const ()>,
}

/// A hold that is recorded when it ends.
#[derive(Debug)]
struct Held {
    session: NonZeroU32,
    site: u32,
    object: u64,
    begin: u64,
    flags: u8,
}

/// Begins a hold of `object`. Drop the guard just after the release of `object`.
///
/// A random sample of the holds is recorded ([`Options::hold_sampling`](crate::Options::hold_sampling)), from
/// which the throughput ceiling of the lock is computed. Each hold that follows a wait is recorded too,
/// because it names the holder for the next waiter. Other holds cost about a nanosecond and read no clock.
#[inline]
pub fn hold(site: &'static Site, object: usize, mode: HoldMode) -> HoldGuard {
    let session = SESSION.load(Relaxed);
    if session == 0 || is_passed_over() {
        return HoldGuard { held: None, here: PhantomData };
    }
    begin_hold(session, site, instance::number(object), mode)
}

#[inline(never)]
fn begin_hold(session: u32, site: &'static Site, object: u64, mode: HoldMode) -> HoldGuard {
    let site = SITES.id(&site.0);
    let held = drawn(session, mode, |waited| waited == (site, object));
    HoldGuard { held: held.map(|held| Held { site, object, ..held }), here: PhantomData }
}

/// Returns the hold that begins, still without its object, if it is recorded. `is_of` returns `true` if the
/// thread's last wait was for this object.
fn drawn(session: u32, mode: HoldMode, is_of: impl FnOnce((u32, u64)) -> bool) -> Option<Held> {
    let begun = with_recorder(session, |r| {
        let waited = is_of(std::mem::take(&mut r.waited));
        let left = match HOLDS_KEPT.replace(0) {
            0 => HOLDS_LEFT.get(),
            kept => kept,
        };
        let begun = r.begin_hold(left, waited);
        HOLDS_LEFT.set(r.holds_left());
        begun
    });
    let (begin, flags) = begun.flatten()?;
    let flags = flags | if mode == HoldMode::Shared { SHARED } else { 0 };
    Some(Held { session: NonZeroU32::new(session)?, site: 0, object: 0, begin, flags })
}

impl Drop for HoldGuard {
    #[inline]
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            end_hold(held);
        }
    }
}

#[inline(never)]
fn end_hold(held: &Held) {
    with_recorder_of(held.session.get(), |r| {
        let argument = r.ticks().saturating_sub(held.begin);
        let (operation, site) = (r.operation(), held.site);
        let event = Event { flags: held.flags, operation, site, ..Event::new(0, EventKind::Hold) };
        r.record_let_go(Event { object: held.object, argument, ..event });
    });
}

/// Records that this thread has just released `object` while other threads wait for it.
///
/// For locks that detect waiters at the release. Writes one event.
#[inline]
pub fn released(site: &'static Site, object: usize) {
    match SESSION.load(Relaxed) {
        0 => {}
        session => end_unseen_hold(session, site, instance::number(object)),
    }
}

/// Marks this instant with a value that the program chooses, such as a phase or a size.
#[inline]
pub fn mark(site: &'static Site, value: u64) {
    match SESSION.load(Relaxed) {
        0 => {}
        session => record_once(session, EventKind::Mark, site, value),
    }
}

#[inline(never)]
fn end_unseen_hold(session: u32, site: &'static Site, object: u64) {
    let site = SITES.id(&site.0);
    with_recorder(session, |r| {
        let operation = r.operation();
        r.record_let_go(Event { operation, site, object, ..Event::new(0, EventKind::Release) });
    });
}

#[inline(never)]
fn record_once(session: u32, kind: EventKind, site: &'static Site, object: u64) {
    let site = SITES.id(&site.0);
    with_recorder(session, |r| r.record(When::After, kind, site, object, 0));
}

/// Returns this thread's number in traces, which never changes. A lock may store it to name its holder.
#[inline]
#[must_use]
pub fn thread_tag() -> ThreadTag {
    match TAG.get() {
        0 => ThreadTag(draw_tag()),
        tag => ThreadTag(tag),
    }
}

/// Draws this thread's number. On a simulated machine, uses the machine's number of the thread: random
/// samples depend on this number, and must be the same in each run.
#[cold]
fn draw_tag() -> u32 {
    static TAGS: AtomicU32 = AtomicU32::new(0);
    let tag = match simulated() {
        Some(machine) => machine.thread_number() as u32 + 1,
        None => TAGS.fetch_add(1, Relaxed) + 1, // only distinct numbers matter
    };
    TAG.set(tag);
    tag
}

/// Returns `true` if a recording is running. One relaxed load.
#[inline]
#[must_use]
pub fn is_enabled() -> bool {
    SESSION.load(Relaxed) != 0
}
