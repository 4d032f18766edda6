//! Requests without the node's leaf locks, as threads of an application serve them (LOCAL-1). A simulation
//! has one thread, so tasks replace those threads.

use std::rc::Rc;
use std::time::Duration;

use crate::error::Error;
use crate::key::{Key, KeyRange, Target};
use crate::message::{Answer, Refusal, Work};
use crate::node::{Asked, LocalEntry, Node, RunError};
use crate::world::{Slot, Task};

impl Node {
    /// Serves a request for a single key, in a task that ends with the node. Returns `None` if other threads
    /// may not serve the key.
    ///
    /// # Errors
    ///
    /// See [`call`](Self::call).
    pub async fn serve_one_here(&self, key: Key, work: Work) -> Option<Result<Answer, Error>> {
        let entry = self.local_keys().enter(&key)?;
        let done =
            self.beside(entry, |node| Box::pin(async move { node.edit(key, &work).await.result })).await;
        Some(
            done.unwrap_or_else(|| Err(Refusal::Failed { pe: self.pe(), reason: "no answer".to_owned() }))
                .map_err(error),
        )
    }

    /// Runs a request of the application with several keys, otherwise like
    /// [`serve_one_here`](Self::serve_one_here).
    ///
    /// # Errors
    ///
    /// See [`call`](Self::call).
    pub async fn run_here(&self, keys: &[Key], bytes: Vec<u8>) -> Option<Result<Vec<u8>, Error>> {
        let (first, others) = keys.split_first()?;
        let entry = self.local_keys().enter(first)?;
        if !others.iter().all(|key| entry.serves(key)) {
            return None;
        }
        let (target, range) = (Target::At(first.clone()), KeyRange::all());
        let (others, time_left, most_bytes) = (others.to_vec(), Duration::MAX, usize::MAX);
        let asked = Asked { target, range, others, is_write: true, bytes, time_left, most_bytes };
        let done = self.beside(entry, |node| {
            Box::pin(async move { node.parts().2.run(asked).await.map(|ran| ran.bytes) })
        });
        let pe = self.pe();
        Some(match done.await {
            Some(Ok(bytes)) => Ok(bytes),
            Some(Err(RunError::Refused(reason))) => Err(Error::Store { pe, reason }),
            Some(Err(RunError::Application(reason))) => Err(Error::Application { reason }),
            Some(Err(RunError::Failed(_))) | None => Err(Error::Unknown { reason: "no answer".to_owned() }),
        })
    }

    async fn beside<T: 'static>(
        &self,
        entry: LocalEntry,
        job: impl FnOnce(Rc<Node>) -> Task<'static, T>,
    ) -> Option<T> {
        let slot = Slot::new();
        let result = Rc::clone(&slot);
        self.spawn(|node| {
            let job = job(node);
            Box::pin(async move {
                let done = job.await;
                drop(entry);
                result.put(done);
            })
        });
        let (world, options, _) = self.parts();
        world.timeout(options.request_timeout, slot.take()).await
    }
}

fn error(refusal: Refusal) -> Error {
    match refusal {
        Refusal::Store { pe, reason } => Error::Store { pe, reason },
        _ => Error::Unknown { reason: "no answer".to_owned() },
    }
}
