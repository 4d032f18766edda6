//! The k-way merge by LSN (paper section 4.2, Figure 5). Chunks are read only when the next LSN needs them.
//!
//! Records of one log buffer are in order, and the merge combines the log buffers of all streams. Each chunk
//! states the LSN below which its stream is complete (the stream's **frontier**). So the next LSN is at the
//! head of some log buffer's queue, or in an unread chunk of a stream with a frontier not above that LSN.
//! Otherwise the LSN is missing, and the log ends before it (section 4.3, W5). [Gaps](crate::lsn_gap) are
//! kept beside the queues, by their first LSN, until the merge has passed them. Memory holds a few chunks per
//! stream.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::lsn_gap::LsnGap;
use crate::record::Cursor;

use super::scan::{Chunk, End, StreamScan};

/// Part of a payload that holds records of one log buffer.
#[derive(Debug)]
struct Run {
    payload: Arc<Vec<u8>>,
    at: usize,
    end: usize,
    cursor: Cursor,
}

/// A record: its LSN, and the place of its body.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) lsn: u64,
    payload: Arc<Vec<u8>>,
    at: usize,
    len: usize,
}

impl Record {
    pub(crate) fn body(&self) -> &[u8] {
        &self.payload[self.at..self.at + self.len]
    }
}

/// The content at an LSN.
#[derive(Debug)]
pub(crate) enum Present {
    Record(Record),
    /// A gap that a block states, up to and including this LSN.
    GapTo(u64),
}

impl Run {
    /// Returns the next record. Runs were checked when their chunk was read, so `None` means the end of the
    /// run.
    fn next(&mut self) -> Option<Record> {
        let mut input = &self.payload[self.at..self.end];
        let (lsn, body) = self.cursor.take(&mut input)?;
        let len = body.len();
        self.at = self.end - input.len();
        Some(Record { lsn, payload: Arc::clone(&self.payload), at: self.at - len, len })
    }
}

/// The records of one log buffer that are read and not merged yet.
#[derive(Debug, Default)]
struct Queue {
    head: Option<Record>,
    runs: VecDeque<Run>,
}

impl Queue {
    /// Makes the next record the head, if one was read. Returns the LSN of the head.
    fn advance(&mut self) -> Option<u64> {
        self.head = None;
        while let Some(run) = self.runs.front_mut() {
            self.head = run.next();
            if let Some(head) = &self.head {
                return Some(head.lsn);
            }
            self.runs.pop_front();
        }
        None
    }
}

#[derive(Debug)]
struct Source<'f> {
    scan: StreamScan<'f>,
    frontier: u64,
}

/// The merge of one incarnation's streams.
#[derive(Debug)]
pub(crate) struct Merge<'f> {
    sources: Vec<Source<'f>>,
    queues: Vec<Queue>,
    /// Index of the queue of each (stream, log buffer).
    index: HashMap<(u32, u64), usize>,
    /// LSN of the head of each queue that has one.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
    /// Gaps that were read and that the merge has not passed yet.
    gaps: BinaryHeap<Reverse<LsnGap>>,
}

impl<'f> Merge<'f> {
    pub(crate) fn new(scans: Vec<StreamScan<'f>>) -> Self {
        Self {
            sources: scans.into_iter().map(|scan| Source { scan, frontier: 0 }).collect(),
            queues: Vec::new(),
            index: HashMap::new(),
            heads: BinaryHeap::new(),
            gaps: BinaryHeap::new(),
        }
    }

    /// Returns the record or gap at this LSN; `None` if no stream has one. LSNs must increase from call to
    /// call: entries below `lsn` are dropped.
    pub(crate) fn find(&mut self, lsn: u64) -> Result<Option<Present>, (PathBuf, io::Error)> {
        loop {
            if let Some(record) = self.take_head(lsn) {
                return Ok(Some(Present::Record(record)));
            }
            if let Some(last) = self.take_gap(lsn) {
                return Ok(Some(Present::GapTo(last)));
            }
            if !self.read_on(lsn)? {
                return Ok(None);
            }
        }
    }

    /// Takes the record with this LSN if it is at the head of a queue; drops records below it.
    fn take_head(&mut self, wanted: u64) -> Option<Record> {
        loop {
            let mut top = self.heads.peek_mut()?;
            let Reverse((lsn, queue)) = *top;
            if lsn > wanted {
                return None;
            }
            let queue = &mut self.queues[queue];
            let record = queue.head.take();
            match queue.advance() {
                Some(next) => top.0.0 = next,
                None => drop(PeekMut::pop(top)),
            }
            if lsn == wanted {
                return record;
            }
        }
    }

    /// Returns the end of the gap that contains this LSN; drops gaps below it.
    fn take_gap(&mut self, lsn: u64) -> Option<u64> {
        while self.gaps.peek().is_some_and(|Reverse(gap)| gap.first <= lsn) {
            let Reverse(gap) = self.gaps.pop()?;
            if gap.last >= lsn {
                return Some(gap.last);
            }
        }
        None
    }

    /// Reads one more chunk of the stream with the lowest frontier; returns `false` if no stream can hold
    /// `lsn`.
    fn read_on(&mut self, lsn: u64) -> Result<bool, (PathBuf, io::Error)> {
        let open = self.sources.iter_mut().filter(|s| !s.scan.has_ended());
        let Some(source) = open.min_by_key(|s| s.frontier).filter(|s| s.frontier <= lsn) else {
            return Ok(false);
        };
        let stream = source.scan.stream();
        if let Some(chunk) = source.scan.next_chunk()? {
            source.frontier = chunk.header.complete_below;
            self.enqueue(stream, chunk);
        }
        Ok(true)
    }

    fn enqueue(&mut self, stream: u32, chunk: Chunk) {
        for block in chunk.blocks {
            self.gaps.extend(block.gaps.into_iter().map(Reverse));
            let slot = *self.index.entry((stream, block.log_buffer)).or_insert_with(|| {
                self.queues.push(Queue::default());
                self.queues.len() - 1
            });
            let queue = &mut self.queues[slot];
            let Range { start: at, end } = block.bytes;
            let payload = Arc::clone(&chunk.payload);
            queue.runs.push_back(Run { payload, at, end, cursor: block.cursor });
            if queue.head.is_none()
                && let Some(lsn) = queue.advance()
            {
                self.heads.push(Reverse((lsn, slot)));
            }
        }
    }

    /// Returns the end of each stream's readable part, or the place that the scan has reached.
    pub(crate) fn ends(&self) -> Vec<(u32, End)> {
        self.sources.iter().map(|s| (s.scan.stream(), s.scan.end())).collect()
    }
}
