//! `Locks`: which files of an in-memory file system are locked.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use azekura_base::sync::Mutex;

use crate::fs::FileLock;
use crate::tree;

/// The locked files, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks(Arc<Mutex<BTreeSet<Vec<Arc<str>>>>>);

impl Locks {
    /// Locks `path`, or returns `None` if somebody has.
    pub(crate) fn try_lock(&self, path: &Path) -> std::io::Result<Option<Box<dyn FileLock>>> {
        let name = tree::components(path)?;
        if !self.0.lock().insert(name.clone()) {
            return Ok(None);
        }
        Ok(Some(Box::new(Held { name, locks: self.clone() })))
    }
}

#[derive(Debug)]
struct Held {
    name: Vec<Arc<str>>,
    locks: Locks,
}

impl FileLock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        self.locks.0.lock().remove(&self.name);
    }
}
