//! Result of a program's own verification.

use std::fmt;

/// A value that was compared with the benchmark's.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Name of the value.
    pub name: String,
    /// The computed value.
    pub found: f64,
    /// The expected value.
    pub expected: f64,
    /// Permitted deviation, relative to the expected value (absolute if that is zero).
    pub tolerance: f64,
}

impl Check {
    /// Returns a check of a value with a tolerance.
    #[must_use]
    pub fn near(name: impl Into<String>, found: f64, expected: f64, tolerance: f64) -> Self {
        Self { name: name.into(), found, expected, tolerance }
    }

    /// Returns a check of a count that must be exact.
    #[must_use]
    pub fn exact(name: impl Into<String>, found: usize, expected: usize) -> Self {
        Self::near(name, found as f64, expected as f64, 0.0)
    }

    /// Returns whether the value is within the tolerance. A NaN never is.
    #[must_use]
    pub fn passed(&self) -> bool {
        let scale = if self.expected == 0.0 { 1.0 } else { self.expected.abs() };
        (self.found - self.expected).abs() <= self.tolerance * scale
    }
}

/// All checks of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Checks in the order of the benchmark.
    pub checks: Vec<Check>,
}

impl Verdict {
    /// Returns whether there is a check and all passed.
    #[must_use]
    pub fn verified(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(Check::passed)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed: Vec<&Check> = self.checks.iter().filter(|check| !check.passed()).collect();
        match failed.first() {
            None => write!(f, "{} checks passed", self.checks.len()),
            Some(Check { name, found, expected, .. }) => write!(
                f,
                "{} of {} checks failed; {name} is {found:e} instead of {expected:e}",
                failed.len(),
                self.checks.len()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_without_checks_or_with_a_nan_is_none() {
        let check = |found| Check::near("x", found, 2.0, 0.1);
        let verdict = |checks: Vec<Check>| Verdict { checks };
        assert!(!verdict(vec![]).verified());
        assert!(verdict(vec![check(2.1), check(1.9)]).verified());
        assert!(!verdict(vec![check(2.0), check(f64::NAN)]).verified());
        assert_eq!(
            verdict(vec![check(2.0), check(3.0)]).to_string(),
            "1 of 2 checks failed; x is 3e0 instead of 2e0"
        );
        assert!(!Check::exact("n", 3, 0).passed());
    }
}
