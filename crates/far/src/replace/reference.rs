//! Comparison of each policy with a plain version, and hand-made traces after the paper's descriptions.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::rng::Rng;
use super::{Access, AccessBits, Clearing, PageNo, Policy, Replacement, Shape, Spent};

/// Bits for the plain versions: resident page → (referenced, modified).
#[derive(Clone, Debug, Default)]
struct Bits(BTreeMap<PageNo, (bool, bool)>);

impl AccessBits for Bits {
    fn is_referenced(&self, page: PageNo) -> bool {
        self.0[&page].0
    }

    fn is_modified(&self, page: PageNo) -> bool {
        self.0[&page].1
    }

    fn clear_referenced(&mut self, page: PageNo) {
        self.0.get_mut(&page).expect("only a resident page has bits").0 = false;
    }

    fn spent(&self) -> Spent {
        // Swaps are so expensive that clearing bits always pays.
        Spent { swaps: 100, swap_ns: 1e9, bits_ns: 0.0, swap_price_ns: 1e7, bit_ns: 1.0 }
    }
}

/// A policy as the paper describes it, in the simplest data structures. Yields all pages that may be the
/// victim.
#[derive(Debug)]
enum Plain {
    Simple {
        hand: u32,
    },
    SwapInHistory {
        hand: u32,
        order: Vec<PageNo>,
    },
    Random,
    Fifo {
        queue: Vec<PageNo>,
    },
    UClock {
        queue: Vec<PageNo>,
    },
    UNru {
        clearing: Clearing,
        swaps: u32,
    },
    UPlru {
        active: Vec<PageNo>,
        inactive: Vec<PageNo>,
    },
    /// No description to follow: any resident page, any bits.
    Any,
}

impl Plain {
    fn of(policy: Policy) -> Self {
        match policy {
            Policy::Simple => Self::Simple { hand: 0 },
            Policy::SwapInHistory => Self::SwapInHistory { hand: 0, order: Vec::new() },
            Policy::Random => Self::Random,
            Policy::Fifo => Self::Fifo { queue: Vec::new() },
            Policy::UClock => Self::UClock { queue: Vec::new() },
            Policy::UNru(clearing) => Self::UNru { clearing, swaps: 0 },
            Policy::UPlru => Self::UPlru { active: Vec::new(), inactive: Vec::new() },
            Policy::Adaptive => Self::Any,
        }
    }

    fn page_in(&mut self, page: PageNo, bits: &mut Bits) {
        match self {
            Self::Simple { .. } | Self::Random | Self::Any => {}
            Self::SwapInHistory { order, .. } => order.push(page),
            Self::Fifo { queue } | Self::UClock { queue } => queue.push(page),
            Self::UPlru { inactive, .. } => inactive.push(page),
            Self::UNru { clearing, swaps } => {
                if matches!(*clearing, Clearing::Swaps(every) if *swaps >= every) {
                    *swaps = 0;
                    bits.0.iter_mut().filter(|entry| *entry.0 != page).for_each(|entry| entry.1.0 = false);
                }
            }
        }
    }

    fn page_out(&mut self, page: PageNo) {
        match self {
            Self::Simple { .. } | Self::SwapInHistory { .. } | Self::Random | Self::Any => {}
            Self::Fifo { queue } | Self::UClock { queue } => queue.retain(|&p| p != page),
            Self::UNru { swaps, .. } => *swaps += 1,
            Self::UPlru { active, inactive } => {
                active.retain(|&p| p != page);
                inactive.retain(|&p| p != page);
            }
        }
    }

    /// Returns the possible victims, after the search has updated the bits and the lists.
    fn candidates(&mut self, incoming: Option<PageNo>, bits: &mut Bits) -> BTreeSet<PageNo> {
        let resident: BTreeSet<PageNo> = bits.0.keys().copied().collect();
        let by_address = |from: u32| resident.range(PageNo(from)..).chain(&resident).next().copied();
        match self {
            Self::Simple { hand } => {
                let page = by_address(*hand).unwrap();
                *hand = page.0 + 1;
                [page].into()
            }
            Self::SwapInHistory { hand, order } => {
                // The latest time at which the incoming page was paged in before: the page that followed it
                // is spared.
                let before = order.windows(2).rev().find(|pair| Some(pair[0]) == incoming);
                let spared = before.map(|pair| pair[1]);
                let mut page = by_address(*hand).unwrap();
                if Some(page) == spared && resident.len() > 1 {
                    page = by_address(page.0 + 1).unwrap();
                }
                *hand = page.0 + 1;
                [page].into()
            }
            Self::Random | Self::Any => resident,
            Self::Fifo { queue } => {
                queue.rotate_left(1);
                queue.last().copied().into_iter().collect()
            }
            Self::UClock { queue } => {
                let before = queue.len();
                for _ in 0..before {
                    if !bits.is_referenced(queue[0]) {
                        break;
                    }
                    bits.clear_referenced(queue[0]);
                    queue.rotate_left(1);
                }
                queue.rotate_left(1);
                queue.last().copied().into_iter().collect()
            }
            Self::UNru { .. } => {
                let class = |page: &PageNo| bits.0[page];
                let lowest = resident.iter().map(class).min().unwrap();
                resident.iter().copied().filter(|page| class(page) == lowest).collect()
            }
            Self::UPlru { active, inactive } => {
                let known = inactive.iter().position(|&page| !bits.is_referenced(page));
                active.extend(inactive.drain(..known.unwrap_or(inactive.len())));
                if inactive.is_empty() {
                    active.iter().for_each(|&page| bits.clear_referenced(page));
                    inactive.append(active);
                }
                inactive.rotate_left(1);
                inactive.last().copied().into_iter().collect()
            }
        }
    }
}

