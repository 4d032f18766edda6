//! `DUMP` and `RESTORE`: values in the serialization of Redis, for tools that copy keys between servers.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | type: 0, a string |
//! | n | the string: its length and bytes, or an integer, or bytes that are compressed by LZF |
//! | 2 | version of the format, little-endian |
//! | 8 | CRC-64 of all bytes before, little-endian |

use azekura_base::blocking;

use super::CommandResult;
use super::arguments::{Options, integer, is_word};
use crate::error::CommandError;
use crate::keyspace::{Expiry, Keyspace};
use crate::resp::{Reply, Request, number};

/// Version of the format that `DUMP` writes: that of Redis 7.0, so that this version and later ones read it.
const WRITTEN_VERSION: u16 = 10;
/// Newest known version of the format. The serialization of strings has not changed since version 5.
const NEWEST_VERSION: u16 = 12;
/// Type of a string.
const STRING: u8 = 0;
/// First bytes of integers of 1, 2 and 4 bytes, and of a compressed string.
const INTEGER: [u8; 3] = [0xc0, 0xc1, 0xc2];
const COMPRESSED: u8 = 0xc3;
/// First bytes of lengths of 4 and 8 bytes.
const LENGTH_4: u8 = 0x80;
const LENGTH_8: u8 = 0x81;
const FOOTER_BYTES: usize = 10;
/// Size of a payload in bytes from which on another thread serves the reactor's other connections meanwhile.
const LONG_PAYLOAD: usize = 1 << 20;

/// Remainders of the CRC-64 of Redis, by the next byte.
static CRC: [u64; 256] = {
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5; // reflected
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u64, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1));
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| CRC[usize::from(byte ^ crc.to_le_bytes()[0])] ^ (crc >> 8))
}

