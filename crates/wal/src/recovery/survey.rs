//! The content of the log's directory: the segments of each incarnation and stream, and the horizons in their
//! headers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use azekura_io::{Fs, OpenOptions};

use crate::chunk::{HEADER_BYTES, Header, Place};
use crate::segment::{parse_segment, parse_stream, segment_name};

use super::scan::{self, SegmentRef};

/// Returns `true` if the file `segment` in the directory `stream` of a log has the name of a segment.
#[must_use]
pub fn is_segment(stream: &str, segment: &str) -> bool {
    parse_stream(stream).is_some() && parse_segment(segment).is_some()
}

/// A segment that holds at least one valid header.
#[derive(Debug)]
struct Member {
    segment: SegmentRef,
    /// Largest LSN before this segment, from its first valid header.
    max_before: u64,
}

/// The segments of one stream of one incarnation, in order, and their newest header.
#[derive(Debug, Default)]
pub(crate) struct Group {
    members: Vec<Member>,
    /// The last valid header in the last segment. Its `max_before` and `complete_below` cover all earlier
    /// chunks of this stream.
    pub(crate) last: Option<Header>,
}

impl Group {
    /// Returns the segments from the first one on that can hold a record with an LSN of `from` or more.
    pub(crate) fn segments_from(&self, from: u64) -> Vec<SegmentRef> {
        let first = self.members.iter().rposition(|m| m.max_before < from).unwrap_or(0);
        self.members[first..].iter().map(|m| m.segment.clone()).collect()
    }
}

/// All groups, by incarnation and stream.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) groups: BTreeMap<(u32, u32), Group>,
}

impl Survey {
    /// Reads the first header of every segment, and all headers of each group's last segment.
    ///
    /// # Errors
    ///
    /// The path of the file that could not be read, and the reason. A directory that does not exist is an
    /// empty log.
    pub(crate) fn of(fs: &dyn Fs, dir: &Path, database_id: u64) -> Result<Self, (PathBuf, io::Error)> {
        let mut survey = Self::default();
        let streams = names_in(fs, dir).map_err(|error| (dir.into(), error))?;
        for (name, stream) in streams.iter().filter_map(|name| Some((name, parse_stream(name)?))) {
            let dir = dir.join(name);
            let names = fs.list_dir(&dir).map_err(|error| (dir.clone(), error))?;
            for number in names.iter().filter_map(|name| parse_segment(name)) {
                let segment = SegmentRef { path: dir.join(segment_name(number)), number };
                let place = Place { database_id, stream, segment: number, offset: 0 };
                survey.add(fs, segment.clone(), place).map_err(|error| (segment.path, error))?;
            }
        }
        for group in survey.groups.values_mut() {
            group.hear_last(fs, database_id)?;
        }
        Ok(survey)
    }

    fn add(&mut self, fs: &dyn Fs, segment: SegmentRef, place: Place) -> io::Result<()> {
        let Some(first) = first_header(fs, &segment.path, place)? else { return Ok(()) };
        let group = self.groups.entry((first.incarnation, place.stream)).or_default();
        group.members.push(Member { segment, max_before: first.max_before });
        group.last = Some(first);
        Ok(())
    }

    /// Returns the newest incarnation with a chunk, and a segment with such a chunk.
    pub(crate) fn newest(&self) -> Option<(u32, PathBuf)> {
        let (&(incarnation, _), group) = self.groups.last_key_value()?;
        Some((
            incarnation,
            group.members.first().map(|member| member.segment.path.clone()).unwrap_or_default(),
        ))
    }

    /// Returns the largest LSN of all valid chunks of all incarnations.
    pub(crate) fn max_lsn(&self) -> u64 {
        self.groups.values().filter_map(|g| g.last).map(|h| h.max_lsn()).max().unwrap_or(0)
    }

    /// Returns the streams of one incarnation.
    pub(crate) fn streams(&self, incarnation: u32) -> impl Iterator<Item = (u32, &Group)> {
        self.groups
            .range((incarnation, 0)..=(incarnation, u32::MAX))
            .map(|(&(_, stream), group)| (stream, group))
    }
}

impl Group {
    fn hear_last(&mut self, fs: &dyn Fs, database_id: u64) -> Result<(), (PathBuf, io::Error)> {
        let (Some(member), Some(first)) = (self.members.last(), self.last) else { return Ok(()) };
        let path = &member.segment.path;
        let place = Place { database_id, offset: 0, ..first.place };
        let file =
            fs.open(path, OpenOptions::new().read_only(true)).map_err(|error| (path.clone(), error))?;
        let mut last = first;
        let mut hear = |header: &Header| {
            if header.incarnation == first.incarnation && header.number > last.number {
                last = *header;
            }
        };
        scan::sweep(&*file, place, &mut hear).map_err(|error| (path.clone(), error))?;
        self.last = Some(last);
        Ok(())
    }
}

/// Returns the names in the directory of a log; none if there is no such directory. A directory that cannot
/// be looked up is an error, because an empty log would lose commits.
pub(crate) fn names_in(fs: &dyn Fs, dir: &Path) -> io::Result<Vec<String>> {
    match fs.list_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        names => names,
    }
}

/// Returns the first valid header in a segment: at its start, or, if that is damaged, anywhere after it.
fn first_header(fs: &dyn Fs, path: &Path, place: Place) -> io::Result<Option<Header>> {
    let file = fs.open(path, OpenOptions::new().read_only(true))?;
    let mut bytes = [0; HEADER_BYTES];
    let read = file.read_at(0, &mut bytes)?;
    if let Some(header) = Header::decode_at(&bytes[..read], place) {
        return Ok(Some(header));
    }
    let mut first = None;
    scan::sweep(&*file, place, &mut |header| first = first.or(Some(*header)))?;
    Ok(first)
}
