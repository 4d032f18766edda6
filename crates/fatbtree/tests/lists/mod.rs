//! An application with open transactions, for tests.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use azekura_fatbtree::store::{Change, LeafStore};
use azekura_fatbtree::{
    Application, Asked, Key, KeyRange, OpenTransaction, Ran, RunError, Stepped, Target, Task, World,
};

/// Lists of numbers in a node's store, with a lock for each key. An open transaction holds its locks until it
/// ends, and its changes are private until the commit.
pub(crate) struct Lists {
    world: World,
    store: Rc<dyn LeafStore>,
    locks: Locks,
    next: Cell<u64>,
    lock_wait: Duration,
    awaited: Awaited,
}

/// Transactions for which others have waited.
type Awaited = Rc<RefCell<BTreeSet<u64>>>;

/// Owner of each key's lock.
pub(crate) type Locks = Rc<RefCell<BTreeMap<Key, u64>>>;

/// A transaction of [`Lists`].
struct Changes {
    number: u64,
    world: World,
    store: Rc<dyn LeafStore>,
    locks: Locks,
    lock_wait: Duration,
    awaited: Awaited,
    changed: BTreeMap<Key, Vec<u8>>,
}

impl Lists {
    /// Creates the application. A lock wait ends after `lock_wait`, which ends deadlocks.
    pub(crate) fn new(world: World, store: Rc<dyn LeafStore>, locks: Locks, lock_wait: Duration) -> Self {
        Self { world, store, locks, next: Cell::default(), lock_wait, awaited: Awaited::default() }
    }

    fn begin(&self) -> Changes {
        self.next.set(self.next.get() + 1);
        let (world, store) = (self.world.clone(), Rc::clone(&self.store));
        let (number, locks) = (self.next.get(), Rc::clone(&self.locks));
        let (lock_wait, awaited) = (self.lock_wait, Rc::clone(&self.awaited));
        Changes { number, world, store, locks, lock_wait, awaited, changed: BTreeMap::new() }
    }
}

impl Changes {
    async fn lock(&self, key: &Key) -> bool {
        let end = self.world.clock.now() + self.lock_wait;
        loop {
            let holder = *self.locks.borrow_mut().entry(key.clone()).or_insert(self.number);
            if holder == self.number {
                return true;
            }
            self.awaited.borrow_mut().insert(holder);
            if self.world.clock.now() >= end {
                return false;
            }
            self.world.clock.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Appends `bytes` to the list of the target, if there are any. Returns the list before the append.
    async fn apply(&mut self, asked: &Asked) -> Result<Ran, RunError> {
        let Target::At(key) = &asked.target else { return Err(RunError::Refused("no key".to_owned())) };
        if !self.lock(key).await {
            return Err(RunError::Refused("a deadlock".to_owned()));
        }
        let list = match self.changed.get(key) {
            Some(list) => list.clone(),
            None => {
                let read = self.store.read(key.clone()).await;
                read.map_err(|error| RunError::Refused(error.to_string()))?.unwrap_or_default()
            }
        };
        if !asked.bytes.is_empty() {
            let longer = [list.as_slice(), &asked.bytes].concat();
            self.changed.insert(key.clone(), longer);
        }
        Ok(Ran { bytes: list, rows: isize::from(!asked.bytes.is_empty()), more_bytes: 8, durable: None })
    }

    async fn commit(&mut self) -> Result<(), RunError> {
        let rows = std::mem::take(&mut self.changed).into_iter().collect();
        let done = self.store.change(Change { rows, ..Change::default() }).await;
        done.map_err(|error| RunError::Failed(error.to_string()))
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.locks.borrow_mut().retain(|_, holder| *holder != self.number);
    }
}

impl Application for Lists {
    fn run(&self, asked: Asked) -> Task<'_, Result<Ran, RunError>> {
        let mut changes = self.begin();
        Box::pin(async move {
            let ran = changes.apply(&asked).await?;
            for key in &asked.others {
                changes.apply(&Asked { target: Target::At(key.clone()), ..asked.clone() }).await?;
            }
            changes.commit().await?;
            Ok(ran)
        })
    }

    fn open(&self, reader: bool) -> Result<Box<dyn OpenTransaction>, RunError> {
        if reader {
            return Ok(Box::new(Frozen { store: Rc::clone(&self.store), rows: None }));
        }
        Ok(Box::new(self.begin()))
    }
}

impl OpenTransaction for Changes {
    fn has_waiters(&self) -> bool {
        self.awaited.borrow().contains(&self.number)
    }

    fn step(&mut self, asked: Asked) -> Task<'_, Stepped> {
        Box::pin(async move {
            let ran = self.apply(&asked).await;
            let is_over = ran.is_err();
            Stepped { ran, is_over }
        })
    }

    fn commit(mut self: Box<Self>) -> Task<'static, Result<Ran, RunError>> {
        Box::pin(async move { Changes::commit(&mut self).await.map(|()| Ran::default()) })
    }

    fn abort(self: Box<Self>) -> Task<'static, ()> {
        drop(self);
        Box::pin(std::future::ready(()))
    }
}

/// A reader: the rows of its node at its first step.
struct Frozen {
    store: Rc<dyn LeafStore>,
    rows: Option<BTreeMap<Key, Vec<u8>>>,
}

impl OpenTransaction for Frozen {
    fn step(&mut self, asked: Asked) -> Task<'_, Stepped> {
        Box::pin(async move {
            if self.rows.is_none() {
                let all = self.store.rows(KeyRange::all(), usize::MAX, false).await;
                self.rows = all.ok().map(|rows| rows.into_iter().collect());
            }
            let (Some(rows), Target::At(key)) = (&self.rows, &asked.target) else {
                return Stepped { ran: Err(RunError::Refused("no rows".to_owned())), is_over: true };
            };
            let bytes = rows.get(key).cloned().unwrap_or_default();
            Stepped { ran: Ok(Ran { bytes, ..Ran::default() }), is_over: false }
        })
    }

    fn commit(self: Box<Self>) -> Task<'static, Result<Ran, RunError>> {
        Box::pin(std::future::ready(Ok(Ran::default())))
    }

    fn abort(self: Box<Self>) -> Task<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
