//! The upper layer of a storage engine like InnoDB 5.0, on top of the real store. It has the operations of
//! the paper's Tables 2 and 3, and each operation acquires the locks that the paper studies.
//!
//! | event | acquires, as in InnoDB | module |
//! |---|---|---|
//! | first operation of a transaction that is not admitted yet | `conc_lock` | [`admission`] |
//! | each page access | the mutex of `buf_pool` | [`pool`] |
//! | each read of a row by key | `btr_search_latch` over the adaptive hash index | [`search`] |
//! | rows outside of the hash index, every scan, every change | the store's own locks | `azekura` |
//!
//! The store needs none of this: its page cache has no such mutex, and inner pages are read without a latch.
//! The lab adds this layer so that each operation acquires the paper's locks again, as real code. Everything
//! else is the unchanged store.
//!
//! Isolation: changes, and reads of rows that are then changed, use the store and its locks. Reads by key
//! that the hash index answers take no row lock, like InnoDB's consistent reads. They return the row as of
//! the last transaction that reached its commit.

pub mod admission;
pub mod pool;
pub mod search;

use admission::{Gate, Permit};
use azekura::{Database, Durability, Error, TableDefinition, Transaction};
use azekura_base::sync::machine::{Work, works};
use azekura_base::sync::thread;
use azekura_trace::{Operation, OperationGuard, operation};
use pool::{Page, Pool};
use search::{Latch, SearchIndex};
use std::ops::Bound;
use std::sync::Arc;

static INDEX_READ: Operation = Operation::new("index_read");
static GENERAL_FETCH: Operation = Operation::new("general_fetch");
static WRITE_ROW: Operation = Operation::new("write_row");
static UPDATE_ROW: Operation = Operation::new("update_row");
static DELETE_ROW: Operation = Operation::new("delete_row");
static COMMIT: Operation = Operation::new("commit");

/// Names of the operations, in the order of the paper's tables.
pub const OPERATIONS: [&str; 6] =
    ["write_row", "update_row", "delete_row", "index_read", "general_fetch", "commit"];

/// A table or index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the tables are those of DBT-1; `…By…` are their indexes")]
pub enum TableId {
    Author,
    AuthorByName,
    Country,
    Address,
    AddressByContent,
    Customer,
    CustomerByName,
    Item,
    ItemBySubject,
    ItemByTitle,
    ItemByAuthor,
    Order,
    OrderByCustomer,
    OrderByItem,
    OrderLine,
    CardPayment,
    Cart,
    CartLine,
}

impl TableId {
    /// Returns the name of the table in the store.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Author => "author",
            Self::AuthorByName => "author_by_name",
            Self::Country => "country",
            Self::Address => "address",
            Self::AddressByContent => "address_by_content",
            Self::Customer => "customer",
            Self::CustomerByName => "customer_by_name",
            Self::Item => "item",
            Self::ItemBySubject => "item_by_subject",
            Self::ItemByTitle => "item_by_title",
            Self::ItemByAuthor => "item_by_author",
            Self::Order => "orders",
            Self::OrderByCustomer => "orders_by_customer",
            Self::OrderByItem => "orders_by_item",
            Self::OrderLine => "order_line",
            Self::CardPayment => "cc_xacts",
            Self::Cart => "shopping_cart",
            Self::CartLine => "shopping_cart_line",
        }
    }

    const fn table(self) -> TableDefinition<[u8], [u8]> {
        TableDefinition::new(self.name())
    }
}

/// A key of a row, with its table.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    table: TableId,
    bytes: Vec<u8>,
}

impl Key {
    /// Encodes `key` so that the order of bytes is the order of keys.
    pub fn new<K: azekura::Key>(table: TableId, key: K) -> Self {
        let mut bytes = Vec::with_capacity(16);
        K::encode(&key, &mut bytes);
        Self { table, bytes }
    }

    /// Returns the table.
    #[must_use]
    pub const fn table(&self) -> TableId {
        self.table
    }

    /// Returns the encoded key.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number that the key begins with. The result is meaningless for other keys.
    #[must_use]
    pub fn leading_number(&self) -> u64 {
        self.bytes.first_chunk().map_or(0, |head| u64::from_be_bytes(*head))
    }

    /// Returns the number that the key ends with. The result is meaningless for other keys.
    #[must_use]
    pub fn trailing_number(&self) -> u64 {
        self.bytes.last_chunk().map_or(0, |tail| u64::from_be_bytes(*tail))
    }

    /// Returns the leaf page that would contain the row, at about `ROWS_PER_PAGE` rows per page.
    fn leaf(&self) -> Page {
        const ROWS_PER_PAGE: u64 = 16;
        let mut head = [0; 8];
        for (to, from) in head.iter_mut().zip(&self.bytes) {
            *to = *from;
        }
        Page { table: self.table as u8, number: u64::from_be_bytes(head) / ROWS_PER_PAGE }
    }

    /// Returns the root and the inner page above the leaf.
    fn path(&self) -> [Page; 2] {
        let branch = u64::MAX / 2 + self.leaf().number / 512;
        [u64::MAX, branch].map(|number| Page { table: self.table as u8, number })
    }
}

