//! The chunk: one checksummed write, and its header (paper section 3.1.2, hazards W5 and W6).
//!
//! A chunk starts at a multiple of 4 KiB, is padded with zeroes to a multiple of 4 KiB, and is never
//! rewritten in place. Its header is little-endian:
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
//! | 80..88 | `complete_below`: all records of this stream below this LSN are in this chunk or before it |
//! | 88..96 | `durable_lsn` of the whole log when the chunk was written |
//! | 96..104 | `max_before`: largest LSN in any earlier chunk of this stream and incarnation |
//! | 104..128 | zero |
//!
//! The payload is a sequence of blocks, one per log buffer with records. A block starts with three varints:
//! log buffer, number of records, first LSN. Its [LSN gaps](crate::lsn_gap) and its [records](crate::record)
//! follow, both preceded by their length in bytes (a varint). The least and the largest LSN of a chunk are
//! those of its records and gaps. In an encrypted log the payload is encrypted, with the cipher's trailer at
//! its end; the header without its checksums is the associated data.
//!
//! - **CHUNK-1** A header is valid only at the place (database, incarnation, stream, segment, offset) that it
//!   states, so a stale chunk in a recycled segment is never taken for a new one (W6).
//! - **CHUNK-2** Chunk *n + 1* of a stream is written only after chunk *n* is durable. In a log that is
//!   synced at intervals this holds only from segment to segment. Within a segment, a power loss may keep a
//!   later chunk and lose an earlier one. The log then ends before the missing chunk. No header states that
//!   the missing chunk is durable, because `durable_lsn` covers synced records only.

use azekura_base::checksum::crc32c;
use azekura_base::cipher::{self, Kind, TRAILER_BYTES};
use azekura_base::varint;

use crate::log_buffer::Batch;
use crate::lsn_gap::{self, LsnGapCursor};
use crate::record::Cursor;

/// Unit of a chunk's offset and size, in bytes.
pub const UNIT_BYTES: usize = 4096;
/// Size of a header in bytes.
pub const HEADER_BYTES: usize = 128;
/// Version of the format of chunks, blocks and records. Versions 1 to 4 have other blocks, and are not read.
pub const FORMAT_VERSION: u32 = 5;

const MAGIC: u32 = u32::from_le_bytes(*b"AzWL");
/// Largest number of bytes that a block adds to its records and gaps. Includes the last gap, which may be
/// added to a full buffer.
const MAX_BLOCK_OVERHEAD: usize = 60 + lsn_gap::MAX_BYTES;
/// Size in bytes of the part of a header that is the associated data of the encrypted payload: all except the
/// checksums.
const PLACE_BYTES: usize = HEADER_BYTES - 8;

/// The place at which a chunk was found, or which its header states.
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

/// The fields of a chunk's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The chunk's place.
    pub place: Place,
    /// The incarnation that wrote the chunk.
    pub incarnation: u32,
    /// Sequence number of the chunk in its stream and incarnation.
    pub number: u64,
    /// Bytes of payload.
    pub payload_bytes: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Least LSN of the chunk; 0 without records.
    pub first_lsn: u64,
    /// Largest LSN of the chunk's records and gaps; 0 without records.
    pub last_lsn: u64,
    /// LSN below which all records of the stream are in this chunk or in an earlier one.
    pub complete_below: u64,
    /// The log's durable horizon at the time of writing.
    pub durable_lsn: u64,
    /// Largest LSN in earlier chunks of the stream and incarnation.
    pub max_before: u64,
}

