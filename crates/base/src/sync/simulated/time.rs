//! Instants of the machine's clock, or of the system's.

use crate::sync::machine::current;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time. Instants of a machine and of the system cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instant {
    /// Instant of the system's clock.
    Real(std::time::Instant),
    /// Time since the machine was started.
    Simulated(Duration),
}

impl Instant {
    /// Returns the current time.
    #[must_use]
    pub fn now() -> Self {
        match current() {
            Some(machine) => Self::Simulated(machine.now()),
            None => Self::Real(std::time::Instant::now()),
        }
    }

    /// Returns the time from this instant until now.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// Returns the time from `earlier` until this instant; 0 if `earlier` is later, or is of another clock.
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        match (*self, earlier) {
            (Self::Real(this), Self::Real(earlier)) => this.saturating_duration_since(earlier),
            (Self::Simulated(this), Self::Simulated(earlier)) => this.saturating_sub(earlier),
            _ => Duration::ZERO,
        }
    }

    /// Returns the time from `earlier` until this instant; 0 if `earlier` is later, or is of another clock.
    #[must_use]
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    fn add(self, time: Duration) -> Self {
        match self {
            Self::Real(this) => Self::Real(this + time),
            Self::Simulated(this) => Self::Simulated(this + time),
        }
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    fn sub(self, time: Duration) -> Self {
        match self {
            Self::Real(this) => Self::Real(this - time),
            Self::Simulated(this) => Self::Simulated(this.saturating_sub(time)),
        }
    }
}

impl Sub for Instant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
