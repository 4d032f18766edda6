//! The parent's handle of a child: starts it, reads from it, kills it.

use std::io::BufReader;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::child::Orders;
use super::protocol::{Acknowledged, Message, read_all};
use crate::arguments::StoreArguments;

/// Longest time for the child to open the store.
const OPENS_WITHIN: Duration = Duration::from_secs(60);

/// A running child. The drop kills it.
#[derive(Debug)]
pub(super) struct Victim {
    child: Child,
    ready: Receiver<Instant>,
    listener: Option<JoinHandle<Result<Vec<Acknowledged>>>>,
}

impl Victim {
    /// Starts this program again as a child on the store at `path`, and a thread that reads its messages.
    pub(super) fn start(
        store: &StoreArguments,
        path: &Path,
        orders: Orders,
        trace: Option<&Path>,
    ) -> Result<Self> {
        let program =
            std::env::current_exe().context("cannot find this program's own file to start it again")?;
        let Orders { run, seed, accounts, threads, in_flight } = orders;
        let numbers = [
            ("--run", u64::from(run)),
            ("--seed", seed),
            ("--accounts", u64::from(accounts)),
            ("--threads", u64::from(threads)),
            ("--in-flight", in_flight as u64),
        ];
        let memory = store.memory.map(|bytes| ("--memory", bytes));
        let cache = store.cache.map(|bytes| ("--cache", bytes as u64));
        let mut command = Command::new(&program);
        command.arg("demo-child").arg(path).stdin(Stdio::null()).stdout(Stdio::piped());
        for (name, number) in numbers.into_iter().chain(memory).chain(cache) {
            command.arg(format!("{name}={number}"));
        }
        if store.direct_pages {
            command.arg("--direct-pages");
        }
        if let Some(file) = &store.key_file {
            command.arg("--key-file").arg(file);
        }
        if let Some(file) = trace {
            command.arg("--trace").arg(file);
        }
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, ready) = channel();
        let listener = Some(thread::spawn(move || listen(stdout, &sender)));
        Ok(Self { child, ready, listener })
    }

    /// Kills the child `span` after it has opened the store. Returns its messages, and the actual time of its
    /// work.
    pub(super) fn kill_after_work_of(self, span: Duration) -> Result<(Vec<Acknowledged>, Duration)> {
        match self.ready.recv_timeout(OPENS_WITHIN) {
            Ok(ready) => {
                thread::sleep((ready + span).saturating_duration_since(Instant::now()));
                let worked = ready.elapsed();
                Ok((self.kill()?, worked))
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the child ended before it had the store open"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the child did not open the store within {} s", OPENS_WITHIN.as_secs())
            }
        }
    }

    /// Kills the child `span` after its start, in any state.
    pub(super) fn kill_after(self, span: Duration) -> Result<Vec<Acknowledged>> {
        thread::sleep(span);
        self.kill()
    }

    /// Kills the child with SIGKILL, and then reads the pipe to its end: messages written before its end
    /// count.
    fn kill(mut self) -> Result<Vec<Acknowledged>> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the child ended by itself ({status}) before it was killed");
        }
        self.child.kill().context("cannot kill the child")?;
        self.child.wait().context("cannot wait for the killed child")?;
        let listener = self.listener.take().expect("only this function takes it");
        listener.join().expect("the listener does not panic")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // After `kill` both calls fail or have no effect; after an error no child may be left running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stdout: ChildStdout, ready: &Sender<Instant>) -> Result<Vec<Acknowledged>> {
    let mut acknowledged = Vec::new();
    read_all(BufReader::with_capacity(1 << 20, stdout), |message| match message {
        // An error means that no thread waits for the message, as in `kill_after`.
        Message::Ready => drop(ready.send(Instant::now())),
        Message::Acknowledged(one) => acknowledged.push(one),
    })
    .context("cannot parse a message of the child")?;
    Ok(acknowledged)
}
