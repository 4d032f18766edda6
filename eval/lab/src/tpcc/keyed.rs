//! TPC-C's tables in any engine that stores bytes in key order: one keyspace, with the number of the table
//! before each key.
//!
//! Keys and rows are encoded as [`azekura::TableDefinition`] encodes them, so all engines store the same
//! bytes in the same order. Engines need not scan backward: where the last row is needed, the last number of
//! the key is stored as its complement ([`DESCENDING`]).
//!
//! A scan reads its rows in groups; each group begins after the last row of the previous one.

use super::rows::{OpenRows, Row, RowKey, Rows};
use super::schema::{Broken, UnusedItem};
use crate::engine::{Reader, Sink, Writer};
use crate::error::EngineError;
use azekura::{DecodeError, TableDefinition};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::ControlFlow;

/// Names of the tables; the index of a table is its number.
const TABLES: [&str; 11] = [
    "warehouse",
    "district",
    "customer",
    "customer_by_name",
    "history",
    "new_order",
    "order",
    "order_by_customer",
    "order_line",
    "item",
    "stock",
];

/// Name of the table with keys that end in the complement of a number, so that the largest number comes
/// first.
pub const DESCENDING: &str = "order_by_customer";

/// Number of rows in the first group of a scan, and in each later group.
const GROUPS: (u64, u64) = (16, 1_000);

/// The tables in a transaction of an engine.
pub struct KeyedRows<'t>(RefCell<Steps<'t>>);

enum Steps<'t> {
    Reads(&'t mut dyn Reader),
    Writes(&'t mut dyn Writer),
}

impl std::fmt::Debug for KeyedRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyedRows").finish_non_exhaustive()
    }
}

impl<'t> KeyedRows<'t> {
    /// Returns the tables in a read-only transaction.
    pub fn reading(reader: &'t mut dyn Reader) -> Self {
        Self(RefCell::new(Steps::Reads(reader)))
    }

    /// Returns the tables in a transaction that reads and writes.
    pub fn writing(writer: &'t mut dyn Writer) -> Self {
        Self(RefCell::new(Steps::Writes(writer)))
    }
}

/// Access to the steps of a transaction on any store.
trait Access {
    fn read(
        &self,
        step: &mut dyn FnMut(&mut dyn Reader) -> Result<(), EngineError>,
    ) -> Result<(), EngineError>;
    fn write(
        &self,
        step: &mut dyn FnMut(&mut dyn Writer) -> Result<(), EngineError>,
    ) -> Result<(), EngineError>;
}

impl Access for KeyedRows<'_> {
    fn read(
        &self,
        step: &mut dyn FnMut(&mut dyn Reader) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        match &mut *self.0.borrow_mut() {
            Steps::Reads(reader) => step(*reader),
            Steps::Writes(writer) => step(*writer),
        }
    }

    fn write(
        &self,
        step: &mut dyn FnMut(&mut dyn Writer) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        match &mut *self.0.borrow_mut() {
            Steps::Reads(_) => Err(EngineError::failed("writing", "this transaction only reads")),
            Steps::Writes(writer) => step(*writer),
        }
    }
}

impl From<Broken> for EngineError {
    fn from(broken: Broken) -> Self {
        Self::failed("running a transaction", broken)
    }
}

impl From<UnusedItem> for EngineError {
    fn from(unused: UnusedItem) -> Self {
        Self::failed("running a transaction", unused)
    }
}

impl From<DecodeError> for EngineError {
    fn from(error: DecodeError) -> Self {
        Self::failed("reading or writing a row", error)
    }
}

impl Rows for KeyedRows<'_> {
    type Error = EngineError;
    type Open<'r, K: RowKey, V: Row>
        = KeyedTable<'r, K, V>
    where
        Self: 'r;

    fn open<K: RowKey, V: Row>(
        &self,
        table: &TableDefinition<K, V>,
    ) -> Result<KeyedTable<'_, K, V>, EngineError> {
        let unknown = || EngineError::failed("opening a table", format!("no table {}", table.name()));
        let number = TABLES.iter().position(|name| *name == table.name()).ok_or_else(unknown)?;
        Ok(KeyedTable { steps: self, number, types: PhantomData })
    }
}

