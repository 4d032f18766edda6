//! Bytes of an archive: files `log-LSN.azk`, each a header and numbered blocks with checksums.
//!
//! | part | bytes (little endian) |
//! |---|---|
//! | header | magic (8), version (4), zero (4), numbers, CRC-32C (4); then, if encrypted, the key |
//! | key | wrapped data key (80), its CRC-32C (4) |
//! | numbers | file id, database id, first LSN, horizon, position (8 each) |
//! | position | first LSN of a run of the store, and an LSN of this run (8 each) |
//! | block | as in a backup: kind 1, length, sequence number, checksums; payload |
//! | payload | last LSN, horizon, position (varints); records: LSN, length of the body (varints), body |
//!
//! The name has the first LSN in 16 hexadecimal digits. A block has all archived records above the last LSN
//! of the previous block, up to the block's last LSN. All commits up to a block's horizon are in that block
//! or in earlier ones. The position of a header is that before the first LSN, and the position of a block is
//! that of its last LSN. A block has no records of two runs. Files of an encrypted store have version 4, and
//! each payload is encrypted, with the cipher's trailer at its end.
//!
//! The file `end.azk` has magic (8), version (4), zero (4), database id, next LSN, horizon (8 each), CRC-32C
//! (4): the archive had all records below the next LSN, and all commits up to the horizon. It is written
//! after each sync of a file, and not synced: after a power loss it may have an earlier end. The file
//! `archive.lock` is empty.

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::bytes::{u32_at, u64_at};
use azekura_base::checksum::crc32c;
use azekura_base::cipher::{Kind, TRAILER_BYTES, associated};
use azekura_base::varint::{put_u64, take_bytes, take_u64};
use azekura_base::{Cipher, Lsn};
use azekura_io::{File, Fs};

use crate::Error;
use crate::backup::Sequential;
use crate::backup::format::{BLOCK_HEADER_BYTES, block_header, header_crc, payload_crc};
use crate::encryption::WRAPPED_BYTES;
use crate::timeline::Position;

const MAGIC: [u8; 8] = *b"AZKLOG\r\n";
const VERSION: u32 = 3;
/// Format version of the files of an encrypted store.
const ENCRYPTED_VERSION: u32 = 4;
const HEADER_BYTES: usize = 68;
const BLOCK_KIND: u32 = 1;

pub(super) fn file_name(first_lsn: Lsn) -> String {
    format!("log-{:016x}.azk", first_lsn.0)
}

/// Returns the first LSNs and names of the archive's files, in ascending order.
pub(super) fn file_names(fs: &dyn Fs, dir: &Path) -> Result<Vec<(Lsn, String)>, Error> {
    let names = fs.list_dir(dir).map_err(|e| Error::io("list", dir, e))?;
    let first_lsn = |name: &str| {
        let digits = name.strip_prefix("log-")?.strip_suffix(".azk").filter(|digits| digits.len() == 16)?;
        u64::from_str_radix(digits, 16).ok().map(Lsn)
    };
    let mut found: Vec<_> = names.into_iter().filter_map(|name| Some((first_lsn(&name)?, name))).collect();
    found.sort_unstable();
    Ok(found)
}

#[derive(Clone, Debug)]
pub(super) struct FileHeader {
    pub(super) id: u64,
    pub(super) database_id: u64,
    pub(super) first_lsn: Lsn,
    pub(super) horizon: u64,
    /// The position before the first LSN.
    pub(super) position: Position,
    /// The wrapped data key of an encrypted file; otherwise empty.
    pub(super) wrapped_key: Vec<u8>,
}

impl FileHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let version = if self.wrapped_key.is_empty() { VERSION } else { ENCRYPTED_VERSION };
        let mut out = MAGIC.to_vec();
        out.extend(version.to_le_bytes());
        out.extend([0; 4]);
        let Position { run, lsn } = self.position;
        for number in [self.id, self.database_id, self.first_lsn.0, self.horizon, run.0, lsn.0] {
            out.extend(number.to_le_bytes());
        }
        out.extend(crc32c(&out).to_le_bytes());
        if version == ENCRYPTED_VERSION {
            out.extend(&self.wrapped_key);
            out.extend(crc32c(&self.wrapped_key).to_le_bytes());
        }
        out
    }
}

