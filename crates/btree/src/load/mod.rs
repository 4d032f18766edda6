//! Bulk-loads an empty tree bottom-up, from records in key order. The records are not logged.
//!
//! 1. Records make leaves, full leaves make entries of the level above, and so on. Each level has one node
//!    that is being filled (`filler`).
//! 2. Complete nodes wait until there are enough for a *run* of pages. The run is allocated by one log record
//!    with the inverse "free the run".
//! 3. The nodes are written into the cache with the LSN of that record as their page LSN. From there they are
//!    written to the page file (`writers`), like all dirty pages. Their content is not in the log. Large
//!    values are written in the same way, each into runs of its own. Written pages leave the cache.
//! 4. When the records end, all levels are completed. All pages are made durable.
//! 5. One record writes the last node over the root page. Its inverse empties the tree, and replaces the
//!    inverses of step 2.
//!
//! Before step 5 nothing refers to the pages. So a crash before step 5 leaves an empty tree and pages that
//! undo frees. After step 5 the pages are on disk.
//!
//! - **LOAD-1** The root refers to loaded pages only when all of them are durable: step 4 before the record
//!   of step 5 is appended.
//! - **LOAD-2** When that record is appended, a restart would redo no record of a loaded page's earlier
//!   content. A restart redoes whole pages without reading them
//!   ([`PageChange::redo`](crate::PageChange::redo)), because usually all later changes of a page are in the
//!   log. Changes by a load are not in the log. The last record of a page's earlier content is the record
//!   that freed the page. So `redo_lsn` must be above [`LoadedPages::last_freed`]; otherwise the caller takes
//!   a checkpoint.
//! - **LOAD-3** A page is written without a copy in the double-write area (*fresh*) only if LOAD-2 holds
//!   already. Then no restart reads the page before step 5, so it may be torn. Without LOAD-2, redo of the
//!   page's earlier content might read it.
//! - **LOAD-4** No batch is in flight to the disk when the pages are freed: a late write could tear a page
//!   after its reuse.
//!
//! The write-ahead rule holds as well: a page is written after the record that allocated it is durable.

mod filler;
mod writers;

use azekura_base::{Lsn, PageId};

use crate::change::PageOp;
use crate::destroy::prune_step;
use crate::env::Env;
use crate::error::TreeError;
use crate::locks::NoLocks;
use crate::node::{Cell, FLAG_OVERFLOW, Scratch, max_inline_value};
use crate::overflow::{ChainWriter, OverflowRef, Rest, Runs, set_next};
use crate::scan::{LeafBatch, Scan};
use crate::space::find_pages;
use crate::tree::{Tree, WriteCtx};
use crate::undo::UndoOp;
use crate::write::check_sizes;

use filler::{Built, Filler};
use writers::Writers;

/// Largest number of pages in a run: 2 MiB of 8 KiB pages.
const MOST_RUN: usize = 256;

/// Options of a load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// `true`: threads of the loader write pages concurrently with the load. `false`: the caller's thread
    /// writes them.
    pub threads: bool,
}

/// A running load; see the module head. If it is dropped before [`complete`](Self::complete), the tree stays
/// empty, and the caller's rollback frees the pages.
pub struct Loader<'e> {
    env: &'e Env,
    tree: Tree,
    /// Number of entries in the transaction's undo log before the load.
    undo_mark: usize,
    /// The node that is being filled on each level, leaves first.
    levels: Vec<Filler>,
    /// Complete nodes without a page.
    waiting: Vec<Built>,
    run_pages: usize,
    /// Reusable memory of nodes that have been copied to their pages.
    spare: Vec<Scratch>,
    last_freed: Lsn,
    writers: Writers,
    has_pages: bool,
    /// Pages of large values that were not passed to the writers yet.
    unwritten: Vec<PageId>,
}

impl std::fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader")
            .field("tree", &self.tree)
            .field("levels", &self.levels.len())
            .finish_non_exhaustive()
    }
}

/// A complete load. Its pages are durable, and nothing refers to them yet.
#[derive(Debug)]
#[must_use]
pub struct LoadedPages {
    tree: Tree,
    undo_mark: usize,
    root: Option<Scratch>,
    last_freed: Lsn,
    /// The value for [`UndoOp::EmptyTree`]'s field of this name.
    last_finished: u64,
}

