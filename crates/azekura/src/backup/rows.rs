//! The rows of a backup, table by table. For an incremental backup they include the kept rows of its base.
//!
//! An incremental backup has, for each table in key order, rows and *kept ranges*. The rows of the base
//! inside a kept range belong to the backup; other rows of the base do not. The base may be incremental
//! itself. The backup and its bases are the *levels* of a chain, newest first.
//!
//! A level has one current [`Event`]: a part of the backup, with the rows of its base. A level reads its file
//! up to a part that depends on its base. Then it takes the events of the next level one by one, until this
//! part is its own event. So the stack does not grow with the length of the chain.

use std::collections::HashMap;
use std::io::Read;
use std::mem::swap;
use std::path::Path;
use std::sync::Arc;

use azekura_base::checksum::crc32c_append;
use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u64};
use azekura_base::{Cipher, TreeId};

use super::format::{BLOCK_BYTES, Block, Header, Kept, Reader};
use crate::encryption::KeySource;
use crate::transaction::Next;
use crate::{Error, TableInfo};

/// A part of a backup with the rows of its base. The order is: for each table its begin, its rows and its
/// end; then the end of the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// Begins the present table of the level.
    Table,
    /// The present row of the level.
    Row,
    TableEnd,
    End,
}

/// The part that a level has read last. Before the level passes it on, it takes events of its base.
enum Waiting {
    /// Until the base has passed the same part.
    Event(Event),
    /// Until the base has passed the range. Each row inside is a row of this level.
    Kept(Kept),
}

/// Row count and digest of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    rows: u64,
    digest: u32,
}

impl Sum {
    /// Adds a row; `parts` are its bytes in a block, in order.
    fn add(&mut self, parts: &[&[u8]]) {
        self.rows += 1;
        self.digest = parts.iter().fold(self.digest, |digest, part| crc32c_append(digest, part));
    }
}

/// One backup of a chain.
struct Level<'r> {
    reader: Reader<Box<dyn Read + 'r>>,
    block: Vec<u8>,
    at: usize,
    waiting: Option<Waiting>,
    /// The current event, until the next newer level has taken it.
    event: Option<Event>,
    /// The present row, with the first bytes of its value.
    key: Vec<u8>,
    value: Vec<u8>,
    value_len: u64,
    /// Number of bytes of the value of the last row that are in the following blocks.
    bytes_left: u64,
    /// `true` if the present row is one of the base, which has the rest of its value.
    is_of_base: bool,
    last_key: Option<Vec<u8>>,
    /// The present table and its tree in the source store; after its end, the last table.
    table: Option<(TableInfo, TreeId)>,
    is_in_table: bool,
    /// Row count and digest of the rows of the present table in this backup.
    own: Sum,
    own_rows: u64,
    tables: u64,
}

impl<'r> Level<'r> {
    fn new(reader: Reader<Box<dyn Read + 'r>>) -> Self {
        Self {
            reader,
            block: Vec::new(),
            at: 0,
            waiting: None,
            event: None,
            key: Vec::new(),
            value: Vec::new(),
            value_len: 0,
            bytes_left: 0,
            is_of_base: false,
            last_key: None,
            table: None,
            is_in_table: false,
            own: Sum::default(),
            own_rows: 0,
            tables: 0,
        }
    }

    fn corrupt(&self, reason: &str) -> Error {
        self.reader.corrupt(self.reader.offset, reason)
    }

    /// Returns the name of the present table; empty before the first one.
    fn table_name(&self) -> &str {
        self.table.as_ref().map_or("", |(table, _)| &table.name)
    }

    fn tree(&self) -> Option<TreeId> {
        self.table.as_ref().map(|(_, tree)| *tree)
    }

    /// Moves to the next event. Returns `false` if the next event of the base is needed first.
    fn step(&mut self, mut base: Option<&mut Self>) -> Result<bool, Error> {
        loop {
            let base = base.as_deref_mut();
            let Some(waiting) = self.waiting.take() else {
                if self.read(base.as_deref())? {
                    return self.pass(Event::Row);
                }
                continue;
            };
            match (waiting, base) {
                (Waiting::Event(event), None) => return self.pass(event),
                // Without the base, a kept range has no rows.
                (Waiting::Kept(_), None) => {}
                (Waiting::Event(event), Some(base)) => {
                    if self.is_reached(event, base) {
                        return self.pass(event);
                    }
                    base.event = None;
                    self.waiting = Some(Waiting::Event(event));
                    return Ok(false);
                }
                (Waiting::Kept(kept), Some(base)) => {
                    let is_row = base.event == Some(Event::Row);
                    if base.event == Some(Event::TableEnd)
                        || is_row && kept.to.as_ref().is_some_and(|to| base.key >= *to)
                    {
                        continue;
                    }
                    let is_kept = is_row && base.key >= kept.from;
                    self.waiting = Some(Waiting::Kept(kept));
                    base.event = None;
                    if is_kept {
                        swap(&mut self.key, &mut base.key);
                        swap(&mut self.value, &mut base.value);
                        (self.value_len, self.is_of_base) = (base.value_len, true);
                        return self.pass(Event::Row);
                    }
                    return Ok(false);
                }
            }
        }
    }

