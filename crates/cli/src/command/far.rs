//! `far`: a program that needs more memory than there is here.

mod elf;
mod library;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use azekura_far::launch::Launch;
use azekura_far::{Mechanism, Policy};
use clap::Args;

use crate::arguments::size;
use crate::{Outcome, UsageError};

const EXAMPLES: &str = "\
Examples:
  azekura memd --capacity 8G &                                   # on another machine, with --listen and --auth-key
  azekura far --local 1G --server 127.0.0.1:7470 -- sort --buffer-size=4G big.txt
  azekura far --local 1G --server a:7470,b:7470 --copies 2 --auth-key far.key -- ./solver
  azekura far --local 256M --spill /var/tmp/pages --server a:7470 --stats-json far.json -- python3 model.py

The program is started unmodified, with one library put before its own: blocks of memory from --block on (malloc, calloc,
realloc, aligned allocations, private anonymous mmap) and static arrays (by userfaultfd only) are far memory, of which --local is here. Smaller
blocks, stacks, files and shared memory stay ordinary memory. A child made by fork has a copy of its parent's far memory (not with the sigsegv mechanism: there it is ended, with
code 71, when it touches it). Refused before they begin are programs that are statically linked, set-user-id, with file capabilities, of 32 bits, for
another processor, of another C library than the GNU one (or one too old for the library), or made by Go;
so are all programs under a limit of addresses or private memory (ulimit -v, ulimit -d), which counts all of --space. With userfaultfd for the kernel (root, CAP_SYS_PTRACE, or vm.unprivileged_userfaultfd = 1) system calls work on far memory; without,
those that the program makes through the C library's own functions do, and streams; but not others that the C library makes
inside of its functions: mutexes in far memory that threads wait for, or scandir in a program with an allocator of its own.
The exit code is the program's; 71 if far memory could not be set up, or pages were lost with a server.";

/// Run a program, unchanged, with its large blocks of memory on memory servers
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Far {
    /// Large blocks use at most so much memory here
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = bytes)]
    local: usize,

    /// Memory servers
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    server: Vec<String>,

    /// So many servers have each page
    #[arg(long, value_name = "N", default_value = "1")]
    copies: usize,

    /// Keep each page in a file here, too (a directory will do); each process has its own, which loses its
    /// name at once and goes with it
    #[arg(long, value_name = "FILE")]
    spill: Option<PathBuf>,

    /// The key that the servers know
    #[arg(long, value_name = "FILE")]
    auth_key: Option<PathBuf>,

    /// The unit of demand, 4K to 2M; what is used in sequence comes many pages at a time
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = bytes)]
    page: usize,

    /// Blocks from so many bytes on are far memory
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = bytes)]
    block: usize,

    /// Large blocks may take so much in all
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = bytes)]
    space: usize,

    /// Who leaves when a page comes; `adaptive` measures what swaps and looking at use cost here, and needs
    /// no tuning
    #[arg(long, value_name = "NAME", default_value_t)]
    policy: Policy,

    /// auto, userfault-move, userfault-copy, user-mode-move, user-mode-copy or sigsegv
    #[arg(long, value_name = "NAME", default_value = "auto")]
    mechanism: Mechanism,

    /// Append the statistics to a file, a line of JSON for each process
    #[arg(long, value_name = "FILE")]
    stats_json: Option<PathBuf>,

    /// Say nothing at the start and the end
    #[arg(long)]
    quiet: bool,

    /// End the program, with the reason, when its large blocks need more memory here than --local, or more in
    /// all than --space or the servers have room for; without it that is a warning at the end
    #[arg(long)]
    strict: bool,

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
            space: self.space,
            page: self.page,
            block: self.block,
            copies: self.copies,
            spill: self.spill.as_ref().map(here).transpose()?,
            auth_key: self.auth_key.as_ref().map(here).transpose()?,
            policy: self.policy,
            mechanism: self.mechanism,
            stats_json: self.stats_json.as_ref().map(here).transpose()?,
            quiet: self.quiet,
            strict: self.strict,
        };
        let (program, arguments) = self.command.split_first().context("a program to run")?;
        let runs = elf::check(program)?;
        let library = library::put()?;
        runs.map_or(Ok(()), |runs| runs.takes(&library))?;
        let mut command = Command::new(program);
        command.args(arguments);
        launch.prepare_with(&mut command, &library);
        // In our place: signals, exit code and terminal are the program's.
        Err(anyhow::Error::new(command.exec()).context(format!("start {}", program.display())))
    }
}
