//! The hooked calls, and the keys of their call sites.

/// Hooked calls. Their names are the names of sites in traces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "each variant has the name of its call")]
pub enum Called {
    Mutex = 1,
    SpinLock,
    Rwlock,
    Futex,
    Condition,
    Semaphore,
    Barrier,
    Join,
    Fsync,
    Fdatasync,
    Msync,
    Read,
    Pread,
    Write,
    Pwrite,
    Recv,
    Send,
    Poll,
    Epoll,
    Select,
    Accept,
    Sleep,
    Waitpid,
    Flock,
    Semop,
    Sigwait,
    FcntlLock,
    Lockf,
    MqReceive,
    MqSend,
    Msgrcv,
    Msgsnd,
    SyncFileRange,
    Connect,
    IoUring,
    Caller,
    /// All call sites that had no room in the table.
    More,
}

/// Names of the calls, by the number of [`Called`], from 1.
pub const NAMES: [&str; 37] = [
    "mutex",
    "spin lock",
    "rwlock",
    "futex",
    "condition",
    "semaphore",
    "barrier",
    "join",
    "fsync",
    "fdatasync",
    "msync",
    "read",
    "pread",
    "write",
    "pwrite",
    "recv",
    "send",
    "poll",
    "epoll",
    "select",
    "accept",
    "sleep",
    "waitpid",
    "flock",
    "semop",
    "sigwait",
    "fcntl lock",
    "lockf",
    "mq_receive",
    "mq_send",
    "msgrcv",
    "msgsnd",
    "sync_file_range",
    "connect",
    "io_uring",
    "caller",
    "more call sites",
];

/// Number of bits of the address in a site's key.
const ADDRESS_BITS: u32 = 56;

/// Returns the key of a site: the called function, and the address of the call.
#[must_use]
pub const fn site_key(called: Called, address: usize) -> u64 {
    (called as u64) << ADDRESS_BITS | (address as u64) & ((1 << ADDRESS_BITS) - 1)
}

/// Returns the name and the address of a site's key; `None` if it is no key.
#[must_use]
pub fn site_of(key: u64) -> Option<(&'static str, u64)> {
    let called = usize::try_from(key >> ADDRESS_BITS).ok()?.checked_sub(1)?;
    Some((NAMES.get(called)?, key & ((1 << ADDRESS_BITS) - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_sites_are_what_was_called_and_from_where() {
        assert_eq!(site_of(site_key(Called::Mutex, 0x5555_1234)), Some(("mutex", 0x5555_1234)));
        assert_eq!(site_of(site_key(Called::More, 0)), Some(("more call sites", 0)));
        assert_eq!(site_of(0), None);
        assert_eq!(site_of(u64::MAX), None);
    }
}
