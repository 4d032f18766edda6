//! Values: bytes, text, integers as they are, and any serde type through [`Serde`].

use std::marker::PhantomData;

use azekura_base::varint::{put_bytes, take_bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::DecodeError;

/// A value that cannot be stored: its type refuses to be written, or what was written could not be read.
#[derive(Debug, thiserror::Error)]
#[error("a value of type {type_name} cannot be stored so that it can be read again")]
pub struct EncodeError {
    /// The value's type.
    pub type_name: &'static str,
    /// The reason that the codec gives.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// A type that can be the value of a table. Order does not matter.
pub trait Value {
    /// What reading gives back; `Self` for sized types.
    type Owned;

    /// What writing takes: the type itself, or for [`Serde`] the type it carries.
    type Input: ?Sized;

    /// The type's name in the catalog. Types of one name have one encoding: text is `str` and bytes are
    /// `bytes`, owned or not.
    fn type_name() -> String;

    /// Appends the bytes of `value` to `out`.
    ///
    /// # Errors
    ///
    /// [`EncodeError`] when a serde type refuses to be written, or could not be read back.
    fn encode(value: &Self::Input, out: &mut Vec<u8>) -> Result<(), EncodeError>;

    /// Reads a value back.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] when the bytes are no encoding of this type.
    fn decode(bytes: &[u8]) -> Result<Self::Owned, DecodeError>;

    /// As [`decode`](Self::decode), of bytes that the value may keep.
    ///
    /// # Errors
    ///
    /// As for [`decode`](Self::decode).
    fn decode_vec(bytes: Vec<u8>) -> Result<Self::Owned, DecodeError> {
        Self::decode(&bytes)
    }
}

fn mismatch<V: ?Sized>(len: usize) -> DecodeError {
    DecodeError { expected: std::any::type_name::<V>(), len }
}

macro_rules! integer_value {
    ($($ty:ty)*) => {$(
        impl Value for $ty {
            type Owned = Self;
            type Input = Self;
            fn type_name() -> String {
                stringify!($ty).into()
            }
            fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                out.extend_from_slice(&value.to_le_bytes());
                Ok(())
            }
            fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let exact = bytes.try_into().map_err(|_| mismatch::<Self>(bytes.len()))?;
                Ok(Self::from_le_bytes(exact))
            }
        }
    )*};
}
integer_value! { u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 }

impl Value for bool {
    type Owned = Self;
    type Input = Self;
    fn type_name() -> String {
        "bool".into()
    }
    fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(u8::from(*value));
        Ok(())
    }
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(mismatch::<Self>(bytes.len())),
        }
    }
}

macro_rules! owned_value {
    ($($ty:ty => $target:ty;)*) => {$(
        impl Value for $ty {
            type Owned = Self;
            type Input = Self;
            fn type_name() -> String {
                <$target as Value>::type_name()
            }
            fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                <$target as Value>::encode(value, out)
            }
            fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                <$target as Value>::decode(bytes)
            }
            fn decode_vec(bytes: Vec<u8>) -> Result<Self, DecodeError> {
                <$target as Value>::decode_vec(bytes)
            }
        }
    )*};
}
owned_value! { Vec<u8> => [u8]; String => str; }

/// No value is one byte 0; a value is one byte 1 and its bytes.
impl<V: Value<Input = V>> Value for Option<V> {
    type Owned = Option<V::Owned>;
    type Input = Self;
    fn type_name() -> String {
        format!("Option<{}>", V::type_name())
    }
    fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(u8::from(value.is_some()));
        value.as_ref().map_or(Ok(()), |value| V::encode(value, out))
    }
    fn decode(bytes: &[u8]) -> Result<Self::Owned, DecodeError> {
        match bytes {
            [0] => Ok(None),
            [1, value @ ..] => V::decode(value).map(Some),
            _ => Err(mismatch::<Self>(bytes.len())),
        }
    }
}

