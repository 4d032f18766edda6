//! Paths of directories, as callers give them.

use std::path::{Path, PathBuf};

use azekura_io::Fs;

use crate::Error;

/// Returns the absolute path of a directory: the working directory may change before later files in it are
/// opened or created.
pub(crate) fn absolute(fs: &dyn Fs, path: &Path, what: &str) -> Result<PathBuf, Error> {
    refuse_empty(path, what)?;
    fs.absolute(path).map_err(|e| Error::io("find the absolute path of", path, e))
}

/// Returns an error for an empty path, such as that of an unset variable: the files of the directory would be
/// searched and created in the working directory.
pub(crate) fn refuse_empty(path: &Path, what: &str) -> Result<(), Error> {
    if path.as_os_str().is_empty() {
        return Err(Error::Invalid(format!("the path of the {what} is empty; name a directory")));
    }
    Ok(())
}
