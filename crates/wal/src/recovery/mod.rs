//! Reading the log back after a crash (paper section 4; hazards W5 and W6).
//!
//! 1. **Survey**: finds the segments of each incarnation and stream, and the durable horizon in the newest
//!    headers.
//! 2. For each incarnation in the caller's ranges, oldest first: **scan** its streams and **merge** them by
//!    LSN, from the requested LSN to the first missing LSN.
//! 3. **Cut** there, and check that a crash, not damage, explains the end.
//!
//! Nothing is written, so a crash during recovery changes nothing. The numbers of log buffers and streams are
//! read from the chunks, and may change from run to run.
//!
//! | module | content |
//! |---|---|
//! | `survey` | the directory's content |
//! | `scan` | one stream's chunks in order |
//! | `merge` | all streams by LSN |
//! | `sorted` | replay by sorting, for the evaluation |
//! | `cut` | the end of the log, and whether a crash explains it |

mod cut;
mod merge;
pub(crate) mod scan;
#[cfg(feature = "baseline-logs")]
pub mod sorted;
pub(crate) mod survey;

use std::path::{Path, PathBuf};

use azekura_base::{Cipher, Lsn};
use azekura_io::Fs;

use crate::error::ReplayError;

use merge::{Merge, Present, Record};
use scan::StreamScan;
use survey::Survey;

/// The valid part of the log that one incarnation wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRange {
    /// The incarnation.
    pub incarnation: u32,
    /// The first LSN of the incarnation.
    pub first_lsn: Lsn,
    /// The cut that an earlier recovery found: the last LSN, of a record or gap, before the first missing
    /// one. Below `first_lsn` if the range is empty. `None`, for the last range only, stands for the cut that
    /// this recovery finds.
    pub last_lsn: Option<Lsn>,
}

impl LogRange {
    /// Returns the range of everything that an incarnation has written, up to the first missing LSN.
    #[must_use]
    pub const fn open(incarnation: u32, first_lsn: Lsn) -> Self {
        Self { incarnation, first_lsn, last_lsn: None }
    }
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The cut: the last LSN of the last range, of a record or gap, before the first missing one. If nothing
    /// was found from the requested LSN on, the LSN before that one.
    pub last_lsn: Lsn,
    /// Largest LSN in any chunk of any incarnation, including gaps. New LSNs must start above this LSN and
    /// `last_lsn`.
    pub max_lsn_seen: Lsn,
    /// Number of records passed to the caller.
    pub records: u64,
    /// Bytes of the bodies of these records.
    pub bytes: u64,
}

/// The caller's function for each record; an error ends the replay.
pub type Each<'a, E> = dyn FnMut(Lsn, &[u8]) -> Result<(), E> + 'a;

/// Passes every record of the ranges with an LSN of at least `from` to `each`, in order of LSNs.
///
/// Inside a range LSNs are dense, except for [gaps](crate::lsn_gap). Costs one pass over the segments that
/// can hold such records, one pass over the last segment of each stream, and memory for a few chunks per
/// stream. A directory that does not exist is an empty log.
///
/// # Errors
///
/// - [`ReplayError::Corrupt`]: records that were durable are missing, see `cut`. A torn write is not an
///   error: the log ends before it.
/// - [`ReplayError::Apply`]: `each` returned an error. [`ReplayError::Io`], [`ReplayError::Ranges`].
pub fn replay<E>(
    fs: &dyn Fs,
    dir: &Path,
    database_id: u64,
    ranges: &[LogRange],
    from: Lsn,
    each: &mut Each<'_, E>,
) -> Result<Replayed, ReplayError<E>> {
    replay_durable(LogFiles { fs, dir, database_id, cipher: None }, ranges, from, None, each)
}

/// The files of a log.
#[derive(Clone, Copy, Debug)]
pub struct LogFiles<'a> {
    /// The file system of the log.
    pub fs: &'a dyn Fs,
    /// The directory of the log.
    pub dir: &'a Path,
    /// The database; a chunk of another database is never read.
    pub database_id: u64,
    /// Decrypts the payloads of an encrypted log.
    pub cipher: Option<&'a dyn Cipher>,
}

