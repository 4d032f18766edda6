//! Compressed values: [`Compressed`] stores the values of any type as LZ4 blocks.

use std::marker::PhantomData;

use azekura_base::varint::{put_u64, take_u64};

use crate::key::DecodeError;
use crate::value::{AsValue, EncodeError, EncodeValue, MAX_VALUE_BYTES, Value};

/// First byte of a value that is stored as it is.
const PLAIN: u8 = 0;
/// First byte of a compressed value. The length before the compression, as a variable-length integer, and one
/// LZ4 block follow.
const LZ4: u8 = 1;
/// A shorter value is not compressed: LZ4 rarely finds a match in it, and the length takes a byte.
const MIN_BYTES: usize = 64;
/// Upper bound of the ratio of an LZ4 block: each byte of a match length adds at most 255 bytes.
const MAX_RATIO: u64 = 255;

/// Marks a table with compressed values of type `V`. Needs the feature `compression`.
///
/// A write compresses the value to one LZ4 block, and each read decompresses it. Values of hundreds of bytes
/// with repeated text become smaller; short values and random bytes do not. A value that does not become
/// smaller is stored as it is, with one more byte. Smaller values also take less space in the page cache, the
/// log and backups.
///
/// [`with_value`](crate::Table::with_value) and [`for_each`](crate::Table::for_each) lend the compressed
/// bytes. The other calls return values of `V`.
///
/// # Examples
///
/// ```
/// use azekura::{Compressed, Database, TableDefinition};
/// const PAGES: TableDefinition<str, Compressed<str>> = TableDefinition::new("pages");
///
/// # fn main() -> Result<(), azekura::Error> {
/// let db = Database::in_memory()?;
/// let page = "<tr><td>0</td></tr>".repeat(1000);
/// db.transact(|tx| tx.table(&PAGES)?.insert("index", &page))?;
/// db.read(|snapshot| {
///     let pages = snapshot.table(&PAGES)?;
///     assert_eq!(pages.get("index")?, Some(page.clone()));
///     let stored = pages.with_value("index", |value| Ok(value.len()))?;
///     assert!(stored.is_some_and(|bytes| bytes < 200));
///     Ok(())
/// })
/// # }
/// ```
#[derive(Debug)]
pub struct Compressed<V: ?Sized>(PhantomData<fn() -> V>);

/// Appends the compressed form of the bytes that `encode` appends.
fn compress(
    out: &mut Vec<u8>,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.push(PLAIN);
    encode(out)?;
    let plain = &out[start + 1..];
    // A value above the limit stays as it is, so that the write is refused.
    if plain.len() < MIN_BYTES || plain.len() as u64 > MAX_VALUE_BYTES {
        return Ok(());
    }
    let mut packed = vec![LZ4];
    put_u64(&mut packed, plain.len() as u64);
    packed.extend_from_slice(&lz4_flex::block::compress(plain));
    if packed.len() < out.len() - start {
        out.truncate(start);
        out.extend_from_slice(&packed);
    }
    Ok(())
}

/// Returns the bytes of a block after `LZ4`; `None` if they are damaged.
fn decompress(mut block: &[u8]) -> Option<Vec<u8>> {
    let len = take_u64(&mut block)?;
    // A wrong length must not allocate a gigabyte.
    if len > MAX_VALUE_BYTES || len > MAX_RATIO * block.len() as u64 {
        return None;
    }
    let mut plain = vec![0; len as usize];
    let written = lz4_flex::block::decompress_into(block, &mut plain).ok()?;
    (written == plain.len()).then_some(plain)
}

impl<V: EncodeValue<Q> + ?Sized, Q: ?Sized> EncodeValue<Q> for Compressed<V> {
    fn encode(value: &Q, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        compress(out, |out| V::encode(value, out))
    }
}

impl<V: ?Sized, Q: AsValue<V>> AsValue<Compressed<V>> for Q {
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        compress(out, |out| self.encode_value(out))
    }
}

impl<V: Value + ?Sized> Value for Compressed<V> {
    type Owned = V::Owned;

    fn type_name() -> String {
        format!("Compressed<{}>", V::type_name())
    }

    fn decode(bytes: &[u8]) -> Result<V::Owned, DecodeError> {
        let damaged = || DecodeError { expected: std::any::type_name::<Self>(), len: bytes.len() };
        match bytes {
            [PLAIN, plain @ ..] => V::decode(plain),
            [LZ4, block @ ..] => V::decode_vec(decompress(block).ok_or_else(damaged)?),
            _ => Err(damaged()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stored(value: &[u8]) -> Vec<u8> {
        let mut out = vec![7; 3]; // bytes before the value stay
        Compressed::<[u8]>::encode(value, &mut out).unwrap();
        assert_eq!(out[..3], [7; 3]);
        out.split_off(3)
    }

    proptest! {
        #[test]
        fn values_round_trip(value: Vec<u8>, times in 1_usize..50) {
            let value = value.repeat(times);
            let stored = stored(&value);
            prop_assert!(stored.len() <= value.len() + 1);
            prop_assert_eq!(Compressed::<[u8]>::decode(&stored).unwrap(), value);
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes: Vec<u8>) {
            let _ = Compressed::<[u8]>::decode(&bytes);
            let _ = Compressed::<str>::decode(&[&[LZ4][..], &bytes].concat());
        }
    }

    #[test]
    fn repeated_text_becomes_small_and_short_values_stay() {
        let zeros = stored(&[0; 1_000_000]);
        assert!(zeros.len() < 5_000 && zeros[0] == LZ4, "{}", zeros.len());
        assert_eq!(Compressed::<[u8]>::decode(&zeros).unwrap().len(), 1_000_000);
        assert_eq!(stored(b"aaaa"), b"\0aaaa");
    }

    #[test]
    fn a_wrong_length_is_an_error_and_allocates_nothing() {
        let mut block = vec![LZ4];
        put_u64(&mut block, MAX_VALUE_BYTES);
        block.extend_from_slice(&[0; 20]);
        assert!(Compressed::<[u8]>::decode(&block).is_err());
        let mut text = stored(&b"ab".repeat(100));
        assert_eq!((text[0], text[1]), (LZ4, 200 | 0x80));
        text[1] ^= 1; // one more byte than the block has
        assert!(Compressed::<[u8]>::decode(&text).is_err());
    }
}
