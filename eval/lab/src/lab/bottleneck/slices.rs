//! Cost of recording, by short intervals (*slices*) of one run: Table 4 of the paper, with confidence
//! intervals of tenths of a percentage point.
//!
//! Consecutive whole runs with and without a recording also differ because the load of the machine's host
//! changes. Forty pairs of them determine the loss only to two or three percentage points. Here the users are
//! served without a break, and one recording is suspended and resumed ([`azekura_trace::suspend`]). The
//! compared slices are thus 0.1 s apart.
//!
//! 1. The users are served. For some time the processor time of each page is measured, to give each kind of
//!    page a weight: a slice with more of the expensive pages did more work.
//! 2. A recording begins and reaches its steady state.
//! 3. Blocks of four slices are measured: without, with, with, without; every other block in the opposite
//!    order. A linear trend during a block then cancels out. The first 20 ms of each slice are not measured.
//!    The collector needs about that time for a cycle, so that the measured time contains its work for one
//!    slice of events.
//! 4. The ratio of a block is work per second with recording, divided by work per second without. The result
//!    over all blocks is the Hodges–Lehmann estimator, which disturbed blocks do not affect, and the mean
//!    (`interval`).
//!
//! The *control* makes the same measurements without any recording. Its true loss is zero, so its measured
//! loss is the error of the method.
//!
//! **Not measured**, because one recording spans all slices: the start of a recording (threads allocate their
//! rings, and the first executions of each operation are all timed), and its end (encoding the events in
//! memory, closing a file). Whole runs include the start (`--pairs`).

use super::front::Probes;
use super::interval::{mean, middle};
use super::measure::{Setup, options, run_by};
use super::served::{KINDS, Served, pages, weights};
use super::settings::{Point, Settings};
use super::shop::Sequences;
use super::users::Phase;
use crate::busy::{Busy, Watch};
use crate::error::{BenchError, EngineError};
use crate::progress::Progress;
use azekura::Database;
use azekura_base::sync::processor_time;
use azekura_base::sync::thread::sleep;
use azekura_base::sync::time::Instant;
use azekura_trace::{Recording, Suspension, suspend};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Time at the beginning of each slice that is not measured: one cycle of the collector.
const SETTLED: Duration = Duration::from_millis(20);
/// Measured time of a slice.
const MEASURED: Duration = Duration::from_millis(80);
/// Time for which the processor time of pages is measured.
const WEIGHED: Duration = Duration::from_millis(400);
/// Time from the start of a recording to its first slice: until operations are sampled as rarely as in a long
/// run.
const RUN_IN: Duration = Duration::from_millis(700);
/// Number of blocks of one run. The cases then take turns, so that slow minutes affect all of them.
const BLOCKS: usize = 10;

/// Cost of recording in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Sliced {
    /// The measured combination.
    #[serde(flatten)]
    pub point: Point,
    /// The operations that the recording distinguished; `None` for the control, which records nothing.
    pub probes: Option<Probes>,
    /// Number of blocks of four slices.
    pub blocks: usize,
    /// Mean pages per second and mean number of used processors, in slices without recording.
    pub without: (f64, f64),
    /// Mean pages per second and mean number of used processors, in slices with recording.
    pub with: (f64, f64),
    /// Events recorded per second of recording.
    pub events: f64,
    /// Number of lost events.
    pub lost: u64,
    /// Lost part of the work per second, by the Hodges–Lehmann estimator over the blocks.
    pub loss: Loss,
    /// Lost part of the work per second, by the mean, which disturbed blocks affect.
    pub mean: Loss,
    /// Lost part of the pages per second, whatever their weight.
    pub pages: Loss,
    /// Lost part of the work per processor time of the process: the additional processor time of recording.
    pub cpu: Loss,
    /// Average number of processors that other processes used.
    pub others: f64,
}

/// A lost part, and its 95 % confidence interval if there are enough blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Loss {
    /// The lost part: 0.02 is two percent.
    pub part: f64,
    /// Lower and upper end of the interval.
    pub interval: Option<(f64, f64)>,
}

