//! Paging by userfaultfd: pages are moved (`UFFDIO_MOVE`) if the kernel supports this, and copied otherwise.
//!
//! `UFFDIO_MOVE` pages a page out into a frame: at one instant the page leaves the program's memory and is in
//! the frame (FAULT-1). Paging in moves the page back. A move changes page table entries and copies no bytes;
//! a 2 MiB page stays a huge page. An access to a resident page is detected by moving the page to a frame and
//! waiting for the fault.
//!
//! `UFFDIO_MOVE` does not support write protection. Between it and `UFFDIO_WRITEPROTECT` another thread can
//! write without being detected:
//!
//! | pager | thread A | thread B |
//! |---|---|---|
//! | | reads the page: fault | |
//! | MOVE | (waits) | writes: succeeds |
//! | WRITEPROTECT, wake | continues | |
//! | evicts: "never written", drops the page | | its write is lost |
//!
//! So a moved page that appears unwritten may have been written (`tells_every_write` is false). Its digest is
//! computed when it is paged out and compared with the digest from its page-in. Copied pages are protected at
//! the same instant (`UFFDIO_COPY_MODE_WP`), so no write is missed.
//!
//! A raw system call of the program can remove memory from a resident page (`madvise` of 4 KiB). A hole in a
//! page is moved as a hole, and reads as zeros in a frame. Holes are filled before a copy, and when a thread
//! touches the page.
//!
//! For a write fault in a range that permits huge pages, the kernel clears 2 MiB before it reports the fault.
//! A fault also leaves an empty page table, which makes a later move split a huge page. So the region is
//! `MADV_NOHUGEPAGE`, and existing page tables are dropped before a page of 2 MiB is paged in.

mod moves;

use super::abi::{self, Userfault};
use super::arena::{Mapping, Notifier, advise, close, missing, reopen};
use super::page_set::PageSet;
use super::places::Places;
use super::{Allow, Backend, Event, Fault, Frame, Mechanism, Run, is_held, wait};
use crate::adopt::PageTable;
use crate::replace::Access;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const HUGE: usize = 2 << 20;
/// Mode in which the region is registered.
const REGISTERED: u64 = abi::REGISTER_MISSING | abi::REGISTER_WP;
/// Largest number of attempts to move a busy page.
const TRIES: usize = 64;

#[derive(Debug)]
pub(crate) struct UserfaultBackend {
    mechanism: Mechanism,
    uffd: Userfault,
    region: Places,
    frames: Mapping,
    page_bytes: usize,
    notifier: Notifier,
    /// `None` if the system refuses it, for example because `/proc` is not mounted.
    table: Option<PageTable>,
    stopped: AtomicBool,
    /// Set if pages may be shared with a child or a parent process.
    forked: AtomicBool,
}

impl UserfaultBackend {
    pub(crate) fn new(
        mechanism: Mechanism,
        bytes: usize,
        page_bytes: usize,
        frames: usize,
        adopted: &[Range<usize>],
    ) -> io::Result<Self> {
        let uffd = open(mechanism)?;
        let region = Mapping::anonymous(bytes)?;
        // SAFETY: the mapping was just made. The write is needed because the kernel merges mappings that were
        // split (`set_reserved`) only if the whole mapping had memory before.
        unsafe { region.at().write_volatile(0) };
        advise(region.at(), page_bytes, libc::MADV_DONTNEED)?;
        let region = Places::new(region, adopted, page_bytes)?;
        let frames = Mapping::anonymous(frames * page_bytes)?;
        region.advise(libc::MADV_NOHUGEPAGE)?;
        frames.advise(if page_bytes == HUGE { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE })?;
        Self::over(mechanism, uffd, region, frames, page_bytes)
    }

