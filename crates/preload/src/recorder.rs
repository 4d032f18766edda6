//! The recorder of one thread, which writes events into the ring of a slot in the area.
//!
//! A recorder is stored in the slot's own memory, so that creating it allocates nothing. Only its thread uses
//! it, and only inside `quietly`.

use crate::local::local;
use crate::session::{Session, is_usable, usable_slots};
use crate::sites;
use azekura_trace::area::{self, Area, Called, MAIN, Mapped, ThreadSlot, UNKNOWN_START, state};
use azekura_trace::event::{Event, EventKind, SHARED, UNWOKEN, WAITED, WOKE};
use azekura_trace::file::{CpuSource, TimeSource};
use azekura_trace::parts::{SampleCounts, Sampler, Track, When, thread_id, time_source};
use azekura_trace::ring::Producer;
use azekura_trace::{HoldMode, WaitKind};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// On average, one of this number of holds is sampled.
const HOLD_SAMPLING: u32 = 256;
/// Number of holds of one thread that can be recorded at a time: small, because few holds are sampled.
const HOLDS: usize = 16;

static DRAWN: SampleCounts = SampleCounts::new();

/// A thread's recorder.
pub(crate) struct Thread {
    pub(crate) area: Area,
    index: usize,
    operation: u16,
    track: Track<Mapped>,
    sampler: Sampler<&'static SampleCounts>,
    /// The object of the last wait: a hold of it that follows is recorded.
    waited: u64,
    held: [Held; HOLDS],
}

/// A hold that is recorded when it ends.
#[derive(Clone, Copy)]
struct Held {
    object: u64,
    begin: u64,
    site: u32,
    flags: u8,
    /// See [`is_signal`].
    is_signal: bool,
}

const NONE: Held = Held { object: 0, begin: 0, site: 0, flags: 0, is_signal: false };

/// Returns `true` if one thread may wait for an object of this sort and another signal it. Such an object is
/// used as a lock if the waiter itself signals it afterward; crates/record decides.
fn is_signal(called: Called) -> bool {
    matches!(called, Called::Semaphore | Called::Condition | Called::Futex)
}

const _: () = assert!(size_of::<Thread>() <= area::SLOT_HEAD - area::OWN_AT && align_of::<Thread>() <= 64);

/// Adds the calling thread to recording `command`: claims a slot and records the begin of the thread's
/// operation. Returns null if no slot is free. Such a thread is counted in its first call.
#[cold]
pub(crate) fn join(session: &Session, command: u32, is_first: bool) -> *mut Thread {
    let area = session.area;
    let missed = [&area.header().threads_missed, &session.process().threads_missed];
    let Some(index) = claim(&area, session.number()) else {
        missed.iter().for_each(|count| _ = count.fetch_add(u32::from(is_first), Relaxed));
        return ptr::null_mut();
    };
    missed.iter().for_each(|count| _ = count.fetch_sub(u32::from(!is_first), Relaxed));
    let (slot, header) = (area.slot(index), area.header());
    slot.counters.reset();
    // Relaxed: the slot's state publishes the values stored below.
    let tag = header.tags.fetch_add(1, Relaxed) + 1;
    let cpu = match header.cpu.load(Relaxed) {
        n if n == CpuSource::Rseq as u32 => CpuSource::Rseq,
        _ => CpuSource::ThreadClock,
    };
    let start = match local().start.get() {
        0 if thread_id() == session.process_id() => MAIN,
        0 => UNKNOWN_START,
        start => start as u64,
    };
    let operation = sites::operation(&area, start);
    let time: TimeSource = time_source();
    let track = Track::new(time, cpu, Producer::new(area.ring(index)));
    // Relaxed: published by the slot's state.
    slot.command.store(command, Relaxed);
    slot.os_id.store(thread_id(), Relaxed);
    slot.tag.store(tag, Relaxed);
    slot.process.store(session.process_index() as u32, Relaxed);
    slot.owner.store(session.owner(), Relaxed);
    // Relaxed: published by the slot's state.
    slot.cpu.store(track.cpu_source() as u32, Relaxed);
    slot.waiting.store(0, Relaxed);
    slot.end.iter().for_each(|word| word.store(0, Relaxed));
    put_name(slot);
    let sampler = Sampler::new(HOLD_SAMPLING, tag, &DRAWN);
    let thread = area.own(index).cast::<Thread>().as_ptr();
    let fresh = Thread { area, index, operation, track, sampler, waited: 0, held: [NONE; HOLDS] };
    // SAFETY: the memory is the part of the slot for the recorder, large enough and aligned, and claimed by
    // this thread (AREA-2).
    unsafe { put(fresh, thread) };
    // Release: pairs with the Acquire of the recorder, which reads the states; the slot's head is visible.
    area.state(index).store(u64::from(session.number()) << 32 | state::LIVE, Release);
    // SAFETY: initialized above.
    let track = unsafe { &mut (*thread).track };
    track.record(When::Before, Event { operation, ..Event::new(0, EventKind::Enter) });
    thread
}

