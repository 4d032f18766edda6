//! The speed of a backup.
//!
//! With a rate limit, a backup writes at most this number of bytes per second. Without one, it leaves the
//! processors to the transactions ([decision
//! 089](https://github.com/azekura/azekura/blob/main/docs/decisions/089-backups-pause-for-commits.md)): while
//! other threads write log records, the backup's thread uses at most [`SHARE`] of the time of all processors.
//! While row versions take more than half of their memory, the backup does not pause: a longer backup needs
//! more versions, and fails without them.

use std::thread;
use std::time::{Duration, Instant};

use azekura_base::sync::thread_time;
use azekura_base::{DurableLog, Lsn, processors};

use crate::Error;
use crate::database::Shared;
use crate::interrupt::check_interrupt;

/// Largest part of the time of all processors that a backup uses beside transactions: the largest one with
/// which writers reached 0.9 of their rate (decision 089).
const SHARE: f64 = 0.05;
/// Shortest time between two pauses for transactions. A shorter one could have no log record of others,
/// although a transaction commits in each millisecond.
const WINDOW: Duration = Duration::from_millis(5);
/// Longest sleep between two checks for an interruption.
const SLEEP: Duration = Duration::from_millis(100);

/// The speed of a running backup.
pub(super) struct Pace<'a> {
    shared: &'a Shared,
    speed: Speed,
}

enum Speed {
    /// Time at which the backup began, and its limit in bytes per second.
    Rate(Instant, u64),
    /// Largest processor time of this thread in a second, and the state at the end of the last pause.
    Processors(f64, Mark),
}

/// The state at one moment.
struct Mark {
    at: Instant,
    /// Processor time of this thread.
    used: Duration,
    next_lsn: Lsn,
}

impl Mark {
    fn now(shared: &Shared) -> Self {
        Self { at: Instant::now(), used: thread_time(), next_lsn: shared.wal.next_lsn() }
    }
}

impl<'a> Pace<'a> {
    pub(super) fn new(shared: &'a Shared, bytes_per_second: Option<u64>) -> Self {
        let speed = match bytes_per_second {
            Some(rate) => Speed::Rate(Instant::now(), rate),
            None => Speed::Processors(SHARE * processors() as f64, Mark::now(shared)),
        };
        Self { shared, speed }
    }

    /// Sleeps as long as the speed requires after a block; `bytes` of the backup are written so far.
    pub(super) fn pause(&mut self, bytes: u64) -> Result<(), Error> {
        let interrupt = self.shared.options.interrupt;
        check_interrupt(interrupt)?;
        let mut left = match &self.speed {
            Speed::Rate(began, rate) => seconds(bytes as f64 / *rate as f64).saturating_sub(began.elapsed()),
            Speed::Processors(_, last) if last.at.elapsed() < WINDOW => return Ok(()),
            Speed::Processors(most, last) => self.pause_for_others(*most, last),
        };
        while !left.is_zero() {
            let part = left.min(SLEEP);
            thread::sleep(part);
            check_interrupt(interrupt)?;
            left -= part;
        }
        if let Speed::Processors(_, last) = &mut self.speed {
            *last = Mark::now(self.shared);
        }
        Ok(())
    }

    /// Returns the pause after which this thread has used its share of the time since the last pause; zero if
    /// no other thread has logged a change since then.
    fn pause_for_others(&self, most: f64, last: &Mark) -> Duration {
        let now = Mark::now(self.shared);
        if most >= 1.0 || now.next_lsn == last.next_lsn || self.shared.env.versions().is_half_full() {
            return Duration::ZERO;
        }
        seconds((now.used - last.used).as_secs_f64() / most).saturating_sub(now.at - last.at)
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Database, TableDefinition};

    const ROWS: TableDefinition<u64, u64> = TableDefinition::new("rows");

    fn use_processor(time: Duration) {
        let began = thread_time();
        while thread_time() - began < time {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_backup_pauses_only_beside_changes() {
        let db = Database::in_memory().unwrap();
        let put = |key| db.transact(|tx| tx.table(&ROWS)?.insert(&key, &0)).unwrap();
        put(0);
        let used = Duration::from_millis(20);
        let pause_after = |change: &dyn Fn(), most| {
            let last = Mark::now(db.shared());
            use_processor(used);
            change();
            Pace { shared: db.shared(), speed: Speed::Rate(Instant::now(), 1) }.pause_for_others(most, &last)
        };
        assert_eq!(pause_after(&|| (), 0.001), Duration::ZERO, "no change");
        assert!(pause_after(&|| put(1), 0.001) > used * 10, "a thousand times the used time");
        assert_eq!(pause_after(&|| put(2), 1.0), Duration::ZERO, "many processors");
    }

    #[test]
    fn a_backup_does_not_pause_while_versions_fill_their_memory() {
        let db = Database::builder().cache_bytes(8 << 20).version_bytes(50_000);
        let db = db.background(false).open_in_memory().unwrap();
        let put =
            |value| db.transact(|tx| (0..500).try_for_each(|key| tx.table(&ROWS)?.insert(&key, &value)));
        put(0).unwrap();
        let snapshot = db.snapshot().unwrap();
        let last = Mark::now(db.shared());
        use_processor(Duration::from_millis(20));
        put(1).unwrap();
        let pace = Pace { shared: db.shared(), speed: Speed::Rate(Instant::now(), 1) };
        assert!(db.stats().snapshots.version_bytes > 25_000, "{:?}", db.stats().snapshots);
        assert_eq!(pace.pause_for_others(0.001, &last), Duration::ZERO);
        drop(snapshot);
    }
}
