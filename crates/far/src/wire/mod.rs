//! The protocol between clients and memory servers, over any byte stream.
//!
//! 1. [`auth`]: a handshake of fixed-size messages. Until it succeeds, nothing else of an unauthenticated
//!    client is read.
//! 2. Frames: a header of 48 bytes, then `length` bytes of payload.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version ([`VERSION`]) |
//! | 1 | [`Kind`] |
//! | 2..4 | zero |
//! | 4..8 | length of the payload, at most [`MAX_PAYLOAD`] |
//! | 8..16 | tag: a reply carries its request's |
//! | 16..24 | page number |
//! | 24..40 | [`Digest`] of the payload; of a run of pages, of their digests ([`Digest::of_run`]) |
//! | 40..44 | how many pages beyond that one are meant |
//! | 44..48 | CRC-32C of bytes 0..44 |
//!
//! Numbers are little-endian. Requests may be sent without waiting; a server answers them in order. `Put` and
//! `Get` may mean a *run*: pages that follow one another, at most [`MAX_PAYLOAD`] of bytes together; one
//! request and one answer for all of them.
//!
//! | request | payload | answer |
//! |---|---|---|
//! | `Open` | [`Open`] | `Opened` with [`Opened`], or `Refused` |
//! | `Resume` | [`Handshake::proof`](auth::Handshake::proof) | as to `Open`; continues a session |
//! | `Put` | a run | `Stored`: how many of its first pages are held now; or `Refused` (no memory for any) |
//! | `Get` | – | `Page`: the run and the digest of its pages' digests; or `Missing`, if one is missing |
//! | `Free` | – | none |
//! | `Ping` | – | `Pong` |
//! | `Reserve` (bytes as page) | – | `Reserved`: the session can hold so many bytes; or `Refused` |
//! | `Bye` | – | none: the session has ended, and need not be kept |

pub mod auth;

use crate::digest::Digest;
use azekura_base::checksum::crc32c;
use std::io::{self, IoSlice, Write};

/// Of handshake and frames. Another one is refused.
pub const VERSION: u8 = 5;
/// Bytes of a frame's header.
pub const HEADER: usize = 48;
/// The largest page, and the largest run of smaller ones.
pub const MAX_PAYLOAD: u32 = 2 << 20;
/// Pages beyond the first that a run can have: of the smallest ones.
const MOST_MORE: u32 = MAX_PAYLOAD / 4096 - 1;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Client: begins a session.
    Open = 1,
    /// Client: hold this page.
    Put = 2,
    /// Client: give this page back.
    Get = 3,
    /// Client: forget this page.
    Free = 4,
    /// Client: are you there?
    Ping = 5,
    /// Client: goes on with a session.
    Resume = 6,
    /// Client: the session has ended.
    Bye = 7,
    /// Client: reserve memory for so many bytes in all.
    Reserve = 8,
    /// Server: the session has begun.
    Opened = 65,
    /// Server: the page is held.
    Stored = 66,
    /// Server: the page.
    Page = 67,
    /// Server: no such page.
    Missing = 68,
    /// Server: yes.
    Pong = 69,
    /// Server: refused; the payload is the reason, as text.
    Refused = 70,
    /// Server: the room is promised.
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

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of the frame.
    pub kind: Kind,
    /// Bytes of payload that follow.
    pub length: u32,
    /// The request that is answered.
    pub tag: u64,
    /// The page that is meant, the first of a run.
    pub page: u64,
    /// Pages beyond it.
    pub more: u32,
    /// Of the payload.
    pub digest: Digest,
}

