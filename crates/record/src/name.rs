//! Replaces the addresses of a trace by names, and closes its open operations and waits.
//!
//! A thread that leaves a wait by `siglongjmp` records no end of the wait. Such a wait ends with the thread's
//! next event. (Events of a signal handler are inside the wait that it interrupts: this wait has an end.)
//!
//! The library writes a site as the name of the call, with `@` and the caller's address as file. It writes an
//! operation in the same way, with the address of a thread's first function. A thread is one operation, and
//! most threads of a server outlive the recording, so open operations and waits end with the recording.

use crate::blocked::{self, Blocked};
use crate::stacks::Stacks;
use crate::symbols::{Files, Symbols};
use crate::{faults, handoff, locks, spins};
use crate::{frames, threads};
use azekura_trace::WaitKind;
use azekura_trace::area::NAMES;
use azekura_trace::event::{Event, EventKind, SWITCHED, UNWOKEN, WOKE};
use azekura_trace::file::{Name, ThreadTrace, Trace};
use std::collections::{BTreeMap, HashMap, HashSet};

/// A call site, as the library recorded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Called {
    /// The name of the call.
    pub(crate) what: &'static str,
    /// The last byte of the call instruction, which precedes the recorded return address.
    pub(crate) address: u64,
}

/// Calls on objects; a program may have many objects of each of these sorts. The other calls are identified
/// by their call sites alone.
const OBJECTS: [&str; 7] = ["mutex", "spin lock", "rwlock", "futex", "condition", "semaphore", "barrier"];
/// Objects that any thread may signal.
pub(crate) const SIGNALS: [&str; 3] = ["futex", "condition", "semaphore"];
/// A frame above the function that waits: recorded as marks directly before the wait, the innermost first.
pub(crate) const CALLER: &str = "caller";

impl Called {
    fn of(name: &Name) -> Option<Self> {
        let what = NAMES.iter().find(|what| **what == name.name)?;
        // The return address may belong to the next function.
        Some(Self { what, address: address(&name.file)?.saturating_sub(1) })
    }

    pub(crate) fn is_object(&self) -> bool {
        OBJECTS.contains(&self.what)
    }
}

/// Returns the address in a recorded name.
fn address(file: &str) -> Option<u64> {
    u64::from_str_radix(file.strip_prefix('@')?, 16).ok()
}

/// Replaces addresses by names, and closes open operations and waits. A trace without addresses keeps its
/// names.
#[must_use]
pub fn name(trace: Trace) -> Trace {
    name_with(trace, &mut Files::default(), &Blocked::default())
}

/// Replaces addresses as [`name`] does, and adds the samples in `blocked`. Reads only the files that were not
/// read for the trace before.
pub(crate) fn name_with(mut trace: Trace, files: &mut Files, blocked: &Blocked) -> Trace {
    trace.threads.iter_mut().for_each(end_left_waits);
    let symbols = Symbols::with(&trace.modules, files);
    let calls: HashMap<u32, Called> =
        trace.sites.iter().filter_map(|(id, name)| Some((*id, Called::of(name)?))).collect();
    let handed = handoff::unite(&mut trace, &calls);
    let (objects, kinds) = locks::names(&trace, &calls, &symbols, &handed);
    let beginnings = threads::beginnings(&trace, &calls, &symbols);
    let mut sites = Sites::default();
    let plain: HashMap<u32, u32> = trace
        .sites
        .iter()
        .map(|(id, name)| (*id, sites.id(call_name(name, calls.get(id), &symbols))))
        .collect();
    let named: HashMap<u64, u32> =
        objects.into_iter().map(|(object, name)| (object, sites.id(name))).collect();
    let end = trace.end.ticks;
    let single = woken_one_by_one(&trace.threads);
    let mut stacks = Stacks::new(&symbols);
    for thread in &mut trace.threads {
        // A single waiter that is woken and waits again came second to another thread: it is no herd.
        let is_single =
            |event: &&mut Event| event.kind == EventKind::WaitEnd && single.contains(&event.object);
        thread.events.iter_mut().filter(is_single).for_each(|event| event.flags |= UNWOKEN);
        // Wake-ups are used as evidence only. (The kind of event, no ordering.)
        keep(&mut thread.events, |event| event.kind != EventKind::Release || event.flags & WOKE == 0);
        let is_object = |event: &Event| calls.get(&event.site).is_some_and(Called::is_object);
        stacks.replace_marks(thread, &calls);
        decide(thread, &calls, &kinds);
        for event in &mut thread.events {
            let object = if is_object(event) { named.get(&event.object) } else { None };
            event.site = object.or_else(|| plain.get(&event.site)).copied().unwrap_or(event.site);
        }
        close(thread, end);
    }
    stacks.add_to(&mut trace);
    spins::find(&mut trace, &symbols, &mut sites);
    faults::name(&mut trace, &symbols, &mut sites);
    blocked::name(&mut trace, &symbols, &mut sites, blocked);
    let used: HashSet<u32> = trace
        .threads
        .iter()
        .flat_map(|thread| &thread.events)
        .map(|event| event.site)
        .chain(trace.samples.iter().chain(&trace.faults).chain(&trace.blocked).map(|sample| sample.site))
        .collect();
    trace.sites = sites.by_id().into_iter().filter(|(id, _)| used.contains(id)).collect();
    for name in trace.operations.values_mut() {
        if let Some(address) = address(&name.file) {
            let place = symbols.code(address);
            *name = Name { name: place.function, file: place.file, line: place.line };
        }
    }
    threads::name(&mut trace, &beginnings);
    trace.modules.clear();
    trace
}

