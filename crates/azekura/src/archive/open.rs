//! Opening an archive, or creating one: which archives a store may continue.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::sync::atomic::AtomicU64;
use azekura_base::sync::time::Instant;
use azekura_base::sync::{Mutex, RwLock};
use azekura_base::{Cipher, Lsn};
use azekura_io::{FileLock, Fs, OpenOptions, replace_file};

use super::end::End;
use super::format::{LogReader, file_names};
use super::{Archive, ArchiveKey, LogFile, State};
use crate::Error;
use crate::location::{create_directory, refuse_inside_store};
use crate::timeline::Timeline;

/// Name of the file in a store that has the path of its archive (ARCHIVE-7).
const ARCHIVED_TO_NAME: &str = "ARCHIVED-TO";
/// Name of the file in an archive that an open store locks (ARCHIVE-8). It has no content, because locks of
/// some network file systems prevent the access of others.
const LOCK_NAME: &str = "archive.lock";

/// The store that opens an archive.
pub(crate) struct ArchivedStore<'a> {
    pub(crate) path: &'a Path,
    pub(crate) database_id: u64,
    /// LSN from which on the store has its log.
    pub(crate) keep_lsn: Lsn,
    /// The first LSN that the store has not used.
    pub(crate) first_lsn: Lsn,
    pub(crate) timeline: &'a Timeline,
}

impl ArchivedStore<'_> {
    /// Returns the first LSN of the gap that ends below `lsn`, or `lsn`. No record is between the two.
    fn before_gap(&self, lsn: Lsn) -> Lsn {
        self.timeline.position(Lsn(lsn.0 - 1)).lsn.next()
    }

    /// Returns an error if the store has used an archive at this path and none is there (ARCHIVE-7). Returns
    /// `true` if the store has last used another archive or none.
    fn is_new_archive(&self, fs: &dyn Fs, dir: &Path) -> Result<bool, Error> {
        let noted = self.path.join(ARCHIVED_TO_NAME);
        let io = |source| Error::io("read", &noted, source);
        let file = match fs.open(&noted, OpenOptions::new().read_only(true)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            file => file.map_err(io)?,
        };
        let text = text_of(fs, dir)?;
        let mut bytes = vec![0; text.len() + 1];
        let len = file.read_at(0, &mut bytes).map_err(io)?;
        let is_noted = bytes[..len] == text;
        let is_there = fs.exists(dir) && !file_names(fs, dir)?.is_empty();
        if is_noted && !is_there {
            return Err(Error::ArchiveMissing { path: dir.into(), store: self.path.into() });
        }
        if !is_there {
            tracing::warn!(
                archive = %dir.display(),
                "a new archive begins: make a backup, from which restores can begin"
            );
        }
        Ok(!is_noted)
    }

    /// Writes the path of the archive into the store (ARCHIVE-7).
    fn note_archive(&self, fs: &dyn Fs, dir: &Path) -> Result<(), Error> {
        replace_file(fs, self.path, ARCHIVED_TO_NAME, &text_of(fs, dir)?)
            .map_err(|e| Error::io("write", &self.path.join(ARCHIVED_TO_NAME), e))
    }
}

/// Returns the content of `ARCHIVED-TO` for an archive in `dir`.
fn text_of(fs: &dyn Fs, dir: &Path) -> Result<Vec<u8>, Error> {
    let path = fs.absolute(dir).map_err(|e| Error::io("find", dir, e))?;
    // Without a slash at the end: `archive/` is the same directory as `archive`.
    let path: PathBuf = path.components().collect();
    let mut text = path.into_os_string().into_encoded_bytes();
    text.push(b'\n');
    Ok(text)
}

