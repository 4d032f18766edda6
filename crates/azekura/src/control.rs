//! CONTROL: the file that states where a restart begins. Two checksummed slots are written in turn, so a torn
//! write leaves the other slot valid.
//!
//! - **CONTROL-1** A slot is written whole and synchronously; the other slot, with the older sequence number,
//!   stays valid.
//! - **CONTROL-2** The statements of a slot are true on disk before the slot is written: pages below
//!   `redo_lsn` are synced, and the log is durable up to the checkpoint.
//! - **CONTROL-3** `ranges` lists, oldest first, the incarnations that a restart still reads. Each of them
//!   except the last has a fixed end (its cut). A restart ignores records above the cut (W5).
//! - **CONTROL-4** `durable_lsn`, `covered` and `redo_lsn` are from one moment. When the slot is written, the
//!   log is durable up to `durable_lsn`, and a sync of the page file has covered every batch of page writes
//!   up to `covered`. The sync began after `redo_lsn` was chosen, so a later batch has every change below
//!   `redo_lsn` (DW-8). A log that ends below `durable_lsn` has lost records; a page file with a head below
//!   `covered` has lost pages.
//! - **CONTROL-5** No page has an LSN inside a gap. Each opening leaves a gap of LSNs above the end of the
//!   existing log, of random length. If the page file is from a later time than the log, it has pages with
//!   LSNs in the gap. The gaps are the store's [`Timeline`](crate::timeline::Timeline).
//! - **CONTROL-6** A store without ranges is *closed*: all changes are in its pages, a restart reads no log,
//!   and LSNs continue above `durable_lsn`. It stays closed until the first record of the next run.
//! - **CONTROL-7** The log has every valid record from `keep_lsn` on. `keep_lsn` is below `scan_lsn` while an
//!   archive lacks a part of the log.
//! - **CONTROL-8** After the slots comes the *log end*: an LSN up to which the log was durable, later than
//!   `durable_lsn`. The log end is written after each flush and not synced. So a process crash leaves the
//!   newest log end, and a power loss leaves an older one or none; each is a lower bound. The log end reveals
//!   the loss of the newest chunks of the log, which no later chunk refers to.
//! - **CONTROL-9** A run begins above each LSN in CONTROL, also above the gap and the durable LSN of an
//!   opening that wrote no record. Otherwise its pages could be in that gap, and its log could end below that
//!   durable LSN.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use azekura_base::sync::{Mutex, MutexGuard};
use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u64};
use azekura_base::{Lsn, PageBuf, TxnId, checksum, page};
use azekura_io::{File, Fs, OpenOptions};
use azekura_wal::recovery::LogRange;

use crate::Error;

/// Version of the whole on-disk format. A store with another version is refused.
pub(crate) const FORMAT_VERSION: u32 = 9;
/// Version of the format of an encrypted store.
const ENCRYPTED_FORMAT_VERSION: u32 = 10;
pub(crate) const CONTROL_NAME: &str = "CONTROL";
/// Name of the file before it is complete and is renamed to CONTROL.
pub(crate) const NEW_CONTROL_NAME: &str = "CONTROL.new";

const MAGIC: [u8; 8] = *b"AZEKURA\x01";
const SLOT_BYTES: usize = 16 * 1024;
/// Offset of the log end in the file.
const LOG_END_AT: usize = 2 * SLOT_BYTES;
/// Size of the log end: CRC-32C 4 (over the rest), incarnation 4, database id 8, LSN 8.
const LOG_END_BYTES: usize = 24;
/// Size of the file.
const FILE_BYTES: usize = LOG_END_AT + 4096;
/// Size of a slot's head: magic 8, format version 4, body length 4, CRC-32C 4 (over all bytes except itself),
/// reserved 4.
const HEAD_BYTES: usize = 24;
/// Largest valid number; a larger number in a slot is damage, because no store reaches it.
const MOST: u64 = 1 << 62;
/// Largest number of gaps that are stored: at most 11 KiB of the slot. The oldest gap is dropped first.
const MOST_GAPS: usize = 600;
/// Number of gaps from which on the older half is moved to the file `runs` (TIMELINE-2). If the file cannot
/// be written, CONTROL has space for the gaps of some more openings.
pub(crate) const MANY_GAPS: usize = 500;

