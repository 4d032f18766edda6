//! The time for which a server has been silent, not counting the time for which this process was stopped.
//!
//! A process that is stopped (Ctrl-Z, a debugger, a paused virtual machine) reads nothing while the clock
//! advances. When it continues, every server would appear to have been silent for hours. So the watcher
//! records the time of each of its checks, of which there are several per `stall`. If the interval since the
//! last check is too long, the process was stopped, and the time of silence starts again. The same applies if
//! the machine is so busy that the watcher does not run: this is no reason to give up a server.

use std::time::{Duration, Instant};

/// Times of the watcher's checks; see the [module](self).
#[derive(Debug)]
pub(super) struct Attention {
    /// Time of the watcher's last check.
    looked: Instant,
    /// Start of the current sequence of checks without a long gap.
    since: Instant,
    /// Longest interval between two checks of a process that was not stopped.
    most: Duration,
}

impl Attention {
    /// Creates the state for a watcher that checks at least four times per `stall`.
    pub(super) fn new(stall: Duration) -> Self {
        let now = Instant::now();
        Self { looked: now, since: now, most: stall.mul_f32(0.75) }
    }

    /// Records a check by the watcher.
    pub(super) fn looks(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) > self.most {
            self.since = now;
        }
        self.looked = now;
    }

    /// Returns the time from `due` until the watcher's last check, not counting the time before a stop.
    pub(super) fn waited(&self, due: Instant) -> Duration {
        self.looked.saturating_duration_since(due.max(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_observation_does_not_count() {
        let mut attention = Attention::new(Duration::from_secs(4));
        let begun = attention.looked;
        let mut look = |millis: u64| {
            attention.looks(begun + Duration::from_millis(millis));
            attention.waited(begun).as_millis()
        };
        assert_eq!((look(2000), look(4000), look(6900)), (2000, 4000, 6900));
        // The process was stopped for an hour.
        assert_eq!((look(3_600_000), look(3_602_000)), (0, 2000));
        assert_eq!(attention.waited(begun + Duration::from_millis(3_601_000)).as_millis(), 1000);
    }
}
