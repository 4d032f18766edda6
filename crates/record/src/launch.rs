//! Runs a program under the recorder from start to end.

use crate::error::RecordError;
use crate::kernel::{Function, Kernel, Target, program};
use crate::recorder::{Collected, Recorded, Recorder};
use azekura_trace::parts::sender_of;
use rustix::process::{Pid, Signal, getpgid, getpgrp, getpid, getsid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A program to run, and the parts of its run to record.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The file of the recording.
    pub output: PathBuf,
    /// Time from the start of the program to the start of the recording.
    pub delay: Duration,
    /// Duration of the recording; the program runs on after it.
    pub duration: Option<Duration>,
    /// Capacity of a thread's ring, in events.
    pub ring_events: Option<usize>,
    /// Also records context switches, through the kernel.
    pub switches: bool,
    /// Functions to record as operations, if the kernel permits it: see [`Function::find`]. Implies recording
    /// of switches.
    pub functions: Vec<String>,
}

/// Result of a run.
#[derive(Debug)]
pub struct Launched {
    /// The program's exit status.
    pub status: ExitStatus,
    /// Duration of the run.
    pub ran: Duration,
    /// Recordings of the program's processes; that of the program itself comes first, then the largest.
    pub recorded: Vec<Recorded>,
    /// Requests that the kernel refused, in sentences.
    pub refusals: Vec<String>,
    /// Parts that the recordings lack, in sentences.
    pub missing: Vec<String>,
    /// The error of a recording that could not be written to its file.
    pub unwritten: Option<RecordError>,
    /// The reason that there is no recording.
    pub nothing: Option<RecordError>,
}

/// Runs a program to its end and records it.
///
/// Ctrl-C and Ctrl-\ end the program, but not its recording. `SIGINT`, `SIGQUIT`, `SIGTERM`, `SIGHUP`,
/// `SIGUSR1` and `SIGUSR2` of other processes are passed on to the program, except those that the program
/// itself sends. The program starts with the ignored and the blocked signals of this process: see
/// [`azekura_base::inherited`].
///
/// # Errors
///
/// [`RecordError`].
///
/// # Panics
///
/// If `command` is empty.
pub fn launch(launch: &Launch) -> Result<Launched, RecordError> {
    let (name, arguments) = launch.command.split_first().expect("a program to run");
    let functions = find_functions(launch)?;
    crate::program::check(Path::new(name))?;
    let mut signals = Signals::new();
    try_output(&launch.output)?;
    let mut recorder = Recorder::new()?;
    if let Some(events) = launch.ring_events {
        recorder = recorder.ring_events(events);
    }
    let mut command = Command::new(name);
    command.args(arguments);
    azekura_base::inherited::pass_on(&mut command);
    recorder.prepare(&mut command)?;
    if launch.delay.is_zero() {
        recorder.begin()?;
    }
    // Called on the thread that starts the program, because the kernel watches the processes that this thread
    // starts.
    let kernel = Kernel::watch(Target::Started, functions, launch.switches);
    kernel.keep(launch.delay.is_zero());
    let refusals = kernel.refusals().to_vec();
    let begun = Instant::now();
    let started = command.spawn();
    let mut child = started
        .map_err(|source| RecordError::Start { program: name.to_string_lossy().into_owned(), source })?;
    let mut phase = if launch.delay.is_zero() { Phase::On } else { Phase::Before };
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(source) => {
                return Err(RecordError::Start { program: name.to_string_lossy().into_owned(), source });
            }
        }
        signals.pass_on(&child);
        phase = phase.next(launch, begun.elapsed(), &mut recorder)?;
        kernel.keep(matches!(phase, Phase::On));
        std::thread::sleep(Duration::from_millis(5));
    };
    let ran = begun.elapsed();
    recorder.end();
    let (recorded, missing) = (Vec::new(), Vec::new());
    let launched = Launched { status, ran, refusals, recorded, missing, unwritten: None, nothing: None };
    let mut launched = match recorder.collect_with(&launch.output, child.id(), &kernel.finish()) {
        Ok(Collected { recorded, missing, unwritten }) => {
            Launched { recorded, missing, unwritten, ..launched }
        }
        // The program has run, so its status is returned even if there is no recording.
        Err(nothing) => Launched { nothing: Some(nothing), ..launched },
    };
    launched.missing.extend(recorder.library_in_use().map(|library| {
        format!(
            "processes of the program still run, and the programs that they start need {}; remove it \
             after their end",
            library.display()
        )
    }));
    Ok(launched)
}

/// Records a running process from outside and writes the recording to `output`. The recording ends with the
/// process, after the given duration, on Ctrl-C, or when the terminal is closed.
///
/// # Errors
///
/// [`RecordError`]: see [`attach`](crate::kernel::attach).
pub fn attach_until(
    process: u32,
    duration: Option<Duration>,
    output: &Path,
) -> Result<Recorded, RecordError> {
    let stop = stop_flag();
    let begun = Instant::now();
    // Relaxed: a flag that publishes no other data.
    let goes_on = || !stop.load(Relaxed) && duration.is_none_or(|d| begun.elapsed() < d);
    let trace = crate::kernel::attach(process, goes_on)?;
    crate::recorder::write(process, &trace, output.to_owned())
}

