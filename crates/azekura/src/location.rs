//! Paths of directories, as callers give them.

use std::io::ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, NotFound};
use std::path::{Path, PathBuf};

use azekura_io::{Fs, create_dir_all_durable, file_exists};

use crate::Error;
use crate::backup::RESTORING_NAME;
use crate::control::CONTROL_NAME;

/// Returns the absolute path of a directory: the working directory may change before later files in it are
/// opened or created.
pub(crate) fn absolute(fs: &dyn Fs, path: &Path, what: &str) -> Result<PathBuf, Error> {
    refuse_empty(path, what)?;
    fs.absolute(path).map_err(|e| Error::io("find the absolute path of", path, e))
}

/// Returns an error if `path`, which need not exist, is the directory of a store or inside one. A copy of a
/// store there would be lost with the store, and would be a part of each copy of its directory. `what` names
/// the content of the directory.
pub(crate) fn refuse_inside_store(fs: &dyn Fs, path: &Path, what: &str) -> Result<(), Error> {
    let absolute = absolute(fs, path, what)?;
    for ancestor in absolute.ancestors() {
        let real = match fs.canonical(ancestor) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => continue,
            real => real.map_err(|e| Error::io("find the real path of", ancestor, e))?,
        };
        for dir in real.ancestors() {
            let has = |name| match file_exists(fs, &dir.join(name)) {
                Err(error) if error.kind() == IsADirectory => Ok(false),
                found => found.map_err(|e| Error::io("open", &dir.join(name), e)),
            };
            // A restore or compaction may be repeated in the directory of an unfinished one.
            if has(CONTROL_NAME)? && !has(RESTORING_NAME)? {
                return Err(Error::Invalid(format!(
                    "{} is the directory of the store {}, or inside it; name another one for the {what}",
                    path.display(),
                    dir.display()
                )));
            }
        }
        break; // the canonical path has all further ancestors
    }
    Ok(())
}

/// Creates a directory and its missing ancestors, and makes them durable. `what` names its content.
pub(crate) fn create_directory(fs: &dyn Fs, path: &Path, what: &str) -> Result<(), Error> {
    create_dir_all_durable(fs, path).map_err(|error| match error.kind() {
        AlreadyExists | NotADirectory => Error::Invalid(format!(
            "{} is a file, or its path has a file in place of a directory; name a new directory for the \
             {what}",
            path.display()
        )),
        _ => Error::io("create", path, error),
    })
}

/// Returns an error for an empty path, such as that of an unset variable: the files of the directory would be
/// searched and created in the working directory.
pub(crate) fn refuse_empty(path: &Path, what: &str) -> Result<(), Error> {
    if path.as_os_str().is_empty() {
        return Err(Error::Invalid(format!("the path of the {what} is empty; name a directory")));
    }
    Ok(())
}
