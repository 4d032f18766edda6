//! Goals of far memory, measured together with the alternatives of a user, in one run.
//!
//! | module | noun |
//! |---|---|
//! | [`sweep`] | sweeps and random accesses over memory |
//! | [`rival`] | the kernel's swap on compressed memory, with a memory limit |
//! | [`link`] | speed of bare TCP on this machine |
//! | [`tier`] | memory servers as the second tier of the page cache |
//! | [`unmodified`] | unmodified third-party programs |
//! | [`goal`] | the goals, evaluated from the measurements |
//! | [`report`] | the table of goals |
//!
//! A region of far memory has one memory server on this machine, over TCP. The rival is a process with the
//! same amount of memory that uses the kernel's swap. UMap is not measured. Its figures are quoted from a
//! measurement on another machine (busy, two processors, 256 of 512 MiB local, backed by a file in memory, no
//! network).

pub mod goal;
pub mod link;
pub mod report;
pub mod rival;
pub mod sweep;
pub mod tier;
pub mod unmodified;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use azekura_cli::shared::Scratch;
use azekura_far::{FarMemory, FarStats, Mechanism, Policy, Server};
use azekura_kernels::{Arena, Kernel};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use self::link::Link;
use self::report::Report;
use self::rival::Swap;
use self::sweep::Speeds;
use super::{far_kills, far_memory};
use crate::progress::Progress;

