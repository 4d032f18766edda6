//! Errors of a region.

use crate::client::ConnectError;
use std::io;
use std::path::PathBuf;

/// Error of creating a region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FarError {
    /// The page size is not a power of two within the limits.
    #[error("the page size is {0} bytes; use 4 KiB, 8 KiB … or 2 MiB")]
    Page(usize),
    /// The region has no bytes, or more than 2^31 pages.
    #[error("a region of {bytes} bytes has no page, or too many pages of {page_bytes} bytes")]
    Size {
        /// Requested size of the region in bytes.
        bytes: usize,
        /// Page size in bytes.
        page_bytes: usize,
    },
    /// The local memory is less than eight pages.
    #[error(
        "local memory of {local} bytes is less than eight pages ({least} bytes); use more, or smaller pages"
    )]
    Local {
        /// Configured local memory in bytes.
        local: usize,
        /// Least local memory in bytes.
        least: usize,
    },
    /// Neither a server nor a spill file was given.
    #[error("no memory server and no spill file; give at least one of them")]
    Nowhere,
    /// The number of copies or servers is invalid: no copy, more copies than servers, or more than 15
    /// servers.
    #[error("{copies} copies on {servers} servers: 1 to 15 servers, and no more copies than servers")]
    Copies {
        /// Number of copies requested.
        copies: usize,
        /// Number of servers that were given.
        servers: usize,
    },
    /// The connection to a server could not be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The spill file could not be created. It must not exist before.
    #[error("cannot create spill file {}", path.display())]
    Spill {
        /// Path of the spill file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The system lacks a feature of the mechanism.
    #[error("mechanism {mechanism} does not work on this system; use auto")]
    Mechanism {
        /// Name of the mechanism.
        mechanism: crate::Mechanism,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The content of memory to adopt could not be read.
    #[error("cannot turn memory of the program into far memory")]
    Adopt(#[source] io::Error),
    /// The threads of the pager could not be started.
    #[error("cannot start the pager")]
    Threads(#[source] io::Error),
}

/// Error of [`FarMemory::reserve`](crate::FarMemory::reserve): a memory server refused to reserve memory for
/// pages.
#[derive(Debug, thiserror::Error)]
#[error("memory server {server} reserved no memory: {why}")]
pub struct ReserveError {
    /// Address of the server.
    pub server: String,
    /// Reason that the server reported.
    pub why: String,
}

/// Reason why a child process has no far memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The mechanism does not support child processes, or the system refused a feature of the mechanism in
    /// the child.
    #[error("cannot give a child process its far memory")]
    Backend(#[source] io::Error),
    /// The threads of the pager could not be started.
    #[error("cannot start the pager of a child process")]
    Threads(#[source] io::Error),
}

/// Reason why the process is ended: it needs bytes that no replica has, or that cannot be stored anywhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Loss {
    #[error(
        "page {page} was touched and was only on a server that is lost; run with --copies 2 or --spill FILE \
         to survive this"
    )]
    Page { page: u32 },
    #[error(
        "no server stored page {page} ({why}), and local memory is used up; add a server, or use --spill FILE"
    )]
    NoTaker { page: u32, why: String },
    #[error(
        "cannot wait for page faults on the layer's descriptors: {source}; a program that closes all \
         descriptors by raw system calls cannot run in far memory"
    )]
    Faults { source: io::Error },
    #[error("the kernel refused to map page {page} {how}: {source}; {}", map_advice(source))]
    Map { page: u32, how: &'static str, source: io::Error },
    #[error(
        "page {page} cannot be paged out, and neither can other pages: the kernel holds them for direct I/O \
         or for a device; use a larger --local"
    )]
    Held { page: u32 },
    #[error(
        "the kernel refused to make {pages} pages from page {page} on ordinary memory again: {source}; {}",
        map_advice(source)
    )]
    Unmanage { page: u32, pages: usize, source: io::Error },
}

impl Loss {
    /// Returns the affected pages.
    pub(crate) fn pages(&self) -> Option<(u32, usize)> {
        match *self {
            Self::Page { page }
            | Self::Held { page }
            | Self::NoTaker { page, .. }
            | Self::Map { page, .. } => Some((page, 1)),
            Self::Unmanage { page, pages, .. } => Some((page, pages)),
            Self::Faults { .. } => None,
        }
    }
}

/// Returns the usual cause of an error in mapping a page, and the remedy.
fn map_advice(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOMEM) => {
            "memory, RLIMIT_AS or the number of mappings (vm.max_map_count) is used up: raise it, or lower \
             --local"
        }
        Some(libc::EBADF | libc::ENOTTY) => {
            "the program closed the layer's descriptor by a raw system call: it cannot run in far memory"
        }
        _ => "the program changed this range by a raw system call, or this is a defect: report it",
    }
}
