//! Explores schedules: random ones, all schedules with a few interruptions, and schedules that stop a thread
//! forever at one of its accesses. A schedule that fails is shrunk and printed in columns.
//!
//! ```
//! # if !cfg!(feature = "sim") { return }
//! use azekura_base::sync::atomic::{AtomicU64, Ordering::SeqCst};
//! use azekura_sim::explore::{Scene, exhaust};
//! use std::sync::Arc;
//!
//! // A counter that loses increments: a read, then a write.
//! let failure = exhaust(2, || {
//!     let counter = Arc::new(AtomicU64::new(0));
//!     let mut scene = Scene::new();
//!     for _ in 0..2 {
//!         let counter = Arc::clone(&counter);
//!         scene.thread(move || counter.store(counter.load(SeqCst) + 1, SeqCst));
//!     }
//!     scene.check(move || match counter.load(SeqCst) {
//!         2 => Ok(()),
//!         other => Err(format!("{other} of 2")),
//!     });
//!     scene
//! })
//! .unwrap_err();
//! assert_eq!((failure.preemptions.len(), failure.reason.as_str()), (1, "1 of 2"));
//! ```

use crate::profile::Profile;
use crate::schedule::{Preemption, Schedule, Step};
use crate::simulation::{Outcome, Simulation, SimulationError};
use azekura_base::sync::machine::Access;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::rc::Rc;

/// Number of steps after which a run counts as endless.
const MAX_STEPS: u64 = 200_000;

/// Threads, and a condition that must hold when they have ended.
#[derive(Default)]
pub struct Scene {
    threads: Vec<Box<dyn FnOnce()>>,
    check: Option<Box<dyn FnOnce() -> Result<(), String>>>,
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scene").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl Scene {
    /// Returns a scene without threads.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a thread.
    pub fn thread(&mut self, body: impl FnOnce() + 'static) {
        self.threads.push(Box::new(body));
    }

    /// Sets the condition that must hold at the end.
    pub fn check(&mut self, check: impl FnOnce() -> Result<(), String> + 'static) {
        self.check = Some(Box::new(check));
    }

    fn run(self, schedule: Schedule, traced: bool, stop: Option<(usize, u64)>) -> Result<Outcome, String> {
        let mut simulation = Simulation::new(Rc::new(Profile::t2()), self.threads.len(), 1)
            .schedule(schedule)
            .max_steps(MAX_STEPS);
        if traced {
            simulation = simulation.traced();
        }
        if let Some((thread, access)) = stop {
            simulation = simulation.stop(thread, access);
        }
        self.threads.into_iter().for_each(|body| simulation.thread(body));
        let ended = catch_unwind(AssertUnwindSafe(|| simulation.run())).map_err(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a thread panicked").to_owned()
        })?;
        let outcome = ended.map_err(|error: SimulationError| error.to_string())?;
        self.check.map_or(Ok(()), |check| check())?;
        Ok(outcome)
    }
}

/// A schedule in which a scene fails.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The condition that failed, or the panic.
    pub reason: String,
    /// The smallest set of interruptions found that leads to the failure.
    pub preemptions: Vec<Preemption>,
    /// All accesses up to the failure.
    pub trace: Vec<Step>,
    /// Number of the schedule that failed; for random schedules, the seed of the run.
    pub found_by: u64,
}

impl std::error::Error for Failure {}

/// Width of a thread's column.
const COLUMN: usize = 44;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} (found by {}; {} interruptions)",
            self.reason,
            self.found_by,
            self.preemptions.len()
        )?;
        let threads = self.trace.iter().map(|step| step.thread + 1).max().unwrap_or(0);
        for thread in 0..threads {
            write!(f, "{:COLUMN$}", format!("thread {thread}"))?;
        }
        writeln!(f)?;
        for step in &self.trace {
            let text = format!("{} {}:{}", word(step.access), file(step.place), step.place.line());
            writeln!(f, "{:width$}{text}", "", width = step.thread * COLUMN)?;
        }
        Ok(())
    }
}

const fn word(access: Access) -> &'static str {
    match access {
        Access::Load => "load ",
        Access::Store => "store",
        Access::Swap => "swap ",
        Access::Add => "add  ",
    }
}

