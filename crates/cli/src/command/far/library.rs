//! The preloaded library: part of this program, and written to a file from which the loader can load it.
//!
//! This process becomes the program (`exec`), so it cannot remove a temporary file at the end. Programs that
//! the program starts load the library, too. So the library is stored in the user's own cache directory,
//! under a name derived from its bytes, and stays there. Other users may not write to that directory, and a
//! file with other bytes is replaced.

use anyhow::{Context, Result, bail};
use azekura_far::launch::other_library;
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

static BYTES: &[u8] = include_bytes!(env!("AZEKURA_FAR_PRELOAD_BUILT"));

/// Returns the path of the library; writes the file if it is missing.
pub(super) fn put() -> Result<PathBuf> {
    if let Some(other) = other_library()? {
        return Ok(other);
    }
    if BYTES.is_empty() {
        bail!(
            "this build has no library to preload: build it for Linux with the GNU C library (glibc), \
             without AZEKURA_EMBED=none"
        );
    }
    let mut last = None;
    for directory in directories() {
        match put_in(&directory)
            .with_context(|| format!("cannot write the library to preload into {}", directory.display()))
        {
            Ok(path) => return Ok(path),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no directory for the library to preload: set TMPDIR")?)
}

/// Returns the user's cache directory, then the directory for temporary files as an alternative. The paths
/// are absolute, because the program may change its working directory before it starts others.
fn directories() -> impl Iterator<Item = PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")));
    let user = user();
    let temporary = std::env::temp_dir().join(format!("azekura-{user}"));
    let cache = cache.map(|cache| cache.join("azekura"));
    cache.into_iter().chain([temporary]).filter_map(|directory| std::path::absolute(directory).ok())
}

fn user() -> u32 {
    fs::metadata("/proc/self").map_or(0, |me| me.uid())
}

fn put_in(directory: &Path) -> Result<PathBuf> {
    if directory.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
        bail!(
            "the path has a space or a colon, which LD_PRELOAD cannot hold; set TMPDIR to another directory"
        );
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let found = fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != user() || found.mode() & 0o022 != 0 {
        bail!("other users can write there");
    }
    let path =
        directory.join(concat!("libazekura_far_preload-", env!("AZEKURA_FAR_PRELOAD_BUILT_HASH"), ".so"));
    if fs::read(&path).is_ok_and(|bytes| bytes == BYTES) {
        return Ok(path);
    }
    // Written completely under another name first, because other programs may be starting.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(BYTES)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o500))?;
    file.persist(&path).map(|_: File| path).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_installed_once_and_again_after_a_change() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("a/b");
        let path = put_in(&place).unwrap();
        assert!(path.is_absolute() && fs::read(&path).unwrap() == BYTES);
        let made = fs::metadata(&path).unwrap().ino();
        assert_eq!(fs::metadata(put_in(&place).unwrap()).unwrap().ino(), made);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"something else").unwrap();
        assert_eq!(put_in(&place).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), BYTES);
        assert_eq!(fs::read_dir(&place).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_name_that_the_loader_cannot_parse_is_refused_before_creation() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["jane doe", "a:b"] {
            let place = directory.path().join(name).join("azekura");
            assert!(put_in(&place).unwrap_err().to_string().contains("LD_PRELOAD"), "{name}");
            assert!(!place.exists(), "{name}");
        }
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(put_in(directory.path()).unwrap_err().to_string(), "other users can write there");
    }
}
