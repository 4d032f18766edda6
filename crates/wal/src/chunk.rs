//! The chunk: one checksummed write, and its header (paper section 3.1.2, hazards W5 and W6).
//!
//! A chunk starts at a multiple of 4 KiB, is padded with zeroes to one, and is never rewritten in place. Its
//! header, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | CRC-32C over bytes 4..128 |
//! | 4..8 | CRC-32C over the payload |
//! | 8..12 | `AzWL` |
//! | 12..16 | format version |
//! | 16..24 | database id |
//! | 24..28 | incarnation |
//! | 28..32 | stream |
//! | 32..40 | segment sequence number |
//! | 40..48 | offset in the segment |
//! | 48..56 | sequence number of the chunk in its stream and incarnation, from 0 |
//! | 56..60 | payload length |
//! | 60..64 | number of blocks |
//! | 64..72 | first (least) LSN in the chunk; 0 in a chunk without records |
//! | 72..80 | last (largest) LSN in the chunk; 0 in a chunk without records |
//! | 80..88 | `complete_below`: every record of this stream with a smaller LSN is in this chunk or before it |
//! | 88..96 | `durable_lsn` of the whole log when the chunk was written |
//! | 96..104 | `max_before`: largest LSN in any earlier chunk of this stream and incarnation |
//! | 104..128 | zero |
//!
//! The payload is a row of blocks, one per worker that had something to say: worker, number of records, first
//! LSN, bytes (four varints), then the [records](crate::record). In version 2, of a log whose records tell
//! [what they rest on](crate::commit_point), a fifth varint before the bytes is what the worker rested on
//! before the block's first record. Version 3 is version 1, and 4 is version 2, with [voids](crate::void):
//! before the bytes of records, and behind their length, stand those of the block's voids. The least and the
//! largest LSN of a chunk are those of its records and voids.
//!
//! - **CHUNK-1** A header counts only at the very place (database, incarnation, stream, segment, offset) that
//!   it names, so a chunk left in a recycled segment never passes for a new one (W6).
//! - **CHUNK-2** Chunk *n + 1* of a stream is written only after the write of chunk *n* returned durable. In
//!   a log that is synced at intervals this holds from segment to segment only; within one, a power loss may
//!   leave a later chunk without an earlier one. The log then ends before the missing one, and no header
//!   claims that it was durable: headers tell what is synced.

use azekura_base::checksum::crc32c;
use azekura_base::varint;

use crate::record::Cursor;
use crate::void::{self, VoidCursor};
use crate::worker_buffer::Batch;

/// Chunks start at, and are padded to, multiples of this.
pub const UNIT_BYTES: usize = 4096;
/// Size of a header.
pub const HEADER_BYTES: usize = 128;
/// Version of the format of chunks, blocks and records.
pub const FORMAT_VERSION: u32 = 1;
/// Added to the version of a chunk whose records tell what they rest on.
pub const RESTING: u32 = 1;
/// Added to the version of a chunk with voids.
pub const VOIDS: u32 = 2;
/// The newest version. Each chunk has the one that it needs; this reader reads all.
pub const NEWEST_VERSION: u32 = FORMAT_VERSION + RESTING + VOIDS;

const MAGIC: u32 = u32::from_le_bytes(*b"AzWL");
/// Most bytes that a block adds to its records and voids; and the last void, which comes into a buffer that
/// may be full.
const MAX_BLOCK_OVERHEAD: usize = 60 + void::MAX_BYTES;

/// Where a chunk is, or claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The database.
    pub database_id: u64,
    /// The stream.
    pub stream: u32,
    /// The segment's sequence number.
    pub segment: u64,
    /// Byte offset in the segment.
    pub offset: u64,
}

/// What a chunk says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Where it is.
    pub place: Place,
    /// Whether its records tell what they rest on, by the format's version.
    pub tells_rests: bool,
    /// Whether its blocks tell voids, by the same.
    pub tells_voids: bool,
    /// The opening of the database that wrote it.
    pub incarnation: u32,
    /// Its number in the stream and incarnation.
    pub number: u64,
    /// Bytes of payload.
    pub payload_bytes: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Least LSN, or 0.
    pub first_lsn: u64,
    /// Largest LSN, of a record or void, or 0.
    pub last_lsn: u64,
    /// Every record of the stream below is here or earlier.
    pub complete_below: u64,
    /// The log's durable horizon at the time of writing.
    pub durable_lsn: u64,
    /// Largest LSN in earlier chunks of the stream and incarnation.
    pub max_before: u64,
}

