//! `Locks`: the locked files of an in-memory file system.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::Arc;

use azekura_base::sync::Mutex;

use crate::fs::FileLock;
use crate::tree;

type Name = Vec<Arc<str>>;

/// The locked files, by name: 0 for one exclusive holder, otherwise the number of shared holders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Arc<Mutex<BTreeMap<Name, usize>>>);

impl Locks {
    /// Locks `path` exclusively, or returns `None` if it is locked.
    pub(crate) fn try_lock(&self, path: &Path) -> std::io::Result<Option<Box<dyn FileLock>>> {
        let name = tree::components(path)?;
        match self.0.lock().entry(name.clone()) {
            Entry::Vacant(free) => free.insert(0),
            Entry::Occupied(_) => return Ok(None),
        };
        Ok(Some(self.held(name)))
    }

    /// Locks `path` shared, or returns `None` if it is locked exclusively.
    pub(crate) fn try_share(&self, path: &Path) -> std::io::Result<Option<Box<dyn FileLock>>> {
        let name = tree::components(path)?;
        match self.0.lock().entry(name.clone()) {
            Entry::Vacant(free) => drop(free.insert(1)),
            Entry::Occupied(held) if *held.get() == 0 => return Ok(None),
            Entry::Occupied(shared) => *shared.into_mut() += 1,
        }
        Ok(Some(self.held(name)))
    }

    fn held(&self, name: Name) -> Box<dyn FileLock> {
        Box::new(Held { name, locks: self.clone() })
    }
}

#[derive(Debug)]
struct Held {
    name: Name,
    locks: Locks,
}

impl FileLock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        let mut locks = self.locks.0.lock();
        match locks.get_mut(&self.name) {
            Some(shared) if *shared > 1 => *shared -= 1,
            _ => drop(locks.remove(&self.name)),
        }
    }
}