/// A callback of the owner of the checkpoints: returns `true` if a restart would redo only records above the
/// given LSN.
pub type IsPast<'a> = &'a mut dyn FnMut(Lsn) -> bool;

impl<'e> Loader<'e> {
    /// Begins to load `tree`, which must have no records. The caller has exclusive use of the tree until the
    /// transaction's end. Frees pages that removed records left in the tree.
    ///
    /// # Errors
    ///
    /// [`TreeError::NotEmpty`], or an error of pool or log.
    pub fn begin(
        env: &'e Env,
        ctx: &mut WriteCtx<'_>,
        tree: Tree,
        options: LoadOptions,
    ) -> Result<Self, TreeError> {
        if !is_empty(env, tree)? {
            return Err(TreeError::NotEmpty { root: tree.root });
        }
        while prune_step(env, tree, ctx.log_buffer)? {}
        let run_pages = (env.pool().capacity_frames() / 8).clamp(1, MOST_RUN);
        Ok(Self {
            env,
            tree,
            undo_mark: ctx.undo.len(),
            levels: Vec::new(),
            waiting: Vec::new(),
            run_pages,
            spare: Vec::new(),
            last_freed: Lsn(0),
            writers: Writers::new(env.shared_pool(), options.threads),
            has_pages: false,
            unwritten: Vec::new(),
        })
    }

    /// Adds the next record if this needs no page and no record of the log; otherwise changes nothing and
    /// returns `false`, and the caller calls [`push`](Self::push).
    ///
    /// # Errors
    ///
    /// [`TreeError::NotAscending`], [`TreeError::KeyTooLong`] or [`TreeError::ValueTooLong`].
    pub fn try_push(&mut self, key: &[u8], value: &[u8]) -> Result<bool, TreeError> {
        check_sizes(self.env, key, value)?;
        // The record completes at most one node.
        if value.len() > max_inline_value(self.env.page_size(), key.len())
            || self.waiting.len() + 1 >= self.run_pages
        {
            return Ok(false);
        }
        self.check_order(key)?;
        self.push_at(0, key, Cell::inline(value))?;
        Ok(true)
    }

    /// Adds the next record. Every 256 pages, or earlier in a small cache, the loader allocates a run. It may
    /// then wait for a batch that is being written.
    ///
    /// # Errors
    ///
    /// [`TreeError::NotAscending`], [`TreeError::KeyTooLong`], [`TreeError::ValueTooLong`],
    /// [`TreeError::SpaceFull`], or an error of pool, log or page store. After an error the caller drops the
    /// loader, and rolls back its entries in the undo log.
    pub fn push(
        &mut self,
        ctx: &mut WriteCtx<'_>,
        key: &[u8],
        value: &[u8],
        is_past: IsPast<'_>,
    ) -> Result<(), TreeError> {
        check_sizes(self.env, key, value)?;
        self.check_order(key)?;
        if value.len() <= max_inline_value(self.env.page_size(), key.len()) {
            return self.push_cell(ctx, key, Cell::inline(value), is_past);
        }
        let mut chain = ChainWriter::new();
        self.append(ctx, &mut chain, value, is_past)?;
        let reference = chain.finish().encode();
        self.push_cell(ctx, key, Cell { flags: FLAG_OVERFLOW, value: &reference }, is_past)
    }

    /// Appends a piece of a large value to `chain`. All pieces except the last one have
    /// [`ChainWriter::piece_bytes`].
    ///
    /// # Errors
    ///
    /// As for [`push`](Self::push).
    pub fn append(
        &mut self,
        ctx: &mut WriteCtx<'_>,
        chain: &mut ChainWriter,
        piece: &[u8],
        is_past: IsPast<'_>,
    ) -> Result<(), TreeError> {
        let page_size = self.env.page_size();
        chain.extend(page_size, &mut LoadedRuns { loader: self, ctx, is_past }, piece)
    }

    /// Adds the next record as [`push`](Self::push) does, with a large value that [`append`](Self::append)
    /// wrote.
    ///
    /// # Errors
    ///
    /// As for [`push`](Self::push).
    pub fn push_chain(
        &mut self,
        ctx: &mut WriteCtx<'_>,
        key: &[u8],
        chain: OverflowRef,
        is_past: IsPast<'_>,
    ) -> Result<(), TreeError> {
        check_sizes(self.env, key, &[])?;
        self.check_order(key)?;
        self.push_cell(ctx, key, Cell { flags: FLAG_OVERFLOW, value: &chain.encode() }, is_past)
    }

