//! Which worker's records go to which stream: worker `w` to stream `w` modulo the number of streams in use.
//!
//! - **ASSIGN-1** The number in use changes only while the changer leads every stream's gate, so a flush has
//!   one assignment from its beginning to its end.
//! - **ASSIGN-2** Before it changes, everything in the buffers is written by the streams it was assigned to,
//!   and no record gets in meanwhile. So whatever a stream writes afterwards has larger LSNs than any stream
//!   has told to be complete (`complete_below`, which recovery trusts), and what somebody who still knows the
//!   old number looks for is durable.
//! - **ASSIGN-3** Who has appended a record, or was refused, looks the stream up after that. The changer
//!   stores the number before it opens the buffers, so by their latches he sees the new one.

use azekura_base::sync::Arc;
use azekura_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// The number of streams in use, shared by the log and its streams.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    workers: usize,
    in_use: Arc<AtomicUsize>,
    /// Workers that may have records: all, or those that had one. Set under the writer of the worker's
    /// stream, never cleared.
    open: Arc<Box<[AtomicBool]>>,
}

impl Assignment {
    pub(crate) fn new(workers: usize, streams: usize) -> Self {
        Self::with_workers(workers, streams, true)
    }

    /// The same for workers that are opened one by one.
    pub(crate) fn closed(workers: usize, streams: usize) -> Self {
        Self::with_workers(workers, streams, false)
    }

    fn with_workers(workers: usize, streams: usize, are_open: bool) -> Self {
        let open = (0..workers).map(|_| AtomicBool::new(are_open)).collect();
        Self { workers, in_use: Arc::new(AtomicUsize::new(streams.max(1))), open: Arc::new(open) }
    }

    // Relaxed, here and below: read and written under the writer of the worker's stream, and by the changer,
    // which holds all writers.
    pub(crate) fn is_open(&self, worker: usize) -> bool {
        self.open[worker].load(Relaxed)
    }

    pub(crate) fn open(&self, worker: usize) {
        self.open[worker].store(true, Relaxed);
    }

    /// The workers of a stream that are open, if so many streams were in use.
    pub(crate) fn open_of(&self, stream: usize, in_use: usize) -> u64 {
        (stream..self.workers).step_by(in_use).filter(|&worker| self.is_open(worker)).count() as u64
    }

    /// Streams in use.
    pub(crate) fn in_use(&self) -> usize {
        // Acquire: pairs with the Release in `use_streams`; ASSIGN-3 needs no more than the latches.
        self.in_use.load(Acquire)
    }

    /// For the changer (ASSIGN-1).
    pub(crate) fn use_streams(&self, count: usize) {
        self.in_use.store(count.max(1), Release);
    }

    /// The stream of a worker.
    pub(crate) fn stream_of(&self, worker: usize) -> usize {
        worker % self.in_use()
    }

    /// The workers of a stream, in order; none if it is not in use.
    pub(crate) fn workers_of(&self, stream: usize) -> impl Iterator<Item = usize> + use<> {
        let in_use = self.in_use();
        let first = if stream < in_use { stream } else { self.workers };
        (first..self.workers).step_by(in_use)
    }

    /// The most workers that a stream can have, whatever the number in use.
    pub(crate) const fn most_workers(workers: usize, stream: usize) -> usize {
        // With `stream + 1` in use, the least that use it.
        workers.saturating_sub(stream).div_ceil(stream + 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_one_stream_whatever_the_number_in_use() {
        for workers in 1..20 {
            let assignment = Assignment::new(workers, 1);
            for in_use in 1..=workers {
                assignment.use_streams(in_use);
                let mut seen = vec![0; workers];
                for stream in 0..workers {
                    let of: Vec<usize> = assignment.workers_of(stream).collect();
                    assert!(
                        of.len() <= Assignment::most_workers(workers, stream),
                        "{workers} {in_use} {stream}"
                    );
                    assert_eq!(of.is_empty(), stream >= in_use);
                    for worker in of {
                        assert_eq!(assignment.stream_of(worker), stream);
                        seen[worker] += 1;
                    }
                }
                assert!(seen.iter().all(|&times| times == 1));
            }
        }
    }
}
