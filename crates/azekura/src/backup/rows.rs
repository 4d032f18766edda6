//! The rows of a backup, table by table. For an incremental backup they include the kept rows of its base.
//!
//! An incremental backup has, for each table in key order, rows and *kept ranges*. The rows of the base
//! inside a kept range belong to the backup; other rows of the base do not. The base may be incremental
//! itself.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use azekura_base::checksum::crc32c_append;
use azekura_base::varint::take_bytes;
use azekura_base::{Cipher, TreeId};

use super::format::{Block, Header, Kept, Reader};
use super::put_row;
use crate::encryption::CallerKey;
use crate::{Error, TableInfo};

/// The next row of the base, which was read but not used yet.
#[derive(Debug, Default)]
struct BaseRow {
    key: Vec<u8>,
    value: Vec<u8>,
    is_there: bool,
}

/// The base of an incremental backup, read alongside it.
struct Base<'r> {
    rows: Box<Rows<'r>>,
    /// The table that is being read; `None` after its end.
    table: Option<TableInfo>,
    next: BaseRow,
    /// `true` after the end block of the base was read.
    is_ended: bool,
}

impl Base<'_> {
    /// Reads to the end of the present table, so that each byte of the base is checked.
    fn end_table(&mut self) -> Result<(), Error> {
        while self.table.is_some() {
            self.next.is_there = false;
            self.peek()?;
        }
        Ok(())
    }

    /// Moves to the table of this name, if the base has it.
    fn seek(&mut self, name: Option<&str>) -> Result<(), Error> {
        self.end_table()?;
        while !self.is_ended {
            let table = self.rows.next_table()?;
            let is_before = |table: &TableInfo| name.is_none_or(|name| table.name.as_str() < name);
            let is_passed = table.as_ref().is_some_and(is_before);
            self.is_ended = table.is_none();
            self.table = table;
            if !is_passed {
                break;
            }
            self.end_table()?;
        }
        Ok(())
    }

    /// Returns the next row of the present table, if there is one.
    fn peek(&mut self) -> Result<Option<&mut BaseRow>, Error> {
        if self.table.is_none() {
            return Ok(None);
        }
        if !self.next.is_there {
            self.next.key.clear();
            self.next.value.clear();
            self.next.is_there = self.rows.next_row(&mut self.next.key, &mut self.next.value)?;
            if !self.next.is_there {
                self.table = None;
                return Ok(None);
            }
        }
        Ok(Some(&mut self.next))
    }
}

/// Row count and digest of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    rows: u64,
    digest: u32,
}

impl Sum {
    fn add(&mut self, row: &[u8]) {
        self.rows += 1;
        self.digest = crc32c_append(self.digest, row);
    }
}

/// The rows of a backup, table by table.
pub(crate) struct Rows<'r> {
    reader: Reader<Box<dyn Read + 'r>>,
    base: Option<Base<'r>>,
    /// The present kept range; the base has been read up to a key inside it.
    kept: Option<Kept>,
    block: Vec<u8>,
    at: usize,
    last_key: Option<Vec<u8>>,
    /// Row counts and digests of the present table: `own` for the rows in this backup, `all` with the base's
    /// rows.
    own: Sum,
    all: Sum,
    name: String,
    /// Tree of the present table.
    pub(crate) tree: TreeId,
    pub(crate) tables: u64,
    /// Number of rows of all tables, with the base's rows.
    pub(crate) rows: u64,
    own_rows: u64,
}