    /// Creates a backend over memory that is not registered with any userfaultfd.
    fn over(
        mechanism: Mechanism,
        uffd: Userfault,
        region: Places,
        frames: Mapping,
        page_bytes: usize,
    ) -> io::Result<Self> {
        // A child process made without `before_fork` would read zeros in place of its parent's pages. With
        // this advice, nothing is mapped there instead.
        region.advise(libc::MADV_DONTFORK)?;
        frames.advise(libc::MADV_DONTFORK)?;
        region.each_managed(|at, bytes| uffd.register(at as usize, bytes, REGISTERED))?;
        if mechanism.moves() {
            // A move requires that source and destination belong to the same userfaultfd. The system
            // allocates missing pages of the frames.
            uffd.register(frames.at() as usize, frames.bytes(), abi::REGISTER_WP)?;
        }
        let (notifier, stopped, forked) = (Notifier::new()?, AtomicBool::new(false), AtomicBool::new(false));
        let table = PageTable::open().ok();
        Ok(Self { mechanism, uffd, region, frames, page_bytes, notifier, table, stopped, forked })
    }

    fn page(&self, page: u32) -> *mut u8 {
        self.region.page(page)
    }

    /// Closes the descriptors of the parent in a child process, which never uses them.
    fn close_descriptors(&self) {
        self.uffd.abandon();
        self.notifier.abandon();
        if let Some(table) = &self.table {
            table.abandon();
        }
    }

    /// Bytes of `pages` pages.
    fn bytes(&self, pages: u32) -> usize {
        pages as usize * self.page_bytes
    }

    /// Splits a run into parts with contiguous addresses.
    fn pieces(&self, run: Run) -> impl Iterator<Item = Run> {
        let frame = move |page: u32| run.frame + (page - run.page);
        let pages = self.region.pieces(run.page..run.page + run.len);
        pages.map(move |piece| Run {
            page: piece.start,
            frame: frame(piece.start),
            len: piece.end - piece.start,
        })
    }

