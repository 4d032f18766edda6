//! The program's view: ordinary memory, larger than what it may use of the machine.
//!
//! | module | noun |
//! |---|---|
//! | `builder` | how it is set up |

mod builder;

pub use builder::FarMemoryBuilder;

use crate::error::{ForkError, ReserveError};
use crate::fault::{Backend, Mechanism};
use crate::pager::{self, Pager};
use crate::stats::FarStats;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

/// Memory of which a part is local and the rest with memory servers.
///
/// It is used as the slice of bytes that it dereferences to, by any number of threads. It begins as zeros.
///
/// # Cost
///
/// A touch of a local page costs what it costs in any memory. A page that is away is fetched: the touching
/// thread sleeps for a transfer of one page. Pages that are touched in sequence or by strides are fetched
/// ahead of need, and what leaves is sent in the background.
///
/// # When a server is lost
///
/// With [`copies`](FarMemoryBuilder::copies) or a [`spill`](FarMemoryBuilder::spill) file the program goes
/// on. Otherwise it is ended, with a message that says why, as soon as it touches a page that nobody has any
/// more. It never reads anything but what it wrote.
///
/// # System calls and child processes
///
/// See [`Mechanism`] for system calls on pages that are away. A child process has no far memory, the
/// addresses are not mapped there, unless [`freeze`](Self::freeze) was called around its making.
pub struct FarMemory {
    pager: Arc<Pager>,
    backend: Arc<dyn Backend>,
    bytes: usize,
    page: usize,
    adopted: Vec<Range<usize>>,
}

impl FarMemory {
    /// Bytes of a page unless it is set: a touch at random brings so much.
    pub const PAGE: usize = 16 << 10;

    /// Far memory to be set up.
    #[must_use]
    pub fn builder() -> FarMemoryBuilder {
        FarMemoryBuilder::default()
    }

    /// Returns the mechanism that pages in and out.
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.backend.mechanism()
    }

    /// The addresses of what was adopted: whole pages.
    #[must_use]
    pub fn adopted(&self) -> &[Range<usize>] {
        &self.adopted
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> FarStats {
        self.pager.stats()
    }

    /// Gives the whole pages within a range of bytes back: they are zeros from now on, and cost nothing
    /// anywhere.
    ///
    /// # Panics
    ///
    /// If the range does not lie within.
    pub fn discard(&mut self, bytes: Range<usize>) {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes, "a range within the memory");
        // SAFETY: `self` is borrowed mutably, so nobody else uses the range.
        unsafe { self.discard_shared(bytes) }
    }

    /// The same for memory that is given out in pieces.
    ///
    /// # Safety
    ///
    /// The range lies within, and nobody uses it during the call.
    pub unsafe fn discard_shared(&self, bytes: Range<usize>) {
        let first = bytes.start.div_ceil(self.page);
        let last =
            if bytes.end == self.bytes { bytes.end.div_ceil(self.page) } else { bytes.end / self.page };
        if first < last {
            #[expect(clippy::cast_possible_truncation, reason = "a region has fewer than 2^32 pages")]
            self.pager.discard(first as u32, (last - first) as u32);
        }
    }

    /// Hands all pages that a range of addresses meets to the kernel, for good, with their bytes. They are
    /// ordinary private anonymous memory then, on which any call of the kernel has its ordinary effect. They
    /// take part of the local budget.
    ///
    /// Blocks until all of them were fetched. Addresses outside are left alone.
    ///
    /// # Safety
    ///
    /// The calling thread holds no lock that a thread needs which touches far memory. Once the kernel has
    /// unmapped such a page, this is never dropped.
    pub unsafe fn unmanage(&self, addresses: Range<usize>) {
        self.pages_at(addresses).for_each(|pages| self.pager.unmanage(pages, false));
    }

    /// The same for pages without bytes that the program does not use: they do not count as local.
    ///
    /// # Safety
    ///
    /// As [`unmanage`](Self::unmanage), and no thread uses the range.
    pub unsafe fn unmanage_free(&self, addresses: Range<usize>) {
        self.pages_at(addresses).for_each(|pages| self.pager.unmanage(pages, true));
    }

    /// Ends the threads, the connections and the frames of memory that was handed to the kernel as a whole.
    ///
    /// # Safety
    ///
    /// Every page that the program uses was handed to the kernel, and no thread uses another from now on.
    pub unsafe fn retire(&self) {
        self.pager.close();
        self.backend.retire();
    }

    /// Returns whether a range of addresses meets a page that is far memory now.
    #[must_use]
    pub fn is_managed(&self, addresses: Range<usize>) -> bool {
        let unmanaged = self.backend.unmanaged();
        self.pages_at(addresses).any(|pages| unmanaged.others(pages).next().is_some())
    }

    /// The pages of each place that a range of addresses meets.
    fn pages_at(&self, addresses: Range<usize>) -> impl Iterator<Item = Range<u32>> + '_ {
        let base = self.backend.base() as usize;
        let region = base..base + self.bytes.div_ceil(self.page) * self.page;
        std::iter::once(region).chain(self.adopted.iter().cloned()).filter_map(move |place| {
            let (start, end) = (addresses.start.max(place.start), addresses.end.min(place.end));
            let page = |address: usize| self.backend.page_of(address);
            (start < end).then(|| Some(page(start)?..page(end - 1)? + 1))?
        })
    }

    /// Returns whether the page at an address was handed to the kernel.
    #[must_use]
    pub fn is_unmanaged(&self, address: usize) -> bool {
        let unmanaged = self.backend.unmanaged();
        unmanaged.len() > 0 && self.backend.page_of(address).is_some_and(|page| unmanaged.has(page))
    }

    /// The addresses of the memory beside the region that pages pass through.
    #[doc(hidden)]
    #[must_use]
    pub fn frames(&self) -> Range<usize> {
        self.pager.frames()
    }

    /// Has the servers promise room for so many bytes of pages in all, with what they have promised already:
    /// pages of so many bytes never meet a full server. Without effect if there is a spill file. Waits for
    /// the servers' answers; a number that was reached before costs nothing.
    ///
    /// # Errors
    ///
    /// [`ReserveError`]: a server has too little left. Earlier reservations stay.
    pub fn reserve(&self, bytes: usize) -> Result<(), ReserveError> {
        self.pager.reserve(bytes as u64)
    }

    /// Stands still, so that this thread can `fork`: the child process gets a copy of the far memory.
    ///
    /// Meanwhile other threads wait if they touch a page that is away. The servers need room for what both
    /// processes have there.
    ///
    /// # Errors
    ///
    /// The system's, if it does not let the memory be inherited. A child has no far memory then.
    pub fn freeze(&self) -> io::Result<Frozen<'_>> {
        let (bytes, page, adopted) = (self.bytes, self.page, self.adopted.clone());
        Ok(Frozen { frozen: self.pager.freeze()?, bytes, page, adopted })
    }

    /// The first byte. Aligned to 2 MiB; at the same place as long as this lives.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.backend.base()
    }
}

