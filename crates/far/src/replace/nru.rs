//! U-NRU (paper §2.3): a random page of the lowest class that is not empty.
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
//! Cost: each search for a victim visits every resident page. Each clearing costs a change of protection for
//! every referenced page, and a fault when the page is touched again. Weakness: the interval must fit the
//! program. Fig. 6: SP.C took 15.55 times Simple's time when cleared each 10 swaps, and Cluster 3.0 took 3.8
//! times when cleared each second. If the interval is too long, all pages are in classes 3 and 4. If it is
//! too short, all pages are in classes 1 and 2, and the policy is Random among clean pages.

use std::time::Duration;

use super::rng::{Reservoir, Rng};
use super::set::PageSet;
use super::{Access, AccessBits, PageNo, Replacement, Shape};

/// Condition for clearing the reference bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// Number of swaps between clearings (U-NRUs). The paper tries 10, 50 and 100 and chooses 50.
    Swaps(u32),
    /// Time between clearings (U-NRUt). The paper tries 100, 500 and 1000 ms and chooses 100 ms.
    Timer(Duration),
}

/// The resident pages, and the number of swaps since the last clearing.
#[derive(Clone, Debug)]
pub struct UNru {
    resident: PageSet,
    clearing: Clearing,
    swaps: u32,
    rng: Rng,
}

impl UNru {
    /// Creates a policy without resident pages.
    #[must_use]
    pub fn new(shape: Shape, clearing: Clearing, seed: u64) -> Self {
        Self { resident: PageSet::new(shape.pages), clearing, swaps: 0, rng: Rng::new(seed) }
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
        // Inserted after the clearing, because the page that is paged in has just been touched.
        self.resident.insert(page);
    }

    fn referenced(&mut self, _: PageNo, _: Access, _: &mut dyn AccessBits) {}

    fn victim(&mut self, _: Option<PageNo>, bits: &mut dyn AccessBits) -> PageNo {
        let mut classes: [Reservoir; 4] = Default::default();
        for page in self.resident.iter() {
            let class = 2 * usize::from(bits.is_referenced(page)) + usize::from(bits.is_modified(page));
            classes[class].show(page, &mut self.rng);
        }
        classes.into_iter().find_map(Reservoir::chosen).expect("a page is resident")
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
