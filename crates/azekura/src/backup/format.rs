//! Bytes of a backup: a header, then numbered blocks, each with checksums.
//!
//! | part | bytes (little endian) |
//! |---|---|
//! | header | magic (8), version (4), page size (4), backup id (8), ms since 1970 (8), numbers, CRC-32C (4) |
//! | numbers | database id, commit time, LSN, id of the base, end (8 each) |
//! | end | first LSN of a run of the store, and an LSN of this run (8 each) |
//! | block | kind (4), length (8), sequence number (8), CRC of the payload (4), CRC of these (4); payload |
//!
//! Both checksums of a block cover the backup id, and the sequence numbers have no gap. So a block of another
//! backup, a lost block and a repeated one are detected. The last block has kind *end*, and no bytes may
//! follow it. The backup of an encrypted store has version 5. Its first block has kind *key* and the key
//! record; the payloads of all others are encrypted, with the cipher's trailer at their end.
//!
//! A block of rows may end inside the value of its last row, of which the row has the whole length. The
//! following blocks of kind *piece* have the rest of the value, and no other row.
//!
//! The headers of versions 2 and 3 (encrypted) lack the end, and each value is in one block. Otherwise these
//! versions are the same as 4 and 5.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use azekura_base::bytes::{u32_at, u64_at};
use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_base::cipher::{self, TRAILER_BYTES, associated};
use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u64};
use azekura_base::{Cipher, Lsn, TreeId};

use crate::Error;
use crate::catalog::{TableInfo, TableTypes};
use crate::encryption::{KeySource, unlock};
use crate::timeline::Position;

const MAGIC: [u8; 8] = *b"AZKBACK\n";
const VERSION: u32 = 4;
/// Format version of the backup of an encrypted store.
const ENCRYPTED_VERSION: u32 = 5;
/// Format versions without the end.
const OLD_VERSION: u32 = 2;
const OLD_ENCRYPTED_VERSION: u32 = 3;
/// Kind of the block that holds the key record.
const KEY_KIND: u32 = 6;
const HEADER_BYTES: usize = 84;
/// Size of the header in versions without the end.
const OLD_HEADER_BYTES: usize = 68;
pub(crate) const BLOCK_HEADER_BYTES: usize = 28;
/// Size of a block of rows. A block is large enough for few writes and fits in a CPU cache.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// Header of a backup.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Header {
    pub(crate) page_size: u32,
    pub(crate) id: u64,
    pub(crate) time_ms: u64,
    pub(crate) database_id: u64,
    /// The backup has exactly the commits up to this time, in microseconds since 1970; 0 if the store has no
    /// archive.
    pub(crate) commit_time: u64,
    /// An LSN below all changes that the backup lacks.
    pub(crate) lsn: u64,
    /// A position at or above all changes in the backup (BACKUP-6); `None` in backups of old versions.
    pub(crate) end: Option<Position>,
    /// Id of the backup on which this incremental one is based; 0 for a full backup.
    pub(crate) base_id: u64,
}

impl Header {
    fn encode(self, version: u32) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(version.to_le_bytes());
        out.extend(self.page_size.to_le_bytes());
        out.extend(self.id.to_le_bytes());
        let (run, end) = self.end.map_or((0, 0), |end| (end.run.0, end.lsn.0));
        for number in [self.time_ms, self.database_id, self.commit_time, self.lsn, self.base_id, run, end] {
            out.extend(number.to_le_bytes());
        }
        out.extend(crc32c(&out).to_le_bytes());
        out
    }
}

/// A range of keys for which an incremental backup keeps the rows of its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// First key of the range (inclusive).
    pub(crate) from: Vec<u8>,
    /// End of the range (exclusive); `None` is the end of the table.
    pub(crate) to: Option<Vec<u8>>,
}

/// One block, decoded.
#[derive(Debug)]
pub(crate) enum Block {
    /// Begins a table: the following rows belong to it. The tree is that of the source store.
    Table(TableInfo, TreeId),
    /// Rows of the table, each as length-prefixed key and value.
    Rows(Vec<u8>),
    /// The next bytes of the value of the last row.
    Piece(Vec<u8>),
    /// The rows of the base in this range.
    Kept(Kept),
    /// End of a table: the number of its rows, and CRC-32C of their encodings.
    TableEnd { rows: u64, digest: u32 },
    /// End of the backup: the total number of tables and rows.
    End { tables: u64, rows: u64 },
}

