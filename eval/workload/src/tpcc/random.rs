//! Uniform and non-uniform random numbers, and random text (clauses 2.1.6 and 4.3.2).

use crate::key::scatter;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

const ALPHANUMERIC: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const ORIGINAL: &str = "ORIGINAL";

/// A seeded source of random numbers and text.
#[derive(Debug, Clone)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// Returns source number `stream` of a seed; different streams are independent.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(scatter(seed) ^ scatter(!stream)))
    }

    /// Returns a uniform number from `low` to `high`, both included.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        self.0.random_range(low..=high)
    }

    /// Returns `true` with a probability of `chance` percent.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.within(1, 100) <= chance
    }

    /// Returns `NURand(a, low, high)` with the constant `c`: some numbers are much more frequent than others.
    pub fn non_uniform(&mut self, a: u32, c: u32, low: u32, high: u32) -> u32 {
        let mixed = u64::from(self.within(0, a) | self.within(low, high)) + u64::from(c);
        let span = u64::from(high - low) + 1;
        // The remainder is below `span`, which fits in 32 bits.
        low + u32::try_from(mixed % span).unwrap_or(0)
    }

    /// Returns `low` to `high` letters and digits (an *a-string*).
    pub fn text(&mut self, low: u32, high: u32) -> String {
        let len = self.within(low, high);
        (0..len).map(|_| char::from(ALPHANUMERIC[self.0.random_range(0..ALPHANUMERIC.len())])).collect()
    }

    /// Returns `low` to `high` digits (an *n-string*).
    pub fn digits(&mut self, low: u32, high: u32) -> String {
        let len = self.within(low, high);
        (0..len).map(|_| char::from(b'0' + self.0.random_range(0..10u8))).collect()
    }

    /// Returns two capital letters.
    pub fn state(&mut self) -> String {
        (0..2).map(|_| char::from(b'A' + self.0.random_range(0..26u8))).collect()
    }

    /// Returns four digits and `11111` (clause 4.3.2.7).
    pub fn zip(&mut self) -> String {
        self.digits(4, 4) + "11111"
    }

    /// Returns 26 to 50 letters and digits; 10 % of the results contain `ORIGINAL` (clause 4.3.3.1).
    pub fn data(&mut self) -> String {
        let mut data = self.text(26, 50);
        if self.percent(10) {
            let at = self.0.random_range(0..=data.len() - ORIGINAL.len());
            data.replace_range(at..at + ORIGINAL.len(), ORIGINAL);
        }
        data
    }

    /// Returns the numbers from 1 to `n` in random order.
    pub fn permutation(&mut self, n: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (1..=n).collect();
        numbers.shuffle(&mut self.0);
        numbers
    }
}

/// The constants C of the non-uniform distributions, drawn once for a database (clause 2.1.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Constants {
    /// C of last names while loading.
    pub load_last: u32,
    /// C of last names in runs; differs from `load_last` as the specification requires.
    pub run_last: u32,
    /// C of customer numbers.
    pub customer: u32,
    /// C of item numbers.
    pub item: u32,
}

impl Constants {
    /// Parameter A of `NURand` for last names.
    pub const LAST_A: u32 = 255;
    /// Parameter A of `NURand` for customer numbers.
    pub const CUSTOMER_A: u32 = 1_023;
    /// Parameter A of `NURand` for item numbers.
    pub const ITEM_A: u32 = 8_191;

    /// Draws the constants for a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed, u64::MAX);
        let load_last = random.within(0, Self::LAST_A);
        let run_last = loop {
            let run = random.within(0, Self::LAST_A);
            if is_apart(load_last, run) {
                break run;
            }
        };
        Self {
            load_last,
            run_last,
            customer: random.within(0, Self::CUSTOMER_A),
            item: random.within(0, Self::ITEM_A),
        }
    }
}

/// Returns whether the two constants of last names differ as the specification requires.
fn is_apart(load: u32, run: u32) -> bool {
    let delta = load.abs_diff(run);
    (65..=119).contains(&delta) && delta != 96 && delta != 112
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_uniform_numbers_stay_in_their_range_and_reach_all_of_it() {
        let mut random = Random::new(1, 0);
        for (a, low, high) in
            [(255, 0, 999), (1_023, 1, 3_000), (8_191, 1, 100_000), (1_023, 1, 30), (15, 0, 29)]
        {
            let drawn: Vec<u32> = (0..200_000).map(|_| random.non_uniform(a, a, low, high)).collect();
            assert!(drawn.iter().all(|n| (low..=high).contains(n)));
            // In larger ranges some numbers are too rare for this number of draws.
            if high <= 30 {
                let mut seen = vec![false; high as usize + 1];
                drawn.iter().for_each(|&n| seen[n as usize] = true);
                assert!(
                    seen[low as usize..].iter().all(|&s| s),
                    "NURand({a}, {low}, {high}) leaves numbers out"
                );
            }
        }
    }

    #[test]
    fn non_uniform_numbers_have_the_share_of_each_bit_that_the_or_gives() {
        // OR sets a low bit with a probability of 3/4. With C = 0 and a power of two as the range, nothing
        // else changes the low bits.
        let mut random = Random::new(2, 0);
        let draws = 100_000;
        for bit in 0..8 {
            let ones = (0..draws).filter(|_| random.non_uniform(255, 0, 0, 1_023) >> bit & 1 == 1).count();
            let slack = 6.0 * (f64::from(draws) * 0.75 * 0.25).sqrt();
            assert!((ones as f64 - f64::from(draws) * 0.75).abs() < slack, "bit {bit}: {ones} of {draws}");
        }
        let high = (0..draws).filter(|_| random.non_uniform(255, 0, 0, 1_023) >> 9 == 1).count();
        assert!((high as f64 - f64::from(draws) * 0.5).abs() < 6.0 * (f64::from(draws) * 0.25).sqrt());
    }

    #[test]
    fn the_constants_of_every_seed_are_as_far_apart_as_they_must_be() {
        for seed in 0..1_000 {
            let c = Constants::draw(seed);
            let delta = c.load_last.abs_diff(c.run_last);
            assert!((65..=119).contains(&delta) && delta != 96 && delta != 112, "seed {seed}: {c:?}");
            assert!(c.customer <= 1_023 && c.item <= 8_191 && c.run_last <= 255);
        }
    }

    #[test]
    fn about_a_tenth_of_the_data_is_original_and_none_grows_by_it() {
        let mut random = Random::new(3, 0);
        let data: Vec<String> = (0..20_000).map(|_| random.data()).collect();
        assert!(data.iter().all(|d| (26..=50).contains(&d.len())));
        let original = data.iter().filter(|d| d.contains("ORIGINAL")).count();
        assert!((1_750..2_250).contains(&original), "{original} of 20,000");
    }

    #[test]
    fn text_has_the_length_and_the_letters_that_were_asked_for() {
        let mut random = Random::new(4, 0);
        for _ in 0..1_000 {
            let text = random.text(3, 7);
            assert!((3..=7).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric()));
            assert!(random.digits(16, 16).bytes().all(|b| b.is_ascii_digit()));
        }
        assert_eq!(random.zip().len(), 9);
        let mut permutation = random.permutation(100);
        assert_ne!(permutation, (1..=100).collect::<Vec<_>>());
        permutation.sort_unstable();
        assert_eq!(permutation, (1..=100).collect::<Vec<_>>());
    }
}
