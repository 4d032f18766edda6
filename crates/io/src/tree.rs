//! `Tree`: the names of an in-memory file system, and the changes that a call makes to them.
//!
//! A call is first *planned*. Planning checks all conditions that the operating system checks, and gives a
//! list of [`Change`]s. Applying the list cannot fail and can be postponed, so a fault disk can lose the
//! changes.

use std::collections::BTreeMap;
use std::io;
#[cfg(feature = "test-fs")]
use std::path::PathBuf;
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::io::Errno;

use crate::error::os;
use crate::fs::OpenOptions;

/// Number of a directory, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirId(u64);

/// The directory `/`.
const ROOT: DirId = DirId(0);

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) dir: DirId,
    name: Arc<str>,
}

/// The object of a name; `N` is the file type of the file system.
#[derive(Debug)]
pub(crate) enum Entry<N> {
    Dir(DirId),
    File(Arc<N>),
}

impl<N> Clone for Entry<N> {
    fn clone(&self) -> Self {
        match self {
            Self::Dir(dir) => Self::Dir(*dir),
            Self::File(node) => Self::File(Arc::clone(node)),
        }
    }
}

/// A change of a name: its new object, or `None` if the name is removed.
#[derive(Debug)]
pub(crate) struct Change<N> {
    pub(crate) name: Name,
    pub(crate) entry: Option<Entry<N>>,
}

/// Result of looking up a path.
pub(crate) enum Opening<N> {
    Existing(Arc<N>),
    /// The file is missing and may be created with this name.
    Missing(Name),
}

/// The names of a file system.
#[derive(Debug)]
pub(crate) struct Tree<N> {
    entries: BTreeMap<Name, Entry<N>>,
    next_dir: u64,
}

impl<N> Default for Tree<N> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), next_dir: ROOT.0 + 1 }
    }
}

impl<N> Clone for Tree<N> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), next_dir: self.next_dir }
    }
}

/// Returns the names along a path, from the root. Relative paths start at the root too.
pub(crate) fn components(path: &Path) -> io::Result<Vec<Arc<str>>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_str().ok_or_else(|| os(Errno::ILSEQ))?.into()),
            Component::ParentDir => drop(names.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(names)
}

impl<N> Tree<N> {
    /// Returns the same names, with each file replaced by the result of `copy`.
    pub(crate) fn with_files(&self, copy: impl Fn(&N) -> N) -> Self {
        let entry = |entry: &Entry<N>| match entry {
            Entry::Dir(dir) => Entry::Dir(*dir),
            Entry::File(node) => Entry::File(Arc::new(copy(node))),
        };
        let entries = self.entries.iter().map(|(name, was)| (name.clone(), entry(was))).collect();
        Self { entries, next_dir: self.next_dir }
    }

    fn get(&self, dir: DirId, name: &Arc<str>) -> Option<&Entry<N>> {
        self.entries.get(&Name { dir, name: Arc::clone(name) })
    }

    fn descend(&self, names: &[Arc<str>]) -> io::Result<DirId> {
        let mut dir = ROOT;
        for name in names {
            match self.get(dir, name) {
                Some(Entry::Dir(next)) => dir = *next,
                Some(Entry::File(_)) => return Err(os(Errno::NOTDIR)),
                None => return Err(os(Errno::NOENT)),
            }
        }
        Ok(dir)
    }

    /// Returns the place of a path's last name, whether or not it exists.
    fn place(&self, path: &Path) -> io::Result<Name> {
        let names = components(path)?;
        let (name, above) = names.split_last().ok_or_else(|| os(Errno::ISDIR))?;
        Ok(Name { dir: self.descend(above)?, name: Arc::clone(name) })
    }

    /// Returns the directory at `path`.
    pub(crate) fn dir(&self, path: &Path) -> io::Result<DirId> {
        self.descend(&components(path)?)
    }

    /// Returns the file at `path`.
    pub(crate) fn file(&self, path: &Path) -> io::Result<Arc<N>> {
        match self.entries.get(&self.place(path)?) {
            Some(Entry::File(node)) => Ok(Arc::clone(node)),
            Some(Entry::Dir(_)) => Err(os(Errno::ISDIR)),
            None => Err(os(Errno::NOENT)),
        }
    }

    /// Returns `true` if a file or directory is at `path`.
    pub(crate) fn exists(&self, path: &Path) -> bool {
        self.dir(path).is_ok() || self.file(path).is_ok()
    }

    fn entries_of(&self, dir: DirId) -> impl Iterator<Item = (&Arc<str>, &Entry<N>)> {
        let first = Name { dir, name: "".into() };
        let names = self.entries.range(first..).take_while(move |(name, _)| name.dir == dir);
        names.map(|(name, entry)| (&name.name, entry))
    }

