//! Detects locks with a separate object for each waiter: a condition variable, a semaphore or a futex on
//! which only one thread waits at a time. Examples are the Java VM's monitors, `java.util.concurrent`,
//! CPython's `Condition` and `Semaphore`, and queue locks.
//!
//! A single object of such a lock looks idle, because its waiter never signals it. The order of the wake-ups
//! is the evidence. A *turn* of a thread ends when the thread wakes another one. It begins at the end of the
//! thread's last wait, or at the thread's last wake-up of another thread if there was no wait since. All of
//! these waits are at one call site. (A holder can wake the next waiter and take the lock again before that
//! waiter runs; the wake-up is then in vain.)
//!
//! At a lock, the turns of the threads exclude each other and fill the time of the waits. During a wait, a
//! turn of a second thread follows one of a third:
//!
//! ```text
//! A   holds ──wakes B┐        ┌ waits …
//! B   waits ─────────┴ turn ──┴wakes C┐
//! C   waits ──────────────────────────┴ turn …
//! ```
//!
//! - A pool's threads are woken by a thread that does not wait at that call site. If one of them wakes the
//!   next, its turn ends at once and fills no time. It wakes no thread when its job is done.
//! - The last stage of a pipeline wakes no other stage, and the turns of the stages overlap.
//! - A thread that hands work to others and waits for each result takes part in every second wake-up.
//! - At a barrier, the last thread of a phase wakes the others, which wake each other at once. The turns
//!   during which a third thread waits are short, and no thread waits when the long turn of the last thread
//!   begins.
//!
//! The waits for a detected lock get one common object, and its turns become holds of that object.

use crate::name::{Called, SIGNALS};
use azekura_trace::event::{Event, EventKind, UNWOKEN, WAITED};
use azekura_trace::file::Trace;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Least number of threads: two threads alone may pass work and results to each other.
const LEAST_THREADS: usize = 3;
/// Least number of turns that show a queue; see [`is_lock`].
const LEAST_QUEUED: usize = 3;
/// At least one of this number of waits must have a turn that shows a queue, and these turns take at least
/// this part of the time of all turns.
const QUEUED_OF: usize = 8;
/// Largest part of these turns that one thread may have. With more, the other threads work for it.
const MOST_OF_ONE: f64 = 0.75;
/// Least part of the waiting time that turns of other threads fill.
const LEAST_FILLED: f64 = 0.75;
/// Largest ratio of the sum of the turns to the time in which there is a turn. Turns at a lock exclude each
/// other, but a turn may begin some time before its thread took the lock.
const MOST_OVERLAP: f64 = 1.5;
/// Bit that is added to the common object if other waits use the same object.
const APART: u64 = 1 << 63;

/// A wait that was ended by another thread.
#[derive(Debug, Clone, Copy)]
struct Wait {
    thread: usize,
    /// The indices of its `WaitBegin` and `WaitEnd` among the thread's events.
    at: (usize, usize),
    begin: u64,
    end: u64,
    object: u64,
    waker: usize,
    /// The time of the wake-up, and the index of the waker's event.
    woken: (u64, usize),
}

/// A turn of a thread, as defined in the module's documentation.
#[derive(Debug, Clone, Copy)]
struct Turn {
    thread: usize,
    begin: u64,
    end: u64,
    /// The index of the wait after which the turn begins; `None` if it begins at a wake-up.
    after: Option<usize>,
    /// The index of the wait that the turn ends.
    ends: usize,
}

/// Finds the locks, gives the waits for each lock one object, and adds holds. Returns these objects.
pub(crate) fn unite(trace: &mut Trace, calls: &HashMap<u32, Called>) -> HashSet<u64> {
    let mut sites = waits(trace, calls);
    let mut proven: Vec<(Vec<Wait>, Vec<Turn>)> = Vec::new();
    for waits in sites.values_mut() {
        waits.sort_unstable_by_key(|wait| (wait.thread, wait.begin));
        let turns = turns(waits);
        for threads in groups(waits, &turns) {
            let turns: Vec<Turn> = turns.iter().filter(|t| threads.contains(&t.thread)).copied().collect();
            let of_group = |w: &&Wait| threads.contains(&w.thread) && threads.contains(&w.waker);
            let own: Vec<Wait> = waits.iter().filter(of_group).copied().collect();
            if is_lock(waits, &own, &turns) {
                proven.push((own, turns));
            }
        }
    }
    write(trace, &proven)
}