impl Block {
    const fn kind(&self) -> u32 {
        match self {
            Self::Table(..) => 1,
            Self::Rows(_) => 2,
            Self::TableEnd { .. } => 3,
            Self::End { .. } => 4,
            Self::Kept(_) => 5,
            Self::Piece(_) => 7,
        }
    }

    fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Table(TableInfo { name, types }, tree) => {
                put_bytes(&mut out, name.as_bytes());
                put_bytes(&mut out, types.key.as_bytes());
                put_bytes(&mut out, types.value.as_bytes());
                put_u64(&mut out, u64::from(types.codec));
                put_u64(&mut out, u64::from(tree.0));
            }
            Self::Rows(bytes) | Self::Piece(bytes) => out.extend_from_slice(bytes),
            Self::Kept(Kept { from, to }) => {
                put_bytes(&mut out, from);
                put_u64(&mut out, u64::from(to.is_some()));
                put_bytes(&mut out, to.as_deref().unwrap_or_default());
            }
            Self::TableEnd { rows, digest } => {
                put_u64(&mut out, *rows);
                put_u64(&mut out, u64::from(*digest));
            }
            Self::End { tables, rows } => {
                put_u64(&mut out, *tables);
                put_u64(&mut out, *rows);
            }
        }
        out
    }

    fn decode(kind: u32, payload: Vec<u8>) -> Option<Self> {
        match kind {
            2 => return Some(Self::Rows(payload)),
            7 => return Some(Self::Piece(payload)),
            _ => {}
        }
        let input = &mut &payload[..];
        let block = match kind {
            1 => {
                let mut text = || std::str::from_utf8(take_bytes(input)?).ok().map(str::to_owned);
                let (name, key, value) = (text()?, text()?, text()?);
                let codec = u32::try_from(take_u64(input)?).ok()?;
                let tree = TreeId(u32::try_from(take_u64(input)?).ok()?);
                Self::Table(TableInfo { name, types: TableTypes { key, value, codec } }, tree)
            }
            3 => Self::TableEnd { rows: take_u64(input)?, digest: u32::try_from(take_u64(input)?).ok()? },
            5 => {
                let (from, has_to, to) = (take_bytes(input)?, take_u64(input)?, take_bytes(input)?);
                Self::Kept(Kept { from: from.to_vec(), to: (has_to == 1).then(|| to.to_vec()) })
            }
            4 => Self::End { tables: take_u64(input)?, rows: take_u64(input)? },
            _ => return None,
        };
        input.is_empty().then_some(block)
    }
}

pub(crate) fn block_header(id: u64, kind: u32, sequence: u64, payload: &[u8]) -> [u8; BLOCK_HEADER_BYTES] {
    let mut out = [0; BLOCK_HEADER_BYTES];
    out[..4].copy_from_slice(&kind.to_le_bytes());
    out[4..12].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    out[12..20].copy_from_slice(&sequence.to_le_bytes());
    out[20..24].copy_from_slice(&payload_crc(id, payload).to_le_bytes());
    let crc = header_crc(id, &out);
    out[24..].copy_from_slice(&crc.to_le_bytes());
    out
}

pub(crate) fn header_crc(id: u64, header: &[u8; BLOCK_HEADER_BYTES]) -> u32 {
    crc32c_append(crc32c(&id.to_le_bytes()), &header[..24])
}

pub(crate) fn payload_crc(id: u64, payload: &[u8]) -> u32 {
    crc32c_append(crc32c(&id.to_le_bytes()), payload)
}

/// Returns the associated data for the encryption of a block.
fn associated_of(id: u64, kind: u32, sequence: u64) -> [u8; 21] {
    let place = [&id.to_le_bytes()[..], &kind.to_le_bytes(), &sequence.to_le_bytes()];
    associated(cipher::Kind::Backup, &place.concat())
}

/// A writer of a backup.
pub(crate) struct Writer<W> {
    out: W,
    path: PathBuf,
    id: u64,
    sequence: u64,
    pub(crate) bytes: u64,
    cipher: Option<Arc<dyn Cipher>>,
}

