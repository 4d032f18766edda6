//! Checks rows against the types of their table. The command writes keys and values as bytes. A program that
//! uses the table's types cannot decode bytes of another form, and each of its scans fails at such a row.

use azekura::{Compressed, Value};
use azekura_base::varint::take_bytes;

use super::{ReadError, ReadRows, Row};

/// A key or value that does not have the form of the table's type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the table has {part}s of type {type_name}, {form}; this {part} {found}")]
pub struct Misfit {
    /// `key` or `value`.
    part: &'static str,
    /// Name of the type.
    type_name: String,
    /// The form of the type.
    form: String,
    /// The form of the bytes.
    found: String,
}

/// The types of a table's rows. Types that programs define, and rows of `Serde`, are not checked.
#[derive(Clone, Debug)]
pub struct RowTypes {
    key: Type,
    value: Type,
}

/// A type: its name, and the form of its bytes.
#[derive(Clone, Debug)]
struct Type {
    name: String,
    form: Form,
}

impl Default for RowTypes {
    /// Returns types that accept all rows.
    fn default() -> Self {
        Self::new("", "")
    }
}

impl RowTypes {
    /// Returns the types with these names.
    #[must_use]
    pub fn new(key: &str, value: &str) -> Self {
        let [key, value] = [key, value].map(|name| Type { name: name.into(), form: Form::of(name, 0) });
        Self { key, value }
    }

    /// Checks the form of a row.
    ///
    /// # Errors
    ///
    /// [`Misfit`]: the key or the value is no encoding of its type.
    pub fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Misfit> {
        self.key.check("key", key, self.key.form.is_key(key))?;
        self.value.check("value", value, self.value.form.is_value(value))
    }
}

impl Type {
    fn check(&self, part: &'static str, bytes: &[u8], is_encoding: bool) -> Result<(), Misfit> {
        if is_encoding {
            return Ok(());
        }
        let (form, found) = match self.form {
            Form::Text => ("which is UTF-8".into(), "is not".into()),
            Form::Bool => ("the byte 0 or 1".into(), "is neither".into()),
            Form::Fixed(len) => (format!("{len} bytes in length"), format!("has {}", bytes.len())),
            Form::Compressed(_) => ("in compressed form".into(), "is not".into()),
            _ => ("encoded part by part".into(), "is not".into()),
        };
        Err(Misfit { part, type_name: self.name.clone(), form, found })
    }
}

/// The form of the bytes of a type.
#[derive(Clone, Debug)]
enum Form {
    /// Any bytes: a type of the program, with an end that only the program finds.
    Unknown,
    Bytes,
    Text,
    Bool,
    Fixed(usize),
    Option(Box<Form>),
    /// LZ4 blocks of values: no key type.
    Compressed(Box<Form>),
    Tuple(Vec<Form>),
}

/// Largest depth of types in types; deeper ones are not checked.
const MAX_DEPTH: usize = 16;

impl Form {
    /// Returns the form of the type with this name, which is inside of `depth` other types.
    fn of(name: &str, depth: usize) -> Self {
        let between = |start: &str, end: char| name.strip_prefix(start)?.strip_suffix(end);
        match name {
            "bytes" => Self::Bytes,
            "str" => Self::Text,
            "bool" => Self::Bool,
            "()" => Self::Fixed(0),
            "u8" | "i8" => Self::Fixed(1),
            "u16" | "i16" => Self::Fixed(2),
            "u32" | "i32" | "f32" => Self::Fixed(4),
            "u64" | "i64" | "f64" => Self::Fixed(8),
            "u128" | "i128" => Self::Fixed(16),
            _ if depth == MAX_DEPTH => Self::Unknown,
            _ => {
                if let Some(len) = between("[u8; ", ']').and_then(|len| len.parse().ok()) {
                    Self::Fixed(len)
                } else if let Some(name) = between("Option<", '>') {
                    Self::Option(Box::new(Self::of(name, depth + 1)))
                } else if let Some(name) = between("Compressed<", '>') {
                    Self::Compressed(Box::new(Self::of(name, depth + 1)))
                } else if let Some(names) = between("(", ')') {
                    Self::Tuple(parts(names).into_iter().map(|name| Self::of(name, depth + 1)).collect())
                } else {
                    Self::Unknown
                }
            }
        }
    }

