//! The evaluation of Nb-GCLOCK (Yui et al., IPSJ TOD 2009, §4) on real code: its rivals, its workload and its
//! figures.
//!
//! | module | noun |
//! |---|---|
//! | [`zipf`] | the workload, in both readings of its formula (§4.1) |
//! | [`policy`] | LRU, 2Q, GCLOCK, S3-FIFO: sequential, for use under a lock |
//! | [`locked`] | the conventional buffer manager with one of these policies (§2.1) |
//! | [`cache`] | the compared caches: the locked ones, and the store's pool in its variants |
//! | [`costs`] | counted cost of a hit and of a miss |
//! | [`device`] | pages from memory, by `lseek` + `read` under a lock, by `pread` (§3.3) |
//! | [`oracle`] | hit ratios of A0 and Belady |
//! | [`measure`] | one measurement |
//! | [`report`] | figures as text, JSON and an HTML page |
//! | [`simulate`] | the same caches on a simulated machine |
//!
//! Two remarks on the paper (see [`zipf`]). Its formula does not give the distribution that it names, so both
//! readings are measured. Its hit ratios of about 70 % cannot be reached with 4,000,000 pages: the hottest
//! 32,768 pages receive (32768/4,000,000)^0.14 = 51 % of the references that are not scans, which is 41 % of
//! all. The table shows the oracles for comparison.

pub mod cache;
pub mod costs;
pub mod device;
pub mod locked;
pub mod measure;
pub mod oracle;
pub mod policy;
pub mod report;
pub mod simulate;
pub mod zipf;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use self::cache::{Kind, PageCache};
use self::device::{Device, Reading};
use self::measure::Stretch;
use self::report::Report;
use self::zipf::{References, Skew};
use crate::lab::figures::{self, Axis, Figure, Point};
use crate::machine::Machine;
use crate::progress::Progress;

/// Settings of the lab.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Number of pages of the database; the paper has 4,000,000.
    pub pages: u64,
    /// Capacities of the caches, in frames.
    pub frames: Vec<usize>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Number of threads in figures with a fixed number of threads; the paper has 64.
    pub many_threads: usize,
    /// Measured time of each rate.
    pub time: Duration,
    /// Measurements of each rate; the report shows the median.
    pub runs: usize,
    /// Time limit of the whole run. On a slow machine each rate is measured fewer times, but at least once.
    pub budget: Duration,
    /// Numbers of references for hit ratios: for warming the cache, and measured.
    pub references: (usize, usize),
    /// Bytes of the sparse file.
    pub file_bytes: u64,
    /// Directory of the sparse file.
    pub dir: PathBuf,
    /// Seed of the first run.
    pub seed: u64,
}

impl Lab {
    /// Returns settings with the paper's sizes, which take some minutes.
    #[must_use]
    pub fn full(dir: PathBuf) -> Self {
        Self {
            pages: 4_000_000,
            frames: vec![4_096, 8_192, 16_384, 32_768],
            threads: vec![1, 2, 4, 8, 16, 32, 64],
            many_threads: 64,
            time: Duration::from_millis(300),
            runs: 3,
            budget: Duration::from_mins(8),
            references: (1_000_000, 2_000_000),
            file_bytes: 1 << 30,
            dir,
            seed: 1,
        }
    }

    /// Returns settings with smaller sizes, which take some seconds; the results are rough.
    #[must_use]
    pub fn quick(dir: PathBuf) -> Self {
        Self {
            pages: 400_000,
            frames: vec![1_024, 4_096],
            threads: vec![1, 2, 8],
            many_threads: 8,
            time: Duration::from_millis(25),
            runs: 1,
            budget: Duration::from_secs(25),
            references: (40_000, 80_000),
            file_bytes: 64 << 20,
            ..Self::full(dir)
        }
    }