/// Removes the events for which `is_kept` returns `false`. If a removed event is the first one after a
/// context switch, the next one is. Otherwise, the thread would seem to run from the event before the switch
/// on.
fn keep(events: &mut Vec<Event>, is_kept: impl Fn(&Event) -> bool) {
    let mut switched = 0;
    events.retain_mut(|event| {
        if is_kept(event) {
            event.flags |= std::mem::take(&mut switched);
            return true;
        }
        switched |= event.flags & SWITCHED;
        false
    });
}

/// Returns an event to insert before `next`, at the same time, with these flags. It is the first one after a
/// context switch if `next` was.
pub(crate) fn before(next: &mut Event, kind: EventKind, flags: u8) -> Event {
    let switched = next.flags & SWITCHED;
    next.flags &= !SWITCHED;
    Event { kind, flags: flags | switched, ..*next }
}

/// Ends each wait that has no end before the thread's next event, if there is one. Anchors are no such
/// events: the recorder adds them for threads that still wait. Waits before lost events remain open.
fn end_left_waits(thread: &mut ThreadTrace) {
    let mut open: Vec<usize> = Vec::new();
    let mut left: Vec<usize> = Vec::new();
    for (at, event) in thread.events.iter().enumerate() {
        match event.kind {
            EventKind::WaitBegin => open.push(at),
            EventKind::WaitEnd => {
                let is_it = |begin: &usize| {
                    let begin = thread.events[*begin];
                    (begin.site, begin.object) == (event.site, event.object)
                };
                // Waits inside the one that ends here were left, too.
                if let Some(place) = open.iter().rposition(is_it) {
                    left.extend(open.drain(place..).skip(1));
                }
            }
            EventKind::Lost => open.clear(),
            _ => {}
        }
    }
    left.extend(open);
    if left.is_empty() {
        return;
    }
    left.sort_unstable();
    let mut left = left.into_iter().peekable();
    let mut open: Option<Event> = None;
    let mut events = Vec::with_capacity(thread.events.len() + left.len());
    for (at, mut event) in std::mem::take(&mut thread.events).into_iter().enumerate() {
        if event.kind != EventKind::Anchor
            && let Some(begin) = open.take()
        {
            let Event { ticks, kind, flags, .. } = before(&mut event, EventKind::WaitEnd, UNWOKEN);
            events.push(Event { ticks, kind, flags, argument: 0, ..begin });
        }
        events.push(event);
        if left.next_if_eq(&at).is_some() {
            open = Some(event);
        }
    }
    thread.events = events;
}

/// Returns the objects with about as many wake-up calls as woken waiters: each call wakes one.
fn woken_one_by_one(threads: &[ThreadTrace]) -> HashSet<u64> {
    let mut counts: HashMap<u64, (u64, u64)> = HashMap::new();
    for event in threads.iter().flat_map(|thread| &thread.events) {
        let is_end = event.kind == EventKind::WaitEnd && event.flags & UNWOKEN == 0;
        let is_wake = event.kind == EventKind::Release && event.flags & WOKE != 0;
        if is_end || is_wake {
            let (woken, wakes) = counts.entry(event.object).or_default();
            (*woken, *wakes) = (*woken + u64::from(is_end), *wakes + u64::from(is_wake));
        }
    }
    // A herd has at least two woken waiters for each call. Calls that are lost make the ratio larger.
    let is_single = |(woken, wakes): &(u64, u64)| *wakes > 0 && *woken * 2 <= *wakes * 3;
    counts.into_iter().filter(|(_, counts)| is_single(counts)).map(|(object, _)| object).collect()
}

