//! Simulation of the operating system: the mapped pages, and the threads that are blocked at a page that is
//! not mapped.

use super::PAGE;
use crate::fault::page_set::PageSet;
use crate::fault::{Allow, Backend, Event, Frame, Mechanism, Run};
use crate::replace::Access;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use std::cell::UnsafeCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

type Bytes = [u8; PAGE];

#[derive(Debug)]
struct Inner {
    rng: Xoshiro256PlusPlus,
    mapped: Vec<Option<Allow>>,
    /// Pages with their bytes in the region, also if they are protected.
    present: Vec<bool>,
    region: Vec<Bytes>,
    /// Last bytes written by the program.
    truth: Vec<Bytes>,
    /// Pages that the system allocates without a fault.
    left: Vec<bool>,
    /// Frames that have memory.
    filled: Vec<bool>,
    /// Pages that are absent although they were reported to the pager as present. They contain only zeros.
    holes: HashSet<u32>,
    /// Blocked threads: the page of each, and whether it was woken.
    stopped: HashMap<usize, (u32, bool)>,
}

/// A simulated backend with small pages.
#[derive(Debug)]
pub(in crate::pager::core) struct Machine {
    /// Set if pages are moved: mapping empties the frame, and writes can be missed. Otherwise pages are
    /// copied.
    moves: bool,
    inner: Mutex<Inner>,
    frames: Vec<UnsafeCell<Bytes>>,
    unmanaged: PageSet,
    reserved: PageSet,
}

// SAFETY: a simulation has one thread.
unsafe impl Sync for Machine {}

impl Machine {
    pub(in crate::pager::core) fn new(moves: bool, pages: usize, frames: usize, seed: u64) -> Self {
        let inner = Inner {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            mapped: vec![None; pages],
            present: vec![false; pages],
            region: vec![[0; PAGE]; pages],
            truth: vec![[0; PAGE]; pages],
            left: vec![false; pages],
            filled: vec![false; frames],
            holes: HashSet::new(),
            stopped: HashMap::new(),
        };
        Self {
            moves,
            inner: Mutex::new(inner),
            frames: (0..frames).map(|_| UnsafeCell::new([0; PAGE])).collect(),
            unmanaged: PageSet::none(pages as u32).expect("room for a table"),
            reserved: PageSet::none(pages as u32).expect("room for a table"),
        }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("one thread")
    }

    pub(in crate::pager::core) fn frames(&self) -> usize {
        self.frames.len()
    }

    fn frame_bytes(&self, frame: u32) -> Bytes {
        // SAFETY: a simulation has one thread, and no reference is kept.
        unsafe { *self.frames[frame as usize].get() }
    }

    pub(in crate::pager::core) fn frame_has(&self, frame: u32, bytes: &Bytes) -> bool {
        self.frame_bytes(frame) == *bytes
    }

    /// Returns `true` if the program would read these bytes. Absent pages read as zeros if the system
    /// allocates them, and are otherwise not readable.
    pub(in crate::pager::core) fn region_has(&self, page: u32, bytes: &Bytes) -> bool {
        let inner = self.inner();
        let is_made_of_zeros = inner.left[page as usize] || inner.holes.contains(&page);
        if !inner.present[page as usize] && is_made_of_zeros {
            return *bytes == [0; PAGE];
        }
        inner.region[page as usize] == *bytes
    }

    pub(in crate::pager::core) fn truth(&self, page: u32) -> Bytes {
        self.inner().truth[page as usize]
    }

    pub(in crate::pager::core) fn given_back(&self, page: u32) {
        self.inner().truth[page as usize] = [0; PAGE];
    }

    /// Touches a page; returns `false` if the thread blocks. A read must return the last written bytes.
    pub(in crate::pager::core) fn touch(&self, page: u32, access: Access, value: u64) -> bool {
        let mut inner = self.inner();
        let at = page as usize;
        if inner.left[at] && !inner.present[at] {
            inner.fill(at);
        }
        match (inner.mapped[at], access) {
            (None, _) | (Some(Allow::Read), Access::Write) => return false,
            (Some(_), Access::Read) => {}
            (Some(_), Access::Write) => inner.write(at, value),
        }
        assert_eq!(inner.region[at], inner.truth[at], "page {page} reads wrong");
        true
    }