/// Returns a flag that is set by the signals that end a recording of a running process. SIGHUP is one of them
/// unless this process ignores it (`nohup`).
fn stop_flag() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let ignores_hangup = crate::process::ignored_signals() >> (SIGHUP - 1) & 1 == 1;
    for signal in [SIGINT, SIGTERM].into_iter().chain((!ignores_hangup).then_some(SIGHUP)) {
        // Without a handler, the signal ends this process as usual.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    stop
}

/// Returns an error if the file of the recording cannot be written. Called before the program runs.
fn try_output(output: &Path) -> Result<(), RecordError> {
    let failed = |source| RecordError::Write { path: output.to_owned(), source };
    let is_there = output.exists();
    File::options().create(true).append(true).open(output).map_err(failed)?;
    if !is_there {
        // Resolves a symbolic link, so that the link itself is kept.
        let made = std::fs::canonicalize(output).map_err(failed)?;
        std::fs::remove_file(made).map_err(failed)?;
    }
    Ok(())
}

fn find_functions(launch: &Launch) -> Result<Vec<Function>, RecordError> {
    if launch.functions.is_empty() {
        return Ok(Vec::new());
    }
    let program = program(Path::new(&launch.command[0]))?;
    launch.functions.iter().map(|name| Function::find(name, &program)).collect()
}

/// Phase of the run: before, during or after the recording.
enum Phase {
    Before,
    On,
    After,
}

impl Phase {
    fn next(self, launch: &Launch, ran: Duration, recorder: &mut Recorder) -> Result<Self, RecordError> {
        Ok(match self {
            Self::Before if ran >= launch.delay => {
                recorder.begin()?;
                Self::On
            }
            Self::On if launch.duration.is_some_and(|d| ran >= launch.delay + d) => {
                recorder.end();
                Self::After
            }
            phase => phase,
        })
    }
}

/// Signals that are passed on to the program.
const PASSED_ON: [(i32, Signal); 6] = [
    (SIGINT, Signal::INT),
    (SIGQUIT, Signal::QUIT),
    (SIGTERM, Signal::TERM),
    (SIGHUP, Signal::HUP),
    (SIGUSR1, Signal::USR1),
    (SIGUSR2, Signal::USR2),
];

/// Handlers for signals that must not end this process before the program.
struct Signals(Option<SignalsInfo<WithRawSiginfo>>);

impl Signals {
    /// Installs the handlers. Without a handler the signal ends this process as usual. A signal that this
    /// process ignores gets no handler: with a handler, the program would not ignore it (`nohup`).
    fn new() -> Self {
        let ignored = crate::process::ignored_signals();
        let is_caught = |number: &i32| ignored >> (number - 1) & 1 == 0;
        if is_caught(&SIGXFSZ) {
            // With a handler, a write beyond the limit of file sizes returns an error.
            let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
        }
        Self(SignalsInfo::new(PASSED_ON.map(|(number, _)| number).iter().filter(|n| is_caught(n))).ok())
    }

    fn pass_on(&mut self, child: &Child) {
        let program = Pid::from_child(child);
        for received in self.0.iter_mut().flat_map(SignalsInfo::pending) {
            let is_received = match sender_of(&received) {
                // A signal of the program itself is for its parent, or for its group: then the program has
                // received it.
                Some(sender) => sender == child.id(),
                None => has_terminal_signaled(program, received.si_signo),
            };
            let of_number = PASSED_ON.iter().find(|(number, _)| *number == received.si_signo);
            if let Some((_, signal)) = of_number.filter(|_| !is_received) {
                let _ = kill_process(program, *signal); // the program may have ended meanwhile
            }
        }
    }
}

/// Returns `true` if the program has received a signal that the kernel sent to this process. A terminal sends
/// its signals to all processes of a group, but SIGHUP also to the session leader alone.
fn has_terminal_signaled(program: Pid, signal: i32) -> bool {
    let is_of_group = getpgid(Some(program)).is_ok_and(|group| group == getpgrp());
    let is_leader = || getsid(None).is_ok_and(|session| session == getpid());
    is_of_group && !(signal == SIGHUP && is_leader())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_terminal_ends_a_recording_of_a_running_process() {
        if crate::process::ignored_signals() >> (SIGHUP - 1) & 1 == 1 {
            return; // the tests run under `nohup`
        }
        let stop = stop_flag();
        kill_process(getpid(), Signal::HUP).unwrap();
        // Relaxed: a flag that publishes no other data.
        while !stop.load(Relaxed) {
            std::thread::yield_now(); // the signal may be delivered on another thread
        }
    }
}
