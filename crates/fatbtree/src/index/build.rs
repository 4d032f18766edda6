//! The initial build (section 3.2): from sorted rows to the leaves and index pages of every PE.
//!
//! 1. The rows are sorted by key and divided into leaves with a given fill. The leaves are distributed evenly
//!    over the PEs, in key order.
//! 2. One B-tree is built over the leaves, bottom up: the SIB.
//! 3. Its index pages are sent to every PE, from the root, left to right (*left-recursively*). Each PE
//!    numbers the pages in the order of arrival: the CWB.
//! 4. In the same order, each PE drops the pages that have none of its leaves below. All PEs exchange the
//!    numbers of the kept pages, for the pointer pages: the Fat-Btree.
//!
//! The steps are the same for the three placements, which differ in the pages that each PE keeps.

use std::collections::BTreeMap;

use crate::id::{LogicalPageId, PageNo, PeId};
use crate::index::{Index, IndexPage, PageCopy, PointerEntry};
use crate::key::{Key, KeyRange};
use crate::leaf::{LeafHead, RouteEntry};
use crate::placement::Placement;
use crate::ranges::Ranges;

/// Options of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// Number of PEs.
    pub pes: u16,
    /// Placement of the index pages.
    pub placement: Placement,
    /// Number of entries that an index page gets.
    pub index_fill: usize,
    /// Maximum of entries of an index page.
    pub index_entries: usize,
}

/// One PE's part of the built index.
#[derive(Clone, Debug)]
pub struct Built {
    pub(crate) index: Index,
    /// Leaves of the PE.
    pub heads: Vec<LeafHead>,
    /// First key of the PE's key range.
    pub low: Key,
}

/// A page of the complete B-tree, before it is assigned to PEs.
struct Page {
    level: u8,
    range: KeyRange,
    /// Indexes of the pages, or of the leaves, below this page.
    below: std::ops::Range<usize>,
}

/// Builds a tree over leaves, given by their first keys in order. The first leaf also contains all keys
/// before its first key. Every PE gets a part, in the order of the PE numbers.
///
/// # Panics
///
/// If there are fewer leaves than PEs, or if the fill of an index page is 0.
#[must_use]
pub fn build(first_keys: &[Key], options: BuildOptions) -> Vec<Built> {
    let leaves = spread(first_keys, options);
    let levels = bottom_up(&leaves, options.index_fill);
    (0..options.pes).map(|pe| part(PeId(pe), &leaves, &levels, options)).collect()
}

/// Step 1: distributes the leaves over the PEs.
fn spread(first_keys: &[Key], options: BuildOptions) -> Vec<RouteEntry> {
    let count = first_keys.len();
    assert!(count >= usize::from(options.pes), "fewer leaves than PEs");
    let low = |leaf: usize| if leaf == 0 { Key::new() } else { first_keys[leaf].clone() };
    let mut pages = BTreeMap::new();
    let route_entry = |leaf: usize| {
        let pe = PeId((leaf * usize::from(options.pes) / count) as u16);
        let page = pages.entry(pe).or_insert(0);
        *page += 1;
        let high = (leaf + 1 < count).then(|| low(leaf + 1));
        RouteEntry { range: KeyRange { low: low(leaf), high }, pe, page: PageNo(*page), version: 1 }
    };
    (0..count).map(route_entry).collect()
}

/// Step 2: returns the levels of index pages, the lowest first. The last level has one page.
fn bottom_up(leaves: &[RouteEntry], fill: usize) -> Vec<Vec<Page>> {
    let pages = |level, ranges: &[KeyRange]| -> Vec<Page> {
        let places: Vec<usize> = (0..ranges.len()).collect();
        let page = |below: &[usize]| {
            let (first, last) = (below[0], below[below.len() - 1]);
            let range = KeyRange { low: ranges[first].low.clone(), high: ranges[last].high.clone() };
            Page { level, range, below: first..last + 1 }
        };
        places.chunks(fill).map(page).collect()
    };
    let ranges: Vec<_> = leaves.iter().map(|leaf| leaf.range.clone()).collect();
    let mut levels = vec![pages(1, &ranges)];
    while let Some(top) = levels.last().filter(|top| top.len() > 1) {
        let ranges: Vec<_> = top.iter().map(|page| page.range.clone()).collect();
        let level = top[0].level + 1;
        levels.push(pages(level, &ranges));
    }
    levels
}

