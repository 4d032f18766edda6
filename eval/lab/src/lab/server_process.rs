//! Processes of a lab, which it kills and stops: memory servers, and programs. Each process ends when the lab
//! ends, also if the lab is killed.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A process that has not begun after so long hangs.
const BEGINS: Duration = Duration::from_secs(60);

/// A process that is killed when it is no longer wanted.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    /// Its first line, and what it may say later.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]: it has not said anything for a minute, and [hangs](is_hanging); or it cannot
    /// be heard.
    pub(crate) fn begun(&mut self) -> Result<(String, BufReader<ChildStdout>)> {
        let mut said = self.0.stdout.take().map(BufReader::new).ok_or_else(nothing)?;
        let (tell, told) = mpsc::channel();
        // A thread, as nothing else ends a read after a while. It ends with the process.
        thread::Builder::new().name("first line".into()).spawn(move || {
            let mut line = String::new();
            let read = said.read_line(&mut line);
            let _ = tell.send(read.map(|_| (line, said)));
        })?;
        told.recv_timeout(BEGINS).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }
}

/// Returns whether a process did not come to its [first line](Killed::begun).
pub(crate) fn is_hanging(error: &Error) -> bool {
    error.kind() == ErrorKind::TimedOut
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memory server; killed when dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    process: Killed,
    /// The address on which it listens.
    pub(crate) address: String,
}

impl ServerProcess {
    /// Starts one on this machine; `program` is the command `azekura`.
    ///
    /// It ends when the calling thread does, so that is one that lives as long as the server is wanted.
    pub(crate) fn start(program: &Path, capacity: &str) -> Result<Self> {
        let mut process = Command::new(program)
            .args(["azekura", "memory-server", "--listen", "127.0.0.1:0", "--capacity", capacity])
            .args(["--with-parent", &std::process::id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map(Killed)?;
        let (line, _) = process.begun()?;
        let address = line.trim().strip_prefix("listening on ").ok_or_else(nothing)?.to_owned();
        Ok(Self { process, address })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.process.0), signal).map_err(Into::into)
    }
}

/// A process ended before it said what it had to.
pub(crate) fn nothing() -> Error {
    Error::other("it said nothing of use")
}
