//! What is done at a leaf, under its lock.

use crate::id::PageNo;
use crate::key::Target;
use crate::leaf::LeafHead;
use crate::lock_service::LockMode;
use crate::message::{Answer, Find, Refusal, Work};
use crate::node::Node;
use crate::page_service::Access;
use crate::store::Edit;

impl Node {
    /// Does the work at a leaf and answers, unless the leaf does not cover the target any more when its lock is there.
    pub(super) async fn work_at(&self, find: &Find, page: PageNo) -> bool {
        let is_write = find.work.is_write();
        let mode = if is_write { LockMode::IX } else { LockMode::IS };
        self.pages.lock().await;
        let held = self.locks.lock(page, mode).await;
        // NODE-1: from here the fences stay.
        let Some(leaf) = self.leaf(page).filter(|leaf| find.target.is_in(&leaf.range)) else { return false };
        self.pages.fix(page, Access::Again).await;
        let result = self.work(&find.target, &find.work, &leaf).await;
        drop(held);
        self.count(|counts| counts.worked += 1);
        if is_write && result.is_ok() {
            self.keep_balance(page, &find.work, &result).await;
        }
        // The leaf may have been split since; its fact was true all the same.
        self.answer(find.id.origin, find.id, result, Some(leaf.fact(self.me)), find.hops);
        true
    }

    pub(super) async fn work(
        &self,
        target: &Target,
        work: &Work,
        leaf: &LeafHead,
    ) -> Result<Answer, Refusal> {
        let refused = |reason: String| Refusal::Store { pe: self.me, reason };
        if let Work::Rows { within, limit } = work {
            let range = within.intersection(&leaf.range);
            let limit = *limit as usize;
            let reverse = matches!(target, Target::Before(_));
            let rows = self.store.rows(range, limit.saturating_add(1), reverse).await;
            let mut rows = rows.map_err(|error| refused(error.to_string()))?;
            let is_more = rows.len() > limit;
            rows.truncate(limit);
            return Ok(Answer::Rows { rows, is_more });
        }
        let Target::At(key) = target else {
            return Err(refused("work on a single key needs the key".to_owned()));
        };
        let key = key.clone();
        let edit = match work {
            Work::Get => {
                let value = self.store.read(key).await;
                return value.map(Answer::Value).map_err(|error| refused(error.to_string()));
            }
            Work::Run { is_write, bytes } => {
                let ran = self.application.run(key, *is_write, bytes.clone()).await;
                return ran.map(Answer::Ran).map_err(refused);
            }
            Work::Put(value) => Edit::Put(value.clone()),
            Work::Insert(value) => Edit::Insert(value.clone()),
            Work::Delete => Edit::Delete,
            Work::Rows { .. } => unreachable!("handled above"),
        };
        match self.store.write(key, edit).await {
            Ok(existed) => Ok(Answer::Done { existed }),
            // It may have been in the log when that failed.
            Err(error) => Err(Refusal::Failed { pe: self.me, reason: error.to_string() }),
        }
    }
}