/// Far memory that stands still while its process forks. The thread that has it calls one of the two, as soon
/// as it can.
#[must_use = "pages neither come nor go until it is used"]
pub struct Frozen<'a> {
    frozen: pager::Frozen<'a>,
    bytes: usize,
    page: usize,
    adopted: Vec<Range<usize>>,
}

impl Frozen<'_> {
    /// Goes on in the parent, once the child has begun or come to nothing: no longer than it takes to connect
    /// to the servers.
    pub fn in_parent(self) {
        self.frozen.in_parent();
    }

    /// The far memory of the child process, at the same place and with the same bytes.
    ///
    /// # Errors
    ///
    /// [`ForkError`]: the child has no far memory, and a touch of it is a fault.
    ///
    /// # Safety
    ///
    /// Called in the child, where this thread is the only one. The far memory that was frozen is neither used
    /// nor dropped there any more.
    pub unsafe fn in_child(self) -> Result<FarMemory, ForkError> {
        let _quiet = SignalsBlocked::new();
        // SAFETY: the caller's.
        let pager = unsafe { self.frozen.in_child()? };
        let backend = pager.backend();
        Ok(FarMemory { pager, backend, bytes: self.bytes, page: self.page, adopted: self.adopted })
    }
}

impl Frozen<'_> {
    /// The child process is to have none of it, as nothing is in it yet.
    ///
    /// # Safety
    ///
    /// As [`in_child`](Self::in_child).
    pub unsafe fn abandon_in_child(self) {
        // SAFETY: the caller's.
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
        // SAFETY: mapped as long as `self` lives; every bit pattern is a byte; PAGER-2: bytes change by the
        // program's writes only.
        unsafe { std::slice::from_raw_parts(self.backend.base(), self.bytes) }
    }
}

impl DerefMut for FarMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
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

/// All signals are blocked in this thread until it is dropped.
struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: both sets are ours; SIGSEGV and the like are still delivered when an instruction causes
        // them.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that was there before.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut());
        }
    }
}
