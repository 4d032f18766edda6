//! Stores the images that active transactions have replaced so far, when versions are turned on.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use azekura_base::{PageId, TreeId};

use super::row::memory_of;
use super::sparse::LeftOut;
use super::store::{Image, cell_of, image_of};
use super::{VersionPart, Versions, WriterVersions, image_in};
use crate::descent::{Descent, Leaf, Seek};
use crate::env::Env;
use crate::error::TreeError;
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};

impl Versions {
    /// Stores the images that a transaction has replaced so far, or only those that it has left out, if it
    /// has stored the others. The caller holds the mutex of the transaction's undo log, and its commit
    /// record is not appended (VERSION-1); so its rows are locked and unchanged. Reads the leaves of rows
    /// that were changed in place. Stores nothing and returns `false` if the images do not fit into the
    /// memory for versions, so the time and the memory of a backfill are bounded. [`UndoLog::image_bytes`]
    /// then has the memory that the images need.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn backfill(&self, env: &Env, undo: &mut UndoLog) -> Result<bool, TreeError> {
        if undo.writer.kept_in == self.mode() {
            return self.backfill_left_out(env, undo).map(|()| true);
        }
        // Trees noted before versions were turned off are obsolete, also if their changes were undone: their
        // loads are not listed any more.
        undo.writer.hidden_trees.clear();
        if undo.is_empty() {
            return Ok(true);
        }
        let mut writer = std::mem::take(&mut undo.writer);
        writer.status(self);
        undo.iter().for_each(|op| self.note_hidden_tree(&mut writer, &op));
        let result = self.images_of(env, undo, &writer, None);
        writer.kept_in = self.mode();
        let result = result.map(|(images, bytes)| {
            writer.images = Measured { bytes, len: undo.len(), shrink_count: undo.shrink_count() };
            let is_complete = self.has_space_for(self.store.size().1.saturating_add(bytes));
            for ((tree, key), (image, page)) in images.into_iter().filter(|_| is_complete) {
                // The caller of `open` holds `switching`, so the mode is constant. The limit was checked.
                self.store_visited(&mut writer, (tree, key, page), image);
            }
            is_complete
        });
        if self.leaves_out(VersionPart::VisitedStatus) {
            writer.status = None;
        }
        undo.writer = writer;
        result
    }

    /// Stores an image that an opener has found.
    pub(super) fn store_visited(
        &self,
        writer: &mut WriterVersions,
        row: (TreeId, &[u8], Option<PageId>),
        image: Image<'_>,
    ) {
        let (status, open) = (|| self.new_status(), || self.open_now());
        self.store.install(row, &mut writer.status, status, || true, || image, open);
    }

    /// Stores the images that a transaction has left out during a sparse period, as
    /// [`backfill`](Self::backfill) does. There are few, so they may exceed the memory for versions.
    fn backfill_left_out(&self, env: &Env, undo: &mut UndoLog) -> Result<(), TreeError> {
        if undo.writer.left_out.first == 0 {
            return Ok(());
        }
        let mut writer = std::mem::take(&mut undo.writer);
        let rows = undo.rows_of_first(writer.left_out.first).collect();
        let result = self.images_of(env, undo, &writer, Some(rows)).map(|(images, _)| {
            for ((tree, key), (image, page)) in images {
                self.store_visited(&mut writer, (tree, key, page), image);
            }
            writer.left_out = LeftOut::default();
        });
        undo.writer = writer;
        result
    }

    /// Returns `true` if `bytes` of images do not exceed the memory for versions.
    #[must_use]
    pub const fn has_space_for(&self, bytes: u64) -> bool {
        bytes <= self.limit_bytes
    }

    /// Returns the images that a transaction has replaced, with their memory. If these images alone do not
    /// fit into the memory for versions, returns only some of them, with more memory than the limit. With
    /// `of`, returns all images of these rows, and no others.
    fn images_of<'u>(
        &self,
        env: &Env,
        undo: &'u UndoLog,
        writer: &WriterVersions,
        of: Option<BTreeSet<(TreeId, &'u [u8])>>,
    ) -> Result<(Images<'u>, u64), TreeError> {
        // Newest first: the image before an entry's change is the state for the older entries.
        let mut images = Images::new();
        let mut rows = Rows { env, leaf: None };
        let mut bytes = 0;
        for op in (0..undo.len()).rev().filter_map(|i| undo.get(i)) {
            let (UndoOp::RemoveKey { tree, key }
            | UndoOp::PutBack { tree, key, .. }
            | UndoOp::Flip { tree, key, .. }) = op
            else {
                continue;
            };
            if writer.hides(tree.id) || of.as_ref().is_some_and(|of| !of.contains(&(tree.id, key))) {
                continue;
            }
            let (image, _) = match images.entry((tree.id, key)) {
                Entry::Occupied(entry) => {
                    bytes -= memory_of(key, cell_of(&entry.get().0));
                    entry.into_mut()
                }
                // Only the image before a flip depends on the present row.
                Entry::Vacant(entry) => match op {
                    UndoOp::Flip { .. } => entry.insert(rows.image(tree, key)?),
                    _ => entry.insert((None, None)),
                },
            };
            match op {
                UndoOp::RemoveKey { .. } => *image = None,
                UndoOp::PutBack { cell, .. } => *image = image_of(cell),
                UndoOp::Flip { at, diff, .. } => {
                    // By slices, so that the processor flips many bytes at once.
                    let old = image.as_mut().and_then(|(_, value)| value.to_mut().get_mut(at.into()..));
                    old.unwrap_or_default().iter_mut().zip(diff).for_each(|(byte, diff)| *byte ^= diff);
                }
                _ => {}
            }
            bytes += memory_of(key, cell_of(image));
            if of.is_none() && !self.has_space_for(bytes) {
                break;
            }
        }
        Ok((images, bytes))
    }
}

