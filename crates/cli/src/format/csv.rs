//! Comma-separated values with a header line. The key is one field. The value is the whole record as a JSON
//! object with the fields in the header's order, so it can be read without the header.

mod quotes;

use std::collections::HashSet;
use std::io::{self, BufRead};

use ::csv::{ErrorKind, StringRecord};

use super::{Fault, ReadError, ReadRows, Row};
use quotes::{Quotes, TooLong};

/// A header, and the index of its key field.
#[derive(Debug)]
pub struct Header {
    /// The names of the fields, each as a JSON string.
    names: Vec<String>,
    key: usize,
}

impl Header {
    /// Finds `key` among `names`: by name, otherwise by number from 1. With `None` the key is the first
    /// field.
    ///
    /// # Errors
    ///
    /// [`Fault::NoField`], or [`Fault::TwiceTheField`] for a header that contains a field twice.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>, key: Option<&str>) -> Result<Self, Fault> {
        let names: Vec<&str> = names.into_iter().collect();
        let mut seen = HashSet::with_capacity(names.len());
        if let Some(&twice) = names.iter().find(|&&name| !seen.insert(name)) {
            return Err(Fault::TwiceTheField { field: twice.into() });
        }
        let by_name = |key| names.iter().position(|&name| name == key);
        let by_number = |key: &str| key.parse::<usize>().ok()?.checked_sub(1).filter(|&at| at < names.len());
        let key = match key {
            None => 0,
            Some(key) => by_name(key).or_else(|| by_number(key)).ok_or_else(|| Fault::NoField {
                field: key.into(),
                present: names.iter().map(|&name| name.into()).collect(),
            })?,
        };
        Ok(Self { names: names.into_iter().map(json_string).collect(), key })
    }

    /// Makes a row from a record with as many fields as the header.
    ///
    /// # Errors
    ///
    /// [`Fault::FieldCount`] when there are more or fewer.
    pub fn row<'f>(&self, fields: impl Iterator<Item = &'f str> + Clone, row: &mut Row) -> Result<(), Fault> {
        let (expected, found) = (self.names.len(), fields.clone().count());
        if expected != found {
            return Err(Fault::FieldCount { expected: expected as u64, found: found as u64 });
        }
        row.key.clear();
        row.value.clear();
        for (at, (name, field)) in self.names.iter().zip(fields).enumerate() {
            if at == self.key {
                row.key.extend_from_slice(field.as_bytes());
            }
            row.value.push(if at == 0 { b'{' } else { b',' });
            row.value.extend_from_slice(name.as_bytes());
            row.value.push(b':');
            row.value.extend_from_slice(json_string(field).as_bytes());
        }
        row.value.push(b'}');
        Ok(())
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Reads rows from records.
#[derive(Debug)]
pub struct Reader<R> {
    source: ::csv::Reader<Quotes<R>>,
    header: Option<Header>,
    record: StringRecord,
    line: u64,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header of `source`. `delimiter` is the byte between fields (default: a comma), and `key` is
    /// the name of the key field (default: the first field).
    ///
    /// # Errors
    ///
    /// A header that is not UTF-8, that lacks `key` or contains a field twice; [`Fault::OtherDelimiter`]
    /// without a `delimiter`; the stream's errors.
    pub fn new(source: R, key: Option<&str>, delimiter: Option<u8>) -> Result<Self, ReadError> {
        let is_default = delimiter.is_none();
        let delimiter = delimiter.unwrap_or(b',');
        let quotes = Quotes::new(source, delimiter);
        let mut source = ::csv::ReaderBuilder::new().delimiter(delimiter).from_reader(quotes);
        source.headers().map_err(|error| read_error(error, 1))?;
        check_quotes(&source)?;
        let names = source.headers().map_err(|error| read_error(error, 1))?;
        let header = if names.is_empty() {
            None // An empty file has no rows, for any name of the key.
        } else {
            let check = if is_default { refuse_other_delimiter(names) } else { Ok(()) };
            let header = check.and_then(|()| Header::new(names, key));
            Some(header.map_err(|fault| ReadError::Malformed { line: 1, fault })?)
        };
        Ok(Self { source, header, record: StringRecord::new(), line: 1 })
    }
}

/// Refuses a header of one field that contains a usual separator other than a comma.
fn refuse_other_delimiter(names: &StringRecord) -> Result<(), Fault> {
    let field = if names.len() == 1 { &names[0] } else { "" };
    let others = [(';', ";"), ('\t', "tab"), ('|', "|")];
    match others.into_iter().find(|(delimiter, _)| field.contains(*delimiter)) {
        Some((_, separator)) => Err(Fault::OtherDelimiter { field: field.into(), separator }),
        None => Ok(()),
    }
}

impl<R: BufRead> ReadRows for Reader<R> {
    fn read_row(&mut self, row: &mut Row) -> Result<bool, ReadError> {
        let Some(header) = &self.header else { return Ok(false) };
        let next = self.source.position().line();
        let read = self.source.read_record(&mut self.record);
        check_quotes(&self.source)?; // An open quote explains other errors of the record.
        if !read.map_err(|error| read_error(error, next))? {
            return Ok(false);
        }
        self.line = self.record.position().map_or(next, ::csv::Position::line);
        header
            .row(self.record.iter(), row)
            .map_err(|fault| ReadError::Malformed { line: self.line, fault })?;
        Ok(true)
    }

    fn line(&self) -> u64 {
        self.line
    }

    fn bytes(&self) -> u64 {
        self.source.position().byte()
    }
}

/// Rejects the last record if its last quote is open: the CSV reader would treat the end of the file as the
/// end of the field.
fn check_quotes<R: BufRead>(source: &::csv::Reader<Quotes<R>>) -> Result<(), ReadError> {
    match source.get_ref().open_at_end() {
        Some(line) if source.position().byte() >= source.get_ref().bytes_read() => {
            Err(ReadError::Malformed { line, fault: Fault::OpenQuote })
        }
        _ => Ok(()),
    }
}

/// Translates an error of the CSV reader; `line` is used if the error has none.
fn read_error(error: ::csv::Error, line: u64) -> ReadError {
    let line = error.position().map_or(line, ::csv::Position::line);
    match error.into_kind() {
        ErrorKind::Io(source) => match TooLong::of(&source) {
            Some(TooLong { line, limit }) => ReadError::Malformed { line, fault: Fault::TooLong { limit } },
            None => ReadError::Io { line, source },
        },
        ErrorKind::Utf8 { .. } => ReadError::Malformed { line, fault: Fault::NotUtf8 },
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            ReadError::Malformed { line, fault: Fault::FieldCount { expected: expected_len, found: len } }
        }
        other => ReadError::Io { line, source: io::Error::other(format!("{other:?}")) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str, key: Option<&str>) -> Result<Vec<(String, String)>, ReadError> {
        let mut reader = Reader::new(text.as_bytes(), key, None)?;
        let (mut row, mut rows) = (Row::default(), Vec::new());
        while reader.read_row(&mut row)? {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            rows.push((text(&row.key), text(&row.value)));
        }
        Ok(rows)
    }

    const TEXT: &str = "id,name\n1,\"Doe, \"\"J\"\"\"\n2,\"two\nlines\"\n";

    #[test]
    fn the_value_is_the_record_as_json() {
        let rows = all(TEXT, None).unwrap();
        assert_eq!(rows[0], ("1".into(), r#"{"id":"1","name":"Doe, \"J\""}"#.into()));
        assert_eq!(rows[1], ("2".into(), r#"{"id":"2","name":"two\nlines"}"#.into()));
    }

    #[test]
    fn the_key_is_found_by_name_or_number() {
        assert_eq!(all(TEXT, Some("name")).unwrap()[1].0, "two\nlines");
        assert_eq!(all(TEXT, Some("2")).unwrap()[1].0, "two\nlines");
        assert_eq!(all("2,1\na,b\n", Some("2")).unwrap()[0].0, "a", "a name goes before a number");
        for absent in ["0", "3", "Name"] {
            let error = all(TEXT, Some(absent)).unwrap_err().to_string();
            assert_eq!(error, format!("line 1: no field {absent:?}; the header has id, name"));
        }
    }

    #[test]
    fn a_record_of_another_length_is_refused_with_its_line() {
        let error = all("a,b\n1,\"x\ny\"\n2\n", None).unwrap_err().to_string();
        assert_eq!(error, "line 4: 1 fields where the header has 2");
    }

    #[test]
    fn a_header_that_names_a_field_twice_is_refused() {
        assert_eq!(all("a,b,a\n", None).unwrap_err().to_string(), "line 1: field \"a\" appears twice");
    }

    #[test]
    fn bytes_that_are_not_text_are_refused_with_their_line() {
        let mut reader = Reader::new(&b"a,b\n1,2\n\xff,3\n"[..], None, None).unwrap();
        assert!(reader.read_row(&mut Row::default()).unwrap());
        assert_eq!(reader.read_row(&mut Row::default()).unwrap_err().to_string(), "line 3: not UTF-8");
    }

    #[test]
    fn a_quote_that_is_never_closed_is_refused_with_its_line() {
        for (text, line) in [
            ("a,b\n1,2\n3,\"x\n4,5\n6,7\n", 3),
            ("a,b\n1,\"two\nlines\"\n3,\"x\n4,5\n", 4),
            ("a,b\n\"1\"\",2\n", 2),
            ("a,\"b\n1,2\n", 1),
            ("a,b\n1,\"", 2),
            ("\u{feff}\"a,b\n", 1),
        ] {
            let error = all(text, None).unwrap_err().to_string();
            assert_eq!(error, format!("line {line}: a quote is opened and never closed"), "{text:?}");
        }
        // A quote inside an unquoted field is an ordinary character.
        assert_eq!(all("a,b\n1,5\"\n2\",x\n", None).unwrap().len(), 2);
        assert_eq!(all("a,b\n\"1\"x\",2\n", None).unwrap().len(), 1);
        assert_eq!(all("a,b\r\n\"1\",\"2\"", None).unwrap().len(), 1);
    }

    #[test]
    fn another_byte_may_stand_between_fields() {
        let mut reader = Reader::new(&b"a;b\n1;\"x;y\"\n2;\"z\n"[..], None, Some(b';')).unwrap();
        let mut row = Row::default();
        assert!(reader.read_row(&mut row).unwrap());
        assert_eq!(row.value, br#"{"a":"1","b":"x;y"}"#);
        assert!(reader.read_row(&mut row).unwrap_err().to_string().starts_with("line 3: a quote"));
    }

    #[test]
    fn a_mark_of_byte_order_and_ends_of_windows_belong_to_no_field() {
        let rows = all("\u{feff}id,name\r\n1,a\r\n\r\n2,b", Some("id")).unwrap();
        assert_eq!(rows[1], ("2".into(), r#"{"id":"2","name":"b"}"#.into()));
        assert_eq!(rows.len(), 2);
        assert_eq!(
            all("a,b\n1,2,3\n", None).unwrap_err().to_string(),
            "line 2: 3 fields where the header has 2"
        );
    }

    #[test]
    fn a_header_with_another_separator_is_refused_unless_it_is_given() {
        for (text, option) in [("id;name\n1;a\n", "';'"), ("id\tname\n", "'tab'"), ("id|name\n", "'|'")] {
            let error = Reader::new(text.as_bytes(), None, None).unwrap_err().to_string();
            assert!(
                error.starts_with("line 1: the header is one field") && error.contains(option),
                "{error}"
            );
            assert!(Reader::new(text.as_bytes(), None, Some(b',')).is_ok(), "{text:?}");
        }
        for text in ["id\n1;a\n", "a;b,c\n", ""] {
            assert!(Reader::new(text.as_bytes(), None, None).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn an_empty_file_has_no_rows() {
        assert_eq!(all("", Some("id")).unwrap(), []);
    }

    proptest! {
        /// A file of quoted fields is accepted when complete, and rejected when truncated within a field.
        #[test]
        fn a_file_is_refused_exactly_if_it_ends_in_a_quoted_field(
            fields in proptest::collection::vec("[a\",\r\n]{0,4}", 1..6), cut in 0..1000_usize,
        ) {
            let mut text = b"x\n".to_vec();
            let mut inside = Vec::new();
            for field in &fields {
                text.push(b'"');
                let at = text.len();
                text.extend_from_slice(field.replace('"', "\"\"").as_bytes());
                inside.extend((at..=text.len()).filter(|&end| {
                    text[at..end].iter().rev().take_while(|&&byte| byte == b'"').count() % 2 == 0
                }));
                text.extend_from_slice(b"\"\n");
            }
            let cut = cut % (text.len() + 1);
            let read = all(std::str::from_utf8(&text[..cut]).unwrap(), None);
            let is_open = matches!(read, Err(ReadError::Malformed { fault: Fault::OpenQuote, .. }));
            let text = String::from_utf8_lossy(&text[..cut]);
            prop_assert_eq!(is_open, inside.contains(&cut), "{:?} {:?}", text, read);
        }

        #[test]
        fn every_field_is_read_back_from_the_value(fields in proptest::collection::vec(".*", 1..5)) {
            let names: Vec<String> = (0..fields.len()).map(|at| format!("f{at}")).collect();
            let header = Header::new(names.iter().map(String::as_str), None).unwrap();
            let mut row = Row::default();
            header.row(fields.iter().map(String::as_str), &mut row).unwrap();
            let back: serde_json::Value = serde_json::from_slice(&row.value).unwrap();
            prop_assert_eq!(row.key, fields[0].as_bytes());
            for (name, field) in names.iter().zip(&fields) {
                prop_assert_eq!(back[name].as_str(), Some(field.as_str()));
            }
        }

        #[test]
        fn reading_any_bytes_never_panics(text: Vec<u8>, key: Option<String>) {
            if let Ok(mut reader) = Reader::new(&text[..], key.as_deref(), Some(b',')) {
                while let Ok(true) = reader.read_row(&mut Row::default()) {}
            }
        }
    }
}