impl From<(f64, Option<(f64, f64)>)> for Loss {
    fn from((part, interval): (f64, Option<(f64, f64)>)) -> Self {
        Self { part, interval }
    }
}

/// Measures the cost of recording at the heaviest load, without an admission limit. There are five cases: the
/// latch before the change and after it, each with recordings of all row operations and of pages only; and
/// the control. Measures `settings.blocks` blocks of each.
///
/// # Errors
///
/// An error of the store or of the recorder.
pub fn sliced(settings: &Settings, progress: &Progress) -> Result<Vec<Sliced>, BenchError> {
    progress.begin("filling the bookstore", 1);
    let (db, sequences) = super::store::open(settings)?;
    let cases = cases(settings);
    let rounds = settings.blocks.div_ceil(BLOCKS).max(1);
    progress.begin("cost of recording, in slices", (rounds * cases.len()) as u64);
    let mut runs: Vec<Vec<Round>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        let blocks = (settings.blocks - round * BLOCKS).min(BLOCKS);
        for (at, (point, probes)) in cases.iter().enumerate() {
            let setup = settings.setup(*point, Duration::ZERO);
            let setup = Setup { probes: probes.unwrap_or(Probes::Rows), ..setup };
            runs[at].push(Round::run(&db, &sequences, &setup, probes.is_some(), blocks)?);
            progress.at((round * cases.len() + at + 1) as u64);
        }
    }
    db.close().map_err(|e| EngineError::failed("closing the store", e))?;
    progress.finish();
    Ok(cases.into_iter().zip(&runs).map(|((point, probes), runs)| Sliced::of(point, probes, runs)).collect())
}

fn cases(settings: &Settings) -> Vec<(Point, Option<Probes>)> {
    let [before, after] = [settings.before, super::front::search::Latch::Word].map(|latch| Point {
        latch,
        processors: settings.all_processors(),
        limit: None,
        users: settings.heaviest(),
    });
    let each = |point| [(point, Some(Probes::Rows)), (point, Some(Probes::Pages))];
    each(before).into_iter().chain(each(after)).chain([(after, None)]).collect()
}

/// Measured values of one slice.
#[derive(Debug, Clone, Copy)]
struct Slice {
    seconds: f64,
    pages: f64,
    /// Weight of the served pages: the processor seconds that they need without a recording.
    work: f64,
    /// Processor seconds that the process used.
    cpu: f64,
}

/// Four slices, two with recording and two without.
#[derive(Debug, Clone, Copy)]
struct Block {
    without: [Slice; 2],
    with: [Slice; 2],
}

impl Block {
    /// Returns the logarithm of the ratio of the slices with recording to those without.
    fn ratio(&self, of: impl Fn(&Slice) -> f64) -> f64 {
        let [without, with] =
            [self.without, self.with].map(|two| two.iter().map(|s| of(s).ln()).sum::<f64>());
        (with - without) / 2.0
    }
}

/// Blocks of one run.
#[derive(Debug)]
struct Round {
    blocks: Vec<Block>,
    /// Time for which the recording was active.
    recorded: Duration,
    events: u64,
    lost: u64,
    busy: Busy,
}

impl Round {
    /// Serves the users and measures the blocks; `records` is false for the control.
    fn run(
        db: &Database,
        sequences: &Arc<Sequences>,
        setup: &Setup,
        records: bool,
        blocks: usize,
    ) -> Result<Self, BenchError> {
        let served: Vec<Arc<Served>> = (0..setup.crowd.connections).map(|_| Arc::default()).collect();
        run_by(db, sequences, setup, &served, |phase| {
            sleep(setup.warm_up);
            let mut switch = Switch::start(records)?;
            let taker = Taker { served: &served, weights: weigh(phase, &served, &mut switch)? };
            switch.turn(true)?;
            sleep(RUN_IN);
            let watch = Watch::begin();
            let blocks =
                (0..blocks).map(|at| taker.block(&mut switch, at % 2 == 1)).collect::<Result<_, _>>()?;
            let (_, busy) = watch.end();
            let (recording, recorded) = switch.stop()?;
            let (events, lost) = recording.map_or((0, 0), |recording| (recording.events(), recording.lost()));
            Ok(Self { blocks, recorded, events, lost, busy })
        })
    }
}

