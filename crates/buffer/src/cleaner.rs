//! The thread that writes dirty pages before the hand comes to them, so that misses find clean victims.

use std::sync::Arc;
use std::time::Duration;

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::AtomicU32;
use azekura_base::sync::atomic::Ordering::{AcqRel, Relaxed};
use azekura_base::sync::thread::{self, JoinHandle};
use azekura_trace::ThreadTag;

use crate::pool::BufferPool;

const ASLEEP: u32 = 0;
const CALLED: u32 = 1;
const STOPPED: u32 = 2;

/// How the cleaner is called.
#[derive(Debug)]
pub(crate) struct CleanerBell {
    word: WaitWord,
    /// Who it is, for the tracer.
    thread: AtomicU32,
}

impl Default for CleanerBell {
    fn default() -> Self {
        Self { word: WaitWord::new(ASLEEP), thread: AtomicU32::new(0) }
    }
}

impl CleanerBell {
    /// Wakes the cleaner if it sleeps. A load, as a rule.
    pub(crate) fn ring(&self) {
        self.ring_if(|| true);
    }

    pub(crate) fn ring_if(&self, is_needed: impl FnOnce() -> bool) {
        let word = self.word.word();
        // Relaxed: the bell orders nothing; a ring that is missed comes again with the next dirty page met.
        if word.load(Relaxed) == ASLEEP
            && is_needed()
            && word.compare_exchange(ASLEEP, CALLED, AcqRel, Relaxed).is_ok()
        {
            self.word.wake_all();
        }
    }

    /// The cleaner's thread, if there is one.
    pub(crate) fn cleaner(&self) -> ThreadTag {
        // No load in a model: it would double the schedules and show nothing. Relaxed: a hint.
        if cfg!(loom) { ThreadTag::NONE } else { ThreadTag(self.thread.load(Relaxed)) }
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
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn spawn(pool: Arc<BufferPool>) -> std::io::Result<Self> {
        pool.bell.word.word().store(ASLEEP, Relaxed);
        let cleaned = Arc::clone(&pool);
        let thread = thread::Builder::new().name("azekura-cleaner".into()).spawn(move || run(&cleaned))?;
        Ok(Self { pool, thread: Some(thread) })
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.pool.bell.word.set_and_wake(STOPPED);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; the pool does without its cleaner.
            let _ = thread.join();
        }
    }
}

fn run(pool: &BufferPool) {
    let bell = &pool.bell.word;
    pool.bell.thread.store(azekura_trace::thread_tag().0, Relaxed);
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