/// A table in a transaction of an engine.
pub struct KeyedTable<'r, K, V> {
    steps: &'r dyn Access,
    number: usize,
    types: PhantomData<fn(&K, &V)>,
}

impl<K, V> std::fmt::Debug for KeyedTable<'_, K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyedTable").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl<K, V> KeyedTable<'_, K, V> {
    fn name(&self) -> &'static str {
        TABLES[self.number]
    }

    fn is_descending(&self) -> bool {
        self.name() == DESCENDING
    }
}

/// Replaces the last four bytes by their complement.
fn complement(key: &mut [u8]) {
    let at = key.len().saturating_sub(4);
    key[at..].iter_mut().for_each(|byte| *byte = !*byte);
}

impl<K: RowKey, V: Row> KeyedTable<'_, K, V> {
    /// Returns the engine's key of a row.
    fn encoded(&self, key: &K) -> Vec<u8> {
        let mut bytes = vec![self.number as u8];
        K::encode(key, &mut bytes);
        if self.is_descending() {
            complement(&mut bytes[1..]);
        }
        bytes
    }

    fn decoded(&self, bytes: &[u8]) -> Result<K, EngineError> {
        let mut key = bytes.get(1..).unwrap_or_default().to_vec();
        if self.is_descending() {
            complement(&mut key);
        }
        Ok(K::decode(&key)?)
    }

    /// Returns the engine's first and last key of a scan from `first` to `last`. In descending order, the
    /// scan ignores the last number of both keys.
    fn bounds(&self, first: &K, last: &K) -> (Vec<u8>, Vec<u8>) {
        let (mut first, mut last) = (self.encoded(first), self.encoded(last));
        if self.is_descending() {
            let at = first.len() - 4;
            first[at..].fill(0);
            last[at..].fill(0xff);
        }
        (first, last)
    }

    fn one(&self, key: &K, is_for_update: bool) -> Result<Option<V::Owned>, EngineError> {
        let (key, mut sink) = (self.encoded(key), Sink::keeping());
        if is_for_update {
            self.steps.write(&mut |writer| writer.get_for_update(&key, &mut sink).map(drop))?;
        } else {
            self.steps.read(&mut |reader| reader.get(&key, &mut sink).map(drop))?;
        }
        Ok(sink.take().first().map(|(_, row)| V::decode(row)).transpose()?)
    }

    /// Returns the first existing key of a scan.
    fn first(&self, first: &K, last: &K) -> Result<Option<Vec<u8>>, EngineError> {
        let ((from, to), mut sink) = (self.bounds(first, last), Sink::keeping());
        self.steps.read(&mut |reader| reader.scan(&from, 1, &mut sink))?;
        Ok(sink.take().pop().map(|(key, _)| key).filter(|key| *key <= to))
    }
}