/// Claims a slot, and ensures that it has memory (AREA-3).
fn claim(area: &Area, process: u32) -> Option<usize> {
    let header = area.header();
    // Acquire: pairs with the Release in `Area::grow` (AREA-3).
    let ready = header.ready.load(Acquire) as usize;
    let slots = area.layout().slots.min(usable_slots());
    let hint = header.hint.load(Relaxed) as usize;
    let claimed = u64::from(process) << 32 | state::CLAIMED;
    let free = (0..slots).map(|i| (hint + i) % slots).find(|&index| {
        let word = area.state(index);
        if word.load(Relaxed) != state::FREE {
            return false;
        }
        // Relaxed: see `Area::slots_in_use`. Before the claim, so that the recorder finds the slot of a
        // thread that is killed.
        header.claimed.fetch_max(index as u32 + 1, Relaxed);
        // AcqRel: pairs with the Release by which the recorder freed the slot after its last read.
        let is_claimed = word.compare_exchange(state::FREE, claimed, AcqRel, Relaxed).is_ok();
        if is_claimed && !is_usable(index) {
            word.store(state::FREE, Release); // pairs with the AcqRel of the next claim
            return false;
        }
        is_claimed
    })?;
    if free >= ready && !area.populate(free) {
        area.state(free).store(state::FREE, Release); // pairs with the AcqRel of the next claim
        return None;
    }
    // Relaxed: the hint orders nothing else. The next thread does not search the used slots before this one.
    header.hint.store(free as u32 + 1, Relaxed);
    Some(free)
}

/// Writes a recorder into its slot without a call of `memcpy`. ThreadSanitizer would see that call, but not
/// the order between it and the slot's earlier thread.
///
/// # Safety
///
/// The address is valid for writes of a recorder, and aligned.
unsafe fn put(fresh: Thread, at: *mut Thread) {
    type Word = MaybeUninit<u64>;
    const { assert!(size_of::<Thread>().is_multiple_of(size_of::<Word>()) && align_of::<Thread>() >= 8) };
    let fresh = ManuallyDrop::new(fresh);
    let from = (&raw const fresh).cast::<Word>();
    for index in 0..size_of::<Thread>() / size_of::<Word>() {
        // SAFETY: both addresses are within recorders, and any bytes are valid words. Volatile: the compiler
        // makes no `memcpy` of the loop.
        unsafe { at.cast::<Word>().add(index).write_volatile(from.add(index).read()) };
    }
}

/// Stores the thread's present name. Threads often get their names some time after their start.
fn put_name(slot: &ThreadSlot) {
    let mut name = [0_u64; 2];
    // SAFETY: the kernel writes 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    slot.name.iter().zip(name).for_each(|(word, value)| word.store(value, Relaxed));
}

impl Thread {
    /// Records the begin of a wait; returns its site.
    pub(crate) fn begin_wait(&mut self, called: Called, from: usize, object: usize, kind: WaitKind) -> u32 {
        let site = sites::site(&self.area, called, from);
        self.enter_wait();
        let event = self.event(EventKind::WaitBegin, site, object as u64);
        self.track.record(When::Before, Event { argument: kind as u64, ..event });
        site
    }

    /// Records the end of a wait, without an anchor: the thread now holds the resource, and others may wait
    /// for it.
    pub(crate) fn end_wait(&mut self, site: u32, object: usize, is_woken: bool) {
        self.leave_wait();
        let event = self.event(EventKind::WaitEnd, site, object as u64);
        let flags = if is_woken { 0 } else { UNWOKEN };
        self.track.record(When::Later, Event { flags, ..event });
        self.waited = object as u64;
        let local = local();
        if local.holds_kept.get() == 0 && local.holds_left.get() > 1 {
            local.holds_kept.set(local.holds_left.replace(1));
        }
    }

    /// Starts to watch a call that seldom waits: see [`Track::watch`].
    pub(crate) fn watch(&mut self) -> Option<u64> {
        let begun = self.track.watch();
        if begun.is_some() {
            self.enter_wait();
        }
        begun
    }

    /// Ends the watch of a call. Returns `true` if the thread has left its processor since [`Thread::watch`].
    pub(crate) fn end_watch(&self) -> bool {
        self.leave_wait();
        self.track.has_left()
    }

    /// Tells the recorder that the thread is in a call with a probe, so that samples of its waits count only
    /// the other calls. A signal handler may wait inside of such a call.
    fn enter_wait(&self) {
        // Relaxed, here and below: a hint for samples, which publishes no other data. Only this thread
        // writes.
        let waiting = &self.area.slot(self.index).waiting;
        waiting.store(waiting.load(Relaxed).saturating_add(1), Relaxed);
    }

