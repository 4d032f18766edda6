//! Mechanisms that page ordinary memory out and in and report accesses: one trait, two implementations.
//!
//! | module | mechanism | needs | accesses reported by |
//! |---|---|---|---|
//! | `userfault` | userfaultfd: pages are moved (`UFFDIO_MOVE`) or copied | Linux 6.8 or 5.7 | the kernel |
//! | `sigsegv`, `requests` | memory protection, SIGSEGV (paper, §2.2) | nothing | a signal handler |
//!
//! With userfaultfd, a system call on a paged-out page waits for the page, as the program does. With SIGSEGV
//! it returns `EFAULT` (F1).
//!
//! `places` maps page numbers to addresses: in a region that this layer allocates, and in existing memory of
//! the program. The bytes of both are transferred through *frames*: page-sized pieces of an arena that the
//! program never accesses. `page_set` stores which pages left far memory permanently, and which are reserved.
//!
//! - **FAULT-1** Between `map_out` and `map_in` no access of the program to the page succeeds. `map_out`
//!   removes the page at one instant, and after that the frame has the page's last bytes (F3). Pages of a run
//!   may be transferred one after the other.
//! - **FAULT-2** `map_in` makes a page visible whole or not at all.
//! - **FAULT-3** After `map_in` with `Allow::Read` the next write is reported before it happens, if
//!   `tells_every_write` is true. After `arm_access` the next access is reported before it happens.

pub(crate) mod abi;
pub(crate) mod arena;
pub(crate) mod page_set;
mod places;
pub(crate) mod requests;
pub mod signals;
pub(crate) mod sigsegv;
pub(crate) mod userfault;

use crate::poll;
use crate::replace::Access;
use page_set::PageSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Mechanism that pages in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mechanism {
    /// The first mechanism of [`LADDER`](Self::LADDER) that works on this system and for this user.
    #[default]
    Auto,
    /// userfaultfd with privileges (root, `CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd`); pages are
    /// moved. Requires Linux 6.8.
    UserfaultMove,
    /// userfaultfd with privileges; pages are copied. For kernels before 6.8.
    UserfaultCopy,
    /// userfaultfd without privileges; pages are moved. System calls on paged-out pages return `EFAULT`.
    UserModeMove,
    /// userfaultfd without privileges; pages are copied.
    UserModeCopy,
    /// Memory protection and SIGSEGV. System calls on paged-out pages return `EFAULT`.
    Sigsegv,
}

impl Mechanism {
    /// All mechanisms, in the order in which [`Auto`](Self::Auto) tries them.
    pub const LADDER: [Self; 5] =
        [Self::UserfaultMove, Self::UserModeMove, Self::UserfaultCopy, Self::UserModeCopy, Self::Sigsegv];

    /// Returns the name of the mechanism on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::UserfaultMove => "userfault-move",
            Self::UserfaultCopy => "userfault-copy",
            Self::UserModeMove => "user-mode-move",
            Self::UserModeCopy => "user-mode-copy",
            Self::Sigsegv => "sigsegv",
        }
    }

    /// Returns `true` if system calls on paged-out pages work. Otherwise they return `EFAULT` (F1).
    #[must_use]
    pub fn serves_system_calls(self) -> bool {
        matches!(self, Self::UserfaultMove | Self::UserfaultCopy)
    }

    fn is_user_mode(self) -> bool {
        matches!(self, Self::UserModeMove | Self::UserModeCopy)
    }

    /// Returns the mechanism that transfers pages in the same way and needs no privileges.
    fn for_any_user(self) -> Option<Self> {
        match self {
            Self::UserfaultMove => Some(Self::UserModeMove),
            Self::UserfaultCopy => Some(Self::UserModeCopy),
            _ => None,
        }
    }

    fn moves(self) -> bool {
        matches!(self, Self::UserfaultMove | Self::UserModeMove)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of parsing a name: no mechanism has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown mechanism {0:?}; use auto, userfault-move, userfault-copy, user-mode-move, user-mode-copy or \
     sigsegv"
)]
pub struct ParseMechanismError(String);

impl FromStr for Mechanism {
    type Err = ParseMechanismError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Auto].into_iter().chain(Self::LADDER);
        all.into_iter().find(|m| m.name() == text).ok_or_else(|| ParseMechanismError(text.into()))
    }
}

