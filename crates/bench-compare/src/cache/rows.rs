//! The rows: what is measured, and what is aimed at.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use azekura_bench::lab::nb_gclock::cache::{Kind, PageCache};
use azekura_bench::lab::nb_gclock::device::{Device, Reading};
use azekura_bench::lab::nb_gclock::measure;
use azekura_bench::lab::nb_gclock::oracle;
use azekura_bench::lab::nb_gclock::zipf::{References, Skew};
use serde::Serialize;

use super::peers::Which;

/// Pages of the database.
const PAGES: u64 = 4_000_000;
/// Frames, unless the row says otherwise.
const FRAMES: usize = 32_768;

/// One row.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// As in the table of goals.
    pub(super) goal: &'static str,
    pub(super) what: String,
    pub(super) unit: &'static str,
    pub(super) results: Vec<Measured>,
    /// What the best of ours must be, and should be.
    pub(super) least: f64,
    pub(super) aim: f64,
    pub(super) has_least: bool,
    pub(super) has_aim: bool,
}

/// What one cache came to.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) cache: &'static str,
    pub(super) value: f64,
    /// (Highest − lowest) / median.
    pub(super) spread: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_best_rival: Option<f64>,
}

/// How the aim follows from the best rival.
#[derive(Clone, Copy)]
enum Aim {
    /// So many times as much: least, aim.
    Times(f64, f64),
    /// So much less at most: least; above it: aim.
    Above(f64, f64),
}

pub(super) struct Bench<'a> {
    pub(super) time: Duration,
    pub(super) runs: usize,
    pub(super) references: usize,
    pub(super) dir: &'a Path,
}

