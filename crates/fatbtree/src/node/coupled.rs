//! The paper's protocols (section 3.4): lock coupling during the descent, and locks on all copies for a
//! split.
//!
//! **Search and update**: IS (IX for an update) on the root. Then, page by page, the child at any PE is
//! locked before the parent's lock is released. S (X) on the leaf.
//!
//! **Split, B-OPT**: the leaf is released. From the root down, SIX on all copies of a page, in the order of
//! their PEs. When a page has space for one more entry, all pages above it are released. Then X on all copies
//! of the pages that are still locked, and X on the leaf. Then the change is made at all copies.
//!
//! **Split, INC-OPT**: X at once, on the lowest index page; from the root only if that is full.
//!
//! Locks are acquired downward, and for one page in the order of PEs, so there is no cycle of waits (hazard
//! B3). They are held across messages, so a failed node blocks all others. Therefore these protocols are only
//! for the evaluation, and are compiled only with the feature `baseline-protocols`.

use std::rc::Rc;

use crate::baseline::{LockMessage, Protocol};
use crate::id::{PageNo, PeId};
use crate::index::{Choice, PageCopy};
use crate::leaf::RouteEntry;
use crate::lock_service::LockMode;
use crate::message::{Find, Message, Refusal, RequestId, Work};
use crate::node::Node;
use crate::node::find::MOST_HOPS;
use crate::node::state::Load;
use crate::node::work::Worked;
use crate::page_service::Access;
use crate::placement::Placement;
use crate::store::Change;
use crate::world::Slot;

impl Node {
    /// Handles a message of these protocols.
    pub(super) fn take_lock_message(&self, from: PeId, message: LockMessage) {
        match message {
            LockMessage::Couple { find, way } => {
                self.spawn(|node| Box::pin(async move { node.couple(find, way).await }));
            }
            LockMessage::Lock { call, id, page, mode } => {
                self.spawn(|node| Box::pin(async move { node.serve_lock(from, call, id, page, mode).await }));
            }
            LockMessage::Locked { call, is_full } => self.called(call, is_full),
            LockMessage::Release { id, page } => self.serve_release(id, page),
            LockMessage::Apply { call, id, page, route_entries } => {
                self.spawn(|node| {
                    Box::pin(async move { node.serve_apply(from, call, id, page, route_entries).await })
                });
            }
        }
    }

    /// Returns `true` if this node serves requests by one of these protocols.
    pub(super) fn is_coupled(&self) -> bool {
        self.options.protocol != Protocol::Lazy
    }

    /// Returns `true` if this node keeps the only index.
    pub(super) fn is_only_index(&self) -> bool {
        self.options.placement == Placement::SingleIndex && self.me == Placement::INDEX_PE
    }

    /// Begins a request at the root.
    pub(super) async fn couple_begin(&self, mut find: Find) {
        let pe = if self.options.placement.has_index(self.me) { self.me } else { Placement::INDEX_PE };
        let root = PageCopy { pe, page: PageNo::ROOT };
        self.acquire(find.id, root, intent(&find.work)).await;
        let indexed = self.members().into_iter().filter(|pe| self.options.placement.has_index(*pe));
        let roots = indexed.map(|pe| PageCopy { pe, page: PageNo::ROOT }).collect();
        find.page = root.page;
        if pe == self.me {
            self.couple(find, vec![roots]).await;
        } else {
            find.hops += 1;
            self.send(pe, &Message::Lock(LockMessage::Couple { find, way: vec![roots] }));
        }
    }

    /// Continues a request with a page of this PE that is already locked.
    pub(super) async fn couple(&self, mut find: Find, mut way: Vec<Vec<PageCopy>>) {
        while find.page.is_index() {
            let here = PageCopy { pe: self.me, page: find.page };
            self.pages.fix(find.page, Access::Read).await;
            if find.hops >= MOST_HOPS {
                self.release(find.id, here);
                return self.answer(find.id.origin, find.id, Err(Refusal::Lost), None, find.hops);
            }
            let choice = match self.options.is_choice_by_range {
                true => Choice::ByRange,
                false => Choice::Any(self.world.rng.next()),
            };
            let step = self.state.borrow().index.step(find.page, &find.target, choice);
            let Some(step) = step else {
                self.release(find.id, here);
                return self.answer(find.id.origin, find.id, Err(Refusal::Lost), None, find.hops);
            };
            if step.is_by_pointer {
                self.pages.fix(crate::index::POINTER_PAGE, Access::Read).await;
            }
            let mode = match (step.is_leaf, find.work.is_write()) {
                (false, _) => intent(&find.work),
                (true, false) => LockMode::S,
                (true, true) => LockMode::X,
            };
            self.acquire(find.id, step.to, mode).await;
            self.release(find.id, here);
            if !step.is_leaf {
                way.push(step.copies);
            }
            find.page = step.to.page;
            if step.to.pe != self.me {
                find.hops += 1;
                self.count(|counts| counts.sent_on += 1);
                return self.send(step.to.pe, &Message::Lock(LockMessage::Couple { find, way }));
            }
        }
        self.couple_leaf(find, way).await;
    }

