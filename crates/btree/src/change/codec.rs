//! Encodes page operations as bytes of a log record: a tag, the page id, then the fields. Numbers are LEB128.

use azekura_base::PageId;
use azekura_base::varint::{put_bytes, put_u64, take_bytes, take_u8, take_u64};

use super::PageOp;
use crate::error::RecordError;
use crate::node::Cell;

const IMAGE: u8 = 1;
const INSERT: u8 = 2;
const REMOVE: u8 = 3;
const REPLACE: u8 = 4;
const FLIP: u8 = 5;
const TRUNCATE: u8 = 6;
const SPACE_SET: u8 = 7;
const SPACE_CLEAR: u8 = 8;
const RELEASE: u8 = 9;
const SPACE_MAKE: u8 = 10;
const SPACE_NEXT: u8 = 11;
const LOWER_FENCE: u8 = 12;

/// Appends `op`, an operation on page `page_id`.
pub(crate) fn put_op(out: &mut Vec<u8>, page_id: PageId, op: &PageOp<'_>) {
    let start = |out: &mut Vec<u8>, tag| {
        out.push(tag);
        put_u64(out, page_id.0);
    };
    match *op {
        PageOp::Image { kind, front, back } => {
            start(out, IMAGE);
            out.extend_from_slice(&kind);
            put_bytes(out, front);
            put_bytes(out, back);
        }
        PageOp::Insert { slot, suffix, cell } => {
            start(out, INSERT);
            put_u64(out, slot.into());
            put_bytes(out, suffix);
            put_cell(out, cell);
        }
        PageOp::Remove { slot } => {
            start(out, REMOVE);
            put_u64(out, slot.into());
        }
        PageOp::Replace { slot, cell } => {
            start(out, REPLACE);
            put_u64(out, slot.into());
            put_cell(out, cell);
        }
        PageOp::Flip { slot, at, diff } => {
            start(out, FLIP);
            put_u64(out, slot.into());
            put_u64(out, at.into());
            put_bytes(out, diff);
        }
        PageOp::Truncate { keep, upper } => {
            start(out, TRUNCATE);
            put_u64(out, keep.into());
            put_bytes(out, upper);
        }
        PageOp::LowerFence { lower } => {
            start(out, LOWER_FENCE);
            put_bytes(out, lower);
        }
        PageOp::SpaceSet { first, count } => {
            start(out, SPACE_SET);
            put_u64(out, first.into());
            put_u64(out, count.into());
        }
        PageOp::SpaceClear { first, count } => {
            start(out, SPACE_CLEAR);
            put_u64(out, first.into());
            put_u64(out, count.into());
        }
        PageOp::Release => start(out, RELEASE),
        PageOp::SpaceMake { used } => {
            start(out, SPACE_MAKE);
            put_u64(out, used.into());
        }
        PageOp::SpaceNext => start(out, SPACE_NEXT),
    }
}

/// Appends a cell: its length and flags in one number, then its bytes.
pub(crate) fn put_cell(out: &mut Vec<u8>, cell: Cell<'_>) {
    put_u64(out, (cell.value.len() as u64) << 1 | u64::from(cell.flags & 1));
    out.extend_from_slice(cell.value);
}

pub(crate) fn take_cell<'a>(input: &mut &'a [u8]) -> Option<Cell<'a>> {
    let number = take_u64(input)?;
    let len = usize::try_from(number >> 1).ok().filter(|&len| len <= usize::from(u16::MAX))?;
    let (value, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(Cell { flags: (number & 1) as u16, value })
}

pub(crate) fn take_u16(input: &mut &[u8]) -> Option<u16> {
    take_u64(input)?.try_into().ok()
}

fn take_u32(input: &mut &[u8]) -> Option<u32> {
    take_u64(input)?.try_into().ok()
}

/// Takes bytes from the front of `input` if their length fits a page's 16-bit fields.
fn take_short<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    take_bytes(input).filter(|bytes| bytes.len() <= usize::from(u16::MAX))
}

fn take_op<'a>(input: &mut &'a [u8]) -> Option<(PageId, PageOp<'a>)> {
    let tag = take_u8(input)?;
    let page_id = PageId(take_u64(input)?);
    let op = match tag {
        IMAGE => {
            let (kind, rest) = input.split_first_chunk::<4>()?;
            *input = rest;
            PageOp::Image { kind: *kind, front: take_short(input)?, back: take_short(input)? }
        }
        INSERT => {
            PageOp::Insert { slot: take_u16(input)?, suffix: take_short(input)?, cell: take_cell(input)? }
        }
        REMOVE => PageOp::Remove { slot: take_u16(input)? },
        REPLACE => PageOp::Replace { slot: take_u16(input)?, cell: take_cell(input)? },
        FLIP => PageOp::Flip { slot: take_u16(input)?, at: take_u16(input)?, diff: take_short(input)? },
        TRUNCATE => PageOp::Truncate { keep: take_u16(input)?, upper: take_short(input)? },
        SPACE_SET => PageOp::SpaceSet { first: take_u32(input)?, count: take_u32(input)? },
        SPACE_CLEAR => PageOp::SpaceClear { first: take_u32(input)?, count: take_u32(input)? },
        RELEASE => PageOp::Release,
        SPACE_MAKE => PageOp::SpaceMake { used: take_u32(input)? },
        SPACE_NEXT => PageOp::SpaceNext,
        LOWER_FENCE => PageOp::LowerFence { lower: take_short(input)? },
        _ => return None,
    };
    Some((page_id, op))
}

/// The page operations of a record, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Ops<'a> {
    rest: &'a [u8],
}

impl<'a> Ops<'a> {
    pub(crate) const fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    /// Returns the encoded operations that were not yet iterated.
    pub(crate) const fn as_bytes(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<(PageId, PageOp<'a>), RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let tag = self.rest[0];
        let mut input = self.rest;
        let taken = take_op(&mut input);
        // The bytes after an invalid operation cannot be decoded.
        self.rest = if taken.is_some() { input } else { &[] };
        Some(taken.ok_or(RecordError::BadOperation { tag }))
    }
}