/// A range of LSNs that no page of the store can have. A restart after a crash begins a new log with a gap
/// after the end of the old one. A page with an LSN in the gap is from a later time than the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LsnGap {
    /// The last LSN below the gap.
    pub(crate) after: Lsn,
    /// The first LSN above the gap.
    pub(crate) before: Lsn,
}

/// The content of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub(crate) sequence: u64,
    pub(crate) database_id: u64,
    pub(crate) page_size: usize,
    /// LSN at which redo starts: every page change with a lower LSN is in the page file.
    pub(crate) redo_lsn: Lsn,
    /// LSN from which the log is read: the lowest of `redo_lsn` and the first LSN of every transaction active
    /// at the checkpoint.
    pub(crate) scan_lsn: Lsn,
    /// LSN from which on the log has all records (CONTROL-7).
    pub(crate) keep_lsn: Lsn,
    /// A transaction id above the ids of all transactions before the checkpoint.
    pub(crate) next_txn: TxnId,
    /// Number of log streams: chosen when the store is created, and by `Builder::wal_streams`.
    pub(crate) streams: u64,
    /// A tree id above the ids of all tables; valid for a closed store.
    pub(crate) next_tree: u32,
    /// The newest incarnation that may have records in the log; 0 if nothing was ever written.
    pub(crate) incarnation: u32,
    /// LSN up to which the log was durable when the slot was written. A log that ends below it has lost
    /// records.
    pub(crate) durable_lsn: Lsn,
    /// Number of the last batch of page writes that the page file's sync had covered when `redo_lsn` was
    /// chosen. A copy of a page in the double-write area is used only if its batch is later.
    pub(crate) covered: u64,
    pub(crate) ranges: Vec<LogRange>,
    /// The known gaps, oldest first.
    pub(crate) gaps: Vec<LsnGap>,
    /// The key record: the data key, encrypted with the caller's key, and the id of the caller's key. Empty
    /// if the store is not encrypted.
    pub(crate) key_record: Vec<u8>,
}

