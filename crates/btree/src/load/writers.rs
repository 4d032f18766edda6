//! Writes loaded pages concurrently with the load: each batch in a thread, with few batches in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use azekura_base::PageId;
use azekura_base::sync::thread::{self, JoinHandle};
use azekura_buffer::{BufferPool, WriteError};

type Written = Result<(), WriteError>;

/// Largest number of batches in flight to the disk.
const MOST: usize = 2;

/// The batches in flight. The drop waits for them.
#[derive(Debug)]
pub(super) struct Writers {
    pool: Arc<BufferPool>,
    /// `true` if other threads write the batches.
    aside: bool,
    running: VecDeque<JoinHandle<Written>>,
}

impl Writers {
    pub(super) const fn new(pool: Arc<BufferPool>, aside: bool) -> Self {
        Self { pool, aside, running: VecDeque::new() }
    }

    /// Starts writing these pages, and waits for the oldest batch if too many are in flight. An error may
    /// belong to an earlier batch.
    pub(super) fn write(&mut self, pages: Vec<PageId>, are_fresh: bool) -> Written {
        if !self.aside {
            return self.pool.flush_and_evict(&pages, are_fresh);
        }
        if self.running.len() >= MOST
            && let Some(oldest) = self.running.pop_front()
        {
            finished(oldest)?;
        }
        let (pool, batch) = (Arc::clone(&self.pool), pages.clone());
        let started = thread::Builder::new()
            .name("azekura-load".into())
            .spawn(move || pool.flush_and_evict(&batch, are_fresh));
        match started {
            Ok(thread) => self.running.push_back(thread),
            // No thread available: the caller writes.
            Err(_) => self.pool.flush_and_evict(&pages, are_fresh)?,
        }
        Ok(())
    }

    /// Waits for all batches, and makes them durable; returns the page store's number at that moment.
    pub(super) fn finish(&mut self) -> Result<u64, WriteError> {
        while let Some(thread) = self.running.pop_front() {
            finished(thread)?;
        }
        self.pool.sync_for_checkpoint()
    }
}

fn finished(thread: JoinHandle<Written>) -> Written {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Drop for Writers {
    fn drop(&mut self) {
        // After an error the pages will be freed. No late write of fresh pages may reach them after their
        // reuse.
        while let Some(thread) = self.running.pop_front() {
            let _ = thread.join();
        }
    }
}
