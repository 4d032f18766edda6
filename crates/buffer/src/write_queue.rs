//! Batches of one cleaning that are written by several threads at once, so that the device has several writes
//! in flight.
//!
//! The caller of a cleaning queues its batches, and writes them one after the other; the cleaner's *helpers*
//! take batches from the other end of the queue. Without helpers (a store without threads of its own) the
//! caller writes all of them, in their order. Batches left by a caller that panicked (G9) are written by the
//! helpers.

use std::collections::VecDeque;

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
    helpers: usize,
    is_ending: bool,
}

/// Batches that wait for a thread.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    state: Mutex<State>,
    changed: Condvar,
}

impl WriteQueue {
    /// Threads that write batches besides the callers.
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
        self.state.lock().batches.extend(batches);
        self.changed.notify_all();
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

    /// Writes queued batches by `write` until [`WriteQueue::end`] is called.
    pub(crate) fn help(&self, write: impl Fn(&[FrameId]) -> Result<Vec<FrameId>, WriteError>) {
        let mut state = self.state.lock();
        while !state.is_ending {
            match state.batches.pop_back() {
                Some(batch) => {
                    drop(state);
                    batch.write(&write);
                    state = self.state.lock();
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// The helpers that are about to be started: as many.
    pub(crate) fn begin(&self, helpers: usize) {
        let mut state = self.state.lock();
        (state.helpers, state.is_ending) = (helpers, false);
    }

    /// Has every helper return.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        (state.helpers, state.is_ending) = (0, true);
        self.changed.notify_all();
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