impl Control {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for value in [
            self.sequence,
            self.database_id,
            self.page_size as u64,
            self.redo_lsn.0,
            self.scan_lsn.0,
            self.keep_lsn.0,
            self.next_txn.0,
            self.streams,
            self.next_tree.into(),
            self.incarnation.into(),
            self.durable_lsn.0,
            self.covered,
            self.ranges.len() as u64,
        ] {
            put_u64(&mut body, value);
        }
        for range in &self.ranges {
            put_u64(&mut body, u64::from(range.incarnation));
            put_u64(&mut body, range.first_lsn.0);
            // 0 means an open end. An LSN is at least 1, so + 1 distinguishes a range that ends before its
            // first record.
            put_u64(&mut body, range.last_lsn.map_or(0, |l| l.0 + 1));
        }
        put_u64(&mut body, self.gaps.len() as u64);
        for gap in &self.gaps {
            put_u64(&mut body, gap.after.0);
            put_u64(&mut body, gap.before.0);
        }
        if self.version() == ENCRYPTED_FORMAT_VERSION {
            put_bytes(&mut body, &self.key_record);
        }
        body
    }

    /// Returns the format version of a slot with this content.
    const fn version(&self) -> u32 {
        if self.key_record.is_empty() { FORMAT_VERSION } else { ENCRYPTED_FORMAT_VERSION }
    }

    fn decode(version: u32, mut body: &[u8]) -> Option<Self> {
        let input = &mut body;
        let mut control = Self {
            sequence: take_u64(input)?,
            database_id: take_u64(input)?,
            page_size: usize::try_from(take_u64(input)?).ok().filter(|&s| page::is_page_size(s))?,
            redo_lsn: Lsn(take_u64(input)?),
            scan_lsn: Lsn(take_u64(input)?),
            keep_lsn: Lsn(take_u64(input)?),
            next_txn: TxnId(take_u64(input)?),
            streams: take_u64(input)?,
            next_tree: u32::try_from(take_u64(input)?).ok()?,
            incarnation: u32::try_from(take_u64(input)?).ok()?,
            durable_lsn: Lsn(take_u64(input)?),
            covered: take_u64(input)?,
            ranges: Vec::new(),
            gaps: Vec::new(),
            key_record: Vec::new(),
        };
        for _ in 0..take_u64(input)? {
            control.ranges.push(LogRange {
                incarnation: u32::try_from(take_u64(input)?).ok()?,
                first_lsn: Lsn(take_u64(input)?),
                last_lsn: take_u64(input)?.checked_sub(1).map(Lsn),
            });
        }
        for _ in 0..take_u64(input)? {
            control.gaps.push(LsnGap { after: Lsn(take_u64(input)?), before: Lsn(take_u64(input)?) });
        }
        if version == ENCRYPTED_FORMAT_VERSION {
            control.key_record = take_bytes(input)?.to_vec();
        }
        (input.is_empty() && control.version() == version && control.has_sound_numbers()).then_some(control)
    }

    /// Returns `true` if adding 1 to any number, or subtracting 1 from any LSN, cannot overflow.
    fn has_sound_numbers(&self) -> bool {
        let is_lsn = |lsn: Lsn| (1..=MOST).contains(&lsn.0);
        let is_range = |r: &LogRange| {
            r.incarnation < u32::MAX && is_lsn(r.first_lsn) && r.last_lsn.is_none_or(|last| last.0 <= MOST)
        };
        is_lsn(self.redo_lsn)
            && is_lsn(self.scan_lsn)
            && is_lsn(self.keep_lsn)
            && self.sequence <= MOST
            && self.next_txn.0 <= MOST
            && self.durable_lsn.0 <= MOST
            && self.covered <= MOST
            && self.gaps.iter().all(|gap| gap.after < gap.before && gap.before.0 <= MOST)
            && self.incarnation < u32::MAX
            && self.ranges.iter().all(is_range)
            && self.ranges.last().is_none_or(|r| r.incarnation <= self.incarnation)
    }

    /// Returns the LSN above which the next run begins (CONTROL-9).
    pub(crate) fn largest_lsn(&self) -> Lsn {
        let below = |gap: &LsnGap| Lsn(gap.before.0 - 1);
        self.gaps.last().map_or(Lsn(0), below).max(self.durable_lsn)
    }

    /// Adds a gap, and drops the oldest if there are too many. If the log ended inside the last gap, no LSN
    /// between the two is in use, and the last gap is extended instead.
    pub(crate) fn add_gap(&mut self, gap: LsnGap) {
        if let Some(last) = self.gaps.last_mut().filter(|last| gap.after < last.before) {
            last.before = gap.before;
            return;
        }
        let surplus = (self.gaps.len() + 1).saturating_sub(MOST_GAPS);
        self.gaps.drain(..surplus);
        self.gaps.push(gap);
    }

    /// Returns the bytes of a slot with this content.
    fn to_slot(&self, path: &Path) -> Result<PageBuf, Error> {
        let body = self.encode();
        if HEAD_BYTES + body.len() > SLOT_BYTES {
            return Err(Error::Corrupt {
                path: path.to_path_buf(),
                offset: 0,
                reason: format!("{} log ranges do not fit the control file", self.ranges.len()),
            });
        }
        let mut slot = PageBuf::zeroed(SLOT_BYTES);
        slot[..8].copy_from_slice(&MAGIC);
        slot[8..12].copy_from_slice(&self.version().to_le_bytes());
        slot[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        let crc = checksum::crc32c_append(checksum::crc32c(&slot[..16]), &body);
        slot[16..20].copy_from_slice(&crc.to_le_bytes());
        slot[HEAD_BYTES..HEAD_BYTES + body.len()].copy_from_slice(&body);
        Ok(slot)
    }

    /// Returns `true` if all changes are in the pages (CONTROL-6).
    pub(crate) fn is_closed(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns `true` if nothing was ever written.
    pub(crate) fn is_new(&self) -> bool {
        self.incarnation == 0
    }
}

enum Slot {
    Valid(Control),
    OtherVersion(u32),
    Invalid,
}

fn read_slot(bytes: &[u8]) -> Slot {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if bytes[..8] != MAGIC {
        return Slot::Invalid;
    }
    // The head has the same format in every version: magic, version, body length, checksum. So another
    // version can be distinguished from damage.
    let len = u32_at(12) as usize;
    let Some(body) = bytes.get(HEAD_BYTES..HEAD_BYTES.saturating_add(len)) else { return Slot::Invalid };
    let crc = checksum::crc32c_append(checksum::crc32c(&bytes[..16]), body);
    if crc != u32_at(16) {
        return Slot::Invalid;
    }
    match u32_at(8) {
        version @ (FORMAT_VERSION | ENCRYPTED_FORMAT_VERSION) => {
            Control::decode(version, body).map_or(Slot::Invalid, Slot::Valid)
        }
        version => Slot::OtherVersion(version),
    }
}

/// Writer of the log end in CONTROL (CONTROL-8).
#[derive(Debug)]
pub(crate) struct LogEnd {
    file: Arc<dyn File>,
    database_id: u64,
    incarnation: u32,
    noted: AtomicU64,
}

impl LogEnd {
    /// Writes that the log is durable up to `lsn`. An error is ignored: an older LSN then stays in the file.
    pub(crate) fn note(&self, lsn: Lsn) {
        // Relaxed: avoids repeated writes of the same LSN.
        if self.noted.fetch_max(lsn.0, Relaxed) < lsn.0 {
            let bytes = encode_log_end(self.database_id, self.incarnation, lsn);
            let _ = self.file.write_at(LOG_END_AT as u64, &bytes);
        }
    }
}

fn encode_log_end(database_id: u64, incarnation: u32, lsn: Lsn) -> [u8; LOG_END_BYTES] {
    let mut bytes = [0; LOG_END_BYTES];
    bytes[4..8].copy_from_slice(&incarnation.to_le_bytes());
    bytes[8..16].copy_from_slice(&database_id.to_le_bytes());
    bytes[16..].copy_from_slice(&lsn.0.to_le_bytes());
    let crc = checksum::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns the LSN of the log end, if it belongs to the newest incarnation of `control` and that incarnation
/// has no fixed end.
fn read_log_end(bytes: &[u8], control: &Control) -> Option<Lsn> {
    let range = control.ranges.last().filter(|range| range.last_lsn.is_none())?;
    let lsn = Lsn(u64::from_le_bytes(bytes.get(16..LOG_END_BYTES)?.try_into().ok()?));
    let expected = encode_log_end(control.database_id, range.incarnation, lsn);
    (bytes[..LOG_END_BYTES] == expected && lsn.0 <= MOST).then_some(lsn)
}

/// The CONTROL file of an open database.
#[derive(Debug)]
pub(crate) struct ControlFile {
    file: Arc<dyn File>,
    path: PathBuf,
    /// The content of the newer slot. Never locked during I/O, so a reader does not wait for a checkpoint.
    current: Mutex<Arc<Control>>,
    /// Locked by each change, from its read of the content to the write of the slot.
    changes: Mutex<()>,
    log_end: Option<Lsn>,
}

/// The exclusive right to change CONTROL.
#[derive(Debug)]
pub(crate) struct ControlChange<'a> {
    file: &'a ControlFile,
    _changes: MutexGuard<'a, ()>,
}

impl ControlFile {
    /// Creates the CONTROL of a new database. The directory is a database once the file has its final name.
    /// The caller makes the name durable.
    pub(crate) fn create(fs: &dyn Fs, dir: &Path, first: Control) -> Result<(), Error> {
        let path = dir.join(NEW_CONTROL_NAME);
        let io = |source| Error::io("create", &path, source);
        let file = fs.open(&path, OpenOptions { create: true, ..OpenOptions::default() }).map_err(io)?;
        // The whole length is written, so that no later write needs disk space.
        file.write_zeroes(0, FILE_BYTES as u64).map_err(io)?;
        let slot = Control { sequence: 1, ..first }.to_slot(&path)?;
        file.write_at(SLOT_BYTES as u64, &slot).map_err(io)?;
        file.sync().map_err(io)?;
        fs.rename(&path, &dir.join(CONTROL_NAME)).map_err(io)
    }

    /// Reads the newer valid slot.
    pub(crate) fn open(fs: &dyn Fs, dir: &Path, read_only: bool) -> Result<Self, Error> {
        let path = dir.join(CONTROL_NAME);
        let io = |source| Error::io("read", &path, source);
        let file = fs.open(&path, OpenOptions::new().read_only(read_only)).map_err(io)?;
        let mut bytes = PageBuf::zeroed(FILE_BYTES);
        file.read_at(0, &mut bytes).map_err(io)?;
        let mut best: Option<Control> = None;
        for at in [0, SLOT_BYTES] {
            match read_slot(&bytes[at..at + SLOT_BYTES]) {
                Slot::Valid(control) if best.as_ref().is_none_or(|b| b.sequence < control.sequence) => {
                    best = Some(control);
                }
                Slot::OtherVersion(found) => {
                    return Err(Error::UnsupportedFormat { path, found, supported: FORMAT_VERSION });
                }
                Slot::Valid(_) | Slot::Invalid => {}
            }
        }
        match best {
            Some(current) => {
                let log_end = read_log_end(&bytes[LOG_END_AT..], &current);
                let current = Mutex::new(Arc::new(current));
                Ok(Self { file, path, current, changes: Mutex::new(()), log_end })
            }
            None => Err(Error::Corrupt {
                path,
                offset: 0,
                reason: "neither slot of the control file is a valid Azekura control block".into(),
            }),
        }
    }

    /// Returns the content of the newer slot. Waits for no I/O.
    pub(crate) fn current(&self) -> Arc<Control> {
        Arc::clone(&self.current.lock())
    }

    /// Waits until no other thread changes CONTROL; so it may wait for a checkpoint.
    pub(crate) fn change(&self) -> ControlChange<'_> {
        ControlChange { _changes: self.changes.lock(), file: self }
    }

    /// Replaces the content by `next`.
    pub(crate) fn write(&self, next: Control) -> Result<(), Error> {
        self.change().write(next)
    }

    /// Returns an LSN up to which the log that a restart reads was durable (CONTROL-8).
    pub(crate) fn log_was_durable_to(&self) -> Lsn {
        self.log_end.unwrap_or(Lsn(0)).max(self.current().durable_lsn)
    }

    /// Returns a writer of the log end of a new incarnation.
    pub(crate) fn new_log_end(&self, incarnation: u32) -> LogEnd {
        let (file, database_id) = (Arc::clone(&self.file), self.current().database_id);
        LogEnd { file, database_id, incarnation, noted: AtomicU64::new(0) }
    }
}