    /// Copies a run from its frames into the region, beginning at byte `done`.
    fn copy_in(&self, run: Run, done: usize, allow: Allow) -> io::Result<()> {
        let mode = abi::COPY_DONTWAKE | if allow == Allow::Read { abi::COPY_WP } else { 0 };
        let mut done = done;
        let mut tries = 0;
        let mut most = self.bytes(run.len);
        while done < self.bytes(run.len) {
            let (to, from) = (self.page(run.page) as usize + done, self.frame(run.frame) as usize + done);
            // Each copy ends at a page boundary, because a page is inside one mapping of the kernel.
            let left = (self.bytes(run.len) - done).min(most - done % most);
            let (copied, error) = self.uffd.copy(to, from, left, mode);
            done += copied;
            match error {
                None => {}
                Some(error)
                    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) && tries < TRIES =>
                {
                    tries += 1
                }
                // In a child process, pages that were committed later may be in a separate mapping.
                Some(error) if most > self.page_bytes && error.raw_os_error() == Some(libc::ENOENT) => {
                    most = self.page_bytes;
                }
                Some(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills the holes of a partly present page with zeros, which is their content. Returns `true` if there
    /// were holes.
    fn fill(&self, at: *mut u8, bytes: usize) -> io::Result<bool> {
        let (pieces, length) = missing(at, bytes)?;
        let mut filled = false;
        for piece in pieces {
            let mut tries = 0;
            filled |= loop {
                match self.uffd.zero(piece, length) {
                    Ok(()) => break true,
                    Err(error) => match error.raw_os_error() {
                        // Swapped out, so not a hole.
                        Some(libc::EEXIST) => break false,
                        Some(libc::EAGAIN | libc::EINTR) if tries < TRIES => tries += 1,
                        _ => return Err(error),
                    },
                }
            };
        }
        Ok(filled)
    }

    /// Copies the rest of a run out of the region, beginning at byte `done`. Meanwhile no thread can write
    /// the pages, and after the call none can read them.
    fn copy_out(&self, run: Run, done: usize) -> io::Result<()> {
        let (from, to, left) = (
            self.page(run.page).wrapping_add(done),
            self.frame(run.frame).wrapping_add(done),
            self.bytes(run.len) - done,
        );
        // This thread may be the one that handles faults, so it must not cause a fault. Holes are filled
        // before the protection, which applies only to present pages.
        self.fill(from, left)?;
        self.uffd.write_protect(from as usize, left, abi::WP_PROTECT)?;
        // SAFETY: both ranges belong to our mappings and do not overlap. The pages are resident and have no
        // holes, so reading them does not fault. They are write-protected, so no thread writes them.
        unsafe { std::ptr::copy_nonoverlapping(from, to, left) };
        advise(from, left, libc::MADV_DONTNEED)
    }
}

fn open(mechanism: Mechanism) -> io::Result<Userfault> {
    let moves = if mechanism.moves() { abi::FEATURE_MOVE } else { 0 };
    Userfault::open(mechanism.is_user_mode(), abi::FEATURE_PAGEFAULT_FLAG_WP | moves)
}

impl Backend for UserfaultBackend {
    fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    fn base(&self) -> *mut u8 {
        self.region.base()
    }

    fn frame(&self, frame: u32) -> *mut u8 {
        self.frames.at().wrapping_add(frame as usize * self.page_bytes)
    }

    fn tells_every_write(&self) -> bool {
        !self.mechanism.moves()
    }

    fn map_in(&self, run: Run, allow: Allow) -> io::Result<Frame> {
        for run in self.pieces(run) {
            let (to, from, bytes) = (self.page(run.page), self.frame(run.frame), self.bytes(run.len));
            if !self.mechanism.moves() {
                self.copy_in(run, 0, allow)?;
                continue;
            }
            if self.page_bytes == HUGE {
                advise(to, HUGE, libc::MADV_DONTNEED)?;
            }
            if let Err((done, _)) = self.shift(to, from, bytes, TRIES) {
                self.copy_in(run, done, Allow::ReadWrite)?;
                // The next move into this frame requires that no page is there.
                advise(from, bytes, libc::MADV_DONTNEED)?;
            }
            if allow == Allow::Read {
                self.uffd.write_protect(to as usize, bytes, abi::WP_PROTECT)?;
            }
        }
        Ok(if self.mechanism.moves() { Frame::Empty } else { Frame::Full })
    }

    fn map_out(&self, run: Run) -> io::Result<()> {
        let mut out = 0;
        for piece in self.pieces(run) {
            if !self.mechanism.moves() {
                self.copy_out(piece, 0)?;
                continue;
            }
            if let Err(error) = self.move_out(piece) {
                if out > 0 && is_held(&error) {
                    self.map_in(Run { len: out, ..run }, Allow::ReadWrite)?;
                }
                return Err(error);
            }
            out += piece.len;
        }
        Ok(())
    }

    fn open(&self, pages: Range<u32>, allow: Allow) -> io::Result<()> {
        // Removing the protection wakes threads unless `WP_DONTWAKE` is set; setting it refuses this flag.
        let mode = if allow == Allow::Read { abi::WP_PROTECT } else { abi::WP_DONTWAKE };
        self.region.pieces(pages).try_for_each(|pages| {
            let (at, len) = (self.page(pages.start) as usize, pages.end - pages.start);
            self.uffd.write_protect(at, self.bytes(len), mode)
        })
    }

    fn mend(&self, page: u32) -> io::Result<bool> {
        self.fill(self.page(page), self.page_bytes)
    }

    fn arm_access(&self, run: Run) -> io::Result<bool> {
        self.map_out(run)?;
        Ok(true)
    }

    fn discard(&self, pages: Range<u32>) -> io::Result<()> {
        self.region.pieces(pages).try_for_each(|pages| {
            let len = pages.end - pages.start;
            advise(self.page(pages.start), self.bytes(len), libc::MADV_DONTNEED)
        })
    }

    fn leave(&self, pages: Range<u32>) -> bool {
        let mut pieces = self.region.pieces(pages.clone());
        // The system would allocate small pages in place of pages of 2 MiB. If the range had two parts, the
        // second call could fail after the first one succeeded.
        let fits = self.page_bytes < HUGE && pieces.next() == Some(pages.clone());
        fits && self
            .uffd
            .unregister(self.page(pages.start) as usize, self.bytes(pages.end - pages.start))
            .is_ok()
    }

    fn take_back(&self, pages: Range<u32>) -> io::Result<Vec<bool>> {
        let (at, bytes) = (self.page(pages.start) as usize, self.bytes(pages.end - pages.start));
        self.uffd.register(at, bytes, REGISTERED)?;
        // If the system does not report which pages are present, all pages count as present. A missing page
        // is then a hole, and holes are filled on access (`mend`).
        let there = self.table.as_ref().and_then(|table| table.there(at..at + bytes).ok());
        let pieces = there.unwrap_or_default();
        let piece = bytes / pieces.len().max(1);
        let is_there = |page: &[bool]| page.contains(&true);
        Ok(match pieces.len() {
            0 => pages.map(|_| true).collect(),
            _ => pieces.chunks(self.page_bytes / piece).map(is_there).collect(),
        })
    }

    fn unmanage(&self, pages: Range<u32>) -> io::Result<()> {
        for pages in self.region.pieces(pages) {
            let (at, bytes) = (self.page(pages.start), self.bytes(pages.end - pages.start));
            // Without this call a page that is write-protected now would stay protected.
            self.uffd.write_protect(at as usize, bytes, 0)?;
            self.uffd.unregister(at as usize, bytes)?;
            advise(at, bytes, libc::MADV_DOFORK)?;
            // If this fails, the pages are missing in core files.
            let _ = advise(at, bytes, libc::MADV_DODUMP);
            self.region.unmanaged().add(pages);
        }
        Ok(())
    }

    fn retire(&self) {
        self.frames.retire();
    }

    fn unmanaged(&self) -> &PageSet {
        self.region.unmanaged()
    }

    fn set_reserved(&self, pages: Range<u32>, is_reserved: bool) -> io::Result<()> {
        for pages in self.region.pieces(pages) {
            let (at, bytes) = (self.page(pages.start), self.bytes(pages.end - pages.start));
            if is_reserved {
                close(at, bytes)?;
                self.region.reserved().add(pages);
            } else {
                reopen(at, bytes)?;
                self.region.reserved().remove(pages);
            }
        }
        Ok(())
    }

    fn reserved(&self) -> &PageSet {
        self.region.reserved()
    }

    fn address(&self, page: u32) -> *mut u8 {
        self.page(page)
    }

    fn page_of(&self, address: usize) -> Option<u32> {
        self.region.page_of(address)
    }

    fn empty(&self, frame: u32) {
        // If this fails, the frame keeps its memory, without other effects.
        let _ = advise(self.frame(frame), self.page_bytes, libc::MADV_DONTNEED);
    }

    fn wake(&self, pages: Range<u32>) {
        for pages in self.region.pieces(pages) {
            let (at, len) = (self.page(pages.start) as usize, pages.end - pages.start);
            let _ = self.uffd.wake(at, self.bytes(len));
        }
    }

    fn next_fault(&self, within: Option<Duration>, streams: &mut [libc::pollfd]) -> io::Result<Event> {
        loop {
            // Relaxed: the flag publishes no other data. The notification makes the pager read it.
            if self.stopped.load(Relaxed) {
                return Ok(Event::Stopped);
            }
            // Each call waits once, also if a fault is there: faults do not keep the pager from replies.
            let [fault, notified] = wait([self.uffd.fd(), self.notifier.fd()], streams, within)?;
            if notified {
                self.notifier.reset();
            }
            let message = if fault { self.uffd.read()? } else { None };
            if let Some(message) = message
                && message.event == abi::EVENT_PAGEFAULT
                // Otherwise the address is outside of far memory.
                && let Some(page) = self.region.page_of(message.address as usize)
            {
                let wrote = message.flags & (abi::PAGEFAULT_WRITE | abi::PAGEFAULT_WP) != 0;
                let access = if wrote { Access::Write } else { Access::Read };
                return Ok(Event::Fault(Fault { page, access }));
            }
            if !fault {
                return Ok(Event::Nothing);
            }
        }
    }

    fn stop(&self) {
        self.stopped.store(true, Relaxed); // Relaxed: read after the notification
        self.notifier.notify();
    }

    fn interrupt(&self) {
        self.notifier.notify();
    }

    fn before_fork(&self) -> io::Result<()> {
        self.forked.store(true, Relaxed); // Relaxed: a hint
        self.region.advise(libc::MADV_DOFORK)?;
        self.frames.advise(libc::MADV_DOFORK)
    }

    fn after_fork(&self) {
        // If this fails, a child process made by a raw `clone` call may read zeros.
        let _ = self.region.advise(libc::MADV_DONTFORK);
        let _ = self.frames.advise(libc::MADV_DONTFORK);
    }

    /// Registers the copies with a new userfaultfd. The kernel has removed the parent's userfaultfd and its
    /// write protection from the copies.
    fn for_child(&self) -> io::Result<Arc<dyn Backend>> {
        let (region, frames) = (self.region.for_child(), self.frames.for_child());
        self.close_descriptors();
        // If the process has given up its privileges, the mechanism for unprivileged users is used.
        let own = (self.mechanism, open(self.mechanism));
        let (mechanism, uffd) = match (own, self.mechanism.for_any_user()) {
            ((_, Err(error)), Some(other)) if error.kind() == io::ErrorKind::PermissionDenied => {
                (other, open(other))
            }
            (own, _) => own,
        };
        let made = uffd.and_then(|uffd| Self::over(mechanism, uffd, region, frames, self.page_bytes));
        match made {
            Ok(backend) => {
                backend.forked.store(true, Relaxed); // Relaxed: a hint
                Ok(Arc::new(backend))
            }
            Err(error) => {
                self.region.close()?;
                Err(error)
            }
        }
    }

    fn abandon(&self) {
        self.close_descriptors();
        // The calls do not fail, because the mappings belong to this process; there would be nothing else to
        // do.
        let _ = self.region.close();
        let _ = self.frames.advise(libc::MADV_DONTNEED);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    /// Ends the threads of a scope, also after a panic.
    struct Ended<'e>(&'e AtomicBool);

    impl Drop for Ended<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    /// The system may hold pages at any time, for example to age or to migrate them. In this test other
    /// threads make the system hold pages, so moves must be retried.
    #[test]
    fn pages_move_whole_while_the_system_holds_some_of_them() {
        const PAGE: usize = 1 << 20;
        const PAGES: u32 = 4;
        const ROUNDS: usize = 20_000;
        const HELD: usize = 64 << 10;
        const SPREAD: usize = (PAGE * PAGES as usize - HELD) / 4096;
        let Ok(backend) =
            UserfaultBackend::new(Mechanism::UserfaultMove, PAGE * PAGES as usize, PAGE, PAGES as usize, &[])
        else {
            return; // the system does not support this mechanism
        };
        let pieces = |at: *mut u8| (0..PAGE / 4096).map(move |i| at.wrapping_add(i * 4096));
        for frame in 0..PAGES {
            // SAFETY: the address is inside the frame.
            pieces(backend.frame(frame))
                .enumerate()
                .for_each(|(i, at)| unsafe { at.write(i as u8 ^ frame as u8) });
        }
        let ended = AtomicBool::new(false);
        std::thread::scope(|s| {
            for holder in 0..3 {
                let areas = [backend.page(0), backend.frame(0)].map(|at| at as usize);
                let ended = &ended;
                let mut rng = StdRng::seed_from_u64(holder);
                s.spawn(move || {
                    while !ended.load(Relaxed) {
                        let at = areas[rng.random_range(0..2)] + rng.random_range(0..SPREAD) * 4096;
                        advise(at as *mut u8, HELD, libc::MADV_COLD).unwrap();
                    }
                });
            }
            let _ended = Ended(&ended); // also after a panic in this thread
            for round in 0..ROUNDS {
                let page = round as u32 % PAGES;
                let run = Run { page, frame: page, len: 1 };
                backend.map_in(run, Allow::ReadWrite).unwrap();
                assert_eq!(missing(backend.page(page), PAGE).unwrap().0, [], "round {round}");
                backend.map_out(run).unwrap();
                assert_eq!(missing(backend.frame(page), PAGE).unwrap().0, [], "round {round}");
            }
        });
        for frame in 0..PAGES {
            // SAFETY: the address is inside the frame.
            let bytes = pieces(backend.frame(frame)).map(|at| unsafe { at.read() });
            assert!(bytes.enumerate().all(|(i, byte)| byte == i as u8 ^ frame as u8), "{frame}");
        }
    }
}
