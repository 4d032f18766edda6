//! Whether the next flush had better wait a moment for those whom the last one has just let go.
//!
//! Committers that wait come again in a body: a flush wakes all of its group, and each of them soon has another commit. If the first to
//! come back begins the next flush at once, it goes with one record, and the others wait for that flush and for their own: groups
//! split, and each commit takes two flushes. Waiting until the group is complete costs its return, and saves nearly a flush for
//! each of the others. So it pays as long as they are back sooner than a flush takes; three quarters of one are waited:
//!
//! | after the end of a flush | the next committer |
//! |---|---|
//! | everybody who slept over it, or for the next one, and its leader, is there | leads: the last to come, without a switch of threads |
//! | some are missing, for less than that | sleeps: the first of them, the **guardian**, with that time limit, and then it leads |
//! | some are missing for longer | leads, and for a while nobody is waited for |
//!
//! A lone committer waits for nobody. Groups that do not come back in time (many threads on few processors, a device quicker than
//! threads are woken, clients with other things to do) are waited for once in a while only: twice as rarely after each miss.

use std::time::Duration;

use azekura_base::sync::time::Instant;

/// Flushes without waiting after misses in a row, at most.
const MOST_SKIPPED: u32 = 63;

/// What a gate knows about the committers of its last flush.
#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// How many committers the last flush let come back, with those that slept for the next one already.
    expected: u32,
    /// The leader of the flush going on, or of the last one, is a committer, who comes back as well.
    leader_commits: bool,
    began: Option<Instant>,
    ended: Option<Instant>,
    /// How long a flush takes: a moving average.
    took: Duration,
    /// Flushes to go without waiting, and how many there were to go after the last miss.
    left: u32,
    skipped: u32,
    /// Time is no matter: for models.
    always: bool,
}

impl Gathering {
    /// Waits for whoever is expected, for ever so long.
    pub(crate) fn always() -> Self {
        Self { always: true, ..Self::default() }
    }

    /// How long the caller, with whom `present` committers are there, had better wait for the others; `None`: it had better lead.
    pub(crate) fn patience(&mut self, present: u32, now: Instant) -> Option<Duration> {
        if present >= self.expected {
            if self.expected > 1 && self.left == 0 {
                self.skipped = 0;
            }
            return None;
        }
        if self.always {
            return Some(Duration::from_secs(1));
        }
        if self.left > 0 {
            return None;
        }
        let since = self.ended.map_or(Duration::MAX, |ended| now.saturating_duration_since(ended));
        let left = (self.took * 3 / 4).saturating_sub(since);
        if left.is_zero() {
            self.missed();
            return None;
        }
        Some(left)
    }

    /// Some did not come in time.
    pub(crate) fn missed(&mut self) {
        self.skipped = (2 * self.skipped + 1).min(MOST_SKIPPED);
        self.left = self.skipped;
    }

    /// A flush begins.
    pub(crate) const fn begin(&mut self, leader_commits: bool, now: Instant) {
        self.leader_commits = leader_commits;
        self.began = Some(now);
    }

    /// It has ended, and so many committers slept over it, or sleep for the next one.
    pub(crate) fn end(&mut self, asleep: u32, now: Instant) {
        let took = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        self.took = if self.took.is_zero() { took } else { (7 * self.took + took) / 8 };
        self.expected = asleep + u32::from(self.leader_commits);
        self.ended = Some(now);
        if self.expected > 1 {
            self.left = self.left.saturating_sub(1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLUSH: Duration = Duration::from_micros(100);

    /// A gathering after a flush of `FLUSH`, led by a committer, over which `asleep` others slept; and when it ended.
    fn after_a_flush(asleep: u32) -> (Gathering, Instant) {
        let (mut gathering, began) = (Gathering::default(), Instant::now());
        gathering.begin(true, began);
        gathering.end(asleep, began + FLUSH);
        (gathering, began + FLUSH)
    }

    #[test]
    fn a_lone_committer_waits_for_nobody() {
        let (mut gathering, now) = after_a_flush(0);
        assert_eq!(gathering.patience(1, now), None);
        assert_eq!(Gathering::default().patience(1, now), None, "nor does the first of all");
    }

    #[test]
    fn the_first_to_come_back_waits_for_the_others_and_the_last_leads() {
        let (mut gathering, now) = after_a_flush(2);
        assert_eq!(gathering.patience(1, now + FLUSH / 4), Some(FLUSH / 2));
        assert!(gathering.patience(2, now + FLUSH / 2).is_some());
        assert_eq!(gathering.patience(3, now + FLUSH / 2), None);
    }

    #[test]
    fn nobody_is_waited_for_longer_than_three_quarters_of_a_flush() {
        let (mut gathering, now) = after_a_flush(2);
        assert_eq!(gathering.patience(1, now + FLUSH * 3 / 4), None);
    }

    #[test]
    fn a_leader_that_does_not_commit_is_not_expected() {
        let (mut gathering, began) = (Gathering::default(), Instant::now());
        gathering.begin(false, began);
        gathering.end(1, began + FLUSH);
        assert_eq!(gathering.patience(1, began + FLUSH), None);
    }

    #[test]
    fn groups_that_do_not_come_back_are_waited_for_ever_more_rarely() {
        let (mut gathering, mut now) = (Gathering::default(), Instant::now());
        let mut waited = 0;
        for _ in 0..1000 {
            gathering.begin(true, now);
            now += FLUSH;
            gathering.end(7, now);
            if gathering.patience(1, now).is_some() {
                waited += 1;
                now += FLUSH * 3 / 4;
                gathering.missed();
            }
        }
        assert!((6..=24).contains(&waited), "{waited} of 1000");
        // They come back after all: the next time that they are waited for, and then every time.
        for round in 0..1000 {
            gathering.begin(true, now);
            now += FLUSH;
            gathering.end(7, now);
            let waits = gathering.patience(1, now).is_some();
            assert!(waits || round <= MOST_SKIPPED, "round {round}");
            assert_eq!(gathering.patience(8, now), None);
        }
    }
}
