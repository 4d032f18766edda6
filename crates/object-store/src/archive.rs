//! The log archive of a store in an object store.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use tokio::runtime::Runtime;

use crate::Error;
use crate::object::runtime;

/// Length of the part of an archive file's header that is compared; it contains the random id of the file.
const HEADER_BYTES: usize = 52;
/// Name of the file that has the end of the archive.
const END_NAME: &str = "end.azk";

/// A copy of a [log archive](azekura::Builder::archive) in an object store: an object `PREFIX/log-LSN.azk`
/// for each log file of the archive's directory, and `PREFIX/end.azk`.
///
/// [`push`](Self::push) copies new content, and [`fetch`](Self::fetch) creates the directory again, for
/// [`Restore::archive`](azekura::Restore::archive). The calls block the thread, like those of
/// [`BackupObject`](crate::BackupObject).
///
/// - **OBJECT-3** The archive is written by appending to a file; when the file is complete, the next one
///   begins. Files are copied in ascending order, each completely by one request. So only the last object can
///   be shorter than its file. A restore accepts a file that ends inside a block, and stops before that
///   block.
/// - **OBJECT-4** The end of the archive, `PREFIX/end.azk`, is read before the log files, by `push` and by
///   `fetch`, and written after them. So all log up to this end is in the copy, unless objects were lost.
pub struct ArchiveObjects {
    store: Arc<dyn ObjectStore>,
    prefix: object_store::path::Path,
    /// URL for messages.
    name: String,
    runtime: Arc<Runtime>,
    /// Names of the files that were complete when they were copied.
    complete: HashSet<String>,
    /// The file copied last, with its length and modification time at that time, because it may grow.
    newest: Option<(String, u64, Option<SystemTime>)>,
    /// The end of the archive that was copied last.
    end: Vec<u8>,
}

impl fmt::Debug for ArchiveObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveObjects").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns `true` if this is the name of an archive file. The order of names is the order of the files.
fn is_log(name: &str) -> bool {
    let digits = name.strip_prefix("log-").and_then(|name| name.strip_suffix(".azk"));
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Reads a file, if it exists.
fn read_file(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).map_err(|source| file_error(path, source)),
    }
}

/// Writes a file that other users cannot read, like the files of an archive.
fn write_file(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(contents)).map_err(|source| file_error(path, source))
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.into(), source }
}