/// Returns the waits that another thread ended, by call site. Objects on which several threads wait at a time
/// are left out.
fn waits(trace: &Trace, calls: &HashMap<u32, Called>) -> BTreeMap<u64, Vec<Wait>> {
    let mut by_object: BTreeMap<u64, Vec<(u64, Wait)>> = BTreeMap::new();
    let mut wakes: HashMap<u64, Vec<(u64, usize, usize)>> = HashMap::new();
    for (thread, recorded) in trace.threads.iter().enumerate() {
        let mut open: Vec<usize> = Vec::new();
        for (at, event) in recorded.events.iter().enumerate() {
            let Some(called) = calls.get(&event.site).filter(|called| SIGNALS.contains(&called.what)) else {
                continue;
            };
            match event.kind {
                EventKind::Release => {
                    wakes.entry(event.object).or_default().push((event.ticks, thread, at));
                }
                EventKind::WaitBegin => open.push(at),
                EventKind::WaitEnd => {
                    let is_it = |index: &usize| {
                        let begin = recorded.events[*index];
                        (begin.site, begin.object) == (event.site, event.object)
                    };
                    let Some(place) = open.iter().rposition(is_it) else { continue };
                    let first = open.remove(place);
                    let (begin, end, object) = (recorded.events[first].ticks, event.ticks, event.object);
                    let is_woken = event.flags & UNWOKEN == 0;
                    let waker = if is_woken { thread } else { usize::MAX };
                    let wait = Wait { thread, at: (first, at), begin, end, object, waker, woken: (0, 0) };
                    by_object.entry(object).or_default().push((called.address, wait));
                }
                _ => {}
            }
        }
    }
    let mut sites: BTreeMap<u64, Vec<Wait>> = BTreeMap::new();
    for (object, mut waits) in by_object {
        waits.sort_unstable_by_key(|(_, wait)| wait.begin);
        let overlap = |pair: &[(u64, Wait)]| pair[1].1.begin < pair[0].1.end;
        let Some(wakes) = wakes.get_mut(&object).filter(|_| !waits.windows(2).any(overlap)) else { continue };
        wakes.sort_unstable();
        for (site, wait) in waits.into_iter().filter(|(_, wait)| wait.waker != usize::MAX) {
            let before = wakes.partition_point(|wake| wake.0 <= wait.end);
            let others = wakes[..before].iter().rev().take_while(|wake| wake.0 >= wait.begin);
            if let Some(&(ticks, waker, at)) = others.into_iter().find(|wake| wake.1 != wait.thread) {
                sites.entry(site).or_default().push(Wait { waker, woken: (ticks, at), ..wait });
            }
        }
    }
    sites
}

/// Returns the turns at a call site, sorted by their begin. The waits are sorted by thread and time.
fn turns(waits: &[Wait]) -> Vec<Turn> {
    let mut wakes: HashMap<usize, Vec<(u64, usize)>> = HashMap::new();
    for (index, wait) in waits.iter().enumerate() {
        wakes.entry(wait.waker).or_default().push((wait.woken.0, index));
    }
    let mut turns = Vec::new();
    for (thread, mut wakes) in wakes {
        wakes.sort_unstable();
        let first = waits.partition_point(|wait| wait.thread < thread);
        let own = &waits[first..waits.partition_point(|wait| wait.thread <= thread)];
        let mut last_wake = None;
        for (end, ends) in wakes {
            // The thread's last wait before the wake-up. If this wait ended later, the wake-up was not made
            // by the thread's own code.
            let place = own.partition_point(|wait| wait.begin <= end);
            let wait = place.checked_sub(1).map(|place| (own[place].end, Some(first + place)));
            let begin = wait.filter(|wait| wait.0 <= end).max(last_wake.map(|ticks| (ticks, None)));
            if let Some((begin, after)) = begin {
                turns.push(Turn { thread, begin, end, after, ends });
            }
            last_wake = Some(end);
        }
    }
    turns.sort_unstable_by_key(|turn| (turn.begin, turn.thread));
    turns
}

