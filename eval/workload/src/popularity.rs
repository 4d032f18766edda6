//! Distributions of the requested record.
//!
//! The three request distributions of YCSB (Cooper et al., SoCC 2010, section 4.1), with the usual skew of
//! 0.99.

use crate::Population;
use crate::key::scatter;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use rand_distr::{Distribution, Zipf};

/// The exponent of YCSB's Zipf distribution.
pub const ZIPF_EXPONENT: f64 = 0.99;

/// A distribution of item numbers.
#[derive(Debug, Clone)]
pub struct Popularity {
    rule: Rule,
    /// Number of items in the distribution: those of the data set, and possibly some that are inserted later.
    domain: u64,
}

#[derive(Debug, Clone, Copy)]
enum Rule {
    Uniform,
    ScrambledZipf(Zipf<f64>),
    Latest(Zipf<f64>),
}

impl Popularity {
    /// Returns the uniform distribution over `records` items.
    #[must_use]
    pub fn uniform(records: u64) -> Self {
        Self { rule: Rule::Uniform, domain: records.max(1) }
    }

    /// Returns a distribution with few very popular items, which are spread over the whole table. Rank *r* is
    /// drawn with a weight of `r^-0.99`, then hashed to an item. As in YCSB, two ranks may be hashed to one
    /// item.
    ///
    /// If the workload `inserts`, the distribution has a fifth more items than exist at first, and draws of
    /// missing items are repeated. Popular items thus stay the same while the table grows.
    #[must_use]
    pub fn scrambled_zipf(records: u64, inserts: bool) -> Self {
        let domain = records.max(1) + if inserts { records / 5 + 1 } else { 0 };
        Self { rule: Rule::ScrambledZipf(zipf(domain)), domain }
    }

    /// Returns a distribution that prefers new items: the item that is *r* - 1 positions older than the
    /// newest has a weight of `r^-0.99`.
    #[must_use]
    pub fn latest(records: u64) -> Self {
        Self { rule: Rule::Latest(zipf(records.max(1))), domain: records.max(1) }
    }

    /// Draws an existing item.
    pub fn draw(&self, rng: &mut Xoshiro256PlusPlus, population: &Population) -> u64 {
        match &self.rule {
            Rule::Uniform => rng.random_range(0..self.domain),
            Rule::ScrambledZipf(zipf) => {
                let horizon = population.horizon().max(1);
                loop {
                    let item = scatter(rank(zipf, rng)) % self.domain;
                    if item < horizon {
                        return item;
                    }
                }
            }
            Rule::Latest(zipf) => {
                let horizon = population.horizon().max(1);
                loop {
                    let age = rank(zipf, rng);
                    if age < horizon {
                        return horizon - 1 - age;
                    }
                }
            }
        }
    }
}

fn zipf(items: u64) -> Zipf<f64> {
    #[expect(clippy::cast_precision_loss, reason = "item counts are far below 2^53")]
    let items = items as f64;
    Zipf::new(items, ZIPF_EXPONENT).expect("a positive, finite number of items and exponent")
}

/// Draws a rank, from zero.
fn rank(zipf: &Zipf<f64>, rng: &mut Xoshiro256PlusPlus) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "samples are whole numbers from 1 to the number of items"
    )]
    let rank = zipf.sample(rng) as u64;
    rank.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    const ITEMS: u64 = 1_000;
    const DRAWS: usize = 200_000;

    fn counts(popularity: &Popularity, population: &Population) -> Vec<usize> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mut counts = vec![0; usize::try_from(population.horizon()).unwrap()];
        for _ in 0..DRAWS {
            counts[usize::try_from(popularity.draw(&mut rng, population)).unwrap()] += 1;
        }
        counts
    }

    /// Returns the probability of rank `r` (from 1) among `n`, by Zipf's law.
    fn share(r: u64, n: u64) -> f64 {
        let weight = |r: u64| (r as f64).powf(-ZIPF_EXPONENT);
        weight(r) / (1..=n).map(weight).sum::<f64>()
    }

    fn assert_near(count: usize, share: f64, what: &str) {
        let expected = share * DRAWS as f64;
        // Six standard deviations of a binomial distribution; the seed is fixed, so the result is always the
        // same.
        let slack = 6.0 * (expected * (1.0 - share)).sqrt();
        assert!(
            (count as f64 - expected).abs() < slack,
            "{what}: {count}, expected {expected:.0} +- {slack:.0}"
        );
    }

    #[test]
    fn uniform_draws_each_item_about_equally_often() {
        let counts = counts(&Popularity::uniform(ITEMS), &Population::new(ITEMS));
        // Chi-square with 999 degrees of freedom has the mean 999 and the standard deviation 44.7.
        let expected = DRAWS as f64 / ITEMS as f64;
        let chi: f64 = counts.iter().map(|&c| (c as f64 - expected).powi(2) / expected).sum();
        assert!((780.0..1220.0).contains(&chi), "chi-square {chi:.0}");
    }

    #[test]
    fn latest_follows_zipfs_law_back_from_the_newest() {
        let counts = counts(&Popularity::latest(ITEMS), &Population::new(ITEMS));
        for age in [0, 1, 2, 9, 99] {
            assert_near(counts[(ITEMS - 1 - age) as usize], share(age + 1, ITEMS), &format!("age {age}"));
        }
    }

    #[test]
    fn latest_moves_with_the_newest_insert() {
        let population = Population::new(ITEMS);
        for _ in 0..500 {
            population.acknowledge(population.begin_insert());
        }
        let counts = counts(&Popularity::latest(ITEMS), &population);
        assert_near(counts[1_499], share(1, ITEMS), "the newest");
    }

    #[test]
    fn scrambled_zipf_has_zipfs_shares_at_scattered_items() {
        let counts = counts(&Popularity::scrambled_zipf(ITEMS, false), &Population::new(ITEMS));
        // Several ranks may be hashed to one item, so the probability of an item is the sum over its ranks.
        for popular in 0..5 {
            let item = scatter(popular) % ITEMS;
            let expected: f64 =
                (0..ITEMS).filter(|&r| scatter(r) % ITEMS == item).map(|r| share(r + 1, ITEMS)).sum();
            assert_near(counts[item as usize], expected, &format!("rank {popular}"));
        }
        let hottest: Vec<u64> = (0..10).map(|r| scatter(r) % ITEMS).collect();
        assert!(hottest.windows(2).any(|w| w[0].abs_diff(w[1]) > 100), "hot items lie together: {hottest:?}");
    }

    #[test]
    fn items_that_are_not_there_yet_are_not_asked_for() {
        let population = Population::new(ITEMS);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        for popularity in [Popularity::scrambled_zipf(ITEMS, true), Popularity::latest(ITEMS)] {
            for _ in 0..20_000 {
                assert!(popularity.draw(&mut rng, &population) < ITEMS);
            }
        }
    }

    #[test]
    fn popular_items_stay_popular_while_the_table_grows() {
        let popularity = Popularity::scrambled_zipf(ITEMS, true);
        let population = Population::new(ITEMS);
        let before = counts(&popularity, &population);
        for _ in 0..100 {
            population.acknowledge(population.begin_insert());
        }
        let after = counts(&popularity, &population);
        let top = |c: &[usize]| (0..c.len()).max_by_key(|&i| c[i]);
        assert_eq!(top(&before), top(&after));
        assert!(after[1_000..].iter().sum::<usize>() > 0, "inserted items are read too");
    }
}
