//! Segments: the files of one stream, prepared ahead, written once, recycled (hazards W6 and W11).
//!
//! A stream's directory `NN` holds files named by a sequence number of 16 hexadecimal digits.
//!
//! | segment | content | next state |
//! |---|---|---|
//! | ready | zeroes, or stale chunks if recycled; name durable | current, when the last one is full |
//! | current | chunks of this run | sealed, when it is full |
//! | sealed | chunks of this run; its largest LSN is known | spare or removed, by [`SegmentStore::trim`] |
//! | old | chunks of earlier runs, never written again (W5) | spare or removed, by `trim` |
//! | spare | nothing that counts any more | ready, renamed to the next sequence number |
//!
//! The largest LSN of an old segment is bounded by the next segment's header, or looked up by the first trim.
//!
//! - **SEGMENT-1** A sequence number is never used twice in one incarnation, and a new incarnation uses
//!   numbers above those of all existing files, so stale chunks never fit their new place (CHUNK-1).
//! - **SEGMENT-2** (W11) Records are admitted to the buffers only while the prepared segments have room for
//!   everything that the buffers can hold *and* for a flush in flight that has no place yet. So each record
//!   with an LSN always has a place on disk.
//! - **SEGMENT-4** A stream keeps as many segments as its log needed at the last few trims of this run, so a
//!   log that grows and is trimmed in turns neither removes nor makes files. Both delay the log's writes: a
//!   file system that is mounted with `discard` reports every removed block to the device. Segments of
//!   earlier runs do not count as needed: otherwise each opening would keep one file more than the one
//!   before. A spare file is removed if it is smaller than the segments made now, or above the full size.
//! - **SEGMENT-5** New blocks are filled with zeroes before small chunks, and written without a fill by large
//!   chunks: see `new_blocks`.
//! - **SEGMENT-6** The first segment that a run prepares has no successor while its rest has room for three
//!   whole flushes and the reserve, so a store with few records has one log file. Each later segment has a
//!   successor ready, regardless of its rest.
//! - **SEGMENT-7** The name of a segment is durable before its first chunk. Its length is not: the
//!   write or sync of a chunk makes it durable up to the chunk's end. A crash before that may leave a short
//!   file: a scan ends at its end, and the next opening does not use it again.
//! - **SEGMENT-8** A stream's directory is created after the name of the log's directory is durable.
//! - **SEGMENT-3** The last bytes of the prepared segments are a reserve that admits only undo records: on a
//!   full disk a transaction can be rolled back, up to that much log for each stream, and the store
//!   continues.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::sync::Mutex;
use azekura_io::{File, Fs, OpenOptions, create_dir_all_durable, create_dir_durable};

use crate::chunk::{HEADER_BYTES, Header, Place, UNIT_BYTES};
use crate::error::WalError;
use crate::new_blocks::Segment;
use crate::options::{Admission, LogIdentity};
use crate::recovery::{scan, survey};
use crate::sizes::Sizes;

/// Returns the directory of a stream.
pub(crate) fn stream_dir(dir: &Path, stream: u32) -> PathBuf {
    dir.join(format!("{stream:02}"))
}

/// Parses the name of a stream's directory.
pub(crate) fn parse_stream(name: &str) -> Option<u32> {
    (name.len() == 2).then(|| name.parse().ok())?
}

/// Returns the name of a segment file.
pub(crate) fn segment_name(segment: u64) -> String {
    format!("{segment:016x}")
}

/// Parses the name of a segment file.
pub(crate) fn parse_segment(name: &str) -> Option<u64> {
    let is_ours = name.len() == 16 && name.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_ours.then(|| u64::from_str_radix(name, 16).ok())?
}

/// A file that is not written any more.
#[derive(Debug)]
struct Retired {
    path: PathBuf,
    number: u64,
    file_bytes: u64,
    used_bytes: u64,
    /// Upper bound of the LSNs in the file; `None` if it is not known yet.
    max_lsn: Option<u64>,
}

/// Number of recent trims that determine how many segments the log needs.
const TRIMS: usize = 16;

