//! `SlotHandle`: a handle of the double-write area, opened by its first write.
//!
//! Each slot is written through a separate handle, so that the kernel reports a lost write to the call that
//! made it. A store with few writes uses few slots, and so few descriptors. All reads use one shared handle.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use azekura_io::{File, Fs};

use super::{OpenFile, PageAccess};
use crate::store::StoreError;

#[derive(Debug)]
pub(super) struct SlotHandle {
    fs: Arc<dyn Fs>,
    path: Arc<Path>,
    /// The shared handle for reads.
    shared: Arc<dyn File>,
    own: OnceLock<Arc<dyn File>>,
}

impl SlotHandle {
    /// Returns handles for `slots` slots of the area `place`. The first slot uses the handle of `place`.
    pub(super) fn places(fs: &Arc<dyn Fs>, place: OpenFile, slots: usize) -> Vec<OpenFile> {
        let handle = |_| {
            let (fs, path, shared) = (Arc::clone(fs), Arc::clone(&place.path), Arc::clone(&place.file));
            let file = Arc::new(Self { fs, path, shared, own: OnceLock::new() });
            OpenFile { file, path: Arc::clone(&place.path) }
        };
        let others: Vec<_> = (1..slots).map(handle).collect();
        [place].into_iter().chain(others).collect()
    }

    fn own(&self) -> io::Result<&Arc<dyn File>> {
        if let Some(file) = self.own.get() {
            return Ok(file);
        }
        let opened =
            OpenFile::open(&*self.fs, &self.path, false, PageAccess::Direct).map_err(
                |error| match error {
                    StoreError::Io { source, .. } => io::Error::new(source.kind(), source.to_string()),
                    other => io::Error::other(other),
                },
            )?;
        Ok(self.own.get_or_init(|| opened.file))
    }
}

impl File for SlotHandle {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.shared.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.own()?.write_at(offset, buf)
    }

    fn write_at_sync(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.own()?.write_at_sync(offset, buf)
    }

    fn sync(&self) -> io::Result<()> {
        self.own()?.sync()
    }

    /// Returns the length. Opens the handle if necessary, so that a failure to open is distinguished from a
    /// failed write.
    fn len(&self) -> io::Result<u64> {
        self.own()?.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.own()?.set_len(len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> io::Result<()> {
        self.own()?.write_zeroes(offset, len)
    }

    fn alignment(&self) -> usize {
        self.shared.alignment()
    }
}
