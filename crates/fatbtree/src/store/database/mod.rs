//! A PE's store in an [`azekura::Database`]: its page cache, its log, its locks.
//!
//! | table | key | value |
//! |---|---|---|
//! | the rows' (named by the caller) | key | value |
//! | `fat.self` | `identity`, `shares`, `next_page` | owner, starts; initial key ranges; next leaf number |
//! | | `birth` | name of the store |
//! | | `settled` | present once it has its keys: [`Database::id`], or empty (an earlier version) |
//! | | `list` | newest used version of the list of members |
//! | `fat.met` | PE, big-endian | the name of that PE's store |
//! | `fat.left` | PE, big-endian | nothing: that PE has left the cluster |
//! | `fat.leaves` | page, big-endian | [`LeafHead`] |
//! | `fat.staged`, `fat.decided` | [`MoveId`](crate::MoveId) | [`Staged`](crate::leaf::Staged); receiver |
//! | `fat.given` | first key | [`RouteEntry`](crate::leaf::RouteEntry) |

mod recovery;

use std::fmt;
use std::ops::{Bound, ControlFlow};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use azekura::{Database, Error, Table, TableDefinition, Transaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::StoreError;
use crate::id::PeId;
use crate::key::{Key, KeyRange};
use crate::leaf::{LeafHead, Row};
use crate::store::{Change, Edit, Founding, LeafStore, Recovered, Weight};
use crate::world::Task;

const SELF: TableDefinition<[u8], [u8]> = TableDefinition::new("fat.self");
const LEAVES: TableDefinition<[u8], [u8]> = TableDefinition::new("fat.leaves");
const STAGED: TableDefinition<[u8], [u8]> = TableDefinition::new("fat.staged");
const DECIDED: TableDefinition<[u8], [u8]> = TableDefinition::new("fat.decided");
const FORWARDING: TableDefinition<[u8], [u8]> = TableDefinition::new("fat.given");
const MET: TableDefinition<[u8], [u8]> = TableDefinition::new("fat.met");
const LEFT: TableDefinition<[u8], [u8]> = TableDefinition::new("fat.left");
/// Maximum of keys that are kept in memory to find the middle of a leaf.
const MOST_SAMPLES: usize = 8192;
const IDENTITY: &[u8] = b"identity";
const SHARES: &[u8] = b"shares";
const NEXT_PAGE: &[u8] = b"next_page";
const BIRTH: &[u8] = b"birth";
const SETTLED: &[u8] = b"settled";
const LIST: &[u8] = b"list";

/// Runs jobs that may block on other threads.
pub trait Offload {
    /// Runs `job`. The returned task ends after the job.
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> Task<'static, ()>;
}

/// Runs a job at once on this thread: for simulations and tests without other lock holders.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

impl Offload for Inline {
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> Task<'static, ()> {
        job();
        Box::pin(std::future::ready(()))
    }
}

/// Rows that an application stores in addition to each row, for instance an index. They are created where a
/// row arrives, and removed where it leaves.
pub trait Attachments: Send + Sync {
    /// Removes the attached rows of rows that have left with their leaf, and adds those of rows that have
    /// arrived. Called once for each change that moves rows, as the last step of its transaction.
    ///
    /// # Errors
    ///
    /// An error rolls back the whole change.
    fn attach(&self, tx: &Transaction, left: &[Row], arrived: &[Row]) -> Result<(), Error>;

    /// Returns the bytes by which the key of an attached row is longer than that of its row.
    fn longer_by(&self) -> usize {
        0
    }
}

/// An application without attached rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoAttachments;

impl Attachments for NoAttachments {
    fn attach(&self, _: &Transaction, _: &[Row], _: &[Row]) -> Result<(), Error> {
        Ok(())
    }
}

/// Returns the cluster and the PE of the node that owns a store; `None` if no node owns it.
///
/// # Errors
///
/// [`StoreError`]: the record cannot be read.
pub fn owner(db: &Database) -> Result<Option<(u64, PeId)>, StoreError> {
    let identity = db.transact(|tx| {
        if !tx.table_exists(SELF.name())? {
            return Ok(None);
        }
        tx.table(&SELF)?.get(IDENTITY)
    })?;
    let Some(bytes) = identity else { return Ok(None) };
    let (cluster, pe, _): (u64, PeId, u64) = decode("identity", IDENTITY, &bytes)?;
    Ok(Some((cluster, pe)))
}

