//! One space-map page: a bit per page of its group, set while the page is in use.
//!
//! | bytes | field |
//! |---|---|
//! | 0..24 | common header |
//! | 24..32 | zero |
//! | 32.. | bits, lowest first; bit 0 is the map itself |
//!
//! A page that was never written is the map of a group in which nothing is used but the map itself. A bit is
//! set or cleared only from its opposite: a page that is given out or freed twice is found on the spot, not
//! later.

use azekura_base::page::{PageMut, PageType};
use azekura_base::{PageId, PageWords};

const BITS_AT_WORD: usize = 4;

/// Pages in a group: bits that fit a map page.
#[must_use]
pub const fn group_pages(page_size: usize) -> u64 {
    ((page_size / 8 - BITS_AT_WORD) * 64) as u64
}

/// The map page of the group that `page_id` belongs to, and the page's bit there.
#[must_use]
pub const fn map_of(page_id: PageId, page_size: usize) -> (PageId, u32) {
    let bit = page_id.0 % group_pages(page_size);
    (PageId(page_id.0 - bit), bit as u32)
}

fn is_unwritten(page: PageWords<'_>) -> bool {
    page.page_type() == Some(PageType::Free)
}

/// Bits `64 * index ..` as one word; an unwritten page has bit 0 only.
fn bits(page: PageWords<'_>, index: usize) -> u64 {
    if is_unwritten(page) { u64::from(index == 0) } else { page.word(BITS_AT_WORD + index) }
}

/// Whether bit `bit` is set.
#[must_use]
pub fn is_used(page: PageWords<'_>, bit: u32) -> bool {
    bits(page, (bit / 64) as usize) >> (bit % 64) & 1 == 1
}

fn check_range(page: PageWords<'_>, first: u32, count: u32) -> Result<(), &'static str> {
    let end = u64::from(first) + u64::from(count);
    if count == 0 || end > group_pages(page.len()) {
        return Err("outside the group");
    }
    match page.page_type() {
        Some(PageType::Free | PageType::SpaceMap) => Ok(()),
        _ => Err("not a space map"),
    }
}

pub(crate) fn check_set(page: PageWords<'_>, first: u32, count: u32) -> Result<(), &'static str> {
    check_range(page, first, count)?;
    let is_free = (first..first + count).all(|bit| !is_used(page, bit));
    is_free.then_some(()).ok_or("a page would be given out twice")
}

pub(crate) fn check_clear(page: PageWords<'_>, first: u32, count: u32) -> Result<(), &'static str> {
    check_range(page, first, count)?;
    let is_all_used = first > 0 && (first..first + count).all(|bit| is_used(page, bit));
    is_all_used.then_some(()).ok_or("a page would be freed twice")
}

pub(crate) fn set(page: &mut PageMut<'_>, page_id: PageId, first: u32, count: u32) {
    if is_unwritten(page.words()) {
        let lsn = page.lsn();
        page.format(PageType::SpaceMap, page_id);
        page.set_lsn(lsn);
        page.set_word(BITS_AT_WORD, 1);
    }
    for_each_word(first, count, |index, mask| {
        page.set_word(BITS_AT_WORD + index, page.word(BITS_AT_WORD + index) | mask);
    });
}

pub(crate) fn clear(page: &mut PageMut<'_>, first: u32, count: u32) {
    for_each_word(first, count, |index, mask| {
        page.set_word(BITS_AT_WORD + index, page.word(BITS_AT_WORD + index) & !mask);
    });
}

fn for_each_word(first: u32, count: u32, mut each: impl FnMut(usize, u64)) {
    let (mut bit, end) = (first, first + count);
    while bit < end {
        let in_word = (64 - bit % 64).min(end - bit);
        let mask = (u64::MAX >> (64 - in_word)) << (bit % 64);
        each((bit / 64) as usize, mask);
        bit += in_word;
    }
}

/// The first run of `want` free bits at or above `from` and below `end`, or, failing that, the longest run
/// there.
#[must_use]
pub(super) fn find_run(page: PageWords<'_>, from: u32, end: u32, want: u32) -> Option<(u32, u32)> {
    let mut best: Option<(u32, u32)> = None;
    let mut bit = from;
    while let Some(first) = next_free(page, bit, end) {
        let limit = end.min(first.saturating_add(want));
        let count = (first..limit).take_while(|&b| !is_used(page, b)).count() as u32;
        if best.is_none_or(|(_, longest)| count > longest) {
            best = Some((first, count));
        }
        if count == want {
            break;
        }
        bit = first + count + 1;
    }
    best
}

fn next_free(page: PageWords<'_>, from: u32, end: u32) -> Option<u32> {
    let mut bit = from;
    while bit < end {
        let free = !bits(page, (bit / 64) as usize) >> (bit % 64);
        if free != 0 {
            return Some(bit + free.trailing_zeros()).filter(|&found| found < end);
        }
        bit = (bit / 64 + 1) * 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Scratch;

    #[test]
    fn an_unwritten_page_is_an_empty_map_and_becomes_a_real_one_when_set() {
        let mut scratch = Scratch::new(4096);
        assert_eq!(find_run(scratch.page(), 0, 100, 1), Some((1, 1)), "bit 0 is the map itself");
        set(&mut scratch.page_mut(), PageId(0), 60, 10);
        assert_eq!(scratch.page().page_type(), Some(PageType::SpaceMap));
        let used: Vec<u32> = (0..200).filter(|&b| is_used(scratch.page(), b)).collect();
        assert_eq!(used, [0, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69]);
        assert_eq!(check_set(scratch.page(), 69, 2), Err("a page would be given out twice"));
        assert_eq!(check_clear(scratch.page(), 69, 2), Err("a page would be freed twice"));
        assert_eq!(check_clear(scratch.page(), 0, 1), Err("a page would be freed twice"));
        clear(&mut scratch.page_mut(), 62, 8);
        assert!(!is_used(scratch.page(), 64) && is_used(scratch.page(), 61));
    }

    #[test]
    fn finds_a_whole_run_or_else_the_longest_one() {
        let mut scratch = Scratch::new(4096);
        set(&mut scratch.page_mut(), PageId(0), 1, 127);
        clear(&mut scratch.page_mut(), 10, 2);
        clear(&mut scratch.page_mut(), 62, 5);
        assert_eq!(find_run(scratch.page(), 1, 128, 2), Some((10, 2)));
        assert_eq!(find_run(scratch.page(), 1, 128, 4), Some((62, 4)));
        assert_eq!(find_run(scratch.page(), 1, 128, 9), Some((62, 5)));
        assert_eq!(find_run(scratch.page(), 68, 128, 1), None);
        assert_eq!(find_run(scratch.page(), 68, 300, 16), Some((128, 16)));
    }

    #[test]
    fn a_group_is_as_many_pages_as_a_map_has_bits() {
        assert_eq!(group_pages(8192), 65_280);
        assert_eq!(map_of(PageId(65_281), 8192), (PageId(65_280), 1));
        let mut scratch = Scratch::new(4096);
        let last = group_pages(4096) as u32 - 1;
        set(&mut scratch.page_mut(), PageId(0), last, 1);
        assert!(is_used(scratch.page(), last));
        assert_eq!(check_set(scratch.page(), last, 2), Err("outside the group"));
    }
}
