//! The thread that writes dirty pages before the hand comes to them, so that misses find clean victims.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::pool::BufferPool;

const ASLEEP: u32 = 0;
const CALLED: u32 = 1;
const STOPPED: u32 = 2;

/// How the cleaner is called.
#[derive(Debug)]
pub(crate) struct CleanerBell(WaitWord);

impl Default for CleanerBell {
    fn default() -> Self {
        Self(WaitWord::new(ASLEEP))
    }
}

impl CleanerBell {
    /// Wakes the cleaner if it sleeps. A load, as a rule.
    pub(crate) fn ring(&self) {
        self.ring_if(|| true);
    }

    pub(crate) fn ring_if(&self, is_needed: impl FnOnce() -> bool) {
        let word = self.0.word();
        // Relaxed: the bell orders nothing; a ring that is missed comes again with the next dirty page met.
        if word.load(Relaxed) == ASLEEP
            && is_needed()
            && word.compare_exchange(ASLEEP, CALLED, AcqRel, Relaxed).is_ok()
        {
            self.0.wake_all();
        }
    }
}

/// Longest sleep between two looks.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The cleaner's thread; dropping it stops and joins it.
#[derive(Debug)]
pub struct Cleaner {
    pool: Arc<BufferPool>,
    thread: Option<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts a cleaner for `pool`. Without one, pages are written by misses and by [`BufferPool::clean`].
    #[must_use]
    pub fn spawn(pool: Arc<BufferPool>) -> Self {
        pool.bell.0.word().store(ASLEEP, Relaxed);
        let cleaned = Arc::clone(&pool);
        let thread =
            std::thread::Builder::new().name("azekura-cleaner".into()).spawn(move || run(&cleaned)).ok();
        Self { pool, thread }
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.pool.bell.0.set_and_wake(STOPPED);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the pool does without its cleaner.
            let _ = thread.join();
        }
    }
}

fn run(pool: &BufferPool) {
    let bell = &pool.bell.0;
    let batch = pool.batch_pages();
    loop {
        bell.wait(ASLEEP, Some(LONGEST_SLEEP));
        // An error reaches whoever needs the frame, or the checkpoint; here it only ends this round.
        while let Ok(written) = pool.clean(None, batch) {
            if bell.word().load(Relaxed) == STOPPED {
                return;
            }
            if written == 0 || (written < batch && !pool.is_too_dirty()) {
                break;
            }
        }
        if bell.word().compare_exchange(CALLED, ASLEEP, AcqRel, Relaxed) == Err(STOPPED) {
            return;
        }
    }
}
