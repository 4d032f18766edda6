//! The rate at which this store undoes changes: a default at first, and later a rate measured by its restart
//! and rollbacks.
//!
//! A restart with many undone changes is the best measurement: like the next restart, it reads pages from
//! disk. A rollback finds most of its pages in the cache, so it can only show that the rate is lower than
//! assumed, not higher. Newer rollbacks have more weight.

use std::time::Duration;

use azekura_base::sync::Mutex;

use super::bound::UNDO_PER_S;

/// Smallest number of undone changes that counts as a measurement.
const LEAST_OF_RESTART: u64 = 1_000;
const LEAST_OF_ROLLBACK: u64 = 64;
/// Weight of the initial rate, as the number of changes in a rollback of the same weight.
const PRIOR: f64 = 10_000.0;
/// Largest weight of all measurements together, as a number of changes.
const MOST: f64 = 100_000.0;
/// Bounds of the assumed rate, in changes per second.
const RANGE: (f64, f64) = (1_000.0, 2_000_000.0);

/// Measurements of undo, recorded by threads that roll back and read by the checkpointer.
#[derive(Debug)]
pub(crate) struct UndoPace(Mutex<Measured>);

#[derive(Debug)]
struct Measured {
    /// Upper bound of the rate: the default rate, or the rate of the last restart.
    fastest: f64,
    changes: f64,
    seconds: f64,
}

impl Measured {
    fn believing(fastest: f64) -> Self {
        Self { fastest, changes: PRIOR, seconds: PRIOR / fastest }
    }

    fn per_second(&self) -> f64 {
        (self.changes / self.seconds).clamp(RANGE.0, RANGE.1)
    }
}

impl Default for UndoPace {
    fn default() -> Self {
        Self(Mutex::new(Measured::believing(UNDO_PER_S)))
    }
}

impl UndoPace {
    /// Records that a restart has undone this many changes in this time.
    pub(crate) fn restarted(&self, changes: u64, took: Duration) {
        if changes >= LEAST_OF_RESTART {
            let per_second = changes as f64 / took.as_secs_f64();
            *self.0.lock() = Measured::believing(per_second.clamp(RANGE.0, RANGE.1));
        }
    }

    /// Records that a rollback has undone this many changes in this time.
    pub(crate) fn rolled_back(&self, changes: u64, took: Duration) {
        if changes < LEAST_OF_ROLLBACK {
            return;
        }
        let mut seen = self.0.lock();
        let changes = changes as f64;
        seen.seconds += took.as_secs_f64().max(changes / seen.fastest);
        seen.changes += changes;
        let fades = (MOST / seen.changes).min(1.0);
        seen.changes *= fades;
        seen.seconds *= fades;
    }

    /// Returns the number of changes that a restart is assumed to undo per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.0.lock().per_second()
    }

    /// Returns the assumed time to undo this many changes.
    pub(crate) fn time_for(&self, changes: u64) -> Duration {
        Duration::try_from_secs_f64(changes as f64 / self.per_second()).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: u64 = UNDO_PER_S as u64;
    const SECOND: Duration = Duration::from_secs(1);

    fn pace(of: &UndoPace) -> u64 {
        of.per_second().round() as u64
    }

    #[test]
    fn no_restart_gives_the_default_and_few_restarts_change_nothing() {
        let undo = UndoPace::default();
        assert_eq!(pace(&undo), DEFAULT);
        undo.restarted(LEAST_OF_RESTART - 1, 100 * SECOND);
        undo.rolled_back(LEAST_OF_ROLLBACK - 1, 100 * SECOND);
        assert_eq!(pace(&undo), DEFAULT);
        assert_eq!((undo.time_for(0), undo.time_for(DEFAULT)), (Duration::ZERO, SECOND));
    }

    #[test]
    fn one_restart_sets_the_estimate_whether_slower_or_faster() {
        let undo = UndoPace::default();
        for per_second in [DEFAULT / 4, 3 * DEFAULT] {
            undo.restarted(10 * per_second, 10 * SECOND);
            assert_eq!(pace(&undo), per_second);
        }
        undo.restarted(1_000_000, 100_000 * SECOND);
        assert_eq!(pace(&undo), RANGE.0 as u64, "a restart on a machine that slept");
        undo.restarted(u64::MAX, Duration::ZERO);
        assert_eq!(pace(&undo), RANGE.1 as u64);
    }

    #[test]
    fn rollbacks_make_the_estimate_slower_by_their_share_and_never_faster() {
        let undo = UndoPace::default();
        undo.rolled_back(100_000, SECOND / 1_000);
        assert_eq!(pace(&undo), DEFAULT, "its pages were in the cache");
        // Rollbacks at a tenth of the default rate: the estimate converges to that rate.
        for _ in 0..200 {
            undo.rolled_back(DEFAULT / 10, SECOND);
        }
        assert!((DEFAULT / 10..DEFAULT / 9).contains(&pace(&undo)), "{}", pace(&undo));
        let slow = undo.time_for(1_000);
        for _ in 0..200 {
            undo.rolled_back(DEFAULT / 10, SECOND / 100);
        }
        assert!((DEFAULT * 9 / 10..=DEFAULT).contains(&pace(&undo)), "{}", pace(&undo));
        assert!(slow > 5 * undo.time_for(1_000));
    }

    #[test]
    fn one_slow_rollback_changes_the_estimate_partly() {
        let undo = UndoPace::default();
        undo.rolled_back(LEAST_OF_ROLLBACK, SECOND / 100);
        assert!((DEFAULT * 8 / 10..DEFAULT).contains(&pace(&undo)), "{}", pace(&undo));
    }
}