/// Number of files that a trim removes before it syncs the directory. A power loss may restore files with
/// removals that were not synced. With a single sync at the end, repeatedly interrupted openings would only
/// add files.
const REMOVALS_PER_SYNC: usize = 8;

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Segment>,
    sealed: VecDeque<Retired>,
    old: Vec<Retired>,
    /// Paths and sizes in bytes of the spare files.
    spare: Vec<(PathBuf, u64)>,
    /// `true` if the directory exists and its files are listed here.
    is_started: bool,
    /// The stream's sizes; `None` if the stream is not written in this run.
    sizes: Option<Sizes>,
    /// Number of sealed segments before each of the last [`TRIMS`] trims that released segments.
    needed: VecDeque<usize>,
    next_number: u64,
    prepared: u64,
    recycled: u64,
}

impl State {
    /// Records a trim that released segments, and the number of this run's sealed segments before the trim.
    fn note_trim(&mut self, sealed_before: usize) {
        self.needed.truncate(TRIMS - 1);
        self.needed.push_front(sealed_before);
    }

    /// Returns the number of bytes for which flushes always find room, in chunks of at most `chunk` bytes.
    fn usable(&self, rest: u64, chunk: u64) -> u64 {
        // The end of a segment stays unused when a chunk of one buffer does not fit, so up to one chunk per
        // segment may be wasted.
        let ready = self.ready.iter().map(|segment| segment.bytes);
        ready.chain([rest]).map(|bytes| bytes.saturating_sub(chunk)).sum()
    }

    /// Returns `true` if fewer bytes are ready than wanted, with `rest` bytes left in the current segment.
    fn is_short(&self, rest: u64) -> bool {
        self.sizes.is_some_and(|sizes| {
            let chunk = sizes.next.chunk();
            if self.prepared == 1 {
                self.usable(rest, chunk) < sizes.wanted_with_rest() // SEGMENT-6
            } else {
                self.usable(0, chunk) < sizes.wanted_bytes()
            }
        })
    }

    fn wants_spare(&self, file_bytes: u64) -> bool {
        self.sizes.is_some_and(|sizes| {
            (sizes.next.segment..=sizes.most.segment).contains(&file_bytes)
                && self.spare.len() + self.ready.len() < sizes.ready_segments() + self.missing()
        })
    }

    /// Returns the number of segments that the log lacks to reach its recent size (SEGMENT-4).
    fn missing(&self) -> usize {
        self.needed.iter().max().map_or(0, |most| most.saturating_sub(self.sealed.len()))
    }
}

/// The segments of one stream, or of a directory that no stream writes any more.
#[derive(Debug)]
pub(crate) struct SegmentStore {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    stream: u32,
    database_id: u64,
    incarnation: u32,
    direct: bool,
    /// `true` if chunks of earlier runs are not needed.
    nothing_counts: bool,
    state: Mutex<State>,
    /// Held while a segment is made, so that two threads do not make the same segment.
    preparing: Mutex<()>,
    trimming: Mutex<()>,
}

/// The classification of an existing file.
enum Found {
    /// A file with chunks, and the header of the first chunk; or a file with unknown content.
    Old(Option<Header>),
    /// A prepared or recycled file that was not written since, or a file with chunks that are not needed.
    Unused,
    /// A file of another database, which is not touched.
    Foreign,
}

impl SegmentStore {
    /// Returns a store that touches no file before it is [started](Self::start). `sizes` is `None` for a
    /// directory that will not be written.
    pub(crate) fn new(
        fs: &Arc<dyn Fs>,
        wal_dir: &Path,
        stream: u32,
        identity: LogIdentity,
        direct: bool,
        sizes: Option<Sizes>,
    ) -> Self {
        Self {
            fs: Arc::clone(fs),
            dir: stream_dir(wal_dir, stream),
            stream,
            database_id: identity.database_id,
            incarnation: identity.incarnation,
            direct,
            nothing_counts: false,
            state: Mutex::new(State { sizes, ..State::default() }),
            preparing: Mutex::default(),
            trimming: Mutex::default(),
        }
    }

