//! Numbers of recently evicted pages, in a bounded first-in first-out list.

use std::collections::{HashMap, VecDeque};

/// A bounded list of page numbers.
#[derive(Debug)]
pub(super) struct Ghost {
    /// Page numbers with their sequence numbers; some are outdated, because the page was read again.
    order: VecDeque<(u64, u64)>,
    /// Valid page numbers with their sequence numbers.
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

    /// Removes the page. Returns whether it was in the list.
    pub(super) fn take(&mut self, page: u64) -> bool {
        self.present.remove(&page).is_some()
    }
}
