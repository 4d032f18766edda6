//! Memory servers that are processes of their own, to be killed and stopped.

use std::io::{BufRead, BufReader, Error, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A process that is killed when it is no longer wanted.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memory server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Memd {
    process: Killed,
    /// Where it listens.
    pub(crate) address: String,
}

impl Memd {
    /// Starts one on this machine; `program` is the command `azekura`.
    pub(crate) fn start(program: &Path, capacity: &str) -> Result<Self> {
        let mut process = Command::new(program)
            .args(["memd", "--listen", "127.0.0.1:0", "--capacity", capacity])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map(Killed)?;
        let mut line = String::new();
        let stdout = process.0.stdout.as_mut().ok_or_else(nothing)?;
        BufReader::new(stdout).read_line(&mut line)?;
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
