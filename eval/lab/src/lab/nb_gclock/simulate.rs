//! The paper's Figs 10 and 12 on a simulated machine with as many processors as the paper's.
//!
//! The caches are the shipped ones and the rivals of this lab; only the machine is simulated (`azekura-sim`).
//! There are several cases, because the paper's "all pages resident in memory" has two readings. Either every
//! page has a frame, so that the clock hand never moves. Or every page is in memory but not in a frame, so
//! that a miss costs no I/O but moves the hand. Only the second reading can show the paper's results on its
//! hand. With the paper's number of pages per frame, nearly every visit moves the hand.

use azekura_base::sync::machine::{self, Work};
use azekura_base::sync::thread;
use azekura_base::sync::time::Instant;
use azekura_sim::profile::Source;
use azekura_sim::stalls::PlaceStalls;
use azekura_sim::{LineName, Profile, Simulation, SimulationError};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::cache::{Kind, PageCache};
use super::device::Device;
use super::zipf::{References, Skew};
use crate::lab::simulated::{self, Chart, Line};
use crate::lab::steady::{self, Counter, Rule, Run, Windows};
use crate::progress::Progress;

/// Settings of the simulation.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The simulated machine.
    pub profile: Profile,
    /// Numbers of processors.
    pub processors: Vec<usize>,
    /// Kinds of caches.
    pub kinds: Vec<Kind>,
    /// Number of frames.
    pub frames: usize,
    /// Numbers of pages per frame; each is a case, besides the one with a frame for every page.
    pub pages_per_frame: Vec<f64>,
    /// Distribution of references over pages.
    pub skew: Skew,
    /// Computation of a thread between two visits, in nanoseconds.
    pub draw_ns: u64,
    /// Cache lines with accesses that cost nothing extra.
    pub without: Vec<LineName>,
    /// Warm-up, windows and seeds of each point.
    pub rule: Rule,
}

/// Result of a cache on one number of processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the case.
    pub case: String,
    /// Name of the cache.
    pub cache: String,
    /// Number of processors, and of threads.
    pub processors: usize,
    /// Visits per second of virtual time: the median of the runs.
    pub rate: f64,
    /// The runs with all seeds. The next fields are those of the run with the median rate.
    pub runs: Vec<Run>,
    /// Part of the visits that were hits, including those of the warm-up.
    pub hit_ratio: f64,
    /// Number of simulated accesses and iterations of spin loops, including those of the warm-up.
    pub steps: u64,
    /// Places in the source where threads waited for cache lines in the measured time, with their part of
    /// that time.
    pub stalls: Vec<Stall>,
}

/// A place in the source where threads waited for cache lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// File and line.
    pub place: String,
    /// Waiting time as a part of all threads' time.
    pub share: f64,
    /// Waiting time for the most expensive line, as a part of all threads' time.
    pub on_one_line: f64,
}

/// Results of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The simulated machine.
    pub profile: Profile,
    /// The settings, as text.
    pub settings: String,
    /// Results for each case, cache and number of processors.
    pub points: Vec<Point>,
}

/// Pages per frame of the two cases with misses. With 1.5, two thirds of the visits are hits, as in the
/// paper's Fig. 7 with its larger buffers. With 122 (the paper's 4,000,000 pages in 32,768 frames) and
/// the paper's formula, nearly none is.
const PAGES_PER_FRAME: [f64; 2] = [1.5, 122.0];
const KINDS: [Kind; 7] = [
    Kind::Lru,
    Kind::TwoQ,
    Kind::Gclock,
    Kind::NbAtomic,
    Kind::NbStriped,
    Kind::TwoRings,
    Kind::TwoRingsPeek,
];
/// A window has at least about a thousand visits of the paper's machine.
const WINDOWS: Windows = Windows { of_all: Duration::from_micros(3_200), least: Duration::from_micros(100) };
/// Real visits between two clock reads.
const GROUP: usize = 64;
/// Largest number of places in a point.
const PLACES: usize = 5;
/// Default of [`Simulated::draw_ns`]. The paper's threads draw each reference before its visit: `pow` in
/// software and two random numbers, in Java 6, on in-order cores at 1.2 GHz. This is estimated at about 1500
/// cycles.
const DRAW_NS: u64 = 1_200;

