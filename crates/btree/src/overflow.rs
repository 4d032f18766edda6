//! Stores values too large for a leaf as chains of runs of pages.
//!
//! A leaf's cell refers to the chain's first page. A *run* is up to 4 MiB of adjacent pages; its first page
//! refers to the next run. So freeing a chain reads one page of each run, and a reader fetches many pages by
//! one call. Pieces of a value are written in order, and the runs of a piece from its end ([`ChainWriter`]).
//! The record of a run's last [`run_pages`] pages allocates the whole run, with the inverse "free these
//! pages". The run's other pages follow in records of the same size, which need no inverse. The cell that
//! refers to the chain is written last. A bulk load logs only the allocation of a run
//! ([`Loader`](crate::Loader)), and so does a transaction with many bytes of large values (`unlogged`).
//!
//! - **CHAIN-1** The pages of a chain are not changed between the write of the cell that refers to it and
//!   their free. They are freed after the end of the transaction that removed the cell, once no snapshot
//!   needs them. So a reader with a lock on the record, or with a snapshot, reads the pages one after the
//!   other, without latch coupling: [`ChainReader`].
//!
//! | bytes | field |
//! |---|---|
//! | 0..24 | common header |
//! | 24..32 | first page of a run: first page of the next run, 0 for none; other pages: 0 |
//! | 32..36 | first page of a run: pages in the run; other pages: 0 |
//! | 36..40 | payload bytes in this page |
//! | 40..48 | index of the page in the chain, from 0 |
//! | 48.. | payload |

mod read;
mod unlogged;
mod write;

use std::collections::HashMap;

use azekura_base::page::PageType;
use azekura_base::{PageId, PageWords};

use crate::change::PageOp;
use crate::env::Env;
use crate::error::TreeError;
use crate::record::Record;

pub use self::read::ChainReader;
pub(crate) use self::read::{prefetch, read, read_at};
pub use self::unlogged::UnloggedValues;
pub use self::write::ChainWriter;
pub(crate) use self::write::{Rest, Runs, set_next, write};

const NEXT_AT: usize = 24;
const RUN_AT: usize = 32;
const LEN_AT: usize = 36;
const INDEX_AT: usize = 40;
const PAYLOAD_AT: usize = 48;

/// Length of the longest value: 1 GiB.
pub const MAX_VALUE: u64 = 1 << 30;

/// Returns the largest number of pages in a run: 4 MiB of pages.
const fn longest_run(page_size: usize) -> u32 {
    (4 << 20) / page_size as u32
}

/// Returns the largest number of pages in a log record: 16, and fewer if the record would exceed 128 KiB.
#[must_use]
pub(crate) const fn run_pages(page_size: usize) -> u32 {
    let fit = (128 << 10) / page_size as u32;
    if fit < 16 { fit } else { 16 }
}

/// Largest number of runs that one step frees.
const RUNS_PER_STEP: usize = 64;

/// A leaf's reference to a large value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowRef {
    /// Length of the value, in bytes.
    pub len: u64,
    /// The first page of the chain.
    pub head: PageId,
}

impl OverflowRef {
    /// Encodes the reference as the bytes of a leaf's cell.
    #[must_use]
    pub fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.len.to_le_bytes());
        out[8..].copy_from_slice(&self.head.0.to_le_bytes());
        out
    }

    /// Decodes the reference in a cell's bytes; `None` if their length is wrong.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (len, head) = bytes.split_first_chunk::<8>()?;
        let head = PageId(u64::from_le_bytes(head.try_into().ok()?));
        Some(Self { len: u64::from_le_bytes(*len), head })
    }
}

/// Collects the pages of large values from log records, and reassembles the values.
#[derive(Debug, Default)]
pub struct LargeValues {
    /// Content of each page from byte [`NEXT_AT`] on.
    pages: HashMap<PageId, Box<[u8]>>,
}

impl LargeValues {
    /// Returns a collection without pages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the pages of large values that a record wrote.
    pub fn note(&mut self, record: &Record<'_>) {
        for (page_id, op) in record.ops().flatten() {
            if let PageOp::Image { kind, front, .. } = op
                && kind[0] == PageType::Overflow as u8
            {
                self.pages.insert(page_id, front.into());
            }
        }
    }

