//! A long run on far memory while memory servers are restarted or paused and connections are cut. Checks that
//! every byte is right.
//!
//! | module | noun |
//! |---|---|
//! | [`work`] | programs: random reads, writes and discards, compared with a plain copy |
//! | `relay` | connections that can be cut |
//! | [`report`] | results |
//!
//! The run consists of *stretches*, which alternate between the protections (two copies, a spill file) and
//! draw policies and page sizes. Two programs use the same servers. With two copies, the next fault waits
//! until every page has two copies again, because otherwise bytes could really be lost. A spill file has all
//! pages, so its faults may follow each other. Faults, servers and times are random; the report contains the
//! seed of each stretch.

mod relay;
pub mod report;
pub mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use azekura_far::Policy;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

use self::relay::Relay;
use self::report::{Report, Stretch};
use self::work::{LastState, Program, Setting};
use super::far_kills::Guard;
use super::server_process::ServerProcess;
use crate::progress::{Progress, ms};

/// Longest stretch, so that a run has many stretches.
const LONGEST: Duration = Duration::from_secs(20);
/// Time after which a program that waits for a page, or for missing copies of pages, counts as hanging.
const HANGS: Duration = Duration::from_secs(120);
/// Time without an answer after which a server counts as lost: longer than any pause of a server.
const STALL: Duration = Duration::from_secs(4);
/// Memory of each server.
const CAPACITY: &str = "128M";
/// Number of concurrent programs.
const PROGRAMS: u64 = 2;

/// Settings of the lab.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Path of this executable, which also runs as memory server.
    pub program: PathBuf,
    /// Total time.
    pub time: Duration,
    /// Seed of the first stretch; each later stretch adds 1.
    pub seed: u64,
}

/// A stretch could not be made, for a reason other than far memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoakError {
    /// A server or its relay could not be started or signaled.
    #[error("a memory server on this machine")]
    Server(#[from] std::io::Error),
    /// The far memory of a program could not be created.
    #[error("far memory")]
    Memory(#[from] azekura_far::FarError),
}

/// A server with the relay in front of it.
struct Lender {
    server: ServerProcess,
    relay: Relay,
}

/// A fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// The server is killed and replaced by an empty one.
    Restart,
    /// The server is stopped for up to 600 ms.
    Pause,
    /// All connections of the server are cut.
    Cut,
}

impl Lab {
    /// Runs stretches until the time is over or a stretch fails.
    ///
    /// # Errors
    ///
    /// [`SoakError`]: a stretch could not be started. Later failures are in the report. Programs that hang
    /// remain, with their servers, until this process ends. If pages are lost, far memory ends this process
    /// with a message, and its servers end with it.
    pub fn run(&self, progress: &Progress) -> Result<Report, SoakError> {
        let since = Instant::now();
        progress.begin("servers restarted, stopped, cut off", ms(self.time));
        let length = (self.time / 2).min(LONGEST);
        let mut report = Report::default();
        for number in 0.. {
            let left = self.time.saturating_sub(since.elapsed());
            if number >= 2 && left.is_zero() {
                break;
            }
            let stretch = self.stretch(number, length.min(left.max(length / 4)))?;
            let is_well = stretch.is_well();
            report.stretches.push(stretch);
            progress.at(ms(since.elapsed()));
            if !is_well {
                break;
            }
        }
        Ok(report)
    }

