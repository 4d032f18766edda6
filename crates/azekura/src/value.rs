//! Values: bytes, text, integers as they are, and any serde type through [`Serde`].

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::DecodeError;

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
    /// [`DecodeError`] when a serde type refuses to be written.
    fn encode(value: &Self::Input, out: &mut Vec<u8>) -> Result<(), DecodeError>;

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
            fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), DecodeError> {
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

impl Value for () {
    type Owned = ();
    type Input = ();
    fn type_name() -> String {
        "()".into()
    }
    fn encode((): &(), _out: &mut Vec<u8>) -> Result<(), DecodeError> {
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
    fn encode(value: &[u8], out: &mut Vec<u8>) -> Result<(), DecodeError> {
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
    fn encode(value: &str, out: &mut Vec<u8>) -> Result<(), DecodeError> {
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
    fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), DecodeError> {
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
/// ```
/// use azekura::{Database, Serde, Table};
/// #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
/// struct Person { name: String, born: u16 }
/// const PEOPLE: Table<u64, Serde<Person>> = Table::new("people");
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
    fn encode(value: &T, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        let start = out.len();
        let bytes = postcard::to_extend(value, std::mem::take(out)).map_err(|_| mismatch::<T>(0))?;
        debug_assert!(bytes.len() >= start);
        *out = bytes;
        Ok(())
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