    /// Sets whether chunks of earlier runs are not needed.
    pub(crate) fn where_nothing_counts(self, nothing_counts: bool) -> Self {
        Self { nothing_counts, ..self }
    }

    /// Reads the directory, once. Creates the directory before, if the stream will be written.
    pub(crate) fn start(&self) -> Result<(), WalError> {
        let _one_at_a_time = self.preparing.lock();
        if self.is_started() {
            return Ok(());
        }
        if self.state.lock().sizes.is_some() {
            // SEGMENT-8
            if let Some(log_dir) = self.dir.parent().filter(|_| !self.fs.exists(&self.dir)) {
                create_dir_all_durable(&*self.fs, log_dir).map_err(WalError::io("create", log_dir))?;
            }
            create_dir_durable(&*self.fs, &self.dir).map_err(WalError::io("create", &*self.dir))?;
        }
        self.survey()?;
        self.state.lock().is_started = true;
        Ok(())
    }

    pub(crate) fn is_started(&self) -> bool {
        self.state.lock().is_started
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn survey(&self) -> Result<(), WalError> {
        let names = self.fs.list_dir(&self.dir).map_err(WalError::io("list", &self.dir))?;
        let mut state = self.state.lock();
        (state.old, state.spare) = (Vec::new(), Vec::new()); // from a failed start
        let mut firsts = Vec::new();
        for number in names.iter().filter_map(|name| parse_segment(name)) {
            let path = self.dir.join(segment_name(number));
            let file = self.fs.open(&path, OpenOptions::new().read_only(true));
            let file = file.map_err(WalError::io("open", &path))?;
            let file_bytes = file.len().map_err(WalError::io("measure", &path))?;
            state.next_number = state.next_number.max(number.saturating_add(1));
            let found = match self.identify(&*file, &path, number)? {
                Found::Old(_) if self.nothing_counts => Found::Unused,
                found => found,
            };
            let retired = |max_lsn| Retired { path, number, file_bytes, used_bytes: file_bytes, max_lsn };
            match found {
                Found::Foreign => {}
                Found::Old(first) => {
                    bound_earlier(&mut state.old, &firsts, first);
                    state.old.push(retired(None));
                    firsts.push(first.map(|header| header.incarnation));
                }
                Found::Unused if state.wants_spare(file_bytes) => {
                    state.spare.push((retired(None).path, file_bytes));
                }
                Found::Unused => {
                    state.old.push(Retired { used_bytes: 0, ..retired(Some(0)) });
                    firsts.push(None);
                }
            }
        }
        Ok(())
    }

    fn identify(&self, file: &dyn File, path: &Path, number: u64) -> Result<Found, WalError> {
        let mut block = [0; UNIT_BYTES];
        let read = file.read_at(0, &mut block).map_err(WalError::io("read", path))?;
        let block = &block[..read];
        if block.iter().all(|&b| b == 0) {
            return Ok(Found::Unused);
        }
        let Some(header) = Header::decode(block.get(..HEADER_BYTES).unwrap_or_default()) else {
            return Ok(Found::Old(None));
        };
        if header.place.database_id != self.database_id {
            return Ok(Found::Foreign);
        }
        if header.place != self.place(number, 0) {
            return Ok(Found::Unused); // recycled, not written since
        }
        if header.incarnation >= self.incarnation {
            return Err(WalError::IncarnationNotNew {
                path: path.into(),
                found: header.incarnation,
                incarnation: self.incarnation,
            });
        }
        Ok(Found::Old(Some(header)))
    }

    pub(crate) const fn place(&self, segment: u64, offset: u64) -> Place {
        Place { database_id: self.database_id, stream: self.stream, segment, offset }
    }

    /// Returns `true` if fewer bytes are ready than wanted, with `rest` bytes left in the current segment. An
    /// outdated `rest` only delays the next segment: an appender that is not admitted prepares it.
    pub(crate) fn is_short(&self, rest: u64) -> bool {
        let state = self.state.lock();
        state.is_started && state.is_short(rest)
    }

    /// Returns the records to admit with `rest` bytes left in the current segment, room for `flushes` flushes
    /// needed, and `open` buffers open.
    pub(crate) fn admission(&self, rest: u64, open: u64, flushes: u64) -> Admission {
        let state = self.state.lock();
        let Some(sizes) = state.sizes else { return Admission::None };
        sizes.admission(state.usable(rest, sizes.now.chunk()), open, flushes)
    }

    /// Reads or changes the sizes of a stream that is written.
    pub(crate) fn with_sizes<T>(&self, change: impl FnOnce(&mut Sizes) -> T) -> Option<T> {
        self.state.lock().sizes.as_mut().map(change)
    }

    /// Raises the buffers' limits to those of the next segments, if enough segments are ready. Returns `true`
    /// if the limits were raised.
    pub(crate) fn raise(&self, rest: u64) -> bool {
        let mut state = self.state.lock();
        let Some(mut sizes) = state.sizes else { return false };
        let raised = sizes.raise(|chunk| state.usable(rest, chunk));
        state.sizes = Some(sizes);
        raised
    }

    /// Prepares one more segment if fewer bytes are ready than wanted with `rest` bytes left in the current
    /// segment. Recycles a spare segment, or makes a new one.
    ///
    /// Blocks for the device: allocates a new segment, and syncs its name. After a failure, removes the file.
    pub(crate) fn prepare_one(&self, rest: u64) -> io::Result<()> {
        let _one_at_a_time = self.preparing.lock();
        let (number, spare, bytes) = {
            let mut state = self.state.lock();
            let Some(sizes) = state.sizes.filter(|_| state.is_short(rest)) else { return Ok(()) };
            let at = state.spare.iter().position(|&(_, bytes)| bytes >= sizes.next.segment);
            (state.next_number, at.map(|at| state.spare.swap_remove(at)), sizes.next.segment)
        };
        let path = self.dir.join(segment_name(number));
        let (recycled, bytes) = (spare.is_some(), spare.as_ref().map_or(bytes, |&(_, bytes)| bytes));
        let filled = if recycled { bytes } else { 0 };
        let made = match spare {
            Some((spare, bytes)) => self.recycle(&spare, &path).inspect_err(|_| {
                // If the file has the new name already, the next opening finds it unused.
                if self.fs.exists(&spare) {
                    self.state.lock().spare.push((spare, bytes));
                }
            }),
            None => self.make(&path, bytes).inspect_err(|_| {
                // Best effort: a file that cannot be removed is found unused at the next opening.
                let _ = self.fs.remove_file(&path);
            }),
        };
        let mut state = self.state.lock();
        // A failed call uses up its number too: the file may still exist.
        state.next_number = number + 1;
        let file = made?;
        state.ready.push_back(Segment { number, path, file, bytes, filled });
        state.prepared += 1;
        state.recycled += u64::from(recycled);
        Ok(())
    }

    fn make(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn File>> {
        let file = self.fs.open(path, OpenOptions::new().create_new(true).direct(self.direct))?;
        check_alignment(&*file)?;
        file.allocate(0, bytes)?;
        self.fs.sync_dir(&self.dir)?; // SEGMENT-7
        Ok(file)
    }

    fn recycle(&self, from: &Path, to: &Path) -> io::Result<Arc<dyn File>> {
        self.fs.rename(from, to)?;
        self.fs.sync_dir(&self.dir)?;
        let file = self.fs.open(to, OpenOptions::new().direct(self.direct))?;
        check_alignment(&*file)?;
        Ok(file)
    }

    /// Takes the next ready segment.
    pub(crate) fn take_ready(&self) -> Option<Segment> {
        self.state.lock().ready.pop_front()
    }

    /// Seals a full segment.
    pub(crate) fn seal(&self, segment: &Segment, used_bytes: u64, max_lsn: u64) {
        let retired = Retired {
            path: segment.path.clone(),
            number: segment.number,
            file_bytes: segment.bytes,
            used_bytes,
            max_lsn: Some(max_lsn),
        };
        let mut state = self.state.lock();
        state.sealed.push_back(retired);
        if let Some(sizes) = state.sizes.as_mut().filter(|sizes| segment.bytes >= sizes.next.segment) {
            sizes.grow();
        }
    }

    /// Returns the bytes of the log in sealed and old segments.
    pub(crate) fn retained_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.sealed.iter().chain(&state.old).map(|s| s.used_bytes).sum()
    }

    /// Returns the number of segments prepared in this run, and how many of them were recycled.
    pub(crate) fn prepared(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.prepared, state.recycled)
    }

