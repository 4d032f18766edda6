//! Writing a chain.

use azekura_base::PageId;
use azekura_base::page::PageType;

use super::{
    ChainPage, MAX_VALUE, NEXT_AT, OverflowRef, PAYLOAD_AT, chain_pages, longest_run, payload, run_pages,
};
use crate::change::PageOp;
use crate::env::{Env, Writer};
use crate::error::TreeError;
use crate::record::Head;
use crate::space::{Found, find_pages};
use crate::tree::WriteCtx;
use crate::undo::{UndoLog, UndoOp};

/// Writes a chain piece by piece, before the cell that refers to it.
///
/// The runs of a piece are written from its end, so that each refers to the next one. The last run of a piece
/// gets its reference when the next piece is written: by a second image of its first page.
#[derive(Debug, Default)]
pub struct ChainWriter {
    /// Bytes written.
    len: u64,
    /// Pages written.
    pages: u64,
    /// The first page of the chain; page 0 while it has none.
    head: PageId,
    /// The first page of the last run.
    last_run: PageId,
}

impl ChainWriter {
    /// A chain without pages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes in a full piece: those of the longest run.
    #[must_use]
    pub const fn piece_bytes(page_size: usize) -> usize {
        longest_run(page_size) as usize * payload(page_size)
    }

    /// Appends a piece. All pieces except the last one have [`piece_bytes`](Self::piece_bytes).
    ///
    /// # Errors
    ///
    /// [`TreeError::ValueTooLong`], [`TreeError::SpaceFull`], or an error of pool or log. The runs written so
    /// far have their entries in the undo log; the caller rolls them back.
    pub fn append(&mut self, env: &Env, ctx: &mut WriteCtx<'_>, piece: &[u8]) -> Result<(), TreeError> {
        self.extend(env, ctx.writer(), ctx.undo, piece)
    }

    /// Returns the reference to the chain.
    #[must_use]
    pub const fn finish(self) -> OverflowRef {
        OverflowRef { len: self.len, head: self.head }
    }

    fn extend(
        &mut self,
        env: &Env,
        writer: Writer,
        undo: &mut UndoLog,
        piece: &[u8],
    ) -> Result<(), TreeError> {
        let page_size = env.page_size();
        let len = self.len + piece.len() as u64;
        if len > MAX_VALUE {
            return Err(TreeError::ValueTooLong { len, max: MAX_VALUE });
        }
        let (mut next, mut last_run) = (PageId(0), None);
        let mut left = piece;
        while !left.is_empty() {
            let pages = chain_pages(left.len() as u64, page_size);
            let want = pages.min(longest_run(page_size).into()) as u32;
            let found = find_pages(env, writer.log_buffer, want, &[])?;
            let first = found.first;
            let before = pages - u64::from(found.count);
            let (rest, run) = left.split_at(before as usize * payload(page_size));
            write_run(env, writer, undo, found, run, self.pages + before, next)?;
            last_run.get_or_insert(first);
            next = first;
            left = rest;
        }
        let Some(last_run) = last_run else { return Ok(()) };
        if self.pages == 0 {
            self.head = next;
        } else {
            link(env, writer, self.last_run, next)?;
        }
        self.last_run = last_run;
        self.pages += chain_pages(piece.len() as u64, page_size);
        self.len = len;
        Ok(())
    }
}

/// Writes `value` as a chain. On an error the runs written so far have their entries in `undo`.
pub(crate) fn write(
    env: &Env,
    writer: Writer,
    undo: &mut UndoLog,
    value: &[u8],
) -> Result<OverflowRef, TreeError> {
    let mut chain = ChainWriter::new();
    chain.extend(env, writer, undo, value)?;
    Ok(chain.finish())
}

/// Writes `bytes` into a run. Its first page is page `index` of the chain, and `next` begins the next run.
fn write_run(
    env: &Env,
    writer: Writer,
    undo: &mut UndoLog,
    found: Found<'_>,
    bytes: &[u8],
    index: u64,
    next: PageId,
) -> Result<(), TreeError> {
    let (first, count, take) = (found.first, found.count, found.op());
    let payload = payload(env.page_size());
    let mut map = Some(found.map);
    let mut left = count;
    while left > 0 {
        let from = left.saturating_sub(run_pages(env.page_size()));
        let (mut guards, mut fronts) = (Vec::new(), Vec::new());
        for i in from..left {
            guards.push(env.pool().fix_new(PageId(first.0 + u64::from(i)))?);
            let rest = &bytes[i as usize * payload..];
            let run = if i == 0 { (next, count) } else { (PageId(0), 0) };
            fronts.push(front_of(&rest[..rest.len().min(payload)], index + u64::from(i), run));
        }
        let images = fronts.iter().map(|front| image(front));
        let mut ops: Vec<_> = images.enumerate().collect();
        if let Some(map) = map.take() {
            ops.push((guards.len(), take));
            guards.push(map);
            let undo_op = UndoOp::FreePages { first, count };
            env.apply_logged_update(writer, undo, undo_op, &mut guards, &ops)?;
        } else {
            env.apply_logged(writer.log_buffer, &Head::System, &mut guards, &ops)?;
        }
        left = from;
    }
    Ok(())
}

/// Makes `next` the run after the one that begins at page `run`.
fn link(env: &Env, writer: Writer, run: PageId, next: PageId) -> Result<(), TreeError> {
    let guard = env.pool().fix(run)?.exclusive();
    let page = guard.words();
    let bytes = PAYLOAD_AT - NEXT_AT + ChainPage::of(page, run, None)?.len as usize;
    let mut front = Vec::new();
    page.read_into(NEXT_AT, bytes, &mut front);
    front[..8].copy_from_slice(&next.0.to_le_bytes());
    env.apply_logged(writer.log_buffer, &Head::System, &mut [guard], &[(0, image(&front))])?;
    Ok(())
}

const fn image(front: &[u8]) -> PageOp<'_> {
    PageOp::Image { kind: [PageType::Overflow as u8, 0, 0, 0], front, back: &[] }
}

/// Returns the content of page `index` of a chain with the payload `bytes`, from byte 24 of the page on.
/// `run` has the first page of the next run and the number of pages of this one. Both are 0 in pages that do
/// not begin a run.
pub(super) fn front_of(bytes: &[u8], index: u64, run: (PageId, u32)) -> Vec<u8> {
    let mut front = Vec::with_capacity(PAYLOAD_AT - NEXT_AT + bytes.len());
    front.extend_from_slice(&run.0.0.to_le_bytes());
    front.extend_from_slice(&run.1.to_le_bytes());
    front.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    front.extend_from_slice(&index.to_le_bytes());
    front.extend_from_slice(bytes);
    front
}