/// Accesses to a mapped page that the program may make without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allow {
    Read,
    ReadWrite,
}

/// An access of the program to a page that is paged out or armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) page: u32,
    pub(crate) access: Access,
}

/// Consecutive pages, and consecutive frames for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) page: u32,
    pub(crate) frame: u32,
    /// Number of pages, and of frames.
    pub(crate) len: u32,
}

/// State of a frame's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// The frame has memory, which can be written without the help of the system.
    Full,
    /// The frame has no memory, because the memory was moved into the region.
    Empty,
}

/// A mechanism in use for one region; see the [module](self). Only `next_fault`, `stop` and
/// `interrupt` may be called while another thread makes a call.
pub(crate) trait Backend: Send + Sync {
    fn mechanism(&self) -> Mechanism;
    /// Returns the address of the region's first byte.
    fn base(&self) -> *mut u8;
    /// Returns the address of a frame's first byte.
    fn frame(&self, frame: u32) -> *mut u8;
    /// Returns `true` if a page that is mapped with [`Allow::Read`] is certain to be unchanged since then.
    fn tells_every_write(&self) -> bool;
    /// Maps the bytes of the frames into the region. Wakes no thread.
    fn map_in(&self, run: Run, allow: Allow) -> io::Result<Frame>;
    /// Removes the pages from the region. Their bytes are then in the frames, which were empty. After the
    /// error [`is_held`], all pages are in the region as before, and the program may read and write them.
    fn map_out(&self, run: Run) -> io::Result<()>;
    /// Permits the program this access to mapped pages.
    fn open(&self, pages: Range<u32>, allow: Allow) -> io::Result<()>;
    /// Completes a mapped page that faulted because a part of it was removed by a system call of the program.
    /// Returns `true` if this changed the page's bytes.
    fn mend(&self, _page: u32) -> io::Result<bool> {
        Ok(false)
    }
    /// Makes the next access to each page fault. Returns `true` if the pages' bytes are now in the frames;
    /// then `map_in` maps them again. Errors are those of `map_out`.
    fn arm_access(&self, run: Run) -> io::Result<bool>;
    /// Empties the pages.
    fn discard(&self, pages: Range<u32>) -> io::Result<()>;
    /// Leaves these pages, which are empty, to the kernel: it allocates them when they are touched, and
    /// reports no faults. Threads that wait for one of the pages continue. Returns `false`, with nothing
    /// changed, if the backend cannot do this.
    fn leave(&self, _pages: Range<u32>) -> bool {
        false
    }
    /// Takes back pages that were left to the kernel: their faults are reported again. Returns, for each
    /// page, whether it is present, at least in part, and may be written. A page counts as present unless it
    /// is known to be absent.
    fn take_back(&self, pages: Range<u32>) -> io::Result<Vec<bool>> {
        Ok(pages.map(|_| true).collect())
    }
    /// Passes these pages to the kernel permanently: they behave as private anonymous memory, also in child
    /// processes. Their bytes are in the region and may be written, or the pages are empty.
    fn unmanage(&self, pages: Range<u32>) -> io::Result<()>;
    /// Commits pages, or reserves them: an access to a reserved page is refused, as in memory mapped with
    /// `PROT_NONE`. The pages are empty, and no two threads call this for one page at the same time.
    fn set_reserved(&self, pages: Range<u32>, is_reserved: bool) -> io::Result<()>;
    /// Returns the pages that are reserved.
    fn reserved(&self) -> &PageSet;
    /// Releases the remaining memory of the backend after all pages were passed to the kernel.
    fn retire(&self) {}
    /// Returns the pages that were passed to the kernel.
    fn unmanaged(&self) -> &PageSet;
    /// Returns the number of bytes of memory that the unmanaged pages use. Reads the page tables of all of
    /// them.
    fn unmanaged_bytes(&self, page_bytes: usize) -> usize {
        let count = |pages| bytes_present(pages, &|page| self.address(page), page_bytes);
        self.unmanaged().members().map(count).sum()
    }
    /// Returns the address of a page.
    fn address(&self, page: u32) -> *mut u8;
    /// Returns the page at an address; `None` if the address is outside of the region.
    fn page_of(&self, address: usize) -> Option<u32>;
    /// Returns the memory of a frame to the system.
    fn empty(&self, frame: u32);
    /// Wakes the threads that wait for these pages.
    fn wake(&self, pages: Range<u32>);
    /// Waits for a fault, or until one of these streams is ready: then its `revents` are not 0. Returns
    /// [`Event::Stopped`] after `stop`. Returns [`Event::Nothing`] after a timeout, after `interrupt`, and if
    /// only streams are ready.
    fn next_fault(&self, within: Option<Duration>, streams: &mut [libc::pollfd]) -> io::Result<Event>;
    /// Ends `next_fault` permanently.
    fn stop(&self);
    /// Ends the present or the next wait of `next_fault`.
    fn interrupt(&self) {}
    /// Prepares for `fork`: the child process gets a copy of the region and the frames. No other call is made
    /// until `after_fork`.
    fn before_fork(&self) -> io::Result<()> {
        Ok(())
    }
    /// Continues in the parent after `fork`: later child processes get no copy unless `before_fork` is called
    /// again.
    fn after_fork(&self) {}
    /// Returns a backend for the copy, in the child process. Mapped pages are mapped there too, and writable;
    /// frames keep their content. After an error the region cannot be accessed, so it never reads as zeros in
    /// place of the parent's bytes.
    fn for_child(&self) -> io::Result<Arc<dyn Backend>> {
        let why = format!("{} cannot pass the region to child processes", self.mechanism());
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }
    /// Closes inherited descriptors in a child process without far memory.
    fn abandon(&self) {}
}

