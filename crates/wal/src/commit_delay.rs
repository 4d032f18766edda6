//! Commit delay: decides whether the next flush waits for the committers that the previous flush released.
//!
//! A flush wakes all committers of its group, and each of them soon commits again. If the first one began the
//! next flush at once, that flush would write one record, and the others would wait for it and then for their
//! own flush. Groups would split, and each commit would take two flushes. The delay costs the time until the
//! group is complete and saves the others nearly a flush each. It saves more than it costs while the
//! committers return sooner than a flush takes, so the limit is three quarters of a flush:
//!
//! | after the end of a flush | the next committer |
//! |---|---|
//! | all expected committers are present | leads at once: the last to arrive, without a thread switch |
//! | some are missing, for less than the limit | sleeps; the first (**fallback leader**) leads at the limit |
//! | some are missing for longer | leads; the next flushes begin without a delay |
//!
//! The expected committers are the previous leader, if it is a committer, and the sleepers of the previous
//! and the next flush. A lone committer never waits. Some groups do not return in time: many threads on few
//! processors, a device that is faster than a thread's wake-up, clients that work between commits. Such
//! delays become rare, because each miss in a row doubles the number of flushes without a delay.
//!
//! The delay applies where committers lead their flushes ([`committer_count`](crate::committer_count)).

use std::time::Duration;

use azekura_base::sync::time::Instant;

/// Largest number of flushes without a delay after misses in a row: one flush in 128 still waits.
const MAX_FLUSHES_WITHOUT_DELAY: u32 = 127;

/// The next step of a committer that finds no flush in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Lead a flush at once.
    Lead,
    /// Wait for other committers, at most this long.
    Wait(Duration),
}

/// The committers of a gate's last flush, and the time that a flush takes.
#[derive(Debug, Default)]
pub(crate) struct CommitDelay {
    /// Committers that the last flush released, with those that already slept for the next one.
    expected: u32,
    /// `true` if the leader of the current or last flush is a committer, which is then also expected.
    leader_commits: bool,
    began: Option<Instant>,
    ended: Option<Instant>,
    /// Moving average of a flush's time.
    flush_time: Duration,
    /// Number of remaining flushes without a delay. `skips` is their number after the last miss.
    skips_left: u32,
    skips: u32,
    /// For models, which have no time: wait for expected committers without a limit.
    has_no_limit: bool,
}

impl CommitDelay {
    /// Returns a delay without a time limit, for models.
    pub(crate) fn without_limit() -> Self {
        Self { has_no_limit: true, ..Self::default() }
    }

    /// Returns the mean time of a flush.
    pub(crate) const fn flush_time(&self) -> Duration {
        self.flush_time
    }

    /// Decides for a committer while `present` committers, including itself, wait at the gate.
    pub(crate) fn advise(&mut self, present: u32, now: Instant) -> Advice {
        if present >= self.expected {
            if self.expected > 1 && self.skips_left == 0 {
                self.skips /= 2;
            }
            return Advice::Lead;
        }
        if self.has_no_limit {
            return Advice::Wait(Duration::from_secs(1));
        }
        if self.skips_left == 0 {
            let since = self.ended.map_or(Duration::MAX, |ended| now.saturating_duration_since(ended));
            let left = (self.flush_time * 3 / 4).saturating_sub(since);
            if !left.is_zero() {
                return Advice::Wait(left);
            }
            self.missed();
        }
        Advice::Lead
    }

    /// Records that some committers did not return in time.
    pub(crate) fn missed(&mut self) {
        self.skips = (2 * self.skips + 1).min(MAX_FLUSHES_WITHOUT_DELAY);
        self.skips_left = self.skips;
    }

    /// Records the begin of a flush.
    pub(crate) const fn begin(&mut self, leader_commits: bool, now: Instant) {
        self.leader_commits = leader_commits;
        self.began = Some(now);
    }

    /// Records the end of a flush; `asleep` committers slept until it ended, or sleep for the next one.
    pub(crate) fn end(&mut self, asleep: u32, now: Instant) {
        let took = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        self.flush_time = if self.flush_time.is_zero() { took } else { (7 * self.flush_time + took) / 8 };
        self.expected = asleep + u32::from(self.leader_commits);
        self.ended = Some(now);
        if self.expected > 1 {
            self.skips_left = self.skips_left.saturating_sub(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(100);

    /// Returns the state after a flush of duration `FLUSH`, and the time of its end. A committer led the
    /// flush, and `asleep` others waited for it.
    fn after_a_flush(asleep: u32) -> (CommitDelay, Instant) {
        let (mut delay, began) = (CommitDelay::default(), Instant::now());
        delay.begin(true, began);
        delay.end(asleep, began + FLUSH);
        (delay, began + FLUSH)
    }

    #[test]
    fn a_lone_committer_does_not_wait() {
        let (mut delay, now) = after_a_flush(0);
        assert_eq!(delay.advise(1, now), Advice::Lead);
        assert_eq!(CommitDelay::default().advise(1, now), Advice::Lead, "before the first flush");
    }

    #[test]
    fn the_first_to_return_waits_for_the_others_and_the_last_leads() {
        let (mut delay, now) = after_a_flush(2);
        assert_eq!(delay.advise(1, now + FLUSH / 4), Advice::Wait(FLUSH / 2));
        assert_eq!(delay.advise(2, now + FLUSH / 2), Advice::Wait(FLUSH / 4));
        assert_eq!(delay.advise(3, now + FLUSH / 2), Advice::Lead);
    }

    #[test]
    fn the_delay_ends_after_three_quarters_of_a_flush() {
        let (mut delay, now) = after_a_flush(2);
        assert_eq!(delay.advise(1, now + FLUSH * 3 / 4), Advice::Lead);
    }

    #[test]
    fn a_leader_that_does_not_commit_is_not_expected() {
        let (mut delay, began) = (CommitDelay::default(), Instant::now());
        delay.begin(false, began);
        delay.end(1, began + FLUSH);
        assert_eq!(delay.advise(1, began + FLUSH), Advice::Lead);
    }

    /// Simulates a flush for which `asleep` others wait, and after which none of them returns in time.
    /// Returns the last advice.
    fn miss(delay: &mut CommitDelay, asleep: u32, now: &mut Instant) -> Advice {
        delay.begin(true, *now);
        *now += FLUSH;
        delay.end(asleep, *now);
        let advice = delay.advise(1, *now);
        if let Advice::Wait(left) = advice {
            *now += left;
            delay.missed();
        }
        advice
    }

    #[test]
    fn groups_that_do_not_return_are_waited_for_rarely() {
        let (mut delay, mut now) = (CommitDelay::default(), Instant::now());
        let advice: Vec<_> = (0..1000).map(|_| miss(&mut delay, 7, &mut now)).collect();
        let waits = advice.iter().filter(|advice| matches!(advice, Advice::Wait(_))).count();
        assert!((6..=24).contains(&waits), "{waits} of 1000");
        // The group returns again: after the next flush with a delay, and then after each flush.
        for round in 0..1000 {
            delay.begin(true, now);
            now += FLUSH;
            delay.end(7, now);
            let waits = matches!(delay.advise(1, now), Advice::Wait(_));
            assert!(waits || round <= 2 * MAX_FLUSHES_WITHOUT_DELAY, "round {round}");
            if waits {
                assert_eq!(delay.advise(8, now), Advice::Lead);
            }
        }
    }
}
