//! The protocol between clients and memory servers, over any byte stream.
//!
//! 1. [`auth`]: a handshake of fixed-size messages. Until it succeeds, nothing else is read from the client.
//! 2. Frames: a header of 48 bytes, then `length` bytes of payload.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version ([`VERSION`]) |
//! | 1 | [`Kind`] |
//! | 2..4 | zero |
//! | 4..8 | length of the payload, at most [`MAX_PAYLOAD`] |
//! | 8..16 | tag: a reply has the tag of its request |
//! | 16..24 | page number |
//! | 24..40 | [`Digest`] of the payload; for a run, of the digests of its pages ([`Digest::of_run`]) |
//! | 40..44 | number of pages of the run after the first one |
//! | 44..48 | CRC-32C of bytes 0..44 |
//!
//! Numbers are little-endian. A client may send requests without waiting for replies. A server replies in the
//! order of the requests. `Put` and `Get` apply to a *run*: consecutive pages with at most [`MAX_PAYLOAD`]
//! bytes in total. One request and one reply serve all pages of the run.
//!
//! | request | payload | reply |
//! |---|---|---|
//! | `Open` | [`Open`] | `Opened` with [`Opened`], or `Refused` |
//! | `Resume` | [`Handshake::proof`](auth::Handshake::proof) | as for `Open`; the session continues |
//! | `Put` | a run | `Stored`: the number of stored pages, from the first; or `Refused` (no memory) |
//! | `Get` | – | `Page`: the run and the digest of its pages' digests; or `Missing` |
//! | `Free` | – | none |
//! | `Ping` | – | `Pong` |
//! | `Reserve` (bytes in the page field) | – | `Reserved`: the session can store the bytes; or `Refused` |
//! | `Bye` | – | none: the session ends, and its pages are freed |

pub mod auth;

use crate::digest::Digest;
use azekura_base::checksum::crc32c;
use std::io::{self, IoSlice, Write};

/// Version of the handshake and of the frames. Other versions are refused.
pub const VERSION: u8 = 5;
/// Size of a frame's header in bytes.
pub const HEADER: usize = 48;
/// Largest payload in bytes: the largest page, or the largest run of smaller pages.
pub const MAX_PAYLOAD: u32 = 2 << 20;
/// Largest number of pages of a run after the first one, for pages of 4 KiB.
const MOST_MORE: u32 = MAX_PAYLOAD / 4096 - 1;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Client: opens a session.
    Open = 1,
    /// Client: stores a run of pages.
    Put = 2,
    /// Client: requests a run of pages.
    Get = 3,
    /// Client: frees a page.
    Free = 4,
    /// Client: checks that the server replies.
    Ping = 5,
    /// Client: resumes a session.
    Resume = 6,
    /// Client: ends the session.
    Bye = 7,
    /// Client: reserves memory for a total number of bytes.
    Reserve = 8,
    /// Server: the session is open.
    Opened = 65,
    /// Server: the pages are stored.
    Stored = 66,
    /// Server: the requested pages.
    Page = 67,
    /// Server: a requested page is missing.
    Missing = 68,
    /// Server: the reply to a ping.
    Pong = 69,
    /// Server: refused; the payload is the reason, as text.
    Refused = 70,
    /// Server: the memory is reserved.
    Reserved = 71,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        use Kind::*;
        [
            Open, Put, Get, Free, Ping, Resume, Bye, Reserve, Opened, Stored, Page, Missing, Pong, Refused,
            Reserved,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Size of the payload in bytes.
    pub length: u32,
    /// Tag of the request; a reply has the tag of its request.
    pub tag: u64,
    /// Number of the page, or of the first page of a run.
    pub page: u64,
    /// Number of pages of the run after the first one.
    pub more: u32,
    /// Digest of the payload.
    pub digest: Digest,
}