impl Bench<'_> {
    /// The rows asked for, or all; each is told when it is done.
    pub(super) fn run(&self, only: &[String], told: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
        let is_wanted = |goal: &str| only.is_empty() || only.iter().any(|row| row == goal);
        let mut rows = Vec::new();
        let mut add = |row: Row| {
            told(&row);
            rows.push(row);
        };
        let resident =
            |threads, pages| Rate { threads, pages, skew: Skew::NAMED_80_20, reading: Reading::Memory };
        if is_wanted("a1") {
            let what = "all resident, 2 threads, 80/20";
            add(self.rates("a1", what, resident(2, FRAMES as u64), Aim::Times(2.6, 4.0))?);
        }
        if is_wanted("a2") {
            let what = "all resident, 1 thread, 80/20";
            add(self.rates("a2", what, resident(1, FRAMES as u64), Aim::Times(2.1, 2.9))?);
        }
        if is_wanted("a3") {
            add(self.hot_page()?);
        }
        if is_wanted("b1") {
            for frames in [4_096, 8_192, 16_384, 32_768] {
                add(self.hit_ratios("b1", Skew::NAMED_80_20, frames, 0, Aim::Above(-0.3, 0.0)));
            }
        }
        if is_wanted("b2") {
            add(self.hit_ratios("b2", Skew::NAMED_45_20, FRAMES, 0, Aim::Above(-0.2, 0.0)));
            add(self.hit_ratios("b2", Skew::NAMED_80_20, FRAMES, 500_000, Aim::Above(-0.9, 0.0)));
        }
        if is_wanted("b3") {
            add(self.fidelity());
        }
        if is_wanted("c1") {
            let rate = Rate { threads: 2, pages: PAGES, skew: Skew::NAMED_80_20, reading: Reading::Memory };
            add(self.rates("c1", "misses filled in memory, 2 threads", rate, Aim::Times(1.3, 1.6))?);
        }
        if is_wanted("c2") {
            let rate =
                Rate { threads: 8, pages: PAGES, skew: Skew::NAMED_80_20, reading: Reading::Optimistic };
            add(self.rates(
                "c2",
                "misses by pread from the system's cache, 8 threads",
                rate,
                Aim::Times(1.2, 1.6),
            )?);
        }
        if is_wanted("c3") {
            add(self.duplicate_reads()?);
        }
        Ok(rows)
    }

    fn device(&self, reading: Reading) -> Result<Device> {
        Ok(if reading == Reading::Memory {
            Device::memory()
        } else {
            Device::file(self.dir, 1 << 30, reading)?
        })
    }

    fn rates(&self, goal: &'static str, what: &str, rate: Rate, aim: Aim) -> Result<Row> {
        let mut caches = Vec::new();
        for which in Which::ALL {
            // Twice the frames when all is to be resident: sharded caches evict before they are full.
            let is_resident = rate.pages <= FRAMES as u64;
            let frames = if is_resident { 2 * FRAMES } else { FRAMES };
            let cache = which.build(frames, self.device(rate.reading)?);
            warm(&*cache, rate, is_resident);
            caches.push((which, cache, Vec::new()));
        }
        for run in 0..self.runs as u64 {
            for (_, cache, seen) in &mut caches {
                let Rate { threads, pages, skew, .. } = rate;
                seen.push(measure::run(&**cache, threads, pages, skew, run + 2, self.time).rate() / 1e6);
            }
        }
        let values = caches.into_iter().map(|(which, _, seen)| (which, median(seen))).collect();
        Ok(row(goal, what.into(), "million visits per second", values, aim))
    }

    /// The rate of two threads on one page over that of one: whether a hit scales.
    fn hot_page(&self) -> Result<Row> {
        let rate = |threads| Rate { threads, pages: 1, skew: Skew::NAMED_80_20, reading: Reading::Memory };
        let one = self.rates("a3", "", rate(1), Aim::Times(1.0, 1.5))?;
        let two = self.rates("a3", "", rate(2), Aim::Times(1.0, 1.5))?;
        let mut results: Vec<Measured> = one.results;
        for (result, two) in results.iter_mut().zip(two.results) {
            result.spread = result.spread.max(two.spread);
            result.value = two.value / result.value;
            result.of_best_rival = None;
        }
        let best = best_of_ours(&results);
        let what = "one hot page: rate of 2 threads over that of 1".into();
        let (least, aim) = (1.0, 1.5);
        Ok(Row {
            goal: "a3",
            what,
            unit: "ratio",
            results,
            least,
            aim,
            has_least: best >= least,
            has_aim: best >= aim,
        })
    }

    /// Exact. `jumps_every` so many references all pages change their names: the hot set is another.
    fn hit_ratios(&self, goal: &'static str, skew: Skew, frames: usize, jumps_every: usize, aim: Aim) -> Row {
        let jumped = |(at, page): (usize, u64)| match at.checked_div(jumps_every) {
            Some(jumps) => (page + jumps as u64 * 1_234_567) % PAGES,
            None => page,
        };
        let trace: Vec<u64> =
            References::new(PAGES, skew, 7).take(self.references).enumerate().map(jumped).collect();
        let warm = self.references / 3;
        let ratio = |which: Which| {
            let cache = which.build(frames, Device::memory());
            measure::exact_hit_ratio(&*cache, &trace, warm) * 100.0
        };
        let values = Which::ALL.map(|which| (which, (ratio(which), 0.0))).into();
        let jumps = if jumps_every > 0 { ", hot set jumping" } else { "" };
        let what = format!("hit ratio, {}{jumps}, {frames} frames", skew.name);
        let mut row = row(goal, what, "%", values, aim);
        let oracle =
            |cache, value: f64| Measured { cache, value: value * 100.0, spread: 0.0, of_best_rival: None };
        row.results.push(oracle("belady (oracle)", oracle::belady(&trace, frames, warm)));
        if jumps_every == 0 {
            row.results.push(oracle("a0 (oracle)", oracle::a0(&trace[warm..], frames)));
        }
        row
    }

    /// Nb-GCLOCK against GCLOCK under a lock, in points of hit ratio.
    fn fidelity(&self) -> Row {
        let trace: Vec<u64> = References::new(PAGES, Skew::NAMED_80_20, 7).take(self.references).collect();
        let ratio = |kind: Kind, frames| {
            let cache = kind.build(frames, Device::memory());
            measure::exact_hit_ratio(&*cache, &trace, self.references / 3) * 100.0
        };
        let mut worst: f64 = 0.0;
        for frames in [4_096, 8_192, 16_384, 32_768] {
            worst = worst.max((ratio(Kind::NbStriped, frames) - ratio(Kind::Gclock, frames)).abs());
        }
        let results = vec![Measured {
            cache: Which::Lab(Kind::NbStriped).name(),
            value: worst,
            spread: 0.0,
            of_best_rival: None,
        }];
        let what = "largest difference from GCLOCK under a lock, four capacities".into();
        Row {
            goal: "b3",
            what,
            unit: "points of hit ratio",
            results,
            least: 0.1,
            aim: 0.1,
            has_least: worst <= 0.1,
            has_aim: worst <= 0.1,
        }
    }

    /// A cold start of many threads on hot pages: reads of a page that another was reading.
    fn duplicate_reads(&self) -> Result<Row> {
        let mut shares = Vec::new();
        for run in 0..self.runs as u64 {
            let cache = Which::Lab(Kind::TwoRings).build(FRAMES, self.device(Reading::Optimistic)?);
            let stretch = measure::run(&*cache, 64, PAGES, Skew::NAMED_80_20, run + 2, self.time);
            shares.push(stretch.tally.duplicate_reads as f64 / stretch.tally.misses.max(1) as f64 * 100.0);
        }
        let (value, spread) = median(shares);
        let results =
            vec![Measured { cache: Which::Lab(Kind::TwoRings).name(), value, spread, of_best_rival: None }];
        Ok(Row {
            goal: "c3",
            what: "pages read twice, cold start of 64 threads".into(),
            unit: "% of misses",
            results,
            least: 0.1,
            aim: 0.01,
            has_least: value <= 0.1,
            has_aim: value <= 0.01,
        })
    }
}