/// Returns the associated data for the encryption of a block.
fn associated_of(file_id: u64, sequence: u64) -> [u8; 17] {
    associated(Kind::Archive, &[file_id.to_le_bytes(), sequence.to_le_bytes()].concat())
}

/// Archived records, and the LSN and horizon that the archive reaches with them.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) to: Lsn,
    pub(super) horizon: u64,
    /// The position of `to`.
    pub(super) position: Position,
    /// The records, each as LSN and length-prefixed body.
    pub(super) records: Vec<u8>,
}

impl Block {
    /// Returns the bytes of the block, encrypted if there is a cipher.
    pub(super) fn encode(
        &self,
        file_id: u64,
        sequence: u64,
        cipher: Option<&dyn Cipher>,
    ) -> io::Result<Vec<u8>> {
        let mut payload = Vec::with_capacity(self.records.len() + 40);
        let Position { run, lsn } = self.position;
        for number in [self.to.0, self.horizon, run.0, lsn.0] {
            put_u64(&mut payload, number);
        }
        payload.extend_from_slice(&self.records);
        if let Some(cipher) = cipher {
            payload.resize(payload.len() + TRAILER_BYTES, 0);
            cipher.seal(&associated_of(file_id, sequence), &mut payload)?;
        }
        let mut out = block_header(file_id, BLOCK_KIND, sequence, &payload).to_vec();
        out.extend(payload);
        Ok(out)
    }

    /// Returns the records in order; `None` for a record that cannot be decoded.
    pub(super) fn records(&self) -> impl Iterator<Item = Option<(Lsn, &[u8])>> {
        let mut rest = &self.records[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let record = take_u64(&mut rest).and_then(|lsn| Some((Lsn(lsn), take_bytes(&mut rest)?)));
            if record.is_none() {
                rest = &[];
            }
            Some(record)
        })
    }
}

/// A reader of an archive file, which checks each byte.
pub(super) struct LogReader {
    input: BufReader<Sequential>,
    path: PathBuf,
    pub(super) header: FileHeader,
    pub(super) sequence: u64,
    /// Offset of the end of the last complete block.
    pub(super) offset: u64,
    cipher: Option<Arc<dyn Cipher>>,
}

