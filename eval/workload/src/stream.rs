//! One thread's endless, repeatable list of transactions.

use crate::popularity::Popularity;
use crate::value::FreshValues;
use crate::ycsb::{MAX_SCAN_RECORDS, Mix, Operation};
use crate::{Dataset, Family, Key, KeyOrder, Population, Step, Workload};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::sync::Arc;

/// Number of records of a short scan: about the mean of YCSB's mix E.
pub const SHORT_SCAN_RECORDS: u64 = 50;

/// Index of a stream's thread, and the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    index: u64,
    of: u64,
}

impl Lane {
    /// Returns lane `index` (from zero) of `of`.
    ///
    /// # Panics
    ///
    /// If `index` is not below `of`.
    #[must_use]
    pub const fn new(index: u64, of: u64) -> Self {
        assert!(index < of, "lane index below the number of lanes");
        Self { index, of }
    }

    /// Returns the lane of a single thread.
    #[must_use]
    pub const fn only() -> Self {
        Self { index: 0, of: 1 }
    }

    /// Returns the index, from zero.
    #[must_use]
    pub const fn index(self) -> u64 {
        self.index
    }

    /// Returns the number of lanes.
    #[must_use]
    pub const fn of(self) -> u64 {
        self.of
    }

    /// Returns this lane's contiguous part of `0 .. n`; the parts of all lanes cover the range without
    /// overlap.
    #[must_use]
    pub fn share(self, n: u64) -> Range<u64> {
        let cut = |i: u64| u64::try_from(u128::from(n) * u128::from(i) / u128::from(self.of)).unwrap_or(n);
        cut(self.index)..cut(self.index + 1)
    }
}

/// A seeded source of transactions. The stream is endless, except for a load, which ends when its part of the
/// table is written.
#[derive(Debug)]
pub struct Stream {
    family: Family,
    group: u64,
    order: KeyOrder,
    popularity: Popularity,
    population: Arc<Population>,
    rng: Xoshiro256PlusPlus,
    values: FreshValues,
    /// Items that a load has not written yet.
    to_load: Range<u64>,
    dataset: Dataset,
}

impl Stream {
    pub(crate) fn new(workload: &Workload, population: Arc<Population>, lane: Lane, seed: u64) -> Self {
        let records = workload.records();
        let popularity = match workload.family() {
            Family::Ycsb(Mix::D) => Popularity::latest(records),
            Family::Ycsb(mix) => Popularity::scrambled_zipf(records, mix.inserts()),
            _ => Popularity::uniform(records),
        };
        // The generator's seeding spreads similar seeds, so seeds of different lanes only have to differ.
        let lane_seed = crate::key::scatter(seed) ^ lane.index.rotate_left(32);
        Self {
            family: workload.family(),
            group: workload.group(),
            order: workload.key_order(),
            popularity,
            population,
            rng: Xoshiro256PlusPlus::seed_from_u64(lane_seed),
            values: FreshValues::new(seed, lane.index, lane.of),
            to_load: if workload.is_load() { lane.share(records) } else { 0..0 },
            dataset: workload.dataset(),
        }
    }

    /// Replaces the contents of `steps` by the next transaction; they are empty when a load is complete.
    pub fn next_transaction(&mut self, steps: &mut Vec<Step>) {
        steps.clear();
        match self.family {
            Family::U1 => steps.push(self.update()),
            Family::U10 => steps.extend((0..10).map(|_| self.update())),
            Family::Read | Family::LargerThanCache => {
                steps.extend((0..self.group).map(|_| Step::Get { key: self.existing() }));
            }
            Family::Scan => steps.push(Step::Scan { from: Key::FIRST, limit: u64::MAX }),
            Family::ScanBack => steps.push(Step::ScanBack { limit: u64::MAX }),
            Family::ShortScan => {
                steps.push(Step::Scan { from: self.existing(), limit: SHORT_SCAN_RECORDS });
            }
            Family::Load | Family::LoadRandom => self.load(steps),
            Family::Ycsb(mix) => steps.push(self.ycsb(mix)),
        }
    }

    /// Records that the insert of a committed step exists. Other steps are ignored.
    pub fn acknowledge(&self, step: &Step) {
        // The population contains the items of a load from the start.
        let loads = matches!(self.family, Family::Load | Family::LoadRandom);
        if let (Step::Insert { item, .. }, false) = (step, loads) {
            self.population.acknowledge(*item);
        }
    }

    fn existing(&mut self) -> Key {
        self.order.key(self.popularity.draw(&mut self.rng, &self.population))
    }

    fn update(&mut self) -> Step {
        Step::Put { key: self.existing(), value: self.values.next() }
    }

    fn load(&mut self, steps: &mut Vec<Step>) {
        let end = self.to_load.end.min(self.to_load.start.saturating_add(self.group));
        steps.extend((self.to_load.start..end).map(|item| Step::Insert {
            item,
            key: self.dataset.key(item),
            value: self.dataset.value(item),
        }));
        self.to_load.start = end;
    }

    fn ycsb(&mut self, mix: Mix) -> Step {
        match mix.operation(self.rng.random_range(0..100)) {
            Operation::Read => Step::Get { key: self.existing() },
            Operation::Update => self.update(),
            Operation::ReadModifyWrite => {
                Step::ReadModifyWrite { key: self.existing(), value: self.values.next() }
            }
            Operation::Scan => {
                Step::Scan { from: self.existing(), limit: self.rng.random_range(1..=MAX_SCAN_RECORDS) }
            }
            Operation::Insert => {
                let item = self.population.begin_insert();
                Step::Insert { item, key: self.order.key(item), value: self.values.next() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_everything_without_overlap() {
        for (n, of) in [(10, 3), (1, 8), (1_000_000, 7), (0, 2), (u64::MAX, 3)] {
            let shares: Vec<_> = (0..of).map(|i| Lane::new(i, of).share(n)).collect();
            assert_eq!((shares[0].start, shares[shares.len() - 1].end), (0, n));
            assert!(shares.windows(2).all(|w| w[0].end == w[1].start), "{n} over {of}");
        }
    }
}
