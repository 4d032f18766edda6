//! JSON lines: one object per line. The key is one of its fields; the value is the unchanged line.

use std::borrow::Cow;
use std::fmt;
use std::io::BufRead;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::lines::Lines;
use super::{Fault, MAX_VALUE_BYTES, ReadError, ReadRows, Row};

/// Parses a line (without its newline) into `row`: `field` of the object as key, the line as value.
///
/// The key of a text field is its text. The key of a number is its digits as written (`1.0` and `1` are two
/// keys).
///
/// # Errors
///
/// Any line that is not one JSON object with exactly one `field` that is text or a number.
pub fn parse(line: &[u8], field: &str, row: &mut Row) -> Result<(), Fault> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| Fault::NotUtf8)?;
    row.key.clear();
    row.value.clear();
    append_key(text, field, &mut row.key)?;
    row.value.extend_from_slice(line);
    Ok(())
}

fn append_key(text: &str, field: &str, out: &mut Vec<u8>) -> Result<(), Fault> {
    let mut json = serde_json::Deserializer::from_str(text);
    let found = json
        .deserialize_any(Fields { field })
        .and_then(|found| json.end().map(|()| found))
        .map_err(json_fault)?;
    let kind = |found| Err(Fault::KeyKind { field: field.into(), found });
    match found {
        Found::Absent => Err(Fault::NoField { field: field.into(), present: Vec::new() }),
        Found::Twice => Err(Fault::TwiceTheField { field: field.into() }),
        Found::Once(raw) => match raw.as_bytes().first() {
            Some(b'"') => {
                out.extend_from_slice(
                    serde_json::from_str::<Cow<'_, str>>(raw).map_err(json_fault)?.as_bytes(),
                );
                Ok(())
            }
            Some(b'-' | b'0'..=b'9') => {
                out.extend_from_slice(raw.as_bytes());
                Ok(())
            }
            Some(b't' | b'f') => kind("true or false"),
            Some(b'n') => kind("null"),
            Some(b'[') => kind("an array"),
            _ => kind("an object"),
        },
    }
}

fn json_fault(error: serde_json::Error) -> Fault {
    let text = error.to_string();
    // The JSON text is a single line: its own line number would be confused with the file's.
    Fault::Json(match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("column {column}: {what}"),
        None => text,
    })
}

/// The result of the search for the key field of an object.
enum Found<'de> {
    Absent,
    Once(&'de str),
    Twice,
}

/// A visitor of an object's fields that keeps the JSON text of one field.
struct Fields<'f> {
    field: &'f str,
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Found<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Found<'de>, A::Error> {
        let mut found = Found::Absent;
        while let Some(wanted) = map.next_key_seed(Is(self.field))? {
            if !wanted {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let raw = map.next_value::<&'de RawValue>()?.get();
            found = if matches!(found, Found::Absent) { Found::Once(raw) } else { Found::Twice };
        }
        Ok(found)
    }
}

/// A comparison of a field's name with the name of the key field.
struct Is<'f>(&'f str);

impl<'de> DeserializeSeed<'de> for Is<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, name: D) -> Result<bool, D::Error> {
        name.deserialize_str(self)
    }
}

impl Visitor<'_> for Is<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == self.0)
    }
}

/// Reads rows from lines; blank lines are skipped.
#[derive(Debug)]
pub struct Reader<R> {
    lines: Lines<R>,
    field: String,
}

impl<R: BufRead> Reader<R> {
    /// Returns a reader of `source`, with each object's `field` as its key.
    pub fn new(source: R, field: &str) -> Self {
        Self { lines: Lines::new(source, MAX_VALUE_BYTES), field: field.into() }
    }
}

impl<R: BufRead> ReadRows for Reader<R> {
    fn read_row(&mut self, row: &mut Row) -> Result<bool, ReadError> {
        loop {
            let Some(line) = self.lines.next_line()? else { return Ok(false) };
            if line.trim_ascii().is_empty() {
                continue;
            }
            return match parse(line, &self.field, row) {
                Ok(()) => Ok(true),
                Err(fault) => Err(self.lines.malformed(fault)),
            };
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

    fn key(line: &str) -> Result<String, String> {
        let mut row = Row::default();
        parse(line.as_bytes(), "id", &mut row).map_err(|fault| fault.to_string())?;
        assert_eq!(row.value, line.as_bytes(), "the value is the line");
        Ok(String::from_utf8(row.key).unwrap())
    }

    #[test]
    fn text_is_the_key_as_text_and_a_number_as_it_is_written() {
        assert_eq!(key(r#"{"name": "x", "id": "a\tb\u00e9"}"#).unwrap(), "a\tbé");
        assert_eq!(key(r#"{"id": 1.0}"#).unwrap(), "1.0");
        assert_eq!(
            key(r#"{"id": 123456789012345678901234567890}"#).unwrap(),
            "123456789012345678901234567890"
        );
        assert_eq!(
            key(r#"{"\u0069d": -1e3}"#).unwrap(),
            "-1e3",
            "a field's name may be written with escapes"
        );
    }

    #[test]
    fn other_lines_are_refused_with_the_reason() {
        let refused = |line: &str, part: &str| {
            let error = key(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        };
        refused(r#"{"name": 1}"#, "no field \"id\"");
        refused(r#"{"id": 1, "id": 2}"#, "twice");
        refused(r#"{"id": null}"#, "is null");
        refused(r#"{"id": [1]}"#, "is an array");
        refused(r#"{"id": {}}"#, "is an object");
        refused(r#"{"id": true}"#, "is true or false");
        refused(r#"[1]"#, "a JSON object");
        refused(r#"{"id": 1} 2"#, "column 11: trailing");
        refused(r#"{"id": 1"#, "column 8: EOF");
        refused(&"[".repeat(100_000), "a JSON object");
        refused(&format!("{{\"a\": {}", "[".repeat(100_000)), "column");
    }

    #[test]
    fn blank_lines_are_skipped_and_counted() {
        let mut reader = Reader::new(&b"\n{\"id\":1}\r\n \n{\"id\":2}\nx"[..], "id");
        let mut row = Row::default();
        assert!(reader.read_row(&mut row).unwrap());
        assert_eq!((row.value.as_slice(), reader.line()), (&br#"{"id":1}"#[..], 2));
        assert!(reader.read_row(&mut row).unwrap());
        assert_eq!(reader.read_row(&mut row).unwrap_err().to_string().split(':').next(), Some("line 5"));
    }

    proptest! {
        #[test]
        fn any_text_key_comes_through(text: String, other: i64) {
            let line = serde_json::json!({ "a": [other, { "id": 1 }], "id": text }).to_string();
            prop_assert_eq!(key(&line).unwrap(), text);
        }

        #[test]
        fn reading_any_bytes_never_panics(line: Vec<u8>, text in "[{}\\[\\]\",:0-9a-z\\\\ ]*") {
            let _ = parse(&line, "id", &mut Row::default());
            let _ = parse(format!("{{\"id\":{text}").as_bytes(), "id", &mut Row::default());
        }
    }
}