    /// Runs all measurements.
    ///
    /// # Errors
    ///
    /// The sparse file cannot be created in the directory.
    ///
    /// # Panics
    ///
    /// If a cache returns another page than the requested one.
    pub fn run(&self, progress: &Progress) -> io::Result<Report> {
        let settings = format!(
            "{} pages of 8 KiB, 20 % of the references in scans of 100 pages; hit ratios over {} references \
             after {}; rates: median of {} run(s) of {} ms, fewer where time ran out; file of {} MiB, in the \
             system's cache",
            self.pages,
            self.references.1,
            self.references.0,
            self.runs,
            self.time.as_millis(),
            self.file_bytes >> 20
        );
        let measured = figures::Report::new("Nb-GCLOCK and its rivals", Machine::here(&self.dir), settings);
        let mut run = Run { lab: self, progress, began: Instant::now(), measured };
        for skew in [Skew::NAMED_80_20, Skew::NAMED_45_20, Skew::LITERAL_086] {
            run.hit_ratios(skew);
        }
        run.timed(vec![
            run.throughput(Skew::NAMED_80_20),
            run.throughput(Skew::NAMED_45_20),
            run.ways_of_reading(),
            run.resident(),
            run.reading_by_threads(),
        ])?;
        Ok(Report { measured: run.measured, costs: Kind::ALL.map(costs::count).into() })
    }
}

/// A running lab with its results so far.
struct Run<'l> {
    lab: &'l Lab,
    progress: &'l Progress,
    began: Instant,
    measured: figures::Report,
}

/// A figure of rates with its cells.
struct Timed {
    figure: Figure,
    cells: Vec<Cell>,
    with_table_2: bool,
}

/// One cell of a figure: a cache with its settings.
struct Cell {
    kind: Kind,
    series: String,
    at: usize,
    frames: usize,
    threads: usize,
    pages: u64,
    skew: Skew,
    reading: Reading,
}

