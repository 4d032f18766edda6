//! Waiting for descriptors.

use crate::sys;
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
        // A limit of the program (RLIMIT_NOFILE) below the number of entries.
        if error.raw_os_error() == Some(libc::EINVAL) {
            return select(polled, within);
        }
        polled.iter_mut().for_each(|polled| polled.revents = 0);
        return if error.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(error) };
    }
    Ok(ready > 0)
}

/// Waits as [`wait`] does, by a call that does not compare the number of descriptors with RLIMIT_NOFILE.
fn select(polled: &mut [libc::pollfd], within: Option<Duration>) -> io::Result<bool> {
    const BITS: usize = u64::BITS as usize;
    let place = |fd: RawFd| usize::try_from(fd).ok().map(|fd| (fd / BITS, 1_u64 << (fd % BITS)));
    let count =
        polled.iter().filter_map(|polled| usize::try_from(polled.fd).ok()).max().map_or(0, |fd| fd + 1);
    let mut set = vec![0_u64; count.div_ceil(BITS)];
    polled.iter().filter_map(|polled| place(polled.fd)).for_each(|(word, bit)| set[word] |= bit);
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if let Some(within) = within {
        time.tv_sec = within.as_secs().try_into().unwrap_or(libc::time_t::MAX);
        time.tv_nsec = within.subsec_nanos().into();
    }
    let time = within.map_or(0, |_| (&raw mut time) as usize);
    // SAFETY: the set has a bit for each of `count` descriptors, and the time is a local variable.
    let ready = unsafe { sys::call(libc::SYS_pselect6, [count, set.as_mut_ptr() as usize, 0, 0, time, 0]) };
    let error = io::Error::last_os_error();
    polled.iter_mut().for_each(|polled| polled.revents = 0);
    match (ready, error.raw_os_error()) {
        (0.., _) => {
            for polled in &mut *polled {
                if place(polled.fd).is_some_and(|(word, bit)| set[word] & bit != 0) {
                    polled.revents = libc::POLLIN;
                }
            }
            Ok(ready > 0)
        }
        (_, Some(libc::EINTR)) => Ok(true),
        (_, Some(libc::EBADF)) => {
            for polled in polled.iter_mut().filter(|polled| polled.fd >= 0) {
                let arguments = [polled.fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0];
                // SAFETY: the call accesses no memory of this process.
                if unsafe { sys::call(libc::SYS_fcntl, arguments) } < 0 {
                    polled.revents = libc::POLLNVAL;
                }
            }
            Ok(true)
        }
        _ => Err(error),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    #[test]
    fn both_calls_report_the_same_descriptors() {
        let (silent, _writer) = io::pipe().unwrap();
        let (ready, mut writer) = io::pipe().unwrap();
        writer.write_all(&[1]).unwrap();
        // A number inside of the table of descriptors that no other test uses.
        let number = rustix::io::fcntl_dupfd_cloexec(&silent, 900).unwrap().as_raw_fd();
        let all = [silent.as_raw_fd(), ready.as_raw_fd(), -1].map(readable);
        let short = Some(Duration::from_millis(1));
        for call in [wait, select] {
            let mut polled = all;
            assert!(call(&mut polled, short).unwrap());
            assert_eq!(polled.map(|polled| polled.revents), [0, libc::POLLIN, 0]);
            assert!(!call(&mut [all[0]], short).unwrap());
            let mut closed = [all[0], readable(number)];
            assert!(call(&mut closed, short).unwrap());
            assert_eq!(closed.map(|polled| polled.revents), [0, libc::POLLNVAL]);
        }
    }
}
