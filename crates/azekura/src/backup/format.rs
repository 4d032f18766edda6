//! Bytes of a backup: a header, then numbered blocks, each with checksums.
//!
//! | part | bytes (little endian) |
//! |---|---|
//! | header | magic (8), version (4), page size (4), backup id (8), ms since 1970 (8), CRC-32C (4) |
//! | block | kind (4), length (8), sequence number (8), CRC of the payload (4), CRC of these (4); payload |
//!
//! Both checksums of a block cover the backup id, and the sequence numbers have no gap. A block of another
//! backup, a lost block and a repeated one are therefore found. The last block has kind *end*, and nothing
//! may follow it.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use azekura_base::checksum::{crc32c, crc32c_append};
use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u64};

use crate::Error;
use crate::catalog::{TableInfo, TableTypes};

const MAGIC: [u8; 8] = *b"AZKBACK\n";
pub(crate) const VERSION: u32 = 1;
const HEADER_BYTES: usize = 36;
const BLOCK_HEADER_BYTES: usize = 28;
/// Rows are collected to blocks of about this size: large enough for few writes, small enough for the cache.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// First part of a backup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) page_size: u32,
    pub(crate) id: u64,
    pub(crate) time_ms: u64,
}

impl Header {
    fn encode(self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend(self.page_size.to_le_bytes());
        out.extend(self.id.to_le_bytes());
        out.extend(self.time_ms.to_le_bytes());
        out.extend(crc32c(&out).to_le_bytes());
        out
    }
}

/// One block, decoded.
#[derive(Debug)]
pub(crate) enum Block {
    /// The rows that follow are those of this table.
    Table(TableInfo),
    /// Rows, each as length-prefixed key and value.
    Rows(Vec<u8>),
    /// The table is complete: number of its rows, and CRC-32C of their encodings.
    TableEnd { rows: u64, digest: u32 },
    /// The backup is complete.
    End { tables: u64, rows: u64 },
}

impl Block {
    const fn kind(&self) -> u32 {
        match self {
            Self::Table(_) => 1,
            Self::Rows(_) => 2,
            Self::TableEnd { .. } => 3,
            Self::End { .. } => 4,
        }
    }

    fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Table(TableInfo { name, types }) => {
                put_bytes(&mut out, name.as_bytes());
                put_bytes(&mut out, types.key.as_bytes());
                put_bytes(&mut out, types.value.as_bytes());
                put_u64(&mut out, u64::from(types.codec));
            }
            Self::Rows(rows) => out.extend_from_slice(rows),
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
        if kind == 2 {
            return Some(Self::Rows(payload));
        }
        let input = &mut &payload[..];
        let block = match kind {
            1 => {
                let mut text = || std::str::from_utf8(take_bytes(input)?).ok().map(str::to_owned);
                let (name, key, value) = (text()?, text()?, text()?);
                let codec = u32::try_from(take_u64(input)?).ok()?;
                Self::Table(TableInfo { name, types: TableTypes { key, value, codec } })
            }
            3 => Self::TableEnd { rows: take_u64(input)?, digest: u32::try_from(take_u64(input)?).ok()? },
            4 => Self::End { tables: take_u64(input)?, rows: take_u64(input)? },
            _ => return None,
        };
        input.is_empty().then_some(block)
    }
}

fn block_header(id: u64, kind: u32, sequence: u64, payload: &[u8]) -> [u8; BLOCK_HEADER_BYTES] {
    let mut out = [0; BLOCK_HEADER_BYTES];
    out[..4].copy_from_slice(&kind.to_le_bytes());
    out[4..12].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    out[12..20].copy_from_slice(&sequence.to_le_bytes());
    out[20..24].copy_from_slice(&payload_crc(id, payload).to_le_bytes());
    let crc = crc32c_append(crc32c(&id.to_le_bytes()), &out[..24]);
    out[24..].copy_from_slice(&crc.to_le_bytes());
    out
}

fn payload_crc(id: u64, payload: &[u8]) -> u32 {
    crc32c_append(crc32c(&id.to_le_bytes()), payload)
}

/// Writes a backup.
pub(crate) struct Writer<W> {
    out: W,
    path: PathBuf,
    id: u64,
    sequence: u64,
    pub(crate) bytes: u64,
}