    /// Releases every segment with only records below `below`; returns the number of segments.
    ///
    /// Old segments are read at most once per opening. A segment that cannot be read is kept.
    pub(crate) fn trim(&self, below: u64) -> Result<u64, WalError> {
        let _one_at_a_time = self.trimming.lock();
        let looked_up = self.look_up_old();
        let freed = self.take_below(below);
        let mut done = 0;
        let mut removed = Ok(());
        let mut unsynced = 0;
        for retired in freed {
            let mut state = self.state.lock();
            if state.wants_spare(retired.file_bytes) {
                state.spare.push((retired.path, retired.file_bytes));
                done += 1;
                continue;
            }
            drop(state);
            match self.fs.remove_file(&retired.path) {
                Ok(()) => (unsynced, done) = (unsynced + 1, done + 1),
                Err(error) => {
                    removed = Err(WalError::io("remove", &retired.path)(error));
                    self.state.lock().old.push(retired); // tried again by the next trim
                }
            }
            if unsynced == REMOVALS_PER_SYNC {
                removed = removed.and(self.sync_dir());
                unsynced = 0;
            }
        }
        if unsynced > 0 {
            removed = removed.and(self.sync_dir());
        }
        removed.and(looked_up).map(|()| done)
    }

    fn sync_dir(&self) -> Result<(), WalError> {
        self.fs.sync_dir(&self.dir).map_err(WalError::io("sync", &self.dir))
    }

