//! Names the operation of a thread by the thread's own name, or by its first function.
//!
//! All threads of a runtime (Rust's std, libstdc++, the Java VM) have the same start function. Such a thread
//! is named by the first function of the program on its stack, unless it has a name.

use crate::frames::{self, Stack};
use crate::name::{CALLER, Called};
use crate::symbols::Symbols;
use azekura_trace::event::EventKind;
use azekura_trace::file::{Name, Trace};
use std::collections::{BTreeMap, HashMap};

/// Parts of the names of start functions that all threads of a runtime share: Rust's std (in either
/// mangling), libstdc++, the Java VM.
const RUNTIMES: [&[&str]; 4] = [
    &["std::sys::", "::thread_start"],
    &["execute_native_thread_routine"],
    &["libstdc++.so"],
    &["thread_native_entry"],
];
/// Bytes of a thread's name that the kernel stores.
const NAME_BYTES: usize = 15;

fn is_runtime(function: &str) -> bool {
    RUNTIMES.iter().any(|parts| parts.iter().all(|part| function.contains(part)))
}

/// Returns the program's first function on the thread's stack, by the thread's tag. Only threads that begin
/// in a runtime and have a wait with a whole stack are in the map.
pub(crate) fn beginnings(
    trace: &Trace,
    calls: &HashMap<u32, Called>,
    symbols: &Symbols,
) -> HashMap<u32, Name> {
    let mut found = HashMap::new();
    for thread in &trace.threads {
        let mut stack: Stack = Vec::new();
        for event in &thread.events {
            let Some(called) = calls.get(&event.site) else { continue };
            if called.what == CALLER {
                stack.push(called.address);
                continue;
            }
            let stack = std::mem::take(&mut stack);
            if event.kind != EventKind::WaitBegin || stack.is_empty() {
                continue;
            }
            let frames = frames::of(std::iter::once(&called.address).chain(&stack), symbols);
            let beginning = frames.iter().position(|frame| is_runtime(&frame.function));
            if let Some(own) = beginning.and_then(|at| frames::outermost_own(&frames[..at])) {
                let own = own.clone();
                found.insert(thread.tag, Name { name: own.function, file: own.file, line: own.line });
            }
            break; // the later stacks have fewer frames
        }
    }
    found
}

/// Renames each thread's operation.
///
/// The kernel gives a new thread the name of its creator. So a name is a thread's own if it is neither the
/// program's nor the main thread's. Numbers at the end of names are removed, so that the threads of a pool
/// share one operation.
pub(crate) fn name(trace: &mut Trace, beginnings: &HashMap<u32, Name>) {
    let mut inherited = vec![prefix(&trace.session.label).to_owned()];
    let main = trace.operations.iter().find(|(_, name)| name.name == "main").map(|(id, _)| *id);
    let begins_with = |events: &[azekura_trace::event::Event]| {
        events.iter().find(|event| event.operation != 0).map(|event| event.operation)
    };
    let mains = trace.threads.iter().filter(|thread| main.is_some() && begins_with(&thread.events) == main);
    inherited.extend(mains.map(|thread| thread.name.clone()));
    let mut named: BTreeMap<(u16, String), u16> = BTreeMap::new();
    for thread in &mut trace.threads {
        let Some(id) = begins_with(&thread.events).filter(|id| Some(*id) != main) else { continue };
        let Some(function) = trace.operations.get(&id).cloned() else { continue };
        let stem = stem(&thread.name);
        let name = if !stem.is_empty() && !inherited.contains(&thread.name) {
            Name { name: stem.to_owned(), ..function }
        } else if let Some(own) = beginnings.get(&thread.tag).filter(|_| is_runtime(&function.name)) {
            own.clone()
        } else {
            continue;
        };
        let next = trace.operations.keys().next_back().and_then(|last| last.checked_add(1));
        let renamed = match named.get(&(id, name.name.clone())) {
            Some(renamed) => *renamed,
            None => {
                let Some(next) = next else { return };
                named.insert((id, name.name.clone()), next);
                trace.operations.insert(next, name);
                next
            }
        };
        for event in thread.events.iter_mut().filter(|event| event.operation == id) {
            event.operation = renamed;
        }
    }
    let used = |id: &u16| trace.threads.iter().flat_map(|thread| &thread.events).any(|e| e.operation == *id);
    let unused: Vec<u16> = named.keys().map(|(id, _)| *id).filter(|id| !used(id)).collect();
    unused.iter().for_each(|id| _ = trace.operations.remove(id));
}

/// Returns the part of a program's name that the kernel stores as a thread name.
fn prefix(label: &str) -> &str {
    let mut end = label.len().min(NAME_BYTES);
    while !label.is_char_boundary(end) {
        end -= 1;
    }
    &label[..end]
}

fn stem(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit() || "-_ #:".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_trace::event::Event;
    use azekura_trace::file::{ClockSample, CpuSource, Encoder, ThreadInfo};

    const RUST: &str = "<std::sys::thread::unix::Thread>::new::thread_start";

    /// Returns the operations of threads with these names and numbers of first functions.
    fn operations(threads: &[(&str, u16)], beginnings: &HashMap<u32, Name>) -> Vec<String> {
        let mut encoder = Encoder::new();
        encoder.session(&crate::test_session("server-of-long-name"));
        encoder.clock(&ClockSample { ticks: 0, monotonic_ns: 0, process_cpu_ns: 0 });
        encoder.operations([(1, "main", "", 0), (2, RUST, "", 0), (3, "worker", "server.c", 7)]);
        for (tag, (name, operation)) in (1..).zip(threads) {
            encoder.thread(&ThreadInfo { tag, os_id: tag, name: (*name).into(), cpu: CpuSource::None });
            let event = |ticks, kind| Event { operation: *operation, ..Event::new(ticks, kind) };
            encoder.events(tag, 0, &[event(1, EventKind::Enter), event(9, EventKind::Exit)]);
        }
        encoder.end(0);
        let mut trace = Trace::from_bytes(encoder.as_bytes()).unwrap();
        name(&mut trace, beginnings);
        let report = |events: &Vec<Event>| {
            assert_eq!(events[0].operation, events[1].operation);
            trace.operations[&events[0].operation].name.clone()
        };
        trace.threads.iter().map(|thread| report(&thread.events)).collect()
    }

    #[test]
    fn a_thread_with_a_name_of_its_own_keeps_it() {
        let threads =
            [("server-of-long-", 1), ("flush-1", 2), ("flush-2", 2), ("s", 2), ("server-of-long-", 2)];
        assert_eq!(operations(&threads, &HashMap::new()), ["main", "flush", "flush", "s", RUST]);
        let threads = [("loop", 1), ("reader-1", 3), ("loop", 3), ("server-of-long-", 3)];
        assert_eq!(operations(&threads, &HashMap::new()), ["main", "reader", "worker", "worker"]);
    }

    #[test]
    fn an_unnamed_runtime_thread_is_named_by_its_first_function() {
        let own = |name: &str| Name { name: name.into(), file: "server.rs".into(), line: 3 };
        let beginnings = HashMap::from([(2, own("accept")), (3, own("flush")), (4, own("nothing"))]);
        let threads = [("server-of-long-", 1), ("server-of-long-", 2), ("server-of-long-", 2), ("x", 2)];
        assert_eq!(operations(&threads, &beginnings), ["main", "accept", "flush", "x"]);
        let threads = [("server-of-long-", 1), ("server-of-long-", 3)];
        assert_eq!(operations(&threads, &beginnings), ["main", "worker"], "it has a function");
    }
}