/// Error of decoding bytes that are not a valid frame. The stream cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The header does not match its checksum.
    #[error("frame header: checksum {found:#010x}, the bytes give {computed:#010x}")]
    Checksum {
        /// Checksum in the header.
        found: u32,
        /// Checksum computed from the bytes of the header.
        computed: u32,
    },
    /// The frame has another protocol version.
    #[error("frame of protocol version {0}, this program has {VERSION}")]
    Version(u8),
    /// The kind of the frame is unknown.
    #[error("unknown kind of frame: {0}")]
    Kind(u8),
    /// The payload is longer than any page or run.
    #[error("a frame has {0} bytes; the limit is {MAX_PAYLOAD}")]
    Length(u32),
    /// The run has too many pages.
    #[error("a run has {0} pages after its first; the limit is {MOST_MORE}")]
    Run(u32),
    /// Reserved bytes are not zero.
    #[error("reserved bytes of a frame header are not zero")]
    Reserved,
    /// The payload does not match the digest in the header.
    #[error("payload of frame {tag} (page {page}) differs from its digest")]
    Digest {
        /// Tag of the frame.
        tag: u64,
        /// Page number of the frame.
        page: u64,
    },
    /// The size of the payload is invalid for this kind of frame.
    #[error("a payload of {0} bytes does not fit its kind of frame")]
    Payload(usize),
}

impl Header {
    /// Returns the header of a frame without payload.
    #[must_use]
    pub fn bare(kind: Kind, tag: u64, page: u64) -> Self {
        Self { kind, length: 0, tag, page, more: 0, digest: Digest::default() }
    }

    /// Returns the header of a frame with this payload.
    ///
    /// # Panics
    ///
    /// If the payload is longer than [`MAX_PAYLOAD`].
    #[must_use]
    pub fn with(kind: Kind, tag: u64, page: u64, payload: &[u8]) -> Self {
        assert!(payload.len() <= MAX_PAYLOAD as usize);
        #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
        let length = payload.len() as u32;
        Self { kind, length, tag, page, more: 0, digest: Digest::of(payload) }
    }

    /// Returns the encoded header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = VERSION;
        bytes[1] = self.kind as u8;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.page.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.digest.0.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.more.to_le_bytes());
        let crc = crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header that was received.
    ///
    /// # Errors
    ///
    /// [`WireError`]: the bytes are not a valid header, so the beginning of the next frame is unknown.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, WireError> {
        let (found, computed) = (u32_at(bytes, 44), crc32c(&bytes[..44]));
        if found != computed {
            return Err(WireError::Checksum { found, computed });
        }
        if bytes[0] != VERSION {
            return Err(WireError::Version(bytes[0]));
        }
        let kind = Kind::from_byte(bytes[1]).ok_or(WireError::Kind(bytes[1]))?;
        let length = u32_at(bytes, 4);
        if length > MAX_PAYLOAD {
            return Err(WireError::Length(length));
        }
        if bytes[2..4] != [0; 2] {
            return Err(WireError::Reserved);
        }
        let more = u32_at(bytes, 40);
        if more > MOST_MORE {
            return Err(WireError::Run(more));
        }
        let digest = Digest(u128_at(bytes, 24));
        Ok(Self { kind, length, tag: u64_at(bytes, 8), page: u64_at(bytes, 16), more, digest })
    }

    /// Checks that a payload matches the digest in the header.
    ///
    /// # Errors
    ///
    /// [`WireError::Digest`].
    pub fn check(&self, payload: &[u8]) -> Result<(), WireError> {
        if payload.is_empty() && self.length == 0 { Ok(()) } else { self.check_run([Digest::of(payload)]) }
    }

    /// Checks that the digests of a run match the digest in the header.
    pub(crate) fn check_run(&self, pages: impl IntoIterator<Item = Digest>) -> Result<(), WireError> {
        if Digest::of_run(pages) == self.digest {
            return Ok(());
        }
        Err(WireError::Digest { tag: self.tag, page: self.page })
    }

    /// Sends the frame, if possible in one system call.
    pub(crate) fn send(&self, stream: &mut impl Write, payload: &[u8]) -> io::Result<()> {
        self.send_parts(stream, [payload])
    }

    /// Sends a frame with a payload in several pieces.
    pub(crate) fn send_parts<'p>(
        &self,
        stream: &mut impl Write,
        payload: impl IntoIterator<Item = &'p [u8]>,
    ) -> io::Result<()> {
        let head = self.encode();
        let mut parts = vec![IoSlice::new(&head)];
        for part in payload {
            parts.push(IoSlice::new(part));
        }
        let mut parts = &mut parts[..];
        IoSlice::advance_slices(&mut parts, 0); // skips empty parts
        while !parts.is_empty() {
            match stream.write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Payload of a request that opens a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Page size of the session in bytes.
    pub page_bytes: u32,
    /// Bytes to reserve for this session.
    pub reserve_bytes: u64,
    /// Name of a session from which the new session copies its initial pages; 0 for none. A child process
    /// begins with its parent's pages.
    pub like: u128,
}

impl Open {
    /// Returns the encoded payload.
    #[must_use]
    pub fn encode(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..4].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.reserve_bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.like.to_le_bytes());
        bytes
    }

    /// Decodes a payload.
    ///
    /// # Errors
    ///
    /// [`WireError::Payload`]: the payload has another size, or the page size is invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() != 28 {
            return Err(WireError::Payload(bytes.len()));
        }
        let open =
            Self { page_bytes: u32_at(bytes, 0), reserve_bytes: u64_at(bytes, 4), like: u128_at(bytes, 12) };
        if !open.page_bytes.is_power_of_two() || !(4096..=MAX_PAYLOAD).contains(&open.page_bytes) {
            return Err(WireError::Payload(open.page_bytes as usize));
        }
        Ok(open)
    }
}

