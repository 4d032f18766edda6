//! Lists the holders and waiters of all locks, for diagnosis.

use std::collections::BTreeMap;
use std::fmt;

use azekura_base::{TreeId, TxnId};

use crate::id::{KeyRef, LockId, LockName};
use crate::intent::Note;
use crate::mode::{KeyMode, TableMode};
use crate::mode_bits::{self, Family, ModeBits};
use crate::stripe::{NONE, Stripe};
use crate::table::LockTable;

/// A mode of a table lock or a key lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnyMode {
    /// The mode of a table lock.
    Table(TableMode),
    /// The mode of a lock on a key or on the end of a table.
    Key(KeyMode),
}

/// One lock, as it was while its latch was held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockDump {
    /// The locked object.
    pub name: LockName,
    /// Holders and their modes.
    pub holders: Vec<(TxnId, AnyMode)>,
    /// Waiters in the order of service, with the requested modes.
    pub waiters: Vec<(TxnId, AnyMode)>,
}

impl LockDump {
    const fn empty(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new() }
    }
}

fn mode(family: Family, mode_bits: ModeBits) -> AnyMode {
    match mode_bits::table_mode(mode_bits) {
        Some(table) if family == Family::Table => AnyMode::Table(table),
        _ => AnyMode::Key(mode_bits::key_mode(mode_bits)),
    }
}

impl LockTable {
    /// Returns the holders of a key and their modes, oldest first. Range locks are missing unless a request
    /// for the key has shared them.
    #[must_use]
    pub fn holders(&self, tree: TreeId, key: KeyRef<'_>) -> Vec<(TxnId, KeyMode)> {
        let id = self.key_id(tree, key);
        let stripe = self.stripe(id).lock();
        let head = stripe.find(id);
        if head == NONE {
            return Vec::new();
        }
        let mut holders: Vec<_> = stripe
            .holders(head)
            .map(|r| (self.owners.get(r.owner).txn(), mode_bits::key_mode(r.held)))
            .collect();
        holders.sort_unstable_by_key(|h| h.0);
        holders
    }

    /// Returns the holders of a table and their modes, oldest first, including intents outside the shared
    /// table.
    #[must_use]
    pub fn table_holders(&self, tree: TreeId) -> Vec<(TxnId, TableMode)> {
        let id = LockId::table(tree);
        // An intent turns from a note into a request only under this latch, so each is listed once.
        let stripe = self.stripe(id).lock();
        let mut holders = self.noted(|note| note.tree == tree);
        let head = stripe.find(id);
        if head != NONE {
            holders.extend(stripe.holders(head).map(|r| (id.name(), self.owners.get(r.owner).txn(), r.held)));
        }
        drop(stripe);
        holders.sort_unstable_by_key(|h| h.1);
        holders.into_iter().filter_map(|(_, txn, held)| Some((txn, mode_bits::table_mode(held)?))).collect()
    }

    /// Returns the intents that are only noted with their owners.
    fn noted(&self, wanted: impl Fn(&Note) -> bool) -> Vec<(LockName, TxnId, ModeBits)> {
        let mut all = Vec::new();
        for owner in (0..self.owners.len()).map(|o| self.owners.get(o)) {
            let intents = owner.intents.lock();
            let notes = intents.notes().filter(|n| n.request == NONE && wanted(n));
            all.extend(notes.map(|n| (LockName::Table(n.tree), owner.txn(), n.mode_bits)));
        }
        all
    }

    /// Returns all locks, ordered by name. Range locks are listed only for keys that a request has shared.
    /// Latches are acquired one after the other, so different locks are listed as of different moments.
    #[must_use]
    pub fn dump(&self) -> Vec<LockDump> {
        // Notes first: a note that is turned into a request meanwhile is listed twice, not missed.
        let mut all: BTreeMap<LockName, LockDump> = BTreeMap::new();
        for (name, txn, mode_bits) in self.noted(|_| true) {
            let dump = all.entry(name).or_insert_with(|| LockDump::empty(name));
            dump.holders.push((txn, mode(Family::Table, mode_bits)));
        }
        for stripe in self.stripes.used() {
            let stripe = stripe.lock();
            for shared in stripe.heads().map(|head| self.dump_head(&stripe, head)) {
                let dump = all.entry(shared.name).or_insert_with(|| LockDump::empty(shared.name));
                dump.holders.retain(|noted| shared.holders.iter().all(|h| h.0 != noted.0));
                dump.holders.extend(shared.holders);
                dump.waiters = shared.waiters;
            }
        }
        all.into_values().collect()
    }

    fn dump_head(&self, stripe: &Stripe, head: u32) -> LockDump {
        let id = stripe.head(head).id;
        let txn = |owner| self.owners.get(owner).txn();
        LockDump {
            name: id.name(),
            holders: stripe.holders(head).map(|r| (txn(r.owner), mode(id.family(), r.held))).collect(),
            waiters: stripe.waiters(head).map(|r| (txn(r.owner), mode(id.family(), r.want))).collect(),
        }
    }
}

impl fmt::Display for AnyMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(mode) => mode.fmt(f),
            Self::Key(mode) => mode.fmt(f),
        }
    }
}

impl fmt::Display for LockDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: held by", self.name)?;
        for (txn, mode) in &self.holders {
            write!(f, " {txn} ({mode})")?;
        }
        if !self.waiters.is_empty() {
            f.write_str("; waited for by")?;
        }
        self.waiters.iter().try_for_each(|(txn, mode)| write!(f, " {txn} ({mode})"))
    }
}
