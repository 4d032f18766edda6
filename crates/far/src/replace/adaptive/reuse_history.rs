//! Intervals between the uses of a page, and the prediction of its next use.

/// Number of remembered intervals, which is the longest repeating pattern of uses that is recognized.
const REMEMBERED: usize = 64;
/// Number of fraction bits of a logarithm.
const FRACTION: u32 = 10;

/// Recorded uses of one page. Times count events; zero means never.
#[derive(Clone, Copy, Debug)]
pub struct ReuseHistory {
    last: u64,
    cleared: u64,
    /// Time of the predicted next use; zero if there is no prediction.
    due: u64,
    /// Logarithms of the intervals, the latest first. Each takes two bytes, and the difference of two
    /// logarithms measures how similar the intervals are.
    intervals: [u16; REMEMBERED],
    known: u8,
    burst_exponent: u8,
}

impl ReuseHistory {
    /// Returns an empty history. The first burst lasts `2^burst_exponent` events.
    #[must_use]
    pub fn new(burst_exponent: u8) -> Self {
        Self { last: 0, cleared: 0, due: 0, intervals: [0; REMEMBERED], known: 0, burst_exponent }
    }

    /// Records the first touch after the bit was cleared or the page was paged in. Returns `true` if the
    /// touch ends an interval.
    pub fn touch(&mut self, now: u64, longest_burst_exponent: u8) -> bool {
        let returned = self.last > 0 && now - self.cleared > self.burst();
        if returned {
            self.remember(now - self.last);
            self.burst_exponent = self.burst_exponent.saturating_sub(1);
        } else if self.last > 0 {
            // The same burst continues: the bit was cleared too early.
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

    /// Records that the reference bit was cleared.
    pub fn clear(&mut self, now: u64) {
        self.cleared = now;
    }

    /// Returns the estimated length of a burst of use.
    #[must_use]
    pub fn burst(&self) -> u64 {
        1 << self.burst_exponent
    }

    /// Returns the logarithm of [`burst`](Self::burst).
    #[must_use]
    pub fn burst_exponent(&self) -> u8 {
        self.burst_exponent
    }

    /// Returns the time of the last recorded touch.
    #[must_use]
    pub fn last_touch(&self) -> u64 {
        self.last
    }

    /// Returns the latest interval, if there is one.
    #[must_use]
    pub fn latest(&self) -> Option<u64> {
        (self.known > 0).then(|| length(self.intervals[0]))
    }

    /// Returns `true` if the page was used exactly twice, so that it has one interval.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.known == 1
    }

    /// Returns, for a page that was used three times, whether the second interval is at least half as long as
    /// the first. `None` for any other number of uses.
    #[must_use]
    pub fn second_confirms_first(&self) -> Option<bool> {
        (self.known == 2).then(|| self.intervals[0] + (1 << FRACTION) >= self.intervals[1])
    }

    /// Returns the predicted time of the next use, which is later than `now`, if there is a prediction. Takes
    /// constant time until the predicted time has passed, and then a search of the remembered intervals.
    pub fn next_use(&mut self, now: u64) -> Option<u64> {
        if 0 < self.due && self.due <= now {
            self.due = self.forecast(now);
        }
        (self.due > 0).then_some(self.due)
    }

    /// Predicts the next use. Considers the intervals that have not passed yet, and selects the one with the
    /// predecessor that is most similar to the latest interval; of equals, the most recent. Returns zero if
    /// all intervals have passed.
    fn forecast(&self, now: u64) -> u64 {
        let intervals = &self.intervals[..self.known.into()];
        let Some(&latest) = intervals.first() else { return 0 };
        let after = |interval: u16| Some(self.last + length(interval)).filter(|&due| due > now);
        let followed =
            intervals.windows(2).filter_map(|pair| Some((pair[1].abs_diff(latest), after(pair[0])?)));
        // Without a precedent, the latest interval is expected again.
        followed.min_by_key(|&(unlike, _)| unlike).map(|(_, due)| due).or_else(|| after(latest)).unwrap_or(0)
    }
}

/// Returns the logarithm to base two with ten fraction bits, linear between powers of two. Zero counts as
/// one.
fn logarithm(interval: u64) -> u16 {
    let interval = interval.max(1);
    let power = interval.ilog2();
    let rest = (u128::from(interval) << FRACTION >> power) as u16 & ((1 << FRACTION) - 1);
    (power as u16) << FRACTION | rest
}

/// Returns the interval of a logarithm, without its lowest bits.
fn length(logarithm: u16) -> u64 {
    let rest = u128::from(logarithm & ((1 << FRACTION) - 1) | 1 << FRACTION);
    (rest << (logarithm >> FRACTION) >> FRACTION) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a history with a touch after each of these intervals and a cleared bit before it, and the time
    /// of the last touch.
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
        assert_eq!(page.next_use(now), None, "no interval yet");
        for uses in 1..5 {
            let (mut page, now) = used(&vec![100; uses]);
            assert_eq!((page.next_use(now), page.last_touch()), (Some(now + 100), now));
        }
        let mut page = ReuseHistory::new(2);
        for used_at in [10, 110, 210] {
            page.clear(used_at - 10);
            page.touch(used_at, 8);
        }
        assert_eq!(page.burst(), 1, "two touches ended intervals: the burst is halved each time");
    }

    #[test]
    fn the_interval_after_the_most_similar_one_is_expected_at_any_age() {
        // Sixteen uses in each step of a program; nine of the intervals are equal.
        let step = [10, 10, 300, 40, 10, 70, 10, 10, 150, 10, 10, 1000, 10, 10, 20, 500];
        let steps: Vec<u64> = step.iter().copied().cycle().take(48).collect();
        for uses in 34..48 {
            // After 10, several intervals are possible; after every other number only one.
            if step[(uses - 1) % 16] != 10 {
                let (mut page, now) = used(&steps[..uses]);
                let due = page.next_use(now).unwrap() - now;
                assert!(due.abs_diff(steps[uses]) * 100 <= steps[uses], "{uses}: {due} for {}", steps[uses]);
            }
        }
    }

    #[test]
    fn an_overdue_page_is_expected_after_the_next_precedent_and_without_one_not_at_all() {
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
    fn the_second_interval_confirms_the_first_unless_it_is_shorter_than_half() {
        for (intervals, is_confirmed) in [
            (&[][..], None),
            (&[100], None),
            (&[100, 300], Some(true)),
            (&[100, 50], Some(true)),
            (&[100, 49], Some(false)),
            (&[100, 49, 100], None),
        ] {
            let (page, _) = used(intervals);
            assert_eq!(page.second_confirms_first(), is_confirmed, "{intervals:?}");
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