/// Returns the name of a node's store, drawn when the store was created; `None` if the store belongs to no
/// node.
///
/// # Errors
///
/// [`StoreError`]: the record cannot be read.
pub fn birth(db: &Database) -> Result<Option<u64>, StoreError> {
    let birth = db.transact(|tx| {
        if !tx.table_exists(SELF.name())? {
            return Ok(None);
        }
        tx.table(&SELF)?.get(BIRTH)
    })?;
    birth.map(|bytes| decode("name of the store", BIRTH, &bytes)).transpose()
}

/// A node's store in a database.
#[derive(Clone)]
pub struct DatabaseStore {
    base: Arc<Base>,
    offload: Rc<dyn Offload>,
}

struct Base {
    db: Database,
    rows: TableDefinition<[u8], [u8]>,
    attachments: Arc<dyn Attachments>,
}

impl fmt::Debug for DatabaseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseStore").field("db", &self.base.db).finish_non_exhaustive()
    }
}

impl DatabaseStore {
    /// Creates the store of a node with its rows in the table `rows`.
    #[must_use]
    pub fn new(
        db: Database,
        rows: &str,
        offload: Rc<dyn Offload>,
        attachments: Arc<dyn Attachments>,
    ) -> Self {
        Self { base: Arc::new(Base { db, rows: TableDefinition::named(rows), attachments }), offload }
    }

    fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Base) -> Result<T, StoreError> + Send + 'static,
    ) -> Task<'_, Result<T, StoreError>> {
        let (base, result) = (Arc::clone(&self.base), Arc::new(Mutex::new(None)));
        let for_job = Arc::clone(&result);
        let done = self.offload.run(Box::new(move || {
            *for_job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job(&base));
        }));
        Box::pin(async move {
            done.await;
            let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            result.expect("the job ran: the offload's task has ended")
        })
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, and memory takes any")
}

fn decode<T: DeserializeOwned>(what: &'static str, key: &[u8], value: &[u8]) -> Result<T, StoreError> {
    postcard::from_bytes(value).map_err(|_| StoreError::Damaged { what, key: key.to_vec() })
}

type Open<'tx> = Table<'tx, [u8], [u8]>;

fn bounds(range: &KeyRange) -> (Bound<Key>, Bound<Key>) {
    let high = range.high.clone().map_or(Bound::Unbounded, Bound::Excluded);
    (Bound::Included(range.low.clone()), high)
}

impl Base {
    fn write(&self, key: &[u8], edit: &Edit) -> Result<bool, Error> {
        self.db.transact(|tx| {
            let rows = tx.table(&self.rows)?;
            match edit {
                Edit::Put(value) => Ok(rows.replace(key, value)?.is_some()),
                Edit::Insert(value) => Ok(!rows.insert_if_absent(key, value)?),
                Edit::Delete => Ok(rows.remove(key)?.is_some()),
            }
        })
    }