impl<W: Write> Writer<W> {
    /// Writes the header. For an encrypted store, `key` is the key record and the cipher.
    pub(crate) fn begin(
        out: W,
        path: &Path,
        header: Header,
        key: Option<(&[u8], Arc<dyn Cipher>)>,
    ) -> Result<Self, Error> {
        let path = path.to_path_buf();
        let mut writer = Self { out, path, id: header.id, sequence: 0, bytes: 0, cipher: None };
        writer.put(&header.encode(if key.is_some() { ENCRYPTED_VERSION } else { VERSION }))?;
        if let Some((record, cipher)) = key {
            writer.raw_block(KEY_KIND, record)?;
            writer.cipher = Some(cipher);
        }
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(|e| Error::io("write", &self.path, e))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes one block.
    pub(crate) fn block(&mut self, block: &Block) -> Result<(), Error> {
        if self.cipher.is_none()
            && let Block::Rows(bytes) | Block::Piece(bytes) = block
        {
            return self.raw_block(block.kind(), bytes); // without a copy
        }
        let mut payload = block.payload();
        if let Some(cipher) = &self.cipher {
            payload.resize(payload.len() + TRAILER_BYTES, 0);
            let sealed = cipher.seal(&associated_of(self.id, block.kind(), self.sequence), &mut payload);
            sealed.map_err(|e| Error::io("encrypt a block of", &self.path, e))?;
        }
        self.raw_block(block.kind(), &payload)
    }

    fn raw_block(&mut self, kind: u32, payload: &[u8]) -> Result<(), Error> {
        self.put(&block_header(self.id, kind, self.sequence, payload))?;
        self.put(payload)?;
        self.sequence += 1;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<W, Error> {
        self.out.flush().map_err(|e| Error::io("write", &self.path, e))?;
        Ok(self.out)
    }
}

/// A reader of a backup, which checks each byte.
pub(crate) struct Reader<R> {
    input: R,
    path: PathBuf,
    pub(crate) header: Header,
    sequence: u64,
    /// Number of bytes read so far.
    pub(crate) offset: u64,
    is_encrypted: bool,
    /// The caller's key, and the cipher of the blocks after the key block was read.
    key: Option<KeySource>,
    cipher: Option<Arc<dyn Cipher>>,
    /// The id of the caller's key, if the key block was decrypted with it.
    pub(crate) key_id: String,
    /// The cipher of another backup of the same store, which replaces the caller's key.
    store_cipher: Option<Arc<dyn Cipher>>,
}

impl<R: Read> Reader<R> {
    /// Reads the header. The blocks of an encrypted backup need its key.
    pub(crate) fn open(input: R, path: &Path, key: Option<&KeySource>) -> Result<Self, Error> {
        let header = Header::default();
        let mut reader = Self {
            input,
            path: path.to_path_buf(),
            header,
            sequence: 0,
            offset: 0,
            is_encrypted: false,
            key: key.cloned(),
            cipher: None,
            key_id: String::new(),
            store_cipher: None,
        };
        let not_a_backup =
            |reason: &str| Error::NotABackup { path: path.to_path_buf(), reason: reason.into() };
        let mut bytes = reader.fixed::<OLD_HEADER_BYTES>()?.to_vec();
        if bytes[..8] != MAGIC {
            return Err(not_a_backup("is not a backup: it does not begin with the magic bytes of one"));
        }
        let is_old = u32_at(&bytes, 8) < VERSION;
        if !is_old {
            bytes.extend(reader.fixed::<{ HEADER_BYTES - OLD_HEADER_BYTES }>()?);
        }
        let word = |at| u32_at(&bytes, at);
        let long = |at| u64_at(&bytes, at);
        let content = bytes.len() - 4;
        if word(content) != crc32c(&bytes[..content]) {
            return Err(reader.corrupt(0, "the header has a wrong checksum"));
        }
        if !(OLD_VERSION..=ENCRYPTED_VERSION).contains(&word(8)) {
            let (path, found, supported) = (path.to_path_buf(), word(8), VERSION);
            return Err(Error::UnsupportedFormat { path, found, supported });
        }
        reader.is_encrypted = [ENCRYPTED_VERSION, OLD_ENCRYPTED_VERSION].contains(&word(8));
        reader.header = Header {
            page_size: word(12),
            id: long(16),
            time_ms: long(24),
            database_id: long(32),
            commit_time: long(40),
            lsn: long(48),
            base_id: long(56),
            end: (!is_old).then(|| Position { run: Lsn(long(64)), lsn: Lsn(long(72)) }),
        };
        Ok(reader)
    }

    pub(crate) fn corrupt(&self, offset: u64, reason: impl Into<String>) -> Error {
        Error::Corrupt { path: self.path.clone(), offset, reason: reason.into() }
    }

    fn io(&self, source: io::Error) -> Error {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            return self.corrupt(self.offset, "the backup ends before its end block; it is truncated");
        }
        Error::io("read", &self.path, source)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).map_err(|e| self.io(e))?;
        self.offset += N as u64;
        Ok(bytes)
    }

