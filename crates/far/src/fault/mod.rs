//! Mechanisms that page ordinary memory out and in and report touches: one trait, two implementations.
//!
//! | module | mechanism | needs | accesses reported by |
//! |---|---|---|---|
//! | `userfault` | userfaultfd: pages are moved (`UFFDIO_MOVE`) or copied | Linux 6.8 or 5.7 | the kernel |
//! | `sigsegv`, `requests` | memory protection, SIGSEGV (paper, §2.2) | nothing | a signal handler |
//!
//! With userfaultfd, system calls wait for pages as programs do. With SIGSEGV they return `EFAULT` (F1).
//!
//! `places` is where pages lie: a region of our own, and memory of the program that was there before. Both
//! have the pages' bytes come and go through *frames*: page-sized pieces of an arena that the program never
//! sees. `page_set` has the pages that left far memory for good, and those that are
//! reserved.
//!
//! - **FAULT-1** Between `map_out` and `map_in` no access of the program to the page succeeds. `map_out`
//!   removes it at one instant, after which the frame has its last bytes (F3). Pages of a run may be
//!   transferred one after the other.
//! - **FAULT-2** `map_in` makes a page visible whole or not at all.
//! - **FAULT-3** After `arm_write` the next write is reported before it happens; so is the next access after
//!   `arm_access`.

pub(crate) mod abi;
pub(crate) mod arena;
pub(crate) mod page_set;
mod places;
pub(crate) mod requests;
pub mod signals;
pub(crate) mod sigsegv;
pub(crate) mod userfault;

use crate::replace::Access;
use page_set::PageSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Mechanism that pages in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mechanism {
    /// The first of the others that this machine and user can have, in the order in which they stand here
    /// (without [`Sigsegv`](Self::Sigsegv) being last for nothing).
    #[default]
    Auto,
    /// userfaultfd with all rights (root, `CAP_SYS_PTRACE`, or `vm.unprivileged_userfaultfd`), pages moved.
    UserfaultMove,
    /// The same, pages copied: kernels before 6.8.
    UserfaultCopy,
    /// userfaultfd without privileges, pages moved; system calls on paged-out memory return `EFAULT`.
    UserModeMove,
    /// The same, pages copied.
    UserModeCopy,
    /// Memory protection and SIGSEGV; system calls on pages that are away give `EFAULT`.
    Sigsegv,
}

impl Mechanism {
    /// All mechanisms, the best first.
    pub const LADDER: [Self; 5] =
        [Self::UserfaultMove, Self::UserModeMove, Self::UserfaultCopy, Self::UserModeCopy, Self::Sigsegv];

    /// Its name on the command line.
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

    /// Returns `true` if system calls on pages that are away work. If not they give `EFAULT` (F1).
    #[must_use]
    pub fn serves_system_calls(self) -> bool {
        matches!(self, Self::UserfaultMove | Self::UserfaultCopy)
    }

    fn is_user_mode(self) -> bool {
        matches!(self, Self::UserModeMove | Self::UserModeCopy)
    }

    /// The mechanism with the same transfers that needs no right.
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

/// No mechanism has this name.
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

/// The program touched a page that was away or armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) page: u32,
    pub(crate) access: Access,
}

/// Pages that follow one another, and frames that do.
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
    /// Memory that can be written without the system's help.
    Full,
    /// None: it went into the region.
    Empty,
}

/// See the [module](self). All calls but `next_fault` and `stop` are made by one thread at a time.
pub(crate) trait Backend: Send + Sync {
    fn mechanism(&self) -> Mechanism;
    /// The region's first byte.
    fn base(&self) -> *mut u8;
    /// A frame's first byte.
    fn frame(&self, frame: u32) -> *mut u8;
    /// Returns `true` if a page that was mapped with [`Allow::Read`] and is still so was certainly not
    /// written.
    fn tells_every_write(&self) -> bool;
    /// Maps the frames' bytes into the region. Wakes no thread.
    fn map_in(&self, run: Run, allow: Allow) -> io::Result<Frame>;
    /// Takes the pages out of the region; their bytes are in the frames then, which were empty.
    fn map_out(&self, run: Run) -> io::Result<()>;
    /// Permits the program this access to mapped pages.
    fn open(&self, pages: Range<u32>, allow: Allow) -> io::Result<()>;
    /// Completes a mapped page that faulted all the same, because a part of it was removed from outside.
    /// Returns whether its bytes changed by that.
    fn mend(&self, _page: u32) -> io::Result<bool> {
        Ok(false)
    }
    /// Makes the next access to each page fault. Returns whether the pages' bytes are now in the frames; then
    /// `map_in` maps them again.
    fn arm_access(&self, run: Run) -> io::Result<bool>;
    /// The pages are empty.
    fn discard(&self, pages: Range<u32>) -> io::Result<()>;
    /// Leaves these pages, which are empty, to the kernel: it makes them when they are touched and sends no
    /// event, and threads that wait for one go on. Returns `false`, with nothing changed, if the backend
    /// cannot do that.
    fn leave(&self, _pages: Range<u32>) -> bool {
        false
    }
    /// Takes back pages that were left to the kernel: their faults are reported again. Returns, for each
    /// page, whether it is present, at least in part, and may be written. A page counts as present unless it
    /// is known to be absent.
    fn take_back(&self, pages: Range<u32>) -> io::Result<Vec<bool>> {
        Ok(pages.map(|_| true).collect())
    }
    /// Gives these pages to the kernel for good: they behave as private anonymous memory, also in child
    /// processes. Their bytes are in the region and may be written, or they are empty.
    fn unmanage(&self, pages: Range<u32>) -> io::Result<()>;
    /// Commits pages, or reserves them: an access to a reserved page is refused, as it is in memory without
    /// access. The pages are empty, and this is not called for one page by two threads at once.
    fn set_reserved(&self, pages: Range<u32>, is_reserved: bool) -> io::Result<()>;
    /// The pages that are reserved.
    fn reserved(&self) -> &PageSet;
    /// Releases the remaining memory of the backend: all pages are with the kernel.
    fn retire(&self) {}
    /// The pages that left so.
    fn unmanaged(&self) -> &PageSet;
    /// The address of a page.
    fn address(&self, page: u32) -> *mut u8;
    /// The page at an address, if one is.
    fn page_of(&self, address: usize) -> Option<u32>;
    /// The frame's memory goes back to the system.
    fn empty(&self, frame: u32);
    /// Wakes the threads that wait for these pages.
    fn wake(&self, pages: Range<u32>);
    /// Waits for a fault; `None` after `stop`, or at the end of the time.
    fn next_fault(&self, within: Option<Duration>) -> io::Result<Event>;
    /// Ends `next_fault` for good.
    fn stop(&self);
    /// Prepares for a `fork`: the child gets a copy of the region and the frames. No other call is made until
    /// `after_fork`.
    fn before_fork(&self) -> io::Result<()> {
        Ok(())
    }
    /// In the parent: children that come about in other ways get no copy.
    fn after_fork(&self) {}
    /// In the child: a backend for the copy. Pages that were mapped are, and are writable; frames have what
    /// they had. After an error the region cannot be touched (it never reads as zeros where the parent had
    /// something else).
    fn for_child(&self) -> io::Result<Arc<dyn Backend>> {
        let why = format!("{} does not give it to them", self.mechanism());
        Err(io::Error::new(io::ErrorKind::Unsupported, why))
    }
    /// In a child without far memory: closes inherited descriptors.
    fn abandon(&self) {}
}

/// Result of `next_fault`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Fault(Fault),
    Nothing,
    Stopped,
}
