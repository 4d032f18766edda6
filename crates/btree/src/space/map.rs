//! One space-map page: a bit per page of its group, set while the page is in use.
//!
//! | bytes | field |
//! |---|---|
//! | 0..24 | common header |
//! | 24..32 | 1 if the next group has a map, otherwise 0 |
//! | 32.. | bits, lowest first; bit 0 is the map itself |
//!
//! Maps are made in order. The record that makes a map also marks it in the previous map, so a map page of
//! zeroes is recognized as damage. A bit is set only if it is clear, and cleared only if it is set: a page
//! that is allocated or freed twice is detected at once.

use azekura_base::page::{PageMut, PageType};
use azekura_base::{PageId, PageWords};

const NEXT_AT_WORD: usize = 3;
const BITS_AT_WORD: usize = 4;

/// Returns the number of pages in a group: the number of bits that fit a map page.
#[must_use]
pub const fn group_pages(page_size: usize) -> u64 {
    ((page_size / 8 - BITS_AT_WORD) * 64) as u64
}

/// Returns the map page of the group of `page_id`, and the page's bit in it.
#[must_use]
pub const fn map_of(page_id: PageId, page_size: usize) -> (PageId, u32) {
    let bit = page_id.0 % group_pages(page_size);
    (PageId(page_id.0 - bit), bit as u32)
}

/// Returns bits `64 * index ..` as one word.
fn bits(page: PageWords<'_>, index: usize) -> u64 {
    page.word(BITS_AT_WORD + index)
}

/// Returns `true` if the next group has a map.
#[must_use]
pub fn has_next(page: PageWords<'_>) -> bool {
    page.word(NEXT_AT_WORD) != 0
}

pub(crate) fn check_next(page: PageWords<'_>) -> Result<(), &'static str> {
    check_type(page)?;
    if has_next(page) { Err("the next map would be made twice") } else { Ok(()) }
}

pub(crate) fn set_next(page: &mut PageMut<'_>) {
    page.set_word(NEXT_AT_WORD, 1);
}

pub(crate) fn check_make(page: PageWords<'_>, used: u32) -> Result<(), &'static str> {
    let fits = u64::from(used) < group_pages(page.len());
    fits.then_some(()).ok_or("outside the group")
}

/// Formats the page as a map, in which the next `used` pages are in use.
pub(crate) fn make(page: &mut PageMut<'_>, page_id: PageId, used: u32) {
    let lsn = page.lsn();
    page.format(PageType::SpaceMap, page_id);
    page.set_lsn(lsn);
    set(page, 0, used + 1);
}

fn check_type(page: PageWords<'_>) -> Result<(), &'static str> {
    if page.page_type() == Some(PageType::SpaceMap) { Ok(()) } else { Err("not a space map") }
}

/// Returns `true` if bit `bit` is set.
#[must_use]
pub fn is_used(page: PageWords<'_>, bit: u32) -> bool {
    bits(page, (bit / 64) as usize) >> (bit % 64) & 1 == 1
}

fn check_range(page: PageWords<'_>, first: u32, count: u32) -> Result<(), &'static str> {
    let end = u64::from(first) + u64::from(count);
    if count == 0 || end > group_pages(page.len()) {
        return Err("outside the group");
    }
    check_type(page)
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

pub(crate) fn set(page: &mut PageMut<'_>, first: u32, count: u32) {
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

/// Returns the first run of `want` free bits at or above `from` and below `end`; if there is none, the
/// longest run there.
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

    fn new_map(used: u32) -> Scratch {
        let mut scratch = Scratch::new(4096);
        assert_eq!(check_set(scratch.page(), 1, 1), Err("not a space map"), "zeroes are no map");
        assert_eq!(check_next(scratch.page()), Err("not a space map"));
        make(&mut scratch.page_mut(), PageId(0), used);
        scratch
    }

    #[test]
    fn a_map_is_made_once_and_pages_are_given_out_and_freed_once() {
        let mut scratch = new_map(0);
        assert_eq!(find_run(scratch.page(), 0, 100, 1), Some((1, 1)), "bit 0 is the map itself");
        set(&mut scratch.page_mut(), 60, 10);
        assert_eq!(scratch.page().page_type(), Some(PageType::SpaceMap));
        let used: Vec<u32> = (0..200).filter(|&b| is_used(scratch.page(), b)).collect();
        assert_eq!(used, [vec![0], (60..70).collect()].concat());
        assert_eq!(check_set(scratch.page(), 69, 2), Err("a page would be given out twice"));
        assert_eq!(check_clear(scratch.page(), 69, 2), Err("a page would be freed twice"));
        assert_eq!(check_clear(scratch.page(), 0, 1), Err("a page would be freed twice"));
        clear(&mut scratch.page_mut(), 62, 8);
        assert!(!is_used(scratch.page(), 64) && is_used(scratch.page(), 61));
        assert!(!has_next(scratch.page()) && check_next(scratch.page()).is_ok());
        set_next(&mut scratch.page_mut());
        assert!(has_next(scratch.page()) && check_next(scratch.page()).is_err());
        assert!(is_used(new_map(7).page(), 7) && !is_used(new_map(7).page(), 8));
        let all = group_pages(4096) as u32;
        assert!(check_make(scratch.page(), all - 1).is_ok() && check_make(scratch.page(), all).is_err());
    }

    #[test]
    fn finds_a_whole_run_or_else_the_longest_one() {
        let mut scratch = new_map(127);
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
        let mut scratch = new_map(0);
        let last = group_pages(4096) as u32 - 1;
        set(&mut scratch.page_mut(), last, 1);
        assert!(is_used(scratch.page(), last));
        assert_eq!(check_set(scratch.page(), last, 2), Err("outside the group"));
    }
}
