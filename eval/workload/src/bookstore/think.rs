//! Think time of a user: the pause between two pages.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use std::time::Duration;

/// A distribution of think times. With *N* users, think time *T* and response time *R*, at most *N/(T+R)*
/// pages are requested per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Think {
    /// A constant, as in the paper's study (3.6 s).
    Constant(Duration),
    /// Exponential with this mean, limited to ten times the mean, as in DBT-1.
    Exponential(Duration),
}

impl Think {
    /// No pause.
    pub const NONE: Self = Self::Constant(Duration::ZERO);

    /// Returns the next pause.
    pub fn draw(self, rng: &mut Xoshiro256PlusPlus) -> Duration {
        match self {
            Self::Constant(time) => time,
            Self::Exponential(mean) => exponential(rng, mean).min(mean * 10),
        }
    }
}

/// Returns an exponentially distributed time with this mean.
pub(crate) fn exponential(rng: &mut Xoshiro256PlusPlus, mean: Duration) -> Duration {
    // 1 - u is above 0, so the logarithm is finite.
    let unit: f64 = rng.random();
    mean.mul_f64(-(1.0 - unit).ln())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn exponential_times_have_their_mean_and_their_end() {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let mean = Duration::from_millis(7);
        let times: Vec<Duration> = (0..100_000).map(|_| Think::Exponential(mean).draw(&mut rng)).collect();
        let measured = times.iter().sum::<Duration>() / 100_000;
        assert!(measured.abs_diff(mean) < mean / 50, "{measured:?}");
        assert!(times.iter().all(|t| *t <= mean * 10));
        assert_eq!(Think::Constant(mean).draw(&mut rng), mean);
    }
}
