//! Comparison of the nodes' clocks: nodes with clocks that differ too much refuse each other.
//!
//! An application may let rows expire by the clock of their node. After the move of a leaf another clock
//! applies. So two nodes work together only while their clocks differ by at most
//! [`max_clock_offset`](crate::Options::max_clock_offset): a row expires at most that much too early.

use std::time::Duration;

/// Assumed maximum time of a message in flight. The connection of a slower message is closed.
const MOST_DELAY_MS: u64 = 3000;

/// The offset of another node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockOffset {
    /// `true` if the other clock is ahead of this node's clock, `false` if it is behind.
    pub is_ahead: bool,
    /// Lower bound of the offset, in milliseconds.
    pub ms: u64,
    /// Largest allowed offset, in milliseconds.
    pub max_ms: u64,
}

impl std::fmt::Display for ClockOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = if self.is_ahead { "ahead of" } else { "behind" };
        let Self { ms, max_ms, .. } = self;
        write!(f, "its clock is {ms} ms {way} this node's, {max_ms} are allowed: set the clocks (NTP)")
    }
}

/// Compares another node's time, in milliseconds since 1970, with this node's clock. The other node read its
/// clock between the two times of `between_ms`. Returns `None` if the offset may be within the limit.
pub(crate) fn judge(told_ms: u64, between_ms: (u64, u64), max: Duration) -> Option<ClockOffset> {
    let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    let (earliest, latest) = between_ms;
    let (is_ahead, ms) =
        if told_ms > latest { (true, told_ms - latest) } else { (false, earliest.saturating_sub(told_ms)) };
    (ms > max_ms).then_some(ClockOffset { is_ahead, ms, max_ms })
}

/// Compares a time from a message, which was sent at most [`MOST_DELAY_MS`] ago.
pub(crate) fn judge_message(told_ms: u64, now_ms: u64, max: Duration) -> Option<ClockOffset> {
    judge(told_ms, (now_ms.saturating_sub(MOST_DELAY_MS), now_ms), max)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_millis(500);

    #[test]
    fn a_clock_is_refused_only_if_it_must_be_too_far_off() {
        assert_eq!(judge(10_000, (9_000, 9_400), MAX).map(|off| (off.is_ahead, off.ms)), Some((true, 600)));
        assert_eq!(judge(9_900, (9_000, 9_400), MAX), None);
        assert_eq!(judge(9_200, (9_000, 9_400), MAX), None);
        assert_eq!(judge(8_500, (9_000, 9_400), MAX), None);
        assert_eq!(judge(8_499, (9_000, 9_400), MAX).map(|off| (off.is_ahead, off.ms)), Some((false, 501)));
        assert_eq!(judge_message(10_000, 13_400, MAX), None);
        assert_eq!(judge_message(10_000, 13_501, MAX).map(|off| off.ms), Some(501));
        assert_eq!(judge_message(10_000, 9_000, MAX).map(|off| off.ms), Some(1000));
    }
}
