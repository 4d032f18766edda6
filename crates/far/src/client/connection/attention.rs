//! The time for which a server has been silent, without the time for which this process was stopped.
//!
//! A process that is stopped (Ctrl-Z, a debugger, a paused machine) reads nothing while its clock advances;
//! afterwards every server would seem to have been silent for hours. So the reader records each of its
//! checks, of which there are several per `stall`. If it has not checked for that long, the process was
//! stopped, and the time starts again. A machine so busy that the reader does not run for that long is no
//! reason to give up a server either.

use std::time::{Duration, Instant};

/// See the module's head.
#[derive(Debug)]
pub(super) struct Attention {
    /// Time of the reader's last look.
    looked: Instant,
    /// Since when it has looked again and again.
    since: Instant,
    /// Between two looks, if it does.
    most: Duration,
}

impl Attention {
    /// Of a reader that looks four times in each `stall`, or more often.
    pub(super) fn new(stall: Duration) -> Self {
        let now = Instant::now();
        Self { looked: now, since: now, most: stall.mul_f32(0.75) }
    }

    /// The reader looks.
    pub(super) fn looks(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) > self.most {
            self.since = now;
        }
        self.looked = now;
    }

    /// Returns the time from `due` until the reader's last look.
    pub(super) fn waited(&self, due: Instant) -> Duration {
        self.looked.saturating_duration_since(due.max(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let mut attention = Attention::new(Duration::from_secs(4));
        let begun = attention.looked;
        let mut look = |millis: u64| {
            attention.looks(begun + Duration::from_millis(millis));
            attention.waited(begun).as_millis()
        };
        assert_eq!((look(2000), look(4000), look(6900)), (2000, 4000, 6900));
        // An hour away.
        assert_eq!((look(3_600_000), look(3_602_000)), (0, 2000));
        assert_eq!(attention.waited(begun + Duration::from_millis(3_601_000)).as_millis(), 1000);
    }
}