    /// Reads the next block. The caller reads none after the end block.
    pub(crate) fn block(&mut self) -> Result<Block, Error> {
        self.unlock()?;
        let at = self.offset;
        let sequence = self.sequence;
        let (kind, mut payload) = self.raw_block()?;
        if let Some(cipher) = &self.cipher {
            let opened = cipher.open(&associated_of(self.header.id, kind, sequence), &mut payload);
            opened.map_err(|_| self.corrupt(at, "a block cannot be decrypted"))?;
            payload.truncate(payload.len() - TRAILER_BYTES);
        }
        Block::decode(kind, payload).ok_or_else(|| self.corrupt(at, "a block cannot be decoded"))
    }

    /// Reads the data key of an encrypted backup, unless it has been read already.
    pub(crate) fn unlock(&mut self) -> Result<(), Error> {
        if !self.is_encrypted || self.cipher.is_some() {
            return Ok(());
        }
        let at = self.offset;
        let (kind, record) = self.raw_block()?;
        if kind != KEY_KIND || record.is_empty() {
            return Err(self.corrupt(at, "the first block has no data key"));
        }
        self.cipher = match &self.store_cipher {
            Some(cipher) => Some(Arc::clone(cipher)),
            None => unlock(&self.path, &record, self.key.as_ref())?.map(|keys| {
                self.key_id = keys.caller.lock().id().to_owned();
                keys.cipher
            }),
        };
        Ok(())
    }

    /// Returns the cipher of the store from which the backup was made, if it is known.
    pub(crate) fn store_cipher(&self) -> Option<Arc<dyn Cipher>> {
        self.cipher.clone().or_else(|| self.store_cipher.clone())
    }

    /// Sets the cipher of the store. A store has one data key for ever, so that this cipher decrypts all its
    /// backups, also those that were made before a change of the caller's key.
    pub(crate) fn set_store_cipher(&mut self, cipher: Option<Arc<dyn Cipher>>) {
        self.store_cipher = cipher;
    }

    /// Reads the next block; returns its kind and its payload.
    fn raw_block(&mut self) -> Result<(u32, Vec<u8>), Error> {
        let at = self.offset;
        let head = self.fixed::<BLOCK_HEADER_BYTES>()?;
        let word = |at| u32_at(&head, at);
        let long = |at| u64_at(&head, at);
        // The checksum is verified before the length is used.
        if word(24) != header_crc(self.header.id, &head) {
            return Err(self.corrupt(at, "a block header has a wrong checksum"));
        }
        if long(12) != self.sequence {
            let reason = format!("block {} is in the place of block {}", long(12), self.sequence);
            return Err(self.corrupt(at, reason));
        }
        let mut payload = Vec::new();
        let read = (&mut self.input).take(long(4)).read_to_end(&mut payload);
        read.map_err(|e| self.io(e))?;
        self.offset += payload.len() as u64;
        if payload.len() as u64 != long(4) {
            return Err(self.io(io::ErrorKind::UnexpectedEof.into()));
        }
        if word(20) != payload_crc(self.header.id, &payload) {
            return Err(self.corrupt(at, "a block has a wrong checksum"));
        }
        self.sequence += 1;
        Ok((word(0), payload))
    }

    /// Returns an error if there are bytes after the end block.
    pub(crate) fn expect_end(&mut self) -> Result<(), Error> {
        let mut more = [0];
        match self.input.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.corrupt(self.offset, "there are bytes after the end block")),
            Err(error) => Err(self.io(error)),
        }
    }
}