impl Header {
    /// Returns the size of the chunk in the file, in bytes.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u64 {
        (HEADER_BYTES as u64 + self.payload_bytes as u64).next_multiple_of(UNIT_BYTES as u64)
    }

    /// Returns the largest LSN in this and all earlier chunks of the stream and incarnation.
    #[must_use]
    pub fn max_lsn(&self) -> u64 {
        self.max_before.max(self.last_lsn)
    }

    /// Returns the encoded header, with its checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &self.payload_crc.to_le_bytes());
        put(8, &MAGIC.to_le_bytes());
        put(12, &FORMAT_VERSION.to_le_bytes());
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

    /// Returns the header in `bytes` if its magic, version and checksum are right, regardless of its place.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if u32_at(8) != MAGIC || u32_at(12) != FORMAT_VERSION || u32_at(0) != crc32c(&bytes[4..]) {
            return None;
        }
        let place =
            Place { database_id: u64_at(16), stream: u32_at(28), segment: u64_at(32), offset: u64_at(40) };
        Some(Self {
            place,
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

    /// Returns the header in `bytes` if it is valid and states this place (CHUNK-1).
    #[must_use]
    pub fn decode_at(bytes: &[u8], place: Place) -> Option<Self> {
        Self::decode(bytes).filter(|header| header.place == place)
    }
}

/// Returns the associated data of an encrypted payload, which binds the payload to the chunk with this
/// header.
pub(crate) fn associated(header: &[u8; HEADER_BYTES]) -> [u8; 1 + PLACE_BYTES] {
    cipher::associated(Kind::Chunk, &header[8..])
}

/// Returns the size in the file, in bytes, of a chunk with a payload of this size.
#[must_use]
pub const fn chunk_bytes(payload_bytes: usize) -> u64 {
    (HEADER_BYTES + payload_bytes).next_multiple_of(UNIT_BYTES) as u64
}

/// Returns the largest size in the file, in bytes, of a chunk with one full buffer.
pub(crate) const fn max_chunk_bytes(buffer_bytes: usize) -> u64 {
    chunk_bytes(MAX_BLOCK_OVERHEAD + buffer_bytes + TRAILER_BYTES)
}

/// Returns the largest size in the payload, in bytes, of a block with these records.
pub(crate) const fn max_block_bytes(batch: &Batch) -> usize {
    MAX_BLOCK_OVERHEAD + batch.len() + batch.gaps.len()
}

/// Appends the part of a block before its records.
pub(crate) fn put_block_head(out: &mut Vec<u8>, log_buffer: usize, batch: &Batch) {
    varint::put_u64(out, log_buffer as u64);
    varint::put_u64(out, batch.records);
    varint::put_u64(out, batch.first_lsn);
    varint::put_bytes(out, batch.gaps.bytes());
    varint::put_u64(out, batch.len() as u64);
}

/// The records of one log buffer in a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// Number of the log buffer.
    pub log_buffer: u64,
    /// Number of records, at least one.
    pub records: u64,
    /// LSN of the first record.
    pub first_lsn: u64,
    /// The block's gaps.
    pub gaps: LsnGapCursor<'a>,
    /// The framed records.
    pub bytes: &'a [u8],
}

/// Returns the blocks of a payload, or `None` if any of them, down to the last record, contradicts the header
/// or the format.
#[must_use]
pub fn parse_payload<'a>(header: &Header, payload: &'a [u8]) -> Option<Vec<Block<'a>>> {
    let mut input = payload;
    let mut blocks = Vec::new();
    let (mut first, mut last) = (u64::MAX, 0);
    while !input.is_empty() {
        let log_buffer = varint::take_u64(&mut input)?;
        let records = varint::take_u64(&mut input)?;
        let first_lsn = varint::take_u64(&mut input)?;
        let gaps = LsnGapCursor::new(first_lsn, varint::take_bytes(&mut input)?);
        let bytes = varint::take_bytes(&mut input)?;
        let block = Block { log_buffer, records, first_lsn, gaps, bytes };
        first = first.min(first_lsn);
        last = last.max(last_lsn(&block)?);
        blocks.push(block);
    }
    let bounds = if blocks.is_empty() { (0, 0) } else { (first, last) };
    let fits = blocks.len() == header.blocks as usize && bounds == (header.first_lsn, header.last_lsn);
    fits.then_some(blocks)
}

impl Block<'_> {
    /// Returns a cursor before the first record.
    pub(crate) const fn cursor(&self) -> Cursor {
        Cursor { expected: self.first_lsn }
    }
}