/// Steps 3 and 4: returns the part of one PE.
fn part(me: PeId, leaves: &[RouteEntry], levels: &[Vec<Page>], options: BuildOptions) -> Built {
    let mut index = Index::new(me, options.placement, options.index_entries, me);
    let numbers: Vec<_> =
        (0..options.pes).map(|pe| numbers(PeId(pe), leaves, levels, options.placement)).collect();
    for (depth, level) in levels.iter().enumerate() {
        for (place, page) in level.iter().enumerate() {
            let Some(number) = numbers[usize::from(me.0)].get(&(depth, place)) else { continue };
            let entries = if depth == 0 {
                leaf_entries(page, leaves)
            } else {
                let below = Below { depth: depth - 1, numbers: &numbers, leaves, levels };
                below.entries(me, page, &mut index)
            };
            index.pages.insert(*number, IndexPage { level: page.level, right: None, entries });
            index.next_page = index.next_page.max(number.0 - PageNo::ROOT.0 + 1);
        }
    }
    let own = leaves.iter().filter(|leaf| leaf.pe == me);
    let head = |leaf: &RouteEntry| LeafHead {
        page: leaf.page,
        range: leaf.range.clone(),
        right: None,
        version: leaf.version,
    };
    let heads: Vec<_> = own.map(head).collect();
    let low = heads.first().map_or_else(Key::new, |head| head.range.low.clone());
    Built { index, heads, low }
}

fn leaf_entries(page: &Page, leaves: &[RouteEntry]) -> Ranges<LogicalPageId> {
    let below = &leaves[page.below.clone()];
    let id = |leaf: &RouteEntry| LogicalPageId::page(leaf.pe, leaf.page);
    let mut entries = Ranges::new(page.range.clone(), below[0].version, id(&below[0]));
    for leaf in &below[1..] {
        entries.replace(&leaf.range, leaf.version, &id(leaf));
    }
    entries
}

/// Returns the numbers that a PE assigns to the pages that it keeps, in left-recursive order, the root first.
fn numbers(
    pe: PeId,
    leaves: &[RouteEntry],
    levels: &[Vec<Page>],
    placement: Placement,
) -> BTreeMap<(usize, usize), PageNo> {
    let mut numbers = BTreeMap::new();
    let mut next = 0;
    let mut open = vec![(levels.len() - 1, 0)];
    while let Some((depth, place)) = open.pop() {
        let page = &levels[depth][place];
        if !placement.keeps(pe, owners(depth, place, leaves, levels).contains(&pe)) {
            continue;
        }
        numbers.insert((depth, place), PageNo::index(next).expect("a build has fewer pages"));
        next += 1;
        if depth > 0 {
            open.extend(page.below.clone().rev().map(|below| (depth - 1, below)));
        }
    }
    numbers
}

/// Returns the PEs with leaves below a page. Leaves are distributed in order, so these PEs lie between the
/// PEs of the first and of the last leaf.
fn owners(
    depth: usize,
    place: usize,
    leaves: &[RouteEntry],
    levels: &[Vec<Page>],
) -> std::ops::RangeInclusive<PeId> {
    let (mut first, mut last) = (place, place);
    for level in levels[..=depth].iter().rev() {
        (first, last) = (level[first].below.start, level[last].below.end - 1);
    }
    leaves[first].pe..=leaves[last].pe
}

/// The pages of one level, for the entries of the level above.
struct Below<'a> {
    depth: usize,
    numbers: &'a [BTreeMap<(usize, usize), PageNo>],
    leaves: &'a [RouteEntry],
    levels: &'a [Vec<Page>],
}

impl Below<'_> {
    fn entries(&self, me: PeId, page: &Page, index: &mut Index) -> Ranges<LogicalPageId> {
        let mut entries: Option<Ranges<LogicalPageId>> = None;
        for place in page.below.clone() {
            let range = &self.levels[self.depth][place].range;
            let id = self.pointer(me, place, index);
            match &mut entries {
                None => entries = Some(Ranges::new(page.range.clone(), 0, id)),
                Some(entries) => entries.replace(range, 0, &id),
            }
        }
        entries.expect("a page has something below it")
    }

    /// Returns the pointer to a page: its PE and number, or an entry with all its copies.
    fn pointer(&self, me: PeId, place: usize, index: &mut Index) -> LogicalPageId {
        let number = |pe: PeId| self.numbers[usize::from(pe.0)].get(&(self.depth, place)).copied();
        let copies: Vec<_> = (0..self.numbers.len() as u16)
            .filter_map(|pe| Some(PageCopy { pe: PeId(pe), page: number(PeId(pe))? }))
            .collect();
        let local = number(me);
        if let (Some(local), [_]) = (local, &copies[..]) {
            return LogicalPageId::page(me, local);
        }
        let range = self.levels[self.depth][place].range.clone();
        let copy_of = |pe: PeId| copies.iter().find(|copy| copy.pe == pe).copied().unwrap_or(copies[0]);
        let owners = owners(self.depth, place, self.leaves, self.levels);
        let mut holders = Ranges::new(range.clone(), 1, copy_of(*owners.start()));
        for leaf in self.leaves.iter().filter(|leaf| leaf.range.overlaps(&range)) {
            if holders.find(&crate::key::Target::At(leaf.range.low.clone())).value.pe != leaf.pe {
                let rest = KeyRange { low: leaf.range.low.clone(), high: range.high.clone() };
                holders.replace(&rest, 1, &copy_of(leaf.pe));
            }
        }
        index.pointers.add(PointerEntry { local, holders, copies })
    }
}