/// Returns groups of threads that wake each other, directly or through others. Each thread wakes one of the
/// group and is woken by one.
fn groups(waits: &[Wait], turns: &[Turn]) -> Vec<BTreeSet<usize>> {
    let mut edges: BTreeSet<(usize, usize)> =
        turns.iter().map(|turn| (turn.thread, waits[turn.ends].thread)).collect();
    loop {
        let wakers: BTreeSet<usize> = edges.iter().map(|edge| edge.0).collect();
        let woken: BTreeSet<usize> = edges.iter().map(|edge| edge.1).collect();
        let before = edges.len();
        edges.retain(|(from, to)| woken.contains(from) && wakers.contains(to));
        if edges.len() == before {
            break;
        }
    }
    let mut groups: Vec<BTreeSet<usize>> = Vec::new();
    for (from, to) in edges {
        let mut united = BTreeSet::from([from, to]);
        groups.retain(|group| {
            let meets = group.contains(&from) || group.contains(&to);
            if meets {
                united.extend(group);
            }
            !meets
        });
        groups.push(united);
    }
    groups.retain(|group| group.len() >= LEAST_THREADS);
    groups
}

/// Returns `true` if the turns of a group are holds of one lock, as described in the module's documentation.
/// `all` contains the waits that the turns refer to, `own` those of the group.
fn is_lock(all: &[Wait], own: &[Wait], turns: &[Turn]) -> bool {
    // The woken thread waited before the turn began, and a third thread had woken the turn's thread.
    let shows_a_queue = |turn: &&Turn| {
        let to = &all[turn.ends];
        turn.after.is_some_and(|after| to.begin < turn.begin && all[after].waker != to.thread)
    };
    let queued: Vec<&Turn> = turns.iter().filter(shows_a_queue).collect();
    let mut of_thread: BTreeMap<usize, usize> = BTreeMap::new();
    for turn in &queued {
        *of_thread.entry(turn.thread).or_default() += 1;
    }
    let most = of_thread.values().max().copied().unwrap_or(0);
    if queued.len() < LEAST_QUEUED
        || queued.len() * QUEUED_OF < own.len()
        || most as f64 > MOST_OF_ONE * queued.len() as f64
    {
        return false;
    }
    let in_queue: u64 = queued.iter().map(|turn| turn.end - turn.begin).sum();
    let (mut sum, mut union, mut last) = (0, 0, 0);
    for turn in turns {
        sum += turn.end - turn.begin;
        union += turn.end.max(last) - turn.begin.max(last);
        last = last.max(turn.end);
    }
    in_queue * QUEUED_OF as u64 >= sum
        && sum as f64 <= MOST_OVERLAP * union as f64
        && filled(own, turns) >= LEAST_FILLED
}

/// Returns the part of the waiting time that turns of other threads fill. The turns are sorted by their
/// begin.
fn filled(waits: &[Wait], turns: &[Turn]) -> f64 {
    let longest = turns.iter().map(|turn| turn.end - turn.begin).max().unwrap_or(0);
    let (mut all, mut part) = (0_u64, 0_u64);
    for wait in waits {
        all += wait.end - wait.begin;
        let first = turns.partition_point(|turn| turn.begin + longest < wait.begin);
        let mut from = wait.begin;
        for turn in turns[first..].iter().take_while(|turn| turn.begin < wait.end) {
            let end = turn.end.min(wait.end);
            if turn.thread != wait.thread && end > from {
                part += end - turn.begin.max(from);
                from = end;
            }
        }
    }
    part as f64 / all.max(1) as f64
}