    fn stretch(&self, number: u64, length: Duration) -> Result<Stretch, SoakError> {
        let seed = self.seed + number;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let guard = if number.is_multiple_of(2) { Guard::Copies } else { Guard::Spill };
        let servers = if guard == Guard::Copies { rng.random_range(2..=3) } else { rng.random_range(1..=2) };
        let policy = *Policy::ALL.choose(&mut rng).unwrap_or(&Policy::Simple);
        let page = *[4 << 10, 16 << 10, 64 << 10].choose(&mut rng).unwrap_or(&4096);
        let mut lenders = (0..servers).map(|_| self.lender()).collect::<Result<Vec<_>, _>>()?;
        let addresses: Vec<String> = lenders.iter().map(|lender| lender.relay.address()).collect();
        let ends = Arc::new(AtomicBool::new(false));
        let states: Vec<Arc<LastState>> = (0..PROGRAMS).map(|_| Arc::default()).collect();
        let mut stretch = Stretch::new(seed, guard, policy, page, servers);
        let setting = |own| Setting { seed: seed << 8 | own, guard, policy, page, stall: STALL };
        let new = |own| Program::new(&setting(own), &addresses, &std::env::temp_dir());
        let programs = (0..PROGRAMS).map(new).collect::<Result<Vec<_>, _>>()?;
        let working: Vec<_> = programs
            .into_iter()
            .zip(&states)
            .map(|(program, state)| {
                let (state, ends) = (Arc::clone(state), Arc::clone(&ends));
                thread::spawn(move || program.work(&state, &ends))
            })
            .collect();
        let disturbed = self.disturb(&mut rng, guard, &mut lenders, &states, length, &mut stretch);
        // Relaxed: no other data depends on the flag.
        ends.store(true, Relaxed);
        let hangs =
            stretch.hangs || (disturbed.is_ok() && !until(|| working.iter().all(JoinHandle::is_finished)));
        stretch.hangs = hangs;
        if disturbed.is_ok() && !hangs {
            for program in working {
                match program.join() {
                    Ok(done) => stretch.add(&done),
                    Err(_) => stretch.wrong.push("a program panicked".into()),
                }
            }
        } else {
            // The hanging programs keep their servers: without servers they would end this process before it
            // has reported its results.
            std::mem::forget(lenders);
        }
        disturbed.map(|()| stretch)
    }

    fn lender(&self) -> std::io::Result<Lender> {
        let server = ServerProcess::start(&self.program, CAPACITY)?;
        let relay = Relay::new(server.address.clone())?;
        Ok(Lender { server, relay })
    }

    /// Injects faults until the time is over.
    fn disturb(
        &self,
        rng: &mut Xoshiro256PlusPlus,
        guard: Guard,
        lenders: &mut [Lender],
        states: &[Arc<LastState>],
        length: Duration,
        stretch: &mut Stretch,
    ) -> Result<(), SoakError> {
        let since = Instant::now();
        while since.elapsed() < length && !stretch.hangs {
            thread::sleep(Duration::from_millis(rng.random_range(0..400)));
            let act = *[Act::Restart, Act::Pause, Act::Cut].choose(rng).unwrap_or(&Act::Cut);
            let lender = &mut lenders[rng.random_range(0..stretch.servers)];
            let before: u64 = states.iter().map(|state| state.disturbances()).sum();
            match act {
                Act::Restart => {
                    // The assignment drops the old server, which kills it.
                    lender.server = ServerProcess::start(&self.program, CAPACITY)?;
                    lender.relay.leads_to(lender.server.address.clone());
                    lender.relay.cut();
                    stretch.restarts += 1;
                }
                Act::Pause => {
                    lender.server.signal(Signal::STOP)?;
                    thread::sleep(Duration::from_millis(rng.random_range(0..600)));
                    lender.server.signal(Signal::CONT)?;
                    stretch.pauses += 1;
                }
                Act::Cut => {
                    lender.relay.cut();
                    stretch.cuts += 1;
                }
            }
            if guard == Guard::Copies {
                // Waits until all programs have noticed the fault (a pause may remain unnoticed) and all
                // pages have two copies again.
                let all =
                    || states.iter().map(|state| state.disturbances()).sum::<u64>() >= before + PROGRAMS;
                let begun = Instant::now();
                stretch.hangs |= !until(|| {
                    (act == Act::Pause || all()) && states.iter().all(|state| state.is_whole(guard))
                });
                stretch.recovery_ms = stretch.recovery_ms.max(begun.elapsed().as_secs_f64() * 1e3);
            }
            stretch.hangs |= states.iter().any(|state| state.waits_for() > HANGS);
        }
        // Waits until missing copies have been restored, so that the final check of all bytes succeeds.
        stretch.hangs |= !until(|| states.iter().all(|state| state.is_whole(guard)));
        Ok(())
    }
}

/// Waits until `done` returns `true`. Returns `false` if that takes longer than [`HANGS`].
fn until(done: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !done() {
        if since.elapsed() > HANGS {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}
