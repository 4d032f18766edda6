//! `far`: runs a program with more memory than this machine has.

mod elf;
mod library;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use azekura_far::launch::Launch;
use azekura_far::{Compression, Mechanism, Policy};
use clap::Args;

use crate::arguments::size;
use crate::{Outcome, UsageError};

const EXAMPLES: &str = "\
Examples:
  azekura memory-server --capacity 8G &     # usually on another machine, see memory-server --help
  azekura far --local 1G --server 127.0.0.1:7470 -- sort --buffer-size=4G big.txt
  azekura far --local 1G --server a:7470,b:7470 --copies 2 --auth-key far.key -- ./solver
  azekura far --local 256M --spill /var/tmp/pages --stats-json far.json -- python3 model.py

The program runs unmodified, with one library preloaded. Far memory consists of blocks of at least
--block bytes (malloc, calloc, realloc, aligned allocations, private anonymous mmap) and, with
userfaultfd, static arrays; --local bytes of it are in this machine's memory at a time. Smaller
blocks, stacks, files and shared memory stay ordinary memory. After fork the child has a copy of
the far memory; with the sigsegv mechanism the child ends with exit code 71 when it touches it.

Refused before they start: statically linked programs, set-user-id programs, programs with file
capabilities, 32-bit programs, programs for another processor, programs with another C library than
glibc (or one older than the library needs), Go programs, programs with a sanitizer of addresses,
threads, memory or leaks, and every program under a limit of addresses or private memory
(ulimit -v, ulimit -d), which counts all of --max-far; with --spill, also programs under a limit of
file sizes below --max-far (ulimit -f). Without userfault-move, also programs into
which liburing is linked statically; a library that contains liburing is not recognized, and its
transfers can fail or return wrong bytes.

Under a tracer of all threads (strace -f, gdb) a mechanism without system calls is used, so that the
tracer never waits for a page. Such a tracer cannot read pages that are not local. A tracer that
attaches to all threads later (strace -f -p, gdb -p) waits forever if it reads a page that is not
local: start a program that is to be traced with --mechanism user-mode-move or user-mode-copy.

With userfaultfd for the kernel (root, CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd = 1) system
calls work on far memory. Without it, streams and system calls that the program makes through
functions of the C library work; system calls inside the C library do not, such as waits for a
mutex in far memory.

Core files exclude far memory, because they would be as long as --max-far.

The exit code is that of the program, or 71 if far memory could not be set up or pages were lost
with a server.";

/// Run a program, unchanged, with its large blocks of memory on memory servers
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Far {
    /// Largest part of far memory that is in memory of this machine
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = bytes)]
    local: usize,

    /// Addresses of the memory servers
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    server: Vec<String>,

    /// Number of servers that hold each page
    #[arg(long, value_name = "N", default_value = "1")]
    copies: usize,

    /// File or directory on this machine that also holds each page; each process has its own file, which is
    /// removed when the process ends
    #[arg(long, value_name = "FILE")]
    spill: Option<PathBuf>,

    /// File with the key of the servers
    #[arg(long, value_name = "FILE")]
    auth_key: Option<PathBuf>,

    /// Page size, 4K to 2M; sequential access fetches many pages at a time; 4K is for random accesses, and
    /// fetches 16K at a time where neighboring pages are used together
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = bytes)]
    page: usize,

    /// Smallest block that becomes far memory; blocks below 16K or a page share pages
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = bytes)]
    block: usize,

    /// Largest size of all far memory together
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = bytes)]
    max_far: usize,

    /// Replacement policy; `adaptive` measures the cost of transfers and of access tracking on this machine
    #[arg(long, value_name = "NAME", default_value_t)]
    policy: Policy,

    /// Page-fault mechanism: auto, userfault-move, userfault-copy, user-mode-move, user-mode-copy or sigsegv
    #[arg(long, value_name = "NAME", default_value = "auto")]
    mechanism: Mechanism,

    /// Compression of evicted pages that stay on this machine, in at most half of --local: none or lz4
    #[arg(long, value_name = "NAME", default_value_t)]
    compress: Compression,

    /// File to which each process appends its statistics as a line of JSON
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,

    /// Print no message at the start and at the end
    #[arg(long)]
    quiet: bool,

    /// End the program when its far memory on this machine exceeds --local, or the total exceeds --max-far or
    /// the capacity of the servers; without this option a warning is printed at the end
    #[arg(long)]
    strict: bool,

    /// Print misses and waiting time every SECONDS seconds while the program runs
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    progress: u64,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

fn bytes(text: &str) -> Result<usize, String> {
    usize::try_from(size(text)?).map_err(|_| format!("{text} is more than this machine can address"))
}

impl Far {
    pub(crate) fn run(&self) -> Result<Outcome> {
        if self.server.is_empty() && self.spill.is_none() {
            return Err(UsageError("far needs --server HOST:PORT or --spill FILE".into()).into());
        }
        let here = |path: &PathBuf| std::path::absolute(path);
        let launch = Launch {
            servers: self.server.clone(),
            local: self.local,
            space: self.max_far,
            page: self.page,
            block: self.block,
            copies: self.copies,
            spill: self.spill.as_ref().map(here).transpose()?,
            auth_key: self.auth_key.as_ref().map(here).transpose()?,
            policy: self.policy,
            mechanism: self.mechanism,
            compression: self.compress,
            stats_json: self.stats_json.as_ref().map(here).transpose()?,
            quiet: self.quiet,
            strict: self.strict,
            progress_ms: self.progress.saturating_mul(1000),
            ..Launch::default()
        };
        let (program, arguments) =
            self.command.split_first().context("no program is given: azekura far [OPTIONS] -- PROGRAM")?;
        let runs = elf::check(program)?;
        let library = library::put()?;
        runs.map_or(Ok(()), |runs| runs.takes(&library))?;
        let mut command = Command::new(program);
        command.args(arguments);
        launch.prepare_with(&mut command, &library);
        azekura_base::inherited::pass_on(&mut command);
        // `exec` replaces this process: signals, exit code and terminal then belong to the program.
        Err(anyhow::Error::new(command.exec()).context(format!("cannot start {}", program.display())))
    }
}