    /// Returns `true` if the bytes are a key of this form.
    fn is_key(&self, mut bytes: &[u8]) -> bool {
        match self.take_key(&mut bytes, true) {
            Taken::Whole => bytes.is_empty(),
            Taken::Unknown => true,
            Taken::Misfit => false,
        }
    }

    /// Removes a part of a key from `input`; the last part has no terminator.
    fn take_key(&self, input: &mut &[u8], is_last: bool) -> Taken {
        let is_taken = match self {
            Self::Unknown | Self::Compressed(_) => return Taken::Unknown,
            Self::Bytes => take_text(input, is_last).is_some(),
            Self::Text => take_text(input, is_last).is_some_and(|text| String::from_utf8(text).is_ok()),
            Self::Bool => take_byte(input).is_some_and(|byte| byte <= 1),
            Self::Fixed(len) => match input.split_at_checked(*len) {
                Some((_, rest)) => {
                    *input = rest;
                    true
                }
                None => false,
            },
            Self::Option(part) => match take_byte(input) {
                Some(0) => true,
                Some(1) => return part.take_key(input, is_last),
                _ => false,
            },
            Self::Tuple(parts) => {
                for (at, part) in parts.iter().enumerate() {
                    match part.take_key(input, is_last && at + 1 == parts.len()) {
                        Taken::Whole => {}
                        other => return other,
                    }
                }
                true
            }
        };
        if is_taken { Taken::Whole } else { Taken::Misfit }
    }

    /// Returns `true` if the bytes are a value of this form.
    fn is_value(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Unknown | Self::Bytes => true,
            Self::Text => std::str::from_utf8(bytes).is_ok(),
            Self::Bool => matches!(bytes, [0 | 1]),
            Self::Fixed(len) => bytes.len() == *len,
            Self::Option(part) => match bytes {
                [0] => true,
                [1, value @ ..] => part.is_value(value),
                _ => false,
            },
            Self::Compressed(part) => {
                Compressed::<[u8]>::decode(bytes).is_ok_and(|plain| part.is_value(&plain))
            }
            Self::Tuple(parts) => {
                let Some((last, parts)) = parts.split_last() else { return false };
                let mut rest = bytes;
                parts.iter().all(|part| take_bytes(&mut rest).is_some_and(|bytes| part.is_value(bytes)))
                    && last.is_value(rest)
            }
        }
    }
}

/// The result of removing a part of a key.
enum Taken {
    Whole,
    /// The end of the part, and so the parts after it, cannot be found.
    Unknown,
    Misfit,
}

/// Splits the names of the parts of a tuple, at the commas outside of other types.
fn parts(names: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, character) in names.char_indices() {
        match character {
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(names[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(names[from..].trim());
    parts
}

fn take_byte(input: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = input.split_first()?;
    *input = rest;
    Some(byte)
}

/// Removes bytes or text: all bytes if no part follows, otherwise up to the terminator `00 00`; a zero in the
/// part is `00 FF`.
fn take_text(input: &mut &[u8], is_last: bool) -> Option<Vec<u8>> {
    if is_last {
        return Some(std::mem::take(input).to_vec());
    }
    let mut text = Vec::new();
    loop {
        let byte = take_byte(input)?;
        if byte == 0 {
            match take_byte(input)? {
                0 => return Some(text),
                0xff => {}
                _ => return None,
            }
        }
        text.push(byte);
    }
}

/// A stream of rows that ends with an error at the first row of another form.
pub struct Checked<'a> {
    rows: Box<dyn ReadRows + 'a>,
    types: RowTypes,
}

impl std::fmt::Debug for Checked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checked").field("types", &self.types).finish_non_exhaustive()
    }
}

impl<'a> Checked<'a> {
    /// Returns the rows of `rows`, which must have the form of these types.
    #[must_use]
    pub fn new(rows: Box<dyn ReadRows + 'a>, types: RowTypes) -> Self {
        Self { rows, types }
    }
}

