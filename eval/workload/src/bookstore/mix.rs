//! The sequence of pages: the transition tables of TPC-W's three mixes.
//!
//! The next page is the first one in the table's row with a threshold of at least a random number from 0 to
//! 9999.

use super::Interaction::{
    self, AdminConfirm as AC, AdminRequest as AR, BestSellers as BS, BuyConfirm as BC, BuyRequest as BR,
    CustomerRegistration as CR, Home as H, NewProducts as NP, OrderDisplay as OD, OrderInquiry as OI,
    ProductDetail as PD, SearchRequest as SQ, SearchResults as SR, ShoppingCart as SC,
};

/// A mix of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mix {
    /// Browsing and buying: four of five pages are read-only.
    #[default]
    Shopping,
    /// Mostly browsing.
    Browsing,
    /// Mostly buying.
    Ordering,
}

/// The transition table of a mix.
///
/// ```
/// use azekura_workload::bookstore::{Interaction, Mix, Transitions};
/// let table = Transitions::of(Mix::Shopping);
/// assert_eq!(table.next(Interaction::Home, 3_124), Interaction::BestSellers);
/// assert_eq!(table.next(Interaction::Home, 3_125), Interaction::NewProducts);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transitions {
    mix: Mix,
    /// Two numbers of the ordering mix have the misprints of DBT-1.
    is_misprinted: bool,
}

/// Number of different random draws; all thresholds are smaller.
pub const DRAWS: u16 = 10_000;

type Row = &'static [(Interaction, u16)];

/// Threshold of the last page in each row.
const REST: u16 = DRAWS - 1;

impl Transitions {
    /// Returns TPC-W's table of the mix, which DBT-1 intends to follow.
    #[must_use]
    pub const fn of(mix: Mix) -> Self {
        Self { mix, is_misprinted: false }
    }

    /// Returns the table in the source of DBT-1. Its ordering mix has 8341 instead of 6341 (from a book to
    /// the search form) and 9452 instead of 9453 (from the purchase form to the home page). With them, one
    /// page in fifty is a different one.
    #[must_use]
    pub const fn with_misprint(mix: Mix) -> Self {
        Self { mix, is_misprinted: true }
    }

    /// Returns the page after `from`. `draw` must be below [`DRAWS`].
    #[must_use]
    pub fn next(self, from: Interaction, draw: u16) -> Interaction {
        let row = self.row(from);
        row.iter().find(|(_, threshold)| *threshold >= draw).unwrap_or(&row[row.len() - 1]).0
    }

    /// Returns the stationary frequency of each page, as a part of 1, in the order of [`Interaction::ALL`].
    #[must_use]
    pub fn stationary(self) -> [f64; 14] {
        let mut now = [1.0 / 14.0; 14];
        // The slowest mode decreases by far more than 10 % in each step.
        for _ in 0..2_000 {
            let mut next = [0.0; 14];
            for from in Interaction::ALL {
                let mut below = 0;
                for &(to, threshold) in self.row(from) {
                    let part = f64::from(threshold + 1 - below) / f64::from(DRAWS);
                    next[to.index()] += now[from.index()] * part;
                    below = threshold + 1;
                }
            }
            now = next;
        }
        now
    }

    fn row(self, from: Interaction) -> Row {
        match self.mix {
            Mix::Shopping => shopping(from),
            Mix::Browsing => browsing(from),
            Mix::Ordering if self.is_misprinted && from == PD => {
                &[(AR, 99), (H, 3750), (PD, 5621), (SQ, 8341), (SC, REST)]
            }
            Mix::Ordering if self.is_misprinted && from == BR => &[(BC, 7999), (H, 9452), (SC, REST)],
            Mix::Ordering => ordering(from),
        }
    }
}

fn shopping(from: Interaction) -> Row {
    match from {
        H => &[(BS, 3124), (NP, 6249), (OI, 6718), (SQ, 7026), (SC, REST)],
        NP => &[(H, 156), (PD, 9735), (SQ, 9784), (SC, REST)],
        BS => &[(H, 167), (PD, 472), (SQ, 9927), (SC, REST)],
        PD => &[(AR, 58), (H, 832), (PD, 1288), (SQ, 8603), (SC, REST)],
        SQ => &[(H, 635), (SR, 9135), (SC, REST)],
        SR => &[(H, 2657), (PD, 9294), (SQ, 9304), (SC, REST)],
        SC => &[(CR, 2585), (H, 9552), (SC, REST)],
        CR => &[(BR, 8666), (H, 8760), (SQ, REST)],
        BR => &[(BC, 4614), (H, 6545), (SC, REST)],
        BC => &[(H, 84), (SQ, REST)],
        OD => &[(H, 69), (SQ, REST)],
        OI => &[(H, 72), (OD, 8872), (SQ, REST)],
        AR => &[(AC, 8999), (H, REST)],
        AC => &[(H, 9952), (SQ, REST)],
    }
}