impl<W: Write> Writer<W> {
    pub(crate) fn begin(out: W, path: &Path, header: Header) -> Result<Self, Error> {
        let mut writer = Self { out, path: path.to_path_buf(), id: header.id, sequence: 0, bytes: 0 };
        writer.put(&header.encode())?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(|e| Error::io("write", &self.path, e))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes one block.
    pub(crate) fn block(&mut self, block: &Block) -> Result<(), Error> {
        let payload = block.payload();
        self.put(&block_header(self.id, block.kind(), self.sequence, &payload))?;
        self.put(&payload)?;
        self.sequence += 1;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<W, Error> {
        self.out.flush().map_err(|e| Error::io("write", &self.path, e))?;
        Ok(self.out)
    }
}

/// Reads a backup and checks each byte of it.
pub(crate) struct Reader<R> {
    input: R,
    path: PathBuf,
    pub(crate) header: Header,
    sequence: u64,
    /// Bytes read so far.
    pub(crate) offset: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    pub(crate) fn open(input: R, path: &Path) -> Result<Self, Error> {
        let header = Header { page_size: 0, id: 0, time_ms: 0 };
        let mut reader = Self { input, path: path.to_path_buf(), header, sequence: 0, offset: 0 };
        let not_a_backup =
            |reason: &str| Error::NotABackup { path: path.to_path_buf(), reason: reason.into() };
        let bytes = reader.fixed::<HEADER_BYTES>()?;
        if bytes[..8] != MAGIC {
            return Err(not_a_backup("it does not begin with the magic bytes of a backup"));
        }
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("4 bytes are there"));
        let long = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("8 bytes are there"));
        if word(32) != crc32c(&bytes[..32]) {
            return Err(reader.corrupt(0, "the header has a wrong checksum"));
        }
        if word(8) != VERSION {
            let (path, found) = (path.to_path_buf(), word(8));
            return Err(Error::UnsupportedFormat { path, found, supported: VERSION });
        }
        reader.header = Header { page_size: word(12), id: long(16), time_ms: long(24) };
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
        let at = self.offset;
        let head = self.fixed::<BLOCK_HEADER_BYTES>()?;
        let word = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().expect("4 bytes are there"));
        let long = |at: usize| u64::from_le_bytes(*head[at..].first_chunk().expect("8 bytes are there"));
        // First: no length is believed before its checksum.
        if word(24) != crc32c_append(crc32c(&self.header.id.to_le_bytes()), &head[..24]) {
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
        Block::decode(word(0), payload).ok_or_else(|| self.corrupt(at, "a block cannot be decoded"))
    }

    /// Refuses bytes behind the end block.
    pub(crate) fn expect_end(&mut self) -> Result<(), Error> {
        let mut more = [0];
        match self.input.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.corrupt(self.offset, "there are bytes behind the end block")),
            Err(error) => Err(self.io(error)),
        }
    }
}

/// The rows of a backup, table by table.
pub(crate) struct Rows<R> {
    reader: Reader<R>,
    block: Vec<u8>,
    at: usize,
    last_key: Option<Vec<u8>>,
    digest: u32,
    table_rows: u64,
    pub(crate) tables: u64,
    pub(crate) rows: u64,
}

impl<R: Read> Rows<R> {
    pub(crate) fn open(input: R, path: &Path) -> Result<Self, Error> {
        let reader = Reader::open(input, path)?;
        let (block, last_key) = (Vec::new(), None);
        Ok(Self { reader, block, at: 0, last_key, digest: 0, table_rows: 0, tables: 0, rows: 0 })
    }

    pub(crate) const fn header(&self) -> Header {
        self.reader.header
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.reader.offset
    }

    fn corrupt(&self, reason: &str) -> Error {
        self.reader.corrupt(self.reader.offset, reason)
    }

    /// The next table; [`next_row`](Self::next_row) then gives its rows. `None` at the end of the backup.
    pub(crate) fn next_table(&mut self) -> Result<Option<TableInfo>, Error> {
        match self.reader.block()? {
            Block::Table(table) => {
                (self.digest, self.table_rows, self.last_key) = (0, 0, None);
                self.tables += 1;
                Ok(Some(table))
            }
            Block::End { tables, rows } if (tables, rows) == (self.tables, self.rows) => {
                self.reader.expect_end()?;
                Ok(None)
            }
            Block::End { .. } => Err(self.corrupt("the end block has other counts than the backup")),
            _ => Err(self.corrupt("a block of rows belongs to no table")),
        }
    }

    /// Writes the next row of the table into the two buffers, which are empty; `false` after the last row.
    pub(crate) fn next_row(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool, Error> {
        while self.at == self.block.len() {
            match self.reader.block()? {
                Block::Rows(rows) => (self.block, self.at) = (rows, 0),
                Block::TableEnd { rows, digest } if (rows, digest) == (self.table_rows, self.digest) => {
                    self.rows += rows;
                    return Ok(false);
                }
                _ => return Err(self.corrupt("a table has other rows than its end block says")),
            }
        }
        let input = &mut &self.block[self.at..];
        let before = *input;
        let row = take_bytes(input).zip(take_bytes(input));
        let taken = before.len() - input.len();
        let Some((k, v)) = row else { return Err(self.corrupt("a row cannot be decoded")) };
        if self.last_key.as_deref().is_some_and(|last| last >= k) {
            return Err(self.corrupt("keys are not in ascending order"));
        }
        key.extend_from_slice(k);
        value.extend_from_slice(v);
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(k);
        self.digest = crc32c_append(self.digest, &before[..taken]);
        self.at += taken;
        self.table_rows += 1;
        Ok(true)
    }

    /// Row count and digest of the table that was read last.
    pub(crate) const fn table_sum(&self) -> (u64, u32) {
        (self.table_rows, self.digest)
    }
}
