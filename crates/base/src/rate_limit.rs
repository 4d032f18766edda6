//! A limit on the number of log lines of one kind, so that a flood of bad requests does not fill a disk.

use crate::sync::Mutex;
use crate::sync::time::Instant;
use std::time::Duration;

/// Largest number of lines of one kind in each [`PERIOD`].
pub const MOST_LINES: u64 = 10;
/// Period of the limit. One line per 100 ms on average is readable, and a day of such lines is below 200 MB.
pub const PERIOD: Duration = Duration::from_secs(1);

/// A limit that admits [`MOST_LINES`] per [`PERIOD`] and counts the suppressed lines.
///
/// ```
/// use azekura_base::rate_limit::{MOST_LINES, RateLimit};
/// let limit = RateLimit::default();
/// let admitted = (0..1000).filter_map(|_| limit.admit()).count() as u64;
/// assert!((MOST_LINES..1000).contains(&admitted));
/// ```
#[derive(Debug, Default)]
pub struct RateLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    began: Option<Instant>,
    lines: u64,
    suppressed: u64,
}

impl RateLimit {
    /// Returns the number of lines that were suppressed since the last admitted line. Returns `None` if this
    /// line is suppressed, too.
    #[must_use]
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        if state.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            (state.began, state.lines) = (Some(now), 0);
        }
        if state.lines == MOST_LINES {
            state.suppressed += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_period_has_its_lines_and_the_first_counts_the_suppressed_ones() {
        let (limit, start) = (RateLimit::default(), Instant::now());
        let lines =
            |at: Duration| -> Vec<u64> { (0..25).filter_map(|_| limit.admit_at(start + at)).collect() };
        assert_eq!(lines(Duration::ZERO), [0; 10]);
        assert_eq!(lines(PERIOD / 2), []);
        assert_eq!(lines(PERIOD), [15 + 25, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
