//! Checks rows against the types of their table. The command writes keys and values as bytes. A program that
//! uses the table's types cannot decode bytes of another form, and each of its scans fails at such a row.

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

/// The types of a table's rows, by name. Types that are not fixed in length, except text, are not checked.
#[derive(Clone, Debug, Default)]
pub struct RowTypes {
    /// Name of the key type.
    pub key: String,
    /// Name of the value type.
    pub value: String,
}

impl RowTypes {
    /// Checks the form of a row.
    ///
    /// # Errors
    ///
    /// [`Misfit`]: the key or the value has another length than its type, or is no text.
    pub fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Misfit> {
        check("key", &self.key, key)?;
        check("value", &self.value, value)
    }
}

fn check(part: &'static str, type_name: &str, bytes: &[u8]) -> Result<(), Misfit> {
    let misfit = |form: &str, found: &str| {
        Err(Misfit { part, type_name: type_name.into(), form: form.into(), found: found.into() })
    };
    let len: usize = match type_name {
        "str" if std::str::from_utf8(bytes).is_err() => return misfit("which is UTF-8", "is not"),
        "bool" if !matches!(bytes, [0 | 1]) => return misfit("the byte 0 or 1", "is neither"),
        "()" => 0,
        "u8" | "i8" => 1,
        "u16" | "i16" => 2,
        "u32" | "i32" | "f32" => 4,
        "u64" | "i64" | "f64" => 8,
        "u128" | "i128" => 16,
        _ => match type_name.strip_prefix("[u8; ").and_then(|rest| rest.strip_suffix(']')?.parse().ok()) {
            Some(len) => len,
            None => return Ok(()),
        },
    };
    if bytes.len() == len {
        return Ok(());
    }
    misfit(&format!("{len} bytes in length"), &format!("has {}", bytes.len()))
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
    use azekura::{Key, Value};

    fn agrees<T: Key + Value>(bytes: &[u8]) {
        let types = RowTypes { key: <T as Key>::type_name(), value: <T as Value>::type_name() };
        let is_key = <T as Key>::decode(bytes).is_ok();
        assert_eq!(check("key", &types.key, bytes).is_ok(), is_key, "{types:?} {bytes:?}");
        assert_eq!(check("value", &types.value, bytes).is_ok(), <T as Value>::decode(bytes).is_ok());
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
                let (unit, float) = (<() as Value>::type_name(), <f64 as Value>::type_name());
                assert_eq!(check("value", &unit, &bytes).is_ok(), len == 0);
                assert_eq!(check("value", &float, &bytes).is_ok(), len == 8);
            }
        }
        assert_eq!(check("key", "(u64, str)", b"unchecked"), Ok(()));
    }
}