impl Header {
    /// Bytes that the chunk takes in the file.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u64 {
        (HEADER_BYTES as u64 + self.payload_bytes as u64).next_multiple_of(UNIT_BYTES as u64)
    }

    /// Largest LSN in this and all earlier chunks of the stream and incarnation.
    #[must_use]
    pub fn max_lsn(&self) -> u64 {
        self.max_before.max(self.last_lsn)
    }

    const fn version(&self) -> u32 {
        let rests = if self.tells_rests { RESTING } else { 0 };
        let voids = if self.tells_voids { VOIDS } else { 0 };
        FORMAT_VERSION + rests + voids
    }

    /// The header's bytes, with their checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &self.payload_crc.to_le_bytes());
        put(8, &MAGIC.to_le_bytes());
        put(12, &self.version().to_le_bytes());
        put(16, &self.place.database_id.to_le_bytes());
        put(24, &self.incarnation.to_le_bytes());
        put(28, &self.place.stream.to_le_bytes());
        put(32, &self.place.segment.to_le_bytes());
        put(40, &self.place.offset.to_le_bytes());
        put(48, &self.number.to_le_bytes());
        put(56, &self.payload_bytes.to_le_bytes());
        put(60, &self.blocks.to_le_bytes());
        put(64, &self.first_lsn.to_le_bytes());
        put(72, &self.last_lsn.to_le_bytes());
        put(80, &self.complete_below.to_le_bytes());
        put(88, &self.durable_lsn.to_le_bytes());
        put(96, &self.max_before.to_le_bytes());
        let crc = crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header in `bytes`, if it is one (magic, version and checksum), wherever it belongs.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let version = u32_at(12);
        let is_known = (FORMAT_VERSION..=NEWEST_VERSION).contains(&version);
        if u32_at(8) != MAGIC || !is_known || u32_at(0) != crc32c(&bytes[4..]) {
            return None;
        }
        let place =
            Place { database_id: u64_at(16), stream: u32_at(28), segment: u64_at(32), offset: u64_at(40) };
        Some(Self {
            place,
            tells_rests: (version - FORMAT_VERSION) & RESTING != 0,
            tells_voids: (version - FORMAT_VERSION) & VOIDS != 0,
            incarnation: u32_at(24),
            number: u64_at(48),
            payload_bytes: u32_at(56),
            payload_crc: u32_at(4),
            blocks: u32_at(60),
            first_lsn: u64_at(64),
            last_lsn: u64_at(72),
            complete_below: u64_at(80),
            durable_lsn: u64_at(88),
            max_before: u64_at(96),
        })
    }

    /// The header in `bytes` if it is one and belongs where it was found (CHUNK-1).
    #[must_use]
    pub fn decode_at(bytes: &[u8], place: Place) -> Option<Self> {
        Self::decode(bytes).filter(|header| header.place == place)
    }
}

/// Bytes in the file of a chunk with this much payload.
#[must_use]
pub const fn chunk_bytes(payload_bytes: usize) -> u64 {
    (HEADER_BYTES + payload_bytes).next_multiple_of(UNIT_BYTES) as u64
}

/// Bytes in the file of a chunk that holds one full buffer, at most.
pub(crate) const fn max_chunk_bytes(buffer_bytes: usize) -> u64 {
    chunk_bytes(MAX_BLOCK_OVERHEAD + buffer_bytes)
}

/// Bytes that a block with these records takes in the payload, at most.
pub(crate) const fn max_block_bytes(batch: &Batch) -> usize {
    MAX_BLOCK_OVERHEAD + batch.len() + batch.voids.len()
}

/// Appends what comes before a block's records in the payload, of a chunk with voids or without.
pub(crate) fn put_block_head(out: &mut Vec<u8>, worker: usize, batch: &Batch, tells_voids: bool) {
    debug_assert!(tells_voids || batch.voids.is_empty());
    varint::put_u64(out, worker as u64);
    varint::put_u64(out, batch.records);
    varint::put_u64(out, batch.first_lsn);
    if let Some(rests_on) = batch.rests_on {
        varint::put_u64(out, rests_on);
    }
    if tells_voids {
        varint::put_bytes(out, batch.voids.bytes());
    }
    varint::put_u64(out, batch.len() as u64);
}

