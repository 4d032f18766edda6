//! Writing a chain.

use azekura_base::page::{PageMut, PageType};
use azekura_base::{Lsn, PageId};

use super::{
    ChainPage, MAX_VALUE, NEXT_AT, OverflowRef, PAYLOAD_AT, chain_pages, longest_run, payload, run_pages,
};
use crate::change::PageOp;
use crate::env::{Env, Writer};
use crate::error::TreeError;
use crate::record::Head;
use crate::space::find_pages;
use crate::tree::WriteCtx;
use crate::undo::{UndoLog, UndoOp};

/// Writes a chain piece by piece, before the cell that refers to it.
///
/// The runs of a piece are written from its end, so that each refers to the next one. The last run of a piece
/// gets its reference when the next piece is written: by a second write of its first page.
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
        let mut runs = TransactionRuns { env, writer: ctx.writer(), undo: ctx.undo };
        self.extend(env.page_size(), &mut runs, piece)
    }

    /// Returns the reference to the chain.
    #[must_use]
    pub const fn finish(self) -> OverflowRef {
        OverflowRef { len: self.len, head: self.head }
    }

    /// Appends a piece as [`append`](Self::append) does; `runs` stores its runs.
    pub(crate) fn extend(
        &mut self,
        page_size: usize,
        runs: &mut impl Runs,
        piece: &[u8],
    ) -> Result<(), TreeError> {
        let len = self.len + piece.len() as u64;
        if len > MAX_VALUE {
            return Err(TreeError::ValueTooLong { len, max: MAX_VALUE });
        }
        let (mut next, mut last_run) = (PageId(0), None);
        let mut rest = Rest { bytes: piece, index: self.pages, page_size };
        while !rest.bytes.is_empty() {
            let (first, count) = runs.write_run(rest, next)?;
            last_run.get_or_insert(first);
            next = first;
            rest.bytes = rest.split(count).0;
        }
        let Some(last_run) = last_run else { return Ok(()) };
        if self.pages == 0 {
            self.head = next;
        } else {
            runs.link(self.last_run, next)?;
        }
        self.last_run = last_run;
        self.pages += chain_pages(piece.len() as u64, page_size);
        self.len = len;
        Ok(())
    }
}

/// Stores the runs of a chain.
pub(crate) trait Runs {
    /// Allocates one run and writes the last pages of `rest` into it; returns its first page and its number
    /// of pages. `next` begins the next run of the chain.
    fn write_run(&mut self, rest: Rest<'_>, next: PageId) -> Result<(PageId, u32), TreeError>;

    /// Makes `next` the run after the one that begins at page `run`.
    fn link(&mut self, run: PageId, next: PageId) -> Result<(), TreeError>;
}

/// The bytes of a piece that are not written yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest<'a> {
    bytes: &'a [u8],
    /// Index of their first page in the chain.
    index: u64,
    page_size: usize,
}

impl<'a> Rest<'a> {
    const fn pages(&self) -> u64 {
        chain_pages(self.bytes.len() as u64, self.page_size)
    }

    /// Returns the number of pages that the next run should have.
    pub(crate) fn want(&self) -> u32 {
        self.pages().min(longest_run(self.page_size).into()) as u32
    }

    /// Splits off the last `count` pages.
    fn split(&self, count: u32) -> (&'a [u8], &'a [u8]) {
        let before = self.pages() - u64::from(count);
        self.bytes.split_at(before as usize * payload(self.page_size))
    }

    /// Returns the content of the last `count` pages, from byte 24 of each page on, as header and payload.
    pub(crate) fn fronts(&self, count: u32, next: PageId) -> impl Iterator<Item = Front<'a>> {
        let (index, payload) = (self.index + self.pages() - u64::from(count), payload(self.page_size));
        let bytes = self.split(count).1;
        (0..count).map(move |i| {
            let rest = &bytes[i as usize * payload..];
            let run = if i == 0 { (next, count) } else { (PageId(0), 0) };
            Front::new(&rest[..rest.len().min(payload)], index + u64::from(i), run)
        })
    }
}

/// The content of a page of a chain, from byte 24 of the page on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front<'a> {
    header: [u8; PAYLOAD_AT - NEXT_AT],
    bytes: &'a [u8],
}

impl<'a> Front<'a> {
    /// `run` has the first page of the next run and the number of pages of this one. Both are 0 in pages that
    /// do not begin a run.
    pub(super) fn new(bytes: &'a [u8], index: u64, run: (PageId, u32)) -> Self {
        let mut header = [0; PAYLOAD_AT - NEXT_AT];
        header[..8].copy_from_slice(&run.0.0.to_le_bytes());
        header[8..12].copy_from_slice(&run.1.to_le_bytes());
        header[12..16].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        header[16..].copy_from_slice(&index.to_le_bytes());
        Self { header, bytes }
    }