/// Appends a value that others follow: its length, and its bytes.
fn encode_part<V: Value<Input = V>>(value: &V, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let mut bytes = Vec::new();
    V::encode(value, &mut bytes)?;
    put_bytes(out, &bytes);
    Ok(())
}

macro_rules! tuple_value {
    ($($part:ident $at:tt),+ ; $last:ident $last_at:tt) => {
        /// The parts one after another, each but the last with its length before it.
        impl<$($part: Value<Input = $part>,)+ $last: Value<Input = $last>> Value for ($($part,)+ $last) {
            type Owned = ($($part::Owned,)+ $last::Owned);
            type Input = Self;
            fn type_name() -> String {
                format!("({})", [$($part::type_name(),)+ $last::type_name()].join(", "))
            }
            fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                $(encode_part(&value.$at, out)?;)+
                $last::encode(&value.$last_at, out)
            }
            fn decode(bytes: &[u8]) -> Result<Self::Owned, DecodeError> {
                let mut rest = bytes;
                Ok((
                    $($part::decode(take_bytes(&mut rest).ok_or_else(|| mismatch::<Self>(bytes.len()))?)?,)+
                    $last::decode(rest)?,
                ))
            }
        }
    };
}
tuple_value!(A 0; B 1);
tuple_value!(A 0, B 1; C 2);
tuple_value!(A 0, B 1, C 2; D 3);
tuple_value!(A 0, B 1, C 2, D 3; E 4);

impl Value for () {
    type Owned = ();
    type Input = ();
    fn type_name() -> String {
        "()".into()
    }
    fn encode((): &(), _out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Ok(())
    }
    fn decode(bytes: &[u8]) -> Result<(), DecodeError> {
        if bytes.is_empty() { Ok(()) } else { Err(mismatch::<()>(bytes.len())) }
    }
}

impl Value for [u8] {
    type Owned = Vec<u8>;
    type Input = [u8];
    fn type_name() -> String {
        "bytes".into()
    }
    fn encode(value: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(value);
        Ok(())
    }
    fn decode(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
        Ok(bytes.to_vec())
    }
    fn decode_vec(bytes: Vec<u8>) -> Result<Vec<u8>, DecodeError> {
        Ok(bytes)
    }
}

impl Value for str {
    type Owned = String;
    type Input = str;
    fn type_name() -> String {
        "str".into()
    }
    fn encode(value: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(value.as_bytes());
        Ok(())
    }
    fn decode(bytes: &[u8]) -> Result<String, DecodeError> {
        Self::decode_vec(bytes.to_vec())
    }
    fn decode_vec(bytes: Vec<u8>) -> Result<String, DecodeError> {
        String::from_utf8(bytes).map_err(|e| mismatch::<str>(e.as_bytes().len()))
    }
}

impl<const N: usize> Value for [u8; N] {
    type Owned = Self;
    type Input = Self;
    fn type_name() -> String {
        format!("[u8; {N}]")
    }
    fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(value);
        Ok(())
    }
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        bytes.try_into().map_err(|_| mismatch::<Self>(bytes.len()))
    }
}

/// A type's name without the paths of modules, which may change while the type stays the same:
/// `my::app::Pair<alloc::string::String>` is `Pair<String>`.
fn without_paths(name: &str) -> String {
    let mut out = String::new();
    for part in name.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        out.push_str(part.rsplit("::").next().unwrap_or(part));
    }
    out
}

/// Marks a table whose values are any serde type, stored in the compact `postcard` format.
///
/// The format does not describe itself. So each value is read back when it is written, and a value of a type
/// that asks the format for the type of the next field (`untagged` and internally tagged enums,
/// `serde_json::Value`, `flatten`), or that writes a sequence without its length, is refused with
/// [`Error::Encode`](crate::Error::Encode). Types that leave fields out (`skip_serializing_if`) may be read
/// wrong: do without that attribute.
///
/// ```
/// use azekura::{Database, Serde, TableDefinition};
/// #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
/// struct Person { name: String, born: u16 }
/// const PEOPLE: TableDefinition<u64, Serde<Person>> = TableDefinition::new("people");
///
/// # fn main() -> Result<(), azekura::Error> {
/// let db = Database::in_memory()?;
/// let ada = Person { name: "Ada".into(), born: 1815 };
/// db.transact(|tx| tx.table(&PEOPLE)?.insert(&1, &ada))?;
/// assert_eq!(db.transact(|tx| tx.table(&PEOPLE)?.get(&1))?, Some(ada));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Serde<T>(PhantomData<fn() -> T>);

