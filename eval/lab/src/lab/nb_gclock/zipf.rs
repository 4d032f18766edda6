//! The paper's workload (§4.1): Zipf-distributed references mixed with scans.
//!
//! The paper writes P(page ≤ i) = (i/N)^α with α = 0.86 for "80/20" and 0.5 for "about 45/20". The formula
//! does not give the named distributions: 0.2^0.86 is 0.25. With the exponent 1 − α it does: 0.2^0.14 = 0.80
//! and 0.2^0.5 = 0.45. [`Skew`] has both readings.

/// Skew of the references: P(page ≤ i) = (i/N)^exponent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Skew {
    /// Name in tables.
    pub name: &'static str,
    /// Exponent of the distribution.
    pub exponent: f64,
    /// Explanation of this reading in reports.
    pub note: &'static str,
}

impl Skew {
    /// 80 % of the references to 20 % of the pages: the distribution that the paper names for α = 0.86.
    pub const NAMED_80_20: Self = Self {
        name: "80/20 (exponent 0.14)",
        exponent: 0.14,
        note: "The paper's alpha = 0.86 by its name: a fifth of the pages gets four fifths of the \
            references. Its hit ratios of some 70 % are out of reach with 4,000,000 pages, as a0 shows.",
    };
    /// 45 % of the references to 20 % of the pages: α = 0.5, the same in both readings.
    pub const NAMED_45_20: Self = Self {
        name: "45/20 (exponent 0.5)",
        exponent: 0.5,
        note: "The paper's alpha = 0.5; both readings of its formula agree here.",
    };
    /// The paper's formula with α = 0.86: nearly uniform, 25 % of the references to 20 % of the pages.
    pub const LITERAL_086: Self = Self {
        name: "alpha 0.86 taken literally",
        exponent: 0.86,
        note: "The paper's alpha = 0.86 by its formula, P(page <= i) = (i/N)^0.86: a fifth of the pages gets \
            25 % and not 80 %, and no cache has much to keep; belady says what there is.",
    };
}

/// The references of one thread. Except for scans, they are independent of each other.
#[derive(Clone, Debug)]
pub struct References {
    state: u64,
    pages: u64,
    inverse: f64,
    /// Probability that the next draw begins a scan.
    scan_chance: f64,
    scan_at: u64,
    scan_left: u64,
}

/// Number of pages of one scan.
pub const SCAN_PAGES: u64 = 100;
/// Part of all references that belong to scans.
pub const SCAN_SHARE: f64 = 0.2;

impl References {
    /// Returns a sequence of references to pages `0..pages`; page 0 is the hottest.
    #[must_use]
    pub fn new(pages: u64, skew: Skew, seed: u64) -> Self {
        let (share, length) = (SCAN_SHARE, SCAN_PAGES as f64);
        Self {
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed),
            pages,
            inverse: skew.exponent.recip(),
            scan_chance: share / (share + length * (1.0 - share)),
            scan_at: 0,
            scan_left: 0,
        }
    }

    /// Draws a random number by SplitMix64 (Steele et al., OOPSLA 2014).
    const fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Iterator for References {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.scan_left == 0 {
            if self.uniform() >= self.scan_chance {
                let page = (self.uniform().powf(self.inverse) * self.pages as f64) as u64;
                return Some(page.min(self.pages - 1));
            }
            self.scan_at = self.random() % self.pages;
            self.scan_left = SCAN_PAGES;
        }
        self.scan_left -= 1;
        self.scan_at = (self.scan_at + 1) % self.pages;
        Some(self.scan_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Apart from scans, the share of references to the hottest fifth of the pages is the one in the name.
    #[test]
    fn the_named_readings_give_what_they_name_and_the_literal_one_does_not() {
        for (skew, expected) in
            [(Skew::NAMED_80_20, 0.80), (Skew::NAMED_45_20, 0.45), (Skew::LITERAL_086, 0.25)]
        {
            let references = 400_000;
            let hot =
                References::new(1_000_000, skew, 7).take(references).filter(|&page| page < 200_000).count();
            let share = hot as f64 / references as f64;
            let with_scans = expected * (1.0 - SCAN_SHARE) + 0.2 * SCAN_SHARE;
            assert!((share - with_scans).abs() < 0.01, "{}: {share}, not {with_scans}", skew.name);
        }
    }

    #[test]
    fn a_fifth_of_the_references_are_scans() {
        let mut pages = References::new(4_000_000, Skew::LITERAL_086, 3).take(1_000_000).peekable();
        let mut consecutive = 0;
        while let Some(page) = pages.next() {
            consecutive += u32::from(pages.peek().is_some_and(|&next| next == (page + 1) % 4_000_000));
        }
        assert!((190_000..206_000).contains(&consecutive), "{consecutive}");
    }
}
