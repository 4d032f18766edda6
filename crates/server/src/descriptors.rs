//! The limit of open files of the process: raises the limit, and reserves some descriptors for the store.
//!
//! Every connection uses a descriptor. If connections used all, the log could not open its next segment, and
//! writes would get no reply.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for the store, the other nodes, the threads and `/metrics`.
pub(crate) const RESERVED: u64 = 256;
/// Descriptors of a reactor: its poll and the waker of the poll.
const OF_REACTOR: u64 = 2;

/// Returns the number of connections, at most `wanted`, that leaves the descriptors of the reactors and
/// [`RESERVED`] ones. Raises the limit of the process as far as needed and allowed.
pub(crate) fn most_clients(wanted: usize, reactors: usize) -> usize {
    let reserved = reserved(reactors);
    let before = getrlimit(Resource::Nofile);
    let limit = raised(wanted, reserved, before);
    // A limit that cannot be raised stays unchanged.
    let is_raised = limit == before || setrlimit(Resource::Nofile, limit).is_ok();
    fitting(wanted, reserved, if is_raised { limit } else { before })
}

/// Returns the number of descriptors that connections may not use.
fn reserved(reactors: usize) -> u64 {
    RESERVED.saturating_add(OF_REACTOR.saturating_mul(reactors as u64))
}

/// Returns the limit for this number of connections: at most the hard limit, at least the current limit.
fn raised(wanted: usize, reserved: u64, limit: Rlimit) -> Rlimit {
    let needed = (wanted as u64).saturating_add(reserved);
    let allowed = limit.maximum.map_or(needed, |most| needed.min(most));
    Rlimit { current: limit.current.map(|current| current.max(allowed)), ..limit }
}

fn fitting(wanted: usize, reserved: u64, limit: Rlimit) -> usize {
    let Some(current) = limit.current else { return wanted };
    let left = usize::try_from(current.saturating_sub(reserved)).unwrap_or(usize::MAX);
    // At least one connection is allowed, so that the server is usable.
    wanted.min(left.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(current: u64, maximum: u64) -> Rlimit {
        Rlimit { current: Some(current), maximum: Some(maximum) }
    }

    #[test]
    fn the_limit_is_raised_as_far_as_needed_and_allowed_and_never_lowered() {
        assert_eq!(raised(1024, RESERVED, limit(1024, 1 << 20)), limit(1280, 1 << 20));
        assert_eq!(raised(1024, RESERVED, limit(1024, 1100)), limit(1100, 1100));
        assert_eq!(raised(10, RESERVED, limit(1024, 4096)), limit(1024, 4096));
        let unlimited = Rlimit { current: None, maximum: None };
        assert_eq!(raised(10, RESERVED, unlimited), unlimited);
    }

    #[test]
    fn connections_leave_the_reserve() {
        assert_eq!(fitting(1024, RESERVED, limit(1280, 1280)), 1024);
        assert_eq!(fitting(1024, RESERVED, limit(1100, 1100)), 844);
        assert_eq!(fitting(1024, RESERVED, limit(100, 100)), 1);
        assert_eq!(fitting(1024, RESERVED, Rlimit { current: None, maximum: None }), 1024);
    }

    /// A machine with 128 processors has as many reactors, which need 256 descriptors.
    #[test]
    fn reactors_use_no_descriptor_of_the_reserve() {
        assert_eq!(fitting(1024, reserved(128), limit(1280, 1280)), 1280 - 256 - 256);
        assert_eq!(raised(1024, reserved(128), limit(1024, 1 << 20)), limit(1536, 1 << 20));
    }
}