impl<'r> Rows<'r> {
    /// Reads the header. Without the base, kept ranges of an incremental backup yield no rows.
    pub(crate) fn open(input: impl Read + 'r, path: &Path, key: Option<&CallerKey>) -> Result<Self, Error> {
        Ok(Self {
            reader: Reader::open(Box::new(input) as Box<dyn Read + 'r>, path, key)?,
            base: None,
            kept: None,
            block: Vec::new(),
            at: 0,
            last_key: None,
            own: Sum::default(),
            all: Sum::default(),
            name: String::new(),
            tree: TreeId(0),
            tables: 0,
            rows: 0,
            own_rows: 0,
        })
    }

    /// Sets the base, from which the rows of kept ranges are read.
    pub(crate) fn set_base(&mut self, base: Rows<'r>) {
        self.base =
            Some(Base { rows: Box::new(base), table: None, next: BaseRow::default(), is_ended: false });
    }

    /// Returns an error if the key of an encrypted backup is missing or wrong. Without this call, reading the
    /// first table returns that error.
    pub(crate) fn unlock(&mut self) -> Result<(), Error> {
        self.reader.unlock()
    }

    /// As [`Reader::store_cipher`].
    pub(crate) fn store_cipher(&self) -> Option<Arc<dyn Cipher>> {
        self.reader.store_cipher()
    }

    /// As [`Reader::set_store_cipher`].
    pub(crate) fn set_store_cipher(&mut self, cipher: Option<Arc<dyn Cipher>>) {
        self.reader.set_store_cipher(cipher);
    }

    pub(crate) const fn header(&self) -> Header {
        self.reader.header
    }

    /// Returns the number of bytes read so far, including the base.
    pub(crate) fn bytes(&self) -> u64 {
        self.reader.offset + self.base.as_ref().map_or(0, |base| base.rows.bytes())
    }

    fn corrupt(&self, reason: &str) -> Error {
        self.reader.corrupt(self.reader.offset, reason)
    }

    /// Reads the rest of the backup; returns the names of its tables.
    pub(crate) fn names(mut self) -> Result<HashMap<TreeId, String>, Error> {
        let (mut names, mut key, mut value) = (HashMap::new(), Vec::new(), Vec::new());
        while let Some(table) = self.next_table()? {
            names.insert(self.tree, table.name);
            while self.next_row(&mut key, &mut value)? {
                key.clear();
                value.clear();
            }
        }
        Ok(names)
    }

    /// Returns the next table, or `None` at the end of the backup. [`next_row`](Self::next_row) then returns
    /// its rows.
    pub(crate) fn next_table(&mut self) -> Result<Option<TableInfo>, Error> {
        match self.reader.block()? {
            Block::Table(table, tree) => {
                if self.tables > 0 && table.name <= self.name {
                    return Err(self.corrupt("tables are not in ascending order"));
                }
                (self.own, self.all, self.last_key) = (Sum::default(), Sum::default(), None);
                self.tree = tree;
                self.name.clone_from(&table.name);
                self.tables += 1;
                if let Some(base) = &mut self.base
                    && base.table.as_ref().is_none_or(|present| present.name < table.name)
                {
                    base.seek(Some(&table.name))?;
                }
                Ok(Some(table))
            }
            Block::End { tables, rows } if (tables, rows) == (self.tables, self.own_rows) => {
                self.reader.expect_end()?;
                if let Some(base) = &mut self.base {
                    base.seek(None)?;
                }
                Ok(None)
            }
            Block::End { .. } => Err(self.corrupt("the end block has other counts than the backup")),
            _ => Err(self.corrupt("a block of rows belongs to no table")),
        }
    }

    /// Reads the next row of the table into the two buffers, which are empty; returns `false` after the last
    /// row.
    pub(crate) fn next_row(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool, Error> {
        loop {
            if self.take_kept(key, value)? {
                let mut row = Vec::new();
                put_row(&mut row, key, value);
                self.all.add(&row);
                break;
            }
            if self.at < self.block.len() {
                self.take_own(key, value)?;
                break;
            }
            match self.reader.block()? {
                Block::Rows(rows) => (self.block, self.at) = (rows, 0),
                Block::Kept(kept) => self.begin_kept(kept)?,
                Block::TableEnd { rows, digest } if self.own == (Sum { rows, digest }) => {
                    self.own_rows += rows;
                    self.rows += self.all.rows;
                    if let Some(base) = &mut self.base
                        && base.table.as_ref().is_some_and(|table| table.name == self.name)
                    {
                        base.end_table()?;
                    }
                    return Ok(false);
                }
                _ => {
                    return Err(self.corrupt("the row count or digest of a table differs from its end block"));
                }
            }
        }
        if self.last_key.as_ref().is_some_and(|last| last >= key) {
            return Err(self.corrupt("keys are not in ascending order"));
        }
        self.last_key.get_or_insert_default().clone_from(key);
        Ok(true)
    }

    fn begin_kept(&mut self, kept: Kept) -> Result<(), Error> {
        if self.reader.header.base_id == 0 {
            return Err(self.corrupt("the backup is not incremental, but refers to rows of a base"));
        }
        let Some(base) = &self.base else { return Ok(()) };
        let is_there = base.rows.name == self.name && base.rows.tree == self.tree;
        if !is_there {
            return Err(self.corrupt("it refers to rows of a table that its base does not have"));
        }
        self.kept = Some(kept);
        Ok(())
    }

    /// Moves the next row of the kept range from the base to the buffers; returns `false` if there is none.
    fn take_kept(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<bool, Error> {
        let (Some(base), Some(kept)) = (&mut self.base, &self.kept) else { return Ok(false) };
        while let Some(row) = base.peek()? {
            if kept.to.as_ref().is_some_and(|to| row.key >= *to) {
                break;
            }
            row.is_there = false;
            if row.key >= kept.from {
                std::mem::swap(key, &mut row.key);
                std::mem::swap(value, &mut row.value);
                return Ok(true);
            }
        }
        self.kept = None;
        Ok(false)
    }

    fn take_own(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<(), Error> {
        let input = &mut &self.block[self.at..];
        let before = *input;
        let row = take_bytes(input).zip(take_bytes(input));
        let taken = before.len() - input.len();
        let Some((k, v)) = row else { return Err(self.corrupt("a row cannot be decoded")) };
        key.extend_from_slice(k);
        value.extend_from_slice(v);
        self.own.add(&before[..taken]);
        self.all.add(&before[..taken]);
        self.at += taken;
        Ok(())
    }

    /// Returns the row count and the digest of the table that was read last, with the rows of the base.
    pub(crate) const fn table_sum(&self) -> (u64, u32) {
        (self.all.rows, self.all.digest)
    }
}
