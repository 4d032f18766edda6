//! The cut: the end of the log, and the check that a crash can explain it (hazards W5 and W6).
//!
//! A crash tears chunks that are not durable, so a log normally ends before the first missing LSN. But every
//! chunk's header states the durable horizon of the whole log when the chunk was written. If any header of
//! the incarnation states a higher LSN than was found, records that were on disk, perhaps acknowledged, are
//! lost. The log is then damaged, and opening the store would silently drop commits.
//!
//! No later header covers the last chunks of the streams. Their loss is detected only if the caller knows the
//! LSN up to which the log was durable: the log end in CONTROL. A closed log ends with a chunk that states
//! the horizon of the whole log.

use azekura_base::Lsn;

use super::LogRange;
use super::scan::End;
use super::survey::Survey;

/// Evidence that the log ends too early.
#[derive(Debug)]
pub(crate) struct Damage {
    /// The unreadable place, if known.
    pub(crate) end: Option<End>,
    /// The first missing LSN.
    pub(crate) missing: u64,
    /// The LSN up to which the log was durable.
    pub(crate) durable: Lsn,
}

/// Checks a log with `missing` as its first missing LSN. Everything up to `known` was durable, by the
/// caller's knowledge. Returns `None` if a crash explains the end.
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
    // The check against a range's own end is above.
    let durable =
        if range.last_lsn.is_none() && known >= range.first_lsn { durable.max(known.0) } else { durable };
    (durable >= missing).then(|| Damage {
        end: culprit(survey, incarnation, ends),
        missing,
        durable: Lsn(durable),
    })
}

/// Returns the end of the stream that has chunks beyond its unreadable place; if there is none, that of the
/// first stream.
fn culprit(survey: &Survey, incarnation: u32, ends: Vec<(u32, End)>) -> Option<End> {
    let has_more = |stream: u32, end: &End| {
        let group = survey.groups.get(&(incarnation, stream));
        group.and_then(|g| g.last).is_some_and(|last| last.number >= end.next_number)
    };
    let beyond = ends.iter().position(|(stream, end)| has_more(*stream, end)).unwrap_or(0);
    ends.into_iter().nth(beyond).map(|(_, end)| end)
}
