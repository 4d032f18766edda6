//! `Run`: sorted rows in a file, written once and read once.
//!
//! A run is a sequence of blocks. A block has its length (4 bytes, little-endian), a CRC-32C (4), and whole
//! rows. The CRC covers the random number of the run, the offset of the block, and the rows, so a block of
//! another run, or of another place, is refused. A row has the lengths of key and value (4 and 4), the key,
//! and the value. In an encrypted store the rows are encrypted, and the cipher's trailer follows them; length
//! and checksum cover both.

use std::path::PathBuf;
use std::sync::Arc;

use azekura_base::Cipher;
use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_base::cipher::{Kind, TRAILER_BYTES, associated};
use azekura_base::sync::random;
use azekura_io::{File, Fs, OpenOptions};

use super::RunFiles;
use crate::Error;
use crate::opener::Opener;

const HEAD_BYTES: usize = 8;

/// The file of a run; dropping it removes the file.
#[derive(Debug)]
struct RunFile {
    fs: Arc<dyn Fs>,
    file: Arc<dyn File>,
    path: PathBuf,
    cipher: Option<Arc<dyn Cipher>>,
    /// Random number of the run.
    id: u64,
    opener: Opener,
}

impl RunFile {
    /// Returns the bytes that identify the block at this offset, for its checksum and its encryption.
    fn associated(&self, offset: u64) -> [u8; 17] {
        associated(Kind::Run, &[self.id.to_le_bytes(), offset.to_le_bytes()].concat())
    }

    /// Returns the checksum of the block at this offset.
    fn checksum(&self, offset: u64, rows: &[u8]) -> u32 {
        crc32c_append(crc32c(&self.associated(offset)), rows)
    }

    fn damaged(&self, offset: u64, reason: &str) -> Error {
        Error::Corrupt { path: self.path.clone(), offset, reason: reason.into() }
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        // In a forked child the file belongs to the parent.
        if self.opener.check().is_ok() {
            // A file that cannot be removed here is removed at the next opening of the store.
            let _ = self.fs.remove_file(&self.path);
        }
    }
}

/// A run that is being written.
#[derive(Debug)]
pub(super) struct RunWriter {
    file: RunFile,
    /// The block being filled, after space for its header.
    block: Vec<u8>,
    block_bytes: usize,
    len: u64,
}

impl RunWriter {
    pub(super) fn create(files: &RunFiles, path: PathBuf) -> Result<Self, Error> {
        let opened = files.fs.open(&path, OpenOptions::new().create_new(true));
        let file = opened.map_err(|error| Error::io("create", &path, error))?;
        let (fs, cipher, opener) = (Arc::clone(&files.fs), files.cipher.clone(), files.opener);
        let file = RunFile { fs, file, path, cipher, id: random(), opener };
        Ok(Self { file, block: vec![0; HEAD_BYTES], block_bytes: files.block_bytes, len: 0 })
    }

    pub(super) fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        for len in [key.len(), value.len()] {
            self.block.extend_from_slice(&(len as u32).to_le_bytes());
        }
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        if self.block.len() >= self.block_bytes { self.write_block() } else { Ok(()) }
    }

    fn write_block(&mut self) -> Result<(), Error> {
        if let Some(cipher) = &self.file.cipher {
            self.block.resize(self.block.len() + TRAILER_BYTES, 0);
            let sealed = cipher.seal(&self.file.associated(self.len), &mut self.block[HEAD_BYTES..]);
            sealed.map_err(|error| Error::io("encrypt a block of", &self.file.path, error))?;
        }
        let (head, rows) = self.block.split_at_mut(HEAD_BYTES);
        head[..4].copy_from_slice(&(rows.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&self.file.checksum(self.len, rows).to_le_bytes());
        let written = self.file.file.write_at(self.len, &self.block);
        written.map_err(|error| Error::io("write", &self.file.path, error))?;
        self.len += self.block.len() as u64;
        self.block.truncate(HEAD_BYTES);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Run, Error> {
        if self.block.len() > HEAD_BYTES {
            self.write_block()?;
        }
        Ok(Run { file: self.file, len: self.len })
    }
}

/// A complete run.
#[derive(Debug)]
pub(super) struct Run {
    file: RunFile,
    len: u64,
}

/// A reader of a run, row by row.
#[derive(Debug)]
pub(super) struct RunReader {
    run: Run,
    /// Bytes of the file read so far.
    offset: u64,
    /// The rows of the current block.
    block: Vec<u8>,
    /// Position of the current row's key in the block.
    key: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
    next: usize,
}

impl RunReader {
    pub(super) const fn new(run: Run) -> Self {
        Self { run, offset: 0, block: Vec::new(), key: 0..0, value: 0..0, next: 0 }
    }

    /// Moves to the next row; returns `false` at the end.
    pub(super) fn advance(&mut self) -> Result<bool, Error> {
        if self.next == self.block.len() && !self.read_block()? {
            return Ok(false);
        }
        let length = |at: usize| {
            let bytes = self.block.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map(|bytes| u32::from_le_bytes(*bytes) as usize)
        };
        let (Some(key_len), Some(value_len)) = (length(self.next), length(self.next + 4)) else {
            return Err(self.run.file.damaged(self.offset, "a row of a sorted run is cut off"));
        };
        self.key = self.next + 8..self.next + 8 + key_len;
        self.value = self.key.end..self.key.end + value_len;
        self.next = self.value.end;
        if self.next > self.block.len() {
            return Err(self.run.file.damaged(self.offset, "a row of a sorted run is cut off"));
        }
        Ok(true)
    }

    fn read_block(&mut self) -> Result<bool, Error> {
        if self.offset == self.run.len {
            return Ok(false);
        }
        let (at, mut head) = (self.offset, [0; HEAD_BYTES]);
        self.read(&mut head)?;
        let [len, crc] = [&head[..4], &head[4..]].map(|bytes| bytes.try_into().map_or(0, u32::from_le_bytes));
        if u64::from(len) > self.run.len - self.offset {
            return Err(self.run.file.damaged(self.offset, "a block of a sorted run is cut off"));
        }
        let mut block = std::mem::take(&mut self.block);
        block.resize(len as usize, 0);
        self.read(&mut block)?;
        self.block = block;
        self.next = 0;
        if self.run.file.checksum(at, &self.block) != crc {
            return Err(self.run.file.damaged(self.offset, "a block of a sorted run fails its checksum"));
        }
        let file = &self.run.file;
        if let Some(cipher) = &file.cipher {
            let rows = self.block.len().checked_sub(TRAILER_BYTES);
            let opened = cipher.open(&file.associated(at), &mut self.block);
            match rows.filter(|_| opened.is_ok()) {
                Some(rows) => self.block.truncate(rows),
                None => return Err(file.damaged(at, "a block of a sorted run cannot be decrypted")),
            }
        }
        Ok(true)
    }

    fn read(&mut self, out: &mut [u8]) -> Result<(), Error> {
        let file = &self.run.file;
        let read = file.file.read_at(self.offset, out).map_err(|e| Error::io("read", &file.path, e))?;
        if read < out.len() {
            return Err(file.damaged(self.offset, "a sorted run is cut off"));
        }
        self.offset += read as u64;
        Ok(())
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.block[self.key.clone()]
    }

    pub(super) fn value(&self) -> &[u8] {
        &self.block[self.value.clone()]
    }
}
