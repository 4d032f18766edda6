//! Stores the images that active transactions have replaced so far, when versions are turned on.

use std::collections::BTreeMap;

use azekura_base::TreeId;

use super::row::memory_of;
use super::store::{Image, cell_of, image_of};
use super::{VersionPart, Versions, image_in};
use crate::descent::{Descent, Seek};
use crate::env::Env;
use crate::error::TreeError;
use crate::tree::Tree;
use crate::undo::{UndoLog, UndoOp};

impl Versions {
    /// Stores the images that a transaction has replaced so far. The caller holds the mutex of the
    /// transaction's undo log, and its commit record is not appended (VERSION-1); so its rows are locked and
    /// unchanged. Reads the leaf of each changed row. Stores nothing and returns `false` if the images do not
    /// fit into the memory for versions, so the time and the memory of a backfill are bounded.
    ///
    /// # Errors
    ///
    /// [`TreeError::Fix`] or [`TreeError::Corrupt`].
    pub fn backfill(&self, env: &Env, undo: &mut UndoLog) -> Result<bool, TreeError> {
        if undo.is_empty() {
            return Ok(true);
        }
        let mut writer = std::mem::take(&mut undo.writer);
        writer.status(self);
        // Cleared: trees noted before versions were turned off are obsolete.
        writer.hidden_trees.clear();
        undo.iter().for_each(|op| self.note_hidden_tree(&mut writer, &op));
        // Newest first: the image before an entry's change is the state for the older entries.
        let mut images: BTreeMap<(TreeId, Vec<u8>), Image<'_>> = BTreeMap::new();
        let mut bytes = self.store.size().1;
        let mut result = Ok(true);
        for op in (0..undo.len()).rev().filter_map(|i| undo.get(i)) {
            let (UndoOp::RemoveKey { tree, key }
            | UndoOp::PutBack { tree, key, .. }
            | UndoOp::Flip { tree, key, .. }) = op
            else {
                continue;
            };
            if writer.hides(tree.id) {
                continue;
            }
            let image = match images.entry((tree.id, key.to_vec())) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => match tree.image(env, key) {
                    Ok(image) => {
                        bytes += memory_of(key, cell_of(&image));
                        entry.insert(image)
                    }
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                },
            };
            if bytes > self.limit_bytes {
                result = Ok(false);
                break;
            }
            match op {
                UndoOp::RemoveKey { .. } => *image = None,
                UndoOp::PutBack { cell, .. } => *image = image_of(cell),
                UndoOp::Flip { at, diff, .. } => {
                    let old =
                        image.iter_mut().flat_map(|(_, value)| value.to_mut().iter_mut().skip(at.into()));
                    old.zip(diff).for_each(|(byte, diff)| *byte ^= diff);
                }
                _ => {}
            }
        }
        writer.kept_in = self.mode();
        if let Ok(true) = result {
            for ((tree, key), image) in images {
                // The caller of `open` holds `switching`, so the mode is constant. This function has checked
                // the limit above.
                let (status, open) = (|| self.new_status(), || self.open_now());
                self.store.install((tree, &key), writer.status.as_ref(), status, || true, || image, open);
            }
        }
        if self.leaves_out(VersionPart::VisitedStatus) {
            writer.status = None;
        }
        undo.writer = writer;
        result
    }
}

impl Tree {
    /// Returns the row of `key` from the leaf, with a large value as its reference.
    fn image(&self, env: &Env, key: &[u8]) -> Result<Image<'static>, TreeError> {
        let mut descent = Descent::new(env, *self);
        loop {
            let leaf = descent.leaf(Seek::Covering(key))?;
            let image = image_in(leaf.node(), key);
            if leaf.is_valid() {
                return Ok(image);
            }
            descent.changed()?;
        }
    }
}