impl ArchiveObjects {
    /// Returns the archive with this prefix in any object store. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::Url`]: the prefix has an empty part or a part that is invalid in the name of an object.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> Result<Self, Error> {
        let name = format!("{store}/{prefix}");
        Self::named(store, prefix, &name)
    }

    /// Returns the archive at `s3://BUCKET/PREFIX`. Takes the same environment variables as
    /// [`BackupObject::from_url`](crate::BackupObject::from_url).
    ///
    /// # Errors
    ///
    /// [`Error::Url`]: another URL. [`Error::Settings`]: the environment has no credentials, or a wrong
    /// setting.
    #[cfg(feature = "s3")]
    pub fn from_url(url: &str) -> Result<Self, Error> {
        let (store, prefix) = crate::url::s3(url)?;
        Self::named(store, prefix, url)
    }

    fn named(store: Arc<dyn ObjectStore>, prefix: &str, url: &str) -> Result<Self, Error> {
        let prefix = object_store::path::Path::parse(prefix)
            .map_err(|error| Error::Url { url: url.into(), reason: error.to_string() })?;
        let name = url.trim_end_matches('/').to_owned();
        Ok(Self {
            store,
            prefix,
            name,
            runtime: runtime()?,
            complete: HashSet::new(),
            newest: None,
            end: Vec::new(),
        })
    }

    fn error(&self, action: &'static str, object: &str, error: object_store::Error) -> Error {
        let object = if object.is_empty() { self.name.clone() } else { format!("{}/{object}", self.name) };
        Error::Store { action, object, error: Box::new(error) }
    }

    /// Returns the names of the objects, in ascending order.
    fn list(&self) -> Result<Vec<String>, Error> {
        let listed = self.runtime.block_on(self.store.list_with_delimiter(Some(&self.prefix)));
        let listed = listed.map_err(|error| self.error("list", "", error))?.objects;
        let names = listed.iter().filter_map(|object| object.location.filename());
        let mut found: Vec<_> = names.filter(|name| is_log(name)).map(str::to_owned).collect();
        found.sort_unstable();
        Ok(found)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let object = self.prefix.clone().join(name);
        let read = self.runtime.block_on(async { self.store.get(&object).await?.bytes().await });
        Ok(read.map_err(|error| self.error("read", name, error))?.into())
    }

    /// Reads an object, if it exists.
    fn read_if_there(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.read(name) {
            Err(Error::Store { error, .. }) if matches!(*error, object_store::Error::NotFound { .. }) => {
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    fn write(&self, name: &str, contents: Vec<u8>) -> Result<(), Error> {
        let object = self.prefix.clone().join(name);
        let put = self.runtime.block_on(self.store.put(&object, PutPayload::from(contents)));
        put.map(drop).map_err(|error| self.error("write", name, error))
    }

    /// Checks that an object belongs to the archive in `dir`: the header of each file contains a random id.
    fn check_origin(&self, object: &str, dir: &Path) -> Result<(), Error> {
        let path = dir.join(object);
        let file = read_file(&path)?;
        let copied = self.read(object)?;
        let header = &copied[..HEADER_BYTES.min(copied.len())];
        if file.is_some_and(|file| file.starts_with(header)) {
            return Ok(());
        }
        Err(Error::Exists { object: format!("{}/{object}", self.name) })
    }

    /// Copies the log files of the archive in `dir` that are new or have grown, and returns their number. The
    /// store may be open and may write to the archive meanwhile. If the machine is lost, the commits since
    /// the last call are lost too, so call this regularly, for instance once per second. After an error the
    /// next call continues.
    ///
    /// # Errors
    ///
    /// [`Error::File`]: a file of the archive cannot be read. [`Error::Store`]. [`Error::Exists`]: the
    /// objects belong to the archive of another store, or to a later archive.
    pub fn push(&mut self, dir: impl AsRef<Path>) -> Result<u64, Error> {
        let dir = dir.as_ref();
        let end = read_file(&dir.join(END_NAME))?;
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
        };
        let names = fs::read_dir(dir).and_then(|entries| entries.map(name).collect());
        let mut names: Vec<String> = names.map_err(|source| file_error(dir, source))?;
        names.retain(|name| is_log(name));
        names.sort_unstable();
        if self.newest.is_none() && self.complete.is_empty() {
            let mut listed = self.list()?;
            // The last object is copied again: its file may have grown, or its end may have changed after a
            // crash.
            if let Some(last) = listed.pop() {
                self.check_origin(&last, dir)?;
            }
            self.complete = listed.into_iter().collect();
        }
        let mut copied = 0;
        for (n, name) in names.iter().enumerate() {
            // The list was read before the files, so a file with a successor in the list is complete.
            let is_complete = n + 1 < names.len();
            let path = dir.join(name);
            if self.complete.contains(name) {
                continue;
            }
            let before = fs::metadata(&path).map_err(|source| file_error(&path, source))?;
            let newest = Some((name.clone(), before.len(), before.modified().ok()));
            if self.newest != newest {
                let contents = fs::read(&path).map_err(|source| file_error(&path, source))?;
                self.write(name, contents)?;
                copied += 1;
                self.newest = newest;
            }
            if is_complete {
                self.complete.insert(name.clone());
            }
        }
        if let Some(end) = end.filter(|end| *end != self.end) {
            self.write(END_NAME, end.clone())?;
            self.end = end;
        }
        Ok(copied)
    }

    /// Copies the archive into the empty or new directory `dir`; returns the number of log files.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`]: the archive does not exist. [`Error::File`], [`Error::Store`].
    pub fn fetch(&self, dir: impl AsRef<Path>) -> Result<u64, Error> {
        let dir = dir.as_ref();
        fs::create_dir_all(dir).map_err(|source| file_error(dir, source))?;
        let end = self.read_if_there(END_NAME)?;
        let mut copied = 0;
        for name in self.list()? {
            let contents = self.read(&name)?;
            let path = dir.join(&name);
            write_file(&path, &contents)?;
            copied += 1;
        }
        if copied == 0 {
            return Err(Error::NotFound { object: format!("{}/log-*.azk", self.name) });
        }
        if let Some(end) = end {
            write_file(&dir.join(END_NAME), &end)?;
        }
        Ok(copied)
    }
}