impl<K: RowKey, V: Row> OpenRows<K, V> for KeyedTable<'_, K, V> {
    type Error = EngineError;

    fn row(&self, key: &K) -> Result<Option<V::Owned>, EngineError> {
        self.one(key, false)
    }

    fn row_for_update(&self, key: &K) -> Result<Option<V::Owned>, EngineError> {
        self.one(key, true)
    }

    fn put(&self, key: &K, row: &V::Owned) -> Result<(), EngineError> {
        let (key, mut bytes) = (self.encoded(key), Vec::new());
        V::encode(row, &mut bytes).map_err(|error| EngineError::failed("encoding a row", error))?;
        self.steps.write(&mut |writer| writer.put(&key, &bytes))
    }

    fn add(&self, key: &K, row: &V::Owned) -> Result<(), EngineError> {
        if self.row_for_update(key)?.is_some() {
            return Err(Broken::has_already(self.name(), key).into());
        }
        self.put(key, row)
    }

    fn take_first(&self, first: &K, last: &K) -> Result<Option<K>, EngineError> {
        let Some(found) = self.first(first, last)? else { return Ok(None) };
        let key = self.decoded(&found)?;
        if self.row_for_update(&key)?.is_none() {
            // In an engine with scans that take no locks, another transaction has removed the row since the
            // scan.
            return Err(EngineError::conflict("taking the first row", "it is gone"));
        }
        self.steps.write(&mut |writer| writer.remove(&found))?;
        Ok(Some(key))
    }

    fn last_key(&self, first: &K, last: &K) -> Result<Option<K>, EngineError> {
        if !self.is_descending() {
            return Err(EngineError::failed("looking for the last row", "the table is in ascending order"));
        }
        self.first(first, last)?.map(|key| self.decoded(&key)).transpose()
    }

    fn each(
        &self,
        first: &K,
        last: &K,
        each: &mut dyn FnMut(K, V::Owned) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let (mut from, to) = self.bounds(first, last);
        let mut limit = GROUPS.0;
        loop {
            let mut sink = Sink::keeping();
            self.steps.read(&mut |reader| reader.scan(&from, limit, &mut sink))?;
            let group = sink.take();
            let is_last = (group.len() as u64) < limit;
            for (key, row) in &group {
                if *key > to || each(self.decoded(key)?, V::decode(row)?).is_break() {
                    return Ok(());
                }
            }
            let Some((last_seen, _)) = group.into_iter().next_back().filter(|_| !is_last) else {
                return Ok(());
            };
            from = last_seen;
            from.push(0); // the smallest key above the last one
            limit = GROUPS.1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::memory::MemoryEngine;
    use crate::conformance;
    use crate::engine::Engine;
    use crate::tpcc::schema;
    use std::ops::ControlFlow::Continue;

    fn in_transaction(work: impl Fn(&KeyedRows<'_>) -> Result<(), EngineError>) {
        let dir = tempfile::tempdir().expect("a directory");
        let engine: &dyn Engine = &MemoryEngine::default();
        let store = conformance::open(engine, dir.path());
        let mut session = store.session().expect("a session");
        session.write(&mut |writer| work(&KeyedRows::writing(writer))).expect("writes");
    }

    #[test]
    fn walks_stay_in_their_table_and_show_each_row_once_however_many() {
        in_transaction(|rows| {
            let (open, other) = (rows.open(&schema::NEW_ORDER)?, rows.open(&schema::ORDER_BY_CUSTOMER)?);
            for o in 0..2_500 {
                open.put(&(1, 1, o), &())?;
            }
            other.put(&(0, 0, 0, 0), &())?;
            let mut seen = Vec::new();
            open.each(&(1, 1, 3), &(9, 9, 9), &mut |(.., o), ()| {
                seen.push(o);
                Continue(())
            })?;
            assert!(seen.iter().copied().eq(3..2_500), "{} rows", seen.len());
            assert_eq!(open.take_first(&(1, 1, 0), &(1, 1, u32::MAX))?, Some((1, 1, 0)));
            assert_eq!(open.take_first(&(1, 1, 0), &(1, 1, u32::MAX))?, Some((1, 1, 1)));
            assert_eq!(open.take_first(&(2, 1, 0), &(2, 1, u32::MAX))?, None);
            Ok(())
        });
    }

    #[test]
    fn the_last_order_of_a_customer_is_the_first_in_the_engine() {
        in_transaction(|rows| {
            let orders = rows.open(&schema::ORDER_BY_CUSTOMER)?;
            for key in [(1, 1, 5, 7), (1, 1, 5, 300), (1, 1, 5, 299), (1, 1, 6, 900), (1, 2, 5, 1_000)] {
                orders.add(&key, &())?;
            }
            let last = |c| orders.last_key(&(1, 1, c, 0), &(1, 1, c, u32::MAX));
            assert_eq!((last(5)?, last(6)?, last(7)?), (Some((1, 1, 5, 300)), Some((1, 1, 6, 900)), None));
            assert!(orders.add(&(1, 1, 5, 7), &()).is_err(), "it is there");
            Ok(())
        });
    }
}