    fn rows(&self, range: &KeyRange, limit: usize, reverse: bool) -> Result<Vec<Row>, Error> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        self.db.transact(|tx| {
            let rows = tx.table(&self.rows)?.range(bounds(range));
            if reverse { rows.rev().take(limit).collect() } else { rows.take(limit).collect() }
        })
    }

    /// Reads a snapshot, so this waits for no transaction, and no writer waits for it. Other threads may
    /// write into the leaf meanwhile, so the result is an estimate. The memory is bounded, because a leaf may
    /// have any size when a store becomes that of a node: if it has more rows than [`MOST_SAMPLES`], the
    /// middle is chosen among every second key, every fourth, and so on.
    fn weigh(&self, range: &KeyRange) -> Result<Weight, Error> {
        if range.is_empty() {
            return Ok(Weight::default());
        }
        let snapshot = self.db.snapshot()?;
        let (mut rows, mut bytes, mut step) = (0_usize, 0_usize, 1_usize);
        let mut samples: Vec<Key> = Vec::new();
        snapshot.table(&self.rows)?.for_each(bounds(range), |row| {
            if rows.is_multiple_of(step) {
                if samples.len() == MOST_SAMPLES {
                    let mut is_kept = false;
                    samples.retain(|_| {
                        is_kept = !is_kept;
                        is_kept
                    });
                    step *= 2;
                }
                samples.push(row.key_bytes().to_vec());
            }
            rows += 1;
            bytes += row.key_bytes().len() + usize::try_from(row.value_ref().len()).unwrap_or(usize::MAX);
            Ok(ControlFlow::Continue(()))
        })?;
        let middle = (rows > 1).then(|| samples.swap_remove(rows / 2 / step));
        Ok(Weight { rows, bytes, middle })
    }

    fn change(&self, change: &Change) -> Result<(), Error> {
        self.db.transact(|tx| {
            let leaves = tx.table(&LEAVES)?;
            for page in &change.remove {
                leaves.remove(&page.0.to_be_bytes()[..])?;
            }
            put_heads(tx, &change.put)?;
            let left = self.change_rows(tx, change)?;
            if let Some((range, route_entries)) = &change.forwarding {
                let forwarding = tx.table(&FORWARDING)?;
                clear(&forwarding, range)?;
                for route_entry in route_entries {
                    forwarding.insert(&route_entry.range.low, &encode(route_entry))?;
                }
            }
            if let Some(staged) = &change.stage {
                tx.table(&STAGED)?.insert(&encode(&staged.id), &encode(staged))?;
                raise_next_page(tx, staged.head.page.0 + 1)?;
            }
            if let Some(id) = &change.unstage {
                tx.table(&STAGED)?.remove(&encode(id))?;
            }
            if let Some((id, to)) = &change.decide {
                tx.table(&DECIDED)?.insert(&encode(id), &encode(to))?;
            }
            if let Some(id) = &change.forget {
                tx.table(&DECIDED)?.remove(&encode(id))?;
            }
            if let Some((pe, birth)) = &change.met {
                tx.table(&MET)?.insert(&pe.0.to_be_bytes()[..], &encode(birth))?;
            }
            if change.settles {
                tx.table(&SELF)?.insert(SETTLED, &encode(&self.db.id()))?;
            }
            if let Some(pe) = change.left {
                tx.table(&LEFT)?.insert(&pe.0.to_be_bytes()[..], b"")?;
            }
            if let Some(version) = change.list {
                tx.table(&SELF)?.insert(LIST, &encode(&version))?;
            }
            if !(left.is_empty() && change.rows.is_empty()) {
                self.attachments.attach(tx, &left, &change.rows)?;
            }
            Ok(())
        })
    }

    /// Returns the removed rows.
    fn change_rows(&self, tx: &Transaction, change: &Change) -> Result<Vec<Row>, Error> {
        let rows = tx.table(&self.rows)?;
        let left = change.clear.as_ref().map_or(Ok(Vec::new()), |range| clear(&rows, range))?;
        for (key, value) in &change.rows {
            rows.insert(key, value)?;
        }
        Ok(left)
    }
}

/// Removes the rows of a range, and returns them.
fn clear(table: &Open<'_>, range: &KeyRange) -> Result<Vec<Row>, Error> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let rows = table.range(bounds(range)).collect::<Result<Vec<Row>, _>>()?;
    for (key, _) in &rows {
        table.remove(key)?;
    }
    Ok(rows)
}

fn put_heads(tx: &Transaction, heads: &[LeafHead]) -> Result<(), Error> {
    let leaves = tx.table(&LEAVES)?;
    for head in heads {
        leaves.insert(&head.page.0.to_be_bytes()[..], &encode(head))?;
    }
    match heads.iter().map(|head| head.page.0).max() {
        Some(largest) => raise_next_page(tx, largest + 1),
        None => Ok(()),
    }
}

fn raise_next_page(tx: &Transaction, next: u64) -> Result<(), Error> {
    let own = tx.table(&SELF)?;
    let known = own.get(NEXT_PAGE)?.and_then(|bytes| postcard::from_bytes::<u64>(&bytes).ok());
    if known.is_none_or(|known| known < next) {
        own.insert(NEXT_PAGE, &encode(&next))?;
    }
    Ok(())
}

impl LeafStore for DatabaseStore {
    fn recover(&self, founding: Founding) -> Task<'_, Result<Recovered, StoreError>> {
        self.run(move |base| base.recover(&founding))
    }

    fn read(&self, key: Key) -> Task<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.run(move |base| Ok(base.db.transact(|tx| tx.table(&base.rows)?.get(&key))?))
    }

    fn write(&self, key: Key, edit: Edit) -> Task<'_, Result<bool, StoreError>> {
        self.run(move |base| Ok(base.write(&key, &edit)?))
    }

    fn rows(&self, range: KeyRange, limit: usize, reverse: bool) -> Task<'_, Result<Vec<Row>, StoreError>> {
        self.run(move |base| Ok(base.rows(&range, limit, reverse)?))
    }

    fn max_key_bytes(&self) -> usize {
        self.base.db.max_key_bytes().saturating_sub(self.base.attachments.longer_by())
    }

    fn weigh(&self, range: KeyRange) -> Task<'_, Result<Weight, StoreError>> {
        self.run(move |base| Ok(base.weigh(&range)?))
    }

    fn change(&self, change: Change) -> Task<'_, Result<(), StoreError>> {
        self.run(move |base| Ok(base.change(&change)?))
    }
}