/// Returns `true` if pages could not be removed because the kernel has pinned them, for example as the
/// destination of direct I/O.
pub(crate) fn is_held(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Largest number of pages of one call of `mincore`.
const COUNTED_AT_ONCE: usize = 1024;

/// Returns the number of bytes of these pages that have memory. A part of them may not be mapped any more.
fn bytes_present(pages: Range<u32>, address: &impl Fn(u32) -> *mut u8, page_bytes: usize) -> usize {
    let (Some(last), bytes) = (pages.clone().next_back(), pages.len() * page_bytes) else { return 0 };
    let at = address(pages.start);
    // The pages of adopted ranges may have lower addresses than those of the region.
    let is_contiguous = (address(last) as usize).wrapping_sub(at as usize) == bytes - page_bytes;
    if is_contiguous
        && pages.len() <= COUNTED_AT_ONCE
        && let Ok(present) = arena::present(at, bytes)
    {
        return present;
    }
    if pages.len() == 1 {
        return 0;
    }
    let middle = pages.start + (pages.end - pages.start) / 2;
    bytes_present(pages.start..middle, address, page_bytes)
        + bytes_present(middle..pages.end, address, page_bytes)
}

/// Waits until one of the backend's descriptors or streams is ready. Returns which of the backend's
/// descriptors are ready; none after a timeout.
fn wait<const N: usize>(
    own: [RawFd; N],
    streams: &mut [libc::pollfd],
    within: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled: Vec<libc::pollfd> = own.into_iter().map(poll::readable).collect();
    polled.extend_from_slice(streams);
    poll::wait(&mut polled, within)?;
    let (own, others) = polled.split_at(N);
    streams.copy_from_slice(others);
    if own.iter().any(|polled| polled.revents & libc::POLLNVAL != 0) {
        return Err(io::Error::from_raw_os_error(libc::EBADF)); // the program closed it by a raw system call
    }
    Ok(std::array::from_fn(|i| own[i].revents != 0))
}

/// Result of `next_fault`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Fault(Fault),
    Nothing,
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_pages_with_descending_addresses_are_counted() {
        const PAGE: usize = 16 << 10;
        let memory = arena::Mapping::anonymous(2 * PAGE).expect("space");
        let address = |page: u32| memory.at().wrapping_add(if page == 0 { PAGE } else { 0 });
        assert_eq!(bytes_present(0..2, &address, PAGE), 0);
        // SAFETY: the test owns the mapping.
        unsafe { memory.at().write_bytes(7, 2 * PAGE) };
        assert_eq!(bytes_present(0..2, &address, PAGE), 2 * PAGE);
        assert_eq!(bytes_present(0..0, &address, PAGE), 0);
    }
}
