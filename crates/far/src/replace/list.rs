//! A list of pages in an order of its own, with removal from the middle.

use super::PageNo;

const NONE: u32 = u32::MAX;
const OUT: u32 = u32::MAX - 1;

/// Doubly linked by page number; a page is in it at most once. Fixed size; nothing is allocated after it was made.
#[derive(Clone, Debug)]
pub(crate) struct PageList {
    next: Vec<u32>,
    prev: Vec<u32>,
    head: u32,
    tail: u32,
    len: u32,
}

impl PageList {
    pub(crate) fn new(pages: u32) -> Self {
        let entries = pages as usize;
        Self { next: vec![OUT; entries], prev: vec![OUT; entries], head: NONE, tail: NONE, len: 0 }
    }

    pub(crate) fn contains(&self, page: PageNo) -> bool {
        self.next[page.index()] != OUT
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn head(&self) -> Option<PageNo> {
        (self.head != NONE).then_some(PageNo(self.head))
    }

    /// Appends a page that is not in the list.
    pub(crate) fn push_back(&mut self, page: PageNo) {
        debug_assert!(!self.contains(page), "page {page} is in the list already");
        self.next[page.index()] = NONE;
        self.prev[page.index()] = self.tail;
        match self.tail {
            NONE => self.head = page.0,
            tail => self.next[tail as usize] = page.0,
        }
        self.tail = page.0;
        self.len += 1;
    }

    /// Takes a page out; whether it was in.
    pub(crate) fn remove(&mut self, page: PageNo) -> bool {
        if !self.contains(page) {
            return false;
        }
        let (next, prev) = (self.next[page.index()], self.prev[page.index()]);
        match prev {
            NONE => self.head = next,
            prev => self.next[prev as usize] = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.prev[next as usize] = prev,
        }
        (self.next[page.index()], self.prev[page.index()]) = (OUT, OUT);
        self.len -= 1;
        true
    }

    pub(crate) fn pop_front(&mut self) -> Option<PageNo> {
        let head = self.head()?;
        self.remove(head);
        Some(head)
    }

    /// Moves a page that is in the list to its end.
    pub(crate) fn move_to_back(&mut self, page: PageNo) {
        if self.remove(page) {
            self.push_back(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replace::rng::Lots;
    use std::collections::VecDeque;

    #[test]
    fn it_does_what_a_deque_does() {
        for seed in 0..20 {
            let mut lots = Lots::new(seed);
            let (mut list, mut plain) = (PageList::new(12), VecDeque::new());
            for _ in 0..400 {
                let page = PageNo(lots.below(12));
                let within = plain.contains(&page);
                match lots.below(4) {
                    0 if !within => {
                        list.push_back(page);
                        plain.push_back(page);
                    }
                    1 => {
                        assert_eq!(list.remove(page), within, "seed {seed}");
                        plain.retain(|&p| p != page);
                    }
                    2 => {
                        list.move_to_back(page);
                        if within {
                            plain.retain(|&p| p != page);
                            plain.push_back(page);
                        }
                    }
                    _ => assert_eq!(list.pop_front(), plain.pop_front(), "seed {seed}"),
                }
                assert_eq!(list.head(), plain.front().copied(), "seed {seed}");
                assert_eq!(list.len() as usize, plain.len(), "seed {seed}");
            }
        }
    }
}
