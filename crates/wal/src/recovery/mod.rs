//! Reading the log back after a crash (paper section 4; hazards W5 and W6).
//!
//! 1. **Survey**: which segments belong to which incarnation and stream, and what the newest headers testify.
//! 2. For each incarnation that counts, oldest first: **scan** its streams and **merge** them by LSN, from the wanted
//!    LSN to the first that is missing.
//! 3. **Cut** there, and judge whether a log that was not damaged may end there.
//!
//! Nothing is written, so a crash in the middle of it changes nothing. Numbers of workers and streams are read from
//! the chunks; they may have changed from run to run.
//!
//! | module | noun |
//! |---|---|
//! | `survey` | the directory's content |
//! | `scan` | one stream's chunks in order |
//! | `merge` | all streams by LSN |
//! | [`sorted`] | the same by sorting, to be measured beside it |
//! | `cut` | where the log ends, and whether it may |

mod cut;
mod merge;
pub(crate) mod scan;
pub mod sorted;
mod survey;

use std::path::{Path, PathBuf};

use azekura_base::Lsn;
use azekura_io::Fs;

use crate::error::ReplayError;

use merge::Merge;
use scan::StreamScan;
use survey::Survey;

/// The part of the log that one incarnation wrote and that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// The incarnation.
    pub incarnation: u32,
    /// Its first LSN.
    pub first_lsn: Lsn,
    /// Its last LSN, the cut that an earlier recovery found; below `first_lsn` if there is none. `None` for the last
    /// range only: up to the first missing LSN, which this recovery finds.
    pub last_lsn: Option<Lsn>,
}

/// What a replay found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The cut: the last LSN of the last range. If there is none from the first LSN asked for, the one before that.
    /// All above is void.
    pub last_lsn: Lsn,
    /// Largest LSN in any chunk of any incarnation, void ones too. New LSNs start above both.
    pub max_lsn_seen: Lsn,
    /// Records handed to the caller.
    pub records: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
}

/// What a caller does with each record; an error ends the replay.
pub type Each<'a, E> = dyn FnMut(Lsn, &[u8]) -> Result<(), E> + 'a;

/// Hands every record of the ranges with an LSN of at least `from` to `each`, in order of LSNs.
///
/// Inside a range LSNs are dense. Costs one pass over the segments that can hold such records, and one over the last
/// segment of each stream; memory for a few chunks per stream. A directory that does not exist is an empty log.
///
/// # Errors
///
/// - [`ReplayError::Corrupt`]: records that were durable are missing, see `cut`. Bytes that are merely torn are not an
///   error: the log ends before them.
/// - [`ReplayError::Apply`]: what `each` returned. [`ReplayError::Io`], [`ReplayError::Ranges`].
pub fn replay<E>(
    fs: &dyn Fs,
    dir: &Path,
    database_id: u64,
    ranges: &[LogRange],
    from: Lsn,
    each: &mut Each<'_, E>,
) -> Result<Replayed, ReplayError<E>> {
    check_ranges(ranges)?;
    let survey = Survey::of(fs, dir, database_id).map_err(read_error)?;
    let mut found = Replayed { last_lsn: Lsn(0), max_lsn_seen: Lsn(survey.max_lsn()), records: 0, bytes: 0 };
    for range in ranges {
        let before = Lsn(range.first_lsn.0 - 1);
        found.last_lsn = range.last_lsn.unwrap_or(before).max(before);
        if range.last_lsn.is_some_and(|last| last < range.first_lsn.max(from)) {
            continue;
        }
        let start = range.first_lsn.max(from).0;
        let (missing, merge) = replay_range(fs, &survey, database_id, range, start, each, &mut found)?;
        found.last_lsn = Lsn(missing - 1);
        let is_complete = range.last_lsn.is_some_and(|last| missing > last.0);
        if is_complete {
            continue;
        }
        if let Some(damage) = cut::judge(&survey, range.incarnation, missing, range.last_lsn, merge.ends()) {
            let (file, offset) = damage.end.map_or((PathBuf::from(dir), 0), |end| (end.path, end.offset));
            return Err(ReplayError::Corrupt {
                file,
                offset,
                incarnation: range.incarnation,
                missing: Lsn(missing),
                durable: damage.durable,
            });
        }
    }
    Ok(found)
}

/// Hands over the records of one range from `start` on; returns the first missing LSN, or the first beyond the range.
fn replay_range<'f, E>(
    fs: &'f dyn Fs,
    survey: &Survey,
    database_id: u64,
    range: &LogRange,
    start: u64,
    each: &mut Each<'_, E>,
    found: &mut Replayed,
) -> Result<(u64, Merge<'f>), ReplayError<E>> {
    let scans = survey.streams(range.incarnation).map(|(stream, group)| {
        StreamScan::new(fs, database_id, stream, range.incarnation, group.segments_from(start))
    });
    let mut merge = Merge::new(scans.collect());
    let mut next = start;
    while range.last_lsn.is_none_or(|last| next <= last.0) {
        let Some(record) = merge.find(next).map_err(read_error)? else { break };
        let body = record.body();
        each(Lsn(next), body).map_err(|source| ReplayError::Apply { lsn: Lsn(next), source })?;
        found.records += 1;
        found.bytes += body.len() as u64;
        next += 1;
    }
    Ok((next, merge))
}

fn read_error<E>((path, source): (PathBuf, std::io::Error)) -> ReplayError<E> {
    ReplayError::Io { action: "read", path, source }
}

fn check_ranges<E>(ranges: &[LogRange]) -> Result<(), ReplayError<E>> {
    let refuse = |reason: String| Err(ReplayError::Ranges { reason });
    for (i, range) in ranges.iter().enumerate() {
        if range.first_lsn == Lsn(0) {
            return refuse(format!("incarnation {} starts at LSN 0", range.incarnation));
        }
        let Some(next) = ranges.get(i + 1) else { break };
        let Some(last) = range.last_lsn else {
            return refuse(format!("incarnation {} has no end but is not the last", range.incarnation));
        };
        if next.incarnation <= range.incarnation || next.first_lsn <= last.max(Lsn(range.first_lsn.0 - 1)) {
            return refuse(format!("incarnation {} does not follow {}", next.incarnation, range.incarnation));
        }
    }
    Ok(())
}
