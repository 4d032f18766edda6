//! Reads one stream's chunks in order, and sweeps a segment for all valid headers.
//!
//! A stream of one incarnation ends when its next chunk is neither after the previous one nor at the start of
//! the next segment. [`cut`](super::cut) decides whether that is the end of the log, a torn write, or damage.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use azekura_base::Cipher;
use azekura_base::checksum::crc32c;
use azekura_base::cipher::TRAILER_BYTES;
use azekura_io::{File, Fs, OpenOptions};

use crate::chunk::{self, HEADER_BYTES, Header, Place, UNIT_BYTES};
use crate::lsn_gap::LsnGap;
use crate::record::Cursor;

/// Number of bytes read at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// Offset in bytes from which a sweep skips holes: larger than usual segments, so that their sweep relies on
/// reads only.
const HOLES_FROM: u64 = 64 << 20;

/// A file read through a window, front to back.
pub(crate) struct Window<'f> {
    file: &'f dyn File,
    offset: u64,
    bytes: Vec<u8>,
}

impl std::fmt::Debug for Window<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Window({} bytes at {})", self.bytes.len(), self.offset)
    }
}

impl<'f> Window<'f> {
    pub(crate) fn new(file: &'f dyn File) -> Self {
        Self { file, offset: 0, bytes: Vec::new() }
    }

    fn contains(&self, offset: u64) -> bool {
        (self.offset..self.offset + self.bytes.len() as u64).contains(&offset)
    }

    /// Returns `len` bytes at `offset`, fewer at the end of the file.
    pub(crate) fn at(&mut self, offset: u64, len: usize) -> io::Result<&[u8]> {
        let end = offset + len as u64;
        if offset < self.offset || end > self.offset + self.bytes.len() as u64 {
            self.offset = offset;
            self.bytes.resize(len.max(WINDOW_BYTES), 0);
            let read = self.file.read_at(offset, &mut self.bytes)?;
            self.bytes.truncate(read);
        }
        let from = (offset - self.offset) as usize;
        let to = (from + len).min(self.bytes.len());
        Ok(self.bytes.get(from..to).unwrap_or_default())
    }
}

/// Visits every header in the segment that is valid at its place, regardless of the bytes between; payloads
/// are not checked. Skips holes beyond [`HOLES_FROM`], so a file that damage has extended costs little time.
pub(crate) fn sweep(file: &dyn File, start: Place, visit: &mut dyn FnMut(&Header)) -> io::Result<()> {
    let len = file.len()?;
    let mut window = Window::new(file);
    let mut offset = start.offset;
    while offset < len {
        if offset >= HOLES_FROM && !window.contains(offset) {
            let data = file.next_data(offset)?;
            offset = data - data % UNIT_BYTES as u64;
        }
        let bytes = window.at(offset, HEADER_BYTES)?;
        match Header::decode_at(bytes, Place { offset, ..start }) {
            Some(header) => {
                visit(&header);
                offset = offset.saturating_add(header.chunk_bytes());
            }
            None => offset += UNIT_BYTES as u64,
        }
    }
    Ok(())
}

/// A segment for a scan.
#[derive(Clone, Debug)]
pub(crate) struct SegmentRef {
    pub(crate) path: PathBuf,
    pub(crate) number: u64,
}

/// A complete and well-formed chunk.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) header: Header,
    pub(crate) payload: Arc<Vec<u8>>,
    pub(crate) blocks: Vec<BlockRef>,
}

/// A block inside a chunk's payload; its records have been checked.
#[derive(Debug)]
pub(crate) struct BlockRef {
    pub(crate) log_buffer: u64,
    /// Cursor before the first record.
    pub(crate) cursor: Cursor,
    pub(crate) bytes: Range<usize>,
    pub(crate) gaps: Vec<LsnGap>,
}

/// The end of a stream's readable part.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) path: PathBuf,
    pub(crate) offset: u64,
    /// Number of the chunk that is expected at this place.
    pub(crate) next_number: u64,
}

/// The chunks of one stream and incarnation, in order.
#[derive(Debug)]
pub(crate) struct StreamScan<'f> {
    fs: &'f dyn Fs,
    database_id: u64,
    stream: u32,
    incarnation: u32,
    segments: Vec<SegmentRef>,
    /// Index of the current segment.
    at: usize,
    file: Option<Arc<dyn File>>,
    offset: u64,
    /// Expected number of the next chunk; `None` accepts any number.
    next_number: Option<u64>,
    window: Vec<u8>,
    window_at: u64,
    ended: bool,
    cipher: Option<&'f dyn Cipher>,
}

impl<'f> StreamScan<'f> {
    /// Returns a scan from the start of the first segment. `segments` is in order of the segments' numbers,
    /// and not empty.
    pub(crate) fn new(
        fs: &'f dyn Fs,
        database_id: u64,
        stream: u32,
        incarnation: u32,
        segments: Vec<SegmentRef>,
    ) -> Self {
        Self {
            fs,
            database_id,
            stream,
            incarnation,
            segments,
            at: 0,
            file: None,
            offset: 0,
            next_number: None,
            window: Vec::new(),
            window_at: 0,
            ended: false,
            cipher: None,
        }
    }

