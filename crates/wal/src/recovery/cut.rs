//! The cut: the end of the log, and the check that a crash can explain it (hazards W5 and W6).
//!
//! A crash tears chunks that were not durable: the log ends at the first missing LSN, and that is normal. But
//! every chunk's header states the durable horizon of the whole log when it was written. If any header of the
//! incarnation states more than was found, records that were on disk, perhaps acknowledged, have been lost
//! since: the log is damaged, and opening the store would silently drop commits.
//!
//! The loss of each stream's last chunks, which no later header refers to, shows only if the caller knows how
//! far the log was durable: the log end in CONTROL keeps that. A closed log ends with a chunk that states the
//! horizon of the whole log.

use azekura_base::Lsn;

use super::LogRange;
use super::scan::End;
use super::survey::Survey;

/// Evidence against the place of the log's end.
#[derive(Debug)]
pub(crate) struct Damage {
    /// The unreadable place, if known.
    pub(crate) end: Option<End>,
    /// The first LSN that is missing and should not be.
    pub(crate) missing: u64,
    /// The LSN up to which the log was durable.
    pub(crate) durable: Lsn,
}

/// Checks a log with a dense part that ends before `missing`. The caller knows that all up to `known` was
/// durable.
pub(crate) fn judge(
    survey: &Survey,
    range: &LogRange,
    missing: u64,
    known: Lsn,
    ends: Vec<(u32, End)>,
) -> Option<Damage> {
    let incarnation = range.incarnation;
    if range.last_lsn.is_some_and(|last| missing > last.0) {
        return None;
    }
    let newest = survey.streams(incarnation).filter_map(|(_, group)| group.last);
    let testified = newest.map(|header| header.durable_lsn).max();
    let durable = testified.unwrap_or(0).max(range.last_lsn.map_or(0, |lsn| lsn.0));
    // A range with an end was checked against it above.
    let durable =
        if range.last_lsn.is_none() && known >= range.first_lsn { durable.max(known.0) } else { durable };
    (durable >= missing).then(|| Damage {
        end: culprit(survey, incarnation, ends),
        missing,
        durable: Lsn(durable),
    })
}

/// Returns the stream that has chunks beyond the unreadable place; otherwise the first one.
fn culprit(survey: &Survey, incarnation: u32, ends: Vec<(u32, End)>) -> Option<End> {
    let has_more = |stream: u32, end: &End| {
        let group = survey.groups.get(&(incarnation, stream));
        group.and_then(|g| g.last).is_some_and(|last| last.number >= end.next_number)
    };
    let beyond = ends.iter().position(|(stream, end)| has_more(*stream, end)).unwrap_or(0);
    ends.into_iter().nth(beyond).map(|(_, end)| end)
}
