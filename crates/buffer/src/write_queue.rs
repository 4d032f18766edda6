//! Queues the batches of one cleaning for several threads, so that the device has several writes in flight.
//!
//! The caller of a cleaning queues its batches, and writes them one after the other; *helpers* take batches
//! from the other end of the queue. A helper is a job that is started for queued batches and ends when the
//! queue is empty. Without helpers (a store without background jobs) the caller writes all batches in order.
//! If a caller panics (G9), the helpers write the batches that it left.

use std::collections::VecDeque;
use std::fmt;

use azekura_base::sync::{Arc, Condvar, Mutex};

use crate::error::WriteError;
use crate::frame::FrameId;

/// The result of one cleaning.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Frames with a written image.
    pub(crate) written: Vec<FrameId>,
    /// The first error of a batch.
    pub(crate) error: Option<WriteError>,
    /// Number of batches not yet written.
    left: usize,
}

#[derive(Debug, Default)]
struct Cleaning {
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

/// A batch to write. The drop counts the batch as done, also after a panic of the store (G9).
#[derive(Debug)]
pub(crate) struct Batch {
    frames: Vec<FrameId>,
    cleaning: Arc<Cleaning>,
}

impl Batch {
    /// Writes the batch by `write` and records the result.
    pub(crate) fn write(self, write: impl FnOnce(&[FrameId]) -> Result<Vec<FrameId>, WriteError>) {
        let done = write(&self.frames);
        let mut outcome = self.cleaning.outcome.lock();
        match done {
            Ok(written) => outcome.written.extend(written),
            Err(error) => drop(outcome.error.get_or_insert(error)),
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut outcome = self.cleaning.outcome.lock();
        outcome.left -= 1;
        if outcome.left == 0 {
            self.cleaning.ended.notify_all();
        }
    }
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<Batch>,
    /// Largest number of helpers at once.
    helpers: usize,
    /// Number of helpers that are started and have not ended.
    running: usize,
    start: Option<Start>,
}

/// A function that starts a helper; `false`: the helper does not run.
type StartFn = dyn Fn() -> bool + Send + Sync;

#[derive(Clone)]
struct Start(std::sync::Arc<StartFn>);

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Start")
    }
}

/// The queue of batches that wait for a thread.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    state: Mutex<State>,
}

impl WriteQueue {
    /// Returns the largest number of helpers that write batches besides the callers.
    pub(crate) fn helpers(&self) -> usize {
        self.state.lock().helpers
    }

    /// Writes the frames in batches of `batch_frames` by `write`, in this thread and in the helpers. Returns
    /// when all batches are done. If a batch fails, batches that no thread has begun are not written.
    pub(crate) fn write_all(
        &self,
        frames: &[FrameId],
        batch_frames: usize,
        write: impl Fn(&[FrameId]) -> Result<Vec<FrameId>, WriteError>,
    ) -> Outcome {
        if self.helpers() == 0 || frames.len() <= batch_frames {
            return write_here(frames, batch_frames, write);
        }
        let cleaning = Arc::new(Cleaning::default());
        let batch = |frames: &[FrameId]| Batch { frames: frames.to_vec(), cleaning: Arc::clone(&cleaning) };
        let batches: Vec<Batch> = frames.chunks(batch_frames).map(batch).collect();
        cleaning.outcome.lock().left = batches.len();
        self.queue(batches);
        while let Some(batch) = self.take_of(&cleaning) {
            if cleaning.outcome.lock().error.is_none() {
                batch.write(&write);
            }
        }
        let mut outcome = cleaning.outcome.lock();
        while outcome.left > 0 {
            cleaning.ended.wait(&mut outcome);
        }
        std::mem::take(&mut *outcome)
    }

    /// Takes the next batch of a cleaning, if no helper has it.
    fn take_of(&self, cleaning: &Arc<Cleaning>) -> Option<Batch> {
        let mut state = self.state.lock();
        let at = state.batches.iter().position(|batch| Arc::ptr_eq(&batch.cleaning, cleaning))?;
        state.batches.remove(at)
    }

    /// Queues batches and starts helpers for all but one, which the caller writes.
    fn queue(&self, batches: Vec<Batch>) {
        let mut state = self.state.lock();
        let more = (batches.len() - 1).min(state.helpers.saturating_sub(state.running));
        state.batches.extend(batches);
        let Some(start) = state.start.clone() else { return };
        state.running += more;
        drop(state);
        let refused = (0..more).filter(|_| !(start.0)()).count();
        if refused > 0 {
            self.state.lock().running -= refused;
        }
    }

    /// Runs a helper: writes queued batches by `write` until the queue is empty.
    pub(crate) fn help(&self, write: impl Fn(&[FrameId]) -> Result<Vec<FrameId>, WriteError>) {
        let mut helping = Helping { queue: self, has_ended: false };
        while let Some(batch) = helping.next() {
            batch.write(&write);
        }
    }

    /// Stores `start`, which starts up to `helpers` helpers at once from now on.
    pub(crate) fn begin(&self, helpers: usize, start: impl Fn() -> bool + Send + Sync + 'static) {
        let mut state = self.state.lock();
        (state.helpers, state.running, state.start) = (helpers, 0, Some(Start(std::sync::Arc::new(start))));
    }

    /// Stops the starting of helpers. Running helpers write the queued batches.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        (state.helpers, state.start) = (0, None);
    }
}

/// A helper that is included in the number of running helpers.
struct Helping<'q> {
    queue: &'q WriteQueue,
    has_ended: bool,
}

impl Helping<'_> {
    /// Takes the next batch. With `None` the helper is no longer counted as running, so the next batches
    /// start another helper.
    fn next(&mut self) -> Option<Batch> {
        let mut state = self.queue.state.lock();
        let batch = state.batches.pop_back();
        if batch.is_none() {
            state.running -= 1;
            self.has_ended = true;
        }
        batch
    }
}

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.queue.state.lock().running -= 1; // A batch panicked.
        }
    }
}

fn write_here(
    frames: &[FrameId],
    batch_frames: usize,
    write: impl Fn(&[FrameId]) -> Result<Vec<FrameId>, WriteError>,
) -> Outcome {
    let mut outcome = Outcome::default();
    for batch in frames.chunks(batch_frames) {
        match write(batch) {
            Ok(written) => outcome.written.extend(written),
            Err(error) => {
                outcome.error = Some(error);
                break;
            }
        }
    }
    outcome
}