    fn push_cell(
        &mut self,
        ctx: &mut WriteCtx<'_>,
        key: &[u8],
        cell: Cell<'_>,
        is_past: IsPast<'_>,
    ) -> Result<(), TreeError> {
        self.push_at(0, key, cell)?;
        if self.waiting.len() >= self.run_pages { self.place_waiting(ctx, is_past) } else { Ok(()) }
    }

    fn check_order(&self, key: &[u8]) -> Result<(), TreeError> {
        let last = self.levels.first().and_then(Filler::last_key);
        if last.is_none_or(|last| last < key) {
            return Ok(());
        }
        Err(TreeError::NotAscending { key: key.to_vec() })
    }

    fn push_at(&mut self, level: usize, key: &[u8], cell: Cell<'_>) -> Result<(), TreeError> {
        if level == self.levels.len() {
            let number = u8::try_from(level)
                .map_err(|_| TreeError::corrupt(self.tree.root, "the tree is higher than any valid tree"))?;
            self.levels.push(Filler::new(self.env.page_size(), self.tree.id, number));
        }
        let (spare, page_size) = (&mut self.spare, self.env.page_size());
        let page = || spare.pop().unwrap_or_else(|| Scratch::new(page_size));
        let closed = self.levels[level].push(key, cell, page).map_err(TreeError::on_page(self.tree.root))?;
        self.waiting.extend(closed);
        Ok(())
    }

    /// Writes all waiting nodes to pages, and adds these pages to the level above.
    fn place_waiting(&mut self, ctx: &mut WriteCtx<'_>, is_past: IsPast<'_>) -> Result<(), TreeError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        while !waiting.is_empty() {
            let most = waiting.len().min(MOST_RUN);
            let run = self.take_run(ctx, most as u32)?;
            let mut pages = Vec::with_capacity(run.count);
            for (i, node) in waiting.drain(..run.count).enumerate() {
                let page_id = PageId(run.first.0 + i as u64);
                self.place(&node, page_id, run.lsn)?;
                pages.push(page_id);
                let (above, lower) = (usize::from(node.level) + 1, node.lower);
                self.spare.push(node.page);
                self.push_at(above, &lower, Cell::inline(&page_id.0.to_le_bytes()))?;
            }
            self.has_pages = true;
            self.writers.write(pages, is_past(self.last_freed))?; // LOAD-3
        }
        Ok(())
    }

    /// Allocates up to `want` pages in one run, by one record.
    fn take_run(&mut self, ctx: &mut WriteCtx<'_>, want: u32) -> Result<Run, TreeError> {
        let found = find_pages(self.env, ctx.log_buffer, want, &[])?;
        let (first, count, take) = (found.first, found.count, found.op());
        let mut map = [found.map];
        // Read while the map is latched: the record that freed these pages is included (LOAD-2).
        self.last_freed = self.last_freed.max(self.env.space().last_freed());
        let undo = UndoOp::FreePages { first, count };
        let lsn = self.env.apply_logged_update(ctx.writer(), ctx.undo, undo, &mut map, &[(0, take)])?;
        Ok(Run { first, count: count as usize, lsn })
    }

    /// Writes a node into the cache as page `page_id`.
    fn place(&self, node: &Built, page_id: PageId, lsn: Lsn) -> Result<(), TreeError> {
        let mut guard = self.env.pool().fix_new(page_id)?;
        guard.will_change(lsn);
        let mut page = guard.page_mut();
        page.copy_content(node.page.page());
        page.set_word(ID_WORD, page_id.0);
        page.set_lsn(lsn);
        Ok(())
    }

    /// Passes the pages of large values to the writers.
    fn write_values(&mut self, is_past: IsPast<'_>) -> Result<(), TreeError> {
        if !self.unwritten.is_empty() {
            self.has_pages = true;
            self.writers.write(std::mem::take(&mut self.unwritten), is_past(self.last_freed))?; // LOAD-3
        }
        Ok(())
    }

    /// Completes all levels after the last record, and makes all pages durable (LOAD-1).
    ///
    /// # Errors
    ///
    /// As for [`push`](Self::push).
    pub fn complete(mut self, ctx: &mut WriteCtx<'_>, is_past: IsPast<'_>) -> Result<LoadedPages, TreeError> {
        self.write_values(is_past)?;
        let root = self.end_levels(ctx, is_past)?;
        let last_finished = if self.has_pages { self.writers.finish()? } else { 0 };
        let Self { tree, undo_mark, last_freed, .. } = self;
        Ok(LoadedPages { tree, undo_mark, root, last_freed, last_finished })
    }

    /// Returns the root; `None` if there was no record.
    fn end_levels(
        &mut self,
        ctx: &mut WriteCtx<'_>,
        is_past: IsPast<'_>,
    ) -> Result<Option<Scratch>, TreeError> {
        let mut level = 0;
        while level < self.levels.len() {
            let (spare, page_size) = (&mut self.spare, self.env.page_size());
            let page = || spare.pop().unwrap_or_else(|| Scratch::new(page_size));
            let mut last = self.levels[level].finish(page).map_err(TreeError::on_page(self.tree.root))?;
            if last.len() == 1 && last[0].is_first() {
                return Ok(last.pop().map(|root| root.page));
            }
            self.waiting.extend(last);
            self.place_waiting(ctx, is_past)?;
            level += 1;
        }
        Ok(None)
    }
}

