//! The rows of the cache comparison: the measurements and their goals. The goals are those of the page
//! cache's requirements. A goal relative to another cache is compared with that cache in the same run.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use azekura_lab::lab::nb_gclock::cache::{Kind, PageCache};
use azekura_lab::lab::nb_gclock::device::{Device, PAGE_BYTES, Reading};
use azekura_lab::lab::nb_gclock::measure::{self, Stretch};
use azekura_lab::lab::nb_gclock::oracle;
use azekura_lab::lab::nb_gclock::zipf::{References, Skew};

use super::disk::Disk;
#[cfg(target_os = "linux")]
use super::peers::ChangingPool;
use super::peers::Which;
use super::row::{Goal, Row, median};
#[cfg(target_os = "linux")]
use super::stalled;
use super::{disk, memory};

/// Number of pages of the database.
const PAGES: u64 = 4_000_000;
/// Number of frames, unless a row uses another.
const FRAMES: usize = 32_768;
/// Number of threads in the rows with many threads.
const MANY: usize = 64;

/// Settings shared by all rows.
pub(super) struct Bench<'a> {
    pub(super) time: Duration,
    pub(super) runs: usize,
    pub(super) references: usize,
    pub(super) stops: usize,
    /// Pages of the file that is read from the device.
    pub(super) disk_pages: u64,
    pub(super) dir: &'a Path,
}

/// A workload that measures a rate: threads, visited pages, and the way in which misses are read.
#[derive(Clone, Copy)]
struct Rate {
    threads: usize,
    pages: u64,
    reading: Reading,
}

impl Rate {
    const fn resident(threads: usize, pages: u64) -> Self {
        Self { threads, pages, reading: Reading::Memory }
    }
}