/// Writes the detected waits and turns into the trace. Returns the objects of the locks.
fn write(trace: &mut Trace, proven: &[(Vec<Wait>, Vec<Turn>)]) -> HashSet<u64> {
    let mut objects = HashSet::new();
    let mut holds: HashMap<usize, Vec<(usize, Event)>> = HashMap::new();
    for (waits, turns) in proven {
        let own: BTreeSet<(usize, usize)> = waits.iter().map(|wait| (wait.thread, wait.at.0)).collect();
        let Some(mut object) = waits.iter().map(|wait| wait.object).min() else { continue };
        let is_apart = |(thread, recorded): (usize, &azekura_trace::file::ThreadTrace)| {
            let mut events = recorded.events.iter().enumerate();
            events.any(|(at, event)| {
                let is_wait = event.kind == EventKind::WaitBegin && event.object == object;
                is_wait && !own.contains(&(thread, at))
            })
        };
        if trace.threads.iter().enumerate().any(is_apart) {
            object |= APART;
        }
        let Some(first) = waits.first() else { continue };
        let site = trace.threads[first.thread].events[first.at.0].site;
        for wait in waits {
            let events = &mut trace.threads[wait.thread].events;
            (events[wait.at.0].object, events[wait.at.1].object) = (object, object);
            // Each wake-up is for one waiter. A wait is in vain if a holder takes the lock again before the
            // waiter runs, not because all waiters are woken.
            events[wait.at.1].flags |= UNWOKEN;
        }
        for turn in turns {
            let events = &trace.threads[turn.thread].events;
            let place = events.partition_point(|event| event.ticks <= turn.end);
            let operation = events[place.saturating_sub(1)].operation;
            let argument = turn.end - turn.begin;
            let hold = Event::new(turn.end, EventKind::Hold);
            let hold = Event { flags: WAITED, operation, site, object, argument, ..hold };
            holds.entry(turn.thread).or_default().push((place, hold));
        }
        objects.insert(object);
    }
    for (thread, mut holds) in holds {
        holds.sort_by_key(|(place, _)| *place);
        let events = std::mem::take(&mut trace.threads[thread].events);
        let mut all = Vec::with_capacity(events.len() + holds.len());
        let mut holds = holds.into_iter().peekable();
        for (at, event) in events.into_iter().enumerate() {
            while let Some((_, hold)) = holds.next_if(|(place, _)| *place <= at) {
                all.push(hold);
            }
            all.push(event);
        }
        all.extend(holds.map(|(_, hold)| hold));
        trace.threads[thread].events = all;
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_trace::WaitKind;
    use azekura_trace::event::WOKE;
    use azekura_trace::file::{ClockSample, CpuSource, Encoder, ThreadInfo};

    const WAITER: u32 = 1;
    const WAKER: u32 = 2;

    /// Threads that wait, each for an object of its own: thread `n` for object `0x1000 + n`.
    struct Threads(Vec<Vec<Event>>);

    impl Threads {
        fn new(count: usize) -> Self {
            Self(vec![Vec::new(); count])
        }

        /// Records that `thread` waits from `begin` to `end`, and that `waker` wakes it.
        fn wake(&mut self, thread: usize, (begin, end): (u64, u64), waker: usize) {
            let object = 0x1000 + thread as u64;
            let at = |ticks, kind, site, flags| Event { site, object, flags, ..Event::new(ticks, kind) };
            self.0[thread].push(at(begin, EventKind::WaitBegin, WAITER, 0));
            self.0[thread].push(at(end, EventKind::WaitEnd, WAITER, 0));
            self.0[waker].push(at(end - 1, EventKind::Release, WAKER, WOKE));
        }

        /// Returns whether a wait is for a lock, the number of objects waited for, and the number of holds.
        fn judged(mut self) -> (bool, usize, usize) {
            let mut encoder = Encoder::new();
            encoder.session(&crate::test_session("queue"));
            encoder.clock(&ClockSample { ticks: 0, monotonic_ns: 0, process_cpu_ns: 0 });
            encoder.sites([(WAITER, "semaphore", "@1000", 0), (WAKER, "semaphore", "@2000", 0)]);
            for (tag, events) in (1..).zip(&mut self.0) {
                events.sort_by_key(|event| event.ticks);
                encoder.thread(&ThreadInfo { tag, os_id: tag, name: "t".into(), cpu: CpuSource::None });
                encoder.events(tag, 0, events);
            }
            encoder.end(0);
            let trace = crate::name::name(Trace::from_bytes(encoder.as_bytes()).unwrap());
            let events = || trace.threads.iter().flat_map(|thread| &thread.events);
            // The kind of event, no ordering.
            assert!(events().all(|event| event.kind != EventKind::Release));
            let waits = || events().filter(|event| event.kind == EventKind::WaitBegin);
            let is_lock = waits().any(|event| event.argument as u8 == WaitKind::Other as u8);
            let objects: HashSet<u64> = waits().map(|event| event.object).collect();
            (is_lock, objects.len(), events().filter(|event| event.kind == EventKind::Hold).count())
        }
    }

    /// Three threads that hold a lock for 90 ticks each, in turn, and wait for objects of their own.
    fn queue() -> Threads {
        let mut threads = Threads::new(4);
        for turn in 2..20_u64 {
            let begin = if turn < 4 { turn } else { turn * 100 - 190 };
            threads.wake((turn % 3) as usize, (begin, turn * 100), ((turn + 2) % 3) as usize);
        }
        threads
    }

    #[test]
    fn waiters_that_wake_each_other_in_turns_wait_for_one_lock() {
        let (is_lock, objects, holds) = queue().judged();
        assert!(is_lock);
        assert_eq!((objects, holds), (1, 17), "each turn but the last wake-up's is a hold");
        // A thread that waits for work at the same call site stays idle.
        let mut threads = queue();
        threads.wake(3, (5, 1_500), 0);
        assert_eq!(threads.judged().1, 2);
    }

    #[test]
    fn a_holder_that_takes_the_lock_again_before_the_next_waiter_still_holds_it() {
        let mut threads = Threads::new(3);
        for turn in 2..20_u64 {
            let (thread, waker) = ((turn % 3) as usize, ((turn + 2) % 3) as usize);
            let begin = if turn < 4 { turn } else { turn * 200 - 390 };
            // The first wake-up is in vain.
            threads.wake(thread, (begin.max(5), turn * 200 - 100), waker);
            threads.wake(thread, (turn * 200 - 95, turn * 200), waker);
        }
        let (is_lock, _, holds) = threads.judged();
        assert!(is_lock && holds > 30, "{holds}");
    }

    #[test]
    fn threads_that_are_given_work_wait_for_no_lock() {
        // A pool: the last thread wakes the others.
        let mut pool = Threads::new(4);
        // A pool in which a woken thread wakes the next at once.
        let mut cascade = Threads::new(4);
        // One job at a time: the last thread waits for each result.
        let mut results = Threads::new(4);
        // Stages that work concurrently, and wait little.
        let mut stages = Threads::new(4);
        // Phases: the last thread wakes another one, and all wake each other at once, also the last one.
        let mut barrier = Threads::new(4);
        for round in 1..20_u64 {
            let (at, thread) = (round * 1_000, (round % 3) as usize);
            pool.wake(thread, ((at - 900).max(3), at), 3);
            for next in 0..3 {
                let when = at + next as u64 * 3;
                cascade.wake(next, (at - 900, when), if next == 0 { 3 } else { next - 1 });
            }
            results.wake(thread, (at.saturating_sub(2_500).max(1), at), 3);
            results.wake(3, (at + 10, at + 600), thread);
            let order = [thread, (thread + 1) % 3, (thread + 2) % 3];
            barrier.wake(order[0], ((at - 900).max(3), at), 3);
            barrier.wake(order[1], ((at - 900).max(3), at + 5), order[0]);
            barrier.wake(order[2], ((at - 900).max(3), at + 10), order[1]);
            barrier.wake(3, (at + 8, at + 15), order[2]);
            for stage in 0..3 {
                let from = (stage + 2) % 3;
                stages.wake(stage, (at + 700 + stage as u64, at + 800 + stage as u64 * 2), from);
            }
        }
        for (name, threads) in [
            ("pool", pool),
            ("cascade", cascade),
            ("results", results),
            ("stages", stages),
            ("barrier", barrier),
        ] {
            let (is_lock, _, holds) = threads.judged();
            assert_eq!((is_lock, holds), (false, 0), "{name}");
        }
    }
}
