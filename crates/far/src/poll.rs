//! Waiting for descriptors.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Returns an entry that waits until a descriptor is readable. A negative descriptor is never ready.
pub(crate) fn readable(fd: RawFd) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Waits until a descriptor is ready or has failed: then its `revents` are not 0. Returns `false` after a
/// timeout. After a signal no descriptor is ready.
pub(crate) fn wait(polled: &mut [libc::pollfd], within: Option<Duration>) -> io::Result<bool> {
    let timeout = within.map_or(-1, |within| {
        let least = i32::from(!within.is_zero());
        i32::try_from(within.as_millis()).unwrap_or(i32::MAX).max(least)
    });
    // SAFETY: the length is that of the slice.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        polled.iter_mut().for_each(|polled| polled.revents = 0);
        return if error.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(error) };
    }
    Ok(ready > 0)
}
