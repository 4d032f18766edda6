//! Processes that a lab starts, kills and stops: memory servers and programs. Each process ends when the lab
//! ends, even if the lab is killed.

use std::io::{BufRead, BufReader, Error, ErrorKind, Result};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Time after which a process without output counts as hanging.
const BEGINS: Duration = Duration::from_secs(60);

/// A process that is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Killed {
    /// Reads the first line of standard output. Returns it with the reader of the rest.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if there is no line within a minute: the process [hangs](is_hanging).
    /// Otherwise an error of reading.
    pub(crate) fn begun(&mut self) -> Result<(String, BufReader<ChildStdout>)> {
        let mut said = self.0.stdout.take().map(BufReader::new).ok_or_else(nothing)?;
        let (sender, receiver) = mpsc::channel();
        // A separate thread, because a read of a pipe has no timeout. It ends with the process.
        thread::Builder::new().name("first line".into()).spawn(move || {
            let mut line = String::new();
            let read = said.read_line(&mut line);
            let _ = sender.send(read.map(|_| (line, said)));
        })?;
        receiver.recv_timeout(BEGINS).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
    }
}

/// Returns whether this error means that a process did not write its [first line](Killed::begun) in time.
pub(crate) fn is_hanging(error: &Error) -> bool {
    error.kind() == ErrorKind::TimedOut
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A memory server process; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    process: Killed,
    /// Address on which the server listens.
    pub(crate) address: String,
}

impl ServerProcess {
    /// Starts a memory server on this machine; `program` is this lab's executable.
    ///
    /// The server ends when the calling thread ends, so that thread must live as long as the server is
    /// needed.
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

/// Returns the error of a process that ended without its expected output.
pub(crate) fn nothing() -> Error {
    Error::other("the process ended without its expected output")
}
