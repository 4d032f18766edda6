//! The first message of either side of a handshake: its encoding (see the table in
//! [`handshake`](super::handshake)).

use std::io;

use azekura_auth::nonce;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::frame;
use crate::id::PeId;
use crate::membership::ListMark;
use crate::node::Credentials;
use crate::tcp::handshake::HandshakeError;

/// The version of the handshake.
pub const VERSION: u8 = 5;
/// Size of a hello, in bytes.
pub const HELLO_BYTES: usize = 88;
/// Size of the part that is the same in all versions, in bytes: magic and versions.
const COMMON_BYTES: usize = 10;

const MAGIC: [u8; 8] = *b"AZKNODE\n";
const SETTLED: u8 = 1;
const LOSS_ACCEPTED: u8 = 2;

/// Verdict on a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The handshake continues.
    Welcome = 0,
    /// The called node has another version of the protocol.
    Version = 1,
    /// The called node belongs to another cluster.
    Cluster = 2,
    /// The called node is another PE.
    Pe = 3,
    /// The PE is at another epoch.
    Epoch = 4,
    /// The caller is not a member.
    Stranger = 5,
    /// The caller uses another list of members of the same version.
    List = 6,
}

impl Verdict {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Welcome, Self::Version, Self::Cluster, Self::Pe, Self::Epoch, Self::Stranger, Self::List]
            .into_iter()
            .find(|verdict| *verdict as u8 == byte)
    }
}

/// A decoded hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) versions: (u8, u8),
    pub(super) verdict: u8,
    pub(super) epoch: u32,
    pub(super) cluster: u64,
    pub(super) from: PeId,
    pub(super) to: PeId,
    pub(super) store: Credentials,
    pub(super) list: ListMark,
    pub(super) clock_ms: u64,
}

impl Hello {
    pub(super) fn encode(&self) -> io::Result<[u8; HELLO_BYTES]> {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        (bytes[8], bytes[9]) = self.versions;
        bytes[10] = self.verdict;
        let Credentials { birth, is_settled, is_loss_accepted } = self.store;
        bytes[11] = (u8::from(is_settled) * SETTLED) | (u8::from(is_loss_accepted) * LOSS_ACCEPTED);
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.cluster.to_le_bytes());
        bytes[24..26].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[26..28].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[32..64].copy_from_slice(&nonce::<32>()?);
        bytes[28..32].copy_from_slice(&self.list.digest.to_le_bytes());
        bytes[64..72].copy_from_slice(&birth.to_le_bytes());
        bytes[72..80].copy_from_slice(&self.list.version.to_le_bytes());
        bytes[80..].copy_from_slice(&self.clock_ms.to_le_bytes());
        Ok(bytes)
    }

    fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let number = |from: usize, to: usize| {
            bytes[from..to].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        (bytes[..8] == MAGIC).then(|| Self {
            versions: (bytes[8], bytes[9]),
            verdict: bytes[10],
            epoch: number(12, 16) as u32,
            cluster: number(16, 24),
            from: PeId(number(24, 26) as u16),
            to: PeId(number(26, 28) as u16),
            store: Credentials {
                birth: number(64, 72),
                is_settled: bytes[11] & SETTLED != 0,
                is_loss_accepted: bytes[11] & LOSS_ACCEPTED != 0,
            },
            list: ListMark { version: number(72, 80), digest: number(28, 32) as u32 },
            clock_ms: number(80, 88),
        })
    }

    pub(super) fn version_error(&self) -> HandshakeError {
        let (handshake, frames) = self.versions;
        HandshakeError::Version { found: format!("{handshake}.{frames}") }
    }
}

pub(super) const VERSIONS: (u8, u8) = (VERSION, frame::VERSION);
pub(super) async fn read_hello(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<([u8; HELLO_BYTES], Hello), HandshakeError> {
    let mut bytes = [0; HELLO_BYTES];
    // The magic is read first, so that a connection with wrong first bytes is closed at once.
    stream.read_exact(&mut bytes[..8]).await?;
    if bytes[..8] != MAGIC {
        return Err(HandshakeError::Stranger);
    }
    stream.read_exact(&mut bytes[8..COMMON_BYTES]).await?;
    if (bytes[8], bytes[9]) == VERSIONS {
        stream.read_exact(&mut bytes[COMMON_BYTES..]).await?;
    }
    // The rest of a message of another version is not read.
    let hello = Hello::decode(&bytes).ok_or(HandshakeError::Stranger)?;
    Ok((bytes, hello))
}