/// The memory of the images of an undo log, as the last backfill has found it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    /// The memory of the images in bytes, or more than the limit if they exceed it.
    bytes: u64,
    /// The number of entries, and the number of removals from the end of the log, at that time.
    len: usize,
    shrink_count: u64,
}

impl UndoLog {
    /// Returns a lower bound of the memory of the images that a [backfill](Versions::backfill) would store,
    /// in bytes: the memory that the last backfill has found. Returns 0 if there was none, or if some of its
    /// entries were undone since. More entries never need less memory, because they do not change the state
    /// of a row at the older entries.
    #[must_use]
    pub fn image_bytes(&self) -> u64 {
        let last = self.writer.images;
        let is_shorter = self.shortest_since(last.shrink_count).is_some_and(|least| least < last.len);
        if is_shorter { 0 } else { last.bytes }
    }
}

/// The images of rows, each with the row's leaf if it was read.
type Images<'u> = BTreeMap<(TreeId, &'u [u8]), (Image<'u>, Option<PageId>)>;

/// Reads rows from leaves. Adjacent rows of one leaf need one descent.
struct Rows<'e> {
    env: &'e Env,
    /// The leaf that was read last, and its tree.
    leaf: Option<(TreeId, Leaf<'e>)>,
}

impl Rows<'_> {
    /// Returns the row of `key` from the leaf, with a large value as its reference, and the leaf.
    fn image(&mut self, tree: Tree, key: &[u8]) -> Result<(Image<'static>, Option<PageId>), TreeError> {
        let image_in = |leaf: &Leaf<'_>| (image_in(leaf.node(), key), Some(leaf.node().page().page_id()));
        if let Some((of, leaf)) = &self.leaf
            && *of == tree.id
            && leaf.node().covers(key)
        {
            let image = image_in(leaf);
            if leaf.is_valid() {
                return Ok(image);
            }
        }
        self.leaf = None; // A descent may sleep or take latches, so no latch is held.
        let mut descent = Descent::new(self.env, tree);
        loop {
            let leaf = descent.leaf(Seek::Covering(key))?;
            let image = image_in(&leaf);
            if leaf.is_valid() {
                self.leaf = Some((tree.id, leaf));
                return Ok(image);
            }
            descent.changed()?;
        }
    }
}