impl ReadRows for Checked<'_> {
    fn read_row(&mut self, row: &mut Row) -> Result<bool, ReadError> {
        let is_row = self.rows.read_row(row)?;
        if is_row {
            let checked = self.types.check(&row.key, &row.value);
            checked.map_err(|misfit| ReadError::Malformed { line: self.line(), fault: misfit.into() })?;
        }
        Ok(is_row)
    }

    fn line(&self) -> u64 {
        self.rows.line()
    }

    fn bytes(&self) -> u64 {
        self.rows.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use azekura::Key;
    use proptest::prelude::*;

    fn agrees_as_key<K: Key>(bytes: &[u8]) {
        let types = RowTypes::new(&K::type_name(), "");
        assert_eq!(types.check(bytes, b"").is_ok(), K::decode(bytes).is_ok(), "{types:?} {bytes:?}");
    }

    fn agrees_as_value<V: Value>(bytes: &[u8]) {
        let types = RowTypes::new("", &V::type_name());
        assert_eq!(types.check(b"", bytes).is_ok(), V::decode(bytes).is_ok(), "{types:?} {bytes:?}");
    }

    fn agrees<T: Key + Value>(bytes: &[u8]) {
        agrees_as_key::<T>(bytes);
        agrees_as_value::<T>(bytes);
    }

    #[test]
    fn a_row_is_accepted_exactly_if_a_program_can_decode_it() {
        for len in 0..20 {
            for byte in [0, 1, b'x', 0xff] {
                let bytes = vec![byte; len];
                agrees::<u8>(&bytes);
                agrees::<i16>(&bytes);
                agrees::<u32>(&bytes);
                agrees::<i64>(&bytes);
                agrees::<u128>(&bytes);
                agrees::<bool>(&bytes);
                agrees::<String>(&bytes);
                agrees::<Vec<u8>>(&bytes);
                agrees::<[u8; 3]>(&bytes);
                agrees_as_value::<()>(&bytes);
                agrees_as_value::<f64>(&bytes);
            }
        }
    }

    proptest! {
        #[test]
        fn a_composed_row_is_accepted_exactly_if_a_program_can_decode_it(
            bytes in proptest::collection::vec(
                prop_oneof![3 => 0_u8..=3, 1 => Just(b'x'), 1 => Just(0xff_u8)], 0..14,
            ),
        ) {
            agrees::<Option<u8>>(&bytes);
            agrees::<(u8, String)>(&bytes);
            agrees::<(String, u16)>(&bytes);
            agrees::<(Vec<u8>, Option<(bool, String)>)>(&bytes);
            agrees::<(Option<String>, [u8; 2], Option<Vec<u8>>)>(&bytes);
            agrees::<((String, bool), (u8, String))>(&bytes);
            agrees_as_value::<(f32, Option<()>, String)>(&bytes);
            agrees_as_value::<Compressed<(u8, String)>>(&bytes);
        }
    }

    #[test]
    fn types_of_programs_are_not_checked() {
        let deep = ["(".repeat(100_000), ")".repeat(100_000)].concat();
        for types in [
            RowTypes::default(),
            RowTypes::new("UserId", "Serde<Vec<(u8, u8)>>"),
            RowTypes::new("(UserId, u64)", "(UserId, Serde<(u8, u8)>)"),
            RowTypes::new(&deep, &deep),
        ] {
            assert_eq!(types.check(b"\x03any", b"\x03any"), Ok(()), "{:?}", types.key.form);
        }
        // A part before an unknown one is checked, and each part of a value.
        assert!(RowTypes::new("(bool, UserId)", "").check(b"x", b"").is_err());
        assert!(RowTypes::new("", "(UserId, bool)").check(b"", b"\x01xx").is_err());
    }

    #[test]
    fn a_compressed_value_is_checked_as_a_program_decodes_it() {
        let mut block = Vec::new();
        <Compressed<str> as azekura::EncodeValue<str>>::encode(&"text".repeat(100), &mut block).unwrap();
        let check = |name: &str, value: &[u8]| RowTypes::new("", name).check(b"", value);
        assert_eq!(check("Compressed<str>", &block), Ok(()));
        let said = check("Compressed<u64>", &block).unwrap_err().to_string();
        assert!(said.ends_with("in compressed form; this value is not"), "{said}");
        assert!(check("Compressed<str>", b"text").is_err());
    }

    #[test]
    fn a_misfit_names_the_type_and_the_form() {
        let said = RowTypes::new("(str, u64)", "").check(b"Nara", b"").unwrap_err().to_string();
        assert_eq!(said, "the table has keys of type (str, u64), encoded part by part; this key is not");
        let said = RowTypes::new("", "u64").check(b"", b"Nara").unwrap_err().to_string();
        assert_eq!(said, "the table has values of type u64, 8 bytes in length; this value has 4");
    }
}