impl Bench<'_> {
    /// Runs the requested rows, or all; reports each row when it is done.
    pub(super) fn run(&self, only: &[String], report: &mut dyn FnMut(&Row)) -> Result<Vec<Row>> {
        type Run<'a> = fn(&Bench<'a>) -> Result<Vec<Row>>;
        let all: [(&str, Run<'_>); 12] = [
            ("a1", |bench| Ok(vec![bench.resident_on_two()?])),
            ("a2", |bench| Ok(vec![bench.resident_on_one()?])),
            ("a3", |bench| bench.hot_page()),
            ("a4", |bench| bench.stopped()),
            ("b1", |bench| Ok(bench.hit_ratio_by_capacity())),
            ("b2", |bench| Ok(bench.other_hit_ratios())),
            ("b3", |bench| Ok(vec![bench.fidelity()])),
            ("c1", |bench| Ok(vec![bench.misses_in_memory()?])),
            ("c2", |bench| Ok(vec![bench.misses_by_pread()?])),
            ("c3", |bench| Ok(vec![bench.duplicate_reads()?])),
            ("c4", |bench| bench.device()),
            ("d", |bench| Ok(vec![bench.space()])),
        ];
        let mut rows = Vec::new();
        for (name, run) in all {
            if only.is_empty() || only.iter().any(|row| row == name) {
                let of_name = run(self)?;
                of_name.iter().for_each(&mut *report);
                rows.extend(of_name);
            }
        }
        Ok(rows)
    }

    fn cache(&self, which: Which, rate: Rate) -> Result<Box<dyn PageCache>> {
        // Twice as many frames if all pages must be resident: sharded caches evict before they are full.
        let is_resident = rate.pages <= FRAMES as u64;
        let device = match rate.reading {
            Reading::Memory => Device::memory(),
            reading => Device::file(self.dir, 1 << 30, reading)?,
        };
        let cache = which.build(if is_resident { 2 * FRAMES } else { FRAMES }, device);
        if is_resident {
            (0..rate.pages).for_each(|page| assert_eq!(cache.visit(page), page));
        }
        let few = References::new(rate.pages, Skew::NAMED_80_20, 1).take(4 * FRAMES);
        few.for_each(|page| assert_eq!(cache.visit(page), page));
        Ok(cache)
    }

    fn stretch(&self, cache: &dyn PageCache, rate: Rate, run: u64) -> Stretch {
        measure::run(cache, rate.threads, rate.pages, Skew::NAMED_80_20, run + 2, self.time)
    }

    /// Measures a row of rates, with the runs of the caches interleaved.
    fn rates(&self, name: &'static str, what: &str, rate: Rate) -> Result<Row> {
        let mut caches = Vec::new();
        for which in Which::ALL {
            caches.push((which, self.cache(which, rate)?, Vec::new(), Vec::new()));
        }
        for run in 0..self.runs as u64 {
            for (_, cache, rates, shares) in &mut caches {
                let stretch = self.stretch(&**cache, rate, run);
                rates.push(stretch.rate() / 1e6);
                shares.push(stretch.processor_share(rate.threads));
            }
        }
        let mut row = Row::new(name, what, "million visits per second");
        for (which, _, rates, shares) in caches {
            row.result(which.name(), median(rates));
            row.is_disturbed |= which.is_ours() && is_disturbed(shares);
        }
        Ok(row)
    }

    fn resident_on_two(&self) -> Result<Row> {
        let mut row = self.rates("a1", "all resident, 2 threads, 80/20", Rate::resident(2, FRAMES as u64))?;
        let best = row.best_of_ours();
        row.goals = vec![
            Goal::at_least("million visits per second", best, Some(35.0), Some(55.0)),
            of_quick_cache(&row, Some(2.6), Some(4.0)),
            Goal::at_least("times the best under a lock", best / row.best(Which::is_locked), Some(5.0), None),
        ];
        Ok(row)
    }

    fn resident_on_one(&self) -> Result<Row> {
        let mut row = self.rates("a2", "all resident, 1 thread, 80/20", Rate::resident(1, FRAMES as u64))?;
        row.goals = vec![
            Goal::at_least("million visits per second", row.best_of_ours(), Some(22.0), Some(30.0)),
            of_quick_cache(&row, None, Some(2.9)),
        ];
        Ok(row)
    }

    /// Measures whether hits scale: the rate of two threads on one page, divided by that of one thread.
    fn hot_page(&self) -> Result<Vec<Row>> {
        let (one, two) = (Rate::resident(1, 1), Rate::resident(2, 1));
        let mut ratios = Row::new("a3", "one hot page: rate of 2 threads over that of 1", "ratio");
        let mut rates = Row::new("a3", "one hot page, 2 threads", "million visits per second");
        for which in Which::ALL {
            let cache = self.cache(which, one)?;
            let (mut of_two, mut of_both, mut shares) = (Vec::new(), Vec::new(), Vec::new());
            for run in 0..self.runs as u64 {
                let alone = self.stretch(&*cache, one, run);
                let beside = self.stretch(&*cache, two, run);
                of_both.push(beside.rate() / alone.rate());
                of_two.push(beside.rate() / 1e6);
                shares.push(beside.processor_share(2));
            }
            ratios.result(which.name(), median(of_both));
            rates.result(which.name(), median(of_two));
            ratios.is_disturbed |= which.is_ours() && is_disturbed(shares);
        }
        rates.is_disturbed = ratios.is_disturbed;
        let peek = Which::Lab(Kind::TwoRingsPeek).name();
        ratios.goals = vec![Goal::at_least("ratio, peek", ratios.of(peek), Some(1.0), Some(1.5))];
        rates.goals =
            vec![Goal::at_least("million visits per second", rates.best_of_ours(), None, Some(200.0))];
        Ok(vec![ratios, rates])
    }

    /// Not measured: on other systems, a thread is not stopped by this signal.
    #[cfg(not(target_os = "linux"))]
    fn stopped(&self) -> Result<Vec<Row>> {
        Ok(Vec::new())
    }

    /// Measures the progress of other threads while one is stopped at any instruction; see `stalled`.
    #[cfg(target_os = "linux")]
    fn stopped(&self) -> Result<Vec<Row>> {
        let mut stops = Row::new(
            "a4",
            format!("a thread stopped at any instruction, {} times: the others stopped too", self.stops),
            "% of the stops",
        );
        let mut kept =
            Row::new("a4", "the others' rate, of that while the thread holds nothing", "% of the rate");
        let mut measure = |name, cache: &dyn PageCache, times| -> Result<stalled::Stalled> {
            let stalled = stalled::run(cache, times)?;
            stops.result(name, (stalled.stopped, 0.0));
            kept.result(name, (stalled.kept * 100.0, 0.0));
            Ok(stalled)
        };
        let changing = ChangingPool::new(stalled::FRAMES);
        let mut of_pool = vec![measure(ChangingPool::NAME, &changing, self.stops)?];
        for which in Which::ALL {
            let cache = which.build(stalled::FRAMES, Device::memory());
            let is_pool = matches!(which, Which::Lab(_)) && which.is_ours();
            // Other caches need fewer stops for a result.
            let times = if is_pool { self.stops } else { self.stops.div_ceil(10) };
            let stalled = measure(which.name(), &*cache, times)?;
            if is_pool {
                of_pool.push(stalled);
            }
        }
        let worst_stop = of_pool.iter().map(|stalled| stalled.stopped).fold(0.0, f64::max);
        let worst_rate = of_pool.iter().map(|stalled| stalled.kept * 100.0).fold(f64::INFINITY, f64::min);
        stops.goals = vec![Goal::at_most("% of stops, worst of the pools", worst_stop, Some(0.0), None)];
        kept.goals = vec![Goal::at_least("% of the rate, worst of the pools", worst_rate, None, Some(95.0))];
        Ok(vec![stops, kept])
    }

    /// Measures exact hit ratios. Every `jumps_every` references, the numbers of all pages change, so that
    /// the hot set is a new one.
    fn hit_ratios(&self, name: &'static str, skew: Skew, frames: usize, jumps_every: usize) -> Row {
        let jumped = |(at, page): (usize, u64)| match at.checked_div(jumps_every) {
            Some(jumps) => (page + jumps as u64 * 1_234_567) % PAGES,
            None => page,
        };
        let trace: Vec<u64> =
            References::new(PAGES, skew, 7).take(self.references).enumerate().map(jumped).collect();
        let warm = self.references / 3;
        let jumps = if jumps_every > 0 { ", hot set jumping" } else { "" };
        let mut row = Row::new(name, format!("hit ratio, {}{jumps}, {frames} frames", skew.name), "%");
        for which in Which::ALL {
            let cache = which.build(frames, Device::memory());
            row.result(which.name(), (measure::exact_hit_ratio(&*cache, &trace, warm) * 100.0, 0.0));
        }
        row.result("belady (oracle)", (oracle::belady(&trace, frames, warm) * 100.0, 0.0));
        if jumps_every == 0 {
            row.result("a0 (oracle)", (oracle::a0(&trace[warm..], frames) * 100.0, 0.0));
        }
        row
    }

    fn hit_ratio_by_capacity(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (frames, of_a0) in [(4_096, 99.0), (8_192, 98.5), (16_384, 98.1), (32_768, 97.3)] {
            let mut row = self.hit_ratios("b1", Skew::NAMED_80_20, frames, 0);
            let (best, a0) = (row.best_of_ours(), row.of("a0 (oracle)"));
            row.goals = vec![
                Goal::at_least("points above the best rival", best - row.best_rival(), Some(-0.3), Some(0.0)),
                Goal::at_least("% of a0", best / a0 * 100.0, None, Some(of_a0)),
            ];
            rows.push(row);
        }
        rows.push(self.hit_ratio_of_threads());
        rows
    }

    /// Compares the hit ratios of one thread and of many threads with the same references.
    fn hit_ratio_of_threads(&self) -> Row {
        let traces: Vec<Vec<u64>> = (0..MANY as u64)
            .map(|seed| {
                References::new(PAGES, Skew::NAMED_80_20, 100 + seed).take(self.references / MANY).collect()
            })
            .collect();
        // The references of the single thread: a part of each trace in turn.
        let longest = traces[0].len();
        let in_turn =
            |part: std::ops::Range<usize>| traces.iter().flat_map(move |t| t[part.clone()].to_vec());
        let some = 64;
        let one: Vec<u64> =
            (0..longest).step_by(some).flat_map(|at| in_turn(at..(at + some).min(longest))).collect();
        let mut row = Row::new("b1", format!("hit ratio of {MANY} threads less that of 1"), "points");
        let mut worst: f64 = 0.0;
        for which in [Which::Lab(Kind::TwoRings), Which::Lab(Kind::TwoRingsPeek), Which::Lab(Kind::NbStriped)]
        {
            let alone =
                measure::exact_hit_ratio(&*which.build(FRAMES, Device::memory()), &one, one.len() / 3);
            let together = measure::hit_ratio_of_threads(&*which.build(FRAMES, Device::memory()), &traces);
            let difference = (together - alone) * 100.0;
            row.result(which.name(), (difference, 0.0));
            worst = worst.min(difference);
        }
        row.goals = vec![Goal::at_least("points, the worst", worst, Some(-0.3), None)];
        row
    }

    fn other_hit_ratios(&self) -> Vec<Row> {
        let mut flat = self.hit_ratios("b2", Skew::NAMED_45_20, FRAMES, 0);
        let mut jumping = self.hit_ratios("b2", Skew::NAMED_80_20, FRAMES, 500_000);
        for (row, must, moonshot) in [(&mut flat, 4.8, 5.2), (&mut jumping, 31.5, 32.5)] {
            row.goals = vec![
                Goal::at_least("%", row.best_of_ours(), Some(must), Some(moonshot)),
                Goal::at_least(
                    "points above the best rival",
                    row.best_of_ours() - row.best_rival(),
                    None,
                    Some(0.0),
                ),
            ];
        }
        vec![flat, jumping]
    }

    /// Compares Nb-GCLOCK with GCLOCK under a lock, in percentage points of hit ratio.
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
        let what = "largest difference from GCLOCK under a lock, four capacities";
        let mut row = Row::new("b3", what, "points of hit ratio");
        row.result(Which::Lab(Kind::NbStriped).name(), (worst, 0.0));
        row.goals = vec![Goal::at_most("points", worst, Some(0.1), None)];
        row
    }

    fn misses_in_memory(&self) -> Result<Row> {
        let rate = Rate { threads: 2, pages: PAGES, reading: Reading::Memory };
        let mut row = self.rates("c1", "misses filled in memory, 2 threads", rate)?;
        row.goals = vec![
            of_quick_cache(&row, Some(1.3), Some(1.6)),
            Goal::at_least("million visits per second", row.best_of_ours(), None, Some(4.5)),
        ];
        Ok(row)
    }

    fn misses_by_pread(&self) -> Result<Row> {
        let rate = Rate { threads: 8, pages: PAGES, reading: Reading::Optimistic };
        let mut row = self.rates("c2", "misses by pread from the system's cache, 8 threads", rate)?;
        row.goals = vec![
            of_quick_cache(&row, Some(1.2), Some(1.6)),
            Goal::at_least("million visits per second", row.best_of_ours(), Some(0.9), Some(1.2)),
        ];
        Ok(row)
    }

    /// Measures a cold start of many threads on hot pages: the share of misses that read a page which another
    /// thread was reading.
    fn duplicate_reads(&self) -> Result<Row> {
        let which = Which::Lab(Kind::TwoRings);
        let mut shares = Vec::new();
        for run in 0..self.runs as u64 {
            let cache = which.build(FRAMES, Device::file(self.dir, 1 << 30, Reading::Optimistic)?);
            let stretch = measure::run(&*cache, MANY, PAGES, Skew::NAMED_80_20, run + 2, self.time);
            shares.push(stretch.tally.duplicate_reads as f64 / stretch.tally.misses.max(1) as f64 * 100.0);
        }
        let mut row =
            Row::new("c3", format!("pages read twice, cold start of {MANY} threads"), "% of misses");
        row.result(which.name(), median(shares));
        row.goals = vec![Goal::at_most("% of misses", row.of(which.name()), Some(0.1), Some(0.01))];
        Ok(row)
    }

    /// Measures the device, raw and through the pool.
    fn device(&self) -> Result<Vec<Row>> {
        let disk = Disk::create(self.dir, self.disk_pages)?;
        // A quarter of the pages, so that most visits read.
        let pool = disk.pool((self.disk_pages / 4) as usize)?;
        let ahead = pool.read_ahead_pages().min(disk::AHEAD);
        disk.scan_pool(&pool, ahead, self.time); // touches the pool's memory before the measurement
        let [mut raw, mut pooled, mut raw_scan, mut pooled_scan] = [const { Vec::new() }; 4];
        for run in 0..self.runs as u64 {
            raw.push(disk.random_raw(MANY, 1000 * run, self.time) / 1e3);
            pooled.push(disk.random_pool(&pool, MANY, 1000 * run + 500, self.time) / 1e3);
            raw_scan.push(disk.scan_raw(ahead, self.time) / 1e3);
            pooled_scan.push(disk.scan_pool(&pool, ahead, self.time) / 1e3);
        }
        let direct = if disk.is_direct() { "O_DIRECT" } else { "NOT direct: the file system refuses" };
        let row = |what: String, [raw, pooled]: [Vec<f64>; 2], must, moonshot| {
            let mut row = Row::new("c4", what, "thousand pages per second");
            row.result("device", median(raw));
            row.result(Which::Lab(Kind::TwoRings).name(), median(pooled));
            let share = row.best_of_ours() / row.of("device") * 100.0;
            row.goals = vec![Goal::at_least("% of the device", share, must, moonshot)];
            row
        };
        let random = format!("random reads of 8 KiB, {MANY} threads, {direct}");
        let scans = format!("{} cold scans, {ahead} pages read ahead, {direct}", disk::SCANS);
        Ok(vec![
            row(random, [raw, pooled], Some(90.0), Some(97.0)),
            row(scans, [raw_scan, pooled_scan], None, Some(90.0)),
        ])
    }

    /// Measures the memory of each cache without the bytes of its pages.
    fn space(&self) -> Row {
        let mut row = Row::new("d", format!("besides its {PAGE_BYTES} bytes, of {FRAMES}"), "bytes per page");
        for which in Which::ALL {
            if let Some(bytes) = memory::besides_pages(FRAMES, || which.build(FRAMES, Device::memory())) {
                row.result(which.name(), (bytes, 0.0));
            }
        }
        let computed = memory::metadata_per_frame(FRAMES);
        row.result("azekura pool, computed", (computed, 0.0));
        row.goals = vec![Goal::at_most("bytes per frame, computed", computed, Some(64.0), Some(48.0))];
        row
    }
}