/// One worker's records inside a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// The worker.
    pub worker: u64,
    /// Number of records, at least one.
    pub records: u64,
    /// LSN of the first one.
    pub first_lsn: u64,
    /// What the worker rested on before the first one, if records tell.
    pub rests_on: Option<u64>,
    /// Its voids.
    pub voids: VoidCursor<'a>,
    /// The framed records.
    pub bytes: &'a [u8],
}

/// The blocks of a payload, or `None` if anything in it, to the last record, is not as the header and the
/// format say.
#[must_use]
pub fn parse_payload<'a>(header: &Header, payload: &'a [u8]) -> Option<Vec<Block<'a>>> {
    let mut input = payload;
    let mut blocks = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    while !input.is_empty() {
        let worker = varint::take_u64(&mut input)?;
        let records = varint::take_u64(&mut input)?;
        let first_lsn = varint::take_u64(&mut input)?;
        let rests_on = if header.tells_rests { Some(varint::take_u64(&mut input)?) } else { None };
        let voids = if header.tells_voids { varint::take_bytes(&mut input)? } else { &[] };
        let voids = VoidCursor::new(first_lsn, voids);
        let bytes = varint::take_bytes(&mut input)?;
        let block = Block { worker, records, first_lsn, rests_on, voids, bytes };
        first = first.min(first_lsn);
        last = last.max(last_lsn(&block)?);
        blocks.push(block);
    }
    let bounds = if blocks.is_empty() { (0, 0) } else { (first, last) };
    let fits = blocks.len() == header.blocks as usize && bounds == (header.first_lsn, header.last_lsn);
    fits.then_some(blocks)
}

impl Block<'_> {
    /// Before the first record.
    pub(crate) const fn cursor(&self) -> Cursor {
        Cursor { expected: self.first_lsn, rests_on: self.rests_on }
    }
}

