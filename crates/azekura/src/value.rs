//! Values: bytes, text, numbers, tuples and options of them, and any serde type through [`Serde`].

use std::marker::PhantomData;

use azekura_base::varint::{put_bytes, take_bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::key::{DecodeError, text_of};

/// Length of the longest value in bytes, 1 GiB, as it is stored.
pub const MAX_VALUE_BYTES: u64 = azekura_btree::MAX_VALUE;

/// The error of a value that cannot be stored, because its type cannot be serialized, or its encoding could
/// not be deserialized again.
#[derive(Debug, thiserror::Error)]
#[error("a value of type {type_name} cannot be encoded and decoded again; store another type")]
pub struct EncodeError {
    /// Name of the value's type.
    pub type_name: &'static str,
    /// The reason reported by the codec.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// The value type of a table. The encoding need not preserve an order.
///
/// Methods of a table of `String` values accept `&str` as a value, and those of a table of `(String, u64)`
/// values accept `&("Nara", 7)`: [`EncodeValue`] lists the types that are accepted for each value type.
pub trait Value: EncodeValue<<Self as Value>::Owned> {
    /// The type of values that reads return: `Self` for sized types, `T` for [`Serde<T>`].
    type Owned;

    /// Returns the type's name in the catalog. Types with the same name have the same encoding: text types
    /// are `str` and byte types are `bytes`, both owned and borrowed.
    fn type_name() -> String;

    /// Decodes a value.
    ///
    /// # Errors
    ///
    /// [`DecodeError`]: the bytes are not an encoding of this type.
    fn decode(bytes: &[u8]) -> Result<Self::Owned, DecodeError>;

    /// Decodes a value as [`decode`](Self::decode) does; the value may keep the memory of `bytes`.
    ///
    /// # Errors
    ///
    /// As for [`decode`](Self::decode).
    fn decode_vec(bytes: Vec<u8>) -> Result<Self::Owned, DecodeError> {
        Self::decode(&bytes)
    }
}

/// Encodes values of type `Q` as values of type `Self`.
///
/// | value type | `Q` |
/// |---|---|
/// | integers, `f32`, `f64`, `bool`, `()`, `[u8; N]` | the same type |
/// | `str`, `String`, `&str` | types that are `AsRef<str>`: `str`, `String`, `Arc<str>`, `Cow<str>`, … |
/// | `[u8]`, `Vec<u8>`, `&[u8]` | types that are `AsRef<[u8]>`: `[u8]`, `Vec<u8>`, `[u8; N]`, `str`, … |
/// | `(A, B)`, … | tuples of `Q`s of the parts |
/// | `Option<V>` | options of `Q`s of `V` |
/// | [`Serde<T>`] | `T` |
#[diagnostic::on_unimplemented(
    message = "`{Q}` is not a value of a table with values of type `{Self}`",
    note = "see `azekura::EncodeValue` for the types that a table takes as values"
)]
pub trait EncodeValue<Q: ?Sized> {
    /// Appends the bytes of `value` to `out`.
    ///
    /// # Errors
    ///
    /// [`EncodeError`]: a serde type cannot be serialized, or its encoding could not be deserialized again.
    fn encode(value: &Q, out: &mut Vec<u8>) -> Result<(), EncodeError>;
}

/// A value of a table with values of type `V`, owned or by reference, in a row of a [bulk
/// load](crate::Table::bulk_load).
#[diagnostic::on_unimplemented(message = "`{Self}` is not a value of a table with values of type `{V}`")]
pub trait AsValue<V: ?Sized> {
    /// Appends the encoded value.
    ///
    /// # Errors
    ///
    /// As for [`EncodeValue::encode`].
    fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError>;
}

/// Implements [`AsValue`] for a value type, by value and by reference.
macro_rules! as_value {
    ($([$($generics:tt)*] $value:ty, $form:ty;)*) => {$(
        impl<$($generics)*> AsValue<$value> for $form
        where
            $value: EncodeValue<$form>,
        {
            fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                <$value as EncodeValue<$form>>::encode(self, out)
            }
        }
        impl<$($generics)*> AsValue<$value> for &$form
        where
            $value: EncodeValue<$form>,
        {
            fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                <$value as EncodeValue<$form>>::encode(self, out)
            }
        }
    )*};
}

