//! Whether this node's store is the one that the others know, and how a new one comes to its keys.
//!
//! A store that was lost must not pass for one that never had a row. So each has a *name*, drawn when it was
//! made, and others remember it:
//!
//! | the store | others | this node |
//! |---|---|---|
//! | new, unknown | tell what they know, remember its name | owns what is its, once all have: *settled* |
//! | new, but they know another name | let nobody in with it | refuses everything, and says why |
//! | new, and its loss was accepted | as if it was unknown; the old name is forgotten | owns, empty, what nobody else has |
//! | settled, and they know its name | go on | goes on |
//!
//! - **STORE-1** A store has settled only after every other member has remembered its name for good. So any
//!   one of them notices another store in its place.
//! - **STORE-2** A node answers for no key, takes no leaf and decides no move before its store has settled.
//! - **STORE-3** What a new store owns are the keys of which the newest fact that any other node knows, its
//!   own leaves, what it gave away, or the founding shares, says that they are this PE's. Others' facts of
//!   one key only ever get newer, so it does not matter that they are asked one after the other. No leaf is
//!   owned twice: who owns a key, or gave it away, knows a newer fact than any that led there (I2, I3).
//! - **STORE-4** Its leaves are newer than anything that anybody knows: old facts about the lost store lead
//!   nobody astray.
//!
//! A leaf that the lost store was about to give away, and that its receiver keeps, is the receiver's, unless
//! somebody knows something newer of its keys: nobody else has the rows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::error::StoreError;
use crate::id::{PageNo, PeId};
use crate::index::PageCopy;
use crate::key::{Key, KeyRange};
use crate::leaf::{Fact, LeafHead, MoveId};
use crate::message::Message;
use crate::node::Node;
use crate::node::state::facts;
use crate::ranges::Ranges;
use crate::store::{Change, Founding};
use crate::world::Bell;

/// Facts in one message, about.
const FACTS_PER_PAGE: usize = 256;

/// What a node shows of its store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Its name.
    pub birth: u64,
    /// Whether it has had its keys.
    pub is_settled: bool,
    /// It is new, and somebody has said that what the one before had may be lost.
    pub is_loss_accepted: bool,
}

/// Part of what a node knows of where keys are.
pub(super) struct Page {
    pub(super) facts: Vec<Fact>,
    pub(super) staged: Vec<(MoveId, Fact)>,
    pub(super) newest: u64,
    pub(super) rest: Option<Key>,
}

/// The store's standing.
pub(super) struct Standing {
    birth: u64,
    is_settled: Cell<bool>,
    /// While it is not settled: what was heard so far.
    heard: RefCell<Heard>,
    /// Something was heard.
    bell: Bell,
}

/// How far another node has told what it knows.
enum Told {
    /// From this key on it is to be asked.
    Until(Key),
    /// All of it; it has not said that it remembers the name.
    All,
    /// All, and it remembers the name.
    Admitted,
}

struct Heard {
    /// Which hearing it is, since the node's start.
    number: u64,
    known: Ranges<PageCopy>,
    staged: BTreeMap<MoveId, Fact>,
    newest: u64,
    told: BTreeMap<PeId, Told>,
}

impl Standing {
    pub(super) fn new(birth: u64, is_settled: bool, founding: &Founding) -> Self {
        let nobody = PageCopy { pe: founding.pe, page: PageNo::ROOT };
        let mut known = Ranges::new(KeyRange::all(), 0, nobody);
        for (range, pe) in founding.ranges() {
            known.learn(&range, 1, &PageCopy { pe, page: PageNo::ROOT });
        }
        let heard = Heard { number: 0, known, staged: BTreeMap::new(), newest: 1, told: BTreeMap::new() };
        Self { birth, is_settled: Cell::new(is_settled), heard: RefCell::new(heard), bell: Bell::default() }
    }
}

impl Node {
    /// What this node shows of its store.
    #[must_use]
    pub fn credentials(&self) -> Credentials {
        let is_settled = self.is_settled();
        let is_loss_accepted = self.options.is_loss_accepted && !is_settled;
        Credentials { birth: self.standing.birth, is_settled, is_loss_accepted }
    }