/// Sets the kind of the waits for semaphores, condition variables and futexes as the evidence decides.
/// Removes the holds of objects that are not locks.
fn decide(thread: &mut ThreadTrace, calls: &HashMap<u32, Called>, kinds: &HashMap<u64, WaitKind>) {
    let is_signal =
        |event: &Event| calls.get(&event.site).is_some_and(|called| SIGNALS.contains(&called.what));
    let is_lock = |event: &Event| kinds.get(&event.object) == Some(&WaitKind::Other);
    keep(&mut thread.events, |event| event.kind != EventKind::Hold || !is_signal(event) || is_lock(event));
    for event in thread.events.iter_mut().filter(|event| event.kind == EventKind::WaitBegin) {
        if is_signal(event)
            && let Some(kind) = kinds.get(&event.object)
        {
            event.argument = event.argument >> 8 << 8 | *kind as u64;
        }
    }
}

/// Returns the name of a call site that has no object.
fn call_name(name: &Name, called: Option<&Called>, symbols: &Symbols) -> Name {
    match called {
        None => name.clone(),
        Some(called) => {
            let place = frames::own(&symbols.frames(called.address));
            Name {
                name: format!("{} in {}", called.what, place.function),
                file: place.file,
                line: place.line,
            }
        }
    }
}

/// Ends the open operations and waits at the end of the recording, and before lost events. After lost events,
/// the thread's first operation begins again, because the thread's first function has not ended.
fn close(thread: &mut ThreadTrace, end: u64) {
    let Some(last) = thread.events.last().map(|event| event.ticks.max(end)) else { return };
    let mut open = Open::default();
    let mut events = Vec::with_capacity(thread.events.len() + 2);
    for event in std::mem::take(&mut thread.events) {
        if event.kind == EventKind::Lost {
            let outermost = open.operations.first().copied();
            let before = events.last().map_or(event.ticks, |e: &Event| e.ticks);
            open.end(before, &mut events);
            events.push(event);
            if let Some(operation) = outermost {
                let again = Event { operation, ..Event::new(event.ticks, EventKind::Enter) };
                open.take(&again);
                events.push(again);
            }
        } else {
            open.take(&event);
            events.push(event);
        }
    }
    open.end(last, &mut events);
    thread.events = events;
}

/// Operations and waits that a thread has begun and not ended.
#[derive(Debug, Default)]
struct Open {
    operations: Vec<u16>,
    waits: Vec<(u32, u64)>,
}

impl Open {
    fn take(&mut self, event: &Event) {
        match event.kind {
            EventKind::Enter => self.operations.push(event.operation),
            EventKind::Exit => {
                if let Some(depth) = self.operations.iter().rposition(|o| *o == event.operation) {
                    self.operations.truncate(depth);
                }
            }
            EventKind::WaitBegin => self.waits.push((event.site, event.object)),
            EventKind::WaitEnd => {
                if let Some(index) = self.waits.iter().rposition(|w| *w == (event.site, event.object)) {
                    self.waits.remove(index);
                }
            }
            _ => {}
        }
    }

    /// Ends all open waits and operations at `ticks`. Nothing is known about the thread since its last event,
    /// so its CPU time does not continue (a thread of a killed program may have slept).
    fn end(&mut self, ticks: u64, events: &mut Vec<Event>) {
        let operation = self.operations.last().copied().unwrap_or(0);
        let first = events.len();
        let is_later = events.last().is_some_and(|event| event.ticks < ticks);
        for (site, object) in self.waits.drain(..).rev() {
            let end = Event { operation, site, object, ..Event::new(ticks, EventKind::WaitEnd) };
            events.push(Event { flags: UNWOKEN, ..end });
        }
        for operation in self.operations.drain(..).rev() {
            events.push(Event { operation, ..Event::new(ticks, EventKind::Exit) });
        }
        if is_later && let Some(event) = events.get_mut(first) {
            event.flags |= SWITCHED;
        }
    }
}

/// Site ids by name: each name has one id.
#[derive(Debug, Default)]
pub(crate) struct Sites(BTreeMap<Name, u32>);

impl Sites {
    pub(crate) fn id(&mut self, name: Name) -> u32 {
        let next = self.0.len() as u32 + 1;
        *self.0.entry(name).or_insert(next)
    }