/// A policy and its plain version, driven by the same calls.
struct Pair {
    policy: Policy,
    tested: Box<dyn Replacement>,
    plain: Plain,
    bits: Bits,
    plain_bits: Bits,
    frames: usize,
    seed: u64,
}

impl Pair {
    fn new(policy: Policy, pages: u32, frames: u32, seed: u64) -> Self {
        let tested = policy.build(Shape { pages, frames }, seed);
        let (bits, plain_bits) = Default::default();
        Self { policy, tested, plain: Plain::of(policy), bits, plain_bits, frames: frames as usize, seed }
    }

    fn touch(&mut self, page: PageNo, access: Access) {
        let write = access == Access::Write;
        let cleared = self.bits.0.get(&page).map(|bits| !bits.0);
        if cleared.is_none() {
            if self.bits.0.len() == self.frames {
                self.evict(Some(page));
            }
            self.bits.0.insert(page, (true, write));
            self.plain_bits.0.insert(page, (true, write));
            self.tested.page_in(page, access, &mut self.bits);
            self.plain.page_in(page, &mut self.plain_bits);
        }
        for bits in [&mut self.bits, &mut self.plain_bits] {
            let entry = bits.0.get_mut(&page).unwrap();
            *entry = (true, entry.1 | write);
        }
        if cleared == Some(true) {
            self.tested.referenced(page, access, &mut self.bits);
        }
        self.compare();
    }

    fn victim(&mut self, incoming: Option<PageNo>) -> PageNo {
        let victim = self.tested.victim(incoming, &mut self.bits);
        let candidates = self.plain.candidates(incoming, &mut self.plain_bits);
        assert!(candidates.contains(&victim), "{self}: {victim} leaves, not one of {candidates:?}");
        self.compare();
        victim
    }

    fn evict(&mut self, incoming: Option<PageNo>) {
        let victim = self.victim(incoming);
        self.leave(victim);
    }

    fn leave(&mut self, page: PageNo) {
        self.bits.0.remove(&page);
        self.plain_bits.0.remove(&page);
        self.tested.page_out(page);
        self.plain.page_out(page);
    }

    fn timer(&mut self) {
        if self.tested.timer().is_some() {
            self.tested.on_timer(&mut self.bits);
            self.plain_bits.0.values_mut().for_each(|bits| bits.0 = false);
        }
        self.compare();
    }

    fn compare(&mut self) {
        if matches!(self.plain, Plain::Any) {
            self.plain_bits = self.bits.clone();
        }
        assert_eq!(self.bits.0, self.plain_bits.0, "{self}: bits");
    }
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} with {} frames, seed {}", self.policy, self.frames, self.seed)
    }
}

#[test]
fn each_policy_does_what_its_plain_version_does() {
    let short = Duration::from_millis(1);
    let more = [
        Policy::UNru(Clearing::Swaps(1)),
        Policy::UNru(Clearing::Swaps(3)),
        Policy::UNru(Clearing::Timer(short)),
    ];
    for policy in Policy::ALL.into_iter().chain(more) {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let pages = 2 + rng.below(150);
            let mut pair = Pair::new(policy, pages, 1 + rng.below(pages), seed);
            let hot = 1 + rng.below(pages);
            for _ in 0..600 {
                let among = if rng.below(2) == 0 { hot } else { pages };
                let page = PageNo(rng.below(among));
                match rng.below(40) {
                    0 => pair.timer(),
                    // The program discards the page.
                    1 if pair.bits.0.contains_key(&page) => pair.leave(page),
                    // The page is chosen but cannot leave.
                    2 if !pair.bits.0.is_empty() => {
                        pair.victim(None);
                    }
                    3 if !pair.bits.0.is_empty() => pair.evict(None),
                    4..10 => pair.touch(page, Access::Write),
                    _ => pair.touch(page, Access::Read),
                }
            }
        }
    }
}

