//! Recorded results of operations on single keys, and a check that one order of all operations explains them
//! (linearizability).
//!
//! Every write of a history has a unique value, so an order of a key's writes determines the results of all
//! reads. The check is the search of Wing and Gong ("Testing and verifying concurrent objects", 1993) with
//! Lowe's memory of visited states ("Testing for linearizability", 2017). A write with an unknown outcome may
//! take effect at any time after it began, or never.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use crate::key::Key;

/// Effect and result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A read that returned this value.
    Read(Option<Vec<u8>>),
    /// A write of this value, or a removal. The answer reported whether the key had a value.
    Wrote {
        /// The written value; `None` for a removal.
        value: Option<Vec<u8>>,
        /// `true` if the key had a value; `None` if the answer is unknown.
        existed: Option<bool>,
    },
    /// A write of this value if the key has none. The answer reported whether the key had one.
    Inserted {
        /// The value to write.
        value: Vec<u8>,
        /// `true` if the key had a value; `None` if the answer is unknown.
        existed: Option<bool>,
    },
}

/// One operation on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Start of the request.
    pub began: Duration,
    /// End of the request; `None` without an answer: the operation may still take effect.
    pub ended: Option<Duration>,
    /// Effect and result.
    pub seen: Seen,
}

/// Operations of all clients, by key.
#[derive(Clone, Debug, Default)]
pub struct History {
    keys: BTreeMap<Key, Vec<Option<Event>>>,
}

/// A key with operations that no serial order explains.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The key.
    pub key: Key,
    /// Operations of the key, in the order of their starts.
    pub events: Vec<Event>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no order explains what was seen of key {:?}:", self.key)?;
        for event in &self.events {
            writeln!(f, "  {:?} to {:?}: {:?}", event.began, event.ended, event.seen)?;
        }
        Ok(())
    }
}

impl History {
    /// Adds an operation. Returns its index among the operations of its key.
    pub fn add(&mut self, key: Key, event: Event) -> usize {
        let events = self.keys.entry(key).or_default();
        events.push(Some(event));
        events.len() - 1
    }

    /// Records the result and the end of an operation. `None` removes an operation that certainly had no
    /// effect.
    ///
    /// # Panics
    ///
    /// If there is no such operation.
    pub fn complete(&mut self, key: &[u8], place: usize, how: Option<(Duration, Seen)>) {
        let event = &mut self.keys.get_mut(key).expect("it was added")[place];
        *event = match (event.take(), how) {
            (Some(event), Some((ended, seen))) => Some(Event { ended: Some(ended), seen, ..event }),
            _ => None,
        };
    }

    /// Returns the number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.values().map(|events| events.iter().flatten().count()).sum()
    }

    /// Returns `true` if there is no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the keys with operations that no serial order explains. All keys begin without a value.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        let of = |(key, events): (&Key, &Vec<Option<Event>>)| {
            let mut events: Vec<_> = events.iter().flatten().cloned().collect();
            events.sort_by_key(|event| event.began);
            (!is_linearizable(&events)).then(|| Violation { key: key.clone(), events })
        };
        self.keys.iter().filter_map(of).collect()
    }
}

/// Returns the value after an operation, or `None` if the operation contradicts the value `before`.
fn apply(seen: &Seen, before: Option<&Vec<u8>>) -> Option<Option<Vec<u8>>> {
    let fits = |existed: &Option<bool>| existed.is_none_or(|existed| existed == before.is_some());
    match seen {
        Seen::Read(value) => (value.as_ref() == before).then(|| before.cloned()),
        Seen::Wrote { value, existed } => fits(existed).then(|| value.clone()),
        Seen::Inserted { value, existed } => {
            fits(existed).then(|| before.cloned().or_else(|| Some(value.clone())))
        }
    }
}

fn is_linearizable(events: &[Event]) -> bool {
    // An unanswered read has no effect, so it is ignored.
    let is_of_use = |event: &&Event| event.ended.is_some() || !matches!(event.seen, Seen::Read(_));
    let events: Vec<_> = events.iter().filter(is_of_use).collect();
    let mut tried = HashSet::new();
    let mut open = vec![(vec![false; events.len()], None::<Vec<u8>>)];
    while let Some((done, value)) = open.pop() {
        let is_left = |place: &usize| !done[*place];
        // Selects the operations that may be next: those that began before the first remaining operation
        // ended.
        let first_end = (0..events.len()).filter(is_left).filter_map(|place| events[place].ended).min();
        let Some(first_end) = first_end else { return true };
        for place in (0..events.len()).filter(is_left).filter(|place| events[*place].began <= first_end) {
            if let Some(after) = apply(&events[place].seen, value.as_ref()) {
                let mut done = done.clone();
                done[place] = true;
                let state = (done, after);
                if tried.insert(state.clone()) {
                    open.push(state);
                }
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(began: u64, ended: Option<u64>, seen: Seen) -> Event {
        Event { began: Duration::from_secs(began), ended: ended.map(Duration::from_secs), seen }
    }

    fn wrote(value: u8) -> Seen {
        Seen::Wrote { value: Some(vec![value]), existed: None }
    }

    fn read(value: u8) -> Seen {
        Seen::Read(Some(vec![value]))
    }

    fn is_fine(events: Vec<Event>) -> bool {
        let mut history = History::default();
        for event in events {
            history.add(vec![1], event);
        }
        history.violations().is_empty()
    }

    #[test]
    fn reads_during_a_write_may_see_either_value_but_not_back_and_forth() {
        let writes = [event(0, Some(1), wrote(1)), event(2, Some(9), wrote(2))];
        let with = |reads: &[Event]| is_fine(writes.iter().chain(reads).cloned().collect());
        assert!(with(&[event(3, Some(4), read(1)), event(5, Some(6), read(2))]));
        assert!(!with(&[event(3, Some(4), read(2)), event(5, Some(6), read(1))]));
        assert!(!with(&[event(10, Some(11), read(1))]), "the second write had ended");
    }

    #[test]
    fn a_lost_write_and_an_unwritten_value_are_noticed() {
        assert!(!is_fine(vec![event(0, Some(1), wrote(1)), event(2, Some(3), Seen::Read(None))]));
        assert!(!is_fine(vec![event(0, Some(1), wrote(1)), event(2, Some(3), read(9))]));
    }

    #[test]
    fn a_write_of_unknown_outcome_may_happen_late_or_never() {
        let unknown = event(0, None, wrote(1));
        let none = event(1, Some(2), Seen::Read(None));
        assert!(is_fine(vec![unknown.clone(), none.clone()]));
        assert!(is_fine(vec![unknown.clone(), none.clone(), event(3, Some(4), read(1))]));
        assert!(!is_fine(vec![unknown, event(1, Some(2), read(1)), event(3, Some(4), Seen::Read(None))]));
    }

    #[test]
    fn the_reported_earlier_value_of_a_write_is_checked() {
        let insert = |existed| Seen::Inserted { value: vec![1], existed: Some(existed) };
        assert!(is_fine(vec![event(0, Some(1), insert(false)), event(2, Some(3), read(1))]));
        assert!(!is_fine(vec![event(0, Some(1), insert(true))]), "there was none");
        let delete = Seen::Wrote { value: None, existed: Some(true) };
        assert!(!is_fine(vec![event(0, Some(1), delete)]));
    }
}