    fn by_id(self) -> BTreeMap<u32, Name> {
        self.0.into_iter().map(|(name, id)| (id, name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_trace::event::WAITED;
    use azekura_trace::file::{ClockSample, CpuSource, Encoder, ThreadInfo};

    /// Returns the kinds of the waits for the objects in these events, after the evidence has decided.
    fn kinds<const N: usize>(called: &str, threads: [&[Event]; N]) -> Vec<u64> {
        let mut encoder = Encoder::new();
        encoder.session(&crate::test_session("server"));
        encoder.clock(&ClockSample { ticks: 0, monotonic_ns: 0, process_cpu_ns: 0 });
        encoder.sites([(1, called, "@1000", 0)]);
        for (tag, events) in (1..).zip(threads) {
            encoder.thread(&ThreadInfo { tag, os_id: tag, name: "t".into(), cpu: CpuSource::None });
            encoder.events(tag, 0, events);
        }
        encoder.end(0);
        let trace = name(Trace::from_bytes(encoder.as_bytes()).unwrap());
        let events = trace.threads.iter().flat_map(|thread| &thread.events);
        events.filter(|e| e.kind == EventKind::WaitBegin).map(|e| e.argument & 0xff).collect()
    }

    const LOCK: u64 = WaitKind::Other as u64;
    const IDLE: u64 = WaitKind::Idle as u64;

    fn at(ticks: u64, kind: EventKind, flags: u8, argument: u64) -> Event {
        Event { site: 1, object: 0xabc, flags, argument, ..Event::new(ticks, kind) }
    }

    #[test]
    fn holds_of_an_object_without_other_waiters_make_no_lock() {
        use EventKind::{Hold, WaitBegin, WaitEnd};
        let wait = |begin, end| [at(begin, WaitBegin, 0, IDLE), at(end, WaitEnd, 0, 0)];
        let held = |end, ticks| at(end, Hold, WAITED, ticks);
        let [[a, b], [c, d], [e, f]] = [wait(10, 20), wait(40, 50), wait(15, 30)];
        // The same thread is woken and signals, as in a join or a queue's consumer: no thread is delayed.
        let alone: &[Event] = &[a, b, held(25, 5), c, d, held(55, 5)];
        assert_eq!(kinds("semaphore", [alone, &[]]), [IDLE, IDLE]);
        // Holds from 20 to 29, from 30 to 39 and from 40 to 49 each delay the other thread.
        let ([g, h], [i, j]) = (wait(32, 40), wait(42, 50));
        let first: &[Event] = &[a, b, held(29, 9), g, h, held(49, 9)];
        assert_eq!(kinds("semaphore", [first, &[e, f, held(39, 9), i, j, held(59, 9)]]), [LOCK; 4]);
        // A start and a stop: the first thread waits for the second one, and much later signals it.
        let ([k, l], [m, n]) = (wait(30, 500), wait(501, 991));
        assert_eq!(kinds("condition", [&[a, b, held(990, 970)], &[k, l, m, n]]), [IDLE; 3]);
        // One wait proves nothing.
        assert_eq!(kinds("semaphore", [&[a, b, held(25, 5)], &[held(15, 14)]]), [IDLE]);
        // A server waits for rare requests, and clients wait for the replies. The first client seems to hold
        // the object from its first reply to its second request.
        let serve = |begin: u64| {
            let [wait, woken] = wait(begin, begin + 10_000);
            [wait, woken, held(begin + 10_009, 9)]
        };
        let server: Vec<Event> = [100, 20_000, 40_000].into_iter().flat_map(serve).collect();
        let [[a, b], [c, d], [e, f]] =
            [100, 20_000, 40_000].map(|begin| wait(begin + 10_001, begin + 10_010));
        let first: &[Event] = &[a, b, held(49_990, 39_880), e, f];
        assert_eq!(kinds("condition", [&server, first, &[c, d]]), [IDLE; 6]);
    }

    #[test]
    fn waits_in_vain_behind_a_holder_that_comes_first_again_are_for_a_lock() {
        use EventKind::{Hold, Release, WaitBegin, WaitEnd};
        // One thread takes the lock 40 times in a row, and wakes the other thread in vain each time.
        let rounds = || (1..=40).map(|round| round * 1_000);
        let wakes: Vec<Event> = rounds().map(|end| at(end - 1, Release, WOKE, 0)).collect();
        let wait = |begin, end| [at(begin, WaitBegin, 0, IDLE), at(end, WaitEnd, 0, 0)];
        let waiter: Vec<Event> = rounds().flat_map(|end| wait(end - 990, end)).collect();
        // Three holds that follow waits of this thread.
        let holds = [100, 200, 300].into_iter().flat_map(|begin| {
            let [a, b] = wait(begin, begin + 10);
            [a, b, at(begin + 90, Hold, WAITED, 80)]
        });
        let holder: Vec<Event> = holds.chain(wakes.iter().copied()).collect();
        assert_eq!(kinds("futex", [&holder, &waiter]), [LOCK; 43]);
        // The same waits, but a third thread that never waits makes the wake-ups: the waits are for work.
        let (holder, idle) = (&holder[..9], [IDLE; 43]);
        assert_eq!(kinds("futex", [holder, &waiter, &wakes]), idle);
        // The waiter works between its waits.
        let slow: Vec<Event> =
            rounds().map(|end| end * 1_000).flat_map(|end| wait(end - 1_000, end)).collect();
        let wakes = rounds().map(|end| at(end * 1_000 - 1, Release, WOKE, 0));
        let holder: Vec<Event> = holder.iter().copied().chain(wakes).collect();
        assert_eq!(kinds("futex", [&holder, &slow]), idle);
    }

    #[test]
    fn waiters_that_are_woken_one_by_one_are_no_herd() {
        let wakes = |count: u64| (0..count).map(|ticks| at(ticks, EventKind::Release, WOKE, 0));
        let ends = |count: u64| (0..count).map(|ticks| at(ticks, EventKind::WaitEnd, 0, 0));
        let is_single = |woken, calls| {
            let (name, cpu, events) =
                (String::new(), CpuSource::None, wakes(calls).chain(ends(woken)).collect());
            let thread = ThreadTrace { tag: 1, os_id: 1, name, cpu, lost: 0, events, off: Vec::new() };
            woken_one_by_one(&[thread]).contains(&0xabc)
        };
        assert_eq!(
            [(3, 2), (4, 2), (1, 0)].map(|(woken, calls)| is_single(woken, calls)),
            [true, false, false]
        );
    }

    #[test]
    fn a_wait_without_an_end_ends_with_the_next_event_of_its_thread() {
        use EventKind::{Anchor, Enter, Exit, Hold, Lost, WaitBegin, WaitEnd};
        let event = |ticks, kind, object| Event { site: 1, object, ..Event::new(ticks, kind) };
        let ended = |events: &[Event]| -> Vec<(u64, EventKind, u64)> {
            let (name, cpu, events) = (String::new(), CpuSource::Rseq, events.to_vec());
            let mut thread = ThreadTrace { tag: 1, os_id: 1, name, cpu, lost: 0, events, off: Vec::new() };
            end_left_waits(&mut thread);
            thread.events.iter().map(|event| (event.ticks, event.kind, event.object)).collect()
        };
        // The thread leaves the first wait, and waits for the same object again.
        let again = [event(10, WaitBegin, 7), event(30, WaitBegin, 7), event(40, WaitEnd, 7)];
        let expected = [(10, WaitBegin, 7), (30, WaitEnd, 7), (30, WaitBegin, 7), (40, WaitEnd, 7)];
        assert_eq!(ended(&again), expected);
        // A signal handler waits for object 8 inside a wait for object 7.
        let inside = [(1, Enter, 0), (10, WaitBegin, 7), (20, WaitBegin, 8), (30, WaitEnd, 8)];
        let handled = inside.into_iter().chain([(40, WaitEnd, 7), (50, Exit, 0)]);
        let handled: Vec<Event> = handled.map(|(ticks, kind, object)| event(ticks, kind, object)).collect();
        assert_eq!(ended(&handled).len(), handled.len());
        // The thread leaves a wait and holds a lock, and waits at the end of the recording.
        let open = [(10, WaitBegin, 7), (15, Anchor, 3), (20, Hold, 9), (30, WaitBegin, 7), (90, Anchor, 4)];
        let open = open.map(|(ticks, kind, object)| event(ticks, kind, object));
        assert_eq!(ended(&open)[2], (20, WaitEnd, 7));
        assert_eq!(ended(&open).len(), open.len() + 1);
        // The end may be among the lost events.
        let lost = [event(10, WaitBegin, 7), event(20, Lost, 0), event(30, Hold, 9)];
        assert_eq!(ended(&lost).len(), lost.len());
    }

    #[test]
    fn events_that_are_removed_or_inserted_hide_no_context_switch() {
        use EventKind::{Anchor, Enter, Hold, Mark, Release, WaitBegin, WaitEnd};
        // The first event after each sleep is removed: a wake-up, a hold of no lock, the mark of a caller.
        let mut encoder = Encoder::new();
        encoder.session(&crate::test_session("timer"));
        encoder.clock(&ClockSample { ticks: 0, monotonic_ns: 0, process_cpu_ns: 0 });
        encoder.sites([(1, "semaphore", "@1000", 0), (2, "caller", "@2000", 0)]);
        encoder.thread(&ThreadInfo { tag: 1, os_id: 1, name: "t".into(), cpu: CpuSource::Rseq });
        let anchor = |ticks, cpu| Event { object: cpu, ..Event::new(ticks, Anchor) };
        let events = [
            Event { flags: SWITCHED, operation: 1, ..Event::new(1, Enter) },
            anchor(2, 10),
            at(1_000, Release, SWITCHED | WOKE, 0),
            anchor(1_001, 12),
            at(2_000, Hold, SWITCHED | WAITED, 1),
            anchor(2_001, 14),
            Event { site: 2, ..at(3_000, Mark, SWITCHED, 0) },
            at(3_001, WaitBegin, 0, IDLE),
            anchor(3_002, 16),
            at(4_000, WaitEnd, SWITCHED, 0),
            anchor(4_001, 18),
        ];
        encoder.events(1, 0, &events);
        encoder.end(0);
        let trace = name(Trace::from_bytes(encoder.as_bytes()).unwrap());
        let is_first = |event: &&Event| event.flags & SWITCHED != 0;
        let first: Vec<u64> = trace.threads[0].events.iter().filter(is_first).map(|e| e.ticks).collect();
        assert_eq!(first, [1, 1_001, 2_001, 3_001, 4_000]);
        // A wait that a jump has left ends after the switch, as does the stack of a wait.
        let mut next = at(7, WaitBegin, SWITCHED, 0);
        let inserted = before(&mut next, WaitEnd, UNWOKEN);
        assert_eq!((inserted.ticks, inserted.flags, next.flags), (7, SWITCHED | UNWOKEN, 0));
    }

    #[test]
    fn spans_that_end_with_a_killed_process_use_no_processor_time() {
        let events = [
            at(5, EventKind::Enter, SWITCHED, 0),
            Event { object: 7, ..Event::new(8, EventKind::Anchor) },
            at(10, EventKind::WaitBegin, 0, IDLE),
        ];
        let (name, cpu, events) = (String::new(), CpuSource::Rseq, events.to_vec());
        let mut thread = ThreadTrace { tag: 1, os_id: 1, name, cpu, lost: 0, events, off: Vec::new() };
        close(&mut thread, 1_000);
        let closed = thread.events[3..].iter().map(|event| (event.ticks, event.kind, event.flags));
        let expected = [(1_000, EventKind::WaitEnd, SWITCHED | UNWOKEN), (1_000, EventKind::Exit, 0)];
        assert_eq!(closed.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_word_that_rarely_looks_like_a_lock_is_waited_on_idly() {
        use EventKind::{WaitBegin, WaitEnd};
        let wait = |begin, kind| [at(begin, WaitBegin, 0, kind), at(begin + 5, WaitEnd, 0, 0)];
        let waits = |kinds: [u64; 3]| -> Vec<Event> {
            kinds.into_iter().zip([10, 20, 30]).flat_map(|(kind, begin)| wait(begin, kind)).collect()
        };
        assert_eq!(kinds("futex", [&waits([IDLE, LOCK, IDLE]), &[]]), [IDLE; 3]);
        assert_eq!(kinds("futex", [&waits([LOCK, LOCK, IDLE]), &[]]), [LOCK, LOCK, IDLE]);
        // A future's word looks like a lock word, but only a thread that never waits wakes the waiters.
        let wakes = [14, 24, 34].map(|ticks| at(ticks, EventKind::Release, WOKE, 0));
        assert_eq!(kinds("futex", [&waits([LOCK; 3]), &wakes]), [IDLE; 3]);
        let holds = [18, 28].map(|ticks| at(ticks, EventKind::Hold, WAITED, 3));
        let mut both: Vec<Event> = waits([LOCK; 3]).into_iter().chain(holds).collect();
        both.sort_by_key(|event| event.ticks);
        assert_eq!(kinds("futex", [&both, &wakes]), [LOCK; 3]);
    }
}
