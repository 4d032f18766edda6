//! Keys: encoding that keeps order, so that byte order in the tree is the order of the type.
//!
//! | type | bytes |
//! |---|---|
//! | `u8 … u128` | big-endian |
//! | `i8 … i128` | big-endian with the sign bit flipped |
//! | `bool` | one byte |
//! | `[u8]`, `Vec<u8>`, `str`, `String` | as they are when alone or last; inside a tuple `00` becomes `00 FF` and `00 00` ends them |
//! | `[u8; N]` | as they are |
//! | tuples | the parts one after another |
//! | `Option<K>` | `00`, or `01` and the part |

use std::fmt;

/// A stored key whose bytes are not an encoding of the table's key type.
///
/// The table was written with another type, or the store is damaged (`azekura check` tells which).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// The type that was asked for.
    pub expected: &'static str,
    /// Length of the bytes that did not fit.
    pub len: usize,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} stored bytes are not a {}; was the table written with another type?",
            self.len, self.expected
        )
    }
}

impl std::error::Error for DecodeError {}

/// A type that can be the key of a table.
///
/// # Laws
///
/// `encode` keeps order (`a < b` exactly when the bytes of `a` are less than those of `b`), and decoding what
/// was encoded gives an equal key.
pub trait Key {
    /// What reading gives back; `Self` for sized types.
    type Owned;

    /// The type's name in the catalog. Types of one name have one encoding: text is `str` and bytes are
    /// `bytes`, owned or not.
    fn type_name() -> String;

    /// Appends this key as the only or last part: nothing has to tell where it ends.
    fn encode(&self, out: &mut Vec<u8>);

    /// Appends this key as a part that others follow.
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }

    /// Reads a key that ends where `input` ends.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are no encoding of this type.
    fn decode(input: &[u8]) -> Result<Self::Owned, DecodeError>;

    /// Takes a part off the front of `input`.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are no encoding of this type.
    fn decode_part(input: &mut &[u8]) -> Result<Self::Owned, DecodeError>;
}

fn mismatch<K: ?Sized>(input: &[u8]) -> DecodeError {
    DecodeError { expected: std::any::type_name::<K>(), len: input.len() }
}

/// Decodes a part that must be the whole of `input`.
fn whole<K: Key + ?Sized>(mut input: &[u8]) -> Result<K::Owned, DecodeError> {
    let all = input;
    let key = K::decode_part(&mut input)?;
    if input.is_empty() { Ok(key) } else { Err(mismatch::<K>(all)) }
}

macro_rules! integer_key {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        impl Key for $unsigned {
            type Owned = Self;
            fn type_name() -> String {
                stringify!($unsigned).into()
            }
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn decode(input: &[u8]) -> Result<Self, DecodeError> {
                whole::<Self>(input)
            }
            fn decode_part(input: &mut &[u8]) -> Result<Self, DecodeError> {
                let (head, rest) = input.split_first_chunk().ok_or_else(|| mismatch::<Self>(input))?;
                *input = rest;
                Ok(Self::from_be_bytes(*head))
            }
        }
        impl Key for $signed {
            type Owned = Self;
            fn type_name() -> String {
                stringify!($signed).into()
            }
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&(self ^ Self::MIN).to_be_bytes());
            }
            fn decode(input: &[u8]) -> Result<Self, DecodeError> {
                whole::<Self>(input)
            }
            fn decode_part(input: &mut &[u8]) -> Result<Self, DecodeError> {
                let (head, rest) = input.split_first_chunk().ok_or_else(|| mismatch::<Self>(input))?;
                *input = rest;
                Ok(Self::from_be_bytes(*head) ^ Self::MIN)
            }
        }
    )*};
}
integer_key! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

