//! When a page was used, and when it will be.

/// What is known of one page's use. Times count events; zero is never.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    last: u64,
    interval: u64,
    before: u64,
    cleared: u64,
    patience: u8,
}

impl Rhythm {
    /// Nothing is known; the first burst is given `2^patience` events.
    #[must_use]
    pub fn new(patience: u8) -> Self {
        Self { last: 0, interval: 0, before: 0, cleared: 0, patience }
    }

    /// The page is touched, and had not been since it was cleared or came in.
    pub fn touch(&mut self, now: u64, longest_patience: u8) {
        if self.last > 0 {
            if now - self.cleared > self.burst() {
                self.before = self.interval;
                self.interval = now - self.last;
                self.patience = self.patience.saturating_sub(1);
            } else {
                // Still the same burst: it was looked at too early.
                self.patience = (self.patience + 1).min(longest_patience);
            }
        }
        self.last = now;
    }

    /// The reference bit was cleared.
    pub fn clear(&mut self, now: u64) {
        self.cleared = now;
    }

    /// How long a burst of use is thought to last.
    #[must_use]
    pub fn burst(&self) -> u64 {
        1 << self.patience
    }

    /// The logarithm of that.
    #[must_use]
    pub fn patience(&self) -> u8 {
        self.patience
    }

    /// The last touch that was seen.
    #[must_use]
    pub fn last_touch(&self) -> u64 {
        self.last
    }

    /// When it should be used again; its last use if there is no rhythm yet.
    #[must_use]
    pub fn next_use(&self) -> u64 {
        let before = if self.before == 0 { self.interval } else { self.before };
        self.last + u64::midpoint(before, self.interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_used_every_hundred_events_is_expected_after_a_hundred() {
        let mut page = Rhythm::new(2);
        page.touch(10, 8);
        assert_eq!(page.next_use(), 10, "no rhythm yet");
        for use_at in [110, 210] {
            page.clear(use_at - 90);
            page.touch(use_at, 8);
            assert_eq!((page.next_use(), page.last_touch()), (use_at + 100, use_at));
        }
        assert_eq!(page.burst(), 1, "twice not touched at once: half as patient each time");
    }

    #[test]
    fn a_page_touched_at_once_after_clearing_is_in_the_same_burst() {
        let mut page = Rhythm::new(2);
        page.touch(10, 3);
        page.clear(14);
        page.touch(18, 3);
        assert_eq!((page.burst(), page.next_use()), (8, 18));
        page.clear(26);
        page.touch(30, 3);
        assert_eq!(page.burst(), 8, "no longer than the longest");
    }
}
