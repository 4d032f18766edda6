//! Stores the images that changes replace, before the changes.

use azekura_base::sync::atomic::Ordering::Release;
use azekura_base::{PageId, TreeId};

use super::sparse::{InPlace, MOST_LEFT_OUT, MarkedChange};
use super::store::{Image, image_of};
use super::{Versions, WriterVersions};
use crate::change::PageOp;
use crate::env::with_buffer;
use crate::node::{Cell, Node};
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};

impl Versions {
    /// Stores the image that a change is about to replace, if versions are on. `page_op` is the change with
    /// inverse `op`, and its leaf is latched (VERSION-2); the caller holds the mutex of `undo` (VERSION-1).
    /// During a sparse period, returns the claimed marks of the leaf.
    #[inline]
    pub(crate) fn before_change(
        &self,
        undo: &mut UndoLog,
        op: &UndoOp<'_>,
        page_op: Option<(Node<'_>, &PageOp<'_>)>,
    ) -> Option<MarkedChange<'_>> {
        let mode = self.mode();
        if mode.is_multiple_of(2) { None } else { self.store_image(undo, op, page_op, mode) }
    }

    fn store_image(
        &self,
        undo: &mut UndoLog,
        op: &UndoOp<'_>,
        page_op: Option<(Node<'_>, &PageOp<'_>)>,
        mode: u64,
    ) -> Option<MarkedChange<'_>> {
        self.store_unless_marked(undo, op, InPlace::of(op, page_op), mode, |writer| {
            // A model has no leaf. Any page is allowed (GROUP-3).
            let page_of = |tree: Tree| Some(page_op.map_or(tree.root, |(node, _)| node.page().page_id()));
            match *op {
                UndoOp::RemoveKey { tree, key } if !writer.hides(tree.id) => {
                    self.install(writer, (tree.id, key, page_of(tree)), mode, || None)
                }
                UndoOp::PutBack { tree, key, cell } if !writer.hides(tree.id) => {
                    self.install(writer, (tree.id, key, page_of(tree)), mode, || image_of(cell))
                }
                UndoOp::Flip { tree, key, .. } if !writer.hides(tree.id) => {
                    let Some((node, &PageOp::Flip { slot, .. })) = page_op else {
                        unreachable!("the operation of a flip is a flip")
                    };
                    with_buffer(|value| {
                        let slot = node.slot(slot.into());
                        node.value_into(slot, value);
                        let cell = Cell { flags: slot.flags, value };
                        self.install(writer, (tree.id, key, page_of(tree)), mode, || image_of(cell))
                    })
                }
                _ => {
                    self.note_hidden_tree(writer, op);
                    false
                }
            }
        })
    }

    /// Calls `store` before a change, unless the change needs no image. `store` returns whether it has stored
    /// one. `row` is the row if it changes in place.
    pub(super) fn store_unless_marked(
        &self,
        undo: &mut UndoLog,
        op: &UndoOp<'_>,
        row: Option<InPlace>,
        mode: u64,
        store: impl FnOnce(&mut WriterVersions) -> bool,
    ) -> Option<MarkedChange<'_>> {
        let len = undo.len();
        if len == 0 {
            undo.writer.kept_in = mode;
        }
        if undo.writer.kept_in != mode {
            return None; // The opener that turned versions on will visit the transaction (VERSION-7).
        }
        let marks = self.claim_marks(row);
        if len < MOST_LEFT_OUT && marks.as_ref().is_some_and(MarkedChange::has_image) {
            undo.writer.left_out.add(len, op);
            return marks;
        }
        if undo.leaves_out(op) {
            return None; // A visit stores the image before the first change (SPARSE-5).
        }
        let is_stored = store(&mut undo.writer);
        undo.writer.status(self); // Also without an image (VERSION-4).
        marks.filter(|_| is_stored)
    }

    /// Adds the tree to the hidden trees if the change creates or loads it: rows of such a tree need no
    /// versions. A tree that the writer created can be found only by snapshots to which the writer is
    /// visible. For all other snapshots a tree that the writer loaded is empty: a tree is loaded only if the
    /// writer has not changed its rows before, and it [has no images](Self::has_images).
    pub(super) fn note_hidden_tree(&self, writer: &mut WriterVersions, op: &UndoOp<'_>) {
        match *op {
            UndoOp::DropTree { tree } => writer.hidden_trees.push(tree.id),
            UndoOp::EmptyTree { tree, .. } if !writer.hides(tree.id) => {
                writer.hidden_trees.push(tree.id);
                self.prune_loads();
                let status = writer.status(self).clone();
                let mut loads = self.loads.lock();
                loads.push((tree.id, status));
                // Release: as for the counts of images (VERSION-3).
                self.loads_len.store(loads.len(), Release);
            }
            _ => {}
        }
    }

    /// Stores an image, unless the mode has changed since the caller read it (VERSION-7). Returns `true` if
    /// the image is stored.
    pub(super) fn install<'b>(
        &self,
        writer: &mut WriterVersions,
        row: (TreeId, &[u8], Option<PageId>),
        mode: u64,
        before: impl FnOnce() -> Image<'b>,
    ) -> bool {
        let (is_current, open) = (|| self.mode() == mode, || self.open_now());
        let status = || self.new_status();
        let is_stored = self.store.install(row, &mut writer.status, status, is_current, before, open);
        if self.store.size().1 > self.limit_bytes {
            self.shrink();
        }
        is_stored
    }
}
