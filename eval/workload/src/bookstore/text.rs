//! Random strings, names made of syllables, and skewed numbers, as in DBT-1's data generator.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

/// Syllables of the digits 0 to 9 in a name.
const SYLLABLES: [&str; 10] = ["BA", "OG", "AL", "RI", "RE", "SE", "AT", "UL", "IN", "NG"];
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,";

/// Returns a number as a name: its decimal digits as syllables.
///
/// ```
/// assert_eq!(azekura_workload::bookstore::text::name_of(2_880), "ALININBA");
/// ```
#[must_use]
pub fn name_of(number: u64) -> String {
    number.to_string().bytes().map(|digit| SYLLABLES[usize::from(digit - b'0')]).collect()
}

/// Returns random characters; the length is uniform from `least` to `most - 1`.
pub fn string(rng: &mut Xoshiro256PlusPlus, least: usize, most: usize) -> String {
    let length = rng.random_range(least..most.max(least + 1));
    (0..length).map(|_| char::from(LETTERS[rng.random_range(0..LETTERS.len())])).collect()
}

/// Returns random digits; the length is uniform from `least` to `most`.
pub fn digits(rng: &mut Xoshiro256PlusPlus, least: usize, most: usize) -> String {
    let length = rng.random_range(least..=most);
    (0..length).map(|_| char::from(b'0' + rng.random_range(0..10u8))).collect()
}

/// Returns TPC-W's non-uniform number from `x` to `y`: `((rand[0..a] | (x + rand[0..y])) mod (y - x + 1)) +
/// x`.
pub fn nu_rand(rng: &mut Xoshiro256PlusPlus, a: u64, x: u64, y: u64) -> u64 {
    let mask = rng.random_range(0..=a);
    (mask | (x + rng.random_range(0..=y))) % (y - x + 1) + x
}

/// Returns the `a` of [`nu_rand`] for `of` customers (or items): all bits are ones, and its value is about a
/// tenth to a quarter of `of`.
#[must_use]
pub fn nu_rand_a(of: u64) -> u64 {
    let mut a = 1_023;
    let mut bound = 10_000;
    while of >= bound && bound < 40_960_000 {
        a = a * 4 + 3;
        bound *= 4;
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_mask_grows_with_the_customers_as_the_kit_has_it() {
        for (of, a) in [
            (2_880, 1_023),
            (9_999, 1_023),
            (10_000, 4_095),
            (40_000, 16_383),
            (160_000, 65_535),
            (640_000, 262_143),
            (2_560_000, 1_048_575),
            (10_240_000, 4_194_303),
        ] {
            assert_eq!(nu_rand_a(of), a, "{of}");
        }
    }

    #[test]
    fn skewed_numbers_stay_in_bounds_and_are_skewed() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        let mut counts = vec![0u32; 2_881];
        for _ in 0..288_000 {
            counts[usize::try_from(nu_rand(&mut rng, 1_023, 1, 2_880)).unwrap()] += 1;
        }
        assert_eq!(counts[0], 0);
        counts.sort_unstable();
        let top: u32 = counts[2_881 - 288..].iter().sum();
        assert!(top > 288_000 / 4, "the most popular tenth has {top} of 288,000");
    }

    #[test]
    fn strings_have_the_lengths_that_were_asked_for() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        for _ in 0..1_000 {
            assert!((15..40).contains(&string(&mut rng, 15, 40).len()));
            assert!((9..=16).contains(&digits(&mut rng, 9, 16).len()));
        }
    }
}
