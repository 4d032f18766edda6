//! Messages between the gateway node and the owner of the keys. They are sent inside the frames of the nodes,
//! so they are complete and come from a member.

use std::ops::Bound;

use azekura_fatbtree::Key;
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::watched::Watched;
use crate::error::CommandError;
use crate::keyspace::KeyRange;
use crate::resp::Protocol;

/// Bytes that are encoded as one byte string, not one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taken;
        impl Visitor<'_> for Taken {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Taken)
    }
}

/// A call to the owner of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Commands, each with its arguments, in one transaction. The answer is [`Replies`], or none if a watched
    /// key has changed.
    Commands {
        /// The protocol version of the replies.
        is_resp3: bool,
        /// `true`: a refused command does not undo the other commands, as in `EXEC`. `false`: it undoes all.
        is_queue: bool,
        commands: Vec<Vec<Bytes>>,
        /// Keys that must be unchanged. Otherwise no command runs.
        watched: Watched,
    },
    /// Digest of the target's key; the answer is a [`Fingerprint`](super::watched::Fingerprint).
    Look,
    /// A step of a walk inside one leaf; the answer is a [`Step`].
    Walk(Walk),
    /// The prefix of `SCAN` cursors that the called node has assigned this number; the answer is an
    /// `Option<Bytes>`.
    CursorPrefix(u64),
    /// A command with watched keys, outside of a queue. It runs in any case. The answer is its encoded reply,
    /// and `true` if the watched keys had their digests before and after the command.
    Watching { is_resp3: bool, command: Vec<Bytes>, watched: Watched },
}

/// Operation on the keys of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum With {
    /// Count the keys.
    Count,
    /// Return the keys.
    Keys,
    /// Return the keys and their values.
    Rows,
    /// Remove the keys.
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Walk {
    pub(crate) with: With,
    pub(crate) lower: Bound<Bytes>,
    pub(crate) upper: Bound<Bytes>,
    pub(crate) is_backward: bool,
    /// Pattern that the keys must match.
    pub(crate) pattern: Option<Bytes>,
    /// Bound of counted, returned or removed keys.
    pub(crate) most_found: u64,
    /// Bound of visited keys.
    pub(crate) most_looked: u64,
    /// Bound of returned bytes; at least one row is returned.
    pub(crate) most_bytes: u64,
}

impl Walk {
    pub(crate) fn range(&self) -> KeyRange {
        let bound = |bound: &Bound<Bytes>| bound.as_ref().map(|bytes| bytes.0.clone());
        KeyRange { lower: bound(&self.lower), upper: bound(&self.upper) }
    }
}

/// Encoded replies, as they are sent to the client.
pub(crate) type Replies = Vec<Bytes>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Keys, or alternating keys and values.
    pub(crate) found: Vec<Bytes>,
    pub(crate) count: u64,
    pub(crate) looked: u64,
    /// The last visited key, if the leaf has more keys of the range.
    pub(crate) stopped_at: Option<Bytes>,
}

pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain data, and memory takes any")
}

/// Decodes a message of another node.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, CommandError> {
    postcard::from_bytes(bytes).map_err(|_| {
        CommandError::Unknown("another node speaks another version; upgrade the older one".into())
    })
}

/// Returns the arguments of a request in the form of a message.
pub(crate) fn arguments<'a>(request: impl Iterator<Item = &'a [u8]>) -> Vec<Bytes> {
    request.map(|argument| Bytes(argument.to_vec())).collect()
}

pub(crate) const fn protocol(is_resp3: bool) -> Protocol {
    if is_resp3 { Protocol::Resp3 } else { Protocol::Resp2 }
}

/// Returns the intersection of the range of a walk and a leaf; `None` if the intersection is empty.
pub(crate) fn clip(range: KeyRange, leaf: &azekura_fatbtree::KeyRange) -> Option<KeyRange> {
    let is_above = |key: &Key, bound: &Bound<Key>| match bound {
        Bound::Unbounded => true,
        Bound::Included(other) | Bound::Excluded(other) => key > other,
    };
    let is_below = |key: &Key, bound: &Bound<Key>| match bound {
        Bound::Unbounded => true,
        Bound::Included(other) | Bound::Excluded(other) => key <= other,
    };
    let KeyRange { mut lower, mut upper } = range;
    if is_above(&leaf.low, &lower) {
        lower = Bound::Included(leaf.low.clone());
    }
    if let Some(high) = &leaf.high
        && is_below(high, &upper)
    {
        upper = Bound::Excluded(high.clone());
    }
    let is_empty = match (&lower, &upper) {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        _ => false,
    };
    (!is_empty).then_some(KeyRange { lower, upper })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        vec![byte]
    }

    #[test]
    fn messages_round_trip_and_invalid_bytes_are_refused() {
        let walk = Walk {
            with: With::Rows,
            lower: Bound::Excluded(Bytes(key(1))),
            upper: Bound::Unbounded,
            is_backward: true,
            pattern: Some(Bytes(b"a*".to_vec())),
            most_found: 3,
            most_looked: 9,
            most_bytes: 1 << 40,
        };
        let commands = vec![arguments([&b"GET"[..], b"", &[0; 300]].into_iter())];
        let watched = vec![(Bytes(key(1)), None), (Bytes(key(2)), Some(Bytes(vec![7; 32])))];
        let command = commands[0].clone();
        let watching = Call::Watching { is_resp3: false, command, watched: watched.clone() };
        let commands = Call::Commands { is_resp3: true, is_queue: false, commands, watched };
        for call in [Call::Walk(walk), commands, Call::CursorPrefix(1 << 29), watching] {
            let bytes = encode(&call);
            assert_eq!(decode::<Call>(&bytes).expect("whole"), call);
            assert!(decode::<Call>(&bytes[..bytes.len() - 1]).is_err());
        }
        assert!(decode::<Call>(&[9, 9, 9]).is_err());
    }

    #[test]
    fn a_walk_in_a_leaf_stays_in_both() {
        let leaf = azekura_fatbtree::KeyRange::new(*b"d", Some(b"m"));
        let of = |lower, upper| clip(KeyRange { lower, upper }, &leaf);
        let whole = KeyRange { lower: Bound::Included(key(b'd')), upper: Bound::Excluded(key(b'm')) };
        assert_eq!(of(Bound::Unbounded, Bound::Unbounded), Some(whole.clone()));
        assert_eq!(of(Bound::Included(key(b'a')), Bound::Included(key(b'm'))), Some(whole));
        let inside = KeyRange { lower: Bound::Excluded(key(b'd')), upper: Bound::Included(key(b'f')) };
        assert_eq!(of(inside.lower.clone(), inside.upper.clone()), Some(inside));
        assert_eq!(of(Bound::Included(key(b'm')), Bound::Unbounded), None);
        assert_eq!(of(Bound::Unbounded, Bound::Excluded(key(b'd'))), None);
        assert_eq!(of(Bound::Excluded(key(b'e')), Bound::Excluded(key(b'e'))), None);
        let one = of(Bound::Included(key(b'e')), Bound::Included(key(b'e')));
        assert!(one.is_some());
    }
}