impl Simulated {
    /// Returns the settings for the paper's machine, with 1, 2, 4, … processors up to `most`.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            profile: paper_machine(),
            processors: simulated::doublings(most),
            kinds: KINDS.into(),
            frames: 4096,
            pages_per_frame: PAGES_PER_FRAME.into(),
            skew: Skew::LITERAL_086,
            draw_ns: DRAW_NS,
            without: Vec::new(),
            rule: Rule::default(),
        }
    }

    /// Returns the settings for the shipped pool on another machine. Its threads only visit pages, and a
    /// fifth of the pages receives four fifths of the references.
    #[must_use]
    pub fn on(profile: Profile, processors: Vec<usize>) -> Self {
        Self {
            profile,
            processors,
            kinds: vec![Kind::NbStriped, Kind::TwoRings, Kind::TwoRingsPeek],
            pages_per_frame: vec![PAGES_PER_FRAME[0]],
            skew: Skew::NAMED_80_20,
            draw_ns: 0,
            ..Self::new(1)
        }
    }

    /// Runs all cases.
    ///
    /// # Errors
    ///
    /// [`SimulationError::NotBuilt`] without the feature `sim`; other errors of the simulation.
    pub fn run(&self, progress: &Progress) -> Result<Report, SimulationError> {
        let cases = self.cases();
        let cells = cases.len() * self.kinds.len() * self.processors.len();
        progress.begin(&format!("Simulating {}", self.profile.name), cells as u64);
        let mut points = Vec::new();
        for (case, pages) in &cases {
            for &kind in &self.kinds {
                for &processors in &self.processors {
                    points.push(self.point(case, kind, processors, *pages)?);
                    progress.at(points.len() as u64);
                }
            }
        }
        Ok(Report {
            settings: format!(
                "{} frames of 8 KiB; {}, 20 % of the references in scans; {} ns to draw one; {}{}",
                self.frames,
                self.skew.name,
                self.draw_ns,
                self.rule.describe(WINDOWS),
                simulated::without(&self.without)
            ),
            profile: self.profile.clone(),
            points,
        })
    }

    /// Returns the names and numbers of pages of the cases.
    fn cases(&self) -> Vec<(String, u64)> {
        let from_memory = self.pages_per_frame.iter().map(|&per_frame| {
            let pages = (self.frames as f64 * per_frame) as u64;
            (format!("pages come from memory, {per_frame} per frame"), pages)
        });
        let resident = ("every page has a frame".to_owned(), self.frames as u64);
        std::iter::once(resident).chain(from_memory).collect()
    }

    /// Measures the visits per second of real threads to the first of the caches, with a frame for every
    /// page.
    pub(crate) fn real(&self, threads: usize, time: Duration) -> f64 {
        let Some(kind) = self.kinds.first() else { return 0.0 };
        let cache: Arc<dyn PageCache> = kind.build(self.frames, Device::memory()).into();
        let pages = self.frames as u64;
        warm(&*cache, self.frames, pages, self.skew, self.rule.seed);
        let (begin, mut visits) = (Instant::now() + time / 4, 0);
        let end = begin + time;
        let work = |thread: u64| {
            let cache = Arc::clone(&cache);
            let mut references =
                References::new(pages, self.skew, self.rule.seed.wrapping_mul(1000) + thread);
            move || {
                let mut counted = 0_u64;
                // The clock is read once per `GROUP` visits: on a real machine a clock read costs more than a
                // visit.
                loop {
                    for page in references.by_ref().take(GROUP) {
                        assert_eq!(cache.visit(page), page, "the cache gave another page");
                    }
                    let now = Instant::now();
                    if now >= end {
                        break;
                    }
                    if now >= begin {
                        counted += GROUP as u64;
                    }
                }
                counted
            }
        };
        let threads: Vec<_> = (0..threads as u64).map(|thread| thread::spawn(work(thread))).collect();
        for thread in threads {
            visits += thread.join().expect("a visitor panics only if the cache is wrong");
        }
        visits as f64 / time.as_secs_f64()
    }

    fn point(&self, case: &str, kind: Kind, processors: usize, pages: u64) -> Result<Point, SimulationError> {
        let (median, runs) = self.rule.point(|seed| self.run_of(case, kind, processors, pages, seed))?;
        Ok(Point { runs, ..median })
    }

    /// Returns a run, and the point with its result.
    fn run_of(
        &self,
        case: &str,
        kind: Kind,
        processors: usize,
        pages: u64,
        seed: u64,
    ) -> Result<(Run, Point), SimulationError> {
        let span = self.rule.span(WINDOWS, processors);
        let (frames, skew, draw) = (self.frames, self.skew, Work::Nanoseconds(self.draw_ns));
        let left = Rc::new(Cell::new(None));
        let result = Rc::clone(&left);
        let mut simulation = Simulation::new(Rc::new(self.profile.clone()), processors, seed);
        simulation = simulation.without(&self.without);
        simulation.thread(move || {
            // Built in the simulated machine: the number of its processors decides the number of stripes.
            let cache: Arc<dyn PageCache> = kind.build(frames, Device::memory()).into();
            machine::outside(|| warm(&*cache, frames, pages, skew, seed));
            let before = cache.tally().misses;
            let counter = Counter::begin(span);
            let client = |thread| {
                let (cache, counter) = (Arc::clone(&cache), counter.clone());
                let references = References::new(pages, skew, seed.wrapping_mul(1000) + thread);
                thread::spawn(move || visit_all(&*cache, references, draw, &counter))
            };
            let clients: Vec<_> = (0..processors as u64).map(client).collect();
            let visits: u64 = clients.into_iter().map(|client| client.join().expect("no panic")).sum();
            result.set(Some((counter, visits, cache.tally().misses - before)));
        });
        let outcome = simulation.run()?;
        let (counter, visits, misses) = left.take().expect("the simulation ran to its end");
        let run = counter.run(seed, 0);
        let threads_time = counter.measured_time().as_secs_f64() * processors as f64;
        let point = Point {
            case: case.into(),
            cache: kind.name().into(),
            processors,
            rate: run.rate,
            runs: Vec::new(),
            hit_ratio: 1.0 - misses as f64 / visits.max(1) as f64,
            steps: outcome.steps,
            stalls: outcome.stalls.iter().take(PLACES).map(|stall| named(stall, threads_time)).collect(),
        };
        Ok((run, point))
    }
}

