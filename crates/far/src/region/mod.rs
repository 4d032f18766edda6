//! The program's view: ordinary memory, larger than its local part.
//!
//! | module | noun |
//! |---|---|
//! | `builder` | settings and creation of a region |

mod builder;

pub use builder::FarMemoryBuilder;

use crate::error::{ForkError, ReserveError};
use crate::fault::{Backend, Mechanism};
use crate::pager::{self, Pager};
use crate::signals_blocked::SignalsBlocked;
use crate::stats::{FarStats, MoreMemory};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// A region of far memory: one part is local, the rest is on memory servers.
///
/// A region dereferences to a slice of bytes, which any number of threads can use. Its bytes are initially
/// zero.
///
/// # Cost
///
/// Access to a local page costs the same as to any memory. A page that is paged out is fetched: the touching
/// thread sleeps for one page transfer. Pages in sequential and strided access are prefetched, and pages are
/// paged out in the background.
///
/// # When a server is lost
///
/// With [`copies`](FarMemoryBuilder::copies) or a [`spill`](FarMemoryBuilder::spill) file the program
/// continues. Otherwise the process is ended when it touches a page that no replica has. A message with the
/// reason is printed first. A read returns only bytes that were written last.
///
/// # System calls and child processes
///
/// [`Mechanism`] describes system calls on pages that are paged out. A child process has no far memory, and
/// the region's addresses are not mapped there, unless [`freeze`](Self::freeze) was called before `fork`.
pub struct FarMemory {
    pager: Arc<Pager>,
    backend: Arc<dyn Backend>,
    bytes: usize,
    page: usize,
    adopted: Vec<Range<usize>>,
}

impl FarMemory {
    /// Default page size: a random access transfers this many bytes. If pages are smaller, one request
    /// fetches up to 16 KiB, provided that the program soon uses the pages around a missed page.
    pub const PAGE: usize = 16 << 10;

    /// Returns a builder with the default settings.
    #[must_use]
    pub fn builder() -> FarMemoryBuilder {
        FarMemoryBuilder::default()
    }

