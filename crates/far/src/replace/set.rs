//! A set of pages as a bitmap, searched in the order of addresses.

use super::PageNo;

/// A set of pages of fixed size. Allocates nothing after its construction.
#[derive(Clone, Debug)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    len: u32,
}

impl PageSet {
    pub(crate) fn new(pages: u32) -> Self {
        Self { words: vec![0; (pages as usize).div_ceil(64)], len: 0 }
    }

    pub(crate) fn insert(&mut self, page: PageNo) {
        self.len += u32::from(!self.contains(page));
        let (word, bit) = place(page);
        self.words[word] |= bit;
    }

    pub(crate) fn remove(&mut self, page: PageNo) {
        self.len -= u32::from(self.contains(page));
        let (word, bit) = place(page);
        self.words[word] &= !bit;
    }

    pub(crate) fn contains(&self, page: PageNo) -> bool {
        let (word, bit) = place(page);
        self.words[word] & bit != 0
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the first page of the set at or after `from`. After the last page the search continues at the
    /// first page.
    pub(crate) fn next_from(&self, from: PageNo) -> Option<PageNo> {
        if self.len == 0 {
            return None;
        }
        let (start, _) = place(from);
        let start = if start < self.words.len() { start } else { 0 };
        let behind = u64::MAX << (from.0 % 64);
        let of =
            |word: usize, bits: u64| (bits != 0).then(|| PageNo(word as u32 * 64 + bits.trailing_zeros()));
        of(start, self.words[start] & behind)
            .or_else(|| (start + 1..self.words.len()).find_map(|word| of(word, self.words[word])))
            .or_else(|| (0..=start).find_map(|word| of(word, self.words[word])))
    }

    /// Returns all pages of the set in the order of addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = PageNo> + '_ {
        self.words.iter().enumerate().flat_map(|(word, &bits)| {
            let mut bits = bits;
            std::iter::from_fn(move || {
                let page = (bits != 0).then(|| PageNo(word as u32 * 64 + bits.trailing_zeros()));
                bits &= bits.wrapping_sub(1);
                page
            })
        })
    }
}

fn place(page: PageNo) -> (usize, u64) {
    (page.index() / 64, 1 << (page.0 % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_wraps_around_at_the_end() {
        let mut set = PageSet::new(200);
        assert_eq!(set.next_from(PageNo(7)), None);
        for page in [3, 64, 130] {
            set.insert(PageNo(page));
        }
        let found = |from| set.next_from(PageNo(from)).unwrap().0;
        assert_eq!([0, 3, 4, 64, 65, 130, 131, 199, 200].map(found), [3, 3, 64, 64, 130, 130, 3, 3, 3]);
        assert_eq!((set.len(), set.iter().map(|p| p.0).collect::<Vec<_>>()), (3, vec![3, 64, 130]));
        set.remove(PageNo(64));
        set.remove(PageNo(65));
        assert_eq!((set.len(), set.contains(PageNo(64)), set.contains(PageNo(3))), (2, false, true));
    }

    #[test]
    fn a_single_page_below_the_start_is_found_again() {
        let mut set = PageSet::new(64);
        set.insert(PageNo(5));
        assert_eq!(set.next_from(PageNo(6)), Some(PageNo(5)));
    }
}
