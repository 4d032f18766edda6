//! Intervals between the uses of a page, and the prediction of its next use.

/// Number of remembered intervals: the longest repeating pattern of uses that is recognized.
const REMEMBERED: usize = 64;
/// Fraction bits of a logarithm.
const FRACTION: u32 = 10;

/// Recorded uses of one page. Times count events; zero means never.
#[derive(Clone, Copy, Debug)]
pub struct ReuseHistory {
    last: u64,
    cleared: u64,
    /// Time of the predicted next use; zero if there is no prediction.
    due: u64,
    /// Logarithms of the intervals, the latest first; so they take two bytes each, and likeness is a
    /// difference.
    intervals: [u16; REMEMBERED],
    known: u8,
    burst_exponent: u8,
}

impl ReuseHistory {
    /// An empty history; the first burst lasts `2^burst_exponent` events.
    #[must_use]
    pub fn new(burst_exponent: u8) -> Self {
        Self { last: 0, cleared: 0, due: 0, intervals: [0; REMEMBERED], known: 0, burst_exponent }
    }

    /// Records the first touch since the bit was cleared or the page came in. Returns `true` if this ends an
    /// interval.
    pub fn touch(&mut self, now: u64, longest_burst_exponent: u8) -> bool {
        let returned = self.last > 0 && now - self.cleared > self.burst();
        if returned {
            self.remember(now - self.last);
            self.burst_exponent = self.burst_exponent.saturating_sub(1);
        } else if self.last > 0 {
            // Still the same burst: it was looked at too early.
            self.burst_exponent = (self.burst_exponent + 1).min(longest_burst_exponent);
        }
        self.last = now;
        self.due = self.forecast(now);
        returned
    }

    fn remember(&mut self, interval: u64) {
        self.intervals.rotate_right(1);
        self.intervals[0] = logarithm(interval);
        self.known = (self.known + 1).min(REMEMBERED as u8);
    }

    /// The reference bit was cleared.
    pub fn clear(&mut self, now: u64) {
        self.cleared = now;
    }

    /// Returns the estimated length of a burst of use.
    #[must_use]
    pub fn burst(&self) -> u64 {
        1 << self.burst_exponent
    }

    /// The logarithm of that.
    #[must_use]
    pub fn burst_exponent(&self) -> u8 {
        self.burst_exponent
    }

    /// The last touch that was seen.
    #[must_use]
    pub fn last_touch(&self) -> u64 {
        self.last
    }

    /// The latest interval, if there was one.
    #[must_use]
    pub fn latest(&self) -> Option<u64> {
        (self.known > 0).then(|| length(self.intervals[0]))
    }

    /// Returns `true` if the page was used exactly twice, so that it has one interval.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.known == 1
    }

    /// For a page that was used three times: returns `true` if the second interval was at least half as
    /// long as the first.
    #[must_use]
    pub fn bore_out_its_first(&self) -> Option<bool> {
        (self.known == 2).then(|| self.intervals[0] + (1 << FRACTION) >= self.intervals[1])
    }

    /// Returns the predicted time of the next use, later than now, if there is a prediction. Constant time
    /// until that time has passed; then a search of the remembered intervals.
    pub fn next_use(&mut self, now: u64) -> Option<u64> {
        if 0 < self.due && self.due <= now {
            self.due = self.forecast(now);
        }
        (self.due > 0).then_some(self.due)
    }

    /// After the interval that followed the one most like the latest, of those that are not over; the most
    /// recent of equals. Zero if all are over.
    fn forecast(&self, now: u64) -> u64 {
        let intervals = &self.intervals[..self.known.into()];
        let Some(&latest) = intervals.first() else { return 0 };
        let after = |interval: u16| Some(self.last + length(interval)).filter(|&due| due > now);
        let followed =
            intervals.windows(2).filter_map(|pair| Some((pair[1].abs_diff(latest), after(pair[0])?)));
        // With no precedent it is taken to go on as it did.
        followed.min_by_key(|&(unlike, _)| unlike).map(|(_, due)| due).or_else(|| after(latest)).unwrap_or(0)
    }
}

/// To base two, with ten bits behind the point; straight between powers of two. Of zero as of one.
fn logarithm(interval: u64) -> u16 {
    let interval = interval.max(1);
    let power = interval.ilog2();
    let rest = (u128::from(interval) << FRACTION >> power) as u16 & ((1 << FRACTION) - 1);
    (power as u16) << FRACTION | rest
}