    fn leave_wait(&self) {
        let waiting = &self.area.slot(self.index).waiting;
        waiting.store(waiting.load(Relaxed).saturating_sub(1), Relaxed);
    }

    /// Tells the recorder that the thread has left all calls with a probe by a jump.
    pub(crate) fn leave_waits(&self) {
        self.area.slot(self.index).waiting.store(0, Relaxed); // as in `enter_wait`
    }

    /// Records the watched call as a wait from `begin` until now.
    pub(crate) fn waited(&mut self, begin: u64, called: Called, from: usize, object: usize, kind: WaitKind) {
        let site = sites::site(&self.area, called, from);
        let first = self.event(EventKind::WaitBegin, site, object as u64);
        let last = self.event(EventKind::WaitEnd, site, object as u64);
        self.track.record_past(Event { ticks: begin, argument: kind as u64, ..first }, last);
    }

    /// Records that the thread is about to wake a waiter.
    pub(crate) fn wakes(&mut self, called: Called, from: usize, object: usize) {
        let site = sites::site(&self.area, called, from);
        let event = self.event(EventKind::Release, site, object as u64);
        self.track.record(When::After, Event { flags: WOKE, ..event });
    }

    /// Records a mark for an object.
    pub(crate) fn mark(&mut self, called: Called, from: usize, object: usize) {
        let site = sites::site(&self.area, called, from);
        let event = self.event(EventKind::Mark, site, object as u64);
        self.track.record(When::After, event);
    }

    /// Begins a hold, and decides whether it is recorded. Not called for holds that `passes_over_hold` has
    /// counted.
    pub(crate) fn begin_hold(&mut self, called: Called, from: usize, object: usize, mode: HoldMode) {
        let local = local();
        let waited = std::mem::take(&mut self.waited) == object as u64;
        let left = match local.holds_kept.replace(0) {
            0 => local.holds_left.get(),
            kept => kept,
        };
        if left > 0 {
            self.sampler.wind_to(left);
        }
        let drawn = self.sampler.draw_next() | if waited { WAITED } else { 0 };
        local.holds_left.set(self.sampler.until());
        if drawn == 0 {
            return;
        }
        let is_signal = is_signal(called);
        self.forget_signal(object as u64, is_signal);
        let count = local.held.get() as usize;
        if count >= HOLDS {
            return;
        }
        let flags = drawn | if mode == HoldMode::Shared { SHARED } else { 0 };
        let site = sites::site(&self.area, called, from);
        let begin = self.track.ticks();
        self.held[count] = Held { object: object as u64, begin, site, flags, is_signal };
        local.held.set(count as u32 + 1);
    }

    /// Removes a hold of a signal: one of the same object that is taken again, or any one if all places are
    /// in use. This thread has not signaled that object.
    fn forget_signal(&mut self, object: u64, is_taken_again: bool) {
        let local = local();
        let count = (local.held.get() as usize).min(HOLDS);
        let is_full = count == HOLDS;
        let is_old = |held: &Held| held.is_signal && (is_full || (is_taken_again && held.object == object));
        if let Some(index) = self.held[..count].iter().position(is_old) {
            self.held.copy_within(index + 1..count, index);
            local.held.set(count as u32 - 1);
        }
    }

    /// Records the hold of the lock at `object`, if it was sampled, at its release.
    pub(crate) fn end_hold(&mut self, object: usize) {
        let local = local();
        let count = (local.held.get() as usize).min(HOLDS);
        let Some(index) = (0..count).rev().find(|&i| self.held[i].object == object as u64) else { return };
        let held = self.held[index];
        self.held[index] = self.held[count - 1];
        local.held.set(count as u32 - 1);
        let event = self.event(EventKind::Hold, held.site, held.object);
        let argument = self.track.ticks().saturating_sub(held.begin);
        self.track.record(When::After, Event { flags: held.flags, argument, ..event });
    }

    fn event(&self, kind: EventKind, site: u32, object: u64) -> Event {
        Event { operation: self.operation, site, object, ..Event::new(0, kind) }
    }

    /// Stores the thread's changed name.
    pub(crate) fn renamed(&mut self) {
        put_name(self.area.slot(self.index));
    }

    /// Records the end of the thread's operation and closes the slot.
    pub(crate) fn leave(&mut self) {
        let exit = self.event(EventKind::Exit, 0, 0);
        self.track.record(When::After, exit);
        self.track.take_owed_anchor();
        let slot = self.area.slot(self.index);
        put_name(slot);
        slot.counters.close();
        let word = self.area.state(self.index);
        // Release: pairs with the Acquire of the recorder; all events are in the ring.
        word.store(word.load(Relaxed) >> 32 << 32 | state::CLOSED, Release);
    }
}