impl ControlChange<'_> {
    /// Returns the content of the newer slot.
    pub(crate) fn current(&self) -> Arc<Control> {
        self.file.current()
    }

    /// Writes `next` into the older slot (CONTROL-1). After a failure the current slot is still valid.
    pub(crate) fn write(&mut self, mut next: Control) -> Result<(), Error> {
        let ControlFile { file, path, current, .. } = self.file;
        next.sequence = self.current().sequence + 1;
        let slot = next.to_slot(path)?;
        let at = (next.sequence % 2) * SLOT_BYTES as u64;
        file.write_at_sync(at, &slot).map_err(|source| Error::io("write", path, source))?;
        *current.lock() = Arc::new(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura_io::MemFs;

    fn first() -> Control {
        Control {
            sequence: 0,
            database_id: 77,
            page_size: 8192,
            redo_lsn: Lsn(1),
            scan_lsn: Lsn(1),
            keep_lsn: Lsn(1),
            next_txn: TxnId(1),
            streams: 0,
            next_tree: 1,
            incarnation: 2,
            durable_lsn: Lsn(0),
            covered: 0,
            ranges: vec![LogRange::open(1, Lsn(1))],
            gaps: Vec::new(),
            key_record: Vec::new(),
        }
    }

    fn created(fs: &MemFs) -> ControlFile {
        fs.create_dir_all(Path::new("db")).unwrap();
        ControlFile::create(fs, Path::new("db"), first()).unwrap();
        ControlFile::open(fs, Path::new("db"), false).unwrap()
    }

    #[test]
    fn a_torn_slot_leaves_the_other() {
        let fs = MemFs::new();
        let control = created(&fs);
        let second = Control {
            redo_lsn: Lsn(50),
            ranges: vec![
                LogRange { last_lsn: Some(Lsn(49)), ..LogRange::open(1, Lsn(1)) },
                LogRange::open(2, Lsn(60)),
            ],
            ..first()
        };
        control.write(second.clone()).unwrap();
        let reopened = ControlFile::open(&fs, Path::new("db"), true).unwrap();
        assert_eq!(*reopened.current(), Control { sequence: 2, ..second });
        // The slot with sequence number 2 is slot 0.
        control.file.write_at(HEAD_BYTES as u64 + 1, &[0xee]).unwrap();
        let reopened = ControlFile::open(&fs, Path::new("db"), true).unwrap();
        assert_eq!(reopened.current().redo_lsn, Lsn(1));
        control.file.write_at(SLOT_BYTES as u64 + 2, &[0xee]).unwrap();
        assert!(matches!(ControlFile::open(&fs, Path::new("db"), true), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn another_format_is_refused_and_named() {
        for version in [1, FORMAT_VERSION - 1, ENCRYPTED_FORMAT_VERSION + 1] {
            let fs = MemFs::new();
            let control = created(&fs);
            let mut slot = vec![0; SLOT_BYTES];
            control.file.read_at(SLOT_BYTES as u64, &mut slot).unwrap();
            slot[8..12].copy_from_slice(&version.to_le_bytes());
            let len = u32::from_le_bytes(slot[12..16].try_into().unwrap()) as usize;
            let body = &slot[HEAD_BYTES..HEAD_BYTES + len];
            let crc = checksum::crc32c_append(checksum::crc32c(&slot[..16]), body);
            slot[16..20].copy_from_slice(&crc.to_le_bytes());
            control.file.write_at(SLOT_BYTES as u64, &slot).unwrap();
            let refused = ControlFile::open(&fs, Path::new("db"), true).unwrap_err();
            let Error::UnsupportedFormat { found, supported, .. } = refused else { panic!("{refused}") };
            assert_eq!((found, supported), (version, FORMAT_VERSION));
        }
    }

    #[test]
    fn a_cut_and_gaps_round_trip() {
        let fs = MemFs::new();
        let control = created(&fs);
        let cut = LogRange { last_lsn: Some(Lsn(0)), ..LogRange::open(1, Lsn(1)) };
        let mut second = Control {
            ranges: vec![cut, LogRange::open(2, Lsn(60))],
            durable_lsn: Lsn(70),
            covered: 9,
            ..first()
        };
        for n in 1..=MOST_GAPS as u64 + 1 {
            second.add_gap(LsnGap { after: Lsn(10 * n), before: Lsn(10 * n + 2) });
        }
        assert_eq!(
            (second.gaps.len(), second.gaps[0].after),
            (MOST_GAPS, Lsn(20)),
            "the oldest is forgotten"
        );
        let last = second.gaps[MOST_GAPS - 1];
        for (after, before) in [(last.before.0 - 1, 9000), (last.after.0, 9100), (last.after.0 + 1, 9200)] {
            second.add_gap(LsnGap { after: Lsn(after), before: Lsn(before) });
            assert_eq!(second.gaps[MOST_GAPS - 1], LsnGap { before: Lsn(before), ..last }, "one gap");
            assert_eq!(second.largest_lsn(), Lsn(before - 1));
        }
        control.write(second.clone()).unwrap();
        let reopened = ControlFile::open(&fs, Path::new("db"), true).unwrap();
        assert_eq!(*reopened.current(), Control { sequence: 2, ..second });
    }
}
