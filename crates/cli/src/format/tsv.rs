//! Tab-separated lines: the first column is the key, the rest of the line the value. Escapes as in
//! [`escape`].

use std::io::{self, BufRead, Write};

use super::escape::{escape, unescape};
use super::lines::{Lines, MAX_LINE};
use super::{Fault, ReadError, ReadRows, Row};

/// Parses a line (without its newline) into `row`.
///
/// With escapes, a carriage return at the end belongs to the end of the line; `raw` keeps every byte.
///
/// # Errors
///
/// [`Fault::NoTab`], or [`Fault::Escape`] for a backslash that starts no escape.
pub fn parse(line: &[u8], raw: bool, row: &mut Row) -> Result<(), Fault> {
    row.key.clear();
    row.value.clear();
    let line = if raw { line } else { line.strip_suffix(b"\r").unwrap_or(line) };
    let tab = line.iter().position(|&byte| byte == b'\t').ok_or(Fault::NoTab)?;
    let (key, value) = (&line[..tab], &line[tab + 1..]);
    if raw {
        row.key.extend_from_slice(key);
        row.value.extend_from_slice(value);
        return Ok(());
    }
    unescape(key, &mut row.key)?;
    unescape(value, &mut row.value).map_err(|mut error| {
        error.column += tab + 1;
        Fault::Escape(error)
    })
}

/// Writes rows as lines.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    raw: bool,
    keys_only: bool,
    line: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Returns a writer to `out`; `raw` writes bytes unchanged, `keys_only` omits tab and value.
    pub const fn new(out: W, raw: bool, keys_only: bool) -> Self {
        Self { out, raw, keys_only, line: Vec::new() }
    }

    /// Writes one line.
    ///
    /// # Errors
    ///
    /// The errors of the stream.
    pub fn write(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.line.clear();
        self.field(key);
        if !self.keys_only {
            self.line.push(b'\t');
            self.field(value);
        }
        self.line.push(b'\n');
        self.out.write_all(&self.line)
    }

    fn field(&mut self, bytes: &[u8]) {
        if self.raw { self.line.extend_from_slice(bytes) } else { escape(bytes, &mut self.line) }
    }
}

/// Reads rows from lines.
#[derive(Debug)]
pub struct Reader<R> {
    lines: Lines<R>,
    raw: bool,
}

impl<R: BufRead> Reader<R> {
    /// Returns a reader of `source`; with `raw`, backslashes are literal.
    pub const fn new(source: R, raw: bool) -> Self {
        Self { lines: Lines::new(source, MAX_LINE).keeping_mark(raw), raw }
    }
}

impl<R: BufRead> ReadRows for Reader<R> {
    fn read_row(&mut self, row: &mut Row) -> Result<bool, ReadError> {
        let Some(line) = self.lines.next_line()? else { return Ok(false) };
        match parse(line, self.raw, row) {
            Ok(()) => Ok(true),
            Err(fault) => Err(self.lines.malformed(fault)),
        }
    }

    fn line(&self) -> u64 {
        self.lines.line()
    }

    fn bytes(&self) -> u64 {
        self.lines.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parsed(line: &[u8], raw: bool) -> Result<(Vec<u8>, Vec<u8>), Fault> {
        let mut row = Row { key: b"left".to_vec(), value: b"over".to_vec() };
        parse(line, raw, &mut row).map(|()| (row.key, row.value))
    }

    fn pair(key: &[u8], value: &[u8]) -> (Vec<u8>, Vec<u8>) {
        (key.to_vec(), value.to_vec())
    }

    #[test]
    fn the_value_is_the_rest_of_the_line_tabs_included() {
        assert_eq!(parsed(b"k\ta\tb", false).unwrap(), pair(b"k", b"a\tb"));
        assert_eq!(parsed(b"k\t", false).unwrap(), pair(b"k", b""));
        assert_eq!(parsed(b"\tv", false).unwrap(), pair(b"", b"v"));
    }

    #[test]
    fn a_line_without_a_tab_is_refused() {
        assert!(matches!(parsed(b"key value", false), Err(Fault::NoTab)));
        assert!(matches!(parsed(b"", true), Err(Fault::NoTab)));
    }

    #[test]
    fn the_column_of_a_wrong_escape_counts_from_the_start_of_the_line() {
        let message = parsed(b"key\tC:\\dir", false).unwrap_err().to_string();
        assert!(message.starts_with("column 7: \\d is not an escape"), "{message}");
        assert_eq!(parsed(b"key\tC:\\dir", true).unwrap(), pair(b"key", b"C:\\dir"));
    }

    #[test]
    fn a_carriage_return_before_the_newline_is_dropped_unless_raw() {
        assert_eq!(parsed(b"k\tv\r", false).unwrap(), pair(b"k", b"v"));
        assert_eq!(parsed(b"k\tv\r", true).unwrap(), pair(b"k", b"v\r"));
        assert_eq!(parsed(b"k\tv\\r", false).unwrap(), pair(b"k", b"v\r"));
    }

    #[test]
    fn keys_only_writes_no_tab() {
        let mut out = Vec::new();
        Writer::new(&mut out, false, true).write(b"a\tb", b"v").unwrap();
        assert_eq!(out, b"a\\tb\n");
    }

    proptest! {
        #[test]
        fn dumped_rows_load_unchanged(rows: Vec<(Vec<u8>, Vec<u8>)>) {
            let mut text = Vec::new();
            let mut writer = Writer::new(&mut text, false, false);
            rows.iter().for_each(|(key, value)| writer.write(key, value).unwrap());
            let mut reader = Reader::new(&text[..], false);
            let (mut row, mut back) = (Row::default(), Vec::new());
            while reader.read_row(&mut row).unwrap() {
                back.push((row.key.clone(), row.value.clone()));
            }
            prop_assert_eq!(back, rows);
            prop_assert_eq!(reader.bytes(), text.len() as u64);
        }

        #[test]
        fn reading_any_bytes_never_panics(text: Vec<u8>, raw: bool) {
            let mut reader = Reader::new(&text[..], raw);
            while let Ok(true) = reader.read_row(&mut Row::default()) {}
        }
    }
}