/// Measures the weights of the pages, while the recording is suspended.
fn weigh(phase: &Phase, served: &[Arc<Served>], switch: &mut Switch) -> Result<[f64; KINDS], BenchError> {
    switch.turn(false)?;
    phase.weigh();
    sleep(WEIGHED);
    phase.go_on();
    Ok(weights(served.iter().map(Arc::as_ref)))
}

/// Measures slices during a run.
struct Taker<'s> {
    served: &'s [Arc<Served>],
    weights: [f64; KINDS],
}

impl Taker<'_> {
    fn block(&self, switch: &mut Switch, with_first: bool) -> Result<Block, BenchError> {
        let [a, b, c, d] =
            [with_first, !with_first, !with_first, with_first].map(|on| self.slice(switch, on));
        let (outer, inner) = ([a?, d?], [b?, c?]);
        let (without, with) = if with_first { (inner, outer) } else { (outer, inner) };
        Ok(Block { without, with })
    }

    fn slice(&self, switch: &mut Switch, on: bool) -> Result<Slice, BenchError> {
        switch.turn(on)?;
        sleep(SETTLED);
        let before = self.look();
        sleep(MEASURED);
        let after = self.look();
        let (mut pages, mut work) = (0, 0.0);
        for (at, weight) in self.weights.into_iter().enumerate() {
            let served = after.2[at] - before.2[at];
            pages += served;
            work += served as f64 * weight;
        }
        let seconds = (after.0 - before.0).as_secs_f64();
        let cpu = after.1.saturating_sub(before.1).as_secs_f64();
        Ok(Slice { seconds, pages: pages as f64, work, cpu })
    }

    /// Returns the time, the processor time of the process, and the pages served so far.
    fn look(&self) -> (Instant, Duration, [u64; KINDS]) {
        (Instant::now(), processor_time(), pages(self.served.iter().map(Arc::as_ref)))
    }
}

/// A recording that can be suspended and resumed; no recording in the control.
struct Switch {
    records: bool,
    suspended: Option<Suspension>,
    resumed: Instant,
    recorded: Duration,
    is_over: bool,
}

impl Switch {
    fn start(records: bool) -> Result<Self, BenchError> {
        if records {
            azekura_trace::start(options("cost of recording, in slices".to_owned()))
                .map_err(|e| EngineError::failed("starting to record", e))?;
        }
        let (resumed, recorded) = (Instant::now(), Duration::ZERO);
        Ok(Self { records, suspended: None, resumed, recorded, is_over: !records })
    }