/// What is visited how.
#[derive(Clone, Copy)]
struct Rate {
    threads: usize,
    pages: u64,
    skew: Skew,
    reading: Reading,
}

fn warm(cache: &dyn PageCache, rate: Rate, is_resident: bool) {
    if is_resident {
        (0..rate.pages).for_each(|page| assert_eq!(cache.visit(page), page));
    }
    let few = References::new(rate.pages, rate.skew, 1).take(4 * FRAMES);
    few.for_each(|page| assert_eq!(cache.visit(page), page));
}

/// The median, and (highest − lowest) / median.
fn median(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let median = values[values.len() / 2];
    let span = values[values.len() - 1] - values[0];
    (median, if median > 0.0 { span / median } else { 0.0 })
}

fn best_of_ours(results: &[Measured]) -> f64 {
    results.iter().filter(|r| is_ours(r.cache)).map(|r| r.value).fold(0.0, f64::max)
}

fn is_ours(name: &str) -> bool {
    Which::ALL.iter().any(|which| which.name() == name && which.is_ours())
}

fn row(
    goal: &'static str,
    what: String,
    unit: &'static str,
    values: Vec<(Which, (f64, f64))>,
    aim: Aim,
) -> Row {
    let rivals = values.iter().filter(|(which, _)| !which.is_ours());
    let best_rival = rivals.map(|(_, (value, _))| *value).fold(0.0, f64::max);
    let results: Vec<Measured> = values
        .into_iter()
        .map(|(which, (value, spread))| Measured {
            cache: which.name(),
            value,
            spread,
            of_best_rival: (best_rival > 0.0).then_some(value / best_rival),
        })
        .collect();
    let best = best_of_ours(&results);
    let (least, aim) = match aim {
        Aim::Times(least, aim) => (best_rival * least, best_rival * aim),
        Aim::Above(least, aim) => (best_rival + least, best_rival + aim),
    };
    Row { goal, what, unit, results, least, aim, has_least: best >= least, has_aim: best >= aim }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_what_was_reached_against_the_best_rival() {
        let values = vec![
            (Which::General, (5.0, 0.1)),
            (Which::Lab(Kind::TwoRings), (4.0, 0.0)),
            (Which::Moka, (1.0, 0.0)),
            (Which::QuickCache, (2.0, 0.0)),
        ];
        let row = row("a1", String::new(), "", values, Aim::Times(2.0, 3.0));
        assert!(row.has_least && !row.has_aim && row.least == 4.0 && row.aim == 6.0);
        assert_eq!(row.results[2].of_best_rival, Some(0.5));
    }

    #[test]
    fn every_row_runs_small() {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench { time: Duration::from_millis(1), runs: 1, references: 3_000, dir: dir.path() };
        let mut told = 0;
        let rows = bench.run(&["b1".into(), "b3".into(), "c3".into()], &mut |_| told += 1).unwrap();
        assert_eq!((rows.len(), told), (6, 6));
    }
}
