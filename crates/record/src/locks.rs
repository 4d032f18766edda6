//! The name of a lock: its variable, or the place that created it, or the place of most of its waits.
//!
//! The library records call sites. A lock has many call sites, but its waits and holds need one name. So all
//! events of an object get the site of that object. Objects with the same name, such as all mutexes created
//! in one line, share a site as its instances.

use crate::allocators;
use crate::frames::{self, Stack};
use crate::name::{CALLER, Called};
use crate::symbols::{Place, Symbols};
use azekura_trace::WaitKind;
use azekura_trace::event::{EventKind, WAITED, WOKE};
use azekura_trace::file::{Name, Trace};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Number of waits by stack.
type Stacks = BTreeMap<Stack, u64>;

/// The recorded facts about one object.
#[derive(Debug, Default)]
struct Known {
    what: &'static str,
    made: Option<u64>,
    /// Ticks waited, by the address of the call that waits.
    waited: BTreeMap<u64, u64>,
    stacks: Stacks,
    /// The address of a call on the object; names the object if no wait has ended.
    seen: u64,
    /// Number of holds that followed a wait.
    holds_after_waits: u64,
    /// Number of waits that the library guessed to be for a lock.
    guessed: u64,
    /// The waits, ordered by thread, then by time.
    waits: Vec<Span>,
    holds: Vec<Span>,
    /// Ticks and thread of each wake-up of a waiter.
    wake_ups: Vec<(u64, usize)>,
}

/// An interval of one thread's time: a wait or a hold.
#[derive(Debug, Clone, Copy)]
struct Span {
    thread: usize,
    begin: u64,
    end: u64,
}

impl Span {
    fn ticks(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}

/// Totals of all objects with one identity, which share a site.
#[derive(Debug, Default)]
struct Group {
    waited: BTreeMap<u64, u64>,
    stacks: Stacks,
}

/// Returns the name of each object, and the kind of its waits if the evidence decides it: `Other` (a lock) or
/// `Idle`. The objects in `handed` are locks.
pub(crate) fn names(
    trace: &Trace,
    calls: &HashMap<u32, Called>,
    symbols: &Symbols,
    handed: &HashSet<u64>,
) -> (HashMap<u64, Name>, HashMap<u64, WaitKind>) {
    let mut groups: BTreeMap<Identity, Group> = BTreeMap::new();
    let mut identities = HashMap::new();
    let mut kinds = HashMap::new();
    let at_once = trace.session.ticks_per_second / AT_ONCE_PER_SECOND;
    for (object, known) in known(trace, calls).into_iter().filter(|(_, known)| !known.what.is_empty()) {
        let proven = handed.contains(&object).then_some(WaitKind::Other);
        if let Some(kind) = proven.or_else(|| known.kind(symbols, at_once)) {
            kinds.insert(object, kind);
        }
        let identity = known.identity(object, symbols);
        let group = groups.entry(identity.clone()).or_default();
        for (address, ticks) in known.waited {
            *group.waited.entry(address).or_default() += ticks;
        }
        for (stack, count) in known.stacks {
            *group.stacks.entry(stack).or_default() += count;
        }
        group.waited.entry(known.seen).or_default();
        identities.insert(object, identity);
    }
    let named: HashMap<Identity, Name> = groups
        .into_iter()
        .map(|(identity, group)| (identity.clone(), group.name(&identity, symbols)))
        .collect();
    let names = identities.into_iter().map(|(object, identity)| (object, named[&identity].clone())).collect();
    (names, kinds)
}

/// Functions that wait for a lock, in Rust's std, parking_lot and abseil.
const ACQUIRE: [&str; 7] = [
    "lock_contended",
    "lock_slow",
    "lock_shared_slow",
    "lock_exclusive_slow",
    "read_contended",
    "write_contended",
    "absl::Mutex::Lock",
];
/// Functions that wait for work, in the same libraries and in CPython.
const AWAIT: [&str; 6] =
    ["Condvar::wait", "condvar::Condvar", "Parker::park", "absl::CondVar", "recv", "SimpleQueue_get"];
/// Kinds of objects that allocators use as locks.
const ALLOCATOR_LOCKS: [&str; 4] = ["mutex", "spin lock", "rwlock", "futex"];
/// Number of frames of a wait that are searched for these functions.
const NEAR_FRAMES: usize = 4;
/// At least one of this number of waits, without those in vain, must be followed by a hold.
const HOLDS_OF_A_LOCK: u64 = 8;
/// A thread that waits again within this part of a second (1/20,000 s = 50 microseconds) has not used the
/// lock in between.
const AT_ONCE_PER_SECOND: u64 = 20_000;
/// Least number of waits for an object that can prove a lock.
const LEAST_WAITS: u64 = 2;
/// Least number of holds that delay other threads, as proof of a lock. A thread that waits for the start of
/// another thread, and later signals it to stop, has one such hold for each signal.
const LEAST_HOLDS: usize = 3;
/// Holds without the longest one cover at least this part of the waiting time (1/64), because threads wait
/// for a lock only while it is held. Holds that follow no wait are sampled, or not recorded, so the part may
/// be small.
const HELD_OF: u64 = 64;
/// Number of holds that are compared with a wait, from the first one that ends after the wait's begin. Holds
/// of a lock exclude each other, so the first one blocks the wait if any does. A semaphore with several
/// permits needs more.
const NEAR_HOLDS: usize = 8;

/// The name under which objects are grouped, before the group's waits are added to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Identity {
    what: &'static str,
    /// The variable, or the place that created the object; empty if both are unknown.
    own: String,
    /// Set if `own` is empty: the program's function that waits, and its caller.
    waited_in: String,
}