    fn turn(&mut self, on: bool) -> Result<(), BenchError> {
        match (on, self.suspended.is_some()) {
            _ if !self.records => {}
            (true, true) => (self.suspended, self.resumed) = (None, Instant::now()),
            (false, false) => {
                self.recorded += self.resumed.elapsed();
                let ended = || EngineError::failed("recording", "it ended by itself");
                self.suspended = Some(suspend().ok_or_else(ended)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends the recording. Returns it with the time for which it was active.
    fn stop(mut self) -> Result<(Option<Recording>, Duration), BenchError> {
        self.turn(false)?;
        if std::mem::replace(&mut self.is_over, true) {
            return Ok((None, self.recorded));
        }
        let recording = azekura_trace::stop().map_err(|e| EngineError::failed("ending the recording", e))?;
        Ok((Some(recording), self.recorded))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if !self.is_over {
            // `drop` runs without `stop` only after another error, which the caller returns.
            let _ = azekura_trace::stop();
        }
    }
}

impl Sliced {
    fn of(point: Point, probes: Option<Probes>, runs: &[Round]) -> Self {
        let blocks: Vec<Block> = runs.iter().flat_map(|run| run.blocks.iter().copied()).collect();
        // A slice without pages has no finite ratio.
        let ratios = |of: &dyn Fn(&Slice) -> f64| -> Vec<f64> {
            blocks.iter().map(|block| block.ratio(of)).filter(|ratio| ratio.is_finite()).collect()
        };
        let work = ratios(&|s| s.work / s.seconds);
        let mean_of = |arm: &dyn Fn(&Block) -> [Slice; 2], of: &dyn Fn(&Slice) -> f64| {
            let slices: Vec<Slice> = blocks.iter().flat_map(arm).collect();
            slices.iter().map(of).sum::<f64>() / slices.iter().map(|s| s.seconds).sum::<f64>().max(1e-9)
        };
        let rates =
            |arm: &dyn Fn(&Block) -> [Slice; 2]| (mean_of(arm, &|s| s.pages), mean_of(arm, &|s| s.cpu));
        let recorded: f64 = runs.iter().map(|run| run.recorded.as_secs_f64()).sum();
        Self {
            point,
            probes,
            blocks: work.len(),
            without: rates(&|block| block.without),
            with: rates(&|block| block.with),
            events: runs.iter().map(|run| run.events as f64).sum::<f64>() / recorded.max(1e-9),
            lost: runs.iter().map(|run| run.lost).sum(),
            loss: middle(&work).into(),
            mean: mean(&work).into(),
            pages: middle(&ratios(&|s| s.pages / s.seconds)).into(),
            cpu: middle(&ratios(&|s| s.work / s.cpu)).into(),
            others: runs.iter().map(|run| run.busy.others).sum::<f64>() / runs.len().max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::bottleneck::front::search::Latch;

    /// Returns a slice of 0.1 s with `rate` pages per second and 1 ms of work for each page.
    fn slice(rate: f64) -> Slice {
        Slice { seconds: 0.1, pages: rate / 10.0, work: rate / 10_000.0, cpu: 0.2 }
    }

    /// Returns twenty blocks on a machine that becomes 1 % slower from slice to slice; recording costs 3 %.
    fn round() -> Round {
        let mut rate = 20_000.0;
        let mut next = |part: f64| {
            rate *= 0.99;
            slice(rate * part)
        };
        let blocks = (0..20).map(|at| {
            let (outer, inner) = if at % 2 == 1 { (0.97, 1.0) } else { (1.0, 0.97) };
            let [a, b, c, d] = [outer, inner, inner, outer].map(&mut next);
            let (without, with) = if at % 2 == 1 { ([b, c], [a, d]) } else { ([a, d], [b, c]) };
            Block { without, with }
        });
        let blocks = blocks.collect();
        Round { blocks, recorded: Duration::from_secs(4), events: 800, lost: 3, busy: Busy::default() }
    }

    fn sliced_of(runs: &[Round]) -> Sliced {
        let point = Point { latch: Latch::Word, processors: 2, limit: None, users: 7 };
        Sliced::of(point, Some(Probes::Rows), runs)
    }

    #[test]
    fn a_machine_that_becomes_slower_all_the_time_moves_no_loss() {
        let row = sliced_of(&[round(), round()]);
        for loss in [row.loss, row.mean, row.pages, row.cpu] {
            let (low, high) = loss.interval.expect("forty blocks");
            assert!((loss.part - 0.03).abs() < 1e-9 && high - low < 1e-9, "{loss:?}");
        }
        assert_eq!((row.blocks, row.lost), (40, 6));
        assert!((row.events - 200.0).abs() < 1e-9);
        assert!(row.without.0 > row.with.0 && (row.with.1 - 2.0).abs() < 1e-9);
    }

    #[test]
    fn slices_without_requests_are_not_compared() {
        let mut spoiled = round();
        spoiled.blocks[3].with[1] = Slice { pages: 0.0, work: 0.0, ..slice(1.0) };
        let row = sliced_of(&[spoiled]);
        assert_eq!(row.blocks, 19);
        assert!((row.loss.part - 0.03).abs() < 1e-9);
        assert_eq!(sliced_of(&[]).loss, Loss { part: 0.0, interval: None });
    }
}