/// Walks a block's records and voids: the last LSN, if they are whole, no LSN is both, and the records are as
/// many as the block says.
fn last_lsn(block: &Block<'_>) -> Option<u64> {
    let (mut input, mut cursor, mut count, mut last) = (block.bytes, block.cursor(), 0, None);
    let mut voids = block.voids.clone();
    let (mut void, mut last_void) = (voids.next(), 0);
    while !input.is_empty() {
        let (lsn, _) = cursor.take(&mut input)?;
        if last.is_none() && lsn != block.first_lsn {
            return None;
        }
        while let Some(passed) = void.filter(|void| void.first <= lsn) {
            if passed.last >= lsn {
                return None;
            }
            void = voids.next();
        }
        last = Some(lsn);
        count += 1;
    }
    while let Some(above) = void {
        last_void = above.last;
        void = voids.next();
    }
    last.filter(|_| count == block.records && voids.is_at_end()).map(|last| last.max(last_void))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;
    use crate::void::Void;

    fn header() -> Header {
        Header {
            place: Place { database_id: 7, stream: 1, segment: 3, offset: 8192 },
            tells_rests: false,
            tells_voids: false,
            incarnation: 2,
            number: 9,
            payload_bytes: 4000,
            payload_crc: 5,
            blocks: 2,
            first_lsn: 100,
            last_lsn: 140,
            complete_below: 139,
            durable_lsn: 98,
            max_before: 99,
        }
    }

    fn batch(first_lsn: u64, bodies: &[&[u8]]) -> Batch {
        let mut batch = Batch { first_lsn, ..Batch::default() };
        for body in bodies {
            record::put(&mut batch.bytes, first_lsn + batch.records, first_lsn + batch.records, body);
            batch.last_lsn = first_lsn + batch.records;
            batch.records += 1;
        }
        batch
    }

    fn put_block(out: &mut Vec<u8>, worker: usize, batch: &Batch) {
        put_block_head(out, worker, batch, !batch.voids.is_empty());
        out.extend_from_slice(&batch.bytes);
    }

    #[test]
    fn a_header_counts_only_where_it_says_it_is() {
        let bytes = header().encode();
        assert_eq!(Header::decode_at(&bytes, header().place), Some(header()));
        assert_eq!(header().chunk_bytes(), 8192);
        for place in [
            Place { database_id: 8, ..header().place },
            Place { stream: 0, ..header().place },
            Place { segment: 4, ..header().place },
            Place { offset: 4096, ..header().place },
        ] {
            assert_eq!(Header::decode_at(&bytes, place), None);
        }
    }

    #[test]
    fn any_changed_bit_of_a_header_is_noticed() {
        for bit in 0..HEADER_BYTES * 8 {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The payload's checksum (bytes 4..8) is covered by the header's like everything else.
            assert_eq!(Header::decode(&bytes), None, "bit {bit}");
        }
        assert_eq!(Header::decode(&header().encode()[..127]), None);
    }

    #[test]
    fn a_payload_is_taken_whole_or_not_at_all() {
        let mut payload = Vec::new();
        put_block(&mut payload, 0, &batch(100, &[b"one", b"two"]));
        put_block(&mut payload, 5, &batch(102, &[b"three"]));
        let fits = Header { first_lsn: 100, last_lsn: 102, ..header() };
        let blocks = parse_payload(&fits, &payload).expect("fits");
        assert_eq!((blocks.len(), blocks[1].worker, blocks[1].first_lsn), (2, 5, 102));
        assert_eq!(parse_payload(&Header { last_lsn: 103, ..fits }, &payload), None);
        assert_eq!(parse_payload(&Header { blocks: 1, ..fits }, &payload), None);
        assert_eq!(parse_payload(&fits, &payload[..payload.len() - 1]), None);
    }

    #[test]
    fn a_payload_whose_records_tell_what_they_rest_on_is_read_by_its_version_only() {
        let mut batch =
            Batch { first_lsn: 100, last_lsn: 101, records: 2, rests_on: Some(90), ..Batch::default() };
        record::put_resting(&mut batch.bytes, 100, 100, 0, b"one");
        record::put_resting(&mut batch.bytes, 101, 101, 8, b"two");
        let mut payload = Vec::new();
        put_block(&mut payload, 3, &batch);
        let plain = Header { blocks: 1, first_lsn: 100, last_lsn: 101, ..header() };
        let resting = Header { tells_rests: true, ..plain };
        let blocks = parse_payload(&resting, &payload).expect("fits");
        assert_eq!((blocks[0].worker, blocks[0].rests_on), (3, Some(90)));
        assert_eq!(parse_payload(&plain, &payload), None);
        assert_eq!(Header::decode(&resting.encode()), Some(resting));
        assert_eq!(Header::decode(&plain.encode()), Some(plain));
    }

    #[test]
    fn voids_are_read_by_their_version_only_and_never_where_a_record_is() {
        let mut batch = batch(100, &[b"one", b"two"]);
        let without = {
            let mut payload = Vec::new();
            put_block(&mut payload, 3, &batch);
            payload
        };
        batch.voids.push(100, Void { first: 102, last: 109 });
        let mut payload = Vec::new();
        put_block(&mut payload, 3, &batch);
        let plain = Header { blocks: 1, first_lsn: 100, last_lsn: 101, ..header() };
        let ranged = Header { tells_voids: true, last_lsn: 109, ..plain };
        let blocks = parse_payload(&ranged, &payload).expect("fits");
        assert_eq!(blocks[0].voids.clone().collect::<Vec<_>>(), [Void { first: 102, last: 109 }]);
        assert_eq!(parse_payload(&plain, &payload), None);
        assert_eq!(parse_payload(&Header { last_lsn: 101, ..ranged }, &payload), None, "the void counts");
        assert!(parse_payload(&plain, &without).is_some() && parse_payload(&ranged, &without).is_none());
        for (first, last) in [(101, 101), (101, 105)] {
            let mut batch = self::batch(100, &[b"one", b"two"]);
            batch.voids.push(100, Void { first, last });
            let mut payload = Vec::new();
            put_block(&mut payload, 3, &batch);
            let header = Header { last_lsn: last, ..ranged };
            assert_eq!(parse_payload(&header, &payload), None, "101 is a record");
        }
        for header in [plain, ranged, Header { tells_rests: true, ..ranged }] {
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
    }

    #[test]
    fn voids_that_are_cut_off_make_the_payload_unreadable() {
        let mut batch = batch(100, &[b"one"]);
        batch.voids.push(100, Void { first: 500, last: 600 });
        let mut payload = Vec::new();
        put_block(&mut payload, 3, &batch);
        let header = Header { blocks: 1, first_lsn: 100, last_lsn: 600, tells_voids: true, ..header() };
        assert!(parse_payload(&header, &payload).is_some());
        // worker, records, first LSN, length of the voids, then the voids.
        assert_eq!(payload[3], 3, "two bytes to skip 399, one for the count less one");
        for changed in [0x80, 0xff] {
            let mut broken = payload.clone();
            broken[6] |= changed;
            assert_eq!(parse_payload(&header, &broken), None);
        }
    }
}
