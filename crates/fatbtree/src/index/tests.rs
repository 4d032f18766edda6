use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::leaf::LeafHead;

const ME: PeId = PeId(1);

/// Reference: the leaves in key order, with their owners.
struct Truth {
    leaves: Vec<(LeafHead, PeId)>,
    next_page: u64,
}

impl Truth {
    fn new() -> Self {
        let head = LeafHead { page: PageNo(1), range: KeyRange::all(), right: None, version: 1 };
        Self { leaves: vec![(head, ME)], next_page: 2 }
    }

    fn page(&mut self) -> PageNo {
        self.next_page += 1;
        PageNo(self.next_page)
    }

    fn change(&mut self, rng: &mut SmallRng) -> Vec<RouteEntry> {
        let place = rng.random_range(0..self.leaves.len());
        let new_page = self.page();
        let has_neighbor = self.leaves.get(place + 1).is_some_and(|(_, pe)| *pe == self.leaves[place].1);
        let (leaf, pe) = &mut self.leaves[place];
        leaf.version += 1;
        match rng.random_range(0..4) {
            0 => {
                *pe = PeId(rng.random_range(0..4));
                leaf.page = new_page;
                vec![leaf.route_entry(*pe)]
            }
            1 if has_neighbor => {
                let (right, _) = self.leaves.remove(place + 1);
                let (leaf, pe) = &mut self.leaves[place];
                leaf.version = leaf.version.max(right.version + 1);
                leaf.range.high = right.range.high;
                vec![leaf.route_entry(*pe)]
            }
            _ => {
                let key = rng.random_range(0..50_000u32).to_be_bytes().to_vec();
                if !leaf.range.contains(&key) || leaf.range.low == key {
                    return vec![leaf.route_entry(*pe)];
                }
                let mut right = LeafHead { page: new_page, ..leaf.clone() };
                right.range.low.clone_from(&key);
                leaf.range.high = Some(key);
                let (left, pe) = (leaf.route_entry(*pe), *pe);
                let route_entries = vec![left, right.route_entry(pe)];
                self.leaves.insert(place + 1, (right, pe));
                route_entries
            }
        }
    }

    fn own(&self) -> Vec<LeafHead> {
        self.leaves.iter().filter(|(_, pe)| *pe == ME).map(|(leaf, _)| leaf.clone()).collect()
    }
}

#[test]
fn an_index_that_learns_everything_knows_each_owner_and_its_own_leaves() {
    for seed in 0..30 {
        for placement in Placement::ALL {
            if !placement.has_index(ME) {
                continue;
            }
            let mut rng = SmallRng::seed_from_u64(seed);
            let mut truth = Truth::new();
            let mut index = Index::new(ME, placement, 5, PeId(0));
            for (leaf, pe) in &truth.leaves {
                index.learn(&leaf.route_entry(*pe));
            }
            for step in 0..400 {
                for route_entry in truth.change(&mut rng) {
                    index.learn(&route_entry);
                }
                let wrong = index.verify(&truth.own());
                assert!(wrong.is_empty(), "{placement}, seed {seed}, step {step}: {wrong:?}");
            }
            for (leaf, pe) in &truth.leaves {
                for target in [Target::At(leaf.range.low.clone()), Target::Before(leaf.range.high.clone())] {
                    let route = index.route(&target, PageNo::ROOT, Choice::ByRange);
                    assert_eq!(route.to.pe, *pe, "{placement}, seed {seed}: {target:?}");
                    if *pe == ME {
                        assert_eq!(route.to.page, leaf.page, "{placement}, seed {seed}: {target:?}");
                    }
                }
            }
            assert!(index.height() > 1, "{placement}, seed {seed}: the pages never filled");
        }
    }
}

#[test]
fn b2_a_descent_from_any_page_of_any_time_ends_at_the_owner() {
    let mut rng = SmallRng::seed_from_u64(7);
    let mut truth = Truth::new();
    let mut index = Index::new(ME, Placement::FatBtree, 4, PeId(0));
    let mut ever = BTreeSet::new();
    for _ in 0..600 {
        for route_entry in truth.change(&mut rng) {
            index.learn(&route_entry);
        }
        ever.extend(index.pages.keys().copied());
    }
    for (leaf, pe) in &truth.leaves {
        for &start in &ever {
            let route = index.route(&Target::At(leaf.range.low.clone()), start, Choice::ByRange);
            assert_eq!(route.to.pe, *pe);
        }
    }
}

#[test]
fn b6_the_pages_above_a_leaf_go_with_the_last_and_come_before_the_first() {
    let mut index = Index::new(ME, Placement::FatBtree, 4, PeId(0));
    let route_entry = |number: u8, pe, version| RouteEntry {
        range: KeyRange::new([number], Some(&[number + 1])),
        pe,
        page: PageNo(u64::from(number) + 1),
        version,
    };
    for number in 0..40 {
        index.learn(&route_entry(number, ME, 2));
    }
    let full = index.len();
    for number in 8..40 {
        index.learn(&route_entry(number, PeId(2), 3));
    }
    let pruned = index.len();
    assert!(pruned < full / 2, "{pruned} of {full} pages are left");
    assert!(index.pointers.len() > 0);
    let far = Target::At(vec![30]);
    assert_eq!(
        index.route(&far, PageNo::ROOT, Choice::ByRange).to,
        PageCopy { pe: PeId(2), page: PageNo::ROOT }
    );

    index.learn(&route_entry(30, ME, 4));
    assert_eq!(index.route(&far, PageNo::ROOT, Choice::ByRange).to, PageCopy { pe: ME, page: PageNo(31) });
    let neighbor = index.route(&Target::At(vec![31]), PageNo::ROOT, Choice::ByRange);
    assert_eq!(neighbor.to.pe, PeId(2), "around it is what was known before");
    let own: Vec<_> = (0..8)
        .map(|number| (number, 2))
        .chain([(30, 4)])
        .map(|(number, version)| {
            let route_entry = route_entry(number, ME, version);
            LeafHead { page: route_entry.page, range: route_entry.range, right: None, version }
        })
        .collect();
    assert_eq!(index.verify(&own), Vec::<String>::new());
}

#[test]
fn the_single_index_is_at_pe_0_and_the_others_send_everything_there() {
    let mut index = Index::new(ME, Placement::SingleIndex, 4, ME);
    let head = LeafHead { page: PageNo(1), range: KeyRange::all(), right: None, version: 9 };
    assert!(!index.learn(&head.route_entry(ME)));
    let route = index.route(&Target::At(vec![1]), PageNo::ROOT, Choice::ByRange);
    assert_eq!(route.to, PageCopy { pe: PeId(0), page: PageNo::ROOT });
}