impl Known {
    /// Returns the kind of the object's waits; `None` if each wait keeps the kind that the library guessed.
    ///
    /// The object is a lock if its waiters are in a function that acquires one, or if its holds prove it.
    /// Otherwise, all waits are idle if the library guessed that less than half of them are for a lock: a
    /// counter that threads wait on passes through the values of a lock word. They are also idle if each
    /// thread either waits for the object or wakes its waiters, as at a future.
    fn kind(&self, symbols: &Symbols, at_once: u64) -> Option<WaitKind> {
        if self.is_lock(symbols, at_once) {
            return Some(WaitKind::Other);
        }
        let is_guess = self.guessed * 2 >= self.waits.len() as u64 && !self.has_separate_wakers();
        (!is_guess).then_some(WaitKind::Idle)
    }

    /// Returns `true` if waiters were woken, and no thread both waits and wakes or holds.
    fn has_separate_wakers(&self) -> bool {
        let waiters: HashSet<usize> = self.waits.iter().map(|wait| wait.thread).collect();
        !self.wake_ups.is_empty()
            && self.holds_after_waits == 0
            && self.wake_ups.iter().all(|(_, thread)| !waiters.contains(thread))
    }

    fn is_lock(&self, symbols: &Symbols, at_once: u64) -> bool {
        if self.waits.is_empty() {
            return false;
        }
        if self.allocator(symbols).is_some() {
            return true;
        }
        // Frames further out are the program's own functions, which may have any name.
        let near = self.stacks.keys().flat_map(|stack| stack.iter().take(NEAR_FRAMES));
        let functions = self.waited.keys().chain(near).map(|address| symbols.code(*address).function);
        let of = |patterns: &[&str], function: &str| patterns.iter().any(|part| function.contains(part));
        let mut is_awaited = false;
        for function in functions {
            if of(&ACQUIRE, &function) {
                return true;
            }
            is_awaited |= of(&AWAIT, &function);
        }
        !is_awaited && self.holds_prove_a_lock(at_once)
    }

    /// Returns `true` if waiters later signal the object themselves, as lock holders do, and some of these
    /// holds overlap waits of other threads. A thread that joins another thread, or waits on an object of its
    /// own, also signals the object later, but no thread waits meanwhile. A single wait proves nothing. A
    /// thread that serves rare requests waits for them most of the time, and no thread holds the object
    /// meanwhile, except for one that seems to hold it from its first request to its second one.
    fn holds_prove_a_lock(&self, at_once: u64) -> bool {
        if (self.waits.len() as u64) < LEAST_WAITS || self.holds_that_delay() < LEAST_HOLDS {
            return false;
        }
        let in_vain = self.waits_in_vain(at_once);
        let others = (self.waits.len() - in_vain.len()) as u64;
        // A wait in vain is behind a holder, whether its hold is recorded or not.
        let held = self.held_ticks() + in_vain.iter().map(Span::ticks).sum::<u64>();
        self.holds_after_waits * HOLDS_OF_A_LOCK >= others
            && held.saturating_mul(HELD_OF) >= self.waits.iter().map(Span::ticks).sum()
    }

