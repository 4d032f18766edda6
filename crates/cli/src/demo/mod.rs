//! The demo: a bank on every core that is killed at random moments and audited after each kill.
//!
//! 1. The parent creates a store of accounts and closes it.
//! 2. It starts itself again as a *child*, which transfers money in many threads and reports each durable
//!    transfer to the parent through a pipe.
//! 3. It kills the child with SIGKILL at a random moment and reads the pipe to its end. After every second
//!    kill another child is started and killed while it recovers.
//! 4. It opens the store, which recovers it, and audits it. Then the next round begins, on the same store.
//!
//! | module | noun |
//! |---|---|
//! | `bank` | accounts and transfers in the store |
//! | `protocol` | messages of the child |
//! | `child` | the child's threads |
//! | `victim` | the parent's handle of a child |
//! | `audit` | the expected content, and the comparison with the actual content |
//! | `round` | one round, from the start of the child to the verdict |
//! | `report` | the output |

mod audit;
mod bank;
pub(crate) mod child;
mod protocol;
mod report;
mod round;
mod victim;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::arguments::StoreArguments;
use crate::progress;
use report::Report;
use round::Rounds;

/// Settings of the demo.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) store: StoreArguments,
    pub(crate) accounts: u32,
    pub(crate) rounds: u16,
    /// Longest time from the start of a child to its kill.
    pub(crate) round: Duration,
    pub(crate) threads: u16,
    pub(crate) in_flight: usize,
    pub(crate) seed: u64,
    /// File for the recording of the child.
    pub(crate) trace: Option<PathBuf>,
}

/// Runs the demo in `path`, which has no store yet; returns whether all audits passed.
///
/// Stops after the first round with a problem, so that the store stays unchanged. The result shows the
/// problem also if stdout fails.
pub(crate) fn run(settings: &Settings, path: &Path, out: &mut dyn Write) -> Result<bool> {
    let mut report = Report::new(out);
    report.begin(settings, path)?;
    let begun = Instant::now();
    let db = settings.store.open_or_create(path)?;
    bank::open_accounts(&db, settings.accounts)?;
    db.close()?;
    report.accounts_opened(settings, begun.elapsed())?;

    let activity = progress::activity();
    let mut has_problems = false;
    let mut rounds = Rounds::new(settings.clone(), path, StdRng::seed_from_u64(settings.seed));
    for number in 1..=settings.rounds {
        let round = rounds.run(number, &|doing| {
            activity.set_message(format!("round {number} of {}: {doing}", settings.rounds));
        })?;
        let printed = activity.suspend(|| report.round(&round));
        has_problems = !round.verdict.problems.is_empty();
        if has_problems {
            break;
        }
        printed?;
    }
    activity.finish_and_clear();
    let ended = report.end(settings, begun.elapsed());
    if has_problems { Ok(false) } else { Ok(ended?) }
}