    async fn couple_leaf(&self, find: Find, way: Vec<Vec<PageCopy>>) {
        let here = PageCopy { pe: self.me, page: find.page };
        let Some(leaf) = self.leaf(find.page).filter(|leaf| find.target.is_in(&leaf.range)) else {
            self.release(find.id, here);
            return self.answer(find.id.origin, find.id, Err(Refusal::Lost), None, find.hops);
        };
        let access = if find.work.is_write() { Access::Change } else { Access::Read };
        self.pages.fix(leaf.page, access).await;
        self.pages.fix(leaf.page, Access::Again).await;
        let Worked { result, rows, bytes, durable, .. } = self.work(&find, &leaf).await;
        let result = self.lasting(result, durable).await;
        self.count(|counts| counts.worked += 1);
        self.release(find.id, here);
        let load = if rows > 0 && result.is_ok() { self.recount(leaf.page, rows, bytes).await } else { None };
        if load.is_some_and(|load| load.is_more_than(&self.options)) {
            self.split_coupled(find.id, leaf.page, &way).await;
        }
        self.answer(find.id.origin, find.id, result, Some(leaf.route_entry(self.me)), find.hops);
    }

    async fn split_coupled(&self, id: RequestId, page: PageNo, way: &[Vec<PageCopy>]) {
        let held = self.lock_way(id, way).await;
        let here = PageCopy { pe: self.me, page };
        self.acquire(id, here, LockMode::X).await;
        let route_entries = self.split_locked(page).await;
        // Each copy is changed and released at its PE. The leaf's lock is held until all copies have
        // answered.
        let mut applied = Vec::new();
        for copy in &held {
            match &route_entries {
                Some(route_entries) => applied.extend(self.apply_at(id, *copy, route_entries).await),
                None => self.release(id, *copy),
            }
        }
        for slot in applied {
            slot.take().await;
        }
        self.release(id, here);
    }

    /// Locks in X all copies of the index pages that a split of the leaf below changes.
    async fn lock_way(&self, id: RequestId, way: &[Vec<PageCopy>]) -> Vec<PageCopy> {
        let is_bopt = self.options.protocol == Protocol::BOpt;
        let first = if is_bopt { LockMode::SIX } else { LockMode::X };
        if !is_bopt && let Some(lowest) = way.last() {
            let (held, is_full) = self.lock_copies(id, lowest, first).await;
            if !is_full {
                return held;
            }
            held.iter().for_each(|copy| self.release(id, *copy));
        }
        let mut held = Vec::new();
        for (depth, copies) in way.iter().enumerate() {
            let (locked, is_full) = self.lock_copies(id, copies, first).await;
            if !is_full && depth > 0 {
                for copy in held.drain(..) {
                    self.release(id, copy);
                }
            }
            held.extend(locked);
        }
        if is_bopt {
            for copy in &held {
                self.acquire(id, *copy, LockMode::X).await;
            }
        }
        held
    }

    async fn lock_copies(&self, id: RequestId, copies: &[PageCopy], mode: LockMode) -> (Vec<PageCopy>, bool) {
        let mut is_full = false;
        for copy in copies {
            is_full |= self.acquire(id, *copy, mode).await;
        }
        (copies.to_vec(), is_full)
    }

    /// Splits a locked leaf, if it is still too full. Returns the route entries for the index pages above.
    async fn split_locked(&self, page: PageNo) -> Option<Vec<RouteEntry>> {
        let old = self.leaf(page)?;
        let weight = self.store.weigh(old.range.clone()).await.ok()?;
        let load = Load::from(&weight);
        self.state.borrow_mut().loads.insert(page, load);
        let middle = weight.middle.filter(|_| load.is_more_than(&self.options))?;
        let right = self.state.borrow_mut().next_page();
        let (left, right) = old.halves(middle, right);
        self.pages.fix(left.page, Access::Change).await;
        self.pages.fix(right.page, Access::Create).await;
        let change = Change { put: vec![left.clone(), right.clone()], ..Change::default() };
        if let Err(error) = self.store.change(change).await {
            self.fail(&error);
            return None;
        }
        let route_entries = vec![left.route_entry(self.me), right.route_entry(self.me)];
        let mut state = self.state.borrow_mut();
        let (left_load, right_load) = load.halves();
        state.loads.insert(left.page, left_load);
        state.loads.insert(right.page, right_load);
        state.put_leaf_only(left);
        state.put_leaf_only(right);
        self.count(|counts| counts.splits += 1);
        Some(route_entries)
    }

