//! Creation of a store, with four syncs. CONTROL gets its final name last.
//!
//! The first pages and an empty double-write area are written, then CONTROL under a temporary name. When
//! pages and CONTROL are durable, CONTROL is renamed to its final name, and a sync of the directory makes all
//! names durable.
//!
//! - **CREATE-1** Without CONTROL the directory is not a store: the next opening repeats an interrupted
//!   creation.
//! - **CREATE-2** After a power loss the name CONTROL may be durable while that of another file is not. A
//!   CONTROL without incarnations belongs to a store that was never written, so missing files are created
//!   again.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use azekura_base::sync::random;
use azekura_base::{DurableLog, LogFailed, Lsn, PageBuf, PageId, TxnId};
use azekura_btree::{Env, EnvOptions};
use azekura_buffer::page_file::{Identity, PageAccess};
use azekura_buffer::{BufferPool, PageFile, PageStore, PoolOptions};
use azekura_io::{FileLock, Fs, MemFs, OpenOptions, create_dir_all_durable, file_exists};
use azekura_wal::{AppendError, LogBufferId, Order};

use super::{WAL_DIR, reserved_bytes};
use crate::Error;
use crate::backup::RESTORING_NAME;
use crate::catalog::CATALOG;
use crate::control::{CONTROL_NAME, Control, ControlFile, NEW_CONTROL_NAME};
use crate::encryption::{StoreKeys, new_data_key};
use crate::options::{Builder, MIN_FRAMES};

/// Name of the file that is locked while a store is created.
pub(crate) const LOCK_NAME: &str = "LOCK";
/// LSN of the change that creates the pages of an empty store. The log has no record of that change.
const FIRST_LSN: Lsn = Lsn(1);

/// The lock of a creation. `is_made` is `true` if this call created the store, so that none of its files can
/// be missing.
pub(super) struct Taken {
    pub(super) _lock: Box<dyn FileLock>,
    pub(super) is_made: bool,
}

/// Creates an empty store in `path`, unless another process has just created it. The lock excludes other
/// creations.
pub(super) fn take(path: &Path, options: &Builder) -> Result<Taken, Error> {
    let fs = &*options.fs;
    if !options.create || options.read_only {
        return match refuse_foreign(options, path) {
            Err(damage @ Error::Corrupt { .. }) => Err(damage),
            _ => Err(Error::NotFound { path: path.to_path_buf() }),
        };
    }
    // Checked before any file is created, so that a refused call leaves no files.
    options.check_cache(options.page_size)?;
    match refuse_foreign(options, path) {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
        outcome => outcome?,
    }
    // Also if the directory exists: a killed creation, or another program, may not have synced its name.
    create_dir_all_durable(fs, path).map_err(|e| Error::io("create", path, e))?;
    let file = path.join(LOCK_NAME);
    let held = fs.lock_exclusive(&file).map_err(|e| Error::io("lock", &file, e))?;
    let held = held.ok_or_else(|| Error::InUse { path: path.to_path_buf() })?;
    let is_made = !has_control(fs, path)?;
    if is_made {
        create(path, options)?;
    }
    Ok(Taken { _lock: held, is_made })
}

/// Returns `true` if the directory has the file CONTROL, so that it is a store (CREATE-1). A failed lookup is
/// an error: a directory that this process may not search, for example, may hold a store.
pub(super) fn has_control(fs: &dyn Fs, path: &Path) -> Result<bool, Error> {
    let control = path.join(CONTROL_NAME);
    file_exists(fs, &control).map_err(|e| Error::io("open", &control, e))
}

fn refuse_foreign(options: &Builder, path: &Path) -> Result<(), Error> {
    let fs = &*options.fs;
    let names = fs.list_dir(path).map_err(|e| Error::io("list", path, e))?;
    let of_creation = [
        RESTORING_NAME,
        LOCK_NAME,
        NEW_CONTROL_NAME,
        PageFile::NAME,
        PageFile::DOUBLE_WRITE_NAME,
        CONTROL_NAME,
    ];
    // An interrupted creation has not created these files. A restore has removed those of an unfinished one,
    // but not the directories.
    let of_use = [WAL_DIR, PageFile::LSN_MAP_NAME];
    let is_of_use = |name: &&String| of_use.contains(&name.as_str()) && options.restoring.is_none();
    let is_of_restore = |name: &&String| *name == WAL_DIR && options.restoring.is_some();
    let is_foreign = |name: &&String| !of_creation.contains(&name.as_str()) && !is_of_restore(name);
    match names.iter().find(is_of_use).or_else(|| names.iter().find(is_foreign)) {
        None => Ok(()),
        Some(name) if is_of_use(&name) => Err(Error::Corrupt {
            path: path.join(CONTROL_NAME),
            offset: 0,
            reason: format!(
                "the control file is missing beside {name:?}; restore it from a copy of the store"
            ),
        }),
        Some(name) => Err(Error::Invalid(format!(
            "{} is not an Azekura store and not empty (it contains {name:?}); name a new or empty directory",
            path.display()
        ))),
    }
}