    /// Returns the mechanism that pages in and out.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.backend.mechanism()
    }

    /// Returns the addresses of the adopted memory, in whole pages.
    #[must_use]
    pub fn adopted(&self) -> &[Range<usize>] {
        &self.adopted
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> FarStats {
        let _blocked = SignalsBlocked::new();
        self.pager.stats()
    }

    /// Returns the additional local memory that would have avoided misses, from the order in which pages were
    /// paged out.
    #[must_use]
    pub fn more_memory(&self) -> MoreMemory {
        let _blocked = SignalsBlocked::new();
        self.pager.more_memory()
    }

    /// Discards the whole pages within a range of bytes: they read as zeros from now on, and use no memory
    /// here or on the servers.
    ///
    /// # Panics
    ///
    /// If the range is not inside the region.
    pub fn discard(&mut self, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "a range within the memory");
        // SAFETY: `self` is borrowed mutably, so no other thread uses the range.
        unsafe { self.discard_shared(bytes) }
    }

    /// Discards pages as [`discard`](Self::discard) does, for memory that several owners share.
    ///
    /// # Safety
    ///
    /// The range is inside the region, and no thread uses it during the call.
    pub unsafe fn discard_shared(&self, bytes: Range<usize>) {
        let first = bytes.start.div_ceil(self.page);
        let last =
            if bytes.end == self.bytes { bytes.end.div_ceil(self.page) } else { bytes.end / self.page };
        if first < last {
            let _blocked = SignalsBlocked::new();
            #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
            self.pager.discard(first as u32, (last - first) as u32);
        }
    }

    /// Passes all pages that overlap a range of addresses to the kernel permanently, with their bytes. They
    /// are then ordinary private anonymous memory, on which every system call has its ordinary effect. The
    /// memory that they use counts against the local memory; it is counted again every half a second.
    ///
    /// Blocks until all of them are paged in. Addresses outside of the region are ignored.
    ///
    /// # Safety
    ///
    /// The calling thread holds no lock for which a thread that touches far memory may wait. If the kernel
    /// unmaps such a page later, this value is never dropped.
    pub unsafe fn unmanage(&self, addresses: Range<usize>) {
        self.pages_at(addresses).for_each(|pages| self.pager.unmanage(pages));
    }

    /// Counts the memory of unmanaged pages now, for example after a call that has changed it.
    pub fn count_unmanaged(&self) {
        let _blocked = SignalsBlocked::new();
        self.pager.count_unmanaged();
    }

    /// Empties the whole pages within a range of addresses and reserves them. They use no memory, and until
    /// they are committed an access is refused, as in memory mapped with `PROT_NONE`.
    ///
    /// # Safety
    ///
    /// The pages are managed and committed. No thread uses the range or changes the state of the same pages
    /// during the call.
    pub unsafe fn decommit(&self, addresses: Range<usize>) {
        let _blocked = SignalsBlocked::new();
        self.pages_at(addresses).for_each(|pages| self.pager.set_reserved(pages, true));
    }

    /// Commits the pages of a range of addresses: they can be used, and read as zeros.
    ///
    /// # Safety
    ///
    /// The pages are managed and reserved, and no other thread changes the state of the same pages during the
    /// call.
    pub unsafe fn commit(&self, addresses: Range<usize>) {
        let _blocked = SignalsBlocked::new();
        self.pages_at(addresses).for_each(|pages| self.pager.set_reserved(pages, false));
    }

    /// Returns whether a range of addresses has a reserved page.
    #[must_use]
    pub fn is_reserved(&self, addresses: Range<usize>) -> bool {
        let reserved = self.backend.reserved();
        reserved.len() > 0 && self.pages_at(addresses).any(|mut pages| pages.any(|page| reserved.has(page)))
    }

    /// Releases the rest of a region after all used pages were passed to the kernel: ends its threads, closes
    /// its connections, and frees its frames.
    ///
    /// # Safety
    ///
    /// Every page that the program uses was passed to the kernel, and no thread uses another page of the
    /// region from now on.
    pub unsafe fn retire(&self) {
        self.pager.close();
        self.backend.retire();
    }

    /// Returns `true` if a range of addresses overlaps a page that is still far memory.
    #[must_use]
    pub fn is_managed(&self, addresses: Range<usize>) -> bool {
        let unmanaged = self.backend.unmanaged();
        self.pages_at(addresses).any(|pages| unmanaged.others(pages).next().is_some())
    }

    /// Returns `true` if a range of addresses consists of managed memory that is not reserved.
    #[doc(hidden)]
    pub fn manages_all(&self, addresses: Range<usize>) -> bool {
        let unmanaged = self.backend.unmanaged();
        let base = self.backend.base() as usize;
        let region = base..base + self.bytes.div_ceil(self.page) * self.page;
        let holds = |place: &Range<usize>| place.start <= addresses.start && addresses.end <= place.end;
        (holds(&region) || self.adopted.iter().any(holds))
            && self.pages_at(addresses.clone()).all(|pages| unmanaged.others(pages.clone()).eq([pages]))
            && !self.is_reserved(addresses)
    }

    /// Returns the pages that overlap a range of addresses, as one range for each piece of the region.
    fn pages_at(&self, addresses: Range<usize>) -> impl Iterator<Item = Range<u32>> + '_ {
        let base = self.backend.base() as usize;
        let region = base..base + self.bytes.div_ceil(self.page) * self.page;
        std::iter::once(region).chain(self.adopted.iter().cloned()).filter_map(move |place| {
            let (start, end) = (addresses.start.max(place.start), addresses.end.min(place.end));
            let page = |address: usize| self.backend.page_of(address);
            (start < end).then(|| Some(page(start)?..page(end - 1)? + 1))?
        })
    }

    /// Returns `true` if the page at an address was passed to the kernel.
    #[must_use]
    pub fn is_unmanaged(&self, address: usize) -> bool {
        let unmanaged = self.backend.unmanaged();
        unmanaged.len() > 0 && self.backend.page_of(address).is_some_and(|page| unmanaged.has(page))
    }

    /// Returns the addresses of the frames, the memory beside the region through which pages are
    /// transferred.
    #[doc(hidden)]
    #[must_use]
    pub fn frames(&self) -> Range<usize> {
        let _blocked = SignalsBlocked::new();
        self.pager.frames()
    }

    /// Reserves memory for `bytes` bytes of pages on the servers in total, including earlier reservations.
    /// Pages within this total are never refused because a server is full. Does nothing if there is a spill
    /// file. Waits for the servers' replies, except if the total is not larger than before.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]: a server has too little memory left. Earlier reservations stay.
    pub fn reserve(&self, bytes: usize) -> Result<(), ReserveError> {
        self.pager.reserve(bytes as u64)
    }

    /// Stops the pager so that this thread can `fork`: the child process gets a copy of the far memory.
    ///
    /// Until the returned value is used, other threads wait if they touch a page that is paged out, and all
    /// signals are blocked in this thread. The servers need memory for the pages of both processes.
    ///
    /// # Errors
    ///
    /// The error of the system, if it does not allow the memory to be inherited. A child process then has no
    /// far memory.
    pub fn freeze(&self) -> io::Result<Frozen<'_>> {
        let (bytes, page, adopted) = (self.bytes, self.page, self.adopted.clone());
        Ok(Frozen { frozen: self.pager.freeze()?, bytes, page, adopted })
    }

    /// Returns the address of the first byte, aligned to 2 MiB and constant for the life of the region.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.backend.base()
    }
}