    /// Returns the value and removes its pages; `None` if pages are missing or contradict each other.
    pub fn take(&mut self, reference: OverflowRef) -> Option<Vec<u8>> {
        let (mut value, mut index, mut head) = (Vec::new(), 0, reference.head);
        while head != PageId(0) {
            let (mut next, mut run, mut nth) = (PageId(0), 1, 0);
            while nth < run {
                let page = self.pages.remove(&PageId(head.0.checked_add(nth)?))?;
                let long =
                    |at: usize| page.get(at - NEXT_AT..)?.first_chunk().map(|b| u64::from_le_bytes(*b));
                let word =
                    |at: usize| page.get(at - NEXT_AT..)?.first_chunk().map(|b| u32::from_le_bytes(*b));
                if nth == 0 {
                    (next, run) = (PageId(long(NEXT_AT)?), u64::from(word(RUN_AT)?));
                }
                let bytes = page.get(PAYLOAD_AT - NEXT_AT..)?.get(..word(LEN_AT)? as usize)?;
                if long(INDEX_AT)? != index {
                    return None;
                }
                value.extend_from_slice(bytes);
                (nth, index) = (nth + 1, index + 1);
            }
            head = next;
        }
        (value.len() as u64 == reference.len).then_some(value)
    }
}

const fn payload(page_size: usize) -> usize {
    page_size - PAYLOAD_AT
}

/// Returns the number of pages of a value of `len` bytes.
pub(crate) const fn chain_pages(len: u64, page_size: usize) -> u64 {
    len.div_ceil(payload(page_size) as u64)
}

/// The header of one page of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainPage {
    pub(crate) next: PageId,
    pub(crate) run: u32,
    len: u32,
    index: u64,
}

impl ChainPage {
    /// Decodes the header of page `page_id`. If an index is given, the page must be page `index` of a chain.
    pub(crate) fn of(page: PageWords<'_>, page_id: PageId, index: Option<u64>) -> Result<Self, TreeError> {
        let this = Self {
            next: PageId(page.u64(NEXT_AT)),
            run: page.u32(RUN_AT),
            len: page.u32(LEN_AT),
            index: page.u64(INDEX_AT),
        };
        if page.page_type() != Some(PageType::Overflow) {
            return Err(TreeError::corrupt(page_id, "not part of a large value"));
        }
        if index.is_some_and(|index| index != this.index) {
            return Err(TreeError::corrupt(page_id, "not the expected part of a large value"));
        }
        if this.len as usize > payload(page.len()) || this.run > longest_run(page.len()) {
            return Err(TreeError::corrupt(page_id, "impossible numbers in a large value"));
        }
        Ok(this)
    }
}

/// Returns the first runs of the chain at `head` that share one space map, and the first page of the rest
/// (page 0 for none).
pub(crate) fn runs_of_one_map(env: &Env, head: PageId) -> Result<(Vec<(PageId, u32)>, PageId), TreeError> {
    let mut runs = Vec::new();
    let mut at = head;
    let map = |page_id| crate::space::map_of(page_id, env.page_size()).0;
    while at != PageId(0) && runs.len() < RUNS_PER_STEP && map(at) == map(head) {
        let guard = env.pool().fix(at)?.shared();
        let page = ChainPage::of(guard.words(), at, None)?;
        if page.run == 0 {
            return Err(TreeError::corrupt(at, "a page inside of a run, referred to as its start"));
        }
        runs.push((at, page.run));
        at = page.next;
    }
    Ok((runs, at))
}

/// Returns all pages of the chain at `head`. Does not need the length of the value.
pub(crate) fn chain_of(env: &Env, head: PageId) -> Result<Vec<PageId>, TreeError> {
    let (mut pages, mut at) = (Vec::new(), head);
    let most = chain_pages(MAX_VALUE, env.page_size()) as usize;
    while at != PageId(0) && pages.len() <= most {
        let (runs, next) = runs_of_one_map(env, at)?;
        for (first, count) in runs {
            pages.extend((0..u64::from(count)).map(|i| PageId(first.0 + i)));
        }
        at = next;
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Scratch;

    #[test]
    fn a_page_of_a_chain_identifies_itself() {
        let value: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
        let mut scratch = Scratch::new(4096);
        scratch.page_mut().set_page_type(PageType::Overflow);
        scratch
            .page_mut()
            .write(NEXT_AT, &write::Front::new(&value[2 * 4048..], 2, (PageId(77), 3)).to_vec());
        let page = ChainPage::of(scratch.page(), PageId(5), Some(2)).expect("sound");
        assert_eq!((page.next, page.run, page.len), (PageId(77), 3, 10_000 - 2 * 4048));
        assert!(ChainPage::of(scratch.page(), PageId(5), Some(1)).is_err(), "another part of the chain");
    }

    #[test]
    fn records_stay_below_128_kib_and_runs_below_4_mib() {
        assert_eq!([4096, 8192, 16384, 65536].map(longest_run), [1024, 512, 256, 64]);
        assert_eq!([4096, 8192, 16384, 65536].map(run_pages), [16, 16, 8, 2]);
    }
}
