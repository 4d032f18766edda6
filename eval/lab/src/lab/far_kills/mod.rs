//! Many trials in which a memory server is killed, stopped or returns wrong answers while a program uses it.
//! Checks that every byte is right and that no program hangs.
//!
//! | module | noun |
//! |---|---|
//! | [`worker`] | the program: random reads and writes of far memory, compared with a plain copy of it |
//! | [`report`] | results of the trials |
//!
//! The program of each trial is a separate process, so that a hanging one can be detected and killed. Its
//! servers are processes, too, which a signal kills or stops forever; servers with wrong answers are threads
//! of this process. The server (one of two), the time (also while memory is first filled) and the fault are
//! random. The total time is bounded: a program that does not begin or end within a minute hangs, and the lab
//! ends after three such trials.

pub mod report;
pub mod worker;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use azekura_far::Server;
use azekura_far::server::fault_injector::{FaultInjector, InjectedAction};
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use self::report::{Outcome, Report, Trial};
use super::server_process::{self, Killed, ServerProcess};
use crate::progress::Progress;

/// Time after which a trial counts as hanging.
const HANGS: Duration = Duration::from_secs(60);
/// Number of hanging trials after which the lab ends: three show the fault, and each takes a minute.
const MOST_HANGING: usize = 3;
/// Memory of each server in a trial.
const CAPACITY: &str = "64M";

/// Protection of the program's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Guard {
    /// Two servers store each page.
    Copies,
    /// One server and a spill file store each page.
    Spill,
    /// Only one server stores each page, so a fault must stop the program with a message.
    None,
}

impl Guard {
    /// All protections.
    pub const ALL: [Self; 3] = [Self::Copies, Self::Spill, Self::None];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Spill => "spill",
            Self::None => "none",
        }
    }
}

/// Fault of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wrong {
    /// SIGKILL ends the server.
    Killed,
    /// SIGSTOP stops the server: its connections stay open, but it answers no request.
    Stalled,
    /// The server gives wrong answers: pages with one changed bit, zeros, denials, or invalid messages.
    Lies,
}

impl Wrong {
    /// All faults.
    pub const ALL: [Self; 3] = [Self::Killed, Self::Stalled, Self::Lies];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stalled => "stalled",
            Self::Lies => "lies",
        }
    }
}

/// Settings of the trials.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Path of this executable, which also runs as worker and as memory server.
    pub program: PathBuf,
    /// Number of trials; they alternate between the protections and the faults.
    pub trials: u64,
    /// Seed of the first trial; each later trial adds 1.
    pub seed: u64,
    /// Protections of the pages, in turn.
    pub guards: Vec<Guard>,
    /// Faults of a server, in turn.
    pub wrongs: Vec<Wrong>,
}

impl Default for Lab {
    fn default() -> Self {
        Self {
            program: PathBuf::new(),
            trials: 200,
            seed: 1,
            guards: Guard::ALL.into(),
            wrongs: Wrong::ALL.into(),
        }
    }
}