/// The interval again, but for its lowest bits.
fn length(logarithm: u16) -> u64 {
    let rest = u128::from(logarithm & ((1 << FRACTION) - 1) | 1 << FRACTION);
    (rest << (logarithm >> FRACTION) >> FRACTION) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touched after each of these intervals, each time cleared in between, the last time at the number that
    /// is given back.
    fn used(intervals: &[u64]) -> (ReuseHistory, u64) {
        let (mut page, mut now) = (ReuseHistory::new(0), 1);
        page.touch(now, 8);
        for interval in intervals {
            page.clear(now);
            now += interval;
            page.touch(now, 8);
        }
        (page, now)
    }

    #[test]
    fn a_page_used_every_hundred_events_is_expected_after_a_hundred() {
        let (mut page, now) = used(&[]);
        assert_eq!(page.next_use(now), None, "no reuse_history yet");
        for uses in 1..5 {
            let (mut page, now) = used(&vec![100; uses]);
            assert_eq!((page.next_use(now), page.last_touch()), (Some(now + 100), now));
        }
        let mut page = ReuseHistory::new(2);
        for used_at in [10, 110, 210] {
            page.clear(used_at - 10);
            page.touch(used_at, 8);
        }
        assert_eq!(page.burst(), 1, "twice not touched at once: half as patient each time");
    }

    #[test]
    fn what_followed_the_most_similar_interval_is_expected_however_far_back_it_is() {
        // Sixteen uses in each step of a program, of which nine intervals are alike.
        let step = [10, 10, 300, 40, 10, 70, 10, 10, 150, 10, 10, 1000, 10, 10, 20, 500];
        let steps: Vec<u64> = step.iter().copied().cycle().take(48).collect();
        for uses in 34..48 {
            // The mean of what followed tens says nothing; after another number only one can follow.
            if step[(uses - 1) % 16] != 10 {
                let (mut page, now) = used(&steps[..uses]);
                let due = page.next_use(now).unwrap() - now;
                assert!(due.abs_diff(steps[uses]) * 100 <= steps[uses], "{uses}: {due} for {}", steps[uses]);
            }
        }
    }

    #[test]
    fn a_page_that_is_overdue_is_expected_after_the_next_precedent_and_after_the_last_nobody_can_say() {
        let (mut page, now) = used(&[20, 500, 20, 60, 20]);
        assert_eq!(page.next_use(now), Some(now + 60), "the most recent of equals");
        assert_eq!(page.next_use(now + 59), Some(now + 60));
        assert_eq!(page.next_use(now + 60), Some(now + 500));
        assert_eq!(page.next_use(now + 501), None);
        assert_eq!(page.next_use(now + 502), None);
    }

    #[test]
    fn a_page_touched_at_once_after_clearing_is_in_the_same_burst() {
        let mut page = ReuseHistory::new(2);
        page.touch(10, 3);
        page.clear(14);
        page.touch(18, 3);
        assert_eq!((page.burst(), page.next_use(18)), (8, None));
        page.clear(26);
        page.touch(30, 3);
        assert_eq!(page.burst(), 8, "no longer than the longest");
    }

    #[test]
    fn the_second_interval_bears_out_the_first_unless_it_is_shorter_than_half() {
        for (intervals, borne_out) in [
            (&[][..], None),
            (&[100], None),
            (&[100, 300], Some(true)),
            (&[100, 50], Some(true)),
            (&[100, 49], Some(false)),
            (&[100, 49, 100], None),
        ] {
            let (page, _) = used(intervals);
            assert_eq!(page.bore_out_its_first(), borne_out, "{intervals:?}");
            assert_eq!((page.is_single(), page.latest()), (intervals.len() == 1, intervals.last().copied()));
        }
    }

    #[test]
    fn a_logarithm_keeps_order_and_loses_no_more_than_a_thousandth() {
        let all =
            (0..60).flat_map(|power| [0, 1, 2, 3].map(|off| (1_u64 << power) + off * (1_u64 << power) / 5));
        let all: Vec<u64> = all.collect();
        for pair in all.windows(2) {
            assert!(logarithm(pair[0]) <= logarithm(pair[1]), "{pair:?}");
        }
        for interval in all {
            let again = length(logarithm(interval));
            assert!(again <= interval && interval - again <= interval / 1000, "{interval}: {again}");
        }
        assert_eq!(length(logarithm(0)), 1);
    }
}
