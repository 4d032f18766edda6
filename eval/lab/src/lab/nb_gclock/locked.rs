//! The paper's conventional buffer manager (§2.1): page table and replacement policy under one lock, here a
//! test-and-test-and-set lock with exponential backoff. Pages are read outside of the lock.
//!
//! 1. Under the lock: look the page up. If it is resident, record the hit in the policy; otherwise assign a
//!    frame and remove the frame's old page from the table. Pin the frame.
//! 2. Without the lock: if the frame has no content yet, read the page into a private image. The first thread
//!    that has read installs its image by CAS; the others drop theirs and count them (paper, Table 2). With
//!    blocking I/O only the first thread reads, and the others wait for it.
//! 3. Read the word of the page, and unpin the frame.
//!
//! | content word | meaning |
//! |---|---|
//! | 0 | empty |
//! | 1 | being copied in (blocking: read) by the thread that stored the 1 by CAS |
//! | 2 | valid |

use azekura_base::page::PageMut;
use azekura_base::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use azekura_base::sync::machine::{self, Work};
use azekura_base::{Backoff, PageBuf, PageId, PageWords, StripedCounter};
use azekura_baselines::TtasLock;
use azekura_buffer::PageStore;
use azekura_buffer::count::{own_rmw, shared_rmw, shared_store};
use azekura_sim::lines::Map;
use azekura_trace::Site;
use std::cell::RefCell;
use std::sync::atomic::AtomicU64;

use super::cache::{PageCache, Tally};
use super::device::{Device, PAGE_BYTES};
use super::policy::Policy;

static SITE: Site = Site::new("lab: buffer lock");
const EMPTY: u32 = 0;
const COPYING: u32 = 1;
const THERE: u32 = 2;
const WORDS: usize = PAGE_BYTES / 8;

/// A cache with page table and policy under one lock.
#[derive(Debug)]
pub struct Locked<P> {
    state: TtasLock<State<P>>,
    frames: Box<[Frame]>,
    words: Box<[AtomicU64]>,
    device: Device,
    misses: StripedCounter,
    duplicate_reads: StripedCounter,
}

#[derive(Debug)]
struct State<P> {
    policy: P,
    /// Hashed fast, so that the lock is held for a short time.
    table: Map<u64, u32>,
    /// The page of each frame; `None` for a free frame.
    held: Vec<Option<u64>>,
}

#[derive(Debug, Default)]
struct Frame {
    pins: AtomicU32,
    content: AtomicU32,
}

impl<P: Policy> Locked<P> {
    /// Returns an empty cache with this number of frames over a device.
    #[must_use]
    pub fn new(frames: usize, device: Device) -> Self {
        Self {
            state: TtasLock::new(State {
                policy: P::new(frames),
                table: Map::with_capacity_and_hasher(frames, Default::default()),
                held: vec![None; frames],
            }),
            frames: (0..frames).map(|_| Frame::default()).collect(),
            words: (0..frames * WORDS).map(|_| AtomicU64::new(0)).collect(),
            device,
            misses: StripedCounter::new(),
            duplicate_reads: StripedCounter::new(),
        }
    }

    /// Looks up or assigns a frame and pins it (step 1). Returns `None` while every frame is pinned.
    fn fix(&self, page: u64) -> Option<u32> {
        shared_rmw(); // counts the acquisition of the lock
        let mut state = self.state.lock(&SITE);
        let State { policy, table, held } = &mut *state;
        let frame = if let Some(frame) = table.get(&page) {
            machine::reads(frame);
            let frame = *frame;
            policy.hit(frame);
            frame
        } else {
            // Acquire: pairs with the Release of the unpin, so that the last user's accesses are complete.
            let frame = policy.admit(page, &|frame| self.frames[frame as usize].pins.load(Acquire) == 0)?;
            machine::writes(&held[frame as usize]);
            if let Some(old) = held[frame as usize].replace(page) {
                table.get(&old).into_iter().for_each(machine::writes);
                table.remove(&old);
            }
            machine::writes(table.entry(page).insert_entry(frame).get());
            shared_store();
            self.frames[frame as usize].content.store(EMPTY, Relaxed); // Relaxed: the lock orders it
            frame
        };
        shared_rmw();
        self.frames[frame as usize].pins.fetch_add(1, Relaxed); // Relaxed: evictions hold the same lock
        shared_store(); // counts the release of the lock
        Some(frame)
    }

    fn content(&self, frame: u32) -> &[AtomicU64] {
        &self.words[frame as usize * WORDS..][..WORDS]
    }

    /// Reads a page into its frame if no other thread has (step 2), and waits until the content is valid.
    #[cold]
    fn page_in(&self, page: u64, frame: u32) {
        azekura_base::per_thread! {
            static IMAGE: RefCell<PageBuf> = RefCell::new(PageBuf::zeroed(PAGE_BYTES));
        }
        let content = &self.frames[frame as usize].content;
        let claim = || {
            shared_rmw();
            content.compare_exchange(EMPTY, COPYING, Relaxed, Relaxed).is_ok()
        };
        let claims_first = self.device.is_blocking();
        if !claims_first || claim() {
            IMAGE.with_borrow_mut(|image| {
                self.device.read_page(PageId(page), image).expect("the lab's file can be read");
                own_rmw();
                self.misses.add(1);
                if claims_first || claim() {
                    PageMut::new(PageWords::new(self.content(frame))).copy_from(image);
                    machine::works(Work::Copy(PAGE_BYTES));
                    shared_store();
                    content.store(THERE, Release); // pairs with the Acquire of readers
                } else {
                    self.duplicate_reads.add(1);
                }
            });
        }
        let mut backoff = Backoff::new();
        while content.load(Acquire) != THERE {
            backoff.pause();
        }
    }
}

impl<P: Policy> PageCache for Locked<P> {
    fn visit(&self, page: u64) -> u64 {
        let mut backoff = Backoff::new();
        let frame = loop {
            match self.fix(page) {
                Some(frame) => break frame,
                None => backoff.pause(),
            }
        };
        let header = &self.frames[frame as usize];
        if header.content.load(Acquire) != THERE {
            self.page_in(page, frame);
        }
        let found = self.content(frame)[1].load(Relaxed);
        shared_rmw();
        header.pins.fetch_sub(1, Release); // pairs with the Acquire in `fix`
        found
    }

    fn tally(&self) -> Tally {
        Tally { misses: self.misses.sum(), duplicate_reads: self.duplicate_reads.sum() }
    }
}
