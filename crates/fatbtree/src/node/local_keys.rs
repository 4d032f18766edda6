//! Keys of this node that threads of the application serve themselves, in the node's store, without a task of
//! the node's thread.
//!
//! A request needs two guarantees: its keys belong to this node, and they stay here until its transaction has
//! ended. The lock on a leaf gives both to the tasks of the node's thread (NODE-1). Other threads get both
//! from a [`Gate`]: they enter the gate while all their keys are in the published set.
//!
//! | keys of a leaf are | in the set | change |
//! |---|---|---|
//! | owned | yes | a leaf is recovered, was received, or was not moved after all |
//! | about to move | no | the move has X on the leaf, and waits until the threads inside have left |
//! | of another node | no | the move is decided |
//!
//! - **LOCAL-1** A key is in the set only while this node owns the key, is settled and refuses no requests
//!   (`failure`). A thread inside the gate has entered by such a set, and a move waits for the thread
//!   ([`Drained`](azekura_latch::gate::Drained)) before it reads the rows of the leaf. So a request of such a
//!   thread is ordered before the whole move, as if it had locked the leaf.
//! - **LOCAL-2** A thread inside the gate waits for no task of the node. A request that waits for a lock
//!   leaves the gate after a bounded time, and goes to the node's thread like a request for a key that is not
//!   in the set.
//! - **LOCAL-3** Keys return to the set under X on their leaf. So two moves of one leaf change the set one
//!   after the other.
//! - **LOCAL-4** A move ends readers of several nodes only after the threads inside have left. Otherwise a
//!   thread could commit a change of the leaf and of another key after a reader has opened its snapshot here.
//!   The reader would see the change of the leaf at the leaf's new node, but not the change of the other key
//!   (OPEN-6).
//!
//! Splits and merges change the heads of leaves, but no rows and no owner. So they do not exclude these
//! threads, and the set contains ranges of keys, not leaves.
//!
//! The node learns the growth of its leaves by samples. Each thread sums up the rows and bytes that it has
//! written, and reports the sum as growth of the leaf of its last key. The expected sum of the reports of a
//! leaf equals its growth, and a leaf is counted before it is split or merged.

use std::fmt;

use azekura_base::CachePadded;
use azekura_base::striped::{stripe_count, thread_stripe};
use azekura_base::sync::Mutex;
use azekura_latch::gate::{Drained, Entry, Gate};

use crate::key::{Key, KeyRange, Target};
use crate::key_set::KeySet;
use crate::node::Node;
use crate::options::Options;

/// Divisor of a leaf's limits: a thread reports its writes after a growth of this part of a limit.
const REPORTED_PART: usize = 16;

/// The keys that threads of the application serve; see the module's head.
pub struct LocalKeys {
    gate: Gate<KeySet>,
    own: Mutex<Own>,
    growth: Box<[CachePadded<Mutex<Growth>>]>,
    /// Growth from which on a thread reports its sum.
    most_growth: Growth,
}

#[derive(Default)]
struct Own {
    keys: KeySet,
    /// `true` after the set was emptied permanently.
    is_shut: bool,
}

/// Rows and bytes that writes have added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growth {
    /// Number of added rows; negative if more rows were removed.
    pub rows: i64,
    /// Bytes of written keys and values; replaced bytes are not subtracted.
    pub bytes: usize,
}

impl fmt::Debug for LocalKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalKeys").field("keys", &self.own.lock().keys).finish_non_exhaustive()
    }
}

/// A request that is served without the node's thread. Until this value is dropped, no move of the request's
/// keys begins. Drop it after the commit; the flush may complete later.
#[derive(Debug)]
pub struct LocalEntry(Entry<KeySet>);

impl LocalEntry {
    /// Returns `true` if a further key may be served under this entry.
    #[must_use]
    pub fn serves(&self, key: &[u8]) -> bool {
        self.0.admits(|keys| keys.contains(key))
    }
}