    pub(in crate::pager::core) fn waits(&self, thread: usize, page: u32) {
        self.inner().stopped.insert(thread, (page, false));
    }

    /// Returns `true` if the thread is not blocked or was woken. It is no longer blocked afterward.
    pub(in crate::pager::core) fn was_woken(&self, thread: usize) -> bool {
        let mut inner = self.inner();
        let woken = inner.stopped.get(&thread).is_none_or(|&(_, woken)| woken);
        if woken {
            inner.stopped.remove(&thread);
        }
        woken
    }
}

impl Machine {
    fn map_one_in(&self, page: u32, frame: u32, allow: Allow) {
        let bytes = self.frame_bytes(frame);
        let mut inner = self.inner();
        let at = page as usize;
        assert!(!std::mem::replace(&mut inner.present[at], true), "page {page} is mapped twice");
        inner.region[at] = bytes;
        inner.mapped[at] = Some(allow);
        assert_eq!(inner.region[at], inner.truth[at], "page {page} comes in wrong");
        if !self.moves {
            return;
        }
        inner.filled[frame as usize] = false;
        if inner.rng.random_ratio(1, 4) {
            // Simulates a write between the move and the protection, which is not detected.
            let value = inner.rng.random();
            inner.write(at, value);
        }
    }

    fn map_one_out(&self, page: u32, frame: u32) {
        let mut inner = self.inner();
        assert!(!inner.left[page as usize], "OPEN-2: page {page} leaves an open span");
        if inner.holes.remove(&page) {
            inner.fill(page as usize);
        }
        inner.mapped[page as usize] = None;
        assert!(std::mem::take(&mut inner.present[page as usize]), "page {page} is not mapped");
        assert!(!self.moves || !inner.filled[frame as usize], "frame {frame} is not empty");
        inner.filled[frame as usize] = true;
        // SAFETY: a simulation has one thread, and no reference is kept.
        unsafe { *self.frames[frame as usize].get() = inner.region[page as usize] };
        inner.region[page as usize] = [0xee; PAGE];
    }
}

impl Inner {
    /// Allocates a page of zeros.
    fn fill(&mut self, page: usize) {
        assert!(!std::mem::replace(&mut self.present[page], true), "page {page} is made twice");
        self.region[page] = [0; PAGE];
        self.mapped[page] = Some(Allow::ReadWrite);
    }

    fn write(&mut self, page: usize, value: u64) {
        // Some values are zeros, which are never sent.
        let value = if value.is_multiple_of(7) { 0 } else { value };
        // Every third value fills the page with bytes that do not compress.
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(value);
        let fills = value != 0 && value.is_multiple_of(3);
        self.truth[page].fill_with(|| if fills { rng.random() } else { 0 });
        self.truth[page][..8].copy_from_slice(&value.to_le_bytes());
        self.region[page] = self.truth[page];
    }
}

impl Backend for Machine {
    fn mechanism(&self) -> Mechanism {
        Mechanism::Auto
    }

    fn base(&self) -> *mut u8 {
        unreachable!("the pager does not touch the region")
    }

    fn frame(&self, frame: u32) -> *mut u8 {
        self.inner().filled[frame as usize] = true;
        self.frames[frame as usize].get().cast()
    }

    fn tells_every_write(&self) -> bool {
        !self.moves
    }

    fn map_in(&self, run: Run, allow: Allow) -> io::Result<Frame> {
        for i in 0..run.len {
            self.map_one_in(run.page + i, run.frame + i, allow);
        }
        Ok(if self.moves { Frame::Empty } else { Frame::Full })
    }

    fn map_out(&self, run: Run) -> io::Result<()> {
        for i in 0..run.len {
            self.map_one_out(run.page + i, run.frame + i);
        }
        Ok(())
    }