impl Run<'_> {
    /// Measures Fig. 7 exactly: in one thread, with the same trace for all caches.
    fn hit_ratios(&mut self, skew: Skew) {
        let name = format!("Hit ratio, {}", skew.name);
        let (warm, measured) = self.lab.references;
        let note = format!(
            "Fig. 7, in one thread and so exact. belady and a0 (the hottest pages, always) are oracles. {}",
            skew.note
        );
        self.measured.figures.push(figure(&name, &note, "frames", "%"));
        let trace: Vec<u64> =
            References::new(self.lab.pages, skew, self.lab.seed).take(warm + measured).collect();
        for &frames in &self.lab.frames {
            self.progress.begin(&format!("{name}, {frames} frames"), 1 + Kind::ALL.len() as u64);
            self.exact(&name, "belady", frames, oracle::belady(&trace, frames, warm));
            self.exact(&name, "a0", frames, oracle::a0(&trace[warm..], frames));
            for (done, kind) in (1..).zip(Kind::ALL.into_iter().filter(|&kind| kind != Kind::NbAtomic)) {
                self.progress.at(done);
                let cache = kind.build(frames, Device::memory());
                self.exact(&name, kind.name(), frames, measure::exact_hit_ratio(&*cache, &trace, warm));
            }
        }
    }

    fn exact(&mut self, figure: &str, series: &str, at: usize, ratio: f64) {
        self.measured.points.push(Point {
            figure: figure.into(),
            series: series.into(),
            at,
            value: ratio * 100.0,
            spread: 0.0,
            runs: 1,
            beside: BTreeMap::new(),
        });
    }

    /// Returns the cells of Fig. 8.
    fn throughput(&self, skew: Skew) -> Timed {
        let name = format!("Throughput by capacity, {}", skew.name);
        let note = format!(
            "Fig. 8, {} threads, pread; every miss copies from the system's cache.",
            self.lab.many_threads
        );
        let cells = self.lab.frames.iter().flat_map(|&frames| {
            Kind::ALL
                .map(|kind| self.cell(kind, frames, frames, self.lab.many_threads, skew, Reading::Optimistic))
        });
        Timed {
            figure: figure(&name, &note, "frames", "visits per second"),
            cells: cells.collect(),
            with_table_2: false,
        }
    }

    /// Returns the cells of Fig. 9 and Table 2.
    fn ways_of_reading(&self) -> Timed {
        let name = "Blocking against optimistic reading";
        let note = format!(
            "Fig. 9 and Table 2, {} threads, 80/20. Behind each rate: installs that failed per miss, \
             processor time of each thread's (at most {:.0} % with so many threads).",
            self.lab.many_threads,
            100.0 * Machine::here(&self.lab.dir).cores as f64 / self.lab.many_threads as f64
        );
        let mut cells = Vec::new();
        for &frames in &self.lab.frames {
            for kind in [Kind::Lru, Kind::TwoQ, Kind::Gclock, Kind::NbStriped, Kind::TwoRings] {
                for (reading, suffix) in [(Reading::Blocking, "lseek+read"), (Reading::Optimistic, "pread")] {
                    let mut cell =
                        self.cell(kind, frames, frames, self.lab.many_threads, Skew::NAMED_80_20, reading);
                    cell.series = format!("{}, {suffix}", kind.name());
                    cells.push(cell);
                }
            }
        }
        Timed { figure: figure(name, &note, "frames", "visits per second"), cells, with_table_2: true }
    }

    /// Returns the cells of Figs 10 and 12.
    fn resident(&self) -> Timed {
        let name = "Scaling, all pages resident";
        let figure = figure(
            name,
            "Figs 10 and 12. Beyond the machine's cores this shows what happens when threads wait for a \
             processor, not scaling.",
            "threads",
            "visits per second",
        );
        let frames = self.lab.frames.last().copied().unwrap_or(1_024);
        let mut cells = Vec::new();
        for &threads in &self.lab.threads {
            for kind in Kind::ALL {
                let mut cell = self.cell(kind, threads, frames, threads, Skew::NAMED_80_20, Reading::Memory);
                cell.pages = frames as u64;
                cells.push(cell);
            }
        }
        Timed { figure, cells, with_table_2: false }
    }

    /// Returns the cells of Fig. 11.
    fn reading_by_threads(&self) -> Timed {
        let name = "Scaling, pread";
        let frames = self.lab.frames.last().copied().unwrap_or(1_024);
        let note = format!("Fig. 11, {frames} frames, 80/20.");
        let cells = self.lab.threads.iter().flat_map(|&threads| {
            Kind::ALL
                .map(|kind| self.cell(kind, threads, frames, threads, Skew::NAMED_80_20, Reading::Optimistic))
        });
        Timed {
            figure: figure(name, &note, "threads", "visits per second"),
            cells: cells.collect(),
            with_table_2: false,
        }
    }

    fn cell(
        &self,
        kind: Kind,
        at: usize,
        frames: usize,
        threads: usize,
        skew: Skew,
        reading: Reading,
    ) -> Cell {
        Cell { kind, series: kind.name().into(), at, frames, threads, pages: self.lab.pages, skew, reading }
    }

    /// Measures all figures, each within its share of the remaining time.
    fn timed(&mut self, all: Vec<Timed>) -> io::Result<()> {
        let (began, left) = (Instant::now(), self.lab.budget.saturating_sub(self.began.elapsed()));
        let cells: usize = all.iter().map(|timed| timed.cells.len()).sum();
        let mut so_far = 0;
        for Timed { figure, cells: its, with_table_2 } in all {
            so_far += its.len();
            let deadline = began + left.mul_f64(so_far as f64 / cells.max(1) as f64);
            self.measure(&figure.name, its, with_table_2, deadline)?;
            self.measured.figures.push(figure);
        }
        Ok(())
    }

    /// Measures each cell once, then each cell again, so that a temporary disturbance of the machine affects
    /// all alike. Cells of one capacity are measured together, and those with the same cache and method of
    /// reading share one cache. After the deadline no cell is measured again.
    fn measure(
        &mut self,
        figure: &str,
        cells: Vec<Cell>,
        with_table_2: bool,
        deadline: Instant,
    ) -> io::Result<()> {
        self.progress.begin(figure, (self.lab.runs * cells.len()) as u64);
        let (began, all) = (Instant::now(), cells.len());
        let (mut done, mut so_far) = (0, 0);
        for cells in cells.chunk_by(|a, b| a.frames == b.frames) {
            so_far += cells.len();
            let share = deadline.saturating_duration_since(began).mul_f64(so_far as f64 / all as f64);
            let mut caches: Vec<(Kind, Reading, Box<dyn PageCache>)> = Vec::new();
            for cell in cells {
                if !caches.iter().any(|(kind, reading, _)| (*kind, *reading) == (cell.kind, cell.reading)) {
                    caches.push((cell.kind, cell.reading, self.warm(cell)?));
                }
            }
            let mut stretches: Vec<Vec<Stretch>> = cells.iter().map(|_| Vec::new()).collect();
            for run in 0..self.lab.runs as u64 {
                if run > 0 && began.elapsed() > share {
                    break;
                }
                for (cell, stretches) in cells.iter().zip(&mut stretches) {
                    let of_cell = |(kind, reading, _): &&(Kind, Reading, _)| {
                        (*kind, *reading) == (cell.kind, cell.reading)
                    };
                    let (_, _, cache) = caches.iter().find(of_cell).expect("made above");
                    let Cell { threads, pages, skew, .. } = *cell;
                    let seed = self.lab.seed + 1 + run;
                    stretches.push(measure::run(&**cache, threads, pages, skew, seed, self.lab.time));
                    done += 1;
                    self.progress.at(done);
                }
            }
            for (cell, stretches) in cells.iter().zip(stretches) {
                self.measured.points.push(point(figure, cell, stretches, with_table_2));
            }
        }
        Ok(())
    }

    /// Returns a cache that is full and has processed twice as many references as it has frames.
    fn warm(&self, cell: &Cell) -> io::Result<Box<dyn PageCache>> {
        let device = match cell.reading {
            Reading::Memory => Device::memory(),
            reading => Device::file(&self.lab.dir, self.lab.file_bytes, reading)?,
        };
        let cache = cell.kind.build(cell.frames, device);
        if cell.pages <= cell.frames as u64 {
            (0..cell.pages).for_each(|page| assert_eq!(cache.visit(page), page));
        }
        let few = References::new(cell.pages, cell.skew, self.lab.seed).take(2 * cell.frames);
        few.for_each(|page| assert_eq!(cache.visit(page), page));
        Ok(cache)
    }
}