/// Visits the pages until the counter ends the run. Returns the number of visits.
fn visit_all(cache: &dyn PageCache, references: References, draw: Work, counter: &Counter) -> u64 {
    let mut visits = 0;
    for page in references {
        machine::works(draw);
        assert_eq!(cache.visit(page), page, "the cache gave another page");
        visits += 1;
        if !counter.count(&mut 0) {
            break;
        }
    }
    visits
}

fn warm(cache: &dyn PageCache, frames: usize, pages: u64, skew: Skew, seed: u64) {
    if pages <= frames as u64 {
        (0..pages).for_each(|page| assert_eq!(cache.visit(page), page));
    }
    let few = References::new(pages, skew, seed).take(4 * frames);
    few.for_each(|page| assert_eq!(cache.visit(page), page));
}

fn named(stall: &PlaceStalls, threads_time: f64) -> Stall {
    let seconds = |picoseconds: u64| picoseconds as f64 / 1e12;
    Stall {
        place: azekura_sim::stalls::name(stall.place),
        share: seconds(stall.stall) / threads_time,
        on_one_line: seconds(stall.on_hottest_line) / threads_time,
    }
}

/// Returns the T2, with pages that are installed by reference: in the paper's Java program, a page from
/// memory is an object.
fn paper_machine() -> Profile {
    let mut profile = Profile::t2();
    profile.costs.copy_byte.value = 0.0;
    profile.costs.copy_byte.source = Source::Reasoned(
        "in the paper's Java a page from memory is an object, and its installation stores a reference".into(),
    );
    profile
}

impl Report {
    /// Returns the results as text with one table per case: a line per cache, a column per number of
    /// processors.
    #[must_use]
    pub fn to_text(&self) -> String {
        simulated::text(&self.profile, &self.settings, &self.charts())
    }

    /// Returns the results as an HTML page with charts.
    #[must_use]
    pub fn to_html(&self) -> String {
        simulated::html(
            "The page cache on a simulated machine",
            &self.profile,
            &self.settings,
            &self.charts(),
        )
    }

    fn charts(&self) -> Vec<Chart> {
        let chart = |of_case: &[Point]| {
            let case = of_case.first().map_or("", |point| &point.case);
            let points: Vec<&Point> = of_case.iter().collect();
            Chart {
                title: format!("Millions of visits per second, {case} (Fig. 10)"),
                axis: "processors".into(),
                decimals: 2,
                lines: points.chunk_by(|a, b| a.cache == b.cache).map(line).collect(),
                waits: "Where threads waited for cache lines, with most processors (part of their time; on \
                    the worst line)"
                    .into(),
            }
        };
        self.points.chunk_by(|a, b| a.case == b.case).map(chart).collect()
    }
}

/// Returns the line of a cache over the numbers of processors.
fn line(points: &[&Point]) -> Line {
    let last = points.last();
    let share = |stall: &Stall| {
        let numbers = format!("{:>6.1}% {:>6.1}%", stall.share * 100.0, stall.on_one_line * 100.0);
        (numbers, stall.place.clone())
    };
    Line {
        name: points.first().map(|p| p.cache.clone()).unwrap_or_default(),
        points: points.iter().map(|p| (p.processors, p.rate / 1e6)).collect(),
        spreads: points.iter().map(|p| steady::spread(&p.runs)).collect(),
        note: last.map(|p| format!("{:.1} % hits", p.hit_ratio * 100.0)).unwrap_or_default(),
        waits: last.map_or_else(Vec::new, |p| {
            p.stalls.iter().filter(|stall| stall.share >= 0.01).map(share).collect()
        }),
    }
}