/// The engine's upper layer, shared by all threads.
#[derive(Debug)]
pub struct Front {
    db: Database,
    search: Box<dyn SearchIndex>,
    pool: Pool,
    gate: Option<Gate>,
    probes: Probes,
    /// Additional computation of each row operation on a simulated machine. On a real machine it takes no
    /// time.
    row_work: Work,
}

/// The operations that a recording distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probes {
    /// The engine's operations, as in the paper: two events for every row.
    #[default]
    Rows,
    /// Only the visitors' pages. Contended waits are recorded in both cases.
    Pages,
}

/// Number of pages in the simulated `buf_pool`.
const POOL_PAGES: usize = 1 << 16;

impl Front {
    /// Returns a layer over `db` with an empty hash index. Only one layer at a time may change `db`
    /// (SEARCH-1).
    #[must_use]
    pub fn new(db: Database, latch: Latch, limit: Option<usize>, probes: Probes) -> Self {
        let (search, pool, gate) = (latch.index(), Pool::new(POOL_PAGES), limit.map(Gate::new));
        Self { db, search, pool, gate, probes, row_work: Work::Nanoseconds(0) }
    }

    /// Sets the additional computation of each row operation, besides its locks and pages. Only a simulated
    /// machine spends time on it.
    #[must_use]
    pub const fn with_row_work(mut self, nanoseconds: u64) -> Self {
        self.row_work = Work::Nanoseconds(nanoseconds);
        self
    }

    /// Adds rows to the hash index before the first requests, as in a server that has run for a while.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn warm(&self, keys: impl Iterator<Item = Key> + Clone) -> Result<(), Error> {
        self.db.transact(|tx| {
            for key in keys.clone() {
                if let Some(row) = tx.table(&key.table.table())?.get(&key.bytes)? {
                    self.search.learn(&key, &row);
                }
            }
            Ok(())
        })
    }

    /// Returns the rows in the hash index that differ from the store's rows. There are none while no
    /// transaction runs (SEARCH-1).
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn stale_rows(&self) -> Result<Vec<Key>, Error> {
        let learnt = self.search.rows();
        self.db.transact(|tx| {
            let mut stale = Vec::new();
            for (key, row) in &learnt {
                if tx.table(&key.table.table())?.get(&key.bytes)?.as_deref() != Some(row) {
                    stale.push(key.clone());
                }
            }
            Ok(stale)
        })
    }

    fn operation(&self, of_rows: &'static Operation) -> Option<OperationGuard> {
        (self.probes == Probes::Rows).then(|| operation(of_rows))
    }

    /// Returns a session for one thread.
    #[must_use]
    pub fn session(&self) -> Session<'_> {
        Session { front: self, permit: None, tickets: 0, misses: 0 }
    }
}

/// A session: the transactions of one thread, one after another.
#[derive(Debug)]
pub struct Session<'f> {
    front: &'f Front,
    permit: Option<Permit<'f>>,
    /// Number of operations for which the thread may still stay in the engine.
    tickets: u32,
    /// Number of reads that the hash index could not answer.
    misses: u32,
}

/// Number of hash index misses per row added to the index. Frequently read rows are soon added; most rows
/// that are read once are not.
const LEARN_ONE_OF: u32 = 4_096;

impl<'f> Session<'f> {
    /// Runs `body` as one transaction, again while the store reports a retryable error.
    ///
    /// # Errors
    ///
    /// An error of the store or of `body`.
    pub fn transact<T>(
        &mut self,
        mut body: impl FnMut(&mut Statement<'_, 'f>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            let tx = self.front.db.begin()?;
            tx.set_durability(Durability::Relaxed);
            let mut statement = Statement { tx, session: self, changed: Vec::new() };
            let done = body(&mut statement).and_then(|value| statement.commit().map(|()| value));
            if self.tickets == 0 {
                self.rest();
            }
            match done {
                // Lets other threads run before the retry.
                Err(error) if error.is_retryable() => thread::yield_now(),
                done => return done,
            }
        }
    }

    /// Leaves the engine while the thread has no request.
    pub fn rest(&mut self) {
        self.permit = None;
    }

    fn is_worth_learning(&mut self) -> bool {
        self.misses += 1;
        self.misses.is_multiple_of(LEARN_ONE_OF)
    }

    fn enter(&mut self) {
        works(self.front.row_work);
        let Some(gate) = &self.front.gate else { return };
        if self.permit.is_none() {
            self.permit = Some(gate.enter());
            self.tickets = admission::TICKETS;
        }
        self.tickets = self.tickets.saturating_sub(1);
    }
}

/// A running transaction.
#[derive(Debug)]
pub struct Statement<'s, 'f> {
    tx: Transaction,
    session: &'s mut Session<'f>,
    /// New values of changed rows, `None` for removed rows. Other transactions see them after the commit
    /// (SEARCH-1).
    changed: Vec<(Key, Option<Vec<u8>>)>,
}

