//! Reads lines of a stream, with bounded length, and counts them.

use std::io::{self, BufRead, Read};

use super::{Fault, MAX_VALUE_BYTES, ReadError};

/// Length of the longest line of a dump, in bytes: the largest value of a store with every byte written as
/// `\xHH`, with a margin for the key.
pub(super) const MAX_LINE: usize = 4 * MAX_VALUE_BYTES + (1 << 20);

/// Reads lines without their ends.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    buffer: Vec<u8>,
    limit: usize,
    line: u64,
    bytes: u64,
    keeps_mark: bool,
}

/// The UTF-8 byte order mark, which some programs write before text. It belongs to no field.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl<R: BufRead> Lines<R> {
    /// Returns a reader of lines of at most `limit` bytes.
    pub(super) const fn new(source: R, limit: usize) -> Self {
        Self { source, buffer: Vec::new(), limit, line: 0, bytes: 0, keeps_mark: false }
    }

    /// Sets whether a byte order mark in front of the first line is kept as data.
    pub(super) const fn keeping_mark(mut self, keeps: bool) -> Self {
        self.keeps_mark = keeps;
        self
    }

    /// Returns the number of the line last read, from 1.
    pub(super) const fn line(&self) -> u64 {
        self.line
    }

    /// Returns the number of bytes read, including line ends.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the number of the line last read to an error.
    pub(super) const fn malformed(&self, fault: Fault) -> ReadError {
        ReadError::Malformed { line: self.line, fault }
    }

    /// Returns the next line without its newline. The last line may lack the newline.
    pub(super) fn next_line(&mut self) -> Result<Option<&[u8]>, ReadError> {
        self.buffer.clear();
        self.line += 1;
        let read = self.read_bounded().map_err(|source| ReadError::Io { line: self.line, source })?;
        self.bytes += read as u64;
        if read == 0 {
            return Ok(None);
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > self.limit {
            return Err(self.malformed(Fault::TooLong { limit: self.limit }));
        }
        let is_marked = self.line == 1 && !self.keeps_mark && self.buffer.starts_with(BYTE_ORDER_MARK);
        Ok(Some(&self.buffer[if is_marked { BYTE_ORDER_MARK.len() } else { 0 }..]))
    }

    fn read_bounded(&mut self) -> io::Result<usize> {
        (&mut self.source).take(self.limit as u64 + 1).read_until(b'\n', &mut self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_without_their_ends_and_are_counted() {
        let mut lines = Lines::new(&b"one\n\nthree"[..], MAX_LINE);
        assert_eq!(lines.next_line().unwrap(), Some(&b"one"[..]));
        assert_eq!(lines.next_line().unwrap(), Some(&b""[..]));
        assert_eq!(lines.next_line().unwrap(), Some(&b"three"[..]));
        assert_eq!((lines.line(), lines.bytes()), (3, 10));
        assert_eq!(lines.next_line().unwrap(), None);
    }

    #[test]
    fn a_mark_of_byte_order_is_dropped_at_the_beginning_only() {
        let text = b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n";
        let new = || Lines::new(&text[..], MAX_LINE);
        let (mut lines, mut raw) = (new(), new().keeping_mark(true));
        assert_eq!(lines.next_line().unwrap(), Some(&b"one"[..]));
        assert_eq!(lines.next_line().unwrap(), Some(&b"\xef\xbb\xbftwo"[..]));
        assert_eq!(lines.bytes(), text.len() as u64);
        assert_eq!(raw.next_line().unwrap(), Some(&b"\xef\xbb\xbfone"[..]));
    }

    #[test]
    fn the_largest_row_fits_a_line() {
        let of_byte = super::super::escape::escaped(&[0]).len();
        assert!(
            of_byte * (MAX_VALUE_BYTES + (16 << 10)) + "\t".len() <= MAX_LINE,
            "a key has at most 16 KiB"
        );
    }

    #[test]
    fn a_line_without_an_end_is_not_read_into_memory_whole() {
        let mut lines = Lines::new(io::BufReader::new(io::repeat(b'x').take(1 << 30)), 100);
        let error = lines.next_line().unwrap_err().to_string();
        assert_eq!(error, "line 1: the line is longer than 100 bytes");
        assert!(lines.bytes() <= 101);
    }

    #[test]
    fn a_line_of_just_the_limit_is_read() {
        let mut lines = Lines::new(&b"12345\n678"[..], 5);
        assert_eq!(lines.next_line().unwrap(), Some(&b"12345"[..]));
        assert_eq!(lines.next_line().unwrap(), Some(&b"678"[..]));
    }
}
