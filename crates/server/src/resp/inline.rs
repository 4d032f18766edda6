//! Inline requests: a line of words, as typed into `telnet`.

use std::ops::Range;

use super::ProtocolError;

/// Splits `line` into words at blanks, and appends their bytes to `words`. In `"…"` the escapes `\n \r \t \b
/// \a \\ \" \xHH` are accepted, in `'…'` only `\'`.
pub(super) fn split(
    line: &[u8],
    words: &mut Vec<u8>,
    found: &mut Vec<Range<usize>>,
) -> Result<(), ProtocolError> {
    let mut rest = line.trim_ascii();
    while !rest.is_empty() {
        let start = words.len();
        rest = word(rest, words)?;
        found.push(start..words.len());
        rest = rest.trim_ascii_start();
    }
    Ok(())
}

/// Appends the word at the beginning of `rest`, and returns the bytes after it. As in Redis, quotes may begin
/// inside a word, and end it.
fn word<'a>(rest: &'a [u8], words: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    let ends = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'');
    let (plain, rest) = rest.split_at(rest.iter().position(ends).unwrap_or(rest.len()));
    words.extend_from_slice(plain);
    match rest {
        [b'"', rest @ ..] => double_quoted(rest, words),
        [b'\'', rest @ ..] => single_quoted(rest, words),
        rest => Ok(rest),
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        rest = match rest {
            [b'\\', b'\'', rest @ ..] => {
                words.push(b'\'');
                rest
            }
            [b'\'', rest @ ..] => return closed(rest),
            [byte, rest @ ..] => {
                words.push(*byte);
                rest
            }
            [] => return Err(ProtocolError::Quotes),
        };
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], words: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|d| u8::try_from(d).ok());
    loop {
        rest = match rest {
            [b'\\', b'x', high, low, rest @ ..] if digit(*high).is_some() && digit(*low).is_some() => {
                words.push(digit(*high).unwrap_or(0) << 4 | digit(*low).unwrap_or(0));
                rest
            }
            [b'\\', byte, rest @ ..] => {
                words.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest
            }
            [b'"', rest @ ..] => return closed(rest),
            [byte, rest @ ..] => {
                words.push(*byte);
                rest
            }
            [] => return Err(ProtocolError::Quotes),
        };
    }
}

/// Checks that a closing quote ends its word; returns `rest`.
fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    if rest.first().is_none_or(u8::is_ascii_whitespace) { Ok(rest) } else { Err(ProtocolError::Quotes) }
}
