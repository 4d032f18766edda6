//! `Names`: the directories of a fault disk: durable names, and changes that are not durable yet.
//!
//! - **NAMES-1** A rename is one change of two names: a crash keeps both or neither.
//! - **NAMES-2** Changes that share a name keep their order: making a change durable makes the earlier
//!   changes to its names durable too. Changes without a common name survive independently.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::inode::Inode;
use super::survival::Survival;
use crate::tree::{Change, DirId, Name, Tree};
use azekura_base::sync::Mutex;

/// A file. Its mutex is locked after that of the file system.
pub(crate) type Node = Mutex<Inode>;

/// The changes of names by one call, which are not durable yet.
#[derive(Debug)]
struct Unsynced {
    io: u64,
    changes: Vec<Change<Node>>,
    /// `true` after a failed sync of a directory of the changes: no later sync writes them.
    forgotten: bool,
}

impl Unsynced {
    fn touches(&self, dir: DirId) -> bool {
        self.changes.iter().any(|change| change.name.dir == dir)
    }
}

/// The names of a fault disk.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Names that calls use.
    pub(crate) volatile: Tree<Node>,
    /// Names that every crash keeps, unless an unsynced change affects them.
    pub(crate) durable: Tree<Node>,
    unsynced: Vec<Unsynced>,
}

impl Names {
    /// Makes the changes of I/O `io`, which a crash may lose until their directories are synced.
    pub(crate) fn change(&mut self, io: u64, changes: Vec<Change<Node>>) {
        changes.iter().for_each(|change| self.volatile.apply(change));
        self.unsynced.push(Unsynced { io, changes, forgotten: false });
    }

    /// Makes durable the changes that touch a directory.
    pub(crate) fn sync(&mut self, dir: DirId) {
        let chosen = self.with_what_they_need(|u| !u.forgotten && u.touches(dir));
        let mut chosen = chosen.into_iter();
        let durable = &mut self.durable;
        self.unsynced.retain(|u| {
            let is_chosen = chosen.next().unwrap_or(false);
            if is_chosen {
                u.changes.iter().for_each(|change| durable.apply(change));
            }
            !is_chosen
        });
    }

    /// Applies the effect of a failed sync of a directory: no later sync writes these changes.
    pub(crate) fn forget(&mut self, dir: DirId) {
        self.unsynced.iter_mut().filter(|u| u.touches(dir)).for_each(|u| u.forgotten = true);
    }

    /// Returns `true` for each unsynced call that is chosen, or that a later chosen call needs (NAMES-2).
    fn with_what_they_need(&self, mut is_chosen: impl FnMut(&Unsynced) -> bool) -> Vec<bool> {
        let mut needed: BTreeSet<&Name> = BTreeSet::new();
        let mut chosen = vec![false; self.unsynced.len()];
        for (i, u) in self.unsynced.iter().enumerate().rev() {
            let names = || u.changes.iter().map(|change| &change.name);
            if is_chosen(u) || names().any(|name| needed.contains(name)) {
                chosen[i] = true;
                needed.extend(names());
            }
        }
        chosen
    }

    /// Returns the numbers of the I/Os with changes of names or of bytes that are not durable.
    pub(crate) fn unsynced_ios(&self) -> Vec<u64> {
        let mut ios: Vec<u64> = self.unsynced.iter().map(|u| u.io).collect();
        for (_, node) in self.volatile.files() {
            ios.extend(node.lock().unsynced_ios());
        }
        ios
    }

    /// Returns the names and files after a power loss.
    pub(crate) fn after_crash(&self, survival: &mut Survival) -> Self {
        let mut tree = self.durable.clone();
        let kept = self.with_what_they_need(|u| survival.keeps_name(u.io));
        for (u, _) in self.unsynced.iter().zip(kept).filter(|(_, kept)| *kept) {
            u.changes.iter().for_each(|change| tree.apply(change));
        }
        tree.reserve_dirs_of(&self.volatile);
        let volatile =
            tree.map(&mut |node| Arc::new(Mutex::new(Inode::durable(node.lock().after_crash(survival)))));
        Self { durable: volatile.clone(), volatile, unsynced: Vec::new() }
    }

    /// Returns a copy of all names and files, for a separate disk.
    pub(crate) fn deep_copy(&self) -> Self {
        let mut copies = std::collections::BTreeMap::new();
        let mut copy = |node: &Arc<Node>| {
            let copy = copies.entry(Arc::as_ptr(node).addr());
            Arc::clone(copy.or_insert_with(|| Arc::new(Mutex::new(node.lock().clone()))))
        };
        let unsynced = self.unsynced.iter().map(|u| {
            let changes = u.changes.iter().map(|change| change.map(&mut copy)).collect();
            Unsynced { changes, ..*u }
        });
        Self {
            unsynced: unsynced.collect(),
            volatile: self.volatile.map(&mut copy),
            durable: self.durable.map(&mut copy),
        }
    }
}
