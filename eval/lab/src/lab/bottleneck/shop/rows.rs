//! Rows as bytes, the part of them that lists show, and their keys.

use azekura::Error;
use azekura_workload::bookstore::row::{Address, Item};
use azekura_workload::bookstore::text::name_of;
use azekura_workload::bookstore::{COUNTRIES, Scale};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::front::{Key, TableId};

/// The part of an item that lists show, without copying it out of the row.
#[derive(Debug, Deserialize)]
pub(super) struct ItemView<'r> {
    pub(super) title: &'r str,
    pub(super) author: u64,
    #[expect(dead_code, reason = "stands between the others in the row")]
    published: u32,
    #[expect(dead_code, reason = "stands between the others in the row")]
    #[serde(borrow)]
    publisher: &'r str,
    pub(super) subject: u8,
    #[expect(dead_code, reason = "stands between the others in the row")]
    description: &'r str,
    pub(super) related: [u64; 5],
    pub(super) thumbnail: u64,
}

/// The part of an author that lists show.
#[derive(Debug, Deserialize)]
pub(super) struct AuthorView<'r> {
    pub(super) first_name: &'r str,
    pub(super) last_name: &'r str,
}

/// A row's bytes.
///
/// # Errors
///
/// [`Error::Other`] when the row cannot be written, which no row here does.
pub fn encode(row: &impl Serialize) -> Result<Vec<u8>, Error> {
    postcard::to_allocvec(row).map_err(Error::other)
}

pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    postcard::from_bytes(bytes).map_err(Error::other)
}

/// The beginning of a row.
pub(super) fn view<'r, T: Deserialize<'r>>(bytes: &'r [u8]) -> Result<T, Error> {
    postcard::take_from_bytes(bytes).map(|(view, _)| view).map_err(Error::other)
}

/// A place in an index by content.
#[must_use]
pub fn fingerprint(address: &Address) -> u64 {
    let mut hasher = DefaultHasher::new();
    address.hash(&mut hasher);
    hasher.finish()
}

/// The key of an item in the index by subject: newest first, then by title.
#[must_use]
pub fn by_subject(item: &Item, number: u64) -> Key {
    Key::new(TableId::ItemBySubject, (item.subject, u32::MAX - item.published, item.title.as_str(), number))
}

/// The rows that pages read by their keys again and again.
pub fn popular(scale: Scale) -> impl Iterator<Item = Key> + Clone {
    let numbered = |table: TableId, last: u64| (1..=last).map(move |number| Key::new(table, number));
    let names = (1..=scale.customers()).map(|number| Key::new(TableId::CustomerByName, name_of(number)));
    numbered(TableId::Country, COUNTRIES)
        .chain(numbered(TableId::Author, scale.authors()))
        .chain(numbered(TableId::Item, scale.items()))
        .chain(numbered(TableId::Customer, scale.customers()))
        .chain(names)
}
