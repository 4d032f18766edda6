//! Splits and merges of leaves. Each is one transaction of this PE's store, which completes it. Other nodes
//! are notified once, without waiting.

use crate::error::StoreError;
use crate::id::PageNo;
use crate::key::{Key, KeyRange, Target};
use crate::leaf::LeafHead;
use crate::lock_service::{Held, LockMode};
use crate::node::state::Load;
use crate::node::{MoveError, Node};
use crate::page_service::Access;
use crate::store::{Change, Weight};

/// A leaf that is too empty is compared with its neighbor once per this part of the maximum of rows that are
/// removed from it, because the comparison reads both leaves.
const MERGE_TRIES: usize = 32;

/// A leaf that a task counts, and perhaps splits. Until this is dropped, no other task counts the leaf.
struct Counting<'a> {
    node: &'a Node,
    page: PageNo,
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        self.node.counted.borrow_mut().remove(&self.page);
    }
}

impl Node {
    /// Begins to count a leaf. Returns `None` if another task counts it: the next growth is a new occasion.
    fn count_leaf(&self, page: PageNo) -> Option<Counting<'_>> {
        let mut counted = self.counted.borrow_mut();
        if counted.contains_key(&page) {
            return None;
        }
        counted.insert(page, (0, 0));
        Some(Counting { node: self, page })
    }

    /// Splits or merges a leaf after a write that added `rows` rows and `bytes` bytes, if the leaf is too
    /// full or too empty.
    pub(super) async fn keep_balance(&self, page: PageNo, rows: isize, bytes: usize) {
        if rows == 0 && bytes == 0 {
            return;
        }
        let Some(load) = self.recount(page, rows, bytes).await else { return };
        let done = if rows >= 0 && load.is_more_than(&self.options) {
            self.split(page).await.map(|right| {
                // The transaction may have filled many leaves. Its client does not wait for all splits.
                if let Some(right) = right.filter(|right| self.is_too_full(*right)) {
                    self.spawn(move |node| Box::pin(async move { node.split_all(vec![page, right]).await }));
                }
            })
        } else if rows < 0 && load.rows < self.options.leaf_rows / 4 && self.is_merge_due(load, rows) {
            self.merge(page).await
        } else {
            Ok(())
        };
        if let Err(error) = done {
            self.fail(&error);
        }
    }

    /// Returns `true` if a leaf is too full, by its known size.
    fn is_too_full(&self, page: PageNo) -> bool {
        self.state.borrow().loads.get(&page).is_some_and(|load| load.is_more_than(&self.options))
    }

    /// Returns `true` if a leaf that is too empty is compared with its neighbor after `rows` rows were added
    /// (negative: removed).
    fn is_merge_due(&self, load: Load, rows: isize) -> bool {
        let step = (self.options.leaf_rows / MERGE_TRIES).max(1);
        let before = load.rows.saturating_add(rows.unsigned_abs());
        load.rows == 0 || load.rows / step != before / step
    }

    /// Returns the estimated size of a leaf after a change. Growth while a task counts the leaf is added to
    /// the count, which may include it. A split or a merge counts the rows again.
    pub(super) async fn recount(&self, page: PageNo, rows: isize, bytes: usize) -> Option<Load> {
        let known = self.state.borrow().loads.get(&page).copied();
        let load = match known {
            Some(load) => Load { rows: load.rows.saturating_add_signed(rows), bytes: load.bytes + bytes },
            None => {
                let Some(_counting) = self.count_leaf(page) else {
                    if let Some((more_rows, more_bytes)) = self.counted.borrow_mut().get_mut(&page) {
                        *more_rows += rows.max(0);
                        *more_bytes += bytes;
                    }
                    return None;
                };
                let load = Load::from(&self.store.weigh(self.leaf(page)?.range).await.ok()?);
                let (rows, bytes) = self.counted.borrow().get(&page).copied().unwrap_or_default();
                Load { rows: load.rows.saturating_add_signed(rows), bytes: load.bytes + bytes }
            }
        };
        self.state.borrow_mut().loads.insert(page, load);
        Some(load)
    }

    /// Splits a leaf at `middle`, which becomes the first key of the right half.
    ///
    /// # Errors
    ///
    /// [`MoveError::NotHere`] if the leaf does not cover the key any more, [`MoveError::CannotSplit`] if the
    /// left half would be empty.
    pub async fn split_leaf(&self, page: PageNo, middle: Key) -> Result<(), MoveError> {
        #[cfg(feature = "baseline-protocols")]
        if self.is_coupled() {
            return Err(MoveError::Protocol);
        }
        let (len, most) = (middle.len(), self.store.max_key_bytes());
        if len > most {
            return Err(MoveError::KeyTooLong(len, most));
        }
        let held = self.go_ahead(self.locks.lock(page, LockMode::X)).await;
        let old = self.leaf(page).filter(|leaf| leaf.range.contains(&middle));
        let old = old.ok_or(MoveError::NotHere(page))?;
        if old.range.low == middle {
            return Err(MoveError::CannotSplit(page));
        }
        self.split_at(held, &old, middle, None).await.inspect_err(|error| self.fail(error))?;
        Ok(())
    }

    /// Splits a leaf that is too large for one move at its middle. Returns `too_large` if it has a single
    /// row.
    pub(super) async fn halve(&self, page: PageNo, too_large: MoveError) -> Result<(), MoveError> {
        let range = self.leaf(page).ok_or(MoveError::NotHere(page))?.range;
        let middle = self.store.weigh(range).await?.middle;
        self.split_leaf(page, middle.ok_or(too_large)?).await
    }

    /// Splits leaves until none of their parts has too many rows or bytes.
    async fn split_all(&self, mut leaves: Vec<PageNo>) {
        while let Some(page) = leaves.pop() {
            match self.split(page).await {
                Ok(Some(right)) => leaves.extend([page, right]),
                Ok(None) => {}
                Err(error) => return self.fail(&error),
            }
        }
    }

    /// Splits a leaf if it has too many rows or bytes. Returns the right half; `None` if the leaf is small
    /// enough or has a single row, or if another task counts it.
    async fn split(&self, page: PageNo) -> Result<Option<PageNo>, StoreError> {
        let (Some(leaf), Some(_counting)) = (self.leaf(page), self.count_leaf(page)) else { return Ok(None) };
        // Requests for the leaf continue while its rows are counted.
        let Some(weight) = self.size_of(leaf.range).await else { return Ok(None) };
        let load = Load::from(&weight);
        if self.leaf(page).is_some() {
            self.state.borrow_mut().loads.insert(page, load);
        }
        let Some(middle) = weight.middle.filter(|_| load.is_more_than(&self.options)) else {
            return Ok(None);
        };
        self.pages.lock().await;
        let held = self.go_ahead(self.locks.lock(page, LockMode::X)).await;
        // Another task may have split, merged or moved the leaf meanwhile.
        let old = self.leaf(page).filter(|leaf| leaf.range.contains(&middle) && leaf.range.low != middle);
        match old {
            Some(old) => self.split_at(held, &old, middle, Some(load)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the size of a range. Returns `None` if its rows cannot be read: requests for these rows report
    /// the error, and the leaf stays as it is.
    async fn size_of(&self, range: KeyRange) -> Option<Weight> {
        let weight = self.store.weigh(range).await;
        weight.inspect_err(|error| tracing::warn!(reason = %error, "cannot read the rows of a leaf")).ok()
    }

    /// Splits a locked leaf. Returns the right half. Without a size of the leaf, both halves are counted
    /// after their next change.
    async fn split_at(
        &self,
        held: Held,
        old: &LeafHead,
        middle: Vec<u8>,
        load: Option<Load>,
    ) -> Result<PageNo, StoreError> {
        let right_page = self.state.borrow_mut().next_page();
        let (left, right) = old.halves(middle, right_page);
        self.pages.fix(left.page, Access::Change).await;
        self.pages.fix(right.page, Access::Create).await;
        self.store.change(Change { put: vec![left.clone(), right.clone()], ..Change::default() }).await?;
        {
            let mut state = self.state.borrow_mut();
            state.put_leaf(self.me, left.clone());
            state.put_leaf(self.me, right.clone());
            state.loads.remove(&left.page);
            if let Some((left_load, right_load)) = load.map(Load::halves) {
                state.loads.insert(left.page, left_load);
                state.loads.insert(right.page, right_load);
            }
        }
        self.count(|counts| counts.splits += 1);
        drop(held);
        self.tell(&[left.route_entry(self.me), right.route_entry(self.me)]);
        Ok(right_page)
    }

    /// Merges a leaf with its right neighbor, or with its left one, if the merged leaf is not too full.
    async fn merge(&self, page: PageNo) -> Result<(), StoreError> {
        let Some((left, right)) = self.neighbors(page) else { return Ok(()) };
        let neighbor = if left == page { right } else { left };
        let known = self.state.borrow().loads.get(&neighbor).copied();
        if known.is_some_and(|load| load.is_too_full_to_merge(&self.options)) {
            return Ok(());
        }
        let (Some(left), Some(right)) = (self.leaf(left), self.leaf(right)) else { return Ok(()) };
        let Some(_counting) = self.count_leaf(page) else { return Ok(()) };
        // Requests for both leaves continue while their rows are counted.
        let range = KeyRange { low: left.range.low.clone(), high: right.range.high.clone() };
        let Some(weight) = self.size_of(range.clone()).await else { return Ok(()) };
        if Load::from(&weight).is_too_full_to_merge(&self.options) {
            let mut state = self.state.borrow_mut();
            // The estimate may be wrong: the rows are counted at the next change.
            let own = state.loads.remove(&page).unwrap_or_default();
            if state.leaves.contains_key(&neighbor) {
                state.loads.insert(neighbor, Load::from(&weight).without(own));
            }
            return Ok(());
        }
        // NODE-2: locks from left to right.
        let held_left = self.go_ahead(self.locks.lock(left.page, LockMode::X)).await;
        let held_right = self.go_ahead(self.locks.lock(right.page, LockMode::X)).await;
        // Another task may have split, merged or moved one of the leaves meanwhile.
        let is_same = |leaf: &LeafHead| self.leaf(leaf.page).is_some_and(|now| now.version == leaf.version);
        if !is_same(&left) || !is_same(&right) {
            return Ok(());
        }
        // LEAF-2: newer than both.
        let version = left.version.max(right.version) + 1;
        let merged = LeafHead { page: left.page, range, right: right.right, version };
        self.pages.fix(merged.page, Access::Change).await;
        let change = Change { put: vec![merged.clone()], remove: vec![right.page], ..Change::default() };
        self.store.change(change).await?;
        {
            let mut state = self.state.borrow_mut();
            state.remove_leaf(right.page);
            state.loads.insert(merged.page, Load::from(&weight));
            state.put_leaf(self.me, merged.clone());
        }
        self.count(|counts| counts.merges += 1);
        drop((held_left, held_right));
        self.tell(&[merged.route_entry(self.me)]);
        Ok(())
    }

    /// Returns a leaf and one of its neighbors at this PE, in key order.
    fn neighbors(&self, page: PageNo) -> Option<(PageNo, PageNo)> {
        let state = self.state.borrow();
        let leaf = state.leaves.get(&page)?;
        let right = leaf.range.high.clone().and_then(|high| state.own_leaf(&Target::At(high)));
        if let Some(right) = right {
            return Some((page, right.page));
        }
        if leaf.range.low.is_empty() {
            return None;
        }
        let left = state.own_leaf(&Target::Before(Some(leaf.range.low.clone())))?;
        Some((left.page, page))
    }
}
