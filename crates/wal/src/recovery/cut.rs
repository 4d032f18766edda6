//! The cut: where the log ends, and whether it may end there (hazards W5 and W6).
//!
//! A crash tears what was not durable: the log ends at the first missing LSN, and that is normal. But every chunk's
//! header tells the durable horizon of the whole log at the time of its writing. If any header of the incarnation
//! claims more than what was found, records that were on disk, perhaps acknowledged, have been lost since: the log is
//! damaged, and going on would silently drop commits.
//!
//! What this cannot see: the loss of chunks that no later chunk testifies to, that is, of each stream's last ones. A
//! closed log ends with a chunk that testifies to everything.

use azekura_base::Lsn;

use super::scan::End;
use super::survey::Survey;

/// What contradicts the place where the log ends.
#[derive(Debug)]
pub(crate) struct Damage {
    /// The unreadable place, as far as it can be told.
    pub(crate) end: Option<End>,
    /// What was durable.
    pub(crate) durable: Lsn,
}

/// Judges a log of `incarnation` that ends before `missing`. `claimed` is what the caller knows to have been there.
pub(crate) fn judge(
    survey: &Survey,
    incarnation: u32,
    missing: u64,
    claimed: Option<Lsn>,
    ends: Vec<(u32, End)>,
) -> Option<Damage> {
    let testified = survey.streams(incarnation).filter_map(|(_, g)| g.last).map(|h| h.durable_lsn).max();
    let durable = testified.unwrap_or(0).max(claimed.map_or(0, |lsn| lsn.0));
    if durable < missing {
        return None;
    }
    Some(Damage { end: culprit(survey, incarnation, ends), durable: Lsn(durable) })
}

/// The stream that has chunks beyond the place where reading had to stop; otherwise the first one.
fn culprit(survey: &Survey, incarnation: u32, ends: Vec<(u32, End)>) -> Option<End> {
    let has_more = |stream: u32, end: &End| {
        let group = survey.groups.get(&(incarnation, stream));
        group.and_then(|g| g.last).is_some_and(|last| last.number >= end.next_number)
    };
    let beyond = ends.iter().position(|(stream, end)| has_more(*stream, end)).unwrap_or(0);
    ends.into_iter().nth(beyond).map(|(_, end)| end)
}
