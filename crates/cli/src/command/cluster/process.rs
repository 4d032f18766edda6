//! Processes of nodes, identified by process id and start time, so that a reused process id is never taken
//! for a node.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Time limit for a node to stop.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The error that another process uses an address of a node.
#[derive(Debug, thiserror::Error)]
#[error("another process uses this address; end it, and run the command again")]
pub(super) struct PortTaken;

/// A running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pid: Pid,
    /// Start time, in ticks since the machine started; 0 if the kernel does not report it.
    started: u64,
}

impl Process {
    /// Returns the process with this id, if it exists.
    pub(super) fn of(id: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(id).ok()?)?;
        test_kill_process(pid).ok()?;
        Some(Self { pid, started: started(pid)? })
    }

    /// Parses the output of [`line`](Self::line); returns the process if it still runs.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (id, started) = line.trim().split_once(' ')?;
        let process = Self::of(id.parse().ok()?)?;
        (process.started == started.parse::<u64>().ok()?).then_some(process)
    }

    pub(super) fn line(self) -> String {
        format!("{} {}\n", self.id(), self.started)
    }

    pub(super) fn id(self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    fn is_there(self) -> bool {
        u32::try_from(self.id()).ok().and_then(Self::of) == Some(self)
    }

    pub(super) fn terminate(self) {
        self.signal(Signal::TERM);
    }

    pub(super) fn kill(self) {
        self.signal(Signal::KILL);
    }

    fn signal(self, signal: Signal) {
        if self.is_there() {
            // The process may have ended just now.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Waits for the end of the process; returns whether it ended in time.
    pub(super) fn wait(self) -> bool {
        let began = Instant::now();
        while self.is_there() {
            if began.elapsed() > TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

/// Returns the start time of a process; `None` if it has ended.
fn started(pid: Pid) -> Option<u64> {
    let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) else {
        return if fs::exists("/proc/self/stat").unwrap_or(false) { None } else { Some(0) };
    };
    started_in(&stat)
}

/// Returns the start time in the stat line of a process; `None` if the process has ended. The name may
/// contain any bytes, and ends with the last `)`. After it, the state is the first field, the number of
/// threads the 18th, and the start time the 20th.
fn started_in(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    // A zombie has ended; its parent has not collected its status yet. But the first thread of a killed
    // process is a zombie too while other threads are ending, and until then the process holds its files.
    if state == "Z" && threads <= 1 {
        return None;
    }
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_when_all_its_threads_have() {
        let stat = |state: &str, threads: u32| {
            format!("7 (a) b) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 99 0 0\n")
        };
        assert_eq!(started_in(&stat("S", 3)), Some(99));
        assert_eq!(started_in(&stat("Z", 2)), Some(99), "a thread still holds the files");
        assert_eq!(started_in(&stat("Z", 1)), None);
        assert_eq!(started_in(&stat("Z", 0)), None);
    }

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let me = Process::of(std::process::id()).expect("it runs");
        assert_eq!(Process::parse(&me.line()), Some(me));
        if me.started > 0 {
            let other = Process { started: me.started + 1, ..me };
            assert_eq!(Process::parse(&other.line()), None);
        }
        for wrong in ["", "1", "0 0", "-5 1", "x y", "4294967295 1"] {
            assert_eq!(Process::parse(wrong), None, "{wrong:?}");
        }
    }
}