/// Payload of the reply that opens a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Largest number of bytes that the session may store, if the server has the memory.
    pub quota_bytes: u64,
    /// Name of the session: 128 random bits, so that no other client can request its pages.
    pub session: u128,
}

impl Opened {
    /// Returns the encoded payload.
    #[must_use]
    pub fn encode(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.quota_bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.session.to_le_bytes());
        bytes
    }

    /// Decodes a payload.
    ///
    /// # Errors
    ///
    /// [`WireError::Payload`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() != 24 {
            return Err(WireError::Payload(bytes.len()));
        }
        Ok(Self { quota_bytes: u64_at(bytes, 0), session: u128_at(bytes, 8) })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    let mut word = [0; 16];
    word.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_and_any_changed_bit_is_refused() {
        let header = Header { more: 7, ..Header::with(Kind::Put, 7, u64::MAX, &[1; 4096]) };
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Ok(header));
        for bit in 0..HEADER * 8 {
            let mut wrong = bytes;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&wrong).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_frame_with_a_valid_checksum_is_still_validated() {
        let judge = |change: &dyn Fn(&mut [u8; HEADER])| {
            let mut bytes = Header::bare(Kind::Get, 1, 2).encode();
            change(&mut bytes);
            let crc = crc32c(&bytes[..44]);
            bytes[44..].copy_from_slice(&crc.to_le_bytes());
            Header::decode(&bytes)
        };
        assert_eq!(judge(&|b| b[0] = 9), Err(WireError::Version(9)));
        assert_eq!(judge(&|b| b[1] = 0), Err(WireError::Kind(0)));
        assert_eq!(judge(&|b| b[7] = 1), Err(WireError::Length(1 << 24)));
        assert_eq!(judge(&|b| b[2] = 1), Err(WireError::Reserved));
        assert_eq!(judge(&|b| b[41] = 2), Err(WireError::Run(512)));
        assert_eq!(Open::decode(&[0; 11]), Err(WireError::Payload(11)));
        assert_eq!(
            Open::decode(&Open { page_bytes: 5000, reserve_bytes: 0, like: 0 }.encode()),
            Err(WireError::Payload(5000))
        );
        assert_eq!(Opened::decode(&[0; 23]), Err(WireError::Payload(23)));
        let opened = Opened { quota_bytes: 5, session: u128::MAX - 7 };
        assert_eq!(Opened::decode(&opened.encode()), Ok(opened));
    }
}
