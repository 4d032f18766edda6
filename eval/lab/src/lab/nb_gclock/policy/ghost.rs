//! Ids of pages that left, the oldest forgotten first.

use std::collections::{HashMap, VecDeque};

/// A bounded memory of ids.
#[derive(Debug)]
pub(super) struct Ghost {
    /// Ids with the number of their coming; some came back meanwhile.
    order: VecDeque<(u64, u64)>,
    /// Those that did not, with that number.
    present: HashMap<u64, u64>,
    pushed: u64,
    bound: usize,
}

impl Ghost {
    pub(super) fn new(bound: usize) -> Self {
        Self { order: VecDeque::new(), present: HashMap::new(), pushed: 0, bound: bound.max(1) }
    }

    pub(super) fn push(&mut self, page: u64) {
        self.pushed += 1;
        self.order.push_back((page, self.pushed));
        self.present.insert(page, self.pushed);
        while self.present.len() > self.bound {
            let (oldest, number) = self.order.pop_front().expect("as many as are present, or more");
            if self.present.get(&oldest) == Some(&number) {
                self.present.remove(&oldest);
            }
        }
        if self.order.len() > 2 * self.bound {
            let present = &self.present;
            self.order.retain(|(page, number)| present.get(page) == Some(number));
        }
    }

    /// Removes the page; returns whether it was there, because it left not long ago.
    pub(super) fn take(&mut self, page: u64) -> bool {
        self.present.remove(&page).is_some()
    }
}
