//! Values that are written in pieces.

use std::io::Read;

use azekura_btree::{ChainWriter, PutMode, Tree, max_inline_value};

use super::load::{LoadScope, changed_by_rows};
use super::{OpenTree, Transaction};
use crate::Error;

impl Transaction {
    /// Stores the bytes of `source` and returns their number. See
    /// [`Table::insert_from`](crate::Table::insert_from).
    pub(crate) fn write_from(
        &self,
        open: &OpenTree,
        key: &[u8],
        source: &mut dyn Read,
    ) -> Result<u64, Error> {
        self.check_writable()?;
        let scope = LoadScope::begin(self, open)?;
        let written = self.write_in_scope(open, key, source);
        scope.end(written)
    }

    fn write_in_scope(&self, open: &OpenTree, key: &[u8], source: &mut dyn Read) -> Result<u64, Error> {
        let tree = self.resolve_or_create(open)?;
        self.lock_to_write(tree, key)?;
        self.listed(&mut *self.state()?);
        self.write_pieces(open, tree, key, source)
    }

    /// Writes the pieces and then the cell. The transaction's state is not borrowed while the source runs.
    fn write_pieces(
        &self,
        open: &OpenTree,
        tree: Tree,
        key: &[u8],
        source: &mut dyn Read,
    ) -> Result<u64, Error> {
        let env = &self.db.env;
        let max_inline = max_inline_value(env.page_size(), key.len());
        let piece_bytes = ChainWriter::piece_bytes(env.page_size());
        let writes = self.write_count();
        let mut chain = ChainWriter::new();
        let mut piece = Vec::new();
        fill(&mut piece, source, max_inline + 1)?;
        if piece.len() <= max_inline {
            if self.write_count() != writes {
                return Err(changed_by_rows(open));
            }
            self.change(tree, key, |env, ctx| tree.put(env, ctx, key, &piece, PutMode::Put, None))?;
            return Ok(piece.len() as u64);
        }
        piece.reserve_exact(piece_bytes - piece.len());
        loop {
            fill(&mut piece, source, piece_bytes)?;
            self.check_time()?;
            self.announce_value(key, piece.len())?;
            self.with_writer(|ctx, now| {
                if *now != writes {
                    return Err(changed_by_rows(open));
                }
                Ok(chain.append(env, ctx, &piece)?)
            })?;
            if piece.len() < piece_bytes {
                break;
            }
            piece.clear();
        }
        let reference = chain.finish();
        self.change(tree, key, |env, ctx| tree.put_chain(env, ctx, key, reference))?;
        Ok(reference.len)
    }
}

/// Reads from the source until `piece` has `bytes` bytes or the source ends.
fn fill(piece: &mut Vec<u8>, source: &mut dyn Read, bytes: usize) -> Result<(), Error> {
    let more = bytes.saturating_sub(piece.len()) as u64;
    source.take(more).read_to_end(piece).map_err(Error::other)?;
    Ok(())
}