impl LocalKeys {
    pub(super) fn new(options: &Options) -> Self {
        let part = |most: usize| (most / REPORTED_PART).max(1);
        Self {
            gate: Gate::new(stripe_count(), KeySet::default()),
            own: Mutex::default(),
            growth: (0..stripe_count()).map(|_| CachePadded::new(Mutex::default())).collect(),
            most_growth: Growth {
                rows: i64::try_from(part(options.leaf_rows)).unwrap_or(i64::MAX),
                bytes: part(options.leaf_bytes),
            },
        }
    }

    /// Enters the gate for a key, if this thread may serve the key. Never waits. Hold the entry until the
    /// request's transaction has ended. Meanwhile wait for other requests at most a bounded time (LOCAL-2).
    #[must_use]
    pub fn enter(&self, key: &[u8]) -> Option<LocalEntry> {
        self.gate.enter(thread_stripe(), |keys| keys.contains(key)).map(LocalEntry)
    }

    /// Like [`enter`](Self::enter), for a request that uses all keys.
    #[must_use]
    pub fn enter_all(&self) -> Option<LocalEntry> {
        self.gate.enter(thread_stripe(), KeySet::has_all).map(LocalEntry)
    }

    /// Returns `true` if [`enter`](Self::enter) would probably succeed.
    #[must_use]
    pub fn serves(&self, key: &[u8]) -> bool {
        self.gate.would_admit(thread_stripe(), |keys| keys.contains(key))
    }

    /// Records the growth by a write. If the thread's sum is large enough, returns it, to be
    /// [reported](Node::note_growth) for the leaf of the written key.
    #[must_use]
    pub fn note_growth(&self, growth: Growth) -> Option<Growth> {
        let mut sum = self.growth[thread_stripe() % self.growth.len()].lock();
        sum.rows += growth.rows;
        sum.bytes = sum.bytes.saturating_add(growth.bytes);
        let is_large = sum.rows.abs() >= self.most_growth.rows || sum.bytes >= self.most_growth.bytes;
        is_large.then(|| std::mem::take(&mut *sum))
    }

    /// Adds keys of this node to the set (LOCAL-1, LOCAL-3).
    pub(super) fn open(&self, range: &KeyRange) {
        let mut own = self.own.lock();
        if !own.is_shut {
            own.keys.add(range);
            self.gate.publish(own.keys.clone());
        }
    }

    /// Removes keys from the set. Wait for the result before their owner changes.
    pub(super) fn close(&self, range: &KeyRange) -> Drained<'_, KeySet> {
        let mut own = self.own.lock();
        own.keys.remove(range);
        self.gate.exclude(own.keys.clone())
    }

    /// Empties the set permanently: the node refuses requests, or has stopped. Requests inside the gate
    /// continue.
    pub(crate) fn shut(&self) {
        let mut own = self.own.lock();
        *own = Own { keys: KeySet::default(), is_shut: true };
        drop(self.gate.exclude(KeySet::default()));
    }

    /// Returns the keys that are in the set and in none of these ranges, which violates LOCAL-1.
    pub(super) fn beyond<'a>(&self, owned: impl Iterator<Item = &'a KeyRange>) -> Option<String> {
        let mut keys = self.own.lock().keys.clone();
        owned.for_each(|range| keys.remove(range));
        (!keys.is_empty()).then(|| format!("LOCAL-1: the node serves keys of others: {keys:?}"))
    }
}

impl Node {
    /// Returns the keys that other threads serve.
    #[must_use]
    pub fn local_keys(&self) -> &std::sync::Arc<LocalKeys> {
        &self.local_keys
    }

    /// Adds the keys of an owned leaf to the set. The paper's protocols lock index pages for each request, so
    /// with them the set stays empty.
    pub(super) fn serve_locally(&self, range: &KeyRange) {
        #[cfg(feature = "baseline-protocols")]
        if self.is_coupled() {
            return;
        }
        self.local_keys.open(range);
    }

    /// Splits or merges the leaf of a key after reported [growth](LocalKeys::note_growth), if its size
    /// requires that.
    pub async fn note_growth(&self, key: Key, Growth { rows, bytes }: Growth) {
        let page = self.state.borrow().own_leaf(&Target::At(key)).map(|leaf| leaf.page);
        if let Some(page) = page {
            let rows = isize::try_from(rows).unwrap_or(isize::MAX);
            self.keep_balance(page, rows, bytes).await;
        }
    }
}
