//! The envelope of a message between nodes.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | length of the rest |
//! | 4 | CRC-32C of the rest |
//! | 1 | version of the protocol |
//! | 1 | kind of the body: 1, a [`Message`] |
//! | 2 | the sender's PE |
//! | 4 | the receiver's epoch, as far as the sender knows |
//! | 8 | the cluster |
//! | … | the body |
//!
//! Numbers are little-endian. A frame for another epoch or cluster is refused, never executed.

use crate::error::FrameError;
use crate::id::PeId;
use crate::message::Message;

/// The protocol version of this code.
pub const VERSION: u8 = 10;
/// Maximum length of a frame in bytes, without its length field.
pub const MAX_BYTES: usize = 16 << 20;

const LENGTH_BYTES: usize = 4;
const HEAD_BYTES: usize = 4 + 1 + 1 + 2 + 4 + 8;
const KIND_MESSAGE: u8 = 1;

/// Sender and receiver of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The cluster of both nodes.
    pub cluster: u64,
    /// The sender.
    pub from: PeId,
    /// Epoch of the receiver. The epoch increases when another machine takes over a PE.
    pub epoch: u32,
}

/// Encodes a message as a frame.
///
/// # Panics
///
/// Never, because a message is plain data.
#[must_use]
pub fn encode(address: Address, message: &Message) -> Vec<u8> {
    let mut frame = Vec::with_capacity(128);
    frame.extend([0; LENGTH_BYTES + 4]);
    frame.extend([VERSION, KIND_MESSAGE]);
    frame.extend(address.from.0.to_le_bytes());
    frame.extend(address.epoch.to_le_bytes());
    frame.extend(address.cluster.to_le_bytes());
    let mut frame = postcard::to_extend(message, frame).expect("messages are plain data, memory takes any");
    let (length, rest) = frame.split_at_mut(LENGTH_BYTES);
    length.copy_from_slice(&(rest.len() as u32).to_le_bytes());
    let (sum, body) = rest.split_at_mut(4);
    sum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    frame
}

/// Returns the length of a frame from its first four bytes, without these four.
///
/// # Errors
///
/// [`FrameError::TooLong`] and [`FrameError::TooShort`]: close the connection.
pub const fn length(head: [u8; LENGTH_BYTES]) -> Result<usize, FrameError> {
    let bytes = u32::from_le_bytes(head) as usize;
    match bytes {
        0..HEAD_BYTES => Err(FrameError::TooShort { bytes }),
        HEAD_BYTES..=MAX_BYTES => Ok(bytes),
        _ => Err(FrameError::TooLong { bytes: bytes as u64, most: MAX_BYTES }),
    }
}

/// Decodes the message of a frame. `frame` begins after the length field.
///
/// # Errors
///
/// [`FrameError`]: the frame is not valid.
pub fn decode(frame: &[u8], cluster: u64, epoch: u32) -> Result<(PeId, Message), FrameError> {
    let Some((head, body)) = frame.split_at_checked(HEAD_BYTES) else {
        return Err(FrameError::TooShort { bytes: frame.len() });
    };
    let number = |from: usize, bytes: usize| {
        head[from..from + bytes].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    let (expected, found) = (crc32c::crc32c(&frame[4..]), number(0, 4) as u32);
    if expected != found {
        return Err(FrameError::Checksum { expected, found });
    }
    if head[4] != VERSION || head[5] != KIND_MESSAGE {
        return Err(FrameError::Version { found: head[4], expected: VERSION });
    }
    let found = number(12, 8);
    if found != cluster {
        return Err(FrameError::Cluster { found, expected: cluster });
    }
    let found = number(8, 4) as u32;
    if found != epoch {
        return Err(FrameError::Epoch { found, expected: epoch });
    }
    Ok((PeId(number(6, 2) as u16), postcard::from_bytes(body)?))
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::leaf::MoveId;

    const ADDRESS: Address = Address { cluster: 7, from: PeId(3), epoch: 2 };

    fn some() -> Message {
        Message::Ask { id: MoveId { source: PeId(1), incarnation: 2, number: 3 } }
    }

    #[test]
    fn a_frame_gives_its_message_back() {
        let frame = encode(ADDRESS, &some());
        let bytes = length(frame[..4].try_into().expect("four")).expect("fine");
        assert_eq!(bytes, frame.len() - 4);
        let (from, message) = decode(&frame[4..], 7, 2).expect("fine");
        assert_eq!((from, message), (PeId(3), some()));
    }

    #[test]
    fn frames_for_others_are_refused_by_name() {
        let frame = encode(ADDRESS, &some());
        assert!(matches!(decode(&frame[4..], 8, 2), Err(FrameError::Cluster { found: 7, expected: 8 })));
        assert!(matches!(decode(&frame[4..], 7, 3), Err(FrameError::Epoch { found: 2, expected: 3 })));
        let mut newer = frame;
        newer[8] = VERSION + 1;
        let sum = crc32c::crc32c(&newer[8..]);
        newer[4..8].copy_from_slice(&sum.to_le_bytes());
        let refused = decode(&newer[4..], 7, 2);
        assert!(matches!(refused, Err(FrameError::Version { found, .. }) if found == VERSION + 1));
        assert!(matches!(length(u32::MAX.to_le_bytes()), Err(FrameError::TooLong { .. })));
        assert!(matches!(length([1, 0, 0, 0]), Err(FrameError::TooShort { bytes: 1 })));
    }

    #[test]
    fn mutated_frames_are_refused_and_never_panic() {
        let frame = encode(ADDRESS, &some());
        let mut rng = SmallRng::seed_from_u64(1);
        for _ in 0..20_000 {
            let mut bytes = frame[4..].to_vec();
            for _ in 0..rng.random_range(1..4) {
                let place = rng.random_range(0..bytes.len());
                bytes[place] ^= rng.random_range(1..=255u8);
            }
            bytes.truncate(rng.random_range(0..=bytes.len()));
            let repaired = rng.random_bool(0.5) && bytes.len() > 4;
            if repaired {
                let sum = crc32c::crc32c(&bytes[4..]);
                bytes[..4].copy_from_slice(&sum.to_le_bytes());
            } else {
                assert!(decode(&bytes, 7, 2).is_err());
                continue;
            }
            // With a valid checksum, the body is a message or is refused.
            let _ = decode(&bytes, 7, 2);
        }
    }
}
