//! The policies by name, for the option `--policy`, and their construction.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{
    Adaptive, Clearing, Fifo, Random, Replacement, Shape, Simple, SwapInHistory, UClock, UNru, UPlru,
};

/// A replacement policy. The text form is its name. The two U-NRU policies add `:` and their interval
/// (`u-nru-s:50`, `u-nru-t:100ms`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The next resident page by address (§2.1).
    Simple,
    /// Simple, but not the page that followed last time (§2.1). Changes no page protection, so it adds no
    /// cost if swaps are fast.
    SwapInHistory,
    /// Any resident page (§2.1).
    Random,
    /// The page that was paged in first (§2.1).
    Fifo,
    /// FIFO with a second chance (§2.3).
    UClock,
    /// A random page of the lowest class; the bits are cleared by swap count or by timer (§2.3).
    UNru(Clearing),
    /// An active and an inactive list (§2.3).
    UPlru,
    /// Azekura's own policy, the default: evicts the page with the latest predicted use, from each page's own
    /// history. Tracks uses only while that costs at most a quarter of the swaps, as measured; otherwise it
    /// selects as Swap-in history. Needs no tuning.
    #[default]
    Adaptive,
}

impl Policy {
    /// The paper's eight policies, with the intervals that it chooses (§3.3, Fig. 7).
    pub const PAPER: [Self; 8] = [
        Self::Simple,
        Self::SwapInHistory,
        Self::Random,
        Self::Fifo,
        Self::UClock,
        Self::UNru(Clearing::Swaps(50)),
        Self::UNru(Clearing::Timer(Duration::from_millis(100))),
        Self::UPlru,
    ];

    /// The paper's eight policies and the adaptive one.
    pub const ALL: [Self; 9] = {
        let [a, b, c, d, e, f, g, h] = Self::PAPER;
        [a, b, c, d, e, f, g, h, Self::Adaptive]
    };

    /// Creates the policy for a region. `seed` is used by policies with random choices.
    #[must_use]
    pub fn build(self, shape: Shape, seed: u64) -> Box<dyn Replacement> {
        match self {
            Self::Simple => Box::new(Simple::new(shape)),
            Self::SwapInHistory => Box::new(SwapInHistory::new(shape)),
            Self::Random => Box::new(Random::new(shape, seed)),
            Self::Fifo => Box::new(Fifo::new(shape)),
            Self::UClock => Box::new(UClock::new(shape)),
            Self::UNru(clearing) => Box::new(UNru::new(shape, clearing, seed)),
            Self::UPlru => Box::new(UPlru::new(shape)),
            Self::Adaptive => Box::new(Adaptive::new(shape, seed)),
        }
    }

    /// Returns the name without an interval.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Simple => "simple",
            Self::SwapInHistory => "swap-in-history",
            Self::Random => "random",
            Self::Fifo => "fifo",
            Self::UClock => "u-clock",
            Self::UNru(Clearing::Swaps(_)) => "u-nru-s",
            Self::UNru(Clearing::Timer(_)) => "u-nru-t",
            Self::UPlru => "u-plru",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::UNru(Clearing::Swaps(every)) => write!(f, ":{every}"),
            Self::UNru(Clearing::Timer(every)) => write!(f, ":{}ms", every.as_millis()),
            _ => Ok(()),
        }
    }
}

/// Error of parsing the text form of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParsePolicyError {
    /// No policy has this name.
    #[error("unknown replacement policy {0:?}; use one of {names}", names = names())]
    Unknown(String),
    /// The interval is invalid for the policy.
    #[error("policy {policy}: {interval:?} is not an interval; it takes {takes}")]
    Interval {
        /// Name of the policy.
        policy: &'static str,
        /// The text of the interval.
        interval: String,
        /// Description of the accepted form.
        takes: &'static str,
    },
}

fn names() -> String {
    Policy::ALL.map(Policy::name).join(", ")
}

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, interval) = match text.split_once(':') {
            Some((name, interval)) => (name, Some(interval)),
            None => (text, None),
        };
        let policy = Self::ALL.into_iter().find(|policy| policy.name() == name);
        let policy = policy.ok_or_else(|| ParsePolicyError::Unknown(name.into()))?;
        let Some(interval) = interval else { return Ok(policy) };
        let refuse =
            |takes| ParsePolicyError::Interval { policy: policy.name(), interval: interval.into(), takes };
        match policy {
            Self::UNru(Clearing::Swaps(_)) => match interval.parse() {
                Ok(every @ 1..) => Ok(Self::UNru(Clearing::Swaps(every))),
                _ => Err(refuse("a number of swaps, 1 or more")),
            },
            Self::UNru(Clearing::Timer(_)) => match interval.strip_suffix("ms").unwrap_or(interval).parse() {
                Ok(every @ 1..=3_600_000) => Ok(Self::UNru(Clearing::Timer(Duration::from_millis(every)))),
                _ => Err(refuse("milliseconds, 1 to 3600000")),
            },
            _ => Err(refuse("none")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_back_from_its_text() {
        for policy in Policy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert_eq!("u-nru-s:10".parse(), Ok(Policy::UNru(Clearing::Swaps(10))));
        assert_eq!("u-nru-t:500".parse(), Ok(Policy::UNru(Clearing::Timer(Duration::from_millis(500)))));
    }

    #[test]
    fn an_unknown_policy_name_is_refused_with_the_known_names() {
        let refused = |text: &str| text.parse::<Policy>().unwrap_err().to_string();
        assert!(
            refused("lru")
                .starts_with("unknown replacement policy \"lru\"; use one of simple, swap-in-history")
        );
        assert_eq!(
            refused("u-nru-s:0"),
            "policy u-nru-s: \"0\" is not an interval; it takes a number of swaps, 1 or more"
        );
        assert_eq!(
            refused("u-nru-t:-1ms"),
            "policy u-nru-t: \"-1ms\" is not an interval; it takes milliseconds, 1 to 3600000"
        );
        assert_eq!(refused("fifo:5"), "policy fifo: \"5\" is not an interval; it takes none");
    }
}