/// The runs of a loader's large value.
struct LoadedRuns<'a, 'e, 'c> {
    loader: &'a mut Loader<'e>,
    ctx: &'a mut WriteCtx<'c>,
    is_past: IsPast<'a>,
}

impl Runs for LoadedRuns<'_, '_, '_> {
    fn write_run(&mut self, rest: Rest<'_>, next: PageId) -> Result<(PageId, u32), TreeError> {
        let loader = &mut *self.loader;
        let run = loader.take_run(self.ctx, rest.want())?;
        for (i, front) in rest.fronts(run.count as u32, next).enumerate() {
            let page_id = PageId(run.first.0 + i as u64);
            front.place(loader.env, page_id, run.lsn)?;
            loader.unwritten.push(page_id);
            if loader.unwritten.len() >= loader.run_pages {
                loader.write_values(self.is_past)?;
            }
        }
        Ok((run.first, run.count as u32))
    }

    fn link(&mut self, run: PageId, next: PageId) -> Result<(), TreeError> {
        let mut guard = self.loader.env.pool().fix(run)?.exclusive();
        guard.will_change(self.loader.env.log().lsn_bound());
        set_next(&mut guard.page_mut(), next);
        drop(guard);
        self.loader.unwritten.push(run);
        Ok(())
    }
}

/// Index of the header word with the page id.
const ID_WORD: usize = 1;

struct Run {
    first: PageId,
    count: usize,
    lsn: Lsn,
}

impl LoadedPages {
    /// Returns the LSN up to which a restart must have nothing to redo when [`switch`](Self::switch) is
    /// called (LOAD-2).
    #[must_use]
    pub const fn last_freed(&self) -> Lsn {
        self.last_freed
    }

    /// Makes the loaded nodes the tree's content, by one record. Between the begin of the load and this call
    /// the caller has pushed no other entries to the undo log.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Append`]: the tree is still empty.
    pub fn switch(self, env: &Env, ctx: &mut WriteCtx<'_>) -> Result<(), TreeError> {
        let Some(root) = self.root else { return Ok(()) };
        let mut image = Vec::new();
        let image = PageOp::image_of(root.page(), &mut image);
        let covers = (ctx.undo.len() - self.undo_mark) as u64;
        let mut guards = [env.pool().fix(self.tree.root)?.exclusive()];
        let undo = UndoOp::EmptyTree { tree: self.tree, covers, last_finished: self.last_finished };
        env.apply_logged_update(ctx.writer(), ctx.undo, undo, &mut guards, &[(0, image)])?;
        Ok(())
    }
}

fn is_empty(env: &Env, tree: Tree) -> Result<bool, TreeError> {
    use std::ops::Bound::Unbounded;
    let mut found = LeafBatch::new();
    // A scan without locks never blocks.
    let _done = Scan::new(tree, Unbounded, Unbounded).next_batch(env, 1, &mut NoLocks, &mut found)?;
    Ok(found.is_empty())
}
