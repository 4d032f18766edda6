//! Batches of one cleaning that are written by several threads at once, so that the device has several writes
//! in flight.
//!
//! The caller of a cleaning queues its batches, and writes them one after the other; *helpers* take batches
//! from the other end of the queue. A helper is a job that is started for queued batches and ends when the
//! queue is empty. Without helpers (a store without background jobs) the caller writes all batches, in their
//! order. Batches left by a caller that panicked (G9) are written by the helpers.

use std::collections::VecDeque;
use std::fmt;

use azekura_base::sync::{Arc, Condvar, Mutex};

use crate::error::WriteError;
use crate::frame::FrameId;

/// The result of one cleaning.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Frames of which an image was written.
    pub(crate) written: Vec<FrameId>,
    /// The first error of a batch.
    pub(crate) error: Option<WriteError>,
    /// Batches not yet written.
    left: usize,
}

#[derive(Debug, Default)]
struct Cleaning {
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

/// A batch to write. Dropping it counts it as done, even if the store panicked (G9).
#[derive(Debug)]
pub(crate) struct Batch {
    frames: Vec<FrameId>,
    cleaning: Arc<Cleaning>,
}

impl Batch {
    /// Writes it by `write` and notes what came of it.
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
    /// Most helpers at once.
    helpers: usize,
    /// Helpers that are started and have not ended.
    running: usize,
    start: Option<Start>,
}

/// Starts a helper; `false`: it does not run.
type StartFn = dyn Fn() -> bool + Send + Sync;

#[derive(Clone)]
struct Start(std::sync::Arc<StartFn>);

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Start")
    }
}

/// Batches that wait for a thread.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    state: Mutex<State>,
}

impl WriteQueue {
    /// Most helpers that write batches besides the callers.
    pub(crate) fn helpers(&self) -> usize {
        self.state.lock().helpers
    }

    /// Writes the frames in batches of `batch_frames` by `write`, here and in the helpers; returns when all
    /// batches are done. Batches that no thread has begun when one fails are not written.
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

    /// The next batch of a cleaning, if no helper has it.
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

    /// The work of a helper: writes queued batches by `write` until there is none.
    pub(crate) fn help(&self, write: impl Fn(&[FrameId]) -> Result<Vec<FrameId>, WriteError>) {
        let mut helping = Helping { queue: self, has_ended: false };
        while let Some(batch) = helping.next() {
            batch.write(&write);
        }
    }

    /// Has `start` start helpers from now on, so many at once.
    pub(crate) fn begin(&self, helpers: usize, start: impl Fn() -> bool + Send + Sync + 'static) {
        let mut state = self.state.lock();
        (state.helpers, state.running, state.start) = (helpers, 0, Some(Start(std::sync::Arc::new(start))));
    }

    /// No helper is started any more, and those that run write what is queued.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        (state.helpers, state.start) = (0, None);
    }
}

/// A helper that is counted.
struct Helping<'q> {
    queue: &'q WriteQueue,
    has_ended: bool,
}

impl Helping<'_> {
    /// The next batch; `None`: the helper is counted no more, so the next batches get another.
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
            self.queue.state.lock().running -= 1; // a batch panicked
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