impl Archive {
    /// Opens the archive in `dir`, or makes an empty one. A new archive begins at the first LSN that the
    /// store has not used. Returns the archive and a lock on it, which the caller keeps until the store is
    /// closed (ARCHIVE-8).
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        dir: &Path,
        store: &ArchivedStore<'_>,
        key: Option<ArchiveKey>,
    ) -> Result<(Self, Option<Box<dyn FileLock>>), Error> {
        let is_new = store.is_new_archive(&*fs, dir)?;
        if is_new {
            refuse_inside_store(&*fs, dir, "archive")?;
        }
        create_directory(&*fs, dir, "archive")?;
        let lock = lock(&*fs, dir)?;
        let next_lsn = store.before_gap(store.first_lsn);
        let mut state = State { file: None, next_lsn, horizon: 0, position: None };
        let mut names = file_names(&*fs, dir)?;
        while let Some(path) = names.pop().map(|(_, name)| dir.join(name)) {
            let cipher = key.as_ref().map(|key| Arc::clone(&key.cipher));
            if let Some(found) = read_newest(&*fs, &path, store, cipher)? {
                state = found;
                break;
            }
            // A crash occurred before the header was written.
            fs.remove_file(&path).map_err(|e| Error::io("remove", &path, e))?;
        }
        if state.next_lsn > store.first_lsn {
            return Err(Error::Invalid(format!(
                "the archive {} is from a later time than the store (log record {} of {}); name a new \
                 directory for the archive, and make a backup",
                dir.display(),
                state.next_lsn,
                store.first_lsn
            )));
        }
        let keep_lsn = store.before_gap(store.keep_lsn);
        if state.next_lsn < keep_lsn {
            tracing::warn!(
                archive = %dir.display(),
                "the store was changed without its archive: make a backup, from which restores can begin"
            );
            (state.file, state.next_lsn) = (None, keep_lsn);
        }
        let end = fs.open(&End::path(dir), OpenOptions::new().create(true));
        let archive = Self {
            dir: dir.into(),
            database_id: store.database_id,
            key,
            timeline: store.timeline.clone(),
            end: end.map_err(|e| Error::io("open", &End::path(dir), e))?,
            gate: RwLock::new(()),
            clock: AtomicU64::new(state.horizon),
            state: Mutex::new(state),
            last_append: Mutex::new(Instant::now()),
            fs,
        };
        archive.begin()?;
        if is_new {
            store.note_archive(&*archive.fs, dir)?;
        }
        Ok((archive, lock))
    }

    /// Makes the files that an open archive needs.
    fn begin(&self) -> Result<(), Error> {
        let mut state = self.state.lock();
        let end = End { database_id: self.database_id, next_lsn: state.next_lsn, horizon: state.horizon };
        match End::read(&*self.fs, &self.dir) {
            Ok(Some(found)) if found == end => {}
            Err(error @ Error::UnsupportedFormat { .. }) => return Err(error),
            _ => {
                self.write_end(&state)?;
                self.end.sync().map_err(|e| Error::io("sync", &End::path(&self.dir), e))?;
                self.fs.sync_dir(&self.dir).map_err(|e| Error::io("sync", &self.dir, e))?;
            }
        }
        if state.file.is_none() {
            // The file exists before the first change, so an opening after a crash begins at the same LSN.
            state.file = Some(self.create_file(&state)?);
        }
        Ok(())
    }
}

/// Locks the archive, before anything in it is read or changed (ARCHIVE-8). A file system without locks, such
/// as NFS without its lock daemon, gives no lock.
fn lock(fs: &dyn Fs, dir: &Path) -> Result<Option<Box<dyn FileLock>>, Error> {
    const ENOLCK: i32 = 37;
    let path = dir.join(LOCK_NAME);
    match fs.lock_exclusive(&path) {
        Ok(None) => Err(Error::Invalid(format!(
            "the archive {} is in use by another store, or by a copy of this one; close that store, or name \
             another directory for the archive",
            dir.display()
        ))),
        Err(error) if error.kind() == ErrorKind::Unsupported || error.raw_os_error() == Some(ENOLCK) => {
            tracing::warn!(archive = %dir.display(), "the file system of the archive has no locks");
            Ok(None)
        }
        held => held.map_err(|e| Error::io("lock", &path, e)),
    }
}

/// Reads the newest file, and cuts off a block that a crash left unfinished; returns `None` for a file
/// without a header.
fn read_newest(
    fs: &dyn Fs,
    path: &Path,
    store: &ArchivedStore<'_>,
    cipher: Option<Arc<dyn Cipher>>,
) -> Result<Option<State>, Error> {
    let dir = path.parent().unwrap_or(path);
    let file = fs.open(path, OpenOptions::new()).map_err(|e| Error::io("open", path, e))?;
    let Some(mut reader) = LogReader::open(Arc::clone(&file), path)? else { return Ok(None) };
    reader.decrypt_with(cipher.clone());
    let header = reader.header.clone();
    if header.database_id != store.database_id {
        return Err(Error::Invalid(format!(
            "{} is the archive of another store; name another directory",
            dir.display()
        )));
    }
    let (next_lsn, horizon) = (header.first_lsn, header.horizon);
    let mut state = State { file: None, next_lsn, horizon, position: Some(header.position) };
    loop {
        match reader.next_block() {
            Ok(Some(block)) => {
                (state.next_lsn, state.horizon) = (block.to.next(), block.horizon);
                state.position = Some(block.position);
            }
            Ok(None) => break,
            // The log of the store still has the records of the unfinished block, so that block is written
            // again.
            Err(Error::Corrupt { .. }) if state.next_lsn >= store.before_gap(store.keep_lsn) => break,
            Err(error) => return Err(error),
        }
    }
    if let Some(position) = state.position {
        let advice = "name a new directory for the archive, and make a full backup";
        store.timeline.require(position, dir, (fs, store.path), advice)?; // ARCHIVE-5
    }
    let end = reader.offset;
    if file.len().map_err(|e| Error::io("read", path, e))? > end {
        file.set_len(end).map_err(|e| Error::io("truncate", path, e))?;
    }
    // A killed process may have written blocks without a sync, and the store trims its log up to here.
    file.sync().map_err(|e| Error::io("sync", path, e))?;
    let sequence = reader.sequence;
    state.file = Some(LogFile { file, path: path.into(), id: header.id, sequence, end, cipher });
    Ok(Some(state))
}
