//! Replies, in either version of the protocol.

use std::borrow::Cow;

use super::Sink;
use crate::error::CommandError;

/// Protocol version of a connection: 2 until `HELLO 3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Resp2,
    Resp3,
}

impl Protocol {
    pub(crate) const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Format of a verbatim string: plain text.
const VERBATIM_FORMAT: &[u8] = b"txt:";

/// A reply to a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// A simple string, such as `+OK`.
    Simple(&'static str),
    Integer(i64),
    Bulk(Vec<u8>),
    /// The value of a stored record: the record's bytes from a position on.
    Stored(Vec<u8>, usize),
    /// No value.
    Null,
    /// A null array: the reply of `EXEC` after a watched key changed.
    NullArray,
    Array(Vec<Self>),
    /// Distinct items without an order; an array in RESP2.
    Set(Vec<Self>),
    /// Text for people; a bulk string in RESP2.
    Verbatim(String),
    /// A map of pairs; a flat array in RESP2.
    Map(Vec<(Self, Self)>),
    Error(CommandError),
    /// A reply that another node has already encoded for this connection.
    Encoded(Vec<u8>),
}

impl Reply {
    pub(crate) const OK: Self = Self::Simple("OK");

    pub(crate) fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Bulk(text.into().into_owned().into_bytes())
    }

    pub(crate) fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    pub(crate) fn flag(flag: bool) -> Self {
        Self::Integer(i64::from(flag))
    }

    /// Returns the size of the value in a reply with one value.
    pub(crate) const fn value_bytes(&self) -> usize {
        match self {
            Self::Bulk(bytes) | Self::Stored(bytes, _) | Self::Encoded(bytes) => bytes.len(),
            Self::Verbatim(text) => text.len(),
            _ => 0,
        }
    }

    /// Returns the memory of the reply, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        let parts = match self {
            Self::Array(items) | Self::Set(items) => items.iter().map(Self::held_bytes).sum(),
            Self::Map(pairs) => pairs.iter().map(|(key, value)| key.held_bytes() + value.held_bytes()).sum(),
            one => one.value_bytes(),
        };
        size_of::<Self>() + parts
    }

    pub(crate) fn bulk_or_null(value: Option<Vec<u8>>) -> Self {
        value.map_or(Self::Null, Self::Bulk)
    }

    /// Appends this reply in the encoding of `protocol`.
    pub(crate) fn encode(self, protocol: Protocol, sink: &mut impl Sink) {
        let out = sink.small();
        match self {
            Self::Simple(text) => line(out, b'+', text.as_bytes()),
            Self::Integer(number) => integer(out, number),
            Self::Bulk(bytes) => bulk(sink, bytes, 0),
            Self::Stored(bytes, from) => bulk(sink, bytes, from),
            Self::Null if protocol == Protocol::Resp2 => out.extend_from_slice(b"$-1\r\n"),
            Self::NullArray if protocol == Protocol::Resp2 => out.extend_from_slice(b"*-1\r\n"),
            Self::Null | Self::NullArray => out.extend_from_slice(b"_\r\n"),
            Self::Array(items) => {
                head(out, b'*', items.len());
                items.into_iter().for_each(|item| item.encode(protocol, sink));
            }
            Self::Set(items) => {
                head(out, if protocol == Protocol::Resp2 { b'*' } else { b'~' }, items.len());
                items.into_iter().for_each(|item| item.encode(protocol, sink));
            }
            Self::Verbatim(text) if protocol == Protocol::Resp2 => bulk(sink, text.into_bytes(), 0),
            Self::Verbatim(text) => {
                head(out, b'=', VERBATIM_FORMAT.len() + text.len());
                out.extend_from_slice(VERBATIM_FORMAT);
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Self::Map(pairs) => {
                match protocol {
                    Protocol::Resp2 => head(out, b'*', pairs.len() * 2),
                    Protocol::Resp3 => head(out, b'%', pairs.len()),
                }
                for (key, value) in pairs {
                    key.encode(protocol, sink);
                    value.encode(protocol, sink);
                }
            }
            Self::Encoded(bytes) => sink.value(bytes, 0),
            Self::Error(error) => {
                out.push(b'-');
                // A message may contain bytes of a client. A line break in it would end the reply.
                let message = error.to_string();
                out.extend(message.bytes().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { b }));
                out.extend_from_slice(b"\r\n");
            }
        }
    }
}

/// Appends a bulk string: the bytes from `from` on.
fn bulk(sink: &mut impl Sink, bytes: Vec<u8>, from: usize) {
    head(sink.small(), b'$', bytes.len() - from);
    sink.value(bytes, from);
    sink.small().extend_from_slice(b"\r\n");
}

/// Appends a type byte and a length.
fn head(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    put_digits(out, number as u64);
    out.extend_from_slice(b"\r\n");
}

fn integer(out: &mut Vec<u8>, number: i64) {
    out.push(b':');
    if number < 0 {
        out.push(b'-');
    }
    put_digits(out, number.unsigned_abs());
    out.extend_from_slice(b"\r\n");
}

/// Appends the digits of a number. Uses no formatter, because most replies contain a number.
fn put_digits(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

fn line(out: &mut Vec<u8>, kind: u8, text: &[u8]) {
    out.push(kind);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(reply: Reply, protocol: Protocol) -> String {
        let mut out = Vec::new();
        reply.encode(protocol, &mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn maps_and_nulls_differ_between_the_versions() {
        let map = Reply::Map(vec![(Reply::text("a"), Reply::Null)]);
        assert_eq!(encoded(map.clone(), Protocol::Resp2), "*2\r\n$1\r\na\r\n$-1\r\n");
        assert_eq!(encoded(map, Protocol::Resp3), "%1\r\n$1\r\na\r\n_\r\n");
        assert_eq!(encoded(Reply::NullArray, Protocol::Resp2), "*-1\r\n");
    }

    #[test]
    fn texts_and_sets_have_types_of_their_own_in_version_3() {
        let text = Reply::Verbatim("role:master\r\n".into());
        assert_eq!(encoded(text.clone(), Protocol::Resp2), "$13\r\nrole:master\r\n\r\n");
        assert_eq!(encoded(text, Protocol::Resp3), "=17\r\ntxt:role:master\r\n\r\n");
        let set = Reply::Set(vec![Reply::Simple("write")]);
        assert_eq!(encoded(set.clone(), Protocol::Resp2), "*1\r\n+write\r\n");
        assert_eq!(encoded(set, Protocol::Resp3), "~1\r\n+write\r\n");
    }

    #[test]
    fn numbers_are_those_that_the_standard_library_writes() {
        let powers = (0..64).flat_map(|bit| [1_i64 << bit, (1_i64 << bit).wrapping_sub(1)]);
        let tens = (0..19).map(|power| 10_i64.pow(power));
        for number in powers.chain(tens).flat_map(|n| [n, n.wrapping_neg(), n.wrapping_sub(1)]) {
            assert_eq!(encoded(Reply::Integer(number), Protocol::Resp2), format!(":{number}\r\n"));
        }
        for len in [0, 1, 9, 10, 99, 100, 12_345] {
            let bulk = encoded(Reply::Bulk(vec![b'x'; len]), Protocol::Resp2);
            assert_eq!(bulk, format!("${len}\r\n{}\r\n", "x".repeat(len)));
        }
    }

    #[test]
    fn an_error_stays_on_its_line() {
        let error = Reply::Error(CommandError::Protocol("a\r\n+OK".into()));
        assert_eq!(encoded(error, Protocol::Resp2).matches("\r\n").count(), 1);
    }
}