#[test]
fn a_victim_that_cannot_be_evicted_is_not_offered_repeatedly() {
    for policy in Policy::ALL {
        let mut pair = Pair::new(policy, 8, 4, 1);
        (0..4).for_each(|page| pair.touch(PageNo(page), Access::Read));
        let offered: BTreeSet<PageNo> = (0..60).map(|_| pair.victim(Some(PageNo(7)))).collect();
        assert!(offered.len() > 1, "{policy}: only {offered:?}");
    }
}

/// Touches pages in turn (a negative number is a write). Returns the victims.
fn victims(policy: Policy, frames: u32, touches: &[i32]) -> Vec<u32> {
    let mut pair = Pair::new(policy, 16, frames, 7);
    let mut left = Vec::new();
    for &touch in touches {
        let before: BTreeSet<PageNo> = pair.bits.0.keys().copied().collect();
        let access = if touch < 0 { Access::Write } else { Access::Read };
        pair.touch(PageNo(touch.unsigned_abs()), access);
        left.extend(before.into_iter().filter(|page| !pair.bits.0.contains_key(page)).map(|page| page.0));
    }
    left
}

#[test]
fn simple_continues_by_address_from_its_last_victim() {
    assert_eq!(victims(Policy::Simple, 3, &[5, 9, 2, 3, 4, 1, 2, 15]), [2, 3, 4, 5, 9]);
}

#[test]
fn simple_evicts_the_next_page_of_a_sweep_and_history_keeps_it() {
    // Five frames and a cycle of six pages: the hand is always one page ahead of the touch.
    let sweep = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5];
    let simple = victims(Policy::Simple, 5, &sweep).len();
    let history = victims(Policy::SwapInHistory, 5, &sweep).len();
    assert_eq!((simple, history), (13, 8));
}

#[test]
fn swap_in_history_spares_the_page_that_followed_last_time() {
    // Page 6 was paged in right after page 5. When page 5 is touched again, the hand is at page 6, and skips
    // it.
    assert_eq!(victims(Policy::Simple, 3, &[5, 6, 7, 8, 6, 5]), [5, 6]);
    assert_eq!(victims(Policy::SwapInHistory, 3, &[5, 6, 7, 8, 6, 5]), [5, 7]);
}

#[test]
fn fifo_does_not_look_at_use_and_u_clock_does() {
    assert_eq!(victims(Policy::Fifo, 3, &[1, 2, 3, 1, 4, 1, 5]), [1, 2, 3]);
    // The first search clears pages 1, 2 and 3, and takes 1. Then page 2 is used, so page 3 leaves first. The
    // second use of page 2 saves it again.
    assert_eq!(victims(Policy::UClock, 3, &[1, 2, 3, 4, 2, 5, 2, 6]), [1, 3, 4]);
}

#[test]
fn u_nru_takes_the_lowest_class() {
    // The bits are cleared after two swaps, when page 6 is paged in. Then page 2 is read, and page 3 is
    // written again.
    let policy = Policy::UNru(Clearing::Swaps(2));
    // Before any clearing all pages are referenced: pages 4 and 5 replace the two pages that were only read.
    assert_eq!(victims(policy, 4, &[-1, -2, 3, 4, -5]).len(), 1);
    let left = victims(policy, 3, &[-1, -2, 3, -4, -5]);
    assert_eq!(left[0], 3, "class 3 before class 4");
    // All bits are cleared when page 5 is paged in. Pages 1, 2 and 4 were written. One of the remaining pages
    // is touched. The other one (class 2) leaves before page 5 (class 4).
    let mut pair = Pair::new(policy, 8, 3, 1);
    for (page, access) in
        [(1, Access::Write), (2, Access::Read), (3, Access::Write), (4, Access::Read), (5, Access::Write)]
    {
        pair.touch(PageNo(page), access);
    }
    // Page 2 left for page 4, and page 4 for page 5. Then pages 1 and 3 are cleared and modified.
    assert_eq!(
        pair.bits.0,
        [(PageNo(1), (false, true)), (PageNo(3), (false, true)), (PageNo(5), (true, true))].into()
    );
    pair.touch(PageNo(3), Access::Read);
    assert_eq!(pair.victim(Some(PageNo(6))), PageNo(1), "class 2 before class 4");
}

#[test]
fn u_plru_gives_an_active_page_a_round_of_the_inactive_list() {
    // Pages 1, 2 and 3 are paged in referenced. The search for page 4 moves them to the active list and back,
    // clears their bits, and evicts page 1. Page 2 is used, so the next search moves it to the active list
    // and takes page 3. The search after that finds pages 4 and 5 referenced, and moves the active list back:
    // page 2 leaves last.
    assert_eq!(victims(Policy::UPlru, 3, &[1, 2, 3, 4, 2, 5, 2, 6]), [1, 3, 2]);
}