fn create(path: &Path, options: &Builder) -> Result<(), Error> {
    let page_size = options.page_size;
    let database_id = options.restoring.unwrap_or_else(random);
    let (key_record, keys) = new_data_key(path, options.encryption_key.as_ref())?;
    let (fs, pages) = (Arc::clone(&options.fs), first_pages(page_size, keys.as_ref())?);
    create_pages(fs, path, (page_size, database_id), &pages, keys.as_ref())?;
    let first = Control {
        sequence: 0,
        database_id,
        page_size,
        redo_lsn: FIRST_LSN.next(),
        scan_lsn: FIRST_LSN.next(),
        keep_lsn: FIRST_LSN.next(),
        next_txn: TxnId(1),
        streams: options.stream_count(0) as u64,
        next_tree: CATALOG.id.0 + 1,
        incarnation: 0,
        durable_lsn: FIRST_LSN,
        covered: 0,
        ranges: Vec::new(),
        gaps: Vec::new(),
        key_record,
    };
    let fs = &*options.fs;
    ControlFile::create(fs, path, first)?;
    fs.sync_dir(path).map_err(|e| Error::io("sync", path, e))
}

/// Creates files again that a power loss removed from a new store (CREATE-2).
pub(super) fn complete(
    fs: &Arc<dyn Fs>,
    path: &Path,
    control: &Control,
    keys: Option<&StoreKeys>,
) -> Result<(), Error> {
    let Control { page_size, database_id, .. } = *control;
    let first = first_pages(page_size, keys)?;
    // The comparison excludes the checksum and the cipher's trailer.
    let content = 4..page_size - reserved_bytes(keys);
    let is_there = || {
        let identity = Identity { database_id, covered: 0 };
        let file = PageFile::open_as(Arc::clone(fs), path, page_size, identity, PageAccess::default());
        let file = file.ok()?.encrypted(keys.map(|keys| Arc::clone(&keys.cipher)));
        let mut found = PageBuf::zeroed(page_size);
        for (id, page) in (0..).zip(first.chunks_exact(page_size)) {
            file.read_page(PageId(id), &mut found).ok()?;
            (found[content.clone()] == page[content.clone()]).then_some(())?;
        }
        Some(())
    };
    if is_there().is_some() {
        return Ok(());
    }
    create_pages(Arc::clone(fs), path, (page_size, database_id), &first, keys)?;
    fs.sync_dir(path).map_err(|e| Error::io("sync", path, e))
}

fn create_pages(
    fs: Arc<dyn Fs>,
    path: &Path,
    (page_size, database_id): (usize, u64),
    pages: &PageBuf,
    keys: Option<&StoreKeys>,
) -> Result<(), Error> {
    let cipher = keys.map(|keys| &*keys.cipher);
    Ok(PageFile::create_unnamed(fs, path, page_size, database_id, pages, cipher)?)
}

/// Returns the pages of an empty store.
fn first_pages(page_size: usize, keys: Option<&StoreKeys>) -> Result<PageBuf, Error> {
    let (fs, dir): (Arc<dyn Fs>, _) = (Arc::new(MemFs::new()), Path::new("new"));
    PageFile::create(Arc::clone(&fs), dir, page_size)?;
    let file = Arc::new(PageFile::open(Arc::clone(&fs), dir, page_size)?);
    let options = PoolOptions { page_size, capacity_bytes: MIN_FRAMES * page_size, ..PoolOptions::default() };
    let pool = BufferPool::new(options, file, Arc::new(FirstLog))?;
    let pool = Arc::new(pool.reserving(reserved_bytes(keys)));
    Env::new(Arc::clone(&pool), Arc::new(FirstLog), EnvOptions::default())
        .format(LogBufferId::from_index(0))?;
    pool.flush_all()?;
    let mut pages = PageBuf::zeroed((CATALOG.root.0 as usize + 1) * page_size);
    let path = dir.join(PageFile::NAME);
    let io = |source| Error::io("read", &path, source);
    fs.open(&path, OpenOptions::new()).map_err(io)?.read_at(page_size as u64, &mut pages).map_err(io)?;
    Ok(pages)
}

/// A log that accepts only the record that creates the pages of an empty store, and discards it.
#[derive(Debug)]
struct FirstLog;

impl DurableLog for FirstLog {
    fn next_lsn(&self) -> Lsn {
        FIRST_LSN.next()
    }

    fn lsn_bound(&self) -> Lsn {
        FIRST_LSN
    }

    fn durable_lsn(&self) -> Lsn {
        FIRST_LSN
    }

    fn make_durable(&self, _: Lsn) -> Result<(), LogFailed> {
        Ok(())
    }
}

impl azekura_btree::Log for FirstLog {
    fn append(&self, _: LogBufferId, _: &[u8], _: Order) -> Result<Lsn, AppendError> {
        Ok(FIRST_LSN)
    }
}
