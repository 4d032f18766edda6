//! Results of a run: bogotransactions per second, mix of pages, response times, errors.

use super::Interaction;
use std::time::Duration;

/// Counts of pages, by kind. Pages that are errors are counted separately.
///
/// ```
/// use azekura_workload::bookstore::{Interaction, Tally};
/// use std::time::Duration;
/// let mut tally = Tally::default();
/// tally.add(Interaction::Home, Duration::from_millis(2), false);
/// tally.add(Interaction::SearchResults, Duration::from_millis(5), true);
/// assert_eq!(tally.per_second(Duration::from_secs(2)), 0.5);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    counts: [u64; 14],
    errors: [u64; 14],
    times: [Duration; 14],
}

impl Tally {
    /// Counts one page with the response time `response`, measured from its request.
    pub fn add(&mut self, page: Interaction, response: Duration, is_error: bool) {
        let at = page.index();
        if is_error {
            self.errors[at] += 1;
        } else {
            self.counts[at] += 1;
            self.times[at] += response;
        }
    }

    /// Adds the counts of another user.
    pub fn merge(&mut self, other: &Self) {
        for at in 0..self.counts.len() {
            self.counts[at] += other.counts[at];
            self.errors[at] += other.errors[at];
            self.times[at] += other.times[at];
        }
    }

    /// Returns the number of successful pages of all kinds, which are the bogotransactions.
    #[must_use]
    pub fn successes(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the number of pages that were errors.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Returns the bogotransactions per second (BT/s): every successful page counts, not only purchases. The
    /// value is comparable with DBT-1's at the same scale, but not with TPC-W's.
    #[must_use]
    pub fn per_second(&self, measured: Duration) -> f64 {
        self.successes() as f64 / measured.as_secs_f64()
    }

    /// Returns the number of successful pages of a kind.
    #[must_use]
    pub fn count(&self, page: Interaction) -> u64 {
        self.counts[page.index()]
    }

    /// Returns the part of a kind in all requested pages.
    #[must_use]
    pub fn part(&self, page: Interaction) -> f64 {
        let asked = self.counts[page.index()] + self.errors[page.index()];
        asked as f64 / (self.successes() + self.errors()).max(1) as f64
    }

    /// Returns the mean response time of a kind's successful pages; `None` if there are none.
    #[must_use]
    pub fn mean_response(&self, page: Interaction) -> Option<Duration> {
        let (count, time) = (self.counts[page.index()], self.times[page.index()]);
        (count > 0).then(|| Duration::from_secs_f64(time.as_secs_f64() / count as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_count_in_the_mix_but_not_in_the_rate() {
        let mut tally = Tally::default();
        for at in 0..10 {
            tally.add(Interaction::Home, Duration::from_millis(4), at == 0);
        }
        let mut other = Tally::default();
        other.add(Interaction::BuyConfirm, Duration::from_millis(8), false);
        tally.merge(&other);
        assert_eq!((tally.successes(), tally.errors()), (10, 1));
        assert!((tally.part(Interaction::Home) - 10.0 / 11.0).abs() < 1e-12);
        assert_eq!(tally.mean_response(Interaction::Home), Some(Duration::from_millis(4)));
        assert_eq!(tally.mean_response(Interaction::OrderDisplay), None);
        assert!((tally.per_second(Duration::from_secs(4)) - 2.5).abs() < 1e-12);
    }
}
