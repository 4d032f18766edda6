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
    fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), DecodeError> {
        out.extend_from_slice(value);
        Ok(())
    }
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        bytes.try_into().map_err(|_| mismatch::<Self>(bytes.len()))
    }
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