    /// Returns whether the base has passed everything before this event. At the end of a table the base has
    /// been read to the end of its table, so that each byte of the base is checked.
    fn is_reached(&self, event: Event, base: &Self) -> bool {
        let Some(next) = base.event else { return false };
        match event {
            Event::Table => {
                next == Event::End || next == Event::Table && base.table_name() >= self.table_name()
            }
            Event::TableEnd => next == Event::TableEnd || base.table_name() != self.table_name(),
            Event::Row | Event::End => next == Event::End,
        }
    }

    fn pass(&mut self, event: Event) -> Result<bool, Error> {
        if event == Event::Row {
            if self.last_key.as_ref().is_some_and(|last| *last >= self.key) {
                return Err(self.corrupt("keys are not in ascending order"));
            }
            self.last_key.get_or_insert_default().clone_from(&self.key);
        }
        self.event = Some(event);
        Ok(true)
    }

    /// Reads a row and returns `true`, or reads a block.
    fn read(&mut self, base: Option<&Self>) -> Result<bool, Error> {
        while self.piece(&mut Vec::new())? {} // of a row of which the caller did not read the whole value
        if self.at < self.block.len() {
            return self.take_own().map(|()| true);
        }
        self.block = Vec::new(); // freed first, because a block with a large value has its size
        let block = self.reader.block()?;
        if self.is_in_table {
            self.read_in_table(block, base)?
        } else {
            self.read_outside(block)?
        }
        Ok(false)
    }

    fn read_in_table(&mut self, block: Block, base: Option<&Self>) -> Result<(), Error> {
        match block {
            Block::Rows(rows) => (self.block, self.at) = (rows, 0),
            Block::Kept(_) if self.reader.header.base_id == 0 => {
                return Err(self.corrupt("the backup is not incremental, but refers to rows of a base"));
            }
            Block::Kept(kept) => {
                let is_other =
                    |base: &Self| base.tree() != self.tree() || base.table_name() != self.table_name();
                if base.is_some_and(is_other) {
                    return Err(self.corrupt("it refers to rows of a table that its base does not have"));
                }
                self.waiting = Some(Waiting::Kept(kept));
            }
            Block::TableEnd { rows, digest } if self.own == (Sum { rows, digest }) => {
                self.own_rows += rows;
                self.is_in_table = false;
                self.value = Vec::new(); // may have the size of a large value
                self.waiting = Some(Waiting::Event(Event::TableEnd));
            }
            Block::Piece(_) => return Err(self.corrupt("a piece of a value belongs to no row")),
            _ => return Err(self.corrupt("the row count or digest of a table differs from its end block")),
        }
        Ok(())
    }

    fn read_outside(&mut self, block: Block) -> Result<(), Error> {
        let event = match block {
            Block::Table(table, tree) => {
                if self.table.is_some() && table.name.as_str() <= self.table_name() {
                    return Err(self.corrupt("tables are not in ascending order"));
                }
                (self.own, self.last_key, self.is_in_table) = (Sum::default(), None, true);
                self.table = Some((table, tree));
                self.tables += 1;
                Event::Table
            }
            Block::End { tables, rows } if (tables, rows) == (self.tables, self.own_rows) => {
                self.reader.expect_end()?;
                Event::End
            }
            Block::End { .. } => {
                return Err(self.corrupt("the end block has other counts than the backup"));
            }
            _ => return Err(self.corrupt("a block of rows belongs to no table")),
        };
        self.waiting = Some(Waiting::Event(event));
        Ok(())
    }

    fn take_own(&mut self) -> Result<(), Error> {
        let input = &mut &self.block[self.at..];
        let before = *input;
        let row = take_bytes(input).zip(take_u64(input));
        let Some((key, value_len)) = row else { return Err(self.corrupt("a row cannot be decoded")) };
        let value = &input[..usize::try_from(value_len).unwrap_or(usize::MAX).min(input.len())];
        let taken = before.len() - input.len() + value.len();
        self.key.clear();
        self.key.extend_from_slice(key);
        (self.value_len, self.is_of_base) = (value_len, false);
        self.bytes_left = value_len - value.len() as u64;
        self.own.add(&[&before[..taken]]);
        let (len, is_last) = (value.len(), taken == before.len());
        if is_last && len >= BLOCK_BYTES {
            // A large value, which is the last one of its block, gets the memory of the block.
            self.value = std::mem::take(&mut self.block);
            self.value.drain(..self.value.len() - len);
            self.at = 0;
        } else {
            self.value.clear();
            self.value.extend_from_slice(value);
            self.at += taken;
        }
        Ok(())
    }

