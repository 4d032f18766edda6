//! Sources of the list of members: a file, or a service.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Membership, MembershipError};

fn failed(path: &Path) -> impl FnOnce(io::Error) -> MembershipError {
    |source| MembershipError::File { path: path.to_owned(), source }
}

/// Source of the list of members: a file, or a service such as etcd. The list may change while nodes run, and
/// the source may be temporarily unavailable.
pub trait Meta {
    /// Returns the present members.
    ///
    /// # Errors
    ///
    /// [`MembershipError`]: a running node continues with its present list.
    fn members(&self) -> Result<Membership, MembershipError>;

    /// Replaces the list from which `newer` was made ([`with`](Membership::with),
    /// [`without`](Membership::without)) by `newer`, atomically and for all nodes.
    ///
    /// # Errors
    ///
    /// [`MembershipError::Stale`] if the list was changed meanwhile, other errors if it cannot be changed
    /// here. The list is unchanged.
    fn change(&self, newer: &Membership) -> Result<(), MembershipError>;
}

/// A file that is read again for each request.
#[derive(Clone, Debug)]
pub struct FileMeta(PathBuf);

impl FileMeta {
    /// Creates the source for the file at `path`. A later change of the process's working directory has no
    /// effect on it.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(absolute(path))
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl Meta for FileMeta {
    fn members(&self) -> Result<Membership, MembershipError> {
        Membership::read(&self.0)
    }

    /// Holds a lock file next to the list meanwhile, so that the second of two concurrent changes is refused.
    fn change(&self, newer: &Membership) -> Result<(), MembershipError> {
        let lock = self.0.with_extension("toml.lock");
        let held = fs::File::create(&lock).map_err(failed(&lock))?;
        held.lock().map_err(failed(&lock))?;
        let found = self.members()?.version;
        if found + 1 != newer.version {
            return Err(MembershipError::Stale { found, expected: newer.version.saturating_sub(1) });
        }
        newer.write(&self.0)
    }
}

impl Meta for Membership {
    fn members(&self) -> Result<Membership, MembershipError> {
        Ok(self.clone())
    }

    fn change(&self, _: &Membership) -> Result<(), MembershipError> {
        Err(MembershipError::Content("this list is part of the program".to_owned()))
    }
}

impl Membership {
    /// Reads a list from a file. Paths in the file are relative to its directory.
    ///
    /// # Errors
    ///
    /// [`MembershipError`].
    pub fn read(path: &Path) -> Result<Self, MembershipError> {
        let text = fs::read_to_string(path);
        let text = text.map_err(failed(path))?;
        let mut members = Self::parse(&text)?;
        if let Some(directory) = path.parent() {
            members.key_file = directory.join(&members.key_file);
        }
        Ok(members)
    }

    /// Writes the list to a file atomically and durably. Paths below the file's directory are written
    /// relative to that directory.
    ///
    /// # Errors
    ///
    /// [`MembershipError::File`]: the file is unchanged.
    pub fn write(&self, path: &Path) -> Result<(), MembershipError> {
        // Both absolute: a list that was read by a relative path may be written by an absolute one.
        let (path, key_file) = (absolute(path), absolute(&self.key_file));
        let directory = path.parent().unwrap_or(Path::new(""));
        let key_file = key_file.strip_prefix(directory).unwrap_or(&key_file);
        let new = path.with_extension("toml.new");
        let write = || {
            let mut file = fs::File::create(&new)?;
            file.write_all(self.to_text(key_file).as_bytes())?;
            file.sync_all()
        };
        write().map_err(failed(&new))?;
        fs::rename(&new, &path).map_err(failed(&path))?;
        // The new name is durable after a sync of its directory.
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed(directory))
    }
}

#[cfg(test)]
mod tests {
    use crate::id::PeId;
    use crate::membership::tests::{member, of};

    use super::*;

    #[test]
    fn of_two_changes_to_one_version_of_a_file_the_second_is_refused() {
        let path = std::env::temp_dir().join(format!("azekura-list-{}.toml", std::process::id()));
        let members = of(&[(0, Some("")), (1, Some("m"))]).expect("fine");
        fs::write(&path, members.to_text(Path::new("keys/cluster.key"))).expect("a file");
        assert!(FileMeta::new(Path::new("members.toml")).0.is_absolute());
        let meta = FileMeta::new(&path);
        let read = meta.members().expect("fine");
        meta.change(&read.without(PeId(1)).expect("it is there")).expect("nobody else");
        let late = meta.change(&read.with(member(2, None)).expect("it is new"));
        assert!(matches!(late, Err(MembershipError::Stale { found: 2, expected: 1 })), "{late:?}");
        assert_eq!(meta.members().expect("fine").nodes().len(), 1);
        assert_eq!(meta.members().expect("fine").key_file(), read.key_file());
        for extension in ["toml", "toml.lock"] {
            let _ = fs::remove_file(path.with_extension(extension));
        }
    }
}
