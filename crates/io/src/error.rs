//! The errors that callers distinguish, and the checks that all file systems of this crate share.
//!
//! All calls return [`std::io::Error`]. Its kind or number determines the reaction: `NotFound`,
//! `AlreadyExists`, `StorageFull` (ENOSPC), EIO, EINVAL for a direct access that is not aligned, EBADF for a
//! write to a file opened read-only, EFBIG for an offset beyond the largest file size. An error does not name
//! the file: the caller adds the name and the file's purpose.

use std::io;

use rustix::io::Errno;

/// The error of every call to a `FaultFs` after its power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerCut;

impl std::fmt::Display for PowerCut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the power is cut")
    }
}

impl std::error::Error for PowerCut {}

/// Returns `true` if `error`, or its cause, is a [`PowerCut`].
///
/// ```
/// use azekura_io::{FaultFs, Fs, is_power_cut};
/// let fs = FaultFs::new();
/// fs.cut_power();
/// assert!(is_power_cut(&fs.sync_dir("/".as_ref()).unwrap_err()));
/// ```
#[must_use]
pub fn is_power_cut(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<PowerCut>() {
            return true;
        }
        // `source` of an `io::Error` skips its payload, so the payload itself is checked first.
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match inside {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    false
}

#[cfg(feature = "test-fs")]
pub(crate) fn power_cut() -> io::Error {
    io::Error::other(PowerCut)
}

pub(crate) fn os(errno: Errno) -> io::Error {
    errno.into()
}

/// Returns `true` if the error means that a system call is not available: the kernel or the file system lacks
/// it, or a filter of system calls (seccomp) refuses it. An older call then does the same work, and returns
/// the error of the file itself if that was the cause.
pub(crate) const fn is_unavailable(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM)
}

/// Refuses an access that a direct file does not support, with EINVAL like the kernel.
///
/// # Errors
///
/// EINVAL unless offset, length and memory address are multiples of `alignment`.
pub(crate) fn check_aligned(alignment: usize, offset: u64, buf: &[u8]) -> io::Result<()> {
    check_aligned_range(alignment, offset, buf.len() as u64)?;
    // The address of an empty slice does not matter.
    if buf.is_empty() || buf.as_ptr().addr().is_multiple_of(alignment) {
        Ok(())
    } else {
        Err(os(Errno::INVAL))
    }
}

/// Checks an access as [`check_aligned`] does, without a buffer.
pub(crate) fn check_aligned_range(alignment: usize, offset: u64, len: u64) -> io::Result<()> {
    let alignment = alignment as u64;
    if offset.is_multiple_of(alignment) && len.is_multiple_of(alignment) {
        Ok(())
    } else {
        Err(os(Errno::INVAL))
    }
}

/// Returns the end of a write of `len` bytes at `offset`, or EFBIG if it is above `limit`.
pub(crate) fn check_end(offset: u64, len: u64, limit: u64) -> io::Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= limit => Ok(end),
        _ => Err(os(Errno::FBIG)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(io::Error);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("outer")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_power_cut_is_recognised_through_its_wrappers() {
        assert!(is_power_cut(&power_cut()));
        assert!(is_power_cut(&Outer(power_cut())));
        assert!(is_power_cut(&io::Error::other(Outer(power_cut()))));
        assert!(!is_power_cut(&Outer(os(Errno::IO))));
    }

    #[test]
    fn an_unaligned_length_offset_or_address_is_einval() {
        let page = azekura_base::PageBuf::zeroed(4096);
        assert!(check_aligned(512, 1024, &page[512..1024]).is_ok());
        for (offset, buf) in [(1, &page[..512]), (0, &page[..511]), (0, &page[1..513])] {
            let error = check_aligned(512, offset, buf).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        }
        assert!(check_aligned(1, 7, &page[3..4]).is_ok());
    }
}