    fn open(&self, pages: Range<u32>, allow: Allow) -> io::Result<()> {
        let mut inner = self.inner();
        for page in pages {
            assert!(inner.present[page as usize] || inner.holes.contains(&page), "page {page} is not mapped");
            // A touch of an absent page blocks the thread.
            inner.mapped[page as usize] = inner.present[page as usize].then_some(allow);
        }
        Ok(())
    }

    fn arm_access(&self, run: Run) -> io::Result<bool> {
        for i in 0..run.len {
            if self.moves {
                self.map_one_out(run.page + i, run.frame + i);
            } else {
                self.inner().mapped[(run.page + i) as usize] = None;
            }
        }
        Ok(self.moves)
    }

    fn discard(&self, pages: Range<u32>) -> io::Result<()> {
        let mut inner = self.inner();
        for page in pages {
            inner.mapped[page as usize] = None;
            inner.present[page as usize] = false;
            inner.region[page as usize] = [0xdd; PAGE];
            inner.holes.remove(&page);
        }
        Ok(())
    }

    fn mend(&self, page: u32) -> io::Result<bool> {
        let mut inner = self.inner();
        let is_hole = inner.holes.remove(&page);
        if is_hole {
            inner.fill(page as usize);
        }
        Ok(is_hole)
    }

    fn leave(&self, pages: Range<u32>) -> bool {
        let mut inner = self.inner();
        if inner.rng.random_ratio(1, 8) {
            return false;
        }
        for page in pages.clone() {
            assert!(!inner.present[page as usize], "page {page} is there and is left to the system");
            inner.left[page as usize] = true;
        }
        drop(inner);
        self.wake(pages);
        true
    }

    fn take_back(&self, pages: Range<u32>) -> io::Result<Vec<bool>> {
        let mut inner = self.inner();
        // Sometimes the simulated system does not report which pages exist.
        let is_known = inner.rng.random_ratio(3, 4);
        let take = |page: u32| {
            let at = page as usize;
            assert!(std::mem::take(&mut inner.left[at]), "page {page} was not left to the system");
            if !inner.present[at] && !is_known {
                inner.holes.insert(page);
            }
            inner.present[at] || !is_known
        };
        Ok(pages.map(take).collect())
    }

    fn unmanage(&self, pages: Range<u32>) -> io::Result<()> {
        let mut inner = self.inner();
        for page in pages.clone() {
            let at = page as usize;
            assert!(!inner.left[at], "page {page} was left to the system");
            inner.left[at] = true;
            if inner.holes.remove(&page) {
                inner.fill(at);
            }
            inner.mapped[at] = inner.present[at].then_some(Allow::ReadWrite);
        }
        drop(inner);
        self.unmanaged.add(pages);
        Ok(())
    }

    fn unmanaged(&self) -> &PageSet {
        &self.unmanaged
    }

    fn unmanaged_bytes(&self, _: usize) -> usize {
        let inner = self.inner();
        self.unmanaged.members().flatten().filter(|&page| inner.present[page as usize]).count() * PAGE
    }

    fn set_reserved(&self, pages: Range<u32>, is_reserved: bool) -> io::Result<()> {
        self.reserved.set(pages, is_reserved);
        Ok(())
    }

    fn reserved(&self) -> &PageSet {
        &self.reserved
    }

    fn address(&self, page: u32) -> *mut u8 {
        std::ptr::without_provenance_mut(page as usize * PAGE)
    }

    fn page_of(&self, _: usize) -> Option<u32> {
        None
    }

    fn empty(&self, frame: u32) {
        self.inner().filled[frame as usize] = false;
        // SAFETY: a simulation has one thread, and no reference is kept.
        unsafe { *self.frames[frame as usize].get() = [0xaa; PAGE] };
    }

    fn wake(&self, pages: Range<u32>) {
        for (at, woken) in self.inner().stopped.values_mut() {
            *woken |= pages.contains(at);
        }
    }

    fn next_fault(&self, _: Option<Duration>, _: &mut [libc::pollfd]) -> io::Result<Event> {
        Ok(Event::Stopped)
    }

    fn stop(&self) {}
}
