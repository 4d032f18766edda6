//! A store in memory, for simulations. The store survives a crash of its node, and the node restarts on its
//! content.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use crate::error::StoreError;
use crate::id::{PageNo, PeId};
use crate::key::{Key, KeyRange};
use crate::leaf::{LeafHead, MoveId, RouteEntry, Row, Staged};
use crate::store::{Change, Edit, Founding, LeafStore, Recovered, Weight};
use crate::world::{Task, World};

/// State that survives a crash. Clones share one disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Rc<RefCell<Content>>);

#[derive(Clone, Debug, Default)]
struct Content {
    identity: Option<(u64, PeId)>,
    incarnation: u64,
    next_page: u64,
    rows: BTreeMap<Key, Vec<u8>>,
    heads: BTreeMap<PageNo, LeafHead>,
    staged: BTreeMap<MoveId, Staged>,
    decided: BTreeMap<MoveId, PeId>,
    forwarding: BTreeMap<Key, RouteEntry>,
    birth: u64,
    is_settled: bool,
    is_copy: bool,
    met: BTreeMap<PeId, u64>,
    left: BTreeSet<PeId>,
    list: u64,
    is_full: bool,
}

impl Disk {
    /// Returns the live leaves, the staged leaves and the decided moves in the store, for checkers.
    #[must_use]
    pub fn structure(&self) -> (Vec<LeafHead>, Vec<Staged>, Vec<(MoveId, PeId)>) {
        let content = self.0.borrow();
        (
            content.heads.values().cloned().collect(),
            content.staged.values().cloned().collect(),
            content.decided.iter().map(|(id, to)| (*id, *to)).collect(),
        )
    }

    /// Returns the route entries of moved leaves, for checkers.
    #[must_use]
    pub fn forwarding(&self) -> Vec<RouteEntry> {
        self.0.borrow().forwarding.values().cloned().collect()
    }

    /// Returns `true` if the store has recorded that this PE has left, for checkers.
    #[must_use]
    pub fn has_left(&self, pe: PeId) -> bool {
        self.0.borrow().left.contains(&pe)
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.0.borrow().rows.len()
    }

    /// Stores the rows and leaves of an initial build.
    pub fn build(&self, rows: impl IntoIterator<Item = Row>, heads: Vec<LeafHead>) {
        let mut content = self.0.borrow_mut();
        content.rows.extend(rows);
        content.is_settled |= !heads.is_empty();
        for head in heads {
            content.put(head);
        }
    }

    /// Fills the disk, or frees space again. A full disk refuses changes of structure.
    pub fn fill(&self, is_full: bool) {
        self.0.borrow_mut().is_full = is_full;
    }

    /// Loses all content. The disk is then a new store with the name `birth`.
    pub fn lose(&self, birth: u64) {
        *self.0.borrow_mut() = Content { birth, ..Content::default() };
    }

    /// Returns a backup: a disk with a copy of the content.
    #[must_use]
    pub fn backup(&self) -> Self {
        Self(Rc::new(RefCell::new(self.0.borrow().clone())))
    }

    /// Replaces the content by that of a backup, as a copy of the files of a store does.
    pub fn copy_files(&self, backup: &Self) {
        let content = backup.0.borrow().clone();
        *self.0.borrow_mut() = content;
    }

    /// Replaces the content by that of a backup.
    pub fn restore(&self, backup: &Self) {
        let content = backup.0.borrow().clone();
        *self.0.borrow_mut() = Content { is_copy: content.is_settled, ..content };
    }
}

/// A store on a [`Disk`].
pub struct MemoryStore {
    disk: Disk,
    /// Maximum delay before and after each operation; `None` for no delay.
    slow: Option<(World, Duration)>,
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("slow", &self.slow).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// Creates a store without delays.
    #[must_use]
    pub const fn new(disk: Disk) -> Self {
        Self { disk, slow: None }
    }

    /// Creates a store with delays of up to `most` before and after the effect of each operation, so that
    /// crashes occur in between.
    #[must_use]
    pub const fn slow(disk: Disk, world: World, most: Duration) -> Self {
        Self { disk, slow: Some((world, most)) }
    }

    fn run<'a, T: 'a>(&'a self, operation: impl FnOnce(&mut Content) -> T + 'a) -> Task<'a, T> {
        Box::pin(async move {
            self.pass_time().await;
            let value = operation(&mut self.disk.0.borrow_mut());
            self.pass_time().await;
            value
        })
    }

    async fn pass_time(&self) {
        if let Some((world, most)) = &self.slow {
            world.clock.sleep(most.mul_f64(world.rng.below(1000) as f64 / 1000.0)).await;
        }
    }
}

impl Content {
    fn put(&mut self, head: LeafHead) {
        self.next_page = self.next_page.max(head.page.0 + 1);
        self.heads.insert(head.page, head);
    }

