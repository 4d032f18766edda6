//! `trace record`: what an unmodified program waits for.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;
use azekura_record::{Launch, Recorded, attach_until, launch};
use clap::Args;

use crate::arguments::seconds;
use crate::{Outcome, show};

const EXAMPLES: &str = "\
Examples:
  azekura trace record -- ./server --threads 8
  azekura trace record -o load.trace --delay 10 --seconds 30 -- mariadbd --datadir db
  azekura trace record --pid 4711 --seconds 10 -o server.trace
  azekura trace record --functions run_query,write_page -- ./server
  azekura trace report load.trace

The program is started with one library put before its own. Recorded are contended waits for mutexes, reader-writer
and spin locks, waits on condition variables and semaphores, futex calls through the C library, syncs of files, and
reads, writes and sleeps that left the processor. Each thread is an operation, named by its first function; a lock is
named by its variable, or where it was made, and where it is waited for. Statically linked programs and Go programs
are refused. Other processes of the program are written beside FILE, with their number at the end.";

/// Run a program, unchanged, and record what its threads wait for
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Record {
    /// Where the recording goes
    #[arg(short, long, value_name = "FILE", default_value = "azekura.trace")]
    output: PathBuf,

    /// Begin to record so long after the start
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    delay: Duration,

    /// Record only for so long; the program goes on
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Events that each thread can have waiting to be written [unless given: 8192]; more lose less
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    ring: Option<u32>,

    /// Ask the kernel for context switches as well: time off the processor is then preempted or blocked
    #[arg(long)]
    switches: bool,

    /// Functions that are to be operations, each a symbol or a demangled name, or NAME@FILE for one of a
    /// library (needs root or CAP_PERFMON; else threads are the operations)
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    functions: Vec<String>,

    /// Record this running process instead, from outside: what its threads wait for in the kernel (needs root
    /// or CAP_PERFMON). Until it ends, or --seconds, or Ctrl-C
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "functions", "ring", "delay"])]
    pid: Option<u32>,

    /// The program and its arguments
    #[arg(last = true, required_unless_present = "pid", value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Record {
    pub(super) fn run(&self) -> Result<Outcome> {
        if let Some(process) = self.pid {
            return self.attach(process);
        }
        let launched = launch(&Launch {
            command: self.command.clone(),
            output: self.output.clone(),
            delay: self.delay,
            duration: self.seconds,
            ring_events: self.ring.map(|events| events as usize),
            switches: self.switches,
            functions: self.functions.clone(),
        })?;
        launched.refusals.iter().for_each(|refusal| eprintln!("note: {refusal}"));
        launched.missing.iter().for_each(|missing| eprintln!("note: {missing}"));
        launched.recorded.iter().for_each(tell);
        let outcome = ended(launched.status);
        match (launched.nothing, outcome) {
            (Some(nothing), Outcome::Well) => Err(nothing.into()),
            (Some(nothing), outcome) => {
                eprintln!("note: {nothing}");
                Ok(outcome)
            }
            (None, outcome) => Ok(outcome),
        }
    }
}

impl Record {
    fn attach(&self, process: u32) -> Result<Outcome> {
        let recorded = attach_until(process, self.seconds, &self.output)?;
        tell(&recorded);
        Ok(Outcome::Well)
    }
}

/// The program's exit code, or 128 and the signal that ended it, as a shell has it.
fn ended(status: ExitStatus) -> Outcome {
    const SIGNALLED: u8 = 128;
    if status.success() {
        return Outcome::Well;
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let signal = status.signal().and_then(|signal| u8::try_from(signal).ok());
    eprintln!("the program ended with {status}");
    Outcome::Code(code.or(signal.map(|signal| SIGNALLED.saturating_add(signal))).unwrap_or(1))
}

fn tell(recorded: &Recorded) {
    let Recorded { file, program, process, threads, events, lost, is_cut_short } = recorded;
    let cut = if *is_cut_short { ", cut short" } else { "" };
    eprintln!(
        "{program} ({process}): {} of {} in {}, {} lost{cut}",
        show::counted(*events, "event"),
        show::counted(*threads as u64, "thread"),
        file.display(),
        show::count(*lost)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_program_s_or_128_and_its_signal() {
        let code = |wait: i32| match ended(ExitStatus::from_raw(wait)) {
            Outcome::Well => 0,
            Outcome::Failed => 1,
            Outcome::Code(code) => code,
        };
        assert_eq!([0, 7 << 8, 11, 9, 6].map(code), [0, 7, 139, 137, 134]);
    }
}
