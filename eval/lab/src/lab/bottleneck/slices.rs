//! Cost of recording, by short slices of one run: Table 4 of the paper with an interval of tenths of a point.
//!
//! Whole runs with and without a recording, one after the other, also differ by other load of the machine's
//! host in those seconds: forty pairs of them give the loss to two points or three. Here one crowd is served
//! without a break and one recording is suspended and resumed ([`azekura_trace::suspend`]), so that the
//! compared slices are a tenth of a second apart.
//!
//! 1. The crowd is served; the processor time of each page is measured for a while, so that pages can be
//!    weighed: a slice with more of the heavy ones has done more, not less.
//! 2. A recording begins, and runs in.
//! 3. Blocks of four slices: without, with, with, without, and in every other block the other way round. A
//!    rate that rises or falls evenly over a block is in both alike. Of each slice the first 20 ms do not
//!    count: the collector comes round in that time, so its work for the events of a slice falls into as much
//!    measured time as they do.
//! 4. A block's ratio is that of work done per second, with over without. Over all blocks: the middle of all
//!    means of two, which a disturbed block does not move, and the mean, which it does (`interval`).
//!
//! *Control* does all this without any recording: its loss is zero, so the measured loss is the method's
//! error.
//!
//! **Not seen**, because one recording goes over all slices: its start (threads allocate their rings, and the
//! first executions of each operation are all timed), the encoding of what stays in memory at its end,
//! closing a file. Whole runs see the first (`--pairs`).

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

/// Time at the begin of each slice that is not measured.
const SETTLED: Duration = Duration::from_millis(20);
/// Measured time of a slice.
const MEASURED: Duration = Duration::from_millis(80);
/// Time in which pages are weighed.
const WEIGHED: Duration = Duration::from_millis(400);
/// From a recording's start to its first slice: by then operations are timed as rarely as in the long run.
const RUN_IN: Duration = Duration::from_millis(700);
/// Blocks of one run. Then the next case has its turn, so that slow minutes fall on all.
const BLOCKS: usize = 10;

/// Cost of recording in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Sliced {
    /// The case.
    #[serde(flatten)]
    pub point: Point,
    /// The operations that the recording distinguished; `None`: nothing was recorded in any slice.
    pub probes: Option<Probes>,
    /// Blocks of four slices.
    pub blocks: usize,
    /// Mean pages per second and processors in use, in slices without.
    pub without: (f64, f64),
    /// The same, in slices with.
    pub with: (f64, f64),
    /// Events recorded per second of recording.
    pub events: f64,
    /// Events lost.
    pub lost: u64,
    /// Part of the work per second that was lost, the middle of all means of two blocks, and its 95 %
    /// interval.
    pub loss: Loss,
    /// The same by the mean, which disturbed blocks move.
    pub mean: Loss,
    /// As `loss`, of pages regardless of their weight.
    pub pages: Loss,
    /// As `loss`, of work per processor time of the process: the additional cost of recording.
    pub cpu: Loss,
    /// Processors that other processes used meanwhile.
    pub others: f64,
}

/// A part that was lost, and its 95 % interval where there are enough blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Loss {
    /// The part.
    pub part: f64,
    /// From, to.
    pub interval: Option<(f64, f64)>,
}

impl From<(f64, Option<(f64, f64)>)> for Loss {
    fn from((part, interval): (f64, Option<(f64, f64)>)) -> Self {
        Self { part, interval }
    }
}

/// Measures what recording costs at the heaviest load without a limit of threads: the latch before the cure
/// and after it, every operation on a row told apart and pages only, and the control. `settings.blocks`
/// blocks of each.
///
/// # Errors
///
/// The store's and the recorder's.
pub fn sliced(settings: &Settings, progress: &Progress) -> Result<Vec<Sliced>, BenchError> {
    progress.begin("filling the bookstore", 1);
    let (db, sequences) = super::store::open(settings)?;
    let cases = cases(settings);
    let rounds = settings.blocks.div_ceil(BLOCKS).max(1);
    progress.begin("what recording costs, in slices", (rounds * cases.len()) as u64);
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

/// A slice, measured.
#[derive(Debug, Clone, Copy)]
struct Slice {
    seconds: f64,
    pages: f64,
    /// Processor seconds of its pages without a recording.
    work: f64,
    /// Processor seconds of the process.
    cpu: f64,
}

/// Four slices.
#[derive(Debug, Clone, Copy)]
struct Block {
    without: [Slice; 2],
    with: [Slice; 2],
}

impl Block {
    /// The logarithm of with over without.
    fn ratio(&self, of: impl Fn(&Slice) -> f64) -> f64 {
        let [without, with] =
            [self.without, self.with].map(|two| two.iter().map(|s| of(s).ln()).sum::<f64>());
        (with - without) / 2.0
    }
}

/// Some blocks of one run.
#[derive(Debug)]
struct Round {
    blocks: Vec<Block>,
    /// Time for which the recording was not suspended.
    recorded: Duration,
    events: u64,
    lost: u64,
    busy: Busy,
}

impl Round {
    /// Serves the crowd and takes its blocks; `records`: not in the control.
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

/// Weighs the pages, with the recording suspended.
fn weigh(phase: &Phase, served: &[Arc<Served>], switch: &mut Switch) -> Result<[f64; KINDS], BenchError> {
    switch.turn(false)?;
    phase.weigh();
    sleep(WEIGHED);
    phase.go_on();
    Ok(weights(served.iter().map(Arc::as_ref)))
}

/// Takes slices.
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

    /// Now, the process's processor time, and the pages so far.
    fn look(&self) -> (Instant, Duration, [u64; KINDS]) {
        (Instant::now(), processor_time(), pages(self.served.iter().map(Arc::as_ref)))
    }
}

/// A recording that is suspended and resumed; in the control none.
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
            azekura_trace::start(options("what recording costs, in slices".to_owned()))
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

    /// The recording, and for how long it was not suspended.
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
            // Another error occurred; that one is returned.
            let _ = azekura_trace::stop();
        }
    }
}

impl Sliced {
    fn of(point: Point, probes: Option<Probes>, runs: &[Round]) -> Self {
        let blocks: Vec<Block> = runs.iter().flat_map(|run| run.blocks.iter().copied()).collect();
        // A slice without pages gives no ratio.
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

    /// A slice of a tenth of a second at this number of pages per second, each of a millisecond.
    fn slice(rate: f64) -> Slice {
        Slice { seconds: 0.1, pages: rate / 10.0, work: rate / 10_000.0, cpu: 0.2 }
    }

    /// Twenty blocks on a machine that becomes slower by a hundredth from slice to slice; recording takes
    /// three.
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
    fn slices_in_which_nothing_was_served_say_nothing() {
        let mut spoiled = round();
        spoiled.blocks[3].with[1] = Slice { pages: 0.0, work: 0.0, ..slice(1.0) };
        let row = sliced_of(&[spoiled]);
        assert_eq!(row.blocks, 19);
        assert!((row.loss.part - 0.03).abs() < 1e-9);
        assert_eq!(sliced_of(&[]).loss, Loss { part: 0.0, interval: None });
    }
}
