//! The paper's Figs 10 and 12 on a simulated machine: as many processors as it has.
//!
//! The caches are the shipped ones and the rivals of this lab; what is simulated is the machine
//! (`azekura-sim`). Several cases, because the paper's "all pages resident in memory" can be read in two
//! ways: every page has a frame, so that the hand never moves; or every page is in memory but not in a frame,
//! so that a miss costs no I/O and the hand moves with each. Only the second can show what the paper says of
//! its hand, and with the paper's own pages per frame nearly every visit moves it.

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
use crate::progress::Progress;

/// Settings of the simulation.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The machine.
    pub profile: Profile,
    /// Numbers of processors.
    pub processors: Vec<usize>,
    /// The caches.
    pub kinds: Vec<Kind>,
    /// Frames.
    pub frames: usize,
    /// Pages per frame where not all have one: a case for each.
    pub pages_per_frame: Vec<f64>,
    /// Time on the machine before and while visits are counted.
    pub time: (Duration, Duration),
    /// Distribution of references over pages.
    pub skew: Skew,
    /// Time of a thread's work between two visits, in nanoseconds.
    pub draw_ns: u64,
    /// Lines that cost nothing.
    pub without: Vec<LineName>,
    /// Of all that is drawn.
    pub seed: u64,
}

/// A cache on one number of processors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The case.
    pub case: String,
    /// The cache.
    pub cache: String,
    /// Processors, and threads.
    pub processors: usize,
    /// Visits per second of the machine's time.
    pub rate: f64,
    /// Part of the visits that found their page.
    pub hit_ratio: f64,
    /// Accesses and turns of spins that were simulated.
    pub steps: u64,
    /// Places at which threads waited for cache lines, as parts of all their time.
    pub stalls: Vec<Stall>,
}

/// A place in the source where threads waited for cache lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// File and line.
    pub place: String,
    /// Part of all threads' time.
    pub share: f64,
    /// Of that, the part on one line.
    pub on_one_line: f64,
}

/// All of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The machine.
    pub profile: Profile,
    /// The settings, as text.
    pub settings: String,
    /// Rates.
    pub points: Vec<Point>,
}

/// Two thirds of the visits are hits, as in the paper's Fig. 7 with its larger buffers; and the paper's
/// 4,000,000 pages in 32,768 frames, where by its formula nearly none is.
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
/// Real visits between two looks at the clock.
const GROUP: usize = 64;
/// Places that a point names.
const PLACES: usize = 5;
/// The paper's threads draw their references as they go: `pow` in software's precision and two random
/// numbers, by Java 6, in order, at 1.2 GHz. Reasoned: some 1500 cycles.
const DRAW_NS: u64 = 1_200;

