//! Work at a leaf, under the leaf's lock.
//!
//! A transaction of several keys locks all their leaves, from left to right (NODE-2). The first key of a leaf
//! never changes while the leaf has its number, so all tasks agree on this order.

use crate::id::PageNo;
use crate::key::{Key, Target};
use crate::leaf::LeafHead;
use crate::lock_service::{Held, LockMode};
use crate::message::{Answer, Find, Refusal, Work};
use crate::node::{Asked, MoveError, Node};
use crate::page_service::Access;
use crate::store::Edit;
use crate::world::Task;

/// Result of work at a leaf.
pub(crate) struct Worked {
    pub(crate) result: Result<Answer, Refusal>,
    /// Estimated growth of the leaf in rows and bytes.
    pub(super) rows: isize,
    pub(super) bytes: usize,
    /// Task that ends when the changes behind the result are durable. It is awaited without a lock.
    pub(super) durable: Option<Task<'static, Result<(), String>>>,
    /// Other leaves that a transaction has used.
    pub(super) touched: Vec<PageNo>,
}

impl From<Result<Answer, Refusal>> for Worked {
    fn from(result: Result<Answer, Refusal>) -> Self {
        Self { result, rows: 0, bytes: 0, durable: None, touched: Vec::new() }
    }
}

impl Node {
    /// Executes the work at a leaf and answers. Returns `false` if the leaf does not cover the target any
    /// more after its lock was acquired.
    pub(super) async fn work_at(&self, find: &Find, page: PageNo) -> bool {
        if matches!(find.work, Work::Split | Work::Move { .. }) {
            return self.change_leaf(find, page).await;
        }
        let is_write = find.work.is_write();
        let mode = if is_write { LockMode::IX } else { LockMode::IS };
        self.pages.lock().await;
        let held = self.lock_in_time(find, page, mode).await;
        let Some(held) = held.filter(|_| !self.is_late(find)) else {
            self.lost(find);
            return true;
        };
        // NODE-1: the fences do not change from here on.
        let Some(leaf) = self.leaf(page).filter(|leaf| find.target.is_in(&leaf.range)) else { return false };
        self.pages.fix(page, Access::Again).await;
        let Worked { result, rows, bytes, durable, touched } = self.work(find, &leaf).await;
        // The lock can be released before the result is durable: a later split or move of the leaf has a
        // later position in the same log, so it cannot survive without this change.
        drop(held);
        let result = self.lasting(result, durable).await;
        self.count(|counts| counts.worked += 1);
        let is_changed = is_write && result.is_ok();
        self.wait_for_room(find.id.origin).await;
        // The leaf may have been split since, but its route entry stays true.
        self.answer(find.id.origin, find.id, result, Some(leaf.route_entry(self.me)), find.hops);
        if is_changed {
            // After the answer: a leaf of unknown size is counted first, which may take long.
            for page in touched.into_iter().chain([page]) {
                self.keep_balance(page, rows, bytes).await;
            }
        }
        true
    }

    /// Returns the result when it is durable.
    pub(super) async fn lasting(
        &self,
        result: Result<Answer, Refusal>,
        durable: Option<Task<'static, Result<(), String>>>,
    ) -> Result<Answer, Refusal> {
        match durable {
            Some(durable) => {
                durable.await.map_err(|reason| Refusal::Failed { pe: self.me, reason }).and(result)
            }
            None => result,
        }
    }

    pub(super) async fn work(&self, find: &Find, leaf: &LeafHead) -> Worked {
        let refused = |reason: String| Refusal::Store { pe: self.me, reason };
        match &find.work {
            Work::Rows { within, limit } => {
                let range = within.intersection(&leaf.range);
                let limit = *limit as usize;
                let reverse = matches!(find.target, Target::Before(_));
                let rows = self.store.rows(range, limit.saturating_add(1), reverse).await;
                let rows = rows.map(|mut rows| {
                    let is_more = rows.len() > limit;
                    rows.truncate(limit);
                    Answer::Rows { rows, is_more }
                });
                rows.map_err(|error| refused(error.to_string())).into()
            }
            Work::Run { .. } => self.run(find, leaf).await,
            Work::Step { .. } | Work::Read { .. } => self.step(find, leaf).await,
            Work::End { id, coordinator, is_commit } => self.end(*id, *coordinator, *is_commit).await,
            Work::Check { id, coordinator } => self.check(*id, *coordinator),
            work => match &find.target {
                Target::At(key) => self.edit(key.clone(), work).await,
                Target::Before(_) => Err(refused("work on a single key needs the key".to_owned())).into(),
            },
        }
    }