/// Replays as [`replay`] does, for a caller with more knowledge: the LSN up to which the log was `durable`,
/// and that no incarnation is newer than the last range.
///
/// # Errors
///
/// The errors of [`replay`]. [`ReplayError::Corrupt`] also if the log ends below `durable`;
/// [`ReplayError::StaleRanges`] if the directory holds a log of a later incarnation than the last range.
/// [`ReplayError::Unauthentic`] for a chunk that cannot be decrypted.
pub fn replay_durable<E>(
    files: LogFiles<'_>,
    ranges: &[LogRange],
    from: Lsn,
    durable: Option<Lsn>,
    each: &mut Each<'_, E>,
) -> Result<Replayed, ReplayError<E>> {
    check_ranges(ranges)?;
    let LogFiles { fs, dir, database_id, cipher } = files;
    let survey = Survey::of(fs, dir, database_id).map_err(read_error)?;
    let newest = ranges.last().map_or(u32::MAX, |range| range.incarnation);
    if let Some((found, file)) = survey.newest().filter(|(found, _)| *found > newest && durable.is_some()) {
        return Err(ReplayError::StaleRanges { file, found, newest });
    }
    let max_lsn_seen = Lsn(survey.max_lsn());
    let mut found = Replayed { last_lsn: Lsn(0), max_lsn_seen, records: 0, bytes: 0 };
    for range in ranges {
        let before = Lsn(range.first_lsn.0 - 1);
        found.last_lsn = range.last_lsn.unwrap_or(before).max(before);
        if range.last_lsn.is_some_and(|end| end < range.first_lsn.max(from)) {
            continue;
        }
        let start = range.first_lsn.max(from).0;
        let scans = survey.streams(range.incarnation).map(|(stream, group)| {
            let segments = group.segments_from(start);
            StreamScan::new(fs, database_id, stream, range.incarnation, segments).decrypted(cipher)
        });
        let mut replay = RangeReplay { range, merge: Merge::new(scans.collect()), each, found: &mut found };
        let missing = replay.dense_part(start)?;
        let ends = replay.merge.ends();
        found.last_lsn = Lsn(missing - 1);
        if let Some(damage) = cut::judge(&survey, range, missing, durable.unwrap_or(Lsn(0)), ends) {
            let (file, offset) = damage.end.map_or((PathBuf::from(dir), 0), |end| (end.path, end.offset));
            return Err(ReplayError::Corrupt {
                file,
                offset,
                incarnation: range.incarnation,
                missing: Lsn(damage.missing),
                durable: damage.durable,
            });
        }
    }
    Ok(found)
}

/// The replay of one range.
struct RangeReplay<'r, 'f, 'e, E> {
    range: &'r LogRange,
    merge: Merge<'f>,
    each: &'r mut Each<'e, E>,
    found: &'r mut Replayed,
}

impl<E> RangeReplay<'_, '_, '_, E> {
    /// Passes the records from `start` on to the caller. Returns the first LSN that is neither a record nor
    /// in a gap, or the first LSN beyond the range.
    fn dense_part(&mut self, start: u64) -> Result<u64, ReplayError<E>> {
        let mut next = start;
        while self.range.last_lsn.is_none_or(|last| next <= last.0) {
            next = match self.merge.find(next).map_err(read_error)? {
                None => break,
                Some(Present::Record(record)) => {
                    self.hand_over(&record)?;
                    next + 1
                }
                Some(Present::GapTo(last)) => last + 1,
            };
        }
        Ok(next)
    }

    fn hand_over(&mut self, record: &Record) -> Result<(), ReplayError<E>> {
        let (lsn, body) = (Lsn(record.lsn), record.body());
        (self.each)(lsn, body).map_err(|source| ReplayError::Apply { lsn, source })?;
        self.found.records += 1;
        self.found.bytes += body.len() as u64;
        Ok(())
    }
}

fn read_error<E>((path, source): (PathBuf, std::io::Error)) -> ReplayError<E> {
    if let Some(&scan::UnauthenticChunk { offset }) =
        source.get_ref().and_then(|source| source.downcast_ref::<scan::UnauthenticChunk>())
    {
        return ReplayError::Unauthentic { file: path, offset };
    }
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
