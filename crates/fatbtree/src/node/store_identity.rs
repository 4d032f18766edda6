//! Identity of a node's store: detects a replaced store, and gives a new store its keys.
//!
//! A new store that replaces a lost one must not be mistaken for a store that never had rows. So each store
//! has a *name*, a random number drawn when the store is created, and all other nodes record the name:
//!
//! | the store | other nodes | this node |
//! |---|---|---|
//! | new, name unknown | send route entries, record the name | owns its keys after all answers: *settled* |
//! | new, another name is recorded | refuse its connections | refuses all requests, with the reason |
//! | new, loss accepted | as above; drop the old name | owns, empty, the keys that no other node has |
//! | settled, name recorded | continue | continues |
//! | settled, restored or compacted | send route entries | owns its leaves after all answers |
//!
//! - **STORE-1** A store is settled only after every other member has recorded its name durably. So each of
//!   them detects a different store in its place.
//! - **STORE-2** Before its store is settled, a node serves no key, accepts no leaf and decides no move.
//! - **STORE-3** A new store owns the keys for which the newest route entry names this PE. The entries come
//!   from the other nodes (their leaves and forwarding tables) and from the initial distribution. A node's
//!   entries for a key only become newer, so the nodes may be polled one after the other. No leaf is owned
//!   twice: the owner of a key, or the node that moved it away, has a newer entry than each one that led
//!   there (I2, I3).
//! - **STORE-4** The leaves of a new store get higher versions than all known entries. So old entries about
//!   the lost store misdirect no request.
//! - **STORE-5** A node that owns a leaf and learns of a newer leaf of another PE with the same keys refuses
//!   all requests: its store, or the store of the other node, is an old copy, for instance from a backup that
//!   was made before the leaf moved (I2). Without this, both nodes would serve the keys.
//! - **STORE-6** A store that was restored from a backup, or compacted, may lack a move of one of its leaves.
//!   Before its node serves a leaf, all other nodes have sent their route entries, and none of them is newer
//!   than the leaf. For a leaf that has moved away, at least its owner has a newer entry (I2). For a leaf
//!   that has moved to this node since, also back to it, its last owner has one. Until then the leaves are
//!   *withheld*, and the store counts as not settled (STORE-2). The operator may accept the copy instead, for
//!   example while another node is down. A copy of the files of a store is not withheld: nothing in the files
//!   distinguishes it from the original.
//! - **STORE-7** At each connection a node sends the entries of the leaves that have moved from it to the
//!   other node. If the other node knows such keys only at a lower version, of a leaf, a staged leaf or a
//!   move away, its store is from before the move, and it refuses all requests. The versions of a key
//!   increase, and a move is decided only after its receiver has staged the leaf durably: except in an old
//!   copy, a node knows a version that is not lower than that of any move to it.
//!
//! - **STORE-8** A store is settled only by the newest list of members that another node uses. A node that
//!   only a newer list contains may own a leaf of a copied store, and has recorded the name of a new one. A
//!   node that refuses all requests does not settle its store: a copy stays withheld after the next start.
//!
//! A leaf that the lost store was moving away, and that its receiver has staged, belongs to the receiver
//! unless a newer entry for its keys exists: no other node has the rows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::error::StoreError;
use crate::id::{PageNo, PeId};
use crate::index::PageCopy;
use crate::key::{Key, KeyRange, Target};
use crate::leaf::{LeafHead, MoveId, RouteEntry};
use crate::message::Message;
use crate::node::Node;
use crate::node::state::route_entries;
use crate::ranges::Ranges;
use crate::store::{Change, Founding, Recovered};
use crate::world::Notify;

/// Approximate number of route entries in one message.
const ENTRIES_PER_PAGE: usize = 256;

/// Identity of a store, as shown in the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Name of the store.
    pub birth: u64,
    /// `true` if the store has its keys.
    pub is_settled: bool,
    /// `true` if the store is new and the operator has accepted the loss of the previous one.
    pub is_loss_accepted: bool,
}

/// A part of the route entries of a node.
pub(super) struct Page {
    pub(super) route_entries: Vec<RouteEntry>,
    pub(super) staged: Vec<(MoveId, RouteEntry)>,
    pub(super) newest: u64,
    pub(super) rest: Option<Key>,
}

/// Identity of the store.
pub(super) struct StoreIdentity {
    birth: u64,
    is_settled: Cell<bool>,
    /// The leaves of a copied store that the other nodes have not confirmed yet (STORE-6).
    withheld: RefCell<Option<Vec<LeafHead>>>,
    /// The answers so far, while the store is not settled.
    heard: RefCell<Heard>,
    /// Signals an answer.
    notify: Notify,
}

