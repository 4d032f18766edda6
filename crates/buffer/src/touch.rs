//! Touches the memory of buffers before their first use, in a background job.
//!
//! The system clears memory at its first use, a huge page of 2 MiB at once, and the thread that loads a page
//! waits: 0.2 ms, or several milliseconds in a virtual machine if the host provides the memory only then. So
//! when the buffers in use come near the end of the touched memory, a job touches the next part. The content
//! does not change. A thread that is faster than the job touches the memory itself, as without the job.

use std::ops::Range;
// These are hints on which no protocol depends, so no model needs to switch threads at them.
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use azekura_base::background::Starter;

use crate::memory::PageMemory;

/// Bytes that a job touches.
const STEP_BYTES: usize = 4 << 20;
/// Least size of a pool's memory that is touched ahead. A smaller cache is filled within a moment.
const LEAST_BYTES: usize = 64 << 20;
/// Bytes that are in use before the first job, so that a pool with few pages uses little memory.
const FIRST_BYTES: usize = 1 << 20;

/// Larger than the number of any buffer.
const NEVER: u32 = u32::MAX;

/// The part of the memory that is touched next. Buffers are first used in ascending order
/// ([`crate::index_stack`]).
#[derive(Debug)]
pub(crate) struct TouchAhead {
    /// The use of a buffer with this number, or a larger one, adds a step to the number and starts a job. The
    /// job touches the step that begins with the new number.
    due: AtomicU32,
    starter: Starter,
}

impl Default for TouchAhead {
    fn default() -> Self {
        Self { due: AtomicU32::new(NEVER), starter: Starter::default() }
    }
}

impl TouchAhead {
    /// Stores `start`, which starts a job: a call of [`run`](Self::run).
    pub(crate) fn begin(&self, memory: &PageMemory, start: impl Fn() + Send + Sync + 'static) {
        if memory.buffers() * memory.page_bytes() >= LEAST_BYTES {
            self.starter.set(start);
            self.due.store((FIRST_BYTES / memory.page_bytes()) as u32, Relaxed); // Relaxed: a hint
        }
    }

    /// Starts no further job.
    pub(crate) fn end(&self) {
        self.due.store(NEVER, Relaxed); // Relaxed: a hint
    }

    /// Notes that a buffer is about to be used. Usually costs one load.
    #[inline]
    pub(crate) fn note_use(&self, buffer: u32, memory: &PageMemory) {
        let due = self.due.load(Relaxed); // Relaxed: a hint
        if buffer >= due {
            self.start_job(buffer, due, memory);
        }
    }

    #[cold]
    fn start_job(&self, buffer: u32, due: u32, memory: &PageMemory) {
        let next = buffer + step(memory);
        let next = if (next as usize) < memory.buffers() { next } else { NEVER };
        // Relaxed: decides only which of several threads starts the job.
        if self.due.compare_exchange(due, next, Relaxed, Relaxed).is_ok() {
            self.starter.start();
        }
    }

    /// Touches the step that begins with the buffer that is due.
    pub(crate) fn run(&self, memory: &PageMemory) {
        if let Some(part) = self.part(memory) {
            let _ = memory.touch(part); // a hint
        }
    }

    fn part(&self, memory: &PageMemory) -> Option<Range<u32>> {
        let due = self.due.load(Relaxed); // Relaxed: a hint
        (due != NEVER).then(|| due..(due + step(memory)).min(memory.buffers() as u32))
    }
}

/// Returns the number of buffers that a job touches.
fn step(memory: &PageMemory) -> u32 {
    (STEP_BYTES / memory.page_bytes()) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    const PAGE: usize = 8 << 10;
    const STEP: u32 = (STEP_BYTES / PAGE) as u32;

    #[test]
    fn a_job_is_started_once_for_each_step_of_buffers_in_use() {
        let memory = PageMemory::zeroed(LEAST_BYTES / PAGE, PAGE);
        let started = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&started);
        let touch = TouchAhead::default();
        touch.note_use(8000, &memory);
        touch.begin(&memory, move || {
            count.fetch_add(1, Relaxed); // Relaxed: one thread
        });
        let mut parts = Vec::new();
        for buffer in 0..memory.buffers() as u32 {
            let before = started.load(Relaxed); // Relaxed: one thread
            touch.note_use(buffer, &memory);
            touch.note_use(buffer / 2, &memory);
            // Relaxed: one thread
            if started.load(Relaxed) > before {
                touch.run(&memory);
                parts.push((buffer, touch.part(&memory)));
            }
        }
        let first = (FIRST_BYTES / PAGE) as u32;
        let expected = (0..16).map(|n| first + n * STEP);
        let expected = expected.map(|buffer| {
            let next = buffer + STEP;
            (buffer, (next < 8192).then(|| next..(next + STEP).min(8192)))
        });
        assert_eq!(parts, expected.collect::<Vec<_>>());
        touch.end();
        touch.note_use(8191, &memory);
        assert_eq!(started.load(Relaxed), 16); // Relaxed: one thread
    }

    #[test]
    fn a_small_pool_starts_no_job() {
        let memory = PageMemory::zeroed(LEAST_BYTES / PAGE - 1, PAGE);
        let touch = TouchAhead::default();
        touch.begin(&memory, || panic!("a job"));
        touch.note_use(8000, &memory);
    }
}