/// Settings of the measurement.
#[derive(Clone, Debug)]
pub struct Lab {
    /// Path of this executable, which also runs as the rival's process.
    pub program: PathBuf,
    /// Uses smaller sizes, for tens of seconds instead of minutes; the results are too rough to be quoted.
    pub quick: bool,
    /// Replacement policy of far memory.
    pub policy: Policy,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// An error that prevents the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No memory server could be started on this machine.
    #[error("start a memory server on this machine")]
    Server(#[source] azekura_far::ServeError),
    /// A region of far memory could not be created.
    #[error("make a region")]
    Region(#[source] azekura_far::FarError),
    /// Far memory returned wrong bytes.
    #[error("far memory")]
    Wrong(#[from] sweep::WrongSum),
    /// The verification of a program failed.
    #[error("{kernel} does not verify: {verdict}")]
    Unverified {
        /// The program.
        kernel: Kernel,
        /// Result of the verification.
        verdict: azekura_kernels::Verdict,
    },
    /// A program has less memory than it needs.
    #[error("run a program")]
    Memory(#[from] azekura_kernels::OutOfMemory),
    /// The trials with failing servers could not be made.
    #[error("kill memory servers")]
    Kills(#[from] far_kills::LabError),
    /// The replay of the policies failed.
    #[error("replay the policies")]
    Replay(#[from] far_memory::LabError),
    /// The store above the second tier failed.
    #[error("the store of the second tier")]
    Store(#[from] azekura::Error),
    /// The TCP connection or a temporary directory failed.
    #[error("measure this machine")]
    Machine(#[from] std::io::Error),
}

/// All measured values.
struct Measured {
    quick: bool,
    sizes: Sizes,
    link: Link,
    swept: Speeds,
    small: Small,
    /// Speeds of the sweeps on swap, or the reason that swap was not available.
    swept_by_swap: Result<Speeds, String>,
    fits: [f64; 2],
    /// Nanoseconds of a dependent random read with all pages local: with moved pages, and with copied pages.
    reads: Result<[f64; 2], String>,
    unmodified: unmodified::Report,
    kills: far_kills::report::Report,
    programs: Vec<Program>,
    contests: Vec<far_memory::report::Contest>,
    tier: [tier::Reads; 2],
    room: f64,
}

/// Sizes and counts of a full or quick run.
#[derive(Clone, Copy)]
struct Sizes {
    sweep: usize,
    touches: u32,
    small: usize,
    rows: u64,
    stream: usize,
    /// Bytes of the memory for random reads with all pages local; `reads` is their number.
    huge: usize,
    reads: u32,
    kills: u64,
    /// Time after which the rival's process is killed.
    within: Duration,
}

/// Number of parts of a run.
const PARTS: u64 = 12;

/// Progress over the parts of a run: names and times each part, and reports its number.
struct Parts<'p> {
    progress: &'p Progress,
    done: u64,
}

impl<'p> Parts<'p> {
    fn new(progress: &'p Progress) -> Self {
        Self { progress, done: 0 }
    }

    fn of<R>(&mut self, name: &str, measure: impl FnOnce() -> R) -> R {
        self.progress.begin(&format!("far goals, {} of {PARTS}: {name}", self.done + 1), PARTS);
        self.progress.at(self.done);
        let began = Instant::now();
        let measured = measure();
        self.done += 1;
        let (done, seconds) = (self.done, began.elapsed().as_secs_f64());
        self.progress.line(&format!("far goals, {done} of {PARTS}: {name}, {seconds:.1} s"));
        measured
    }

    fn end(&self) {
        debug_assert_eq!(self.done, PARTS, "parts are counted as they are");
    }
}

/// Results with pages of 4 KiB.
struct Small {
    fault_us: f64,
    one_thread: f64,
    eight_threads: f64,
}

/// Results of a program with half of its memory local.
struct Program {
    kernel: Kernel,
    heap_s: f64,
    far_s: f64,
    bits_s: f64,
    swap_s: Result<f64, String>,
}

const PAGE: usize = FarMemory::PAGE;
const SMALL_PAGE: usize = 4 << 10;
const HUGE_PAGE: usize = 2 << 20;

impl Lab {
    /// Runs all measurements and evaluates the goals.
    ///
    /// # Errors
    ///
    /// [`LabError`]. If swap is not available, this is no error; its rows contain the reason.
    pub fn run(&self, progress: &Progress) -> Result<Report, LabError> {
        let sizes = self.sizes();
        let mut parts = Parts::new(progress);
        let folder = Scratch::new("azekura-lab-")?;
        let measured = Measured {
            quick: self.quick,
            sizes,
            link: parts.of("bare TCP", || Link::measure(5000, sizes.stream))?,
            swept: parts.of("sweeps", || self.sweep(sizes))?,
            small: parts.of("pages of 4 KiB", || self.small(sizes))?,
            swept_by_swap: parts.of("sweeps on swap", || self.sweep_on_swap(sizes)),
            fits: parts.of("a program that fits", || self.fits())?,
            reads: parts.of("random reads", || self.reads(sizes)),
            unmodified: parts.of("unmodified programs", || self.unmodified())?,
            kills: parts.of("faulty servers", || self.kills(sizes))?,
            programs: parts.of("programs at half of their memory", || self.programs(sizes))?,
            contests: parts.of("policies, replayed", || self.contests())?,
            tier: parts
                .of("the page cache's second tier", || tier::measure(folder.path(), sizes.rows, self.seed))?,
            room: parts.of("capacity of a server", || self.room())?,
        };
        parts.end();
        Ok(Report { settings: self.settings(sizes), rows: measured.rows() })
    }

    fn unmodified(&self) -> Result<unmodified::Report, LabError> {
        unmodified::Trials { program: &self.program, policy: self.policy, quick: self.quick }
            .run()
            .map_err(LabError::Machine)
    }

    fn sizes(&self) -> Sizes {
        if self.quick {
            Sizes {
                sweep: 32 << 20,
                touches: 500,
                small: 4 << 20,
                rows: 40_000,
                stream: 128,
                huge: 64 << 20,
                reads: 200_000,
                kills: 3,
                within: Duration::from_secs(10),
            }
        } else {
            Sizes {
                sweep: 256 << 20,
                touches: 3000,
                small: 32 << 20,
                rows: 400_000,
                stream: 2048,
                huge: 512 << 20,
                reads: 4_000_000,
                kills: 18,
                within: Duration::from_secs(60),
            }
        }
    }

    fn settings(&self, sizes: Sizes) -> String {
        format!(
            "{} MiB swept with half of it local, pages of {} KiB, policy {}, fetched ahead of need, one \
             memory server on this machine over TCP; one run; seed {}",
            sizes.sweep >> 20,
            PAGE >> 10,
            self.policy,
            self.seed
        )
    }

    /// Returns a region with its own memory server, which runs as long as the returned [`Server`] exists.
    fn region(&self, bytes: usize, local: usize, page: usize) -> Result<(Server, FarMemory), LabError> {
        let capacity = 2 * bytes as u64 + (64 << 20);
        let server = Server::builder().capacity(capacity).listen("127.0.0.1:0").map_err(LabError::Server)?;
        let memory = FarMemory::builder()
            .bytes(bytes)
            .local(local)
            .page(page)
            .servers([server.address().to_string()])
            .policy(self.policy)
            .seed(self.seed)
            .build()
            .map_err(LabError::Region)?;
        Ok((server, memory))
    }

    fn sweep(&self, sizes: Sizes) -> Result<Speeds, LabError> {
        let (_server, mut memory) = self.region(sizes.sweep, sizes.sweep / 2, PAGE)?;
        Ok(sweep::run(&mut memory, sizes.touches, self.seed)?)
    }

    fn small(&self, sizes: Sizes) -> Result<Small, LabError> {
        let (_server, mut memory) = self.region(sizes.small, sizes.small / 2, SMALL_PAGE)?;
        memory.chunks_exact_mut(64).enumerate().for_each(|(at, line)| line.fill(at as u8 | 1));
        let touches = 2 * sizes.touches;
        let before = memory.stats();
        let began = Instant::now();
        sweep::touch_at_random(&mut memory, touches, self.seed);
        let one = began.elapsed().as_secs_f64();
        let fault_us = wait_us(&before, &memory.stats());
        let share = memory.len() / 8;
        let began = Instant::now();
        std::thread::scope(|scope| {
            for (number, part) in (0..).zip(memory.chunks_exact_mut(share)) {
                scope.spawn(move || sweep::touch_at_random(part, touches / 8, self.seed + number));
            }
        });
        let eight = began.elapsed().as_secs_f64();
        let rate = |seconds: f64| f64::from(touches) / seconds;
        Ok(Small { fault_us, one_thread: rate(one), eight_threads: rate(eight) })
    }

    fn sweep_on_swap(&self, sizes: Sizes) -> Result<Speeds, String> {
        let swap = Swap::on(2 * sizes.sweep, sizes.sweep / 2)?;
        let task = format!("sweep:{}:{}:{}", sizes.sweep, sizes.touches, self.seed);
        serde_json::from_str(&swap.run(&self.program, &task, sizes.within)?)
            .map_err(|why| format!("its answer: {why}"))
    }

    /// Measures a program that fits: its seconds on the heap, and in a region with all pages local. Both are
    /// medians of three alternating runs.
    fn fits(&self) -> Result<[f64; 2], LabError> {
        // A region has at least eight pages.
        let (kernel, page) = if self.quick { ("cg.s", 64 << 10) } else { ("cg.w", PAGE) };
        let kernel: Kernel = kernel.parse().expect("there is such a program");
        let bytes = kernel.bytes().next_multiple_of(page);
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..3 {
            times[0].push(run_on_heap(kernel)?);
            let (_server, mut memory) = self.region(bytes, bytes, page)?;
            times[1].push(run(kernel, &mut memory)?);
        }
        Ok(times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[1]
        }))
    }

    /// Measures dependent random reads in a region with all pages local, with pages moved in and with pages
    /// copied in. The difference shows whether huge pages remain: copied pages leave none.
    fn reads(&self, sizes: Sizes) -> Result<[f64; 2], String> {
        let by = |mechanism: Mechanism| {
            let server = Server::builder().capacity(2 * sizes.huge as u64).listen("127.0.0.1:0");
            let server = server.map_err(|why| why.to_string())?;
            let memory = FarMemory::builder()
                .bytes(sizes.huge)
                .local(sizes.huge + 16 * HUGE_PAGE)
                .page(HUGE_PAGE)
                .servers([server.address().to_string()])
                .policy(self.policy)
                .mechanism(mechanism)
                .build();
            let mut memory = memory.map_err(|why| format!("no {mechanism}: {why}"))?;
            Ok::<f64, String>(sweep::read_at_random(&mut memory, sizes.reads, sizes.within, self.seed))
        };
        Ok([by(Mechanism::UserfaultMove)?, by(Mechanism::UserfaultCopy)?])
    }

    /// Runs trials with a server that is killed, stopped or returns wrong answers.
    fn kills(&self, sizes: Sizes) -> Result<far_kills::report::Report, LabError> {
        let lab = far_kills::Lab {
            program: self.program.clone(),
            trials: sizes.kills,
            seed: self.seed,
            ..far_kills::Lab::default()
        };
        Ok(lab.run(&Progress::hidden())?)
    }

    fn programs(&self, sizes: Sizes) -> Result<Vec<Program>, LabError> {
        let (names, page) =
            if self.quick { (["himeno.xs", "mg.s"], SMALL_PAGE) } else { (["himeno.s", "mg.w"], PAGE) };
        let programs = names.map(|name| name.parse().expect("there is such a program"));
        programs.into_iter().map(|kernel| self.program(kernel, page, sizes.within)).collect()
    }

    fn program(&self, kernel: Kernel, page: usize, within: Duration) -> Result<Program, LabError> {
        let bytes = kernel.bytes().next_multiple_of(page);
        let heap_s = run_on_heap(kernel)?;
        let (_server, mut memory) = self.region(bytes, bytes / 2, page)?;
        let far_s = run(kernel, &mut memory)?;
        let stats = memory.stats();
        let bits_s = (stats.clear_ns + stats.set_ns) as f64 * 1e-9;
        let swap_s = Swap::on(4 * bytes, bytes / 2).and_then(|swap| {
            let said = swap.run(&self.program, &format!("kernel:{kernel}"), within)?;
            serde_json::from_str(&said).map_err(|why| format!("its answer: {why}"))
        });
        Ok(Program { kernel, heap_s, far_s, bits_s, swap_s })
    }

    /// Compares the adaptive policy with the paper's eight policies, by replay.
    fn contests(&self) -> Result<Vec<far_memory::report::Contest>, LabError> {
        let lab = far_memory::Lab {
            policies: Policy::ALL.into(),
            local: vec![75, 50, 25],
            seed: self.seed,
            ..far_memory::Lab::quick()
        };
        Ok(lab.run(&Progress::hidden())?.contests().unwrap_or_default())
    }

    /// Returns the share of a server's memory that can hold a client's pages.
    fn room(&self) -> Result<f64, LabError> {
        let offered: usize = 16 << 20;
        let server =
            Server::builder().capacity(offered as u64).listen("127.0.0.1:0").map_err(LabError::Server)?;
        let bytes = (offered * 9).div_ceil(10);
        let mut memory = FarMemory::builder()
            .bytes(bytes)
            .local(1 << 20)
            .page(64 << 10)
            .servers([server.address().to_string()])
            .build()
            .map_err(LabError::Region)?;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        rng.fill(&mut memory[..]);
        let mut again = Xoshiro256PlusPlus::seed_from_u64(self.seed);
        let mut expected = vec![0_u8; bytes];
        again.fill(&mut expected[..]);
        let right = memory[..] == expected[..];
        Ok(if right { bytes as f64 / offered as f64 } else { 0.0 })
    }
}

/// Returns the mean microseconds of an access to a page that was paged out.
fn wait_us(before: &FarStats, after: &FarStats) -> f64 {
    (after.swap_ns - before.swap_ns) as f64 / 1e3 / (after.swap_ins - before.swap_ins).max(1) as f64
}

fn run_on_heap(kernel: Kernel) -> Result<f64, LabError> {
    run(kernel, &mut vec![0_u8; kernel.bytes()])
}

fn run(kernel: Kernel, memory: &mut [u8]) -> Result<f64, LabError> {
    let began = Instant::now();
    let verdict = kernel.run(&mut Arena::of_zeroed(memory))?;
    let seconds = began.elapsed().as_secs_f64();
    if verdict.verified() { Ok(seconds) } else { Err(LabError::Unverified { kernel, verdict }) }
}

/// Runs as the rival's process: joins the cgroup, runs the task on ordinary memory, and returns the results
/// as JSON.
///
/// # Errors
///
/// [`LabError`]; an unknown task is an input error in [`LabError::Machine`].
pub fn work(task: &str, group: &Path) -> Result<String, LabError> {
    rival::join(group)?;
    let unknown = || std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("no task {task:?}"));
    let parts: Vec<&str> = task.split(':').collect();
    match parts[..] {
        ["sweep", bytes, touches, seed] => {
            let number = |text: &str| text.parse::<u64>().map_err(|_| unknown());
            let bytes = usize::try_from(number(bytes)?).map_err(|_| unknown())?;
            let touches = u32::try_from(number(touches)?).map_err(|_| unknown())?;
            let speeds = sweep::run(&mut vec![0_u8; bytes], touches, number(seed)?)?;
            Ok(serde_json::to_string(&speeds).map_err(std::io::Error::other)?)
        }
        ["kernel", name] => Ok(run_on_heap(name.parse().map_err(|_| unknown())?)?.to_string()),
        _ => Err(unknown().into()),
    }
}
