//! A CSV stream that tracks whether it ends within a quoted field: the CSV reader treats the end of the file
//! as the end of the field.
//!
//! | state | a quote | the delimiter, or a line's end | another byte |
//! |---|---|---|---|
//! | at a field's start | opens the field | – | unquoted |
//! | unquoted | an ordinary byte | a field's start | – |
//! | quoted | closes the field, or is the first of two | – | – |
//! | after a quote in a quoted field | a quote in the field: quoted | a field's start | unquoted |

use std::io::{self, BufRead, Read};

/// Length of the longest field, in bytes, including line ends. Without a bound, one stray quote would make
/// the rest of a file one field.
const MAX_FIELD: usize = 512 << 20;

/// Length of the longest record, in bytes: its value has at least as many.
const MAX_RECORD: usize = crate::format::MAX_VALUE_BYTES;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Unquoted,
    Quoted,
    AfterQuote,
}

/// The error for a field or a record that is too long, wrapped in an `io::Error`.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a field or a record is too long")]
pub(super) struct TooLong {
    /// The line on which the field or the record begins.
    pub(super) line: u64,
    /// The longest accepted field or record, in bytes.
    pub(super) limit: usize,
}

impl TooLong {
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

/// A CSV stream with the state of its quotes; see the module head.
#[derive(Debug)]
pub(super) struct Quotes<R> {
    source: R,
    delimiter: u8,
    state: State,
    bytes: u64,
    line: u64,
    /// Number of the first byte of the current field.
    field_byte: u64,
    field_line: u64,
    /// Number of the first byte of the current record.
    record_byte: u64,
    record_line: u64,
    has_ended: bool,
    max_field: usize,
    max_record: usize,
}

impl<R: BufRead> Quotes<R> {
    pub(super) fn new(source: R, delimiter: u8) -> Self {
        Self {
            source,
            delimiter,
            state: State::Start,
            bytes: 0,
            line: 1,
            field_byte: 0,
            field_line: 1,
            record_byte: 0,
            record_line: 1,
            has_ended: false,
            max_field: MAX_FIELD,
            max_record: MAX_RECORD,
        }
    }

    /// Returns the number of bytes read.
    pub(super) const fn bytes_read(&self) -> u64 {
        self.bytes
    }

    /// Returns the line on which a quoted field begins that the end of the stream truncates.
    pub(super) fn open_at_end(&self) -> Option<u64> {
        (self.has_ended && self.state == State::Quoted).then_some(self.field_line)
    }

    fn see(&mut self, byte: u8) {
        let ends = byte == self.delimiter || byte == b'\n' || byte == b'\r';
        let is_mark = self.bytes < 3 && byte == BYTE_ORDER_MARK[self.bytes as usize];
        self.bytes += 1;
        self.state = match (self.state, byte) {
            (State::Start, _) if is_mark => State::Start,
            (State::Quoted, b'"') => State::AfterQuote,
            (State::Quoted, _) | (State::Start | State::AfterQuote, b'"') => State::Quoted,
            _ if ends => State::Start,
            _ => State::Unquoted,
        };
        self.line += u64::from(byte == b'\n');
        if self.state == State::Start {
            (self.field_byte, self.field_line) = (self.bytes, self.line);
            if byte != self.delimiter {
                (self.record_byte, self.record_line) = (self.bytes, self.line);
            }
        }
    }
}

impl<R: BufRead> Read for Quotes<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for (first, line, limit) in [
            (self.field_byte, self.field_line, self.max_field),
            (self.record_byte, self.record_line, self.max_record),
        ] {
            if self.bytes - first > limit as u64 {
                return Err(io::Error::other(TooLong { line, limit }));
            }
        }
        let read = self.source.read(buffer)?;
        self.has_ended |= read == 0 && !buffer.is_empty();
        buffer[..read].iter().for_each(|&byte| self.see(byte));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_without_an_end_is_not_read_into_memory_whole() {
        let text = b"a,b\n1,\"".chain(io::repeat(b'x').take(1 << 30));
        let mut quotes = Quotes { max_field: 1000, ..Quotes::new(io::BufReader::new(text), b',') };
        let error = io::copy(&mut quotes, &mut io::sink()).unwrap_err();
        assert_eq!(TooLong::of(&error).map(|field| field.line), Some(2));
        assert!(quotes.bytes_read() < 100_000);
    }

    #[test]
    fn a_record_without_an_end_is_not_read_into_memory_whole() {
        let text = b"a,b\n1,2\n".chain(io::repeat(b',').take(1 << 30));
        let mut quotes = Quotes { max_record: 1000, ..Quotes::new(io::BufReader::new(text), b',') };
        let error = io::copy(&mut quotes, &mut io::sink()).unwrap_err();
        assert_eq!(TooLong::of(&error).map(|record| (record.line, record.limit)), Some((3, 1000)));
        assert!(quotes.bytes_read() < 100_000);
    }
}