/// Progress of collecting the entries of another node.
enum Collection {
    /// Entries from this key on are missing.
    Until(Key),
    /// All entries have arrived; the other node has not recorded the name yet.
    All,
    /// All entries have arrived, and the other node has recorded the name.
    Admitted,
}

struct Heard {
    /// Number of the collection since the node's start.
    number: u64,
    known: Ranges<PageCopy>,
    staged: BTreeMap<MoveId, RouteEntry>,
    newest: u64,
    collected_from: BTreeMap<PeId, Collection>,
}

impl StoreIdentity {
    /// Takes the leaves of a copied store out of `recovered`.
    pub(super) fn new(recovered: &mut Recovered, founding: &Founding) -> Self {
        let withheld = recovered.is_copy.then(|| std::mem::take(&mut recovered.heads));
        let nobody = PageCopy { pe: founding.pe, page: PageNo::ROOT };
        let mut known = Ranges::new(KeyRange::all(), 0, nobody);
        for (range, pe) in founding.ranges() {
            known.learn(&range, 1, &PageCopy { pe, page: PageNo::ROOT });
        }
        let heard =
            Heard { number: 0, known, staged: BTreeMap::new(), newest: 1, collected_from: BTreeMap::new() };
        Self {
            birth: recovered.birth,
            is_settled: Cell::new(recovered.is_settled && withheld.is_none()),
            withheld: RefCell::new(withheld),
            heard: RefCell::new(heard),
            notify: Notify::default(),
        }
    }
}