    fn take_below(&self, below: u64) -> Vec<Retired> {
        let mut state = self.state.lock();
        let before = state.sealed.len();
        let mut freed = Vec::new();
        while state.sealed.front().is_some_and(|s| s.max_lsn.is_some_and(|max| max < below)) {
            freed.extend(state.sealed.pop_front());
        }
        let (out, keep) = std::mem::take(&mut state.old)
            .into_iter()
            .partition::<Vec<_>, _>(|s| s.max_lsn.is_some_and(|max| max < below));
        state.old = keep;
        freed.extend(out);
        if !freed.is_empty() {
            state.note_trim(before);
        }
        freed
    }

    /// Reads the old segments with an unknown largest LSN, and stores the largest LSN of each.
    fn look_up_old(&self) -> Result<(), WalError> {
        let unknown: Vec<(PathBuf, u64)> = {
            let state = self.state.lock();
            state.old.iter().filter(|s| s.max_lsn.is_none()).map(|s| (s.path.clone(), s.number)).collect()
        };
        let mut result = Ok(());
        for (path, number) in unknown {
            match self.largest_lsn(&path, number) {
                Ok(max) => {
                    let mut state = self.state.lock();
                    state.old.iter_mut().filter(|s| s.path == path).for_each(|s| s.max_lsn = Some(max));
                }
                Err(error) => result = Err(WalError::io("read", path)(error)),
            }
        }
        result
    }

    fn largest_lsn(&self, path: &Path, number: u64) -> io::Result<u64> {
        let file = self.fs.open(path, OpenOptions::new().read_only(true))?;
        let mut max = 0;
        scan::sweep(&*file, self.place(number, 0), &mut |header| max = max.max(header.last_lsn))?;
        Ok(max)
    }
}

