//! The committer: one thread that waits for the log on behalf of all transactions. Commits that arrive during
//! a flush form the next batch. So one thread serves any number of pending commits, and no pool thread of the
//! node waits for a flush.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use azekura::CommitTicket;
use tokio::sync::oneshot;

use crate::world::Task;

/// Handle of the committer. All clones use the same thread, which ends with the last clone.
#[derive(Clone, Debug)]
pub struct Committer {
    queue: Sender<Waiting>,
}

type Waiting = (CommitTicket, oneshot::Sender<Result<(), String>>);

impl Committer {
    /// Starts the committer's thread.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let (queue, waiting) = channel();
        thread::Builder::new().name("azekura-commit".into()).spawn(move || work(&waiting))?;
        Ok(Self { queue })
    }

    /// Returns a task that ends when the commit is durable. The task returns an error if the commit may not
    /// be durable.
    #[must_use]
    pub fn lasting(&self, ticket: CommitTicket) -> Task<'static, Result<(), String>> {
        let (sender, receiver) = oneshot::channel();
        let gone = || "the node is stopping".to_owned();
        let is_sent = self.queue.send((ticket, sender)).is_ok();
        Box::pin(
            async move { if is_sent { receiver.await.unwrap_or_else(|_| Err(gone())) } else { Err(gone()) } },
        )
    }
}

fn work(queue: &Receiver<Waiting>) {
    while let Ok(first) = queue.recv() {
        // The newest ticket is last and is awaited first: its flush usually covers the others.
        let mut batch: Vec<_> = std::iter::once(first).chain(queue.try_iter()).collect();
        while let Some((ticket, sender)) = batch.pop() {
            // The task that waits may have ended.
            let _ = sender.send(ticket.wait().map_err(|error| error.to_string()));
        }
    }
}