fn file(place: &Location<'static>) -> &'static str {
    place.file().rsplit('/').next().unwrap_or_default()
}

/// Runs a scene under `runs` random schedules, with seeds from `seed` on.
///
/// # Errors
///
/// The first [`Failure`], shrunk.
pub fn at_random(runs: u64, seed: u64, scene: impl Fn() -> Scene) -> Result<(), Box<Failure>> {
    for seed in seed..seed + runs {
        // Few interruptions find errors that need long uninterrupted runs, and many find the other errors.
        let one_in = 2 + seed % 30;
        let mut taken = Vec::new();
        let schedule = Schedule::Random { seed, one_in };
        if let Err(reason) = run_noting(&scene, schedule, &mut taken) {
            return Err(Box::new(shrink(&scene, taken, reason, seed)));
        }
    }
    Ok(())
}

/// Runs a scene under every schedule of at most `most` interruptions, beginning with those of the fewest.
/// Returns the number of schedules.
///
/// # Errors
///
/// The first [`Failure`], shrunk.
pub fn exhaust(most: usize, scene: impl Fn() -> Scene) -> Result<u64, Box<Failure>> {
    let mut runs = 0;
    for interruptions in 0..=most {
        exhaust_exactly(interruptions, &scene, &mut runs)?;
    }
    Ok(runs)
}

/// Runs every schedule with this number of interruptions. Each prefix of a schedule runs first, to find the
/// steps at which the next interruption is possible.
fn exhaust_exactly(
    interruptions: usize,
    scene: &impl Fn() -> Scene,
    runs: &mut u64,
) -> Result<(), Box<Failure>> {
    let mut plans = vec![Vec::new()];
    while let Some(plan) = plans.pop() {
        *runs += u64::from(plan.len() == interruptions);
        let outcome = match scene().run(Schedule::Preempted(plan.clone()), true, None) {
            Ok(outcome) => outcome,
            Err(reason) => return Err(Box::new(shrink(scene, plan, reason, *runs))),
        };
        // If the last interruption was impossible, the run equals that of a shorter plan.
        if plan.len() == interruptions || outcome.preemptions.len() < plan.len() {
            continue;
        }
        let first = plan.last().map_or(0, |last| last.step + 1);
        let threads: BTreeSet<usize> = outcome.trace.iter().map(|step| step.thread).collect();
        for step in (first..outcome.steps).rev() {
            plans.extend(threads.iter().map(|&to| [plan.as_slice(), &[Preemption { step, to }]].concat()));
        }
    }
    Ok(())
}

/// Results of stopping a thread at each of its accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Number of accesses at which the thread was stopped while the others ended.
    pub accesses: u64,
    /// Places of the last accesses before the stops, in order, without repetitions.
    pub places: Vec<&'static Location<'static>>,
}

impl Stopped {
    /// Returns `true` if the thread was stopped after an access in a file with a path that ends with `file`.
    #[must_use]
    pub fn was_in(&self, file: &str) -> bool {
        self.places.iter().any(|place| place.file().ends_with(file))
    }
}

/// Stops thread 0 of a scene before its first access, then in another run before its second, and so on
/// (hazard G10). The other threads must end while it is stopped. Then thread 0 continues and must end too,
/// and the scene's condition must hold.
///
/// # Errors
///
/// The first access at which the other threads could not end, or at which the condition failed.
pub fn stop_everywhere(scene: impl Fn() -> Scene) -> Result<Stopped, String> {
    stop_everywhere_under(0..0, scene)
}

/// Stops thread 0 as [`stop_everywhere`] does, and at each access also under each of these random schedules.
///
/// # Errors
///
/// The errors of [`stop_everywhere`].
pub fn stop_everywhere_under(
    seeds: std::ops::Range<u64>,
    scene: impl Fn() -> Scene,
) -> Result<Stopped, String> {
    let mut places: Vec<&'static Location<'static>> = Vec::new();
    for access in 0.. {
        let mut has_stopped = false;
        let random = seeds.clone().map(|seed| Schedule::Random { seed, one_in: 2 + seed % 30 });
        for schedule in std::iter::once(Schedule::ByTime).chain(random) {
            let outcome = scene().run(schedule.clone(), false, Some((0, access)));
            let outcome = outcome.map_err(|reason| {
                format!("thread 0 stopped before access {access}, {schedule:?}: {reason}")
            })?;
            has_stopped |= outcome.has_stopped;
            places.extend(outcome.stopped_at.filter(|at| !places.contains(at)));
        }
        if !has_stopped {
            return Ok(Stopped { accesses: access, places });
        }
    }
    unreachable!("a thread ends, or the steps do")
}

/// Runs a scene, and returns the list of interruptions in `taken` even if a thread panics.
fn run_noting(
    scene: &impl Fn() -> Scene,
    schedule: Schedule,
    taken: &mut Vec<Preemption>,
) -> Result<(), String> {
    let result = scene().run(schedule, false, None);
    *taken = crate::handle::last_preemptions();
    result.map(drop)
}

/// Removes interruptions while the scene still fails.
fn shrink(scene: &impl Fn() -> Scene, plan: Vec<Preemption>, reason: String, found_by: u64) -> Failure {
    let (mut plan, mut reason) = (plan, reason);
    let mut chunk = plan.len().div_ceil(2);
    while chunk > 0 {
        let mut at = 0;
        while at < plan.len() {
            let mut shorter = plan.clone();
            shorter.drain(at..(at + chunk).min(plan.len()));
            match scene().run(Schedule::Preempted(shorter.clone()), false, None) {
                Err(why) => (plan, reason) = (shorter, why),
                Ok(_) => at += chunk,
            }
        }
        chunk /= 2;
    }
    let again = scene().run(Schedule::Preempted(plan.clone()), true, None);
    debug_assert!(again.is_err(), "one schedule, one run");
    Failure { reason, preemptions: plan, trace: crate::handle::last_trace(), found_by }
}
