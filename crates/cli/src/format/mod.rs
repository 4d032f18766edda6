//! Rows as text: the formats that `load` reads, and the format that `scan` and `dump` write.
//!
//! Each format has a pure function from one record to one [`Row`], and a reader that applies it to a stream
//! and counts lines. Readers hold one record in memory, never the whole file.

pub mod csv;
pub mod escape;
pub mod jsonl;
mod lines;
pub mod row_types;
pub mod tsv;

use std::io::{self, BufRead};

pub use escape::EscapeError;

/// Length of the longest value of a store, in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = azekura::MAX_VALUE_BYTES as usize;

/// A key and its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The key, any bytes.
    pub key: Vec<u8>,
    /// The value, any bytes.
    pub value: Vec<u8>,
}

/// A way to write rows as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// lines of key, tab, value, as `dump` writes them
    Tsv,
    /// comma-separated values with a header line; the value is the record as a JSON object
    Csv,
    /// one JSON object a line; the value is the line
    Jsonl,
}

impl Format {
    /// Returns the format for a file name's extension.
    #[must_use]
    pub fn of_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "tsv" | "tab" => Some(Self::Tsv),
            "csv" => Some(Self::Csv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        }
    }
}

/// The error in a malformed record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A line of TSV has no tab.
    #[error(
        "no tab between key and value (a key without a value ends with a tab; --format reads csv and jsonl)"
    )]
    NoTab,
    /// A backslash starts no escape.
    #[error(transparent)]
    Escape(#[from] EscapeError),
    /// A line does not end within the limit.
    #[error("the line is longer than {limit} bytes")]
    TooLong {
        /// The longest accepted line, in bytes.
        limit: usize,
    },
    /// A text format contains bytes that are not UTF-8.
    #[error("not UTF-8")]
    NotUtf8,
    /// The end of the file truncates a quoted CSV field.
    #[error("a quote is opened and never closed")]
    OpenQuote,
    /// The text is not the expected JSON.
    #[error("{0}")]
    Json(String),
    /// The record has no such field.
    #[error("no field {field:?}{}", among(.present))]
    NoField {
        /// The requested field.
        field: String,
        /// The existing fields, if the format has a header.
        present: Vec<String>,
    },
    /// The record has the key field twice, or the header contains a field twice.
    #[error("field {field:?} appears twice")]
    TwiceTheField {
        /// The field.
        field: String,
    },
    /// The key field is neither text nor a number.
    #[error("field {field:?} is {found}, and a key is text or a number")]
    KeyKind {
        /// The field.
        field: String,
        /// Description of the field's content.
        found: &'static str,
    },
    /// A record has more or fewer fields than the header.
    #[error("{found} fields where the header has {expected}")]
    FieldCount {
        /// Number of fields in the header.
        expected: u64,
        /// Number of fields in the record.
        found: u64,
    },
    /// The header is one field, which contains another separator than the default.
    #[error(
        "the header is one field, {field:?}; name the separator of the fields, as in --delimiter \
         '{separator}' (--delimiter , if it is one field)"
    )]
    OtherDelimiter {
        /// The field.
        field: String,
        /// The probable separator, as a value of `--delimiter`.
        separator: &'static str,
    },
    /// The row does not have the form of the table's types.
    #[error(transparent)]
    Misfit(#[from] row_types::Misfit),
}

fn among(present: &[String]) -> String {
    if present.is_empty() { String::new() } else { format!("; the header has {}", present.join(", ")) }
}

/// The reason that no further row could be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The record that begins on this line is malformed.
    #[error("line {line}: {fault}")]
    Malformed {
        /// Line number, from 1.
        line: u64,
        /// The error.
        fault: Fault,
    },
    /// The operating system failed the read.
    #[error("line {line}: cannot read the input")]
    Io {
        /// The line that was being read, from 1.
        line: u64,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// A stream of rows.
pub trait ReadRows {
    /// Reads the next row into `row`; `false` at the end.
    ///
    /// # Errors
    ///
    /// [`ReadError`], which contains the line. The reader then returns no more rows.
    fn read_row(&mut self, row: &mut Row) -> Result<bool, ReadError>;

    /// Returns the line on which the last row began, from 1.
    fn line(&self) -> u64;

    /// Returns the number of input bytes used so far.
    fn bytes(&self) -> u64;
}

/// Options for reading rows.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Name of the key field; for CSV also its number, from 1. The default for CSV is the first field; JSON
    /// lines requires a name.
    pub key_field: Option<String>,
    /// For TSV: `true` if backslashes are literal.
    pub raw: bool,
    /// For CSV: the byte between fields; default: a comma.
    pub delimiter: Option<u8>,
}

/// Starts reading `source`. The header of CSV is read at once.
///
/// # Errors
///
/// [`ReadError`] for a header that cannot be read or lacks the key field.
pub fn open<'a>(
    format: Format,
    source: Box<dyn BufRead + 'a>,
    options: &ReadOptions,
) -> Result<Box<dyn ReadRows + 'a>, ReadError> {
    let field = options.key_field.as_deref();
    Ok(match format {
        Format::Tsv => Box::new(tsv::Reader::new(source, options.raw)),
        Format::Csv => Box::new(csv::Reader::new(source, field, options.delimiter)?),
        Format::Jsonl => Box::new(jsonl::Reader::new(source, field.unwrap_or_default())),
    })
}
