//! The timeline of a store: the LSNs of its runs, and the gaps between them.
//!
//! A *run* is the part of the log between two gaps. It begins with the first record of an opening, and ends
//! where the next opening found the end of the log. The first LSN of a run is drawn at random ([`LsnGap`]),
//! so it identifies the run.
//!
//! - **TIMELINE-1** If a store is replaced by an older copy of its directory, the copy and the replaced store
//!   share no run that began after the copy. A [`Position`] is on the timeline of a store if the store has
//!   the run, and the run did not end before the position. Only then are all records up to the position the
//!   same.
//! - **TIMELINE-2** CONTROL has the newest gaps, and the file `runs` has up to 65,536 gaps before them. A gap
//!   is removed from CONTROL after the file has it, durably. A position before these gaps is not found, even
//!   if the store has its run.

mod runs;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use azekura_base::Lsn;
use azekura_io::Fs;

pub(crate) use self::runs::move_old_gaps;
use crate::Error;
use crate::control::LsnGap;

/// A place in the log of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// First LSN of the run; 0 before the first known run.
    pub(crate) run: Lsn,
    /// An LSN of the run.
    pub(crate) lsn: Lsn,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log record {} of run {}", self.lsn, self.run)
    }
}

/// The gaps of a store, oldest first, with that before the present run.
#[derive(Clone, Debug)]
pub(crate) struct Timeline(Arc<[LsnGap]>);

impl Timeline {
    pub(crate) fn new(gaps: &[LsnGap]) -> Self {
        Self(gaps.into())
    }

    /// Returns `true` if the LSN is inside a gap.
    pub(crate) fn is_in_gap(&self, lsn: Lsn) -> bool {
        let at = self.0.partition_point(|gap| gap.before <= lsn);
        self.0.get(at).is_some_and(|gap| gap.after < lsn)
    }

    /// Returns the position of an LSN; for an LSN inside a gap, the end of the run before the gap.
    pub(crate) fn position(&self, lsn: Lsn) -> Position {
        let at = self.0.partition_point(|gap| gap.before <= lsn);
        let run = at.checked_sub(1).map_or(Lsn(0), |last| self.0[last].before);
        Position { run, lsn: self.0.get(at).map_or(lsn, |gap| lsn.min(gap.after)) }
    }

    /// Returns the end of the run before the last gap.
    pub(crate) fn end_of_past(&self) -> Lsn {
        self.0.last().map_or(Lsn::MAX, |gap| gap.after)
    }

    /// Returns an error if `of`, a backup or an archive that ends with `position`, is of another history than
    /// this timeline of `store` (TIMELINE-1).
    pub(crate) fn require(
        &self,
        position: Position,
        of: &Path,
        (fs, store): (&dyn Fs, &Path),
        advice: &str,
    ) -> Result<(), Error> {
        if self.has(position) {
            return Ok(());
        }
        let whole = self.with_older(fs, store)?;
        if whole.has(position) {
            return Ok(());
        }
        let reason = whole.refusal(position);
        Err(Error::OtherHistory {
            path: of.into(),
            store: store.into(),
            reason: format!("it ends with {position}, which the store does not have: {reason}; {advice}"),
        })
    }

    /// Returns `true` if the position is on this timeline (TIMELINE-1).
    fn has(&self, position: Position) -> bool {
        self.position(position.lsn) == position
    }

    /// Returns this timeline with the older gaps in the file `runs` of the store.
    fn with_older(&self, fs: &dyn Fs, store: &Path) -> Result<Self, Error> {
        let Some(&first) = self.0.first() else { return Ok(self.clone()) };
        let mut gaps = runs::before(fs, store, first)?;
        gaps.extend(&*self.0);
        Ok(Self(gaps.into()))
    }

    /// Returns the reason that a position is not on this timeline.
    fn refusal(&self, position: Position) -> &'static str {
        // The first gap of a store begins after its first record.
        let is_forgotten =
            self.0.first().is_some_and(|first| first.after > Lsn(1) && position.lsn < first.before);
        if is_forgotten {
            "the store was opened and changed too often since then to compare the two"
        } else {
            "the store was replaced by a copy from an earlier time"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(after: u64, before: u64) -> LsnGap {
        LsnGap { after: Lsn(after), before: Lsn(before) }
    }

    #[test]
    fn a_position_is_found_only_if_the_store_has_its_run_that_far() {
        let store = Timeline::new(&[gap(1, 1000), gap(1300, 5000)]);
        let position = |lsn| store.position(Lsn(lsn));
        assert_eq!(position(1), Position { run: Lsn(0), lsn: Lsn(1) });
        assert_eq!(position(999), position(1), "inside a gap");
        assert_eq!(position(1200), Position { run: Lsn(1000), lsn: Lsn(1200) });
        assert_eq!(position(4999), position(1300));
        assert_eq!(position(9000), Position { run: Lsn(5000), lsn: Lsn(9000) });
        for lsn in [1, 1000, 1300, 5000, 6000] {
            assert!(store.has(position(lsn)));
        }
        for (run, lsn) in [(1000, 1301), (1000, 5000), (1000, 6000), (4000, 4100), (5001, 5001), (0, 2)] {
            assert!(!store.has(Position { run: Lsn(run), lsn: Lsn(lsn) }), "{run} {lsn}");
        }
        let inside = |lsn| store.is_in_gap(Lsn(lsn));
        assert!(inside(2) && inside(999) && inside(1301) && inside(4999));
        assert!(!inside(0) && !inside(1) && !inside(1000) && !inside(1300) && !inside(5000));
    }
}
