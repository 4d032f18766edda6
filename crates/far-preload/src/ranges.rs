//! A set of numbers (addresses, pages), stored as ranges that neither overlap nor touch.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers as disjoint ranges; see the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(BTreeMap<usize, usize>);

impl Ranges {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that overlap or touch the new one are merged into it.
        while let Some((&first, &last)) = self.0.range(..=end).next_back().filter(|&(_, &last)| last >= start)
        {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    pub(crate) fn remove(&mut self, range: Range<usize>) {
        let meeting: Vec<Range<usize>> = self.meeting(&range).collect();
        for Range { start, end } in meeting {
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
    }

    /// Returns the ranges of the set that overlap a range, not cut to it.
    fn meeting(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let Range { start, end } = *range;
        let before = self.0.range(..start).next_back().filter(move |&(_, &last)| last > start);
        let meeting = before.into_iter().chain(self.0.range(start..end.max(start)));
        meeting.filter(move |_| start < end).map(|(&first, &last)| first..last)
    }

    /// Returns the parts of a range that are in the set.
    pub(crate) fn within(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let Range { start, end } = *range;
        self.meeting(range).map(move |part| part.start.max(start)..part.end.min(end))
    }

    /// Returns the parts of a range that are not in the set.
    pub(crate) fn without(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let mut rest = Vec::new();
        let mut at = range.start;
        for part in self.within(range) {
            if at < part.start {
                rest.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            rest.push(at..range.end);
        }
        rest
    }

    pub(crate) fn meets(&self, range: &Range<usize>) -> bool {
        self.within(range).next().is_some()
    }

    /// Returns `true` if all of a range is in the set.
    pub(crate) fn covers(&self, range: &Range<usize>) -> bool {
        range.is_empty() || self.within(range).next().is_some_and(|part| part == *range)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// Returns the number of numbers in the set.
    pub(crate) fn total(&self) -> usize {
        self.iter().map(|range| range.len()).sum()
    }
}
