//! Linked lists of pages, with removal from the middle.

use super::PageNo;
use crate::sparse::Sparse;

const NONE: u32 = u32::MAX;
const OUT: u32 = u32::MAX;

/// Lists over the same pages, doubly linked by page number. A page is in at most one list, at most once.
/// Memory is allocated only for the parts of a region that had a page in a list.
#[derive(Clone, Debug)]
pub(crate) struct PageLists {
    links: Sparse<Link>,
    ends: Vec<Ends>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
    /// Number of the list that contains the page; `OUT` if none does.
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
    len: u32,
}

impl PageLists {
    pub(crate) fn new(pages: u32, lists: usize) -> Self {
        let out = Link { next: NONE, prev: NONE, list: OUT };
        Self {
            links: Sparse::new(out, pages as usize),
            ends: vec![Ends { head: NONE, tail: NONE, len: 0 }; lists],
        }
    }

    pub(crate) fn contains(&self, page: PageNo) -> bool {
        self.links[page.index()].list != OUT
    }

    pub(crate) fn len(&self, list: usize) -> u32 {
        self.ends[list].len
    }

    pub(crate) fn head(&self, list: usize) -> Option<PageNo> {
        let head = self.ends[list].head;
        (head != NONE).then_some(PageNo(head))
    }

    /// Appends a page that is in no list.
    pub(crate) fn push_back(&mut self, list: usize, page: PageNo) {
        // A page that is inserted twice would make a cycle, in which a search never ends.
        assert!(!self.contains(page), "page {page} is in a list already");
        let ends = &mut self.ends[list];
        self.links[page.index()] = Link { next: NONE, prev: ends.tail, list: list as u32 };
        match ends.tail {
            NONE => ends.head = page.0,
            tail => self.links[tail as usize].next = page.0,
        }
        ends.tail = page.0;
        ends.len += 1;
    }

    /// Removes a page from its list. Returns `true` if the page was in a list.
    pub(crate) fn remove(&mut self, page: PageNo) -> bool {
        let Link { next, prev, list } = self.links[page.index()];
        if list == OUT {
            return false;
        }
        let ends = &mut self.ends[list as usize];
        match prev {
            NONE => ends.head = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            NONE => ends.tail = prev,
            next => self.links[next as usize].prev = prev,
        }
        ends.len -= 1;
        self.links[page.index()].list = OUT;
        true
    }
}

/// A single list of pages.
#[derive(Clone, Debug)]
pub(crate) struct PageList(PageLists);

impl PageList {
    pub(crate) fn new(pages: u32) -> Self {
        Self(PageLists::new(pages, 1))
    }

    pub(crate) fn len(&self) -> u32 {
        self.0.len(0)
    }

    pub(crate) fn head(&self) -> Option<PageNo> {
        self.0.head(0)
    }

    pub(crate) fn contains(&self, page: PageNo) -> bool {
        self.0.contains(page)
    }

    /// Appends a page that is not in the list.
    pub(crate) fn push_back(&mut self, page: PageNo) {
        self.0.push_back(0, page);
    }

    /// Removes a page. Returns `true` if the page was in the list.
    pub(crate) fn remove(&mut self, page: PageNo) -> bool {
        self.0.remove(page)
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
    use crate::replace::rng::Rng;
    use std::collections::VecDeque;

    #[test]
    fn it_does_what_a_deque_does() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut list, mut plain) = (PageList::new(12), VecDeque::new());
            for _ in 0..400 {
                let page = PageNo(rng.below(12));
                let within = plain.contains(&page);
                match rng.below(4) {
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