impl LogReader {
    /// Reads the header; `None` if the file is shorter than a header, or has only the bytes of a header and
    /// all of them are zero. Blocks are written after the header is durable, so neither file has blocks.
    pub(super) fn open(file: Arc<dyn File>, path: &Path) -> Result<Option<Self>, Error> {
        let len = file.len().map_err(|e| Error::io("read", path, e))?;
        let mut input = BufReader::with_capacity(256 << 10, Sequential { file, at: 0 });
        let mut bytes = [0; HEADER_BYTES];
        match input.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read.map_err(|e| Error::io("read", path, e))?,
        }
        if bytes == [0; HEADER_BYTES] && len <= (HEADER_BYTES + WRAPPED_BYTES + 4) as u64 {
            return Ok(None);
        }
        let word = |at| u32_at(&bytes, at);
        let long = |at| u64_at(&bytes, at);
        let corrupt = |reason: &str| Error::Corrupt { path: path.into(), offset: 0, reason: reason.into() };
        if bytes[..8] != MAGIC {
            return Err(corrupt("it does not begin with the magic bytes of an archive's file"));
        }
        // Checked before the checksum, because the headers of other versions may have another size.
        if ![VERSION, ENCRYPTED_VERSION].contains(&word(8)) {
            let (path, found, supported) = (path.into(), word(8), VERSION);
            return Err(Error::UnsupportedFormat { path, found, supported });
        }
        if word(HEADER_BYTES - 4) != crc32c(&bytes[..HEADER_BYTES - 4]) {
            return Err(corrupt("the header has a wrong checksum"));
        }
        let mut header = FileHeader {
            id: long(16),
            database_id: long(24),
            first_lsn: Lsn(long(32)),
            horizon: long(40),
            position: Position { run: Lsn(long(48)), lsn: Lsn(long(56)) },
            wrapped_key: Vec::new(),
        };
        let mut offset = HEADER_BYTES as u64;
        if word(8) == ENCRYPTED_VERSION {
            let mut key = [0; WRAPPED_BYTES + 4];
            match input.read_exact(&mut key) {
                // A crash occurred before the header was written.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                read => read.map_err(|e| Error::io("read", path, e))?,
            }
            let (wrapped, crc) = key.split_at(WRAPPED_BYTES);
            if crc != crc32c(wrapped).to_le_bytes() {
                return Err(corrupt("the wrapped key in the header has a wrong checksum"));
            }
            header.wrapped_key = wrapped.to_vec();
            offset += key.len() as u64;
        }
        if !(1..u64::MAX / 2).contains(&header.first_lsn.0) {
            return Err(corrupt("the header has an impossible LSN"));
        }
        Ok(Some(Self { input, path: path.into(), header, sequence: 0, offset, cipher: None }))
    }

    /// Decrypts the blocks, if there is a cipher.
    pub(super) fn decrypt_with(&mut self, cipher: Option<Arc<dyn Cipher>>) {
        self.cipher = cipher;
    }

    fn corrupt(&self, reason: &str) -> Error {
        Error::Corrupt { path: self.path.clone(), offset: self.offset, reason: reason.into() }
    }

    /// Reads the next block; `None` if the file ends here, or inside the block.
    pub(super) fn next_block(&mut self) -> Result<Option<Block>, Error> {
        let mut head = [0; BLOCK_HEADER_BYTES];
        if !self.fill(&mut head)? {
            return Ok(None);
        }
        let word = |at| u32_at(&head, at);
        let long = |at| u64_at(&head, at);
        // The checksum is verified before the length is used.
        if word(24) != header_crc(self.header.id, &head) {
            return Err(self.corrupt("a block header has a wrong checksum"));
        }
        if (word(0), long(12)) != (BLOCK_KIND, self.sequence) {
            return Err(self.corrupt("a block has a wrong kind or sequence number"));
        }
        let mut payload = Vec::new();
        let read = (&mut self.input).take(long(4)).read_to_end(&mut payload);
        read.map_err(|e| Error::io("read", &self.path, e))?;
        if payload.len() as u64 != long(4) {
            return Ok(None);
        }
        if word(20) != payload_crc(self.header.id, &payload) {
            return Err(self.corrupt("a block has a wrong checksum"));
        }
        let bytes = payload.len();
        if let Some(cipher) = &self.cipher {
            let opened = cipher.open(&associated_of(self.header.id, self.sequence), &mut payload);
            opened.map_err(|_| self.corrupt("a block cannot be decrypted"))?;
            payload.truncate(bytes - TRAILER_BYTES);
        }
        let input = &mut &payload[..];
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = take_u64(input).ok_or_else(|| self.corrupt("a block cannot be decoded"))?;
        }
        let [to, horizon, run, lsn] = numbers;
        if to >= u64::MAX / 2 {
            return Err(self.corrupt("a block has an impossible LSN"));
        }
        let position = Position { run: Lsn(run), lsn: Lsn(lsn) };
        let block = Block { to: Lsn(to), horizon, position, records: input.to_vec() };
        self.sequence += 1;
        self.offset += (BLOCK_HEADER_BYTES + bytes) as u64;
        Ok(Some(block))
    }

    /// Fills the buffer; returns `false` if the file ends before.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, Error> {
        match self.input.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| true).map_err(|e| Error::io("read", &self.path, e)),
        }
    }
}