fn browsing(from: Interaction) -> Row {
    match from {
        H => &[(BS, 3792), (NP, 7585), (OI, 7688), (SQ, 9559), (SC, REST)],
        NP => &[(H, 299), (PD, 9867), (SQ, 9941), (SC, REST)],
        BS => &[(H, 4607), (PD, 5259), (SQ, 9942), (SC, REST)],
        PD => &[(AR, 47), (H, 8346), (PD, 9749), (SQ, 9890), (SC, REST)],
        SQ => &[(H, 788), (SR, 9955), (SC, REST)],
        SR => &[(H, 3674), (PD, 9868), (SQ, 9942), (SC, REST)],
        SC => &[(CR, 4099), (H, 8883), (SC, REST)],
        CR => &[(BR, 9145), (H, 9619), (SQ, REST)],
        BR => &[(BC, 9199), (H, 9595), (SC, REST)],
        BC => &[(H, 342), (SQ, REST)],
        OD => &[(H, 69), (SQ, REST)],
        OI => &[(H, 523), (OD, 8856), (SQ, REST)],
        AR => &[(AC, 8999), (H, REST)],
        AC => &[(H, 9877), (SQ, REST)],
    }
}

fn ordering(from: Interaction) -> Row {
    match from {
        H => &[(BS, 499), (NP, 999), (OI, 1269), (SQ, 1295), (SC, REST)],
        NP => &[(H, 504), (PD, 9942), (SQ, 9976), (SC, REST)],
        BS => &[(H, 1), (PD, 333), (SQ, 9998), (SC, REST)],
        PD => &[(AR, 99), (H, 3750), (PD, 5621), (SQ, 6341), (SC, REST)],
        SQ => &[(H, 815), (SR, 9815), (SC, REST)],
        SR => &[(H, 486), (PD, 7817), (SQ, 9998), (SC, REST)],
        SC => &[(CR, 9499), (H, 9918), (SC, REST)],
        CR => &[(BR, 9899), (H, 9901), (SQ, REST)],
        BR => &[(BC, 7999), (H, 9453), (SC, REST)],
        BC => &[(H, 2), (SQ, REST)],
        OD => &[(H, 9939), (SQ, REST)],
        OI => &[(H, 1168), (OD, 9968), (SQ, REST)],
        AR => &[(AC, 8999), (H, REST)],
        AC => &[(H, 8348), (SQ, REST)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TPC-W's published mixes in percent, in the order of `Interaction::ALL`.
    const PUBLISHED: [(Mix, [f64; 14]); 3] = [
        (Mix::Shopping, [16.0, 5.0, 5.0, 17.0, 20.0, 17.0, 11.6, 3.0, 2.6, 1.2, 0.75, 0.66, 0.10, 0.09]),
        (Mix::Browsing, [29.0, 11.0, 11.0, 21.0, 12.0, 11.0, 2.0, 0.82, 0.75, 0.69, 0.30, 0.25, 0.10, 0.09]),
        (
            Mix::Ordering,
            [9.12, 0.46, 0.46, 12.35, 14.53, 13.08, 13.53, 12.86, 12.73, 10.18, 0.25, 0.22, 0.12, 0.11],
        ),
    ];

    #[test]
    fn the_stationary_mixes_are_those_that_tpc_w_publishes() {
        for (mix, published) in PUBLISHED {
            let computed = Transitions::of(mix).stationary();
            for (interaction, (computed, published)) in
                Interaction::ALL.into_iter().zip(computed.into_iter().zip(published))
            {
                assert!(
                    (computed * 100.0 - published).abs() < 0.02,
                    "{mix:?}: {} is {:.3} %, published {published} %",
                    interaction.name(),
                    computed * 100.0
                );
            }
        }
    }

    #[test]
    fn the_misprint_shifts_the_ordering_mix_only() {
        for mix in [Mix::Shopping, Mix::Browsing] {
            let (right, wrong) = (Transitions::of(mix), Transitions::with_misprint(mix));
            assert_eq!(right.stationary(), wrong.stationary());
        }
        let wrong = Transitions::with_misprint(Mix::Ordering).stationary();
        assert!((wrong[H.index()] - 0.0972).abs() < 1e-4, "{}", wrong[H.index()]);
        assert!((wrong[SQ.index()] - 0.1658).abs() < 1e-4, "{}", wrong[SQ.index()]);
    }

    #[test]
    fn every_row_is_in_order_and_ends_with_the_last_draw() {
        for mix in [Mix::Shopping, Mix::Browsing, Mix::Ordering] {
            for from in Interaction::ALL {
                let row = Transitions::with_misprint(mix).row(from);
                assert!(
                    row.is_sorted_by(|a, b| a.1 < b.1) && row[row.len() - 1].1 == REST,
                    "{mix:?} {from:?}"
                );
            }
        }
    }
}