impl Statement<'_, '_> {
    /// Returns the row of `key`, as of the last transaction that reached its commit, with this transaction's
    /// changes.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn index_read(&mut self, key: &Key) -> Result<Option<Arc<[u8]>>, Error> {
        let _operation = self.session.front.operation(&INDEX_READ);
        self.session.enter();
        let is_ours = self.changed.iter().any(|(changed, _)| changed == key);
        if !is_ours && let Some(row) = self.session.front.search.guess(key) {
            self.session.front.pool.use_all([key.leaf()]);
            return Ok(Some(row));
        }
        let row = self.read(key)?;
        if let (false, Some(row)) = (is_ours, &row)
            && self.session.is_worth_learning()
        {
            self.session.front.search.learn(key, row);
        }
        Ok(row.map(Arc::from))
    }

    /// Returns the row of `key` and locks it, so that no other transaction changes it before the end of this
    /// one.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn locked_read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let _operation = self.session.front.operation(&INDEX_READ);
        self.session.enter();
        self.read(key)
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        self.descend(key);
        self.tx.table(&key.table.table())?.get(&key.bytes)
    }

    /// Returns at most `limit` rows of one table with keys from `from` (inclusive) to `to` (exclusive), in
    /// the direction `way`.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn scan(&mut self, from: &Key, to: &Key, way: Way, limit: usize) -> Result<Vec<Row>, Error> {
        self.session.enter();
        let table = self.tx.table(&from.table.table())?;
        let bounds = (Bound::Included(from.bytes.as_slice()), Bound::Excluded(to.bytes.as_slice()));
        let mut rows = table.range(bounds);
        let mut found = Vec::new();
        while found.len() < limit {
            // The first row needs a descent of the tree; the others are its neighbors.
            let _operation =
                self.session.front.operation(if found.is_empty() { &INDEX_READ } else { &GENERAL_FETCH });
            works(self.session.front.row_work);
            let row = match way {
                Way::Up => rows.next(),
                Way::Down => rows.next_back(),
            };
            let Some((bytes, value)) = row.transpose()? else { break };
            let key = Key { table: from.table, bytes };
            if found.is_empty() {
                self.session.front.pool.use_all(key.path());
            }
            self.session.front.pool.use_all([key.leaf()]);
            found.push(Row { key, value });
        }
        Ok(found)
    }

    /// Inserts a new row.
    ///
    /// # Errors
    ///
    /// An error of the store; [`Error::Invalid`] if the row exists.
    pub fn write_row(&mut self, key: Key, row: &[u8]) -> Result<(), Error> {
        let _operation = self.session.front.operation(&WRITE_ROW);
        self.session.enter();
        self.descend(&key);
        if !self.tx.table(&key.table.table())?.insert_if_absent(&key.bytes, row)? {
            return Err(Error::Invalid(format!("a row of {} is there already", key.table.name())));
        }
        self.changed.push((key, Some(row.to_vec())));
        Ok(())
    }

    /// Replaces an existing row.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn update_row(&mut self, key: Key, row: &[u8]) -> Result<(), Error> {
        let _operation = self.session.front.operation(&UPDATE_ROW);
        self.session.enter();
        self.descend(&key);
        self.tx.table(&key.table.table())?.insert(&key.bytes, row)?;
        self.changed.push((key, Some(row.to_vec())));
        Ok(())
    }

    /// Removes a row.
    ///
    /// # Errors
    ///
    /// An error of the store.
    pub fn delete_row(&mut self, key: Key) -> Result<(), Error> {
        let _operation = self.session.front.operation(&DELETE_ROW);
        self.session.enter();
        self.descend(&key);
        self.tx.table(&key.table.table())?.remove(&key.bytes)?;
        self.changed.push((key, None));
        Ok(())
    }

    fn commit(self) -> Result<(), Error> {
        let _operation = self.session.front.operation(&COMMIT);
        // Changes are applied in order, so the last change of a row remains. The rows are still locked.
        for (key, row) in &self.changed {
            self.session.front.search.change(key, row.as_deref());
        }
        self.tx.commit()
    }

    /// Accesses the pages of a descent from the root to the leaf.
    fn descend(&self, key: &Key) {
        self.session.front.pool.use_all(key.path());
        self.session.front.pool.use_all([key.leaf()]);
    }
}

/// Direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the smallest key upward.
    Up,
    /// From the largest key downward.
    Down,
}

/// A row that a scan returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Key of the row.
    pub key: Key,
    /// Value of the row; in an index, the number of the row that the entry leads to.
    pub value: Vec<u8>,
}

impl Row {
    /// Returns the number of the row that this index entry leads to.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the value is not a number.
    pub fn number(&self) -> Result<u64, Error> {
        number(&self.value)
    }
}

/// Decodes a number stored as the value of an index entry.
///
/// # Errors
///
/// [`Error::Invalid`] if the value is not a number.
pub fn number(value: &[u8]) -> Result<u64, Error> {
    let bytes =
        value.try_into().map_err(|_| Error::Invalid("a value of the index is not a number".into()))?;
    Ok(u64::from_be_bytes(bytes))
}
