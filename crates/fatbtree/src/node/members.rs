//! Members of the cluster, as known to this node.
//!
//! - **MEMBERS-1** A node that has left has left permanently, whatever a list of members contains. Its number
//!   is not reused, and its machine can join only as a new node. So *left* is a set that only grows. Messages
//!   about it may come in any order, twice, and from any node.
//! - **MEMBERS-2** The list of members has a version. A node uses the newest list that it was given, stores
//!   the version durably, and refuses older lists. Nodes exchange their versions, so each node learns that a
//!   newer list exists, but not the list itself. A list is refused if this node, or a node that has contacted
//!   it, knows other contents with the same version ([`ListMark`]). Nodes also check this when they connect,
//!   and when they store a decommission message.
//! - **MEMBERS-3** Nodes that may need forwarding by this node's entries: the nodes of the list, and all
//!   nodes with recorded stores (`met`), even if only a newer list contains them.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::Future;

use crate::id::PeId;
use crate::membership::ListMark;
use crate::message::Message;
use crate::node::Node;
use crate::store::{Change, Recovered};
use crate::world::Notify;

/// The reason that a node does not use a list of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The list is older than one that this node has used.
    #[error(
        "wrong version: the list of members has version {found}, this node uses version {known}; \
         give it that version or a newer one"
    )]
    Stale {
        /// Version of the list.
        found: u64,
        /// Version that the node uses.
        known: u64,
    },
    /// A node uses another list of this version.
    #[error(
        "wrong list: there is another list of members with version {0}; \
         raise the version with each change, and give all nodes the same list"
    )]
    Changed(u64),
    /// The store did not record the version of the list, for example because its disk is full.
    #[error("the store did not record version {0} of the list of members; read the list again later")]
    NotStored(u64),
}

/// Members as known to this node.
pub(super) struct Members {
    known: RefCell<Known>,
    /// Signals that another node uses a newer list.
    news: Notify,
}

struct Known {
    present: BTreeSet<PeId>,
    /// Nodes that have left; durable.
    left: BTreeSet<PeId>,
    /// The list in use; its version is durable.
    list: ListMark,
    /// The newest list that any node is known to use.
    newest: ListMark,
}

impl Members {
    pub(super) fn new(listed: impl Iterator<Item = PeId>, recovered: &Recovered) -> Self {
        let left: BTreeSet<_> = recovered.left.iter().copied().collect();
        let present = listed.filter(|pe| !left.contains(pe)).collect();
        let list = ListMark { version: recovered.list, digest: 0 };
        let known = RefCell::new(Known { present, left, list, newest: list });
        Self { known, news: Notify::default() }
    }

    fn note_left(&self, pe: PeId) {
        let mut known = self.known.borrow_mut();
        known.left.insert(pe);
        known.present.remove(&pe);
    }
}

impl Node {
    /// Adds a new node to the cluster. The node gets keys when leaves are moved to it. Does nothing if the
    /// node has left.
    pub fn join(&self, pe: PeId) {
        let is_new = {
            let mut known = self.members.known.borrow_mut();
            !known.left.contains(&pe) && known.present.insert(pe)
        };
        if is_new {
            tracing::info!(node = pe.0, "node has joined the cluster");
            self.greet(pe);
        }
    }

    /// Returns all members as known to this node, including itself unless it has left.
    #[must_use]
    pub fn members(&self) -> Vec<PeId> {
        self.members.known.borrow().present.iter().copied().collect()
    }

    /// Returns the nodes that have left the cluster.
    #[must_use]
    pub fn left(&self) -> Vec<PeId> {
        self.members.known.borrow().left.iter().copied().collect()
    }

    /// Returns `true` if a node has left the cluster.
    #[must_use]
    pub fn has_left(&self, pe: PeId) -> bool {
        self.members.known.borrow().left.contains(&pe)
    }

    /// Returns the version of the list of members that this node uses, and the newest version of any node.
    #[must_use]
    pub fn list_versions(&self) -> (u64, u64) {
        let known = self.members.known.borrow();
        (known.list.version, known.newest.version)
    }

    /// Returns the list of members that this node uses.
    #[must_use]
    pub fn list(&self) -> ListMark {
        self.members.known.borrow().list
    }

