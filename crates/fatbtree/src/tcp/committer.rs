//! The committer: one thread that waits for the log on behalf of all transactions. Commits that arrive
//! during a flush form the next batch. So one thread serves any number of pending commits, and no worker of
//! the node blocks for a flush.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use azekura::CommitTicket;
use tokio::sync::oneshot;

use crate::world::Task;

/// Waits for commits. Clones are the same; its thread ends with the last of them.
#[derive(Clone, Debug)]
pub struct Committer {
    queue: Sender<Waiting>,
}

type Waiting = (CommitTicket, oneshot::Sender<Result<(), String>>);

impl Committer {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn start() -> io::Result<Self> {
        let (queue, waiting) = channel();
        thread::Builder::new().name("azekura-commit".into()).spawn(move || work(&waiting))?;
        Ok(Self { queue })
    }

    /// Ends when the commit is durable; or returns the reason that it may not be.
    #[must_use]
    pub fn lasting(&self, ticket: CommitTicket) -> Task<'static, Result<(), String>> {
        let (tell, told) = oneshot::channel();
        let gone = || "the node is stopping".to_owned();
        let is_sent = self.queue.send((ticket, tell)).is_ok();
        Box::pin(
            async move { if is_sent { told.await.unwrap_or_else(|_| Err(gone())) } else { Err(gone()) } },
        )
    }
}

fn work(queue: &Receiver<Waiting>) {
    while let Ok(first) = queue.recv() {
        // The newest last: most often the others are durable with it.
        let mut batch: Vec<_> = std::iter::once(first).chain(queue.try_iter()).collect();
        while let Some((ticket, tell)) = batch.pop() {
            // The asking task may have ended.
            let _ = tell.send(ticket.wait().map_err(|error| error.to_string()));
        }
    }
}