impl Node {
    /// Returns the identity of this node's store.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        let is_settled = self.is_settled();
        let is_loss_accepted = self.options.is_loss_accepted && !is_settled;
        Credentials { birth: self.store_identity.birth, is_settled, is_loss_accepted }
    }

    /// Returns `true` if the store has its keys (STORE-2).
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.store_identity.is_settled.get()
    }

    /// Returns the reason for which this node has no keys yet.
    pub(super) fn unsettled(&self) -> Option<String> {
        if self.is_settled() {
            return None;
        }
        if let Some((own, newest)) = self.newer_list_version() {
            return Some(format!(
                "the store of {} is new or a copy (restored or compacted), and its list of members has \
                 version {own}, but another node uses version {newest}: give this node the newer list",
                self.me
            ));
        }
        let heard = self.store_identity.heard.borrow();
        let is_open = |pe: &PeId| !matches!(heard.collected_from.get(pe), Some(Collection::Admitted));
        let open: Vec<_> = self.others().into_iter().filter(is_open).map(|pe| pe.to_string()).collect();
        let open = open.join(", ");
        Some(match self.is_copy() {
            false => format!("the store of {} is new and still needs the route entries of {open}", self.me),
            true => format!(
                "the store of {} is a copy (restored or compacted), and {open} must confirm that it is not \
                 outdated; or serve it with --accept-restored",
                self.me
            ),
        })
    }

    /// Returns the version of this node's list of members and that of the newest list, if another node uses a
    /// newer one (STORE-8).
    fn newer_list_version(&self) -> Option<(u64, u64)> {
        Some(self.list_versions()).filter(|(own, newest)| own < newest)
    }

    /// Returns `true` if the store is a copy, and the other nodes have not confirmed its leaves yet.
    fn is_copy(&self) -> bool {
        self.store_identity.withheld.borrow().is_some()
    }

    /// Returns `true` if the target is in a leaf that the other nodes have not confirmed yet (STORE-6).
    pub(super) fn withholds(&self, target: &Target) -> bool {
        let withheld = self.store_identity.withheld.borrow();
        withheld.iter().flatten().any(|leaf| target.is_in(&leaf.range))
    }

    /// Returns `true` if another node presents the store that is recorded for it. If no store is recorded,
    /// records the name of a settled one. Returns `None` if this node's store cannot record it now.
    pub async fn admits(&self, pe: PeId, shown: Credentials) -> Option<bool> {
        let known = self.state.borrow().met.get(&pe).copied();
        match known {
            Some(birth) if birth == shown.birth => Some(true),
            Some(_) => Some(shown.is_loss_accepted && !shown.is_settled),
            None if !shown.is_settled => Some(true),
            None => self.remember(pe, shown.birth).await.then_some(true),
        }
    }

    async fn remember(&self, pe: PeId, birth: u64) -> bool {
        let done = self.store.change(Change { met: Some((pe, birth)), ..Change::default() }).await;
        if done.is_ok() {
            self.state.borrow_mut().met.insert(pe, birth);
        }
        done.is_ok()
    }

    /// Refuses all requests from now on, because another node has recorded another store for this node.
    pub fn displaced(&self, witness: PeId) {
        let mine = if self.is_settled() || self.is_copy() {
            "another store has taken the place of the one here"
        } else {
            "the store here is new, so the keys of the one before are missing"
        };
        let reason = format!(
            "{witness} has recorded another store for {}: {mine}. Bring that store back; \
             or, if it is lost for good, serve an empty one with --accept-loss",
            self.me
        );
        self.refuse(reason);
    }

    /// Refuses all requests from now on, because another node owns keys of this node (STORE-5).
    pub(super) fn refuse_as_old_copy(&self, old: &LeafHead, newer: &RouteEntry) {
        self.refuse(format!(
            "{} owns keys of {} of {} (version {}) since version {}, so one of the two stores is an old \
             copy. Restore the newest store; or, if it is lost, serve an empty one with --accept-loss",
            newer.pe, old.page, self.me, old.version, newer.version
        ));
    }

    /// Refuses all requests from now on if keys moved to this node after its store was copied (STORE-7).
    pub(super) fn compare_arrivals(&self, route_entries: &[RouteEntry]) {
        if !self.is_settled() {
            return; // a new store has no leaf yet, and the leaves of a copy are withheld
        }
        let state = self.state.borrow();
        // Version 1 is that of the initial distribution.
        let mut arrivals = route_entries.iter().filter(|entry| entry.pe == self.me && entry.version > 1);
        if let Some(newer) = arrivals.find(|entry| state.lacks_arrival(entry, &[])) {
            self.refuse_as_from_before(newer);
        }
    }

    /// Refuses all requests from now on, because the store is from before a move of keys to this node.
    fn refuse_as_from_before(&self, moved: &RouteEntry) {
        self.refuse(format!(
            "a leaf with keys from {:?} on moved to {} at version {}, after the copy here was made. Restore \
             the newest store; or, if it is lost, serve an empty one with --accept-loss",
            moved.range.low.escape_ascii().to_string(),
            self.me,
            moved.version
        ));
    }

    /// Begins to collect the keys of an unsettled store. Takes ownership at once if there is no other node.
    pub(super) async fn begin_collecting(&self) {
        if self.is_settled() {
            return;
        }
        if self.others().is_empty() || (self.is_copy() && self.options.is_copy_accepted) {
            return self.finish_collecting().await;
        }
        self.spawn(|node| {
            Box::pin(async move {
                node.hear_all().await;
                node.finish_collecting().await;
            })
        });
    }

    /// Polls each other node until all entries have come, all nodes have recorded this store's name, and none
    /// of them uses a newer list of members (STORE-8).
    async fn hear_all(&self) {
        loop {
            let mut is_open = self.newer_list_version().is_some();
            for pe in self.others() {
                is_open |= self.ask_for_account(pe);
            }
            if !is_open {
                return;
            }
            self.world.timeout(self.options.remind_interval, self.store_identity.notify.notified()).await;
        }
    }

    /// Restarts the collection because a node has left: entries collected before may lead to that node
    /// (LEAVE-5).
    pub(super) fn hear_anew(&self) {
        if !self.is_settled() {
            let mut heard = self.store_identity.heard.borrow_mut();
            heard.collected_from.clear();
            // Answers in flight belong to the earlier collection.
            heard.number += 1;
        }
        self.store_identity.notify.notify_waiters();
    }

    /// Returns the number of the present collection; answers to an earlier one may be too old (LEAVE-5).
    fn hearing(&self) -> (u64, u64) {
        (self.state.borrow().incarnation, self.store_identity.heard.borrow().number)
    }

    /// Requests missing entries from a node; returns `true` if some are missing.
    fn ask_for_account(&self, pe: PeId) -> bool {
        let hearing = self.hearing();
        let message = match self.store_identity.heard.borrow().collected_from.get(&pe) {
            None => Message::Account { hearing, from: Key::new() },
            Some(Collection::Until(key)) => Message::Account { hearing, from: key.clone() },
            Some(Collection::All) => Message::Admit {
                birth: self.store_identity.birth,
                is_loss_accepted: self.options.is_loss_accepted,
            },
            Some(Collection::Admitted) => return false,
        };
        self.send(pe, &message);
        true
    }

    /// Sends this node's durable route entries from a key on.
    pub(super) fn account(&self, to: PeId, hearing: (u64, u64), from: Key) {
        if self.has_left(self.me) {
            return self.tell_members(to);
        }
        let state = self.state.borrow();
        let withheld = self.store_identity.withheld.borrow();
        let own = state.leaves.values().chain(withheld.iter().flatten());
        let mut known: Vec<_> = own.map(|leaf| leaf.route_entry(self.me)).collect();
        known.extend(route_entries(&state.forwarding).filter(|route_entry| route_entry.pe != self.me));
        // Entries that extend beyond the key are included: since the last request a leaf may have been merged
        // into a leaf before it.
        known.retain(|route_entry| route_entry.range.high.as_ref().is_none_or(|high| *high > from));
        known.sort_unstable_by(|one, two| one.range.low.cmp(&two.range.low));
        let rest = known
            .get(ENTRIES_PER_PAGE)
            .map(|route_entry| route_entry.range.low.clone())
            .filter(|low| *low > from);
        if rest.is_some() {
            known.truncate(ENTRIES_PER_PAGE);
        }
        let staged = state.staged.values().filter(|staged| staged.id.source == to);
        let staged = staged.map(|staged| (staged.id, staged.head.route_entry(self.me))).collect();
        let newest =
            known.iter().map(|route_entry| route_entry.version).chain([state.index.newest_version()]).max();
        let newest = newest.unwrap_or(0);
        drop(state);
        self.send(to, &Message::Accounted { hearing, from, route_entries: known, staged, newest, rest });
    }

    /// Adds entries of another node. Ignores entries that were not requested or have already arrived.
    pub(super) fn accounted(&self, pe: PeId, hearing: (u64, u64), from: Key, page: Page) {
        if hearing != self.hearing() {
            return;
        }
        let mut heard = self.store_identity.heard.borrow_mut();
        let is_wanted = match heard.collected_from.get(&pe) {
            None => from.is_empty(),
            Some(Collection::Until(key)) => *key == from,
            Some(Collection::All | Collection::Admitted) => false,
        };
        // An answer without progress would make the collection endless.
        let is_progress = page.rest.as_ref().is_none_or(|rest| *rest > from);
        if self.is_settled() || !is_wanted || !is_progress {
            return;
        }
        for route_entry in &page.route_entries {
            heard.known.learn(
                &route_entry.range,
                route_entry.version,
                &PageCopy { pe: route_entry.pe, page: route_entry.page },
            );
        }
        heard.staged.extend(page.staged);
        heard.newest = heard.newest.max(page.newest);
        heard.collected_from.insert(pe, page.rest.map_or(Collection::All, Collection::Until));
        drop(heard);
        self.store_identity.notify.notify_waiters();
    }

    /// Records the new store of another node, unless another one is recorded.
    pub(super) async fn admit(&self, pe: PeId, birth: u64, is_loss_accepted: bool) {
        // LEAVE-5: a leaving node does not answer. The other node repeats the request, or learns of the
        // departure.
        let Some(_arrival) = self.leaving.let_come() else { return };
        let known = self.state.borrow().met.get(&pe).copied();
        let is_admitted = match known {
            Some(known) if known == birth => true,
            Some(_) if !is_loss_accepted => false,
            _ => {
                if !self.remember(pe, birth).await {
                    return; // the other node asks again
                }
                true
            }
        };
        self.send(pe, &Message::Admitted { birth, is_admitted });
    }

    pub(super) fn admitted(&self, pe: PeId, birth: u64, is_admitted: bool) {
        if birth != self.store_identity.birth || self.is_settled() {
            return;
        }
        if !is_admitted {
            return self.displaced(pe);
        }
        let mut heard = self.store_identity.heard.borrow_mut();
        if matches!(heard.collected_from.get(&pe), Some(Collection::All)) {
            heard.collected_from.insert(pe, Collection::Admitted);
            drop(heard);
            self.store_identity.notify.notify_waiters();
        }
    }

    /// Takes ownership of the store's keys (STORE-3, STORE-6).
    async fn finish_collecting(&self) {
        if self.failure().is_some() {
            return; // STORE-8
        }
        let withheld = self.store_identity.withheld.borrow().clone();
        let (leaves, forwarding, decisions) = match withheld {
            None => self.inheritance(),
            Some(leaves) => {
                if let Some((old, newer)) = self.newer_than_one_of(&leaves) {
                    return self.refuse_as_old_copy(&old, &newer);
                }
                if let Some(newer) = self.arrived_after_copy(&leaves) {
                    return self.refuse_as_from_before(&newer);
                }
                (leaves, Vec::new(), Vec::new())
            }
        };
        let settled = match self.is_copy() {
            true => self.store.change(Change { settles: true, ..Change::default() }).await,
            false => self.inherit(&leaves, &forwarding, &decisions).await,
        };
        if let Err(error) = settled {
            // Even if the last change was rolled back: the collected entries were used up.
            return self.refuse(error.to_string());
        }
        {
            let mut state = self.state.borrow_mut();
            forwarding.iter().for_each(|route_entry| state.give(self.me, route_entry));
            for head in &leaves {
                state.put_leaf(self.me, head.clone());
            }
            state.decided.extend(decisions.iter().copied());
        }
        self.store_identity.is_settled.set(true);
        self.store_identity.withheld.replace(None);
        leaves.iter().for_each(|head| self.serve_locally(&head.range));
        self.changed.notify_waiters();
        for (id, to) in decisions {
            self.remind_of_decision(id, to);
        }
        self.others().into_iter().for_each(|pe| self.tell_own(pe));
    }

    /// Returns a leaf and a collected entry of another node that is newer than the leaf.
    fn newer_than_one_of(&self, leaves: &[LeafHead]) -> Option<(LeafHead, RouteEntry)> {
        let heard = self.store_identity.heard.borrow();
        leaves.iter().find_map(|leaf| {
            let part = heard.known.clip(&leaf.range);
            let newer =
                route_entries(&part).find(|entry| entry.pe != self.me && entry.version > leaf.version)?;
            Some((leaf.clone(), newer))
        })
    }

    /// Returns a collected entry of a leaf that moved to this node, if the copied store, with these leaves,
    /// is from before that move.
    fn arrived_after_copy(&self, leaves: &[LeafHead]) -> Option<RouteEntry> {
        let (state, heard) = (self.state.borrow(), self.store_identity.heard.borrow());
        route_entries(&heard.known).find(|entry| entry.pe == self.me && state.lacks_arrival(entry, leaves))
    }

    /// Computes from the collected entries: this node's leaves, the changed route entries of other nodes, and
    /// moves of the lost store with leaves that are staged at their receivers.
    fn inheritance(&self) -> (Vec<LeafHead>, Vec<RouteEntry>, Vec<(MoveId, PeId)>) {
        let mut heard = self.store_identity.heard.borrow_mut();
        let Heard { known, staged, newest, .. } = &mut *heard;
        let mut decisions = Vec::new();
        let mut staged: Vec<_> = std::mem::take(staged).into_iter().collect();
        // If a leaf has two receivers, the later move comes first.
        staged.sort_unstable_by_key(|(id, route_entry)| {
            std::cmp::Reverse((route_entry.version, id.incarnation, id.number))
        });
        for (id, route_entry) in staged {
            let is_newest = known
                .clip(&route_entry.range)
                .pieces()
                .iter()
                .all(|piece| piece.value.pe == self.me && piece.version <= route_entry.version);
            if is_newest {
                known.learn(
                    &route_entry.range,
                    route_entry.version + 1,
                    &PageCopy { pe: route_entry.pe, page: route_entry.page },
                );
                *newest = (*newest).max(route_entry.version + 1);
                decisions.push((id, route_entry.pe));
            }
        }
        let is_first = *newest <= 1;
        let version = if is_first { 1 } else { *newest + 1 }; // STORE-4
        let mut state = self.state.borrow_mut();
        let mut leaves: Vec<LeafHead> = Vec::new();
        for (range, _) in known.iter().filter(|(_, piece)| piece.value.pe == self.me) {
            match leaves.last_mut() {
                // Creates one leaf for each initial key range of a new cluster, otherwise one for each
                // contiguous range.
                Some(last) if !is_first && last.range.high.as_ref() == Some(&range.low) => {
                    last.range.high = range.high;
                }
                _ => leaves.push(LeafHead { page: state.next_page(), range, right: None, version }),
            }
        }
        let forwarding = route_entries(known)
            .filter(|route_entry| route_entry.pe != self.me && route_entry.version > 1)
            .collect();
        (leaves, forwarding, decisions)
    }

    async fn inherit(
        &self,
        leaves: &[LeafHead],
        forwarding: &[RouteEntry],
        decisions: &[(MoveId, PeId)],
    ) -> Result<(), StoreError> {
        for route_entry in forwarding {
            // Rows from before the store belonged to a node would reappear with the next leaf of these keys.
            if let Some((key, _)) =
                self.store.rows(route_entry.range.clone(), 1, false).await?.into_iter().next()
            {
                return Err(StoreError::RowOfAnother { key, owner: route_entry.pe });
            }
        }
        for decision in decisions {
            self.store.change(Change { decide: Some(*decision), ..Change::default() }).await?;
        }
        let change = Change {
            put: leaves.to_vec(),
            forwarding: Some((KeyRange::all(), forwarding.to_vec())),
            settles: true,
            ..Change::default()
        };
        self.store.change(change).await
    }
}