fn mismatch<V: ?Sized>(len: usize) -> DecodeError {
    DecodeError { expected: std::any::type_name::<V>(), len }
}

macro_rules! integer_value {
    ($($ty:ty)*) => {$(
        impl EncodeValue<Self> for $ty {
            fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                out.extend_from_slice(&value.to_le_bytes());
                Ok(())
            }
        }
        as_value! { [] $ty, $ty; }
        impl Value for $ty {
            type Owned = Self;
            fn type_name() -> String {
                stringify!($ty).into()
            }
            fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                let exact = bytes.try_into().map_err(|_| mismatch::<Self>(bytes.len()))?;
                Ok(Self::from_le_bytes(exact))
            }
        }
    )*};
}
integer_value! { u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 }

impl EncodeValue<Self> for bool {
    fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(u8::from(*value));
        Ok(())
    }
}
as_value! { [] bool, bool; }

impl Value for bool {
    type Owned = Self;
    fn type_name() -> String {
        "bool".into()
    }
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(mismatch::<Self>(bytes.len())),
        }
    }
}

/// Value types of bytes (`$plain` is `[u8]`) or text (`str`); `$from` converts bytes to the owned type.
macro_rules! bytes_value {
    ($([$($life:lifetime)?] $value:ty, $plain:ty, $owned:ty, $name:literal, $from:expr;)*) => {$(
        impl<$($life,)? Q: AsRef<$plain> + ?Sized> EncodeValue<Q> for $value {
            fn encode(value: &Q, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                let plain: &$plain = value.as_ref();
                out.extend_from_slice(plain.as_ref());
                Ok(())
            }
        }
        impl<$($life,)? Q: AsRef<$plain>> AsValue<$value> for Q {
            fn encode_value(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
                <$value as EncodeValue<Q>>::encode(self, out)
            }
        }
        impl$(<$life>)? Value for $value {
            type Owned = $owned;
            fn type_name() -> String {
                $name.into()
            }
            fn decode(bytes: &[u8]) -> Result<$owned, DecodeError> {
                Self::decode_vec(bytes.to_vec())
            }
            fn decode_vec(bytes: Vec<u8>) -> Result<$owned, DecodeError> {
                let len = bytes.len();
                $from(bytes).ok_or_else(|| mismatch::<$value>(len))
            }
        }
    )*};
}
bytes_value! {
    [] [u8], [u8], Vec<u8>, "bytes", Some;
    [] Vec<u8>, [u8], Vec<u8>, "bytes", Some;
    ['v] &'v [u8], [u8], Vec<u8>, "bytes", Some;
    [] str, str, String, "str", text_of;
    [] String, str, String, "str", text_of;
    ['v] &'v str, str, String, "str", text_of;
}

impl<V: EncodeValue<Q>, Q> EncodeValue<Option<Q>> for Option<V> {
    fn encode(value: &Option<Q>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(u8::from(value.is_some()));
        value.as_ref().map_or(Ok(()), |value| V::encode(value, out))
    }
}
as_value! { [V, Q] Option<V>, Option<Q>; }

/// Encodes `None` as the byte 0, and `Some` as the byte 1 and the encoded value.
impl<V: Value> Value for Option<V> {
    type Owned = Option<V::Owned>;
    fn type_name() -> String {
        format!("Option<{}>", V::type_name())
    }
    fn decode(bytes: &[u8]) -> Result<Self::Owned, DecodeError> {
        match bytes {
            [0] => Ok(None),
            [1, value @ ..] => V::decode(value).map(Some),
            _ => Err(mismatch::<Self>(bytes.len())),
        }
    }
}

/// Appends a part that other parts follow: its length, and its encoding.
fn encode_part<V: EncodeValue<Q>, Q>(value: &Q, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let mut bytes = Vec::new();
    V::encode(value, &mut bytes)?;
    put_bytes(out, &bytes);
    Ok(())
}

macro_rules! tuple_value {
    ($($part:ident $form:ident $at:tt),+ ; $last:ident $last_form:ident $last_at:tt) => {
        impl<$($part, $form,)+ $last, $last_form> EncodeValue<($($form,)+ $last_form)> for ($($part,)+ $last)
        where
            $($part: EncodeValue<$form>,)+
            $last: EncodeValue<$last_form>,
        {
            fn encode(value: &($($form,)+ $last_form), out: &mut Vec<u8>) -> Result<(), EncodeError> {
                $(encode_part::<$part, $form>(&value.$at, out)?;)+
                $last::encode(&value.$last_at, out)
            }
        }
        as_value! { [$($part, $form,)+ $last, $last_form] ($($part,)+ $last), ($($form,)+ $last_form); }
        /// Concatenates the encoded parts; each part except the last has its length before it.
        impl<$($part: Value,)+ $last: Value> Value for ($($part,)+ $last) {
            type Owned = ($($part::Owned,)+ $last::Owned);
            fn type_name() -> String {
                format!("({})", [$($part::type_name(),)+ $last::type_name()].join(", "))
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
tuple_value!(A QA 0; B QB 1);
tuple_value!(A QA 0, B QB 1; C QC 2);
tuple_value!(A QA 0, B QB 1, C QC 2; D QD 3);
tuple_value!(A QA 0, B QB 1, C QC 2, D QD 3; E QE 4);

impl EncodeValue<()> for () {
    fn encode((): &(), _out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Ok(())
    }
}
as_value! { [] (), (); }

impl Value for () {
    type Owned = ();
    fn type_name() -> String {
        "()".into()
    }
    fn decode(bytes: &[u8]) -> Result<(), DecodeError> {
        if bytes.is_empty() { Ok(()) } else { Err(mismatch::<()>(bytes.len())) }
    }
}

impl<const N: usize> EncodeValue<Self> for [u8; N] {
    fn encode(value: &Self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(value);
        Ok(())
    }
}
as_value! { [const N: usize] [u8; N], [u8; N]; }

impl<const N: usize> Value for [u8; N] {
    type Owned = Self;
    fn type_name() -> String {
        format!("[u8; {N}]")
    }
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        bytes.try_into().map_err(|_| mismatch::<Self>(bytes.len()))
    }
}

/// Returns a type's name without the paths of modules, which may change while the type stays the same:
/// `my::app::Pair<alloc::string::String>` becomes `Pair<String>`.
fn without_paths(name: &str) -> String {
    let mut out = String::new();
    for part in name.split_inclusive(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')) {
        out.push_str(part.rsplit("::").next().unwrap_or(part));
    }
    out
}

/// Marks a table with values of any serde type, stored in the compact `postcard` format.
///
/// The format is not self-describing. So each value is decoded again when it is written. Two kinds of types
/// are refused with [`Error::Encode`](crate::Error::Encode): those that request the type of the next field
/// from the format (`untagged` and internally tagged enums, `serde_json::Value`, `flatten`), and those that
/// write a sequence without its length. Types that omit fields (`skip_serializing_if`) may be decoded
/// wrongly: do not use that attribute.
///
/// The catalog has the name of the type without the paths of its modules. So `v1::Person` and `v2::Person`
/// are one type for the store, which decodes the rows of one as the other: give each version of a type
/// another name.
///
/// # Examples
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

impl<T: Serialize + DeserializeOwned> EncodeValue<T> for Serde<T> {
    fn encode(value: &T, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let refused = |source: postcard::Error| EncodeError {
            type_name: std::any::type_name::<T>(),
            source: source.into(),
        };
        let start = out.len();
        *out = postcard::to_extend(value, std::mem::take(out)).map_err(refused)?;
        // Some types cannot be decoded after encoding: types that request the type of a field from the
        // format, which does not store types, and types that omit fields.
        match postcard::take_from_bytes::<T>(&out[start..]) {
            Ok((_, [])) => Ok(()),
            Ok((_, _)) => Err(refused(postcard::Error::DeserializeBadEncoding)),
            Err(source) => Err(refused(source)),
        }
    }
}
as_value! { [T: Serialize + DeserializeOwned] Serde<T>, T; }

impl<T: Serialize + DeserializeOwned> Value for Serde<T> {
    type Owned = T;
    fn type_name() -> String {
        format!("Serde<{}>", without_paths(std::any::type_name::<T>()))
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
        fn composed_values_round_trip(row: Row) {
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

    /// A type that serializes a sequence of unknown length.
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
