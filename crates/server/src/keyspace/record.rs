//! The record stored at a key: a head with the value's kind and its expiration, then the value.
//!
//! | bits of the first byte | meaning |
//! |---|---|
//! | 0 | set: 8 bytes follow, big-endian: milliseconds since 1970 at which the key expires |
//! | 1, 2 | [`Form`] |
//! | 3 to 7 | zero; other values are reserved for other types, and such a record is refused |

use std::ops::Range;

use azekura::{Error, ValueRef};

use crate::resp::Reply;

/// Bit of the first byte that is set if the key expires.
const EXPIRES: u8 = 1;
/// Position of the form's bits in the first byte.
const FORM_SHIFT: u32 = 1;
const EXPIRES_HEAD: usize = 9;
/// Largest size of a record's head, in bytes.
pub(crate) const MAX_HEAD_BYTES: usize = EXPIRES_HEAD;

/// Origin of the value. Redis chooses the encoding of a value by its origin, and `OBJECT ENCODING` shows that
/// encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Form {
    /// Stored whole. Redis encodes such a value as a number if it reads as one.
    #[default]
    Assigned = 0,
    /// Stored whole as text, even if it reads as a number: the result of `INCRBYFLOAT`.
    Text = 1,
    /// Changed in place (`APPEND`, `SETRANGE`, `SETBIT`), or the result of `BITOP`.
    Changed = 2,
}

impl Form {
    const ALL: [Self; 3] = [Self::Assigned, Self::Text, Self::Changed];
}

/// A stored value, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef<'a> {
    /// Milliseconds since 1970.
    pub(crate) expires_ms: Option<u64>,
    pub(crate) form: Form,
    pub(crate) value: &'a [u8],
}

impl<'a> RecordRef<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let (&first, rest) = bytes.split_first().ok_or_else(|| unknown(bytes))?;
        let form = Form::ALL.get(usize::from(first >> FORM_SHIFT)).ok_or_else(|| unknown(bytes))?;
        if first & EXPIRES == 0 {
            return Ok(Self { expires_ms: None, form: *form, value: rest });
        }
        let (at, value) = rest.split_first_chunk().ok_or_else(|| unknown(bytes))?;
        Ok(Self { expires_ms: Some(u64::from_be_bytes(*at)), form: *form, value })
    }

    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at > now_ms)
    }
}

/// A stored record of which only the head has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LentRecord<'v> {
    pub(crate) expires_ms: Option<u64>,
    stored: ValueRef<'v>,
}

impl<'v> LentRecord<'v> {
    /// Reads the head of a stored record. Reads a single page of a large record.
    pub(crate) fn of(stored: ValueRef<'v>) -> Result<Self, Error> {
        let mut head = [0; MAX_HEAD_BYTES];
        let len = stored.read_at(0, &mut head)?;
        let RecordRef { expires_ms, .. } = RecordRef::decode(&head[..len])?;
        Ok(Self { expires_ms, stored })
    }

    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at > now_ms)
    }

    /// Returns the size of the stored record.
    pub(crate) fn stored_bytes(&self) -> usize {
        usize::try_from(self.stored.len()).unwrap_or(usize::MAX)
    }

    /// Returns the length of the value, in bytes.
    pub(crate) fn value_len(&self) -> usize {
        self.stored_bytes().saturating_sub(head_bytes(self.expires_ms))
    }

    /// Reads a part of the value. `part` must lie inside the value.
    pub(crate) fn read(&self, part: Range<usize>) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; part.len()];
        let at = head_bytes(self.expires_ms) + part.start;
        let len = self.stored.read_at(at as u64, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }
}

fn unknown(bytes: &[u8]) -> Error {
    Error::Invalid(format!(
        "a record of {} bytes in table {:?} has an unknown type; use the version of Azekura that wrote it",
        bytes.len(),
        super::KEYS_TABLE
    ))
}

/// A stored value. The bytes stay in the buffer of their record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) expires_ms: Option<u64>,
    pub(crate) form: Form,
    bytes: Vec<u8>,
}

impl Record {
    pub(crate) fn decode(bytes: Vec<u8>) -> Result<Self, Error> {
        let RecordRef { expires_ms, form, .. } = RecordRef::decode(&bytes)?;
        Ok(Self { expires_ms, form, bytes })
    }

    pub(crate) fn value(&self) -> &[u8] {
        &self.bytes[head_bytes(self.expires_ms)..]
    }

    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at > now_ms)
    }

    /// Returns the value as a reply.
    pub(crate) fn into_reply(self) -> Reply {
        Reply::Stored(self.bytes, head_bytes(self.expires_ms))
    }
}

/// Returns the number of bytes before the value in a record.
pub(crate) const fn head_bytes(expires_ms: Option<u64>) -> usize {
    if expires_ms.is_some() { EXPIRES_HEAD } else { 1 }
}

/// Largest record that is built on the stack, in bytes.
const SMALL_BYTES: usize = 128;

/// Passes the bytes of a record to `each`.
pub(crate) fn encoded<T>(
    value: &[u8],
    expires_ms: Option<u64>,
    form: Form,
    each: impl FnOnce(&[u8]) -> T,
) -> T {
    let mut head = [(form as u8) << FORM_SHIFT; EXPIRES_HEAD];
    if let Some(at) = expires_ms {
        head[0] |= EXPIRES;
        head[1..].copy_from_slice(&at.to_be_bytes());
    }
    let head = &head[..head_bytes(expires_ms)];
    let len = head.len() + value.len();
    if len > SMALL_BYTES {
        return each(&[head, value].concat());
    }
    let mut bytes = [0; SMALL_BYTES];
    bytes[..head.len()].copy_from_slice(head);
    bytes[head.len()..len].copy_from_slice(value);
    each(&bytes[..len])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        let ends = [None, Some(0), Some(u64::MAX)];
        for (expires_ms, form) in ends.into_iter().flat_map(|at| Form::ALL.map(|form| (at, form))) {
            let long = [7; 1000];
            for value in
                [&b""[..], b"\0\x01", b"value", &long[..118], &long[..119], &long[..127], &long[..128], &long]
            {
                encoded(value, expires_ms, form, |bytes| {
                    let record = RecordRef { expires_ms, form, value };
                    assert_eq!(RecordRef::decode(bytes).expect("whole"), record);
                    assert_eq!(bytes.len(), head_bytes(expires_ms) + value.len());
                });
            }
        }
    }

    #[test]
    fn a_record_of_another_type_is_refused() {
        for bytes in [&b""[..], b"\x06abc", b"\x08abc", b"\x01\0\0\0", b"\xff"] {
            assert!(RecordRef::decode(bytes).is_err());
        }
    }
}