    fn range(&self, range: &KeyRange) -> impl DoubleEndedIterator<Item = (&Key, &Vec<u8>)> {
        let high = match &range.high {
            // An empty range would panic.
            Some(high) => Bound::Excluded(high.clone().max(range.low.clone())),
            None => Bound::Unbounded,
        };
        self.rows.range((Bound::Included(range.low.clone()), high))
    }

    fn recover(&mut self, founding: &Founding) -> Result<Recovered, StoreError> {
        let (expected_cluster, expected) = (founding.cluster, founding.pe);
        match self.identity {
            Some((cluster, pe)) if (cluster, pe) != (expected_cluster, expected) => {
                return Err(StoreError::Stranger {
                    found: pe,
                    found_cluster: cluster,
                    expected,
                    expected_cluster,
                });
            }
            Some(_) => {}
            None => {
                self.identity = Some((expected_cluster, expected));
                self.next_page = self.next_page.max(1);
            }
        }
        self.incarnation += 1;
        Ok(Recovered {
            incarnation: self.incarnation,
            heads: self.heads.values().cloned().collect(),
            staged: self.staged.values().cloned().collect(),
            decided: self.decided.iter().map(|(id, to)| (*id, *to)).collect(),
            forwarding: self.forwarding.values().cloned().collect(),
            next_page: self.next_page,
            birth: self.birth,
            is_settled: self.is_settled,
            is_copy: self.is_copy,
            met: self.met.iter().map(|(pe, birth)| (*pe, *birth)).collect(),
            left: self.left.iter().copied().collect(),
            list: self.list,
        })
    }

    fn write(&mut self, key: Key, edit: Edit) -> bool {
        match edit {
            Edit::Put(value) => self.rows.insert(key, value).is_some(),
            Edit::Insert(value) => {
                let existed = self.rows.contains_key(&key);
                self.rows.entry(key).or_insert(value);
                existed
            }
            Edit::Delete => self.rows.remove(&key).is_some(),
        }
    }

    fn weigh(&self, range: &KeyRange) -> Weight {
        let rows = self.range(range).count();
        let bytes = self.range(range).map(|(key, value)| key.len() + value.len()).sum();
        let middle =
            (rows > 1).then(|| self.range(range).nth(rows / 2)).flatten().map(|(key, _)| key.clone());
        Weight { rows, bytes, middle }
    }

    fn change(&mut self, change: Change) {
        for page in change.remove {
            self.heads.remove(&page);
        }
        for head in change.put {
            self.put(head);
        }
        if let Some(range) = change.clear {
            let keys: Vec<_> = self.range(&range).map(|(key, _)| key.clone()).collect();
            for key in keys {
                self.rows.remove(&key);
            }
        }
        self.rows.extend(change.rows);
        if let Some((range, route_entries)) = change.forwarding {
            self.forwarding.retain(|low, _| !range.contains(low));
            self.forwarding.extend(
                route_entries.into_iter().map(|route_entry| (route_entry.range.low.clone(), route_entry)),
            );
        }
        if let Some(staged) = change.stage {
            self.next_page = self.next_page.max(staged.head.page.0 + 1);
            self.staged.insert(staged.id, staged);
        }
        if let Some(id) = change.unstage {
            self.staged.remove(&id);
        }
        if let Some((id, to)) = change.decide {
            self.decided.insert(id, to);
        }
        if let Some(id) = change.forget {
            self.decided.remove(&id);
        }
        self.met.extend(change.met);
        self.is_settled |= change.settles;
        self.is_copy &= !change.settles;
        self.left.extend(change.left);
        self.list = change.list.unwrap_or(self.list);
    }
}

impl LeafStore for MemoryStore {
    fn recover(&self, founding: Founding) -> Task<'_, Result<Recovered, StoreError>> {
        self.run(move |content| content.recover(&founding))
    }

    fn read(&self, key: Key) -> Task<'_, Result<Option<Vec<u8>>, StoreError>> {
        self.run(move |content| Ok(content.rows.get(&key).cloned()))
    }

    fn write(&self, key: Key, edit: Edit) -> Task<'_, Result<bool, StoreError>> {
        self.run(move |content| Ok(content.write(key, edit)))
    }

    fn rows(&self, range: KeyRange, limit: usize, reverse: bool) -> Task<'_, Result<Vec<Row>, StoreError>> {
        self.run(move |content| {
            let owned = |(key, value): (&Key, &Vec<u8>)| (key.clone(), value.clone());
            let rows = content.range(&range);
            Ok(if reverse {
                rows.rev().take(limit).map(owned).collect()
            } else {
                rows.take(limit).map(owned).collect()
            })
        })
    }

    fn max_key_bytes(&self) -> usize {
        usize::MAX
    }

    fn weigh(&self, range: KeyRange) -> Task<'_, Result<Weight, StoreError>> {
        self.run(move |content| Ok(content.weigh(&range)))
    }

    fn change(&self, change: Change) -> Task<'_, Result<(), StoreError>> {
        self.run(move |content| {
            if content.is_full {
                return Err(azekura::Error::LogFull { source: "no space left on device".into() }.into());
            }
            content.change(change);
            Ok(())
        })
    }
}