impl Simulated {
    /// The paper's machine, on 1, 2, 4, … processors up to `most`.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            profile: paper_machine(),
            processors: simulated::doublings(most),
            kinds: KINDS.into(),
            frames: 4096,
            pages_per_frame: PAGES_PER_FRAME.into(),
            time: (Duration::from_micros(100), Duration::from_micros(300)),
            skew: Skew::LITERAL_086,
            draw_ns: DRAW_NS,
            without: Vec::new(),
            seed: 1,
        }
    }

    /// The shipped pool on another machine: threads that do nothing but visit pages, of which a fifth gets
    /// four fifths of the references.
    #[must_use]
    pub fn on(profile: Profile, processors: Vec<usize>) -> Self {
        Self {
            profile,
            processors,
            kinds: vec![Kind::NbStriped, Kind::TwoRings, Kind::TwoRingsPeek],
            pages_per_frame: vec![PAGES_PER_FRAME[0]],
            skew: Skew::NAMED_80_20,
            draw_ns: 0,
            time: (Duration::from_micros(200), Duration::from_micros(200)),
            ..Self::new(1)
        }
    }

    /// Runs all of it.
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
                "{} frames of 8 KiB; {}, 20 % of the references in scans; {} ns to draw one; {:?} after \
                 {:?}; seed {}{}",
                self.frames,
                self.skew.name,
                self.draw_ns,
                self.time.1,
                self.time.0,
                self.seed,
                simulated::without(&self.without)
            ),
            profile: self.profile.clone(),
            points,
        })
    }

    /// Names, and pages.
    fn cases(&self) -> Vec<(String, u64)> {
        let from_memory = self.pages_per_frame.iter().map(|&per_frame| {
            let pages = (self.frames as f64 * per_frame) as u64;
            (format!("pages come from memory, {per_frame} per frame"), pages)
        });
        let resident = ("every page has a frame".to_owned(), self.frames as u64);
        std::iter::once(resident).chain(from_memory).collect()
    }

    /// Visits per second of real threads to the first of the caches, where every page has a frame.
    pub(crate) fn real(&self, threads: usize, time: Duration) -> f64 {
        let Some(kind) = self.kinds.first() else { return 0.0 };
        let cache: Arc<dyn PageCache> = kind.build(self.frames, Device::memory()).into();
        let pages = self.frames as u64;
        warm(&*cache, self.frames, pages, self.skew, self.seed);
        let (begin, mut visits) = (Instant::now() + time / 4, 0);
        let end = begin + time;
        let work = |thread: u64| {
            let cache = Arc::clone(&cache);
            let mut references = References::new(pages, self.skew, self.seed.wrapping_mul(1000) + thread);
            move || {
                let mut counted = 0_u64;
                // The clock is asked once in so many visits: on a machine it costs nothing, here more than a
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
        let cache: Arc<dyn PageCache> = kind.build(self.frames, Device::memory()).into();
        warm(&*cache, self.frames, pages, self.skew, self.seed);
        let before = cache.tally().misses;
        let (visits, all) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let profile = Rc::new(self.profile.clone());
        let mut simulation = Simulation::new(profile, processors, self.seed).without(&self.without);
        for thread in 0..processors as u64 {
            let (cache, visits, all) = (Arc::clone(&cache), Rc::clone(&visits), Rc::clone(&all));
            let ((warm, measured), draw) = (self.time, Work::Nanoseconds(self.draw_ns));
            let references = References::new(pages, self.skew, self.seed.wrapping_mul(1000) + thread);
            simulation.thread(move || {
                for page in references {
                    machine::works(draw);
                    assert_eq!(cache.visit(page), page, "the cache gave another page");
                    all.set(all.get() + 1);
                    let now = machine::current().expect("on a machine").now();
                    if now >= warm + measured {
                        break;
                    }
                    if now >= warm {
                        visits.set(visits.get() + 1);
                    }
                }
            });
        }
        let outcome = simulation.run()?;
        let threads_time = outcome.time.as_secs_f64() * processors as f64;
        Ok(Point {
            case: case.into(),
            cache: kind.name().into(),
            processors,
            rate: f64::from(visits.get()) / self.time.1.as_secs_f64(),
            hit_ratio: 1.0 - (cache.tally().misses - before) as f64 / f64::from(all.get().max(1)),
            steps: outcome.steps,
            stalls: outcome.stalls.iter().take(PLACES).map(|stall| named(stall, threads_time)).collect(),
        })
    }
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

/// The T2, with pages installed by reference: the paper's program is in Java, where a page from memory is an
/// object.
fn paper_machine() -> Profile {
    let mut profile = Profile::t2();
    profile.costs.copy_byte.value = 0.0;
    profile.costs.copy_byte.source = Source::Reasoned(
        "in the paper's Java a page from memory is an object, and its installation stores a reference".into(),
    );
    profile
}

impl Report {
    /// As tables, one per case: a line per cache, a column per number of processors.
    #[must_use]
    pub fn to_text(&self) -> String {
        simulated::text(&self.profile, &self.settings, &self.charts())
    }

    /// As a page with charts.
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

/// A cache on growing numbers of processors.
fn line(points: &[&Point]) -> Line {
    let last = points.last();
    let share = |stall: &Stall| {
        let numbers = format!("{:>6.1}% {:>6.1}%", stall.share * 100.0, stall.on_one_line * 100.0);
        (numbers, stall.place.clone())
    };
    Line {
        name: points.first().map(|p| p.cache.clone()).unwrap_or_default(),
        points: points.iter().map(|p| (p.processors, p.rate / 1e6)).collect(),
        note: last.map(|p| format!("{:.1} % hits", p.hit_ratio * 100.0)).unwrap_or_default(),
        waits: last.map_or_else(Vec::new, |p| {
            p.stalls.iter().filter(|stall| stall.share >= 0.01).map(share).collect()
        }),
    }
}
