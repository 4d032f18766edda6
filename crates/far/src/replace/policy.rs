//! The policies by name: what `--policy` takes, and what makes each.

use std::fmt;
use std::str::FromStr;

use super::{Replacement, Shape, Simple};

/// Which replacement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// The next resident page by address (§2.1).
    Simple,
}

impl Policy {
    /// Makes the policy for a region. `seed` is for those that draw lots.
    #[must_use]
    pub fn build(self, shape: Shape, seed: u64) -> Box<dyn Replacement> {
        let _ = seed;
        match self {
            Self::Simple => Box::new(Simple::new(shape)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple => f.write_str("simple"),
        }
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no replacement policy {0:?}: there is simple")]
pub struct ParsePolicyError(pub String);

impl FromStr for Policy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "simple" => Ok(Self::Simple),
            _ => Err(ParsePolicyError(text.into())),
        }
    }
}
