//! Results of a run: bogotransactions per second, the mix, responses, errors.

use super::Interaction;
use std::time::Duration;

/// Pages answered, by kind. A page that is an error is counted apart.
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
    /// Counts one page that took `response` from when it was asked for.
    pub fn add(&mut self, page: Interaction, response: Duration, is_error: bool) {
        let at = page.index();
        if is_error {
            self.errors[at] += 1;
        } else {
            self.counts[at] += 1;
            self.times[at] += response;
        }
    }

    /// Adds what another user counted.
    pub fn merge(&mut self, other: &Self) {
        for at in 0..self.counts.len() {
            self.counts[at] += other.counts[at];
            self.errors[at] += other.errors[at];
            self.times[at] += other.times[at];
        }
    }

    /// Successful pages of all kinds: bogotransactions.
    #[must_use]
    pub fn successes(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Pages that were errors.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Bogotransactions per second (BT/s): every successful page counts, not only purchases. Comparable with
    /// DBT-1's numbers at the same scale, with TPC-W's never.
    #[must_use]
    pub fn per_second(&self, measured: Duration) -> f64 {
        self.successes() as f64 / measured.as_secs_f64()
    }

    /// Successful pages of a kind.
    #[must_use]
    pub fn count(&self, page: Interaction) -> u64 {
        self.counts[page.index()]
    }

    /// A kind's part of all pages asked for.
    #[must_use]
    pub fn part(&self, page: Interaction) -> f64 {
        let asked = self.counts[page.index()] + self.errors[page.index()];
        asked as f64 / (self.successes() + self.errors()).max(1) as f64
    }

    /// Mean response of a kind's successful pages; `None` without any.
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