/// Returns the segments in the directory of a log, with the first header of each, if it has one.
fn segments_in(fs: &dyn Fs, dir: &Path) -> Result<Vec<(u32, PathBuf, Option<Header>)>, WalError> {
    let mut found = Vec::new();
    let list = |dir: &Path| fs.list_dir(dir).map_err(WalError::io("list", dir));
    let streams = survey::names_in(fs, dir).map_err(WalError::io("list", dir))?;
    for stream in streams.iter().filter_map(|name| parse_stream(name)) {
        let dir = stream_dir(dir, stream);
        for number in list(&dir)?.iter().filter_map(|name| parse_segment(name)) {
            let path = dir.join(segment_name(number));
            let mut head = [0; HEADER_BYTES];
            let file = fs.open(&path, OpenOptions::new().read_only(true));
            file.and_then(|file| file.read_at(0, &mut head)).map_err(WalError::io("read", &path))?;
            found.push((stream, path, Header::decode(&head)));
        }
    }
    Ok(found)
}

/// Removes the segments of a log that has no needed record. Keeps one segment per stream, cut to `keep`
/// bytes, so that the next run can write on a full disk. A file with chunks of another database stays. The
/// removals are not synced: a file that comes back after a power loss has no needed record either.
///
/// # Errors
///
/// [`WalError::Io`]; other files may be removed already.
pub fn remove_segments(fs: &dyn Fs, dir: &Path, database_id: u64, keep: u64) -> Result<(), WalError> {
    let mut kept = None; // last stream with a kept file; a stream's files are consecutive
    for (stream, path, header) in segments_in(fs, dir)? {
        if header.is_some_and(|header| header.place.database_id != database_id) {
            continue;
        }
        if kept != Some(stream) {
            let file = fs.open(&path, OpenOptions::new()).map_err(WalError::io("open", &path))?;
            let len = file.len().map_err(WalError::io("measure", &path))?;
            if len > keep {
                file.set_len(keep).map_err(WalError::io("cut", &path))?;
            }
            if len >= keep {
                kept = Some(stream);
                continue;
            }
        }
        fs.remove_file(&path).map_err(WalError::io("remove", &path))?;
    }
    Ok(())
}

/// Returns the newest incarnation in the first headers of all segments, and that segment.
///
/// # Errors
///
/// [`WalError::Io`].
pub fn newest_incarnation(
    fs: &dyn Fs,
    dir: &Path,
    database_id: u64,
) -> Result<Option<(u32, PathBuf)>, WalError> {
    let headers = segments_in(fs, dir)?.into_iter().filter_map(|(_, path, header)| Some((header?, path)));
    let own = headers.filter(|(header, _)| header.place.database_id == database_id);
    Ok(own.map(|(header, path)| (header.incarnation, path)).max_by_key(|&(incarnation, _)| incarnation))
}

/// Bounds the largest LSN of earlier segments: a segment's first header states the largest LSN before it in
/// that incarnation. So only the last segment of an incarnation is read for a trim.
fn bound_earlier(old: &mut [Retired], incarnations: &[Option<u32>], first: Option<Header>) {
    let Some(header) = first else { return };
    let earlier = old.iter_mut().zip(incarnations).filter(|(_, i)| **i == Some(header.incarnation));
    earlier.filter(|(s, _)| s.max_lsn.is_none()).for_each(|(s, _)| s.max_lsn = Some(header.max_before));
}

/// Refuses a device with blocks above 4 KiB: chunks are multiples of 4 KiB.
fn check_alignment(file: &dyn File) -> io::Result<()> {
    if UNIT_BYTES.is_multiple_of(file.alignment()) {
        return Ok(());
    }
    let reason = format!(
        "the device needs accesses of {} bytes, the log writes units of {UNIT_BYTES} bytes",
        file.alignment()
    );
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn segment_names_round_trip_and_other_names_are_refused() {
        assert_eq!(parse_segment(&segment_name(0xbeef)), Some(0xbeef));
        assert_eq!(parse_segment(&segment_name(u64::MAX)), Some(u64::MAX));
        for stranger in
            ["", "0", "000000000000000G", "000000000000000A", "0000000000000000.tmp", "+000000000000001"]
        {
            assert_eq!(parse_segment(stranger), None, "{stranger}");
        }
        assert_eq!(parse_stream("07"), Some(7));
        assert_eq!(parse_stream("7"), None);
        assert_eq!(parse_stream("probe"), None);
    }
}