    /// Replaces `out` by the next bytes of the value of the last row of this file; returns `false` after the
    /// last ones.
    fn piece(&mut self, out: &mut Vec<u8>) -> Result<bool, Error> {
        if self.bytes_left == 0 {
            return Ok(false);
        }
        match self.reader.block()? {
            Block::Piece(bytes) if !bytes.is_empty() && bytes.len() as u64 <= self.bytes_left => {
                self.bytes_left -= bytes.len() as u64;
                self.own.digest = crc32c_append(self.own.digest, &bytes);
                *out = bytes;
                Ok(true)
            }
            _ => Err(self.corrupt("the rest of a large value is missing")),
        }
    }
}

/// The rows of a backup, table by table.
pub(crate) struct Rows<'r> {
    /// The backup and the bases that were added, newest first.
    levels: Vec<Level<'r>>,
    /// Row count and digest of the present table, with the rows of the bases.
    all: Sum,
    /// Tree of the present table.
    pub(crate) tree: TreeId,
    pub(crate) tables: u64,
    /// Number of rows of all tables, with the rows of the bases.
    pub(crate) rows: u64,
    /// Number of bytes of the value of the present row that were not passed on.
    bytes_left: u64,
}

impl<'r> Rows<'r> {
    /// Reads the header. Without the base, kept ranges of an incremental backup yield no rows.
    pub(crate) fn open(input: impl Read + 'r, path: &Path, key: Option<&KeySource>) -> Result<Self, Error> {
        let reader = Reader::open(Box::new(input) as Box<dyn Read + 'r>, path, key)?;
        let levels = vec![Level::new(reader)];
        Ok(Self { levels, all: Sum::default(), tree: TreeId(0), tables: 0, rows: 0, bytes_left: 0 })
    }

    /// Adds the base of the oldest backup so far, from which the rows of its kept ranges are read.
    pub(crate) fn add_base(&mut self, base: Self) {
        self.levels.extend(base.levels);
    }

    /// Returns an error if the key of an encrypted backup is missing or wrong. Without this call, reading the
    /// first table returns that error.
    pub(crate) fn unlock(&mut self) -> Result<(), Error> {
        self.levels[0].reader.unlock()
    }

    /// Returns the id of the caller's key of the backup; empty if it is not encrypted.
    pub(crate) fn key_id(&self) -> &str {
        &self.levels[0].reader.key_id
    }

    /// As [`Reader::store_cipher`].
    pub(crate) fn store_cipher(&self) -> Option<Arc<dyn Cipher>> {
        self.levels[0].reader.store_cipher()
    }

    /// As [`Reader::set_store_cipher`].
    pub(crate) fn set_store_cipher(&mut self, cipher: Option<Arc<dyn Cipher>>) {
        self.levels[0].reader.set_store_cipher(cipher);
    }

    pub(crate) fn header(&self) -> Header {
        self.levels[0].reader.header
    }

    /// Returns the number of bytes read so far, including the bases.
    pub(crate) fn bytes(&self) -> u64 {
        self.levels.iter().map(|level| level.reader.offset).sum()
    }

    /// Reads the rest of the backup; returns the names of its tables.
    pub(crate) fn names(mut self) -> Result<HashMap<TreeId, String>, Error> {
        let (mut names, mut key, mut value) = (HashMap::new(), Vec::new(), Vec::new());
        while let Some(table) = self.next_table()? {
            names.insert(self.tree, table.name);
            while self.next_row(&mut key, &mut value)? != Next::End {}
        }
        Ok(names)
    }

    /// Moves the newest level to its next event, and the others as far as that needs.
    fn advance(&mut self) -> Result<Event, Error> {
        self.levels[0].event = None;
        let mut at = 0;
        loop {
            let (newer, older) = self.levels.split_at_mut(at + 1);
            if !newer[at].step(older.first_mut())? {
                at += 1;
            } else if at > 0 {
                at -= 1;
            } else if let Some(event) = newer[0].event {
                return Ok(event);
            }
        }
    }

    /// Returns the next table, or `None` at the end of the backup. [`next_row`](Self::next_row) then returns
    /// its rows; the caller reads all of them.
    pub(crate) fn next_table(&mut self) -> Result<Option<TableInfo>, Error> {
        let event = self.advance()?;
        let newest = &self.levels[0];
        match (event, &newest.table) {
            (Event::Table, Some((table, tree))) => {
                (self.all, self.tree) = (Sum::default(), *tree);
                self.tables += 1;
                Ok(Some(table.clone()))
            }
            (Event::End, _) => Ok(None),
            _ => Err(newest.corrupt("a block of rows belongs to no table")),
        }
    }

    /// Reads the next row of the table into the two buffers, or, after [`Next::Part`], the next part of its
    /// value.
    pub(crate) fn next_row(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<Next, Error> {
        if self.bytes_left > 0 {
            let own = self.levels.iter_mut().find(|level| !level.is_of_base);
            own.map_or(Ok(false), |level| level.piece(value))?;
            self.all.digest = crc32c_append(self.all.digest, value);
            return Ok(self.row_or_part(value));
        }
        let event = self.advance()?;
        let newest = &mut self.levels[0];
        match event {
            Event::Row => {
                swap(key, &mut newest.key);
                swap(value, &mut newest.value);
                self.bytes_left = newest.value_len;
                let mut head = Vec::with_capacity(key.len() + 20);
                put_bytes(&mut head, key);
                put_u64(&mut head, newest.value_len);
                self.all.add(&[&head[..], &value[..]]);
                Ok(self.row_or_part(value))
            }
            Event::TableEnd => {
                self.rows += self.all.rows;
                Ok(Next::End)
            }
            Event::Table | Event::End => Err(newest.corrupt("the end block of a table is missing")),
        }
    }

    /// Counts a part of a value; returns whether it is the last one.
    fn row_or_part(&mut self, part: &[u8]) -> Next {
        self.bytes_left -= part.len() as u64;
        if self.bytes_left > 0 { Next::Part } else { Next::Row }
    }

    /// Returns the row count and the digest of the table that was read last, with the rows of the bases.
    pub(crate) const fn table_sum(&self) -> (u64, u32) {
        (self.all.rows, self.all.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::Writer;
    use super::*;
    use crate::catalog::TableTypes;

    /// Reads a backup of one table with these blocks, and returns its value, or the reason of the error.
    fn read(blocks: Vec<Block>) -> Result<Vec<u8>, String> {
        let header = Header { page_size: 4096, id: 1, ..Header::default() };
        let mut writer = Writer::begin(Vec::new(), Path::new("b"), header, None).unwrap();
        let table = TableInfo { name: "t".into(), types: TableTypes::of::<[u8], [u8]>() };
        let end = Block::End { tables: 1, rows: 1 };
        for block in std::iter::once(Block::Table(table, TreeId(20))).chain(blocks).chain([end]) {
            writer.block(&block).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let read = || {
            let mut rows = Rows::open(&bytes[..], Path::new("b"), None)?;
            let (mut key, mut whole, mut part) = (Vec::new(), Vec::new(), Vec::new());
            while rows.next_table()?.is_some() {
                while rows.next_row(&mut key, &mut part)? != Next::End {
                    whole.append(&mut part);
                }
            }
            Ok::<_, Error>(whole)
        };
        read().map_err(|error| error.to_string())
    }

    #[test]
    fn a_value_is_exactly_as_long_as_its_row_says() {
        let mut whole = Vec::new();
        put_bytes(&mut whole, b"k");
        put_bytes(&mut whole, b"abcdefghij");
        let piece = |bytes: &[u8]| Block::Piece(bytes.to_vec());
        let end = || Block::TableEnd { rows: 1, digest: crc32c_append(0, &whole) };
        let cut = || Block::Rows(whole[..whole.len() - 6].to_vec());
        assert_eq!(read(vec![Block::Rows(whole.clone()), end()]), Ok(b"abcdefghij".to_vec()));
        assert_eq!(read(vec![cut(), piece(b"efg"), piece(b"hij"), end()]), Ok(b"abcdefghij".to_vec()));
        let wrong = [
            vec![cut(), end()],
            vec![cut(), piece(b"efg"), end()],
            vec![cut(), piece(b"efghijk"), end()],
            vec![cut(), piece(b""), piece(b"efghij"), end()],
            vec![cut(), Block::Rows(b"efghij".to_vec()), end()],
        ];
        for blocks in wrong {
            let shown = format!("{blocks:?}");
            assert!(read(blocks).unwrap_err().contains("the rest of a large value is missing"), "{shown}");
        }
        let error = read(vec![Block::Rows(whole.clone()), piece(b"k"), end()]).unwrap_err();
        assert!(error.contains("a piece of a value belongs to no row"), "{error}");
    }
}