    pub(crate) async fn edit(&self, key: Key, work: &Work) -> Worked {
        let (edit, bytes) = match work {
            Work::Put(value) => (Edit::Put(value.clone()), key.len() + value.len()),
            Work::Insert(value) => (Edit::Insert(value.clone()), key.len() + value.len()),
            Work::Delete => (Edit::Delete, 0),
            _ => {
                let value = self.store.read(key).await;
                let refused = |reason: String| Refusal::Store { pe: self.me, reason };
                return value.map(Answer::Value).map_err(|error| refused(error.to_string())).into();
            }
        };
        let is_delete = edit == Edit::Delete;
        match self.store.write(key, edit).await {
            Ok(existed) => Worked {
                rows: if existed { -isize::from(is_delete) } else { isize::from(!is_delete) },
                bytes,
                ..Ok(Answer::Done { existed }).into()
            },
            // The write may have been in the log when the log failed.
            Err(error) => Err(Refusal::Failed { pe: self.me, reason: error.to_string() }).into(),
        }
    }

    /// Runs the application's request at the leaves of all its keys.
    async fn run(&self, find: &Find, leaf: &LeafHead) -> Worked {
        let Work::Run { is_write, others, bytes } = &find.work else { return Err(Refusal::Lost).into() };
        let locked = match self.lock_others(find, leaf, others, *is_write).await {
            Ok(locked) => locked,
            Err(refusal) => return Err(refusal).into(),
        };
        let asked = Asked::at(self, leaf.range.clone(), find, *is_write, others, bytes);
        let ran = self.application.run(asked).await;
        match ran {
            Ok(ran) => Worked {
                result: Ok(Answer::Ran(ran.bytes)),
                rows: ran.rows,
                bytes: ran.more_bytes,
                durable: ran.durable,
                touched: locked.iter().map(|(page, _)| *page).collect(),
            },
            Err(error) => Err(error.into_refusal(self.me)).into(),
        }
    }

    /// Locks the leaves of the other keys of a transaction after its first leaf was locked.
    pub(super) async fn lock_others(
        &self,
        find: &Find,
        leaf: &LeafHead,
        keys: &[Key],
        is_write: bool,
    ) -> Result<Vec<(PageNo, Held)>, Refusal> {
        let is_sorted = keys.is_sorted()
            && keys.first().is_none_or(|key| !Target::At(key.clone()).is_left_of(low_of(&find.target)));
        if !is_sorted {
            // NODE-2 depends on this order.
            let reason = "the keys of a transaction must come in order".to_owned();
            return Err(Refusal::Store { pe: self.me, reason });
        }
        let mode = if is_write { LockMode::IX } else { LockMode::IS };
        let (mut locked, mut end) = (Vec::new(), leaf.range.high.clone());
        for key in keys {
            let target = Target::At(key.clone());
            while target.is_right_of(end.as_deref()) {
                let page = self.state.borrow().own_leaf(&target).map(|leaf| leaf.page);
                let page = page.ok_or(Refusal::Elsewhere)?;
                let held = self.lock_in_time(find, page, mode).await.ok_or(Refusal::Lost)?;
                // The leaf may have been split, merged or moved before it was locked, so it is searched
                // again.
                if let Some(leaf) = self.leaf(page).filter(|leaf| target.is_in(&leaf.range)) {
                    end.clone_from(&leaf.range.high);
                    locked.push((page, held));
                }
            }
        }
        Ok(locked)
    }

    /// Splits or moves a leaf at a client's request. A leaf that is too large for one move is halved first.
    /// Then the request searches its half.
    async fn change_leaf(&self, find: &Find, page: PageNo) -> bool {
        let done = match (&find.work, &find.target) {
            (Work::Move { to }, _) if *to == self.me => Ok(()),
            (Work::Move { to }, _) => match self.move_leaf(page, *to).await {
                Err(error @ MoveError::TooLarge { .. }) => {
                    self.halve(page, error).await.and(Err(MoveError::NotHere(page)))
                }
                done => done,
            },
            (_, Target::At(key)) => self.split_leaf(page, key.clone()).await,
            (_, Target::Before(_)) => Err(MoveError::CannotSplit(page)),
        };
        let result = match done {
            Ok(()) => Ok(Answer::Done { existed: true }),
            Err(MoveError::NotHere(_)) => return false,
            Err(MoveError::Store(reason)) => Err(Refusal::Failed { pe: self.me, reason }),
            Err(error) => Err(Refusal::NotMoved { pe: self.me, reason: error.to_string() }),
        };
        self.answer(find.id.origin, find.id, result, None, find.hops);
        true
    }
}

fn low_of(target: &Target) -> &[u8] {
    match target {
        Target::At(key) | Target::Before(Some(key)) => key,
        Target::Before(None) => &[],
    }
}
