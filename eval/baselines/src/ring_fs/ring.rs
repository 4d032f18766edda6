//! `Ring`: an io_uring of one entry and one registered buffer, for one synchronous write at a time.
//!
//! - **RING-1** The kernel reads only the ring's own buffer, which keeps its address as long as the ring
//!   exists.
//! - **RING-2** A write is submitted only when no write is in progress, and [`Ring::write`] returns only
//!   after the write has ended. If the wait fails, the ring with its buffer is leaked.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use azekura_base::PageBuf;
use io_uring::{IoUring, opcode, types};

/// Size of the buffer in bytes, and so of the largest write.
pub(super) const BUFFER_BYTES: usize = 256 << 10;
/// Index of the registered buffer in the ring's table of buffers.
const BUFFER: u16 = 0;

/// A ring with its buffer.
pub(super) struct Ring {
    ring: IoUring,
    buffer: PageBuf,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({})", self.ring.as_raw_fd())
    }
}

/// The error of a failed wait for a write; the ring cannot be used any more (RING-2).
#[derive(Debug)]
pub(super) struct Lost(pub(super) io::Error);

impl Ring {
    /// Makes a ring and registers its buffer.
    ///
    /// # Errors
    ///
    /// ENOSYS or EPERM if the kernel does not allow rings, ENOMEM or EPERM if it does not register the
    /// buffer.
    pub(super) fn new() -> io::Result<Self> {
        let ring = IoUring::new(1)?;
        let mut buffer = PageBuf::zeroed(BUFFER_BYTES);
        let whole = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: RING-1: the memory belongs to the buffer, which is freed only after the ring, because
        // `ring` is declared before `buffer`.
        unsafe { ring.submitter().register_buffers(&[whole])? };
        Ok(Self { ring, buffer })
    }

    /// Writes the first bytes of `bytes`, as many as fit the buffer, at `offset`, with these flags of
    /// `pwritev2`. Blocks until the write has ended. Returns the number of written bytes, or the kernel's
    /// error.
    ///
    /// # Errors
    ///
    /// [`Lost`]: the state of the write is unknown; do not use this ring again.
    pub(super) fn write(
        mut self,
        file: impl AsFd,
        offset: u64,
        bytes: &[u8],
        flags: i32,
    ) -> Result<(Self, io::Result<usize>), Lost> {
        let len = bytes.len().min(self.buffer.len());
        self.buffer[..len].copy_from_slice(&bytes[..len]);
        let fd = types::Fd(file.as_fd().as_raw_fd());
        let entry = opcode::WriteFixed::new(fd, self.buffer.as_ptr(), len as u32, BUFFER)
            .offset(offset)
            .rw_flags(flags)
            .build();
        // SAFETY: RING-1 for the buffer, and RING-2 keeps it unchanged until the write has ended; the
        // descriptor is borrowed until then.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(self.give_up(io::Error::other("a ring without writes is full")));
        }
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.give_up(error)),
            }
            let completed = self.ring.completion().next().map(|completed| completed.result());
            if let Some(result) = completed {
                let done = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
                return Ok((self, done));
            }
        }
    }

    /// Leaks the ring with its buffer (RING-2).
    fn give_up(self, error: io::Error) -> Lost {
        std::mem::forget(self);
        Lost(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_ring_writes_what_it_was_given_and_says_how_much() {
        let ring = match Ring::new() {
            Ok(ring) => ring,
            Err(error) => return eprintln!("skipped: no io_uring here: {error}"),
        };
        let file = tempfile::tempfile().unwrap();
        let (ring, done) = ring.write(&file, 3, b"azekura", 0).unwrap();
        assert_eq!(done.unwrap(), 7);
        let long = vec![7; BUFFER_BYTES + 5];
        let (ring, done) = ring.write(&file, 10, &long, 0).unwrap();
        assert_eq!(done.unwrap(), BUFFER_BYTES, "the caller goes on with the rest");
        let mut bytes = [0; 12];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0azekura\x07\x07");
        let read_only = std::fs::File::open("/proc/self/stat").unwrap();
        let (_, refused) = ring.write(&read_only, 0, b"x", 0).unwrap();
        assert!(refused.is_err());
    }
}
