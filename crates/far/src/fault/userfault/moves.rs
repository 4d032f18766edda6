//! Moves of pages (`UFFDIO_MOVE`) out of the region and into it.
//!
//! A failed move returns the number of bytes that it moved. Linux 6.18 sometimes returns too small a number:
//! after an internal retry it omits the bytes of the retry, tries once more, and finds its own pages at the
//! destination (`EEXIST`). Trusting this number would overwrite half a page with zeros. So a piece that is
//! present at the destination and absent at the source counts as moved ([`moved_pieces`]): the destination
//! was empty before.
//!
//! A page that is shared with another process, or that the kernel has pinned, cannot be moved. A shared page
//! can be moved after the sharing has ended. A pinned page stays in the region: it may be the destination of
//! direct I/O, so the device writes it without a fault, and a copy would lack these bytes.

use super::super::arena::{advise, missing};
use super::super::{Backend, Run, abi};
use super::{TRIES, UserfaultBackend};
use std::io;
use std::sync::atomic::Ordering::Relaxed;

impl UserfaultBackend {
    /// Moves memory to an empty destination. Retries if pages are busy, with at most `most_busy` attempts for
    /// pages that are shared or pinned. The error includes the number of bytes moved before it.
    pub(super) fn shift(
        &self,
        to: *mut u8,
        from: *mut u8,
        bytes: usize,
        most_busy: usize,
    ) -> Result<(), (usize, io::Error)> {
        let mut done = 0;
        let mut tries = 0;
        while done < bytes {
            let mode = abi::MOVE_DONTWAKE | abi::MOVE_ALLOW_HOLES;
            let left = bytes - done;
            let (reported, error) = self.uffd.r#move(to as usize + done, from as usize + done, left, mode);
            done += reported;
            let Some(error) = error else { continue };
            let unreported = match error.raw_os_error() {
                Some(libc::EEXIST) => {
                    moved_pieces(to.wrapping_add(done), from.wrapping_add(done), left - reported)
                }
                _ => Ok(0),
            };
            let unreported = unreported.map_err(|error| (done, error))?;
            done += unreported;
            if reported + unreported > 0 {
                tries = 0;
            }
            tries += 1;
            match error.raw_os_error() {
                Some(libc::EEXIST) if unreported > 0 => {}
                Some(libc::EBUSY) if tries >= most_busy => return Err((done, error)),
                Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) if tries < TRIES => {
                    if tries > 4 {
                        std::thread::yield_now();
                    }
                }
                _ => return Err((done, error)),
            }
        }
        Ok(())
    }

    /// Moves a run with contiguous addresses out of the region. After the error `EBUSY`, all of it is in
    /// the region and may be written.
    pub(super) fn move_out(&self, run: Run) -> io::Result<()> {
        let (to, from, bytes) = (self.frame(run.frame), self.page(run.page), self.bytes(run.len));
        // Relaxed: a hint. Pages that are shared stay shared, so a retry is useless.
        let first_tries = if self.forked.load(Relaxed) { 1 } else { TRIES };
        let mut done = 0;
        for tries in [first_tries, TRIES] {
            let (to, from) = (to.wrapping_add(done), from.wrapping_add(done));
            let Err((moved, error)) = self.shift(to, from, bytes - done, tries) else { return Ok(()) };
            done += moved;
            match error.raw_os_error() {
                // The frame was not empty. It is unknown where the bytes are, so no hole may be filled.
                Some(libc::EEXIST) => return Err(error),
                Some(libc::EBUSY) => self.end_sharing(run, done)?,
                _ => return self.copy_out(run, done),
            }
        }
        self.shift(from, to, done, TRIES).map_err(|(_, error)| error)?;
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Gives the rest of a run, beginning at byte `done`, its own pages in place of pages that it shares with
    /// another process.
    fn end_sharing(&self, run: Run, done: usize) -> io::Result<()> {
        let (at, left) = (self.page(run.page).wrapping_add(done), self.bytes(run.len) - done);
        // As in `copy_out`, this thread must not cause a fault.
        self.fill(at, left)?;
        self.uffd.write_protect(at as usize, left, abi::WP_DONTWAKE)?;
        advise(at, left, libc::MADV_POPULATE_WRITE)
    }
}

/// Returns the number of bytes at the beginning of a range that were moved: present at `to` and absent at
/// `from`.
fn moved_pieces(to: *mut u8, from: *mut u8, bytes: usize) -> io::Result<usize> {
    let (not_there, piece) = missing(to, bytes)?;
    let (gone, _) = missing(from, bytes)?;
    Ok(prefix(&not_there, to as usize, &gone, from as usize, bytes, piece))
}

/// Computes the result of [`moved_pieces`] from the sorted addresses of missing pieces.
fn prefix(not_there: &[usize], to: usize, gone: &[usize], from: usize, bytes: usize, piece: usize) -> usize {
    let there = not_there.first().map_or(bytes, |&at| at - to);
    let left_behind =
        gone.iter().zip((from..).step_by(piece)).take_while(|&(&at, piece)| at == piece).count();
    there.min(left_behind * piece)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_page_present_only_at_the_destination_was_moved() {
        const PIECE: usize = 4096;
        let at = |base: usize, pieces: &[usize]| {
            pieces.iter().map(|piece| base + piece * PIECE).collect::<Vec<_>>()
        };
        let moved = |not_there: &[usize], gone: &[usize]| {
            prefix(&at(1 << 20, not_there), 1 << 20, &at(1 << 30, gone), 1 << 30, 4 * PIECE, PIECE) / PIECE
        };
        assert_eq!(moved(&[], &[0, 1, 2, 3]), 4, "all, though nothing of it was reported");
        assert_eq!(moved(&[2, 3], &[0, 1]), 2);
        assert_eq!(moved(&[2, 3], &[0, 1, 2, 3]), 2, "then a hole");
        assert_eq!(moved(&[3], &[0, 2]), 1, "the second is in both places: not by a move");
        assert_eq!(moved(&[0, 1, 2, 3], &[]), 0);
        assert_eq!(moved(&[], &[]), 0);
    }
}
