//! Encoding of rows, partial decoding for lists, and keys of rows.

use azekura::Error;
use azekura_workload::bookstore::row::{Address, Item};
use azekura_workload::bookstore::text::name_of;
use azekura_workload::bookstore::{COUNTRIES, Scale};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::front::{Key, TableId};

/// The fields of an item that lists show, borrowed from the encoded row.
#[derive(Debug, Deserialize)]
pub(super) struct ItemView<'r> {
    pub(super) title: &'r str,
    pub(super) author: u64,
    #[expect(dead_code, reason = "the row has this field before others that are used")]
    published: u32,
    #[expect(dead_code, reason = "the row has this field before others that are used")]
    #[serde(borrow)]
    publisher: &'r str,
    pub(super) subject: u8,
    #[expect(dead_code, reason = "the row has this field before others that are used")]
    description: &'r str,
    pub(super) related: [u64; 5],
    pub(super) thumbnail: u64,
}

/// The fields of an author that lists show, borrowed from the encoded row.
#[derive(Debug, Deserialize)]
pub(super) struct AuthorView<'r> {
    pub(super) first_name: &'r str,
    pub(super) last_name: &'r str,
}

/// Encodes a row.
///
/// # Errors
///
/// [`Error::Other`] if the row cannot be encoded, which is impossible for the rows of the bookstore.
pub fn encode(row: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_allocvec(row).map_err(Error::other)
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    postcard::from_bytes(bytes).map_err(Error::other)
}

/// Decodes the fields at the beginning of a row.
pub(super) fn view<'r, T: Deserialize<'r>>(bytes: &'r [u8]) -> Result<T, Error> {
    postcard::take_from_bytes(bytes).map(|(view, _)| view).map_err(Error::other)
}

/// Returns a hash of an address: its key in the index by content.
#[must_use]
pub fn fingerprint(address: &Address) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish()
}

/// Returns the key of an item in the index by subject: newest items first, then by title.
#[must_use]
pub fn by_subject(item: &Item, number: u64) -> Key {
    Key::new(TableId::ItemBySubject, (item.subject, u32::MAX - item.published, item.title.as_str(), number))
}

/// Returns the keys of the rows that pages read most often.
pub fn popular(scale: Scale) -> impl Iterator<Item = Key> + Clone {
    let numbered = |table: TableId, last: u64| (1..=last).map(move |number| Key::new(table, number));
    let names = (1..=scale.customers()).map(|number| Key::new(TableId::CustomerByName, name_of(number)));
    numbered(TableId::Country, COUNTRIES)
        .chain(numbered(TableId::Author, scale.authors()))
        .chain(numbered(TableId::Item, scale.items()))
        .chain(numbered(TableId::Customer, scale.customers()))
        .chain(names)
}