fn of_quick_cache(row: &Row, must: Option<f64>, moonshot: Option<f64>) -> Goal {
    let times = row.best_of_ours() / row.of(Which::QuickCache.name());
    Goal::at_least("times quick_cache", times, must, moonshot)
}

fn is_disturbed(shares: Vec<f64>) -> bool {
    median(shares).0 < 0.9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_runs_small_and_says_what_was_reached() {
        let dir = tempfile::tempdir().unwrap();
        let bench = Bench {
            time: Duration::from_millis(1),
            runs: 1,
            references: 6_400,
            stops: 2,
            disk_pages: 4_096,
            dir: dir.path(),
        };
        let mut reported = 0;
        let rows = bench.run(&[], &mut |_| reported += 1).unwrap();
        assert_eq!((rows.len(), reported), (20, 20));
        let mut names: Vec<_> = rows.iter().map(|row| row.row).collect();
        names.dedup();
        assert_eq!(names, ["a1", "a2", "a3", "a4", "b1", "b2", "b3", "c1", "c2", "c3", "c4", "d"]);
        for row in &rows {
            assert!(!row.goals.is_empty() && !row.results.is_empty(), "{row:?}");
            assert!(row.goals.iter().all(|goal| goal.measured.is_finite()), "{row:?}");
        }
        assert_eq!(bench.run(&["d".into()], &mut |_| ()).unwrap().len(), 1);
    }
}