    /// Makes the scan decrypt the payloads, if there is a cipher.
    pub(crate) fn decrypted(self, cipher: Option<&'f dyn Cipher>) -> Self {
        Self { cipher, ..self }
    }

    pub(crate) const fn stream(&self) -> u32 {
        self.stream
    }

    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the expected place of the next chunk.
    pub(crate) fn end(&self) -> End {
        let path = self.segments[self.at].path.clone();
        End { path, offset: self.offset, next_number: self.next_number.unwrap_or(0) }
    }

    /// Returns the next chunk; `None` at the end of the stream, and in each later call.
    ///
    /// # Errors
    ///
    /// The path of the file that could not be read, and the reason.
    pub(crate) fn next_chunk(&mut self) -> Result<Option<Chunk>, (PathBuf, io::Error)> {
        if self.ended {
            return Ok(None);
        }
        if let Some(chunk) = self.chunk_here()? {
            return Ok(Some(chunk));
        }
        // Either the segment or the log ends here. The log continues only if the expected chunk is at the
        // next segment's start.
        if self.at + 1 < self.segments.len() {
            let here = (self.at, self.offset, self.file.take());
            (self.at, self.offset) = (self.at + 1, 0);
            self.window.clear();
            if let Some(chunk) = self.chunk_here()? {
                return Ok(Some(chunk));
            }
            (self.at, self.offset, self.file) = here;
        }
        self.ended = true;
        self.window = Vec::new();
        Ok(None)
    }

    fn chunk_here(&mut self) -> Result<Option<Chunk>, (PathBuf, io::Error)> {
        self.read_chunk().map_err(|error| (self.segments[self.at].path.clone(), error))
    }

    fn read_chunk(&mut self) -> io::Result<Option<Chunk>> {
        let segment = &self.segments[self.at];
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let file = self.fs.open(&segment.path, OpenOptions::new().read_only(true))?;
                self.file = Some(Arc::clone(&file));
                file
            }
        };
        let place = Place {
            database_id: self.database_id,
            stream: self.stream,
            segment: segment.number,
            offset: self.offset,
        };
        // The window's bytes are fields of the scan, because a `Window` borrows its file and the file
        // changes.
        let mut window =
            Window { file: &*file, offset: self.window_at, bytes: std::mem::take(&mut self.window) };
        let chunk = chunk_in(&mut window, place, self.incarnation, self.next_number, self.cipher);
        (self.window_at, self.window) = (window.offset, window.bytes);
        let chunk = chunk?;
        if let Some(chunk) = &chunk {
            self.offset += chunk.header.chunk_bytes();
            self.next_number = chunk.header.number.checked_add(1);
        }
        Ok(chunk)
    }
}

/// A chunk that cannot be decrypted.
#[derive(Debug, thiserror::Error)]
#[error("the chunk at byte {offset} cannot be decrypted")]
pub(crate) struct UnauthenticChunk {
    pub(crate) offset: u64,
}

/// Returns the chunk at `place`, if it is complete, well-formed, and the expected chunk. Fails with
/// [`UnauthenticChunk`] if the expected chunk cannot be decrypted.
fn chunk_in(
    window: &mut Window<'_>,
    place: Place,
    incarnation: u32,
    number: Option<u64>,
    cipher: Option<&dyn Cipher>,
) -> io::Result<Option<Chunk>> {
    let mut head = [0; HEADER_BYTES];
    let found = window.at(place.offset, HEADER_BYTES)?;
    head[..found.len()].copy_from_slice(found);
    let Some(header) = Header::decode_at(&head, place) else {
        return Ok(None);
    };
    if header.incarnation != incarnation || number.is_some_and(|number| number != header.number) {
        return Ok(None);
    }
    let len = header.payload_bytes as usize;
    if len > WINDOW_BYTES && place.offset + header.chunk_bytes() > window.file.len()? {
        return Ok(None); // allocates no memory for an impossible length
    }
    let payload = window.at(place.offset + HEADER_BYTES as u64, len)?;
    if payload.len() != len || crc32c(payload) != header.payload_crc {
        return Ok(None);
    }
    let mut payload = payload.to_vec();
    if let Some(cipher) = cipher {
        let unauthentic = || io::Error::other(UnauthenticChunk { offset: place.offset });
        let records = payload.len().checked_sub(TRAILER_BYTES).ok_or_else(unauthentic)?;
        cipher.open(&chunk::associated(&head), &mut payload).map_err(|_| unauthentic())?;
        payload.truncate(records);
    }
    let Some(blocks) = chunk::parse_payload(&header, &payload) else {
        return Ok(None);
    };
    let start = payload.as_ptr().addr();
    let blocks = blocks.into_iter().map(|block| {
        let at = block.bytes.as_ptr().addr() - start;
        let (log_buffer, cursor, gaps) = (block.log_buffer, block.cursor(), block.gaps.collect());
        BlockRef { log_buffer, cursor, bytes: at..at + block.bytes.len(), gaps }
    });
    let blocks = blocks.collect();
    Ok(Some(Chunk { header, blocks, payload: Arc::new(payload) }))
}
