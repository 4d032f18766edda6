//! What is stored at a key: a head that says what the value is and when it ends, then the value.
//!
//! | first byte | then |
//! |---|---|
//! | `00` | the bytes of a string that stays |
//! | `01` | 8 bytes, big-endian: milliseconds since 1970 at which the string ends; its bytes |
//!
//! Other first bytes are for types to come; a record with one is refused, not guessed at.

use azekura::Error;

const STAYS: u8 = 0;
const EXPIRES: u8 = 1;
const EXPIRES_HEAD: usize = 9;
/// Bytes of a record that say when it ends.
pub(crate) const MAX_HEAD_BYTES: usize = EXPIRES_HEAD;

/// A stored value, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordRef<'a> {
    /// Milliseconds since 1970.
    pub(crate) expires_ms: Option<u64>,
    pub(crate) value: &'a [u8],
}

impl<'a> RecordRef<'a> {
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        match bytes.split_first() {
            Some((&STAYS, value)) => Ok(Self { expires_ms: None, value }),
            Some((&EXPIRES, rest)) => {
                let (at, value) = rest.split_first_chunk().ok_or_else(|| unknown(bytes))?;
                Ok(Self { expires_ms: Some(u64::from_be_bytes(*at)), value })
            }
            _ => Err(unknown(bytes)),
        }
    }

    /// Bytes that it takes as it is stored.
    pub(crate) const fn stored_bytes(&self) -> usize {
        head_bytes(self.expires_ms) + self.value.len()
    }

    pub(crate) fn is_live(&self, now_ms: u64) -> bool {
        self.expires_ms.is_none_or(|at| at > now_ms)
    }
}

fn unknown(bytes: &[u8]) -> Error {
    Error::Invalid(format!(
        "a record of {} bytes is of no type that this version knows; was table {:?} written by a newer one?",
        bytes.len(),
        super::KEYS_TABLE
    ))
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) expires_ms: Option<u64>,
    pub(crate) value: Vec<u8>,
}

/// Bytes of a record in front of its value.
pub(crate) const fn head_bytes(expires_ms: Option<u64>) -> usize {
    if expires_ms.is_some() { EXPIRES_HEAD } else { 1 }
}

/// Records up to this size are put together without asking for memory.
const SMALL_BYTES: usize = 128;

/// Hands the bytes of a record to `each`.
pub(crate) fn encoded<T>(value: &[u8], expires_ms: Option<u64>, each: impl FnOnce(&[u8]) -> T) -> T {
    let mut head = [STAYS; EXPIRES_HEAD];
    if let Some(at) = expires_ms {
        head[0] = EXPIRES;
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
    fn records_come_back_as_they_were() {
        for expires_ms in [None, Some(0), Some(u64::MAX)] {
            let long = [7; 1000];
            for value in
                [&b""[..], b"\0\x01", b"value", &long[..118], &long[..119], &long[..127], &long[..128], &long]
            {
                encoded(value, expires_ms, |bytes| {
                    assert_eq!(RecordRef::decode(bytes).expect("whole"), RecordRef { expires_ms, value });
                    assert_eq!(bytes.len(), head_bytes(expires_ms) + value.len());
                });
            }
        }
    }

    #[test]
    fn a_record_of_another_type_is_refused() {
        for bytes in [&b""[..], b"\x02abc", b"\x01\0\0\0", b"\xff"] {
            assert!(RecordRef::decode(bytes).is_err());
        }
    }
}