    /// Fills the page in the cache, without a log record. The page gets this LSN.
    pub(crate) fn place(&self, env: &Env, page_id: PageId, lsn: Lsn) -> Result<(), TreeError> {
        let mut guard = env.pool().fix_new(page_id)?;
        guard.will_change(env.log().lsn_bound());
        let mut page = guard.page_mut();
        page.format(PageType::Overflow, page_id);
        page.write(NEXT_AT, &self.header);
        page.write(PAYLOAD_AT, self.bytes);
        page.set_lsn(lsn);
        Ok(())
    }

    pub(super) fn to_vec(self) -> Vec<u8> {
        [&self.header[..], self.bytes].concat()
    }
}

/// Stores the first page of the next run in the first page of a run.
pub(crate) fn set_next(page: &mut PageMut<'_>, next: PageId) {
    page.write(NEXT_AT, &next.0.to_le_bytes());
}

/// Writes `value` as a chain. On an error the runs written so far have their entries in `undo`.
pub(crate) fn write(
    env: &Env,
    writer: Writer,
    undo: &mut UndoLog,
    value: &[u8],
) -> Result<OverflowRef, TreeError> {
    let mut chain = ChainWriter::new();
    chain.extend(env.page_size(), &mut TransactionRuns { env, writer, undo }, value)?;
    Ok(chain.finish())
}

/// Stores runs for a transaction: with records of their pages, or without them (`unlogged`).
struct TransactionRuns<'a> {
    env: &'a Env,
    writer: Writer,
    undo: &'a mut UndoLog,
}

impl Runs for TransactionRuns<'_> {
    fn write_run(&mut self, rest: Rest<'_>, next: PageId) -> Result<(PageId, u32), TreeError> {
        let Self { env, writer, undo } = self;
        let (env, writer) = (*env, *writer);
        let found = find_pages(env, writer.log_buffer, rest.want(), &[])?;
        let (first, count, take) = (found.first, found.count, found.op());
        if undo.values.may_skip_log() && env.may_leave_out_of_log() {
            let lsn = found.map.words().lsn(); // UNLOGGED-3
            let undo_op = UndoOp::FreePages { first, count };
            env.apply_logged_update(writer, undo, undo_op, &mut [found.map], &[(0, take)])?;
            for (page_id, front) in (first.0..).map(PageId).zip(rest.fronts(count, next)) {
                front.place(env, page_id, lsn)?;
                undo.values.add(env, page_id)?;
            }
            return Ok((first, count));
        }
        let mut map = Some(found.map);
        let fronts: Vec<_> = (first.0..).map(PageId).zip(rest.fronts(count, next)).collect();
        for fronts in fronts.rchunks(run_pages(env.page_size()) as usize) {
            let mut guards = Vec::new();
            for &(page_id, _) in fronts {
                guards.push(env.pool().fix_new(page_id)?);
            }
            let bytes: Vec<_> = fronts.iter().map(|(_, front)| front.to_vec()).collect();
            let mut ops: Vec<_> = bytes.iter().map(|bytes| image(bytes)).enumerate().collect();
            if let Some(map) = map.take() {
                ops.push((guards.len(), take));
                guards.push(map);
                let undo_op = UndoOp::FreePages { first, count };
                env.apply_logged_update(writer, undo, undo_op, &mut guards, &ops)?;
            } else {
                env.apply_logged(writer.log_buffer, &Head::System, &mut guards, &ops)?;
            }
        }
        Ok((first, count))
    }

    fn link(&mut self, run: PageId, next: PageId) -> Result<(), TreeError> {
        let guard = self.env.pool().fix(run)?.exclusive();
        let page = guard.words();
        let bytes = PAYLOAD_AT - NEXT_AT + ChainPage::of(page, run, None)?.len as usize;
        let mut front = Vec::new();
        page.read_into(NEXT_AT, bytes, &mut front);
        front[..8].copy_from_slice(&next.0.to_le_bytes());
        let (log_buffer, ops) = (self.writer.log_buffer, [(0, image(&front))]);
        self.env.apply_logged(log_buffer, &Head::System, &mut [guard], &ops)?;
        Ok(())
    }
}

const fn image(front: &[u8]) -> PageOp<'_> {
    PageOp::Image { kind: [PageType::Overflow as u8, 0, 0, 0], front, back: &[] }
}