    /// Returns the names in the directory at `path`, sorted.
    pub(crate) fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let dir = self.dir(path)?;
        Ok(self.entries_of(dir).map(|(name, _)| name.to_string()).collect())
    }

    /// Looks up the file to open, and checks the options for creation.
    pub(crate) fn plan_open(&self, path: &Path, options: OpenOptions) -> io::Result<Opening<N>> {
        options.check()?;
        let place = self.place(path)?;
        match self.entries.get(&place) {
            Some(_) if options.create_new => Err(os(Errno::EXIST)),
            Some(Entry::Dir(_)) => Err(os(Errno::ISDIR)),
            Some(Entry::File(node)) => Ok(Opening::Existing(Arc::clone(node))),
            None if options.create || options.create_new => Ok(Opening::Missing(place)),
            None => Err(os(Errno::NOENT)),
        }
    }

    /// Returns the creation of the first missing directory of `path`, or `None` if all exist. The caller
    /// applies the change and calls again.
    pub(crate) fn plan_create_dir(&mut self, path: &Path) -> io::Result<Option<Change<N>>> {
        let mut dir = ROOT;
        for name in components(path)? {
            match self.get(dir, &name) {
                Some(Entry::Dir(next)) => dir = *next,
                Some(Entry::File(_)) => return Err(os(Errno::NOTDIR)),
                None => {
                    let new = DirId(self.next_dir);
                    self.next_dir += 1;
                    return Ok(Some(Change { name: Name { dir, name }, entry: Some(Entry::Dir(new)) }));
                }
            }
        }
        Ok(None)
    }

    /// Returns the changes of a rename: none if both names are the same.
    pub(crate) fn plan_rename(&self, from: &Path, to: &Path) -> io::Result<Vec<Change<N>>> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let moved = self.entries.get(&from).ok_or_else(|| os(Errno::NOENT))?;
        if from == to {
            return Ok(Vec::new());
        }
        match (moved, self.entries.get(&to)) {
            (Entry::Dir(_), Some(Entry::File(_))) => return Err(os(Errno::NOTDIR)),
            (Entry::File(_), Some(Entry::Dir(_))) => return Err(os(Errno::ISDIR)),
            (_, Some(Entry::Dir(dir))) if self.entries_of(*dir).next().is_some() => {
                return Err(os(Errno::NOTEMPTY));
            }
            (Entry::Dir(dir), _) if self.is_inside(to.dir, *dir) => return Err(os(Errno::INVAL)),
            _ => {}
        }
        let entry = Some(moved.clone());
        Ok(vec![Change { name: from, entry: None }, Change { name: to, entry }])
    }

    /// Returns `true` if `dir` is the directory `above`, or is below it.
    fn is_inside(&self, dir: DirId, above: DirId) -> bool {
        dir == above
            || self.entries_of(above).any(|(_, entry)| match entry {
                Entry::Dir(next) => self.is_inside(dir, *next),
                Entry::File(_) => false,
            })
    }

    /// Returns the change of a removal.
    pub(crate) fn plan_remove(&self, path: &Path) -> io::Result<Change<N>> {
        self.file(path)?;
        Ok(Change { name: self.place(path)?, entry: None })
    }

    /// Applies a planned change.
    pub(crate) fn apply(&mut self, change: &Change<N>) {
        match &change.entry {
            Some(entry) => self.entries.insert(change.name.clone(), entry.clone()),
            None => self.entries.remove(&change.name),
        };
    }

    /// Returns every file with its path, in order of the names.
    #[cfg(feature = "test-fs")]
    pub(crate) fn files(&self) -> Vec<(PathBuf, Arc<N>)> {
        let mut files = Vec::new();
        self.collect(ROOT, Path::new("/"), &mut files);
        files
    }

    #[cfg(feature = "test-fs")]
    fn collect(&self, dir: DirId, path: &Path, files: &mut Vec<(PathBuf, Arc<N>)>) {
        for (name, entry) in self.entries_of(dir) {
            let path = path.join(&**name);
            match entry {
                Entry::Dir(next) => self.collect(*next, &path, files),
                Entry::File(node) => files.push((path, Arc::clone(node))),
            }
        }
    }

    /// Excludes the directory numbers of `other` from new directories.
    #[cfg(feature = "test-fs")]
    pub(crate) fn reserve_dirs_of(&mut self, other: &Self) {
        self.next_dir = self.next_dir.max(other.next_dir);
    }

    /// Copies the names for other files. Drops files that cannot be reached from the root.
    #[cfg(feature = "test-fs")]
    pub(crate) fn map<M>(&self, each: &mut impl FnMut(&Arc<N>) -> Arc<M>) -> Tree<M> {
        let mut mapped = Tree { entries: BTreeMap::new(), next_dir: self.next_dir };
        self.map_dir(ROOT, each, &mut mapped);
        mapped
    }

    #[cfg(feature = "test-fs")]
    fn map_dir<M>(&self, dir: DirId, each: &mut impl FnMut(&Arc<N>) -> Arc<M>, mapped: &mut Tree<M>) {
        for (name, entry) in self.entries_of(dir) {
            let entry = match entry {
                Entry::Dir(next) => {
                    self.map_dir(*next, each, mapped);
                    Entry::Dir(*next)
                }
                Entry::File(node) => Entry::File(each(node)),
            };
            mapped.entries.insert(Name { dir, name: Arc::clone(name) }, entry);
        }
    }
}

impl<N> Change<N> {
    /// Copies the change for other files.
    #[cfg(feature = "test-fs")]
    pub(crate) fn map<M>(&self, each: &mut impl FnMut(&Arc<N>) -> Arc<M>) -> Change<M> {
        let entry = self.entry.as_ref().map(|entry| match entry {
            Entry::Dir(dir) => Entry::Dir(*dir),
            Entry::File(node) => Entry::File(each(node)),
        });
        Change { name: self.name.clone(), entry }
    }
}
