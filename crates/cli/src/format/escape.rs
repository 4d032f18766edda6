//! Escapes, which represent any bytes as one field of one line.
//!
//! | bytes | written |
//! |---|---|
//! | tab, newline, carriage return | `\t`, `\n`, `\r` |
//! | backslash | `\\` |
//! | other control characters, U+FEFF, bytes that are not UTF-8 | `\xHH` for each byte |
//! | everything else | unchanged |
//!
//! The decoder accepts exactly these escapes (`\xHH` for any byte). Any other backslash is an error, so that
//! a file that was written without escapes is not changed silently.

/// A backslash that starts none of the escapes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "column {column}: {escape} is not an escape (\\t \\n \\r \\\\ \\xHH are; --raw takes backslashes \
     literally)"
)]
pub struct EscapeError {
    /// Position of the backslash in the field, in bytes from 1.
    pub column: usize,
    /// The backslash and the bytes after it, as far as they were read.
    pub escape: String,
}

/// Appends `bytes` to `out` as text without tabs, line ends or control characters.
pub fn escape(mut bytes: &[u8], out: &mut Vec<u8>) {
    while !bytes.is_empty() {
        let (plain, rest) = bytes.split_at(plain_bytes(bytes));
        out.extend_from_slice(plain);
        // A longer character contains no plain byte, so no character is divided.
        let (others, rest) = rest.split_at(rest.iter().position(is_plain).unwrap_or(rest.len()));
        escape_each(others, out);
        bytes = rest;
    }
}

/// Returns `true` for the characters of ASCII that are written unchanged.
const fn is_plain(byte: &u8) -> bool {
    matches!(byte, b' '..=b'~') && *byte != b'\\'
}

/// Returns the number of plain bytes at the start. Compares 16 bytes at once.
fn plain_bytes(bytes: &[u8]) -> usize {
    let is_all_plain = |chunk: &&[u8; 16]| chunk.iter().fold(true, |all, byte| all & is_plain(byte));
    let chunks = bytes.as_chunks().0.iter().take_while(is_all_plain).count() * 16;
    chunks + bytes[chunks..].iter().position(|byte| !is_plain(byte)).unwrap_or(bytes.len() - chunks)
}

fn escape_each(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            escape_char(character, out);
        }
        chunk.invalid().iter().for_each(|&byte| escape_byte(byte, out));
    }
}

fn escape_char(character: char, out: &mut Vec<u8>) {
    match character {
        '\t' => out.extend_from_slice(b"\\t"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\\' => out.extend_from_slice(b"\\\\"),
        _ => {
            let mut buffer = [0; 4];
            let bytes = character.encode_utf8(&mut buffer).as_bytes();
            if character.is_control() || character == '\u{feff}' {
                bytes.iter().for_each(|&byte| escape_byte(byte, out));
            } else {
                out.extend_from_slice(bytes);
            }
        }
    }
}

fn escape_byte(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(&[b'\\', b'x', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// Returns `bytes` with escapes, for messages.
#[must_use]
pub fn escaped(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    escape(bytes, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Appends the bytes that `text` represents to `out`.
///
/// # Errors
///
/// [`EscapeError`] for a backslash that starts no escape; `out` then contains the bytes before it.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) -> Result<(), EscapeError> {
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let escape = &rest[at..];
        let (byte, used) = read_escape(escape)
            .ok_or_else(|| EscapeError { column: text.len() - escape.len() + 1, escape: shown(escape) })?;
        out.push(byte);
        rest = &escape[used..];
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// Returns the byte that the escape at the front of `text` represents, and the escape's length.
fn read_escape(text: &[u8]) -> Option<(u8, usize)> {
    match text.get(1)? {
        b't' => Some((b'\t', 2)),
        b'n' => Some((b'\n', 2)),
        b'r' => Some((b'\r', 2)),
        b'\\' => Some((b'\\', 2)),
        b'x' => Some((hex(*text.get(2)?)? << 4 | hex(*text.get(3)?)?, 4)),
        _ => None,
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Returns the invalid escape, short enough for a message.
fn shown(escape: &[u8]) -> String {
    let text = String::from_utf8_lossy(&escape[..escape.len().min(8)]);
    let len = if text.starts_with("\\x") { 4 } else { 2 };
    text.chars().take(len).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn back(text: &[u8]) -> Result<Vec<u8>, EscapeError> {
        let mut out = Vec::new();
        unescape(text, &mut out).map(|()| out)
    }

    #[test]
    fn each_special_byte_has_its_escape() {
        assert_eq!(escaped(b"a\tb\nc\rd\\e"), "a\\tb\\nc\\rd\\\\e");
        assert_eq!(escaped(b"\0\x1b[31m\x7f\xff"), "\\x00\\x1b[31m\\x7f\\xff");
        assert_eq!(escaped("校倉 \u{85}".as_bytes()), "校倉 \\xc2\\x85");
    }

    #[test]
    fn a_stray_backslash_is_refused_with_its_column() {
        assert_eq!(back(b"C:\\new\\dir").unwrap_err(), EscapeError { column: 7, escape: "\\d".into() });
        assert_eq!(back(b"\\x4").unwrap_err().escape, "\\x4");
        assert_eq!(back(b"\\xzz").unwrap_err().escape, "\\xzz");
        assert_eq!(back(b"end\\").unwrap_err(), EscapeError { column: 4, escape: "\\".into() });
    }

    proptest! {
        #[test]
        fn escaped_text_is_read_back_unchanged(bytes: Vec<u8>) {
            let text = escaped(&bytes);
            prop_assert!(!text.chars().any(char::is_control));
            prop_assert_eq!(back(text.as_bytes()).unwrap(), bytes);
        }

        #[test]
        fn plain_runs_are_copied_as_their_characters_are_escaped(
            bytes in proptest::collection::vec(prop_oneof![8 => b' '..=b'~', 1 => any::<u8>()], 0..100),
            text in "(plain text of a row|校倉|\t|é){0,8}",
        ) {
            for bytes in [bytes.as_slice(), text.as_bytes()] {
                let mut each = Vec::new();
                escape_each(bytes, &mut each);
                prop_assert_eq!(escaped(bytes).into_bytes(), each);
            }
        }

        #[test]
        fn texts_full_of_backslashes_read_back_the_same(bytes in "[\\\\tnrx0-9a-f\t\n\r\u{0}é]{0,40}") {
            prop_assert_eq!(back(escaped(bytes.as_bytes()).as_bytes()).unwrap(), bytes.as_bytes());
        }

        #[test]
        fn reading_any_bytes_never_panics(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\\'), Just(b'x'), any::<u8>()], 0..40),
        ) {
            let _ = back(&bytes);
        }
    }
}
