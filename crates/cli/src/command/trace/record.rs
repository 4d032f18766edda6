//! `trace record`: records the waits of an unmodified program.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Result;
use azekura_record::{Launch, Recorded, attach_until, launch};
use clap::Args;

use crate::arguments::seconds;
use crate::progress::note;
use crate::{Outcome, show};

const EXAMPLES: &str = "\
Examples:
  azekura trace record -- ./server --threads 8
  azekura trace record -o load.trace --delay 10 --seconds 30 -- mariadbd --datadir db
  azekura trace record --pid 4711 --seconds 10 -o server.trace
  azekura trace record --functions run_query,write_page -- ./server
  azekura trace report load.trace

The program runs unmodified, with one library preloaded. It records contended waits for mutexes,
reader-writer locks and spin locks, waits on condition variables and semaphores, futex calls through
the C library, syncs of files, and reads, writes and sleeps that gave up the processor. Each thread
is an operation with the thread's name, or else the name of its first function. A lock is named by
its variable, or by the source line that initialized it, or by the place that waits for it.
Statically linked programs and Go programs are refused. Other processes of the program write
recordings of their own: FILE with the process number at the end.";

/// Run an unmodified program and record the waits of its threads
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Record {
    /// File for the recording
    #[arg(short, long, value_name = "FILE", default_value = "azekura.trace")]
    output: PathBuf,

    /// Seconds from the start of the program to the start of the recording
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    delay: Duration,

    /// Seconds to record; the program continues afterward
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Capacity of the event buffer of each thread; a larger one loses fewer events. All buffers take at most
    /// 512 MB of memory or 16 buffers: 2016 threads at a time with the default [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
    ring: Option<u32>,

    /// Record context switches too, which distinguish preempted time from blocked time
    #[arg(long)]
    switches: bool,

    /// Functions that count as operations: symbols or demangled names, NAME@FILE for a function of a library
    /// (needs root or CAP_PERFMON) [default: each thread is an operation]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    functions: Vec<String>,

    /// Record the waits in the kernel of this running process (needs root or CAP_PERFMON), until it ends, or
    /// for --seconds, or until Ctrl-C, or until the records need a quarter of the memory
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
        launched.refusals.iter().for_each(|refusal| note(format_args!("note: {refusal}")));
        launched.missing.iter().for_each(|missing| note(format_args!("note: {missing}")));
        launched.recorded.iter().for_each(tell);
        launched.nothing.iter().for_each(|nothing| note(format_args!("note: {nothing}")));
        match (ended(launched.status), launched.unwritten) {
            (Outcome::Well, Some(error)) => Err(error.into()),
            (outcome, unwritten) => {
                let unwritten = unwritten.map(anyhow::Error::from);
                unwritten.iter().for_each(|error| note(format_args!("error: {error:#}")));
                Ok(outcome)
            }
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

/// Returns the program's exit code, or 128 plus the signal that ended it, as in a shell.
fn ended(status: ExitStatus) -> Outcome {
    const SIGNALLED: u8 = 128;
    if status.success() {
        return Outcome::Well;
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    let signal = status.signal().and_then(|signal| u8::try_from(signal).ok());
    note(format_args!("the program ended with {status}"));
    Outcome::Code(code.or(signal.map(|signal| SIGNALLED.saturating_add(signal))).unwrap_or(1))
}

fn tell(recorded: &Recorded) {
    let Recorded { file, program, process, threads, events, lost, is_cut_short } = recorded;
    let cut = if *is_cut_short { ", cut short" } else { "" };
    note(format_args!(
        "{program} ({process}): {} of {} in {}, {} lost{cut}",
        show::counted(*events, "event"),
        show::counted(*threads as u64, "thread"),
        file.display(),
        show::count(*lost)
    ));
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
