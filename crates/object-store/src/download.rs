//! The reader of an object: reads ranges, one of them ahead.

use std::io::{self, Read};

use object_store::{GetOptions, GetRange, ObjectMeta, Result};
use tokio::task::JoinHandle;

use crate::BackupObject;
use crate::error::one_line;

/// Size of a range in bytes. Each range is a separate request, which the object store's client repeats if it
/// fails.
const RANGE_BYTES: u64 = 8 << 20;

/// Reads an object from its start to its end. Fails if the object is replaced meanwhile.
pub struct ObjectReader {
    object: BackupObject,
    meta: ObjectMeta,
    /// End of the last requested range.
    requested: u64,
    ahead: Option<JoinHandle<Result<Vec<u8>>>>,
    range: Vec<u8>,
    /// Number of bytes of `range` that were read.
    at: usize,
}

impl std::fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectReader").field("object", &self.object).finish_non_exhaustive()
    }
}

impl ObjectReader {
    pub(crate) fn new(object: BackupObject, meta: ObjectMeta) -> Self {
        let mut reader = Self { object, meta, requested: 0, ahead: None, range: Vec::new(), at: 0 };
        reader.request();
        reader
    }

    /// Begins to fetch the next range, if there is one.
    fn request(&mut self) {
        let range = self.requested..self.meta.size.min(self.requested + RANGE_BYTES);
        self.ahead = None;
        if range.is_empty() {
            return;
        }
        self.requested = range.end;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: self.meta.e_tag.clone(),
            ..GetOptions::default()
        };
        let (store, path) = (self.object.store.clone(), self.object.path.clone());
        self.ahead = Some(self.object.runtime.spawn(async move {
            let bytes = store.get_opts(&path, options).await?.bytes().await?;
            Ok(bytes.into())
        }));
    }

    /// Waits for the next range. `range` is empty at the end of the object.
    fn advance(&mut self) -> io::Result<()> {
        (self.range, self.at) = (Vec::new(), 0);
        let Some(ahead) = self.ahead.take() else { return Ok(()) };
        let end = self.requested;
        let read = self.object.runtime.block_on(ahead).map_err(io::Error::other)?;
        self.range = read.map_err(|error| io::Error::other(one_line(&error)))?;
        let wanted = end - (end - 1) / RANGE_BYTES * RANGE_BYTES;
        if self.range.len() as u64 != wanted {
            return Err(io::ErrorKind::UnexpectedEof.into()); // the object is shorter than its size
        }
        self.request();
        Ok(())
    }
}

impl Read for ObjectReader {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.at == self.range.len() {
            self.advance()?;
        }
        let read = bytes.len().min(self.range.len() - self.at);
        bytes[..read].copy_from_slice(&self.range[self.at..self.at + read]);
        self.at += read;
        Ok(read)
    }
}

impl Drop for ObjectReader {
    fn drop(&mut self) {
        if let Some(ahead) = &self.ahead {
            ahead.abort();
        }
    }
}
