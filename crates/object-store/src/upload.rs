//! The writer of an object: uploads parts while the next one fills.

use std::io::{self, Write};
use std::mem;

use object_store::{MultipartUpload, ObjectStoreExt, PutMode, PutPayload, Result};
use tokio::task::JoinSet;

use crate::error::one_line;
use crate::{BackupObject, Error};

/// Maximum of parts that are uploaded at a time. With two, the connection is not idle between parts.
const IN_FLIGHT: usize = 2;
/// Part from which on the part size doubles every [`DOUBLING_PARTS`] parts, in case the estimate of the
/// backup's size was much too low. S3 accepts 10,000 parts.
const GROWING_PART: u64 = 9_000;
const DOUBLING_PARTS: u64 = 100;

/// An object that is being uploaded. Only [`finish`](Self::finish) makes it visible (OBJECT-1).
pub(crate) struct Upload<'a> {
    object: &'a BackupObject,
    /// Bytes of the next part.
    buffer: Vec<u8>,
    part_bytes: usize,
    /// Number of parts sent so far.
    parts: u64,
    multipart: Option<Box<dyn MultipartUpload>>,
    in_flight: JoinSet<Result<()>>,
    /// Error of the request that made a write fail.
    pub(crate) failure: Option<object_store::Error>,
}

impl<'a> Upload<'a> {
    pub(crate) fn new(object: &'a BackupObject, part_bytes: usize) -> Self {
        let in_flight = JoinSet::new();
        Self { object, buffer: Vec::new(), part_bytes, parts: 0, multipart: None, in_flight, failure: None }
    }

    /// Waits until fewer than `limit` parts are being uploaded.
    fn wait(&mut self, limit: usize) -> Result<()> {
        while self.in_flight.len() >= limit.max(1) {
            if let Some(done) = self.object.runtime.block_on(self.in_flight.join_next()) {
                done??;
            }
        }
        Ok(())
    }

    /// Begins to upload the bytes in the buffer as a part.
    fn send(&mut self) -> Result<()> {
        self.wait(IN_FLIGHT)?;
        let runtime = &self.object.runtime;
        let multipart = match &mut self.multipart {
            Some(multipart) => multipart,
            none => none.insert(runtime.block_on(self.object.store.put_multipart(&self.object.path))?),
        };
        let part = multipart.put_part(PutPayload::from(mem::take(&mut self.buffer)));
        self.in_flight.spawn_on(part, runtime.handle());
        self.parts += 1;
        Ok(())
    }

    fn next_part_bytes(&self) -> usize {
        let doublings = self.parts.saturating_sub(GROWING_PART) / DOUBLING_PARTS;
        self.part_bytes.saturating_mul(1 << doublings.min(16))
    }

    /// Uploads the rest and makes the object visible.
    pub(crate) fn finish(&mut self) -> std::result::Result<(), Error> {
        self.try_finish().map_err(|error| self.object.error("write", error))
    }

    fn try_finish(&mut self) -> Result<()> {
        let BackupObject { store, path, runtime, .. } = self.object;
        if self.multipart.is_none() {
            let whole = PutPayload::from(mem::take(&mut self.buffer));
            return runtime.block_on(store.put_opts(path, whole, PutMode::Create.into())).map(drop);
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        self.wait(1)?;
        match &mut self.multipart {
            Some(multipart) => runtime.block_on(multipart.complete()).map(drop),
            None => Ok(()),
        }
    }

    /// Requests that the object store drops the parts.
    pub(crate) fn abort(&mut self) {
        let runtime = &self.object.runtime;
        runtime.block_on(self.in_flight.shutdown());
        if let Some(mut multipart) = self.multipart.take() {
            // Errors are ignored: parts without an object are not a backup, and a rule of the bucket removes
            // them.
            let _ = runtime.block_on(multipart.abort());
        }
    }
}

impl Write for Upload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(self.next_part_bytes());
        }
        let taken = bytes.len().min(self.next_part_bytes() - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == self.next_part_bytes()
            && let Err(error) = self.send()
        {
            let text = one_line(&error);
            self.failure = Some(error);
            return Err(io::Error::other(text));
        }
        Ok(taken)
    }

    /// Does nothing: a backup flushes only at its end, and [`Upload::finish`] follows.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