/// Far memory that is stopped while its process forks. The thread that holds this value calls one of the
/// methods as soon as possible, because paging is stopped until then.
#[must_use = "no page is paged in or out until it is used"]
pub struct Frozen<'a> {
    frozen: pager::Frozen<'a>,
    bytes: usize,
    page: usize,
    adopted: Vec<Range<usize>>,
}

impl Frozen<'_> {
    /// Continues in the parent. Called after `fork`, also if it failed. Waits until the child has started its
    /// own pager or has ended.
    pub fn in_parent(self) {
        self.frozen.in_parent();
    }

    /// Returns the far memory of the child process, at the same addresses and with the same bytes.
    ///
    /// # Errors
    ///
    /// [`ForkError`]: the child has no far memory, and an access to its addresses is a segmentation fault.
    ///
    /// # Safety
    ///
    /// Called in the child, where the calling thread is the only one. The stopped far memory is neither used
    /// nor dropped there.
    pub unsafe fn in_child(self) -> Result<FarMemory, ForkError> {
        // SAFETY: the caller keeps this function's contract.
        let pager = unsafe { self.frozen.in_child()? };
        let backend = pager.backend();
        Ok(FarMemory { pager, backend, bytes: self.bytes, page: self.page, adopted: self.adopted })
    }
}

impl Frozen<'_> {
    /// Leaves the child process without far memory: for a region that is still unused.
    ///
    /// # Safety
    ///
    /// The contract of [`in_child`](Self::in_child).
    pub unsafe fn abandon_in_child(self) {
        // SAFETY: the caller keeps this function's contract.
        unsafe { self.frozen.abandon_in_child() }
    }
}

impl fmt::Debug for Frozen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("bytes", &self.bytes).field("page", &self.page).finish_non_exhaustive()
    }
}

impl Deref for FarMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped as long as `self` exists; every bit pattern is a valid byte. PAGER-2: only the
        // program's writes change the bytes.
        unsafe { std::slice::from_raw_parts(self.backend.base(), self.bytes) }
    }
}

impl DerefMut for FarMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped as in `deref`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.backend.base(), self.bytes) }
    }
}

impl Drop for FarMemory {
    fn drop(&mut self) {
        self.pager.close();
    }
}

impl fmt::Debug for FarMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FarMemory")
            .field("bytes", &self.bytes)
            .field("page", &self.page)
            .field("mechanism", &self.mechanism())
            .finish_non_exhaustive()
    }
}