fn figure(name: &str, note: &str, axis: &str, unit: &str) -> Figure {
    let spacing = Axis::Doubling;
    Figure { name: name.into(), note: note.into(), axis: axis.into(), spacing, unit: unit.into() }
}

fn point(figure: &str, cell: &Cell, mut stretches: Vec<Stretch>, with_table_2: bool) -> Point {
    stretches.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    let median = stretches[stretches.len() / 2];
    let span = stretches[stretches.len() - 1].rate() - stretches[0].rate();
    let failed = median.tally.duplicate_reads as f64 / median.tally.misses.max(1) as f64;
    let mut beside = BTreeMap::new();
    if with_table_2 {
        beside.insert(report::FAILED_INSTALLS.to_owned(), 100.0 * failed);
        beside.insert(
            report::PROCESSOR.to_owned(),
            100.0 * median.cpu_seconds / median.seconds / cell.threads as f64,
        );
    }
    if cell.reading != Reading::Memory {
        beside.insert(report::HITS.to_owned(), 100.0 * median.hit_ratio());
    }
    Point {
        figure: figure.into(),
        series: cell.series.clone(),
        at: cell.at,
        value: median.rate(),
        spread: span / median.rate(),
        runs: stretches.len(),
        beside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_its_time_limit_a_lab_measures_each_rate_once() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab {
            pages: 5_000,
            frames: vec![100],
            threads: vec![1],
            many_threads: 2,
            time: Duration::from_millis(1),
            runs: 1000,
            budget: Duration::ZERO,
            references: (1_000, 2_000),
            file_bytes: 1 << 20,
            ..Lab::quick(dir.path().into())
        };
        let report = lab.run(&Progress::hidden()).unwrap();
        assert!(report.measured.points.iter().all(|point| point.runs == 1));
        assert_eq!(report.measured.figures.len(), 3 + 5);
    }

    #[test]
    fn a_small_run_has_every_figure_and_a_point_for_each_cache() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab {
            pages: 5_000,
            frames: vec![100, 200],
            threads: vec![1, 2],
            many_threads: 3,
            time: Duration::from_millis(2),
            references: (1_000, 2_000),
            file_bytes: 1 << 20,
            ..Lab::quick(dir.path().into())
        };
        let report = lab.run(&Progress::hidden()).unwrap();
        let count = |what: &str| report.measured.points.iter().filter(|p| p.figure.starts_with(what)).count();
        assert_eq!(count("Hit ratio"), 3 * 2 * 9);
        assert_eq!(count("Throughput"), 2 * 2 * 8);
        assert_eq!(count("Blocking"), 2 * 10);
        assert_eq!(count("Scaling"), 2 * 2 * 8);
        for point in &report.measured.points {
            assert!(report.measured.figures.iter().any(|figure| figure.name == point.figure));
            assert!(point.value > 0.0 || point.figure.starts_with("Hit"), "{point:?}");
        }
        assert!(
            report.measured.points.iter().all(|point| point.runs == 1)
                && report.costs.len() == Kind::ALL.len()
        );
        let blocking = |p: &&Point| p.series.ends_with("lseek+read") && !p.series.starts_with("nb");
        assert!(report.measured.points.iter().filter(blocking).count() >= 6);
    }
}