    /// Changes a copy of an index page. Returns the answer to wait for, if the copy is at another PE.
    async fn apply_at(
        &self,
        id: RequestId,
        copy: PageCopy,
        route_entries: &[RouteEntry],
    ) -> Option<Rc<Slot<bool>>> {
        if copy.pe == self.me {
            self.apply_here(id, copy.page, route_entries).await;
            return None;
        }
        let (call, slot) = self.begin_call();
        self.send(
            copy.pe,
            &Message::Lock(LockMessage::Apply {
                call,
                id,
                page: copy.page,
                route_entries: route_entries.to_vec(),
            }),
        );
        Some(slot)
    }

    async fn apply_here(&self, id: RequestId, page: PageNo, route_entries: &[RouteEntry]) {
        self.pages.fix(page, Access::Change).await;
        // Adds entries about this node too: under locks on all copies they are up to date.
        let mut state = self.state.borrow_mut();
        for route_entry in route_entries {
            state.index.learn(route_entry);
        }
        drop(state);
        self.release(id, PageCopy { pe: self.me, page });
    }

    /// Locks a page of any PE, or converts the lock that the request already has on it. Returns `true` if the
    /// page is full.
    async fn acquire(&self, id: RequestId, at: PageCopy, mode: LockMode) -> bool {
        if at.pe == self.me {
            return self.acquire_here(id, at.page, mode).await;
        }
        self.count(|counts| counts.remote_locks += 1);
        let (call, slot) = self.begin_call();
        let mode = LockMode::ALL.iter().position(|other| *other == mode).unwrap_or_default() as u8;
        self.send(at.pe, &Message::Lock(LockMessage::Lock { call, id, page: at.page, mode }));
        slot.take().await
    }

    async fn acquire_here(&self, id: RequestId, page: PageNo, mode: LockMode) -> bool {
        self.pages.lock().await;
        let held = self.state.borrow_mut().held.remove(&(id, page));
        let held = match held {
            Some(mut held) => {
                held.convert(mode).await;
                held
            }
            None => self.locks.lock(page, mode).await,
        };
        let mut state = self.state.borrow_mut();
        state.held.insert((id, page), held);
        state.index.is_full(page)
    }

    fn release(&self, id: RequestId, at: PageCopy) {
        if at.pe == self.me {
            let held = self.state.borrow_mut().held.remove(&(id, at.page));
            drop(held);
        } else {
            self.send(at.pe, &Message::Lock(LockMessage::Release { id, page: at.page }));
        }
    }

    fn begin_call(&self) -> (u64, Rc<Slot<bool>>) {
        let mut state = self.state.borrow_mut();
        let (call, slot) = (state.next_number(), Slot::new());
        state.calls.insert(call, slot.clone());
        (call, slot)
    }

    /// Acquires a lock for a request of another node.
    pub(super) async fn serve_lock(&self, from: PeId, call: u64, id: RequestId, page: PageNo, mode: u8) {
        let Some(mode) = LockMode::ALL.get(usize::from(mode)).copied() else { return };
        let is_full = self.acquire_here(id, page, mode).await;
        self.send(from, &Message::Lock(LockMessage::Locked { call, is_full }));
    }

    pub(super) async fn serve_apply(
        &self,
        from: PeId,
        call: u64,
        id: RequestId,
        page: PageNo,
        route_entries: Vec<RouteEntry>,
    ) {
        self.apply_here(id, page, &route_entries).await;
        self.send(from, &Message::Lock(LockMessage::Locked { call, is_full: false }));
    }

    pub(super) fn serve_release(&self, id: RequestId, page: PageNo) {
        self.release(id, PageCopy { pe: self.me, page });
    }

    pub(super) fn called(&self, call: u64, is_full: bool) {
        let slot = self.state.borrow_mut().calls.remove(&call);
        if let Some(slot) = slot {
            slot.put(is_full);
        }
    }
}

const fn intent(work: &Work) -> LockMode {
    if work.is_write() { LockMode::IX } else { LockMode::IS }
}