impl<T: Serialize + DeserializeOwned> Value for Serde<T> {
    type Owned = T;
    type Input = T;
    fn type_name() -> String {
        format!("Serde<{}>", without_paths(std::any::type_name::<T>()))
    }
    fn encode(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let refused = |source: postcard::Error| EncodeError {
            type_name: std::any::type_name::<T>(),
            source: source.into(),
        };
        let start = out.len();
        *out = postcard::to_extend(value, std::mem::take(out)).map_err(refused)?;
        // Some types write what they cannot read: those that ask the format for the type, which it does not
        // tell, and those that leave fields out.
        match postcard::take_from_bytes::<T>(&out[start..]) {
            Ok((_, [])) => Ok(()),
            Ok((_, _)) => Err(refused(postcard::Error::DeserializeBadEncoding)),
            Err(source) => Err(refused(source)),
        }
    }
    fn decode(bytes: &[u8]) -> Result<T, DecodeError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            _ => Err(mismatch::<T>(bytes.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Row = (Option<u32>, Vec<u8>, bool, (String, Option<(u8, String)>));

    proptest! {
        #[test]
        fn composed_values_come_back(row: Row) {
            let mut bytes = Vec::new();
            Row::encode(&row, &mut bytes).unwrap();
            prop_assert_eq!(Row::decode(&bytes).unwrap(), row);
        }

        #[test]
        fn decoding_any_bytes_never_panics(bytes: Vec<u8>) {
            let _ = Row::decode(&bytes);
            let _ = <(Vec<u8>, (u64, String))>::decode(&bytes);
        }
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u64),
        Text(String),
    }

    /// Serializes a sequence of unknown length.
    #[derive(serde::Deserialize)]
    struct Unsized(Vec<u8>);

    impl Serialize for Unsized {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeSeq;
            let mut sequence = serializer.serialize_seq(None)?;
            self.0.iter().try_for_each(|byte| sequence.serialize_element(byte))?;
            sequence.end()
        }
    }

    #[test]
    fn a_value_that_could_not_be_read_is_refused_with_its_cause() {
        let refused = |result: Result<(), EncodeError>| {
            let error = result.unwrap_err();
            assert!(error.to_string().contains(error.type_name) && !error.source.to_string().is_empty());
            error.type_name
        };
        for value in [Untagged::Number(7), Untagged::Text("seven".into())] {
            assert!(refused(Serde::encode(&value, &mut Vec::new())).contains("Untagged"));
        }
        assert!(refused(Serde::encode(&Unsized(vec![1, 2]), &mut Vec::new())).contains("Unsized"));
        let mut bytes = b"before".to_vec();
        Serde::encode(&Some("text".to_owned()), &mut bytes).unwrap();
        assert_eq!(Serde::<Option<String>>::decode(&bytes[6..]).unwrap(), Some("text".into()));
    }

    #[test]
    fn a_type_keeps_its_name_when_its_module_moves() {
        for (long, short) in [
            ("u64", "u64"),
            ("my::app::Person", "Person"),
            ("alloc::vec::Vec<(my::Key_2, core::option::Option<[u8; 4]>)>", "Vec<(Key_2, Option<[u8; 4]>)>"),
            ("a::Pair<alloc::string::String, b::c::D<'static>>", "Pair<String, D<'static>>"),
        ] {
            assert_eq!(without_paths(long), short);
        }
        assert_eq!(Serde::<Vec<Option<String>>>::type_name(), "Serde<Vec<Option<String>>>");
    }
}
