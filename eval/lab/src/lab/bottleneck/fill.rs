//! Fills the store with the bookstore's rows.

use super::front::{Key, TableId};
use super::shop::{Sequences, by_subject, encode, fingerprint};
use azekura::{Database, Error, TableDefinition};
use azekura_workload::bookstore::{COUNTRIES, Data};

/// Rows per transaction.
const GROUP: usize = 5_000;

/// Writes all rows of `data`, table by table. Calls `watch` with the number of rows written so far. Returns
/// the next unused numbers.
///
/// # Errors
///
/// An error of the store.
pub fn fill(db: &Database, data: &Data, watch: &mut dyn FnMut(u64)) -> Result<Sequences, Error> {
    let scale = data.scale();
    let mut writer = Writer { db, rows: Vec::with_capacity(GROUP), written: 0, watch };
    for number in 1..=COUNTRIES {
        writer.add(&Key::new(TableId::Country, number), encode(&data.country(number))?)?;
    }
    for number in 1..=scale.authors() {
        let author = data.author(number);
        writer.add(&Key::new(TableId::Author, number), encode(&author)?)?;
        writer.lead(&Key::new(TableId::AuthorByName, (author.last_name.as_str(), number)), number)?;
    }
    for number in 1..=scale.items() {
        let item = data.item(number);
        let title = item.title.as_str();
        writer.add(&Key::new(TableId::Item, number), encode(&item)?)?;
        writer.lead(&by_subject(&item, number), number)?;
        writer.lead(&Key::new(TableId::ItemByTitle, (title, number)), number)?;
        writer.lead(&Key::new(TableId::ItemByAuthor, (item.author, title, number)), number)?;
    }
    for number in 1..=scale.addresses() {
        let address = data.address(number);
        let content = fingerprint(&address);
        writer.add(&Key::new(TableId::Address, number), encode(&address)?)?;
        writer.lead(&Key::new(TableId::AddressByContent, (content, number)), number)?;
    }
    for number in 1..=scale.customers() {
        let customer = data.customer(number);
        writer.add(&Key::new(TableId::Customer, number), encode(&customer)?)?;
        writer.lead(&Key::new(TableId::CustomerByName, customer.user_name.as_str()), number)?;
    }
    for number in 1..=scale.orders() {
        let (order, lines, payment) = data.order(number);
        writer.add(&Key::new(TableId::Order, number), encode(&order)?)?;
        writer.lead(&Key::new(TableId::OrderByCustomer, (order.customer, number)), number)?;
        writer.add(&Key::new(TableId::CardPayment, number), encode(&payment)?)?;
        for (at, line) in (1u32..).zip(&lines) {
            writer.add(&Key::new(TableId::OrderLine, (number, at)), encode(line)?)?;
            writer.lead(&Key::new(TableId::OrderByItem, (line.item, number)), number)?;
        }
    }
    writer.flush()?;
    Ok(Sequences::of_filled(scale))
}

struct Writer<'w> {
    db: &'w Database,
    rows: Vec<(Key, Vec<u8>)>,
    written: u64,
    watch: &'w mut dyn FnMut(u64),
}

impl Writer<'_> {
    fn add(&mut self, key: &Key, row: Vec<u8>) -> Result<(), Error> {
        self.rows.push((key.clone(), row));
        if self.rows.len() < GROUP { Ok(()) } else { self.flush() }
    }

    /// Adds an index entry: `key` leads to the row with this number.
    fn lead(&mut self, key: &Key, number: u64) -> Result<(), Error> {
        self.add(key, number.to_be_bytes().to_vec())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.db.transact(|tx| {
            for (key, row) in &self.rows {
                tx.table(&TableDefinition::<[u8], [u8]>::new(key.table().name()))?
                    .insert(key.bytes(), row)?;
            }
            Ok(())
        })?;
        self.written += self.rows.len() as u64;
        self.rows.clear();
        (self.watch)(self.written);
        Ok(())
    }
}