    /// Returns the part of the waiting time in which a thread holds the object, without the longest hold. A
    /// thread that waits does not hold it.
    fn held_ticks(&self) -> u64 {
        let mut holds = self.holds.clone();
        holds.sort_unstable_by_key(Span::ticks);
        holds.pop();
        holds.sort_unstable_by_key(|hold| hold.begin);
        // Disjoint intervals in order, each with the time held before it.
        let mut held: Vec<(Span, u64)> = Vec::new();
        for hold in holds {
            let before = held.last().map_or(0, |(last, before)| before + last.ticks());
            match held.last_mut().filter(|(last, _)| hold.begin <= last.end) {
                Some((last, _)) => last.end = last.end.max(hold.end),
                None => held.push((hold, before)),
            }
        }
        let until = |ticks: u64| {
            let begun = held.partition_point(|(hold, _)| hold.begin < ticks);
            begun.checked_sub(1).map_or(0, |last| {
                let (hold, before) = held[last];
                before + ticks.min(hold.end).saturating_sub(hold.begin)
            })
        };
        self.waits.iter().map(|wait| until(wait.end.max(wait.begin)) - until(wait.begin)).sum()
    }

    /// Returns the waits in vain. In such a wait, another waiter of the object woke the thread, which
    /// completed no hold and waits for the object again within `at_once` ticks. The cause is a holder that
    /// takes the lock again before the woken thread runs. A queue's waiters are woken by threads that do not
    /// wait there.
    fn waits_in_vain(&self, at_once: u64) -> Vec<Span> {
        let waiters: HashSet<usize> = self.waits.iter().map(|wait| wait.thread).collect();
        let mut wake_ups = self.wake_ups.clone();
        wake_ups.sort_unstable();
        let mut hold_ends: Vec<(usize, u64)> =
            self.holds.iter().map(|hold| (hold.thread, hold.end)).collect();
        hold_ends.sort_unstable();
        let is_woken_by_a_waiter = |wait: &Span| {
            let before = wake_ups.partition_point(|wake_up| wake_up.0 <= wait.end);
            let meanwhile = wake_ups[..before].iter().rev().take_while(|wake_up| wake_up.0 >= wait.begin);
            let waker = meanwhile.map(|wake_up| wake_up.1).find(|thread| *thread != wait.thread);
            waker.is_some_and(|thread| waiters.contains(&thread))
        };
        let is_vain = |pair: &&[Span]| {
            let (wait, next) = (pair[0], pair[1]);
            let first = hold_ends.partition_point(|end| *end < (wait.thread, wait.end));
            let has_held = hold_ends.get(first).is_some_and(|end| *end <= (wait.thread, next.begin));
            wait.thread == next.thread
                && next.begin.saturating_sub(wait.end) <= at_once
                && !has_held
                && is_woken_by_a_waiter(&wait)
        };
        self.waits.windows(2).filter(is_vain).map(|pair| pair[0]).collect()
    }

    /// Returns the number of holds that overlap a wait of another thread. Stops counting when the number
    /// proves a lock.
    fn holds_that_delay(&self) -> usize {
        let mut holds = self.holds.clone();
        holds.sort_unstable_by_key(|hold| hold.end);
        let mut delaying = HashSet::new();
        for wait in &self.waits {
            let first = holds.partition_point(|hold| hold.end <= wait.begin);
            let near = holds.iter().enumerate().skip(first).take(NEAR_HOLDS);
            let delays = |(_, hold): &(usize, &Span)| hold.thread != wait.thread && hold.begin < wait.end;
            delaying.extend(near.filter(delays).map(|(at, _)| at));
            if delaying.len() >= LEAST_HOLDS {
                break;
            }
        }
        delaying.len()
    }

