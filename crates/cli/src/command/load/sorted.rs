//! Rows for a bulk load: in key order, up to the first row that is out of order.

use std::collections::VecDeque;

use super::NumberedRow;
use crate::format::{ReadError, ReadRows, Row};

/// Returns `true` if the keys ascend strictly.
pub(super) fn ascends(rows: &[NumberedRow]) -> bool {
    rows.windows(2).all(|pair| pair[0].row.key < pair[1].row.key)
}

/// The rows read so far, then the next rows of the input. Ends before the first row that is out of order or
/// too long, and at a malformed row.
pub(super) struct Sorted<'r> {
    read: VecDeque<NumberedRow>,
    rows: &'r mut dyn ReadRows,
    max_key_bytes: usize,
    last_key: Option<Vec<u8>>,
    given: u64,
    malformed: Option<ReadError>,
    has_ended: bool,
}

impl<'r> Sorted<'r> {
    pub(super) fn new(read: VecDeque<NumberedRow>, rows: &'r mut dyn ReadRows, max_key_bytes: usize) -> Self {
        Self { read, rows, max_key_bytes, last_key: None, given: 0, malformed: None, has_ended: false }
    }

    /// Returns the number of delivered rows.
    pub(super) const fn given(&self) -> u64 {
        self.given
    }

    /// Returns the number of input bytes read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.rows.bytes()
    }

    /// Returns the rows that were read and not delivered, and the error that ended the input.
    pub(super) fn into_rest(self) -> (VecDeque<NumberedRow>, Option<ReadError>) {
        (self.read, self.malformed)
    }

    /// Reads a row if no row is waiting, unless the input has ended.
    fn read_one(&mut self) {
        let mut row = Row::default();
        match self.rows.read_row(&mut row) {
            Ok(true) => self.read.push_back(NumberedRow { line: self.rows.line(), row }),
            Ok(false) => {}
            Err(error) => self.malformed = Some(error),
        }
    }
}

impl Iterator for Sorted<'_> {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_ended {
            return None;
        }
        if self.read.is_empty() {
            self.read_one();
        }
        let fits = |row: &Row| {
            row.key.len() <= self.max_key_bytes && self.last_key.as_ref().is_none_or(|last| *last < row.key)
        };
        let Some(next) = self.read.pop_front_if(|next| fits(&next.row)) else {
            self.has_ended = true;
            return None;
        };
        self.given += 1;
        let Row { key, value } = next.row;
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(&key);
        Some((key, value))
    }
}
