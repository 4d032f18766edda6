//! The thread that writes dirty pages before the hand comes to them, so that misses find clean victims.

use std::sync::Arc;
use std::time::Duration;

use azekura_base::sync::WaitWord;
use azekura_base::sync::atomic::AtomicU32;
use azekura_base::sync::atomic::Ordering::{AcqRel, Relaxed};
use azekura_base::sync::thread::{self, JoinHandle};
use azekura_trace::ThreadTag;

use crate::pool::BufferPool;
use crate::supply::FrameSupply;

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

    /// Calls for a round that begins after this call (SUPPLY-2).
    pub(crate) fn call(&self) {
        // AcqRel: pairs with the exchange of the cleaner that takes the call back, which so sees what the
        // caller did before. A larger word says that the cleaner is stopped.
        if self.word.word().fetch_max(CALLED, AcqRel) == ASLEEP {
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
/// Batches that one cleaning has in flight: one is copied, one waits for the double-write area, and two for
/// their pages' places.
const IN_FLIGHT: usize = 4;

/// The cleaner's threads; dropping it stops and joins them.
#[derive(Debug)]
pub struct Cleaner {
    pool: Arc<BufferPool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cleaner {
    /// Starts a cleaner for `pool`. Without one, pages are written by misses and by [`BufferPool::clean`].
    ///
    /// # Errors
    ///
    /// The system gives no thread.
    pub fn spawn(pool: Arc<BufferPool>) -> std::io::Result<Self> {
        pool.bell.word.word().store(ASLEEP, Relaxed); // ordered by the spawn
        let mut cleaner = Self { pool, threads: Vec::new() };
        let pool = Arc::clone(&cleaner.pool);
        pool.supply.begin();
        let started = cleaner.start("azekura-cleaner", move || run(&pool));
        started.inspect_err(|_| cleaner.pool.supply.end())?;
        cleaner.pool.write_queue.begin(IN_FLIGHT - 1);
        for _ in 1..IN_FLIGHT {
            let pool = Arc::clone(&cleaner.pool);
            cleaner.start("azekura-writer", move || pool.help_writing())?;
        }
        Ok(cleaner)
    }

    fn start(&mut self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.into()).spawn(run)?);
        Ok(())
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        self.pool.bell.stop();
        self.pool.write_queue.end();
        for thread in self.threads.drain(..) {
            // A panic there has been printed; the pool does without its cleaner.
            let _ = thread.join();
        }
    }
}

/// Misses wait for the cleaner as long as this lives (SUPPLY-3).
struct Serving<'p>(&'p FrameSupply);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn run(pool: &BufferPool) {
    pool.bell.thread.store(azekura_trace::thread_tag().0, Relaxed); // a hint for the tracer
    pool.bell.serve(&pool.supply, || clean_round(pool));
}

impl CleanerBell {
    /// The life of a cleaner, after [`FrameSupply::begin`]: a round after each call, until it is stopped.
    pub(crate) fn serve(&self, supply: &FrameSupply, round: impl Fn()) {
        let _serving = Serving(supply);
        loop {
            self.word.wait(ASLEEP, Some(LONGEST_SLEEP));
            // The call is taken back before the round (SUPPLY-2). AcqRel: pairs with `CleanerBell::call`.
            if self.word.word().compare_exchange(CALLED, ASLEEP, AcqRel, Relaxed) == Err(STOPPED) {
                return;
            }
            round();
        }
    }

    /// Ends the life of the cleaner.
    pub(crate) fn stop(&self) {
        // AcqRel: a read-modify-write, so that no call that races with it can end up later in the word.
        self.word.word().swap(STOPPED, AcqRel);
        self.word.wake_all();
    }
}

/// Frees frames and writes batches until there is nothing to write, or few pages are dirty and no miss waits.
fn clean_round(pool: &BufferPool) {
    let most = pool.batch_pages() * pool.batches_in_flight();
    let is_stopped = || pool.bell.word.word().load(Relaxed) == STOPPED; // a flag
    pool.supply_frames();
    // An error reaches whoever needs the frame, or the checkpoint; here it only ends this round.
    while let Ok(written) = pool.clean(None, most)
        && written > 0
        && !is_stopped()
    {
        if written < most && !pool.is_too_dirty() && !pool.supply.is_awaited() {
            break;
        }
    }
    pool.supply.end_round();
    pool.supply_frames_or_give_up();
}
