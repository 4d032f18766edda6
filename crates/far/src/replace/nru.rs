//! U-NRU (paper §2.3): a random page of the lowest class that has one.
//!
//! | class | referenced | modified |
//! |---|---|---|
//! | 1 | no | no |
//! | 2 | no | yes |
//! | 3 | yes | no |
//! | 4 | yes | yes |
//!
//! The reference bits of all resident pages are cleared periodically (§2.2): after a number of swaps (U-NRUs)
//! or after an interval (U-NRUt).
//!
//! Cost: a look at every resident page for a victim; at each clearing a change of protection for every page
//! that was referenced, and a fault when it is touched again. Weak: the interval must fit the program (Fig.
//! 6: SP.C took 15.55 times Simple's time when cleared each 10 swaps, Cluster 3.0 took 3.8 times when cleared
//! each second). With an interval too long all pages are of classes 3 and 4; too short, of 1 and 2: then this
//! is Random among clean pages.

use std::time::Duration;

use super::rng::{Lots, Urn};
use super::set::PageSet;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// The time at which the reference bits are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// After this many swaps (U-NRUs); the paper tries 10, 50 and 100 and settles for 50.
    Swaps(u32),
    /// After this time (U-NRUt); the paper tries 100, 500 and 1000 ms and settles for 100 ms.
    Timer(Duration),
}

/// The resident pages and the swaps since the last clearing.
#[derive(Clone, Debug)]
pub struct UNru {
    resident: PageSet,
    clearing: Clearing,
    swaps: u32,
    lots: Lots,
}

impl UNru {
    /// With nothing resident.
    #[must_use]
    pub fn new(shape: Shape, clearing: Clearing, seed: u64) -> Self {
        Self { resident: PageSet::new(shape.pages), clearing, swaps: 0, lots: Lots::new(seed) }
    }

    fn clear_all(&self, bits: &mut dyn AccessBits) {
        for page in self.resident.iter() {
            if bits.is_referenced(page) {
                bits.clear_referenced(page);
            }
        }
    }
}

impl Replacement for UNru {
    fn page_in(&mut self, page: PageNo, _: Access, bits: &mut dyn AccessBits) {
        if let Clearing::Swaps(every) = self.clearing
            && self.swaps >= every
        {
            self.swaps = 0;
            self.clear_all(bits);
        }
        // After the clearing: the page that comes has just been touched.
        self.resident.insert(page);
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, _: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo {
        let mut classes: [Urn; 4] = Default::default();
        for page in self.resident.iter() {
            let class = 2 * usize::from(bits.is_referenced(page)) + usize::from(bits.is_modified(page));
            classes[class].show(page, &mut self.lots);
        }
        classes.into_iter().find_map(Urn::chosen).expect("a page is resident")
    }

    fn wants_modified(&self) -> bool {
        true
    }

    fn page_out(&mut self, page: PageNo) {
        self.resident.remove(page);
        self.swaps += 1;
    }

    fn timer(&self) -> Option<Duration> {
        match self.clearing {
            Clearing::Swaps(_) => None,
            Clearing::Timer(every) => Some(every),
        }
    }

    fn on_timer(&mut self, bits: &mut dyn AccessBits) {
        self.clear_all(bits);
    }
}