/// A trial could not be made, for a reason other than far memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A process could not be started, signaled or read.
    #[error("trial {seed}: {what}")]
    Process {
        /// Seed of the trial.
        seed: u64,
        /// The operation.
        what: &'static str,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A memory server in this process could not be started.
    #[error("start a memory server on this machine")]
    Server(#[source] azekura_far::ServeError),
}

/// Fault injector of a server that gives wrong answers once `lies` is set.
#[derive(Debug)]
struct Liar {
    lies: AtomicBool,
    act: InjectedAction,
}

impl FaultInjector for Liar {
    fn act(&self, _is_put: bool, _page: u64) -> InjectedAction {
        // Relaxed: no other data depends on the flag.
        if self.lies.load(Relaxed) { self.act } else { InjectedAction::Serve }
    }
}

/// A memory server of a trial, as a process or as a thread.
enum Lender {
    Process(ServerProcess),
    Thread { server: Server, liar: Arc<Liar> },
}

impl Lab {
    /// Runs all trials.
    ///
    /// # Errors
    ///
    /// [`LabError`]: a trial could not be made. Failures within a trial are in the report.
    ///
    /// # Panics
    ///
    /// If `guards` or `wrongs` is empty.
    pub fn run(&self, progress: &Progress) -> Result<Report, LabError> {
        progress.begin("servers killed, stopped, lying", self.trials);
        let mut trials = Vec::new();
        for number in 0..self.trials {
            let turn = usize::try_from(number).unwrap_or(0);
            let guard = self.guards[turn % self.guards.len()];
            let wrong = self.wrongs[turn / self.guards.len() % self.wrongs.len()];
            trials.push(self.trial(self.seed + number, guard, wrong)?);
            progress.at(number + 1);
            if trials.iter().filter(|trial| trial.outcome == Outcome::Hangs).count() == MOST_HANGING {
                break;
            }
        }
        Ok(Report { asked: self.trials, trials })
    }

    fn trial(&self, seed: u64, guard: Guard, wrong: Wrong) -> Result<Trial, LabError> {
        let failed = |what: &'static str| move |source| LabError::Process { seed, what, source };
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let lenders = if guard == Guard::Copies { 2 } else { 1 };
        let bad = rng.random_range(0..lenders);
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for index in 0..lenders {
            let (lender, address) = if wrong == Wrong::Lies && index == bad {
                liar(&mut rng)?
            } else {
                let server =
                    ServerProcess::start(&self.program, CAPACITY).map_err(failed("start a memory server"))?;
                let address = server.address.clone();
                (Lender::Process(server), address)
            };
            servers.push(lender);
            addresses.push(address);
        }
        let mut worker = self.worker(seed, guard, wrong, &addresses).map_err(failed("start the program"))?;
        let mut said = match worker.begun() {
            Ok((_, said)) => said,
            Err(error) if server_process::is_hanging(&error) => {
                return Ok(Trial { seed, guard, wrong, outcome: Outcome::Hangs });
            }
            Err(error) => return Err(failed("read the program's output")(error)),
        };
        std::thread::sleep(Duration::from_millis(rng.random_range(0..150)));
        servers[bad].go_wrong(wrong).map_err(failed("signal a memory server"))?;
        let since = Instant::now();
        std::thread::sleep(Duration::from_millis(rng.random_range(0..300)));
        // The end of its input tells the worker to finish. It may have ended already.
        drop(worker.0.stdin.take());
        let outcome = watch(&mut worker.0, since).map_err(failed("wait for the program"))?;
        let (mut out, mut error) = (String::new(), String::new());
        if !matches!(outcome, Ended::Hangs) {
            said.read_to_string(&mut out).map_err(failed("read the program's output"))?;
            if let Some(mut stderr) = worker.0.stderr.take() {
                stderr.read_to_string(&mut error).map_err(failed("read the program's output"))?;
            }
        }
        Ok(Trial { seed, guard, wrong, outcome: judge(&outcome, &out, &error) })
    }

    fn worker(&self, seed: u64, guard: Guard, wrong: Wrong, addresses: &[String]) -> std::io::Result<Killed> {
        Command::new(&self.program)
            .args(["far-kills", "--worker", guard.name(), "--server", wrong.name()])
            .args(["--seed", &seed.to_string()])
            .args(["--servers", &addresses.join(","), "--with-parent", &std::process::id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map(Killed)
    }
}

fn liar(rng: &mut Xoshiro256PlusPlus) -> Result<(Lender, String), LabError> {
    let act = *[
        InjectedAction::Lie,
        InjectedAction::Damage,
        InjectedAction::Zeros,
        InjectedAction::Deny,
        InjectedAction::Babble,
    ]
    .choose(rng)
    .unwrap_or(&InjectedAction::Lie);
    let liar = Arc::new(Liar { lies: AtomicBool::new(false), act });
    let server = Server::builder().capacity(64 << 20).fault_injector(liar.clone());
    let server = server.listen("127.0.0.1:0").map_err(LabError::Server)?;
    let address = server.address().to_string();
    Ok((Lender::Thread { server, liar }, address))
}

impl Lender {
    fn go_wrong(&mut self, wrong: Wrong) -> std::io::Result<()> {
        match self {
            Self::Thread { server, liar } => {
                debug_assert!(server.stats().sessions > 0, "somebody works with it");
                liar.lies.store(true, Relaxed);
                Ok(())
            }
            Self::Process(server) => {
                server.signal(if wrong == Wrong::Stalled { Signal::STOP } else { Signal::KILL })
            }
        }
    }
}

/// End of the program of a trial.
enum Ended {
    Well,
    Badly(Duration),
    Hangs,
}

/// Waits for the end of the program, and kills it if it hangs.
fn watch(program: &mut Child, since: Instant) -> std::io::Result<Ended> {
    loop {
        if let Some(status) = program.try_wait()? {
            return Ok(if status.success() { Ended::Well } else { Ended::Badly(since.elapsed()) });
        }
        if since.elapsed() > HANGS {
            program.kill()?;
            program.wait()?;
            return Ok(Ended::Hangs);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn judge(ended: &Ended, out: &str, error: &str) -> Outcome {
    let message = error.lines().rev().find_map(|line| line.strip_prefix("azekura far memory: "));
    match ended {
        Ended::Hangs => Outcome::Hangs,
        Ended::Well => match out.trim().strip_prefix("right ").and_then(|pause| pause.parse().ok()) {
            Some(pause_ms) => Outcome::Right { pause_ms },
            None => Outcome::Wrong { said: out.trim().to_owned() },
        },
        Ended::Badly(after) => match message {
            Some(why) if !error.contains("panicked") && !error.contains("wrong byte") => {
                Outcome::Stopped { after_ms: after.as_secs_f64() * 1e3, why: why.to_owned() }
            }
            _ => Outcome::Wrong { said: format!("{}{}", out.trim(), error.trim()) },
        },
    }
}

/// Writes one line to standard output; ignores a closed pipe.
pub(crate) fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