/// Walks a block's records and gaps. Returns the largest LSN if all are complete, no LSN is in both, and the
/// block states the right number of records.
fn last_lsn(block: &Block<'_>) -> Option<u64> {
    let (mut input, mut cursor, mut count, mut last) = (block.bytes, block.cursor(), 0, None);
    let mut gaps = block.gaps.clone();
    let (mut gap, mut last_gap) = (gaps.next(), 0);
    while !input.is_empty() {
        let (lsn, _) = cursor.take(&mut input)?;
        if last.is_none() && lsn != block.first_lsn {
            return None;
        }
        while let Some(passed) = gap.filter(|gap| gap.first <= lsn) {
            if passed.last >= lsn {
                return None;
            }
            gap = gaps.next();
        }
        last = Some(lsn);
        count += 1;
    }
    while let Some(above) = gap {
        last_gap = above.last;
        gap = gaps.next();
    }
    last.filter(|_| count == block.records && gaps.is_at_end()).map(|last| last.max(last_gap))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lsn_gap::LsnGap;
    use crate::record;

    fn header() -> Header {
        Header {
            place: Place { database_id: 7, stream: 1, segment: 3, offset: 8192 },
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

    fn put_block(out: &mut Vec<u8>, log_buffer: usize, batch: &Batch) {
        put_block_head(out, log_buffer, batch);
        out.extend_from_slice(&batch.bytes);
    }

    #[test]
    fn a_header_is_valid_only_at_its_own_position() {
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
            // The header's checksum covers the payload's checksum (bytes 4..8) too.
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
        assert_eq!((blocks.len(), blocks[1].log_buffer, blocks[1].first_lsn), (2, 5, 102));
        assert_eq!(parse_payload(&Header { last_lsn: 103, ..fits }, &payload), None);
        assert_eq!(parse_payload(&Header { blocks: 1, ..fits }, &payload), None);
        assert_eq!(parse_payload(&fits, &payload[..payload.len() - 1]), None);
    }

    #[test]
    fn a_gap_is_read_and_never_where_a_record_is() {
        let mut batch = batch(100, &[b"one", b"two"]);
        batch.gaps.push(100, LsnGap { first: 102, last: 109 });
        let mut payload = Vec::new();
        put_block(&mut payload, 3, &batch);
        let ranged = Header { blocks: 1, first_lsn: 100, last_lsn: 109, ..header() };
        let blocks = parse_payload(&ranged, &payload).expect("fits");
        assert_eq!(blocks[0].gaps.clone().collect::<Vec<_>>(), [LsnGap { first: 102, last: 109 }]);
        assert_eq!(parse_payload(&Header { last_lsn: 101, ..ranged }, &payload), None, "the void counts");
        for (first, last) in [(101, 101), (101, 105)] {
            let mut batch = self::batch(100, &[b"one", b"two"]);
            batch.gaps.push(100, LsnGap { first, last });
            let mut payload = Vec::new();
            put_block(&mut payload, 3, &batch);
            let header = Header { last_lsn: last, ..ranged };
            assert_eq!(parse_payload(&header, &payload), None, "101 is a record");
        }
        assert_eq!(Header::decode(&ranged.encode()), Some(ranged));
    }

    #[test]
    fn voids_that_are_cut_off_make_the_payload_unreadable() {
        let mut batch = batch(100, &[b"one"]);
        batch.gaps.push(100, LsnGap { first: 500, last: 600 });
        let mut payload = Vec::new();
        put_block(&mut payload, 3, &batch);
        let header = Header { blocks: 1, first_lsn: 100, last_lsn: 600, ..header() };
        assert!(parse_payload(&header, &payload).is_some());
        // log buffer, records, first LSN, length of the gaps, then the gaps.
        assert_eq!(payload[3], 3, "two bytes to skip 399, one for the count less one");
        for changed in [0x80, 0xff] {
            let mut broken = payload.clone();
            broken[6] |= changed;
            assert_eq!(parse_payload(&header, &broken), None);
        }
    }
}
