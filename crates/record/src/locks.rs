//! Which name a lock gets: its variable's, else where it was made, else where it is mostly waited for.
//!
//! The library knows call sites only. A lock has many, and its waits and holds must meet under one name; so all events
//! of one object are given the site of that object, and objects with the same name (all mutexes made in one line) share a
//! site, as instances.

use crate::name::Called;
use crate::symbols::{Place, Symbols};
use azekura_trace::event::EventKind;
use azekura_trace::file::{Name, Trace};
use std::collections::{BTreeMap, HashMap};

/// What is known of one object.
#[derive(Debug, Default)]
struct Known {
    what: &'static str,
    made: Option<u64>,
    /// Ticks waited, by the address waited from.
    waited: BTreeMap<u64, u64>,
    /// An address that was seen with it, if nobody ever waited.
    seen: u64,
}

/// The name of each object.
pub(crate) fn names(
    trace: &Trace,
    calls: &HashMap<u32, Called>,
    symbols: &Symbols,
) -> HashMap<u64, (Name, u64)> {
    let mut places: HashMap<u64, Place> = HashMap::new();
    let mut place = |address: u64| places.entry(address).or_insert_with(|| symbols.code(address)).clone();
    // Objects of one identity, and all that was waited for them, so that the group shares the place waited at most.
    let mut groups: BTreeMap<(String, &'static str), BTreeMap<u64, u64>> = BTreeMap::new();
    let mut identities = HashMap::new();
    for (object, known) in known(trace, calls) {
        let most = most_waited(&known.waited).unwrap_or(known.seen);
        let identity = match (symbols.variable(object), known.made) {
            (Some(variable), _) => format!("{variable}, {}", known.what),
            (None, Some(made)) => format!("{} of {}", known.what, at(&place(made))),
            (None, None) => format!("{} waited for in {}", known.what, at(&place(most))),
        };
        let group = groups.entry((identity.clone(), known.what)).or_default();
        for (address, ticks) in &known.waited {
            *group.entry(*address).or_default() += ticks;
        }
        group.entry(known.seen).or_default();
        identities.insert(object, (identity, known.what));
    }
    let name = |key: &(String, &'static str)| {
        let most = most_waited(&groups[key]).unwrap_or(0);
        let Place { function, file, line } = place(most);
        let (identity, what) = key;
        let name = if identity.contains(" waited for in ") {
            format!("{what} waited for in {function}")
        } else {
            format!("{identity}, waited for in {function}")
        };
        (Name { name, file, line }, most)
    };
    let mut made: HashMap<(String, &'static str), (Name, u64)> = HashMap::new();
    let mut name = {
        let mut name = name;
        move |key: &(String, &'static str)| made.entry(key.clone()).or_insert_with(|| name(key)).clone()
    };
    identities.into_iter().map(|(object, key)| (object, name(&key))).collect()
}

fn at(place: &Place) -> String {
    if place.line == 0 { place.function.clone() } else { format!("{}:{}", place.function, place.line) }
}

fn most_waited(waited: &BTreeMap<u64, u64>) -> Option<u64> {
    waited.iter().max_by_key(|(address, ticks)| (**ticks, std::cmp::Reverse(**address))).map(|(a, _)| *a)
}

/// Collects what all threads tell of each object.
fn known(trace: &Trace, calls: &HashMap<u32, Called>) -> BTreeMap<u64, Known> {
    let mut objects: BTreeMap<u64, Known> = BTreeMap::new();
    for thread in &trace.threads {
        let mut open: Vec<(u32, u64, u64)> = Vec::new();
        for event in &thread.events {
            let Some(called) = calls.get(&event.site).filter(|called| called.is_object()) else { continue };
            let known = objects.entry(event.object).or_default();
            known.what = called.what;
            match event.kind {
                EventKind::Mark => known.made = Some(called.address),
                EventKind::WaitBegin => {
                    known.seen = called.address;
                    open.push((event.site, event.object, event.ticks));
                }
                EventKind::WaitEnd => {
                    let is_it = |w: &(u32, u64, u64)| (w.0, w.1) == (event.site, event.object);
                    if let Some(index) = open.iter().rposition(is_it) {
                        let (_, _, begin) = open.remove(index);
                        *known.waited.entry(called.address).or_default() += event.ticks.saturating_sub(begin);
                    }
                }
                _ => known.seen = called.address,
            }
        }
    }
    objects
}