/// Returns the serialization of a string. Redis reads it, and writes it itself if the string is short.
fn serialized(value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![STRING];
    let small = number(value).filter(|_| value.len() <= 11).and_then(|number| i32::try_from(number).ok());
    if let Some(small) = small {
        let size = match small {
            -0x80..=0x7f => 0,
            -0x8000..=0x7fff => 1,
            _ => 2,
        };
        bytes.push(INTEGER[size]);
        bytes.extend_from_slice(&small.to_le_bytes()[..1 << size]);
    } else {
        let len = value.len() as u64;
        match len.to_be_bytes() {
            [.., low] if len < 64 => bytes.push(low),
            [.., high, low] if len < 1 << 14 => bytes.extend_from_slice(&[0x40 | high, low]),
            [0, 0, 0, 0, low @ ..] => {
                bytes.push(LENGTH_4);
                bytes.extend_from_slice(&low);
            }
            all => {
                bytes.push(LENGTH_8);
                bytes.extend_from_slice(&all);
            }
        }
        bytes.extend_from_slice(value);
    }
    bytes.extend_from_slice(&WRITTEN_VERSION.to_le_bytes());
    let crc = crc64(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// Takes a part from the front of `bytes`.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (part, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*part)
}

/// Takes a length from the front of `bytes`, of which `first` was taken.
fn length(first: u8, bytes: &mut &[u8]) -> Option<usize> {
    let length = match first {
        0..0x40 => u64::from(first),
        0x40..0x80 => u64::from(first & 0x3f) << 8 | u64::from(take::<1>(bytes)?[0]),
        LENGTH_4 => u64::from(u32::from_be_bytes(take(bytes)?)),
        LENGTH_8 => u64::from_be_bytes(take(bytes)?),
        _ => return None,
    };
    usize::try_from(length).ok()
}

/// Takes a string of at most `max` bytes from the front of `bytes`. Returns `None` if it is malformed.
fn string(mut bytes: &[u8], max: usize) -> Option<Result<Vec<u8>, CommandError>> {
    let bytes = &mut bytes;
    let [first] = take(bytes)?;
    let integer = match first {
        0xc0 => Some(i32::from(i8::from_le_bytes(take(bytes)?))),
        0xc1 => Some(i32::from(i16::from_le_bytes(take(bytes)?))),
        0xc2 => Some(i32::from_le_bytes(take(bytes)?)),
        _ => None,
    };
    if let Some(integer) = integer {
        return Some(Ok(integer.to_string().into_bytes()));
    }
    if first == COMPRESSED {
        let [head] = take(bytes)?;
        let packed = length(head, bytes)?;
        let [head] = take(bytes)?;
        let len = length(head, bytes)?;
        if len > max {
            return Some(Err(CommandError::ValueTooLong));
        }
        return unpack(bytes.get(..packed)?, len).map(Ok);
    }
    let len = length(first, bytes)?;
    let value = bytes.get(..len)?;
    Some(if len > max { Err(CommandError::ValueTooLong) } else { Ok(value.to_vec()) })
}

/// Unpacks the `len` bytes that LZF has compressed. Returns `None` if the input is malformed.
fn unpack(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let (mut input, mut out) = (packed, Vec::with_capacity(len.min(packed.len().saturating_mul(64))));
    while let Some(control) = take::<1>(&mut input).map(|[control]| usize::from(control)) {
        if control < 32 {
            let (literal, rest) = input.split_at_checked(control + 1)?;
            out.extend_from_slice(literal);
            input = rest;
        } else {
            let mut count = control >> 5;
            if count == 7 {
                count += usize::from(take::<1>(&mut input)?[0]);
            }
            let back = (control & 31) << 8 | usize::from(take::<1>(&mut input)?[0]);
            let from = out.len().checked_sub(back + 1)?;
            if out.len() + count + 2 > len {
                return None;
            }
            for at in from..from + count + 2 {
                out.push(out[at]); // the source may include bytes of this copy
            }
        }
    }
    (out.len() == len).then_some(out)
}

/// Returns the string in a serialization.
fn deserialized(payload: &[u8], max: usize) -> Result<Vec<u8>, CommandError> {
    let wrong = CommandError::DumpFooter;
    let at = payload.len().checked_sub(FOOTER_BYTES).ok_or_else(|| wrong.clone())?;
    let (body, mut footer) = payload.split_at(at);
    let version = take(&mut footer).map_or(u16::MAX, u16::from_le_bytes);
    let crc = take(&mut footer).map_or(0, u64::from_le_bytes);
    if version > NEWEST_VERSION || crc64(&payload[..at + 2]) != crc {
        return Err(wrong);
    }
    match body.split_first() {
        Some((&STRING, value)) => string(value, max).unwrap_or(Err(CommandError::DumpFormat)),
        Some(_) => Err(CommandError::NotOffered("RESTORE of other types", "the payload is no string")),
        None => Err(CommandError::DumpFormat),
    }
}

/// Runs `DUMP key`.
pub(super) fn dump(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let found = keys.lend(request.arg(1), |record| {
        // Before the value is read: it may be too large for a reply.
        keys.charge(record.value_len() + FOOTER_BYTES)?;
        Ok(serialized(&record.read(0..record.value_len())?))
    })?;
    Ok(Reply::bulk_or_null(found))
}

#[derive(Debug, Default)]
struct RestoreOptions {
    replaces: bool,
    is_absolute: bool,
    has_idle_time: bool,
    has_frequency: bool,
}

impl RestoreOptions {
    fn parse(request: Request<'_>) -> Result<Self, CommandError> {
        let (mut found, mut options) = (Self::default(), Options::from(request, 4));
        while let Some(option) = options.next() {
            if is_word(option, "REPLACE") {
                found.replaces = true;
            } else if is_word(option, "ABSTTL") {
                found.is_absolute = true;
            // The store does not record uses of keys, so these two are checked only.
            } else if is_word(option, "IDLETIME") && !found.has_frequency {
                found.has_idle_time = true;
                if integer(options.value()?)? < 0 {
                    return Err(CommandError::Protocol("Invalid IDLETIME value, must be >= 0".into()));
                }
            } else if is_word(option, "FREQ") && !found.has_idle_time {
                found.has_frequency = true;
                if !(0..=255).contains(&integer(options.value()?)?) {
                    let reason = "Invalid FREQ value, must be >= 0 and <= 255";
                    return Err(CommandError::Protocol(reason.into()));
                }
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(found)
    }
}

/// Runs `RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`. The time
/// is in milliseconds; 0 means that the key does not expire.
pub(super) fn restore(keys: &Keyspace<'_>, request: Request<'_>) -> CommandResult {
    let key = request.arg(1);
    let options = RestoreOptions::parse(request)?;
    let slot = keys.get_for_update(key)?;
    if slot.live.is_some() && !options.replaces {
        return Err(CommandError::BusyKey.into());
    }
    let negative = || CommandError::Protocol("Invalid TTL value, must be >= 0".into());
    let ttl_ms = u64::try_from(integer(request.arg(2))?).map_err(|_| negative())?;
    if request.arg(3).len() > LONG_PAYLOAD {
        blocking::announce();
    }
    let value = deserialized(request.arg(3), keys.context.max_value_bytes)?;
    let expiry = match ttl_ms {
        0 => Expiry::Never,
        at if options.is_absolute => Expiry::AtMs(at),
        ttl => Expiry::AtMs(keys.clock_ms().saturating_add(ttl)),
    };
    match expiry {
        Expiry::AtMs(at) if at <= keys.clock_ms() => {
            if slot.live.is_some() {
                keys.remove_existing(key, &slot)?;
            }
        }
        expiry => keys.put_existing(key, &slot, &value, expiry)?,
    }
    Ok(Reply::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_redis() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn payloads_are_those_of_redis_7_0() {
        let (ten, text) = (b"\0\xc0\x0a\x0a\0", b"\0\x05hello\x0a\0");
        assert_eq!(serialized(b"10")[..5], *ten);
        assert_eq!(serialized(b"hello")[..9], *text);
    }

    #[test]
    fn strings_of_all_lengths_round_trip() {
        let long: Vec<u8> = (0..70_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let lengths = [0, 1, 11, 63, 64, 16_383, 16_384, 65_536, 70_000];
        let numbers =
            ["0", "-1", "127", "128", "-128", "-129", "32767", "32768", "-2147483648", "2147483647"];
        let other = ["2147483648", "007", "-0", "99999999999"];
        let texts = numbers.iter().chain(&other).map(|text| text.as_bytes());
        for value in lengths.iter().map(|&len| &long[..len]).chain(texts) {
            let payload = serialized(value);
            assert_eq!(deserialized(&payload, 1 << 20).as_deref(), Ok(value));
            assert!(value.len() <= 11 || deserialized(&payload, value.len() - 1).is_err());
            for at in [0, payload.len() / 2, payload.len() - 1] {
                let mut damaged = payload.clone();
                damaged[at] ^= 1;
                assert_eq!(deserialized(&damaged, 1 << 20), Err(CommandError::DumpFooter));
            }
        }
    }

    #[test]
    fn compressed_strings_are_unpacked_and_malformed_ones_refused() {
        // A literal of one byte, then 43 bytes that begin one byte before.
        assert_eq!(unpack(b"\0x\xe0\x22\0", 44), Some(vec![b'x'; 44]));
        for wrong in [&b"\0"[..], b"\0x\xe0", b"\0x\xe0\x22\x01", b"\0x\xe0\x23\0", b"\x20\0"] {
            assert_eq!(unpack(wrong, 44), None);
        }
    }
}