    /// Whether the store has its keys (STORE-2).
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.standing.is_settled.get()
    }

    /// Why this node has no keys yet.
    pub(super) fn unsettled(&self) -> Option<String> {
        if self.is_settled() {
            return None;
        }
        let heard = self.standing.heard.borrow();
        let is_open = |pe: &PeId| !matches!(heard.told.get(pe), Some(Told::Admitted));
        let open: Vec<_> = self.others().into_iter().filter(is_open).map(|pe| pe.to_string()).collect();
        Some(format!(
            "the store of {} is new, and it has to hear first what {} knows of its keys",
            self.me,
            open.join(", ")
        ))
    }

    /// Whether another node comes with the store that this one knows it to have. Remembers one that it did
    /// not know, if it has had its keys.
    pub async fn admits(&self, pe: PeId, shown: Credentials) -> bool {
        let known = self.state.borrow().met.get(&pe).copied();
        match known {
            Some(birth) if birth == shown.birth => true,
            Some(_) => shown.is_loss_accepted && !shown.is_settled,
            None => !shown.is_settled || self.remember(pe, shown.birth).await,
        }
    }

    async fn remember(&self, pe: PeId, birth: u64) -> bool {
        let done = self.store.change(Change { met: Some((pe, birth)), ..Change::default() }).await;
        if done.is_ok() {
            self.state.borrow_mut().met.insert(pe, birth);
        }
        done.is_ok()
    }

    /// Another node knows another store of this one: nothing is answered any more.
    pub fn displaced(&self, witness: PeId) {
        let mine = if self.is_settled() {
            "another store has taken the place of the one here"
        } else {
            "the store here is new, so the keys of the one before are missing"
        };
        let reason = format!(
            "{witness} knows another store of {}: {mine}. Bring that store back; or, if it is lost for good, serve an empty one with --accept-loss",
            self.me
        );
        self.refuse(reason);
    }

    /// Comes to its keys, if it has not had them: at once where there is nobody to ask.
    pub(super) async fn begin_to_settle(&self) {
        if self.is_settled() {
            return;
        }
        if self.others().is_empty() {
            return self.settle_down().await;
        }
        self.spawn(|node| {
            Box::pin(async move {
                node.hear_all().await;
                node.settle_down().await;
            })
        });
    }

    /// Asks each other node until all of them have told all, and remember this store's name.
    async fn hear_all(&self) {
        loop {
            let mut is_open = false;
            for pe in self.others() {
                is_open |= self.ask_for_account(pe);
            }
            if !is_open {
                return;
            }
            self.world.timeout(self.options.remind_interval, self.standing.bell.next()).await;
        }
    }

    /// One of those who are heard has left: what others have told before may lead to it, and what they know
    /// now does not (LEAVE-5).
    pub(super) fn hear_anew(&self) {
        if !self.is_settled() {
            let mut heard = self.standing.heard.borrow_mut();
            heard.told.clear();
            // Answers that are under way are from before.
            heard.number += 1;
        }
        self.standing.bell.ring();
    }

    /// The hearing that is going on: an answer to an earlier one, or to an earlier start, may be older than
    /// what it has to be newer than (LEAVE-5).
    fn hearing(&self) -> (u64, u64) {
        (self.state.borrow().incarnation, self.standing.heard.borrow().number)
    }

    /// Asks a node for what it has not told yet; whether there is something.
    fn ask_for_account(&self, pe: PeId) -> bool {
        let hearing = self.hearing();
        let message = match self.standing.heard.borrow().told.get(&pe) {
            None => Message::Account { hearing, from: Key::new() },
            Some(Told::Until(key)) => Message::Account { hearing, from: key.clone() },
            Some(Told::All) => {
                Message::Admit { birth: self.standing.birth, is_loss_accepted: self.options.is_loss_accepted }
            }
            Some(Told::Admitted) => return false,
        };
        self.send(pe, &message);
        true
    }

    /// Tells another node what this one knows for good of where keys are, from a key on.
    pub(super) fn account(&self, to: PeId, hearing: (u64, u64), from: Key) {
        if self.has_left(self.me) {
            return self.tell_members(to);
        }
        let state = self.state.borrow();
        let mut known: Vec<_> = state.leaves.values().map(|leaf| leaf.fact(self.me)).collect();
        known.extend(facts(&state.given).filter(|fact| fact.pe != self.me));
        // What reaches beyond the key too: a leaf may have been merged into one before it since the last
        // question.
        known.retain(|fact| fact.range.high.as_ref().is_none_or(|high| *high > from));
        known.sort_unstable_by(|one, two| one.range.low.cmp(&two.range.low));
        let rest = known.get(FACTS_PER_PAGE).map(|fact| fact.range.low.clone()).filter(|low| *low > from);
        if rest.is_some() {
            known.truncate(FACTS_PER_PAGE);
        }
        let staged = state.staged.values().filter(|staged| staged.id.source == to);
        let staged = staged.map(|staged| (staged.id, staged.head.fact(self.me))).collect();
        let newest = known.iter().map(|fact| fact.version).chain([state.index.newest_version()]).max();
        let newest = newest.unwrap_or(0);
        drop(state);
        self.send(to, &Message::Accounted { hearing, from, facts: known, staged, newest, rest });
    }

    /// Another node has told some of what it knows. What was not asked for, or was told before, is left.
    pub(super) fn accounted(&self, pe: PeId, hearing: (u64, u64), from: Key, page: Page) {
        if hearing != self.hearing() {
            return;
        }
        let mut heard = self.standing.heard.borrow_mut();
        let is_wanted = match heard.told.get(&pe) {
            None => from.is_empty(),
            Some(Told::Until(key)) => *key == from,
            Some(Told::All | Told::Admitted) => false,
        };
        // It goes on, or it would never end.
        let is_progress = page.rest.as_ref().is_none_or(|rest| *rest > from);
        if self.is_settled() || !is_wanted || !is_progress {
            return;
        }
        for fact in &page.facts {
            heard.known.learn(&fact.range, fact.version, &PageCopy { pe: fact.pe, page: fact.page });
        }
        heard.staged.extend(page.staged);
        heard.newest = heard.newest.max(page.newest);
        heard.told.insert(pe, page.rest.map_or(Told::All, Told::Until));
        drop(heard);
        self.standing.bell.ring();
    }

    /// Remembers the new store of another node, unless it knows another one.
    pub(super) async fn admit(&self, pe: PeId, birth: u64, is_loss_accepted: bool) {
        // LEAVE-5: it asks again; or hears that this node has left.
        let Some(_arrival) = self.leaving.let_come() else { return };
        let known = self.state.borrow().met.get(&pe).copied();
        let is_admitted = match known {
            Some(known) if known == birth => true,
            Some(_) if !is_loss_accepted => false,
            _ => {
                if !self.remember(pe, birth).await {
                    return; // it asks again
                }
                true
            }
        };
        self.send(pe, &Message::Admitted { birth, is_admitted });
    }

    pub(super) fn admitted(&self, pe: PeId, birth: u64, is_admitted: bool) {
        if birth != self.standing.birth || self.is_settled() {
            return;
        }
        if !is_admitted {
            return self.displaced(pe);
        }
        let mut heard = self.standing.heard.borrow_mut();
        if matches!(heard.told.get(&pe), Some(Told::All)) {
            heard.told.insert(pe, Told::Admitted);
            drop(heard);
            self.standing.bell.ring();
        }
    }

    /// Owns what is its (STORE-3).
    async fn settle_down(&self) {
        let (leaves, given, decisions) = self.inheritance();
        if let Err(error) = self.inherit(&leaves, &given, &decisions).await {
            return self.fail(&error);
        }
        {
            let mut state = self.state.borrow_mut();
            given.iter().for_each(|fact| state.give(self.me, fact));
            for head in &leaves {
                state.put_leaf(self.me, head.clone());
            }
            state.decided.extend(decisions.iter().copied());
        }
        self.standing.is_settled.set(true);
        self.changed.ring();
        for (id, to) in decisions {
            self.remind_of_decision(id, to);
        }
        self.others().into_iter().for_each(|pe| self.tell_own(pe));
    }

    /// From what was heard: this node's leaves, who has the others' keys as far as that has changed since the
    /// founding, and moves of the lost store whose leaves are with their receivers.
    fn inheritance(&self) -> (Vec<LeafHead>, Vec<Fact>, Vec<(MoveId, PeId)>) {
        let mut heard = self.standing.heard.borrow_mut();
        let Heard { known, staged, newest, .. } = &mut *heard;
        let mut decisions = Vec::new();
        let mut staged: Vec<_> = std::mem::take(staged).into_iter().collect();
        // Of two receivers of a leaf the later one.
        staged
            .sort_unstable_by_key(|(id, fact)| std::cmp::Reverse((fact.version, id.incarnation, id.number)));
        for (id, fact) in staged {
            let is_newest = known
                .clip(&fact.range)
                .pieces()
                .iter()
                .all(|piece| piece.value.pe == self.me && piece.version <= fact.version);
            if is_newest {
                known.learn(&fact.range, fact.version + 1, &PageCopy { pe: fact.pe, page: fact.page });
                *newest = (*newest).max(fact.version + 1);
                decisions.push((id, fact.pe));
            }
        }
        let is_first = *newest <= 1;
        let version = if is_first { 1 } else { *newest + 1 }; // STORE-4
        let mut state = self.state.borrow_mut();
        let mut leaves: Vec<LeafHead> = Vec::new();
        for (range, _) in known.iter().filter(|(_, piece)| piece.value.pe == self.me) {
            match leaves.last_mut() {
                // One leaf for each of the founding shares, and else for each stretch of keys.
                Some(last) if !is_first && last.range.high.as_ref() == Some(&range.low) => {
                    last.range.high = range.high;
                }
                _ => leaves.push(LeafHead { page: state.next_page(), range, right: None, version }),
            }
        }
        let given = facts(known).filter(|fact| fact.pe != self.me && fact.version > 1).collect();
        (leaves, given, decisions)
    }

    async fn inherit(
        &self,
        leaves: &[LeafHead],
        given: &[Fact],
        decisions: &[(MoveId, PeId)],
    ) -> Result<(), StoreError> {
        for fact in given {
            // Rows from before it was a node's store would come back with the next leaf of these keys.
            if let Some((key, _)) = self.store.rows(fact.range.clone(), 1, false).await?.into_iter().next() {
                return Err(StoreError::RowOfAnother { key, owner: fact.pe });
            }
        }
        for decision in decisions {
            self.store.change(Change { decide: Some(*decision), ..Change::default() }).await?;
        }
        let change = Change {
            put: leaves.to_vec(),
            given: Some((KeyRange::all(), given.to_vec())),
            settles: true,
            ..Change::default()
        };
        self.store.change(change).await
    }
}
