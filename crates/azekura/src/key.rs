//! Keys: an order-preserving encoding. The byte order in the tree is the order of the key type.
//!
//! | type | bytes |
//! |---|---|
//! | `u8 … u128` | big-endian |
//! | `i8 … i128` | big-endian with the sign bit flipped |
//! | `bool` | one byte |
//! | `[u8]`, `Vec<u8>`, `str`, `String` | unchanged if last; otherwise `00` is `00 FF`, and `00 00` ends it |
//! | `[u8; N]` | as they are |
//! | tuples | the encoded parts, concatenated |
//! | `Option<K>` | `00`, or `01` and the part |

use std::borrow::Cow;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// The error of a stored key or value with bytes that are not an encoding of the requested type.
///
/// The table was written with another type, or the store is damaged (`azekura check` reports damage).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Name of the requested type.
    pub expected: &'static str,
    /// Length of the bytes that could not be decoded.
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

/// The key type of a table.
///
/// Methods of a table of `String` keys accept `&str` as a key, and those of a table of `(String, u64)` keys
/// accept `("Nara", 7)`: [`EncodeKey`] lists the types that are accepted for each key type.
///
/// A program can use its own type as a key type by implementing two traits.
///
/// # Examples
///
/// ```
/// use azekura::{Database, DecodeError, EncodeKey, Error, Key, TableDefinition};
///
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// struct UserId(u32);
///
/// impl EncodeKey<UserId> for UserId {
///     fn encode(key: &UserId, out: &mut Vec<u8>) {
///         out.extend_from_slice(&key.0.to_be_bytes());
///     }
/// }
///
/// impl Key for UserId {
///     type Owned = UserId;
///     fn type_name() -> String {
///         "UserId".into()
///     }
///     fn decode(input: &[u8]) -> Result<UserId, DecodeError> {
///         u32::decode(input).map(UserId)
///     }
///     fn decode_part(input: &mut &[u8]) -> Result<UserId, DecodeError> {
///         u32::decode_part(input).map(UserId)
///     }
/// }
///
/// const NAMES: TableDefinition<UserId, str> = TableDefinition::new("names");
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| tx.table(&NAMES)?.insert(&UserId(7), "Aoi"))?;
/// assert_eq!(db.transact(|tx| tx.table(&NAMES)?.first())?, Some((UserId(7), "Aoi".into())));
/// # Ok(())
/// # }
/// ```
///
/// # Laws
///
/// Encoding keeps order (`a < b` exactly when the bytes of `a` are less than those of `b`), and decoding an
/// encoded key gives an equal key.
pub trait Key: EncodeKey<Self> + EncodeKey<<Self as Key>::Owned> {
    /// The type of keys that reading returns; `Self` for sized types.
    type Owned;

    /// Returns the type's name in the catalog. Types with the same name have the same encoding: text types
    /// are `str` and byte types are `bytes`, both owned and borrowed.
    fn type_name() -> String;

    /// Decodes a key that ends where `input` ends.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are not an encoding of this type.
    fn decode(input: &[u8]) -> Result<Self::Owned, DecodeError>;

    /// Decodes a part of a tuple and moves `input` past it.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are not an encoding of this type.
    fn decode_part(input: &mut &[u8]) -> Result<Self::Owned, DecodeError>;
}