    /// Returns the allocator that the object is a lock of. A condition variable of an allocator is for its
    /// background threads, which wait for work.
    fn allocator(&self, symbols: &Symbols) -> Option<&'static str> {
        let address = most(&self.waited).unwrap_or(self.seen);
        let is_lock = ALLOCATOR_LOCKS.contains(&self.what);
        is_lock.then(|| allocators::of_waits(&self.stacks, address, symbols)).flatten()
    }

    fn identity(&self, object: u64, symbols: &Symbols) -> Identity {
        let what = self.what;
        if let Some(allocator) = self.allocator(symbols) {
            let variable = symbols.variable(object).map_or_else(String::new, |name| format!("{name}, "));
            let own = format!("{variable}the allocator's lock ({allocator})");
            return Identity { what, own, waited_in: String::new() };
        }
        let own = match (symbols.variable(object), self.made) {
            (Some(variable), _) => format!("{variable}, {what}"),
            (None, Some(made)) => format!("{what} of {}", at(&symbols.code(made))),
            (None, None) => String::new(),
        };
        let waited_in = if own.is_empty() {
            let most = most(&self.waited).unwrap_or(self.seen);
            let place = frames::of_waits(&self.stacks, most, symbols);
            format!("{} {}", at(&place.own), place.from.unwrap_or_default())
        } else {
            String::new()
        };
        Identity { what, own, waited_in }
    }
}

impl Group {
    fn name(&self, identity: &Identity, symbols: &Symbols) -> Name {
        let place = frames::of_waits(&self.stacks, most(&self.waited).unwrap_or(0), symbols);
        let Place { function, file, line } = place.own;
        // A lock with a name of its own needs no caller in its name.
        let from = place.from.filter(|_| identity.own.is_empty());
        let from = from.map_or_else(String::new, |caller| format!(" from {caller}"));
        let own =
            if identity.own.is_empty() { identity.what.to_owned() } else { format!("{},", identity.own) };
        Name { name: format!("{own} waited for in {function}{from}"), file, line }
    }
}

fn at(place: &Place) -> String {
    if place.line == 0 { place.function.clone() } else { format!("{}:{}", place.function, place.line) }
}

fn most(waited: &BTreeMap<u64, u64>) -> Option<u64> {
    waited.iter().max_by_key(|(address, ticks)| (**ticks, std::cmp::Reverse(**address))).map(|(a, _)| *a)
}

/// Collects the data of all threads about each object.
fn known(trace: &Trace, calls: &HashMap<u32, Called>) -> BTreeMap<u64, Known> {
    let mut objects: BTreeMap<u64, Known> = BTreeMap::new();
    for (index, thread) in trace.threads.iter().enumerate() {
        let mut open: Vec<(u32, u64, u64)> = Vec::new();
        let mut callers: Stack = Vec::new();
        for event in &thread.events {
            let Some(called) = calls.get(&event.site) else { continue };
            if called.what == CALLER {
                callers.push(called.address);
                continue;
            }
            // The marks of a wait's frames precede the wait.
            let callers = std::mem::take(&mut callers);
            if !called.is_object() {
                continue;
            }
            let known = objects.entry(event.object).or_default();
            if event.kind == EventKind::WaitBegin && !callers.is_empty() {
                let stack = std::iter::once(called.address).chain(callers).collect();
                *known.stacks.entry(stack).or_default() += 1;
            }
            known.what = called.what;
            match event.kind {
                EventKind::Mark => known.made = Some(called.address),
                // The kind of event, no ordering.
                EventKind::Release if event.flags & WOKE != 0 => known.wake_ups.push((event.ticks, index)),
                EventKind::WaitBegin => {
                    known.seen = called.address;
                    let is_guess = (event.argument & 0xff) as u8 == WaitKind::Other as u8;
                    known.guessed += u64::from(is_guess);
                    open.push((event.site, event.object, event.ticks));
                }
                EventKind::WaitEnd => {
                    let is_it = |w: &(u32, u64, u64)| (w.0, w.1) == (event.site, event.object);
                    if let Some(place) = open.iter().rposition(is_it) {
                        let (_, _, begin) = open.remove(place);
                        known.waits.push(Span { thread: index, begin, end: event.ticks });
                        *known.waited.entry(called.address).or_default() += event.ticks.saturating_sub(begin);
                    }
                }
                _ => {
                    known.seen = called.address;
                    if event.kind == EventKind::Hold {
                        known.holds_after_waits += u64::from(event.flags & WAITED != 0);
                        let begin = event.ticks.saturating_sub(event.argument);
                        known.holds.push(Span { thread: index, begin, end: event.ticks });
                    }
                }
            }
        }
        // A wait that the end of the recording cuts off counts as a wait.
        for (_, object, begin) in open {
            let wait = Span { thread: index, begin, end: trace.end.ticks.max(begin) };
            objects.entry(object).or_default().waits.push(wait);
        }
    }
    objects
}