impl Key for bool {
    type Owned = Self;
    fn type_name() -> String {
        "bool".into()
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn decode(input: &[u8]) -> Result<Self, DecodeError> {
        whole::<Self>(input)
    }
    fn decode_part(input: &mut &[u8]) -> Result<Self, DecodeError> {
        match input.split_first() {
            Some((&byte @ (0 | 1), rest)) => {
                *input = rest;
                Ok(byte == 1)
            }
            _ => Err(mismatch::<Self>(input)),
        }
    }
}

impl Key for [u8] {
    type Owned = Vec<u8>;
    fn type_name() -> String {
        "bytes".into()
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn encode_part(&self, out: &mut Vec<u8>) {
        for &byte in self {
            out.push(byte);
            if byte == 0 {
                out.push(0xff);
            }
        }
        out.extend_from_slice(&[0, 0]);
    }
    fn decode(input: &[u8]) -> Result<Vec<u8>, DecodeError> {
        Ok(input.to_vec())
    }
    fn decode_part(input: &mut &[u8]) -> Result<Vec<u8>, DecodeError> {
        let all = *input;
        let mut key = Vec::new();
        loop {
            let (&byte, rest) = input.split_first().ok_or_else(|| mismatch::<Self>(all))?;
            *input = rest;
            if byte != 0 {
                key.push(byte);
                continue;
            }
            let (&mark, rest) = input.split_first().ok_or_else(|| mismatch::<Self>(all))?;
            *input = rest;
            match mark {
                0 => return Ok(key),
                0xff => key.push(0),
                _ => return Err(mismatch::<Self>(all)),
            }
        }
    }
}

impl Key for str {
    type Owned = String;
    fn type_name() -> String {
        "str".into()
    }
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
    fn encode_part(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_part(out);
    }
    fn decode(input: &[u8]) -> Result<String, DecodeError> {
        String::from_utf8(input.to_vec()).map_err(|_| mismatch::<Self>(input))
    }
    fn decode_part(input: &mut &[u8]) -> Result<String, DecodeError> {
        let all = *input;
        String::from_utf8(<[u8]>::decode_part(input)?).map_err(|_| mismatch::<Self>(all))
    }
}

impl<const N: usize> Key for [u8; N] {
    type Owned = Self;
    fn type_name() -> String {
        format!("[u8; {N}]")
    }
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn decode(input: &[u8]) -> Result<Self, DecodeError> {
        whole::<Self>(input)
    }
    fn decode_part(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let (head, rest) = input.split_first_chunk().ok_or_else(|| mismatch::<Self>(input))?;
        *input = rest;
        Ok(*head)
    }
}

macro_rules! same_as {
    ($($ty:ty => $target:ty;)*) => {$(
        impl Key for $ty {
            type Owned = <$target as Key>::Owned;
            fn type_name() -> String {
                <$target as Key>::type_name()
            }
            fn encode(&self, out: &mut Vec<u8>) {
                <$target as Key>::encode(self, out);
            }
            fn encode_part(&self, out: &mut Vec<u8>) {
                <$target as Key>::encode_part(self, out);
            }
            fn decode(input: &[u8]) -> Result<Self::Owned, DecodeError> {
                <$target as Key>::decode(input)
            }
            fn decode_part(input: &mut &[u8]) -> Result<Self::Owned, DecodeError> {
                <$target as Key>::decode_part(input)
            }
        }
    )*};
}
same_as! { Vec<u8> => [u8]; String => str; &str => str; &[u8] => [u8]; }

impl<K: Key> Key for Option<K> {
    type Owned = Option<K::Owned>;
    fn type_name() -> String {
        format!("Option<{}>", K::type_name())
    }
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(key) => {
                out.push(1);
                key.encode(out);
            }
        }
    }
    fn encode_part(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(key) => {
                out.push(1);
                key.encode_part(out);
            }
        }
    }
    fn decode(input: &[u8]) -> Result<Self::Owned, DecodeError> {
        match input.split_first() {
            Some((0, [])) => Ok(None),
            Some((1, rest)) => K::decode(rest).map(Some),
            _ => Err(mismatch::<Self>(input)),
        }
    }
    fn decode_part(input: &mut &[u8]) -> Result<Self::Owned, DecodeError> {
        match bool::decode_part(input)? {
            false => Ok(None),
            true => K::decode_part(input).map(Some),
        }
    }
}

macro_rules! tuple_key {
    ($($part:ident $at:tt),+ ; $last:ident $last_at:tt) => {
        impl<$($part: Key,)+ $last: Key> Key for ($($part,)+ $last) {
            type Owned = ($($part::Owned,)+ $last::Owned);
            fn type_name() -> String {
                format!("({})", [$($part::type_name(),)+ $last::type_name()].join(", "))
            }
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$at.encode_part(out);)+
                self.$last_at.encode(out);
            }
            fn encode_part(&self, out: &mut Vec<u8>) {
                $(self.$at.encode_part(out);)+
                self.$last_at.encode_part(out);
            }
            fn decode(mut input: &[u8]) -> Result<Self::Owned, DecodeError> {
                Ok(($($part::decode_part(&mut input)?,)+ $last::decode(input)?))
            }
            fn decode_part(input: &mut &[u8]) -> Result<Self::Owned, DecodeError> {
                Ok(($($part::decode_part(input)?,)+ $last::decode_part(input)?))
            }
        }
    };
}
tuple_key!(A 0; B 1);
tuple_key!(A 0, B 1; C 2);
tuple_key!(A 0, B 1, C 2; D 3);
tuple_key!(A 0, B 1, C 2, D 3; E 4);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes<K: Key + ?Sized>(key: &K) -> Vec<u8> {
        let mut out = Vec::new();
        key.encode(&mut out);
        out
    }

    proptest! {
        #[test]
        fn order_of_bytes_is_order_of_keys(a: (i32, String, Vec<u8>, Option<u16>), b: (i32, String, Vec<u8>, Option<u16>)) {
            prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), a.cmp(&b));
            prop_assert_eq!(<(i32, String, Vec<u8>, Option<u16>)>::decode(&bytes(&a)).unwrap(), a);
        }

        #[test]
        fn strings_with_zeros_keep_their_order_inside_tuples(a in "[\0a]{0,4}", b in "[\0a]{0,4}", x: u8, y: u8) {
            prop_assert_eq!(bytes(&(a.as_str(), x)).cmp(&bytes(&(b.as_str(), y))), (&a, x).cmp(&(&b, y)));
        }

        #[test]
        fn decoding_any_bytes_never_panics(input: Vec<u8>) {
            let _ = <(String, u32, bool)>::decode(&input);
            let _ = <(Option<Vec<u8>>, i128)>::decode(&input);
            let _ = <[u8; 3]>::decode(&input);
        }
    }

    #[test]
    fn a_key_of_another_length_is_refused() {
        assert!(u64::decode(&[0; 4]).is_err());
        assert!(u32::decode(&[0; 8]).is_err());
        assert_eq!(i16::decode(&bytes(&-5i16)), Ok(-5));
    }
}