    /// Uses this list of members from now on (MEMBERS-2).
    ///
    /// # Errors
    ///
    /// [`ListError`]: nothing was changed.
    pub async fn go_by_list(&self, list: ListMark) -> Result<(), ListError> {
        let (known, newest) = {
            let known = self.members.known.borrow();
            (known.list, known.newest)
        };
        if list.version < known.version {
            return Err(ListError::Stale { found: list.version, known: known.version });
        }
        if list.contradicts(known) || list.contradicts(newest) {
            return Err(ListError::Changed(list.version));
        }
        let is_newer = list.version > known.version;
        if is_newer {
            let change = Change { list: Some(list.version), ..Change::default() };
            if let Err(error) = self.store.change(change).await {
                self.fail(&error);
                return Err(ListError::NotStored(list.version));
            }
        }
        {
            let mut known = self.members.known.borrow_mut();
            // A newer list may have arrived while the store was working.
            if list.version >= known.list.version {
                known.list = list;
            }
            if list.version >= known.newest.version {
                known.newest = list;
            }
        }
        if is_newer {
            self.others().into_iter().for_each(|pe| self.send(pe, &Message::List { list }));
        }
        Ok(())
    }

    /// Waits until another node uses a newer list than this node.
    pub fn newer_list(&self) -> impl Future<Output = ()> {
        self.members.news.notified()
    }

    /// Records the list that another node uses.
    pub(super) fn heard_of_list(&self, from: PeId, list: ListMark) {
        let own = self.list();
        if list.version > self.list_versions().1 {
            self.members.known.borrow_mut().newest = list;
            self.members.news.notify_waiters();
        }
        if list.version < own.version {
            self.send(from, &Message::List { list: own });
        }
    }

    pub(super) fn others(&self) -> Vec<PeId> {
        self.members().into_iter().filter(|pe| *pe != self.me).collect()
    }

    /// Returns the nodes that may use this node's messages, or messages about it (MEMBERS-3).
    pub(super) fn witnesses(&self) -> BTreeSet<PeId> {
        let met = self.state.borrow().met.keys().copied().collect::<Vec<_>>();
        let all = self.members().into_iter().chain(met);
        all.filter(|pe| *pe != self.me && !self.has_left(*pe)).collect()
    }

    /// Sends the nodes that have left and the version of the list to a node that was started or is reachable
    /// again.
    pub(super) fn tell_members(&self, to: PeId) {
        for pe in self.left() {
            self.send(to, &Message::Left { pe });
        }
        self.send(to, &Message::List { list: self.list() });
    }

    /// Records that a node has left, as reported by that node or by another one (MEMBERS-1).
    pub(super) async fn learn_left(&self, from: PeId, pe: PeId) {
        if pe == self.me {
            if !self.has_left(pe) {
                // A departure of this node would be recorded in its own store.
                self.refuse(format!(
                    "the store of {pe} is an old copy: {from} has recorded that {pe} has left the cluster"
                ));
            }
            return;
        }
        if !self.has_left(pe) {
            if let Err(error) = self.store.change(Change { left: Some(pe), ..Change::default() }).await {
                return self.fail(&error); // unconfirmed, so the message is repeated
            }
            self.members.note_left(pe);
            tracing::info!(node = pe.0, "node has left the cluster");
            // The node left with no open move: it has installed all leaves that were decided for it, and
            // moved them on.
            let to_it = self
                .state
                .borrow()
                .decided
                .iter()
                .filter(|(_, to)| **to == pe)
                .map(|(id, _)| *id)
                .collect::<Vec<_>>();
            for id in to_it {
                self.forget_decision(id).await;
            }
            self.hear_anew();
            // Each node that knows of the departure notifies the others, because the node that left may be
            // stopped before it has notified all of them.
            let others = self.others().into_iter().filter(|other| *other != from);
            others.for_each(|other| self.send(other, &Message::Left { pe }));
        }
        self.send(from, &Message::LeftNoted { pe });
    }

    /// Records that this node has left.
    pub(super) fn note_own_leaving(&self) {
        self.members.note_left(self.me);
    }
}