/// Encodes values of type `Q` as keys of type `Self`.
///
/// | key type | `Q` |
/// |---|---|
/// | `u8 … u128`, `i8 … i128`, `bool` | the same type |
/// | `str`, `String`, `&str` | types that are `AsRef<str>`: `str`, `String`, `Arc<str>`, `Cow<str>`, … |
/// | `[u8]`, `Vec<u8>`, `&[u8]` | types that are `AsRef<[u8]>`: `[u8]`, `Vec<u8>`, `[u8; N]`, `str`, … |
/// | `[u8; N]` | the same type |
/// | `(A, B)`, … | tuples of `Q`s of the parts |
/// | `Option<K>` | options of `Q`s of `K` |
///
/// A bare `None` as a key of optional text or bytes needs its type: `&None::<&str>`.
///
/// # Examples
///
/// ```
/// # use azekura::{Database, Error, TableDefinition};
/// const POPULATION: TableDefinition<(String, u16), u64> = TableDefinition::new("population");
/// # fn main() -> Result<(), Error> {
/// # let db = Database::in_memory()?;
/// db.transact(|tx| {
///     let population = tx.table(&POPULATION)?;
///     population.insert(&("Nara", 2020), &354_630)?; // no string is allocated
///     let (key, count) = population.first()?.expect("one row");
///     assert_eq!(population.get(&key)?, Some(count)); // key: (String, u16)
///     population.remove(&("Nara", 2020)).map(drop)
/// })
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Q}` is not a key of a table with keys of type `{Self}`",
    note = "see `azekura::EncodeKey` for the types that a table takes as keys"
)]
pub trait EncodeKey<Q: ?Sized> {
    /// Appends an encoded key, or its last part, without a terminator.
    fn encode(key: &Q, out: &mut Vec<u8>);

    /// Appends an encoded part that other parts follow.
    fn encode_part(key: &Q, out: &mut Vec<u8>) {
        Self::encode(key, out);
    }
}

/// A key of a table with keys of type `K`, as a bound of a range or in a row of a [bulk
/// load](crate::Table::bulk_load). Implemented for references to all types that [`EncodeKey`] lists for `K`,
/// and for types of the standard library also by value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of a table with keys of type `{K}`",
    note = "see `azekura::EncodeKey` for the types that a table takes as keys"
)]
pub trait AsKey<K: ?Sized> {
    /// Appends the encoded key.
    fn encode_key(&self, out: &mut Vec<u8>);

    /// Appends the encoded key as a part that other parts follow.
    fn encode_key_part(&self, out: &mut Vec<u8>);
}

impl<K: EncodeKey<Q> + ?Sized, Q: ?Sized> AsKey<K> for &Q {
    fn encode_key(&self, out: &mut Vec<u8>) {
        K::encode(self, out);
    }
    fn encode_key_part(&self, out: &mut Vec<u8>) {
        K::encode_part(self, out);
    }
}

macro_rules! keys_by_value {
    ($([$($generics:tt)*] $ty:ty;)*) => {$(
        impl<$($generics)* K: EncodeKey<$ty> + ?Sized> AsKey<K> for $ty {
            fn encode_key(&self, out: &mut Vec<u8>) {
                K::encode(self, out);
            }
            fn encode_key_part(&self, out: &mut Vec<u8>) {
                K::encode_part(self, out);
            }
        }
    )*};
}
keys_by_value! {
    [] String;
    [T,] Vec<T>;
    [T, const N: usize,] [T; N];
    [T: ?Sized,] Box<T>;
    [T: ?Sized,] Arc<T>;
    [T: ?Sized,] Rc<T>;
    ['a, T: ToOwned + ?Sized,] Cow<'a, T>;
    [T,] Option<T>;
    [A, B,] (A, B);
    [A, B, C,] (A, B, C);
    [A, B, C, D,] (A, B, C, D);
    [A, B, C, D, E,] (A, B, C, D, E);
}

/// Implements [`AsKey`] for a key type that accepts only itself as a key, so that untyped literals get this
/// type.
macro_rules! own_form {
    ($ty:ty) => {
        impl AsKey<$ty> for $ty {
            fn encode_key(&self, out: &mut Vec<u8>) {
                <$ty as EncodeKey<$ty>>::encode(self, out);
            }
            fn encode_key_part(&self, out: &mut Vec<u8>) {
                <$ty as EncodeKey<$ty>>::encode_part(self, out);
            }
        }
    };
}

fn mismatch<K: ?Sized>(input: &[u8]) -> DecodeError {
    DecodeError { expected: std::any::type_name::<K>(), len: input.len() }
}

/// Decodes a part that must use all of `input`.
fn whole<K: Key + ?Sized>(mut input: &[u8]) -> Result<K::Owned, DecodeError> {
    let all = input;
    let key = K::decode_part(&mut input)?;
    if input.is_empty() { Ok(key) } else { Err(mismatch::<K>(all)) }
}

macro_rules! integer_key {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        impl EncodeKey<Self> for $unsigned {
            fn encode(key: &Self, out: &mut Vec<u8>) {
                out.extend_from_slice(&key.to_be_bytes());
            }
        }
        own_form!($unsigned);
        impl Key for $unsigned {
            type Owned = Self;
            fn type_name() -> String {
                stringify!($unsigned).into()
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
        impl EncodeKey<Self> for $signed {
            fn encode(key: &Self, out: &mut Vec<u8>) {
                out.extend_from_slice(&(key ^ Self::MIN).to_be_bytes());
            }
        }
        own_form!($signed);
        impl Key for $signed {
            type Owned = Self;
            fn type_name() -> String {
                stringify!($signed).into()
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

impl EncodeKey<Self> for bool {
    fn encode(key: &Self, out: &mut Vec<u8>) {
        out.push(u8::from(*key));
    }
}

own_form!(bool);

impl Key for bool {
    type Owned = Self;
    fn type_name() -> String {
        "bool".into()
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

/// Appends bytes with a terminator.
pub(crate) fn put_bytes_part(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

fn take_bytes_part(input: &mut &[u8]) -> Option<Vec<u8>> {
    let mut key = Vec::new();
    loop {
        let (&byte, rest) = input.split_first()?;
        *input = rest;
        if byte != 0 {
            key.push(byte);
            continue;
        }
        let (&mark, rest) = input.split_first()?;
        *input = rest;
        match mark {
            0 => return Some(key),
            0xff => key.push(0),
            _ => return None,
        }
    }
}

/// Key types of bytes (`$plain` is `[u8]`) or text (`str`); `$from` converts bytes to the owned type.
macro_rules! bytes_key {
    ($([$($life:lifetime)?] $key:ty, $plain:ty, $owned:ty, $name:literal, $from:expr;)*) => {$(
        impl<$($life,)? Q: AsRef<$plain> + ?Sized> EncodeKey<Q> for $key {
            fn encode(key: &Q, out: &mut Vec<u8>) {
                let plain: &$plain = key.as_ref();
                out.extend_from_slice(plain.as_ref());
            }
            fn encode_part(key: &Q, out: &mut Vec<u8>) {
                let plain: &$plain = key.as_ref();
                put_bytes_part(plain.as_ref(), out);
            }
        }
        impl$(<$life>)? Key for $key {
            type Owned = $owned;
            fn type_name() -> String {
                $name.into()
            }
            fn decode(input: &[u8]) -> Result<$owned, DecodeError> {
                $from(input.to_vec()).ok_or_else(|| mismatch::<$key>(input))
            }
            fn decode_part(input: &mut &[u8]) -> Result<$owned, DecodeError> {
                let all = *input;
                take_bytes_part(input).and_then($from).ok_or_else(|| mismatch::<$key>(all))
            }
        }
    )*};
}
bytes_key! {
    [] [u8], [u8], Vec<u8>, "bytes", Some;
    [] Vec<u8>, [u8], Vec<u8>, "bytes", Some;
    ['k] &'k [u8], [u8], Vec<u8>, "bytes", Some;
    [] str, str, String, "str", text_of;
    [] String, str, String, "str", text_of;
    ['k] &'k str, str, String, "str", text_of;
}

pub(crate) fn text_of(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok()
}

impl<const N: usize> EncodeKey<Self> for [u8; N] {
    fn encode(key: &Self, out: &mut Vec<u8>) {
        out.extend_from_slice(key);
    }
}

impl<const N: usize> Key for [u8; N] {
    type Owned = Self;
    fn type_name() -> String {
        format!("[u8; {N}]")
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

impl<K: EncodeKey<Q>, Q> EncodeKey<Option<Q>> for Option<K> {
    fn encode(key: &Option<Q>, out: &mut Vec<u8>) {
        out.push(u8::from(key.is_some()));
        if let Some(key) = key {
            K::encode(key, out);
        }
    }
    fn encode_part(key: &Option<Q>, out: &mut Vec<u8>) {
        out.push(u8::from(key.is_some()));
        if let Some(key) = key {
            K::encode_part(key, out);
        }
    }
}

impl<K: Key> Key for Option<K> {
    type Owned = Option<K::Owned>;
    fn type_name() -> String {
        format!("Option<{}>", K::type_name())
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
    ($($part:ident $form:ident $at:tt),+ ; $last:ident $last_form:ident $last_at:tt) => {
        impl<$($part, $form,)+ $last, $last_form> EncodeKey<($($form,)+ $last_form)> for ($($part,)+ $last)
        where
            $($part: EncodeKey<$form>,)+
            $last: EncodeKey<$last_form>,
        {
            fn encode(key: &($($form,)+ $last_form), out: &mut Vec<u8>) {
                $($part::encode_part(&key.$at, out);)+
                $last::encode(&key.$last_at, out);
            }
            fn encode_part(key: &($($form,)+ $last_form), out: &mut Vec<u8>) {
                $($part::encode_part(&key.$at, out);)+
                $last::encode_part(&key.$last_at, out);
            }
        }
        impl<$($part: Key,)+ $last: Key> Key for ($($part,)+ $last) {
            type Owned = ($($part::Owned,)+ $last::Owned);
            fn type_name() -> String {
                format!("({})", [$($part::type_name(),)+ $last::type_name()].join(", "))
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
tuple_key!(A QA 0; B QB 1);
tuple_key!(A QA 0, B QB 1; C QC 2);
tuple_key!(A QA 0, B QB 1, C QC 2; D QD 3);
tuple_key!(A QA 0, B QB 1, C QC 2, D QD 3; E QE 4);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes<K: Key>(key: &K) -> Vec<u8> {
        encoded::<K, K>(key)
    }

    fn encoded<K: EncodeKey<Q> + ?Sized, Q: ?Sized>(key: &Q) -> Vec<u8> {
        let mut out = Vec::new();
        K::encode(key, &mut out);
        out
    }

    type Mixed = (i32, String, Vec<u8>, Option<u16>);

    proptest! {
        #[test]
        fn order_of_bytes_is_order_of_keys(a: Mixed, b: Mixed) {
            prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), a.cmp(&b));
            prop_assert_eq!(Mixed::decode(&bytes(&a)).unwrap(), a);
        }

        #[test]
        fn strings_with_zeros_keep_their_order_in_tuples(a in "[\0a]{0,4}", b in "[\0a]{0,4}", x: u8, y: u8) {
            let bytes = |key| encoded::<(String, u8), (&str, u8)>(key);
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