/// The reason that bytes are no frame. The stream is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The header's checksum does not fit it.
    #[error("frame header: checksum {found:#010x}, the bytes give {computed:#010x}")]
    Checksum {
        /// Checksum in the frame.
        found: u32,
        /// Checksum of its bytes.
        computed: u32,
    },
    /// Another version.
    #[error("frame of protocol version {0}, this program has {VERSION}")]
    Version(u8),
    /// No such kind of frame.
    #[error("unknown kind of frame: {0}")]
    Kind(u8),
    /// Longer than any page or run.
    #[error("a frame has {0} bytes; the limit is {MAX_PAYLOAD}")]
    Length(u32),
    /// More pages than a run can have.
    #[error("a run has {0} pages after its first; the limit is {MOST_MORE}")]
    Run(u32),
    /// Bytes that must be zero are not.
    #[error("reserved bytes of a frame header are not zero")]
    Reserved,
    /// The payload does not match the header.
    #[error("payload of frame {tag} (page {page}) differs from its digest")]
    Digest {
        /// The frame's tag.
        tag: u64,
        /// The frame's page.
        page: u64,
    },
    /// A payload of this kind has another size.
    #[error("a payload of {0} bytes does not fit its kind of frame")]
    Payload(usize),
}

impl Header {
    /// A frame without payload.
    #[must_use]
    pub fn bare(kind: Kind, tag: u64, page: u64) -> Self {
        Self { kind, length: 0, tag, page, more: 0, digest: Digest::default() }
    }

    /// A frame with this payload.
    ///
    /// # Panics
    ///
    /// If the payload is longer than [`MAX_PAYLOAD`].
    #[must_use]
    pub fn with(kind: Kind, tag: u64, page: u64, payload: &[u8]) -> Self {
        assert!(payload.len() <= MAX_PAYLOAD as usize);
        #[expect(clippy::cast_possible_truncation, reason = "just asserted")]
        let length = payload.len() as u32;
        Self { kind, length, tag, page, more: 0, digest: Digest::of(payload) }
    }

    /// As bytes.
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

    /// From bytes that came over a network.
    ///
    /// # Errors
    ///
    /// [`WireError`]: the bytes are no header, so the next frame cannot be found.
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

    /// Checks that this is the payload that the header announced.
    ///
    /// # Errors
    ///
    /// [`WireError::Digest`].
    pub fn check(&self, payload: &[u8]) -> Result<(), WireError> {
        if payload.is_empty() && self.length == 0 { Ok(()) } else { self.check_run([Digest::of(payload)]) }
    }

    /// Checks that these are the digests of the run that the header announced.
    pub(crate) fn check_run(&self, pages: impl IntoIterator<Item = Digest>) -> Result<(), WireError> {
        if Digest::of_run(pages) == self.digest {
            return Ok(());
        }
        Err(WireError::Digest { tag: self.tag, page: self.page })
    }

    /// Sends the frame in one call of the system, or as few as the stream takes.
    pub(crate) fn send(&self, stream: &mut impl Write, payload: &[u8]) -> io::Result<()> {
        self.send_parts(stream, [payload])
    }

    /// The same where the payload lies in several places.
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
        IoSlice::advance_slices(&mut parts, 0); // leaves out what is empty
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

/// Request that begins a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// Every page of the session has this many bytes.
    pub page_bytes: u32,
    /// Bytes that must be there for this session from now on.
    pub reserve_bytes: u64,
    /// Name of the session that gave the initial pages of this one; 0 for none. A child process begins with
    /// its parent's pages.
    pub like: u128,
}

impl Open {
    /// As a payload.
    #[must_use]
    pub fn encode(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..4].copy_from_slice(&self.page_bytes.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.reserve_bytes.to_le_bytes());
        bytes[12..].copy_from_slice(&self.like.to_le_bytes());
        bytes
    }

    /// From a payload.
    ///
    /// # Errors
    ///
    /// [`WireError::Payload`]: of another size, or pages of a size that cannot be.
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

/// Reply that begins a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Limit of the session in bytes, if the server has the memory.
    pub quota_bytes: u64,
    /// The session's name: 128 random bits, so that no other client can request its pages.
    pub session: u128,
}

impl Opened {
    /// As a payload.
    #[must_use]
    pub fn encode(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.quota_bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.session.to_le_bytes());
        bytes
    }

    /// From a payload.
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
    fn what_a_checksum_lets_through_is_still_judged() {
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
