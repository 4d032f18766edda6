//! Names of lockable objects, encoded in 64 bits.
//!
//! | bits 63..62 | bits 61..0 | object |
//! |---|---|---|
//! | 0 | hash of tree and key | a key of a tree, and the gap below it |
//! | 1 | tree | the end of a tree, and the gap before it |
//! | 2 | tree | a whole table |
//!
//! Two keys with equal hashes share one lock. This is safe: all requests for either key use the shared lock,
//! so no request is granted that exact names would refuse. It may cause unnecessary waits. With a million
//! locked keys, the chance of one collision is about 1 in 10 million. The hash has a secret seed, so that a
//! client cannot choose colliding keys.

use azekura_base::TreeId;

use crate::mode_bits::Family;

/// A key, or the end of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRef<'a> {
    /// A key, present or not.
    Key(&'a [u8]),
    /// The end of the tree: it has a gap and no record.
    End,
}

/// The name of a lockable object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LockId(pub(crate) u64);

const KIND_SHIFT: u32 = 62;
const END: u64 = 1;
const TABLE: u64 = 2;

/// The name of a lockable object, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockName {
    /// A key; only its hash is stored.
    Key {
        /// 62 bits over tree and key.
        hash: u64,
    },
    /// The end of a tree.
    End(TreeId),
    /// A whole table.
    Table(TreeId),
}

impl LockId {
    pub(crate) const fn table(tree: TreeId) -> Self {
        Self(TABLE << KIND_SHIFT | tree.0 as u64)
    }

    pub(crate) fn key(seed: u64, tree: TreeId, key: KeyRef<'_>) -> Self {
        match key {
            KeyRef::End => Self(END << KIND_SHIFT | u64::from(tree.0)),
            KeyRef::Key(bytes) => Self(hash(seed, tree, bytes) >> (64 - KIND_SHIFT)),
        }
    }

    #[inline]
    pub(crate) const fn family(self) -> Family {
        if self.0 >> KIND_SHIFT == TABLE { Family::Table } else { Family::Key }
    }

    /// Returns a number with all bits mixed, to select stripes, buckets and slots.
    #[inline]
    pub(crate) const fn spread(self) -> u64 {
        let mixed = self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 32
    }

    pub(crate) const fn name(self) -> LockName {
        match self.0 >> KIND_SHIFT {
            END => LockName::End(TreeId(self.0 as u32)),
            TABLE => LockName::Table(TreeId(self.0 as u32)),
            _ => LockName::Key { hash: self.0 },
        }
    }
}

impl std::fmt::Display for LockName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key { hash } => write!(f, "key #{hash:016x}"),
            Self::End(tree) => write!(f, "end of tree {tree}"),
            Self::Table(tree) => write!(f, "table {tree}"),
        }
    }
}

const MIX_A: u64 = 0xD6E8_FEB8_6659_FD93;
const MIX_B: u64 = 0xA076_1D64_78BD_642F;

/// Multiplies to 128 bits and folds the halves: every input bit reaches every output bit.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    wide as u64 ^ (wide >> 64) as u64
}

#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(padded)
}

fn hash(seed: u64, tree: TreeId, key: &[u8]) -> u64 {
    let mut state = fold(seed ^ MIX_A, u64::from(tree.0) ^ MIX_B) ^ key.len() as u64;
    let (words, rest) = key.as_chunks::<8>();
    for chunk in words {
        // The XOR comes before the multiplication and the rotation after it, so that a zero factor does not
        // erase the earlier input.
        let value = u64::from_le_bytes(*chunk);
        state = fold(state ^ value, MIX_A).rotate_left(29) ^ value.wrapping_mul(MIX_B);
    }
    fold(state ^ word(rest), MIX_B ^ seed.rotate_left(32)) ^ fold(state, MIX_A)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn different_things_have_different_names() {
        let mut seen = HashSet::new();
        for tree in (0..4).map(TreeId) {
            assert!(seen.insert(LockId::table(tree)));
            assert!(seen.insert(LockId::key(7, tree, KeyRef::End)));
            assert_eq!(LockId::table(tree).name(), LockName::Table(tree));
            assert_eq!(LockId::key(7, tree, KeyRef::End).name(), LockName::End(tree));
            for n in 0u32..50_000 {
                for key in
                    [&n.to_be_bytes()[..], format!("user{n:012}").as_bytes(), &[0; 40][..n as usize % 40]]
                {
                    let id = LockId::key(7, tree, KeyRef::Key(key));
                    assert!(seen.insert(id) || key.iter().all(|&b| b == 0), "{n}");
                }
            }
        }
    }

    #[test]
    fn neighboring_keys_spread_over_the_stripes() {
        let mut hits = [0u32; 64];
        for n in 0u64..64_000 {
            let id = LockId::key(1, TreeId(1), KeyRef::Key(&n.to_be_bytes()));
            hits[(id.spread() >> 58) as usize] += 1;
        }
        // Expected: 1000, with a standard deviation of 32.
        assert!(hits.iter().all(|&h| (800..1200).contains(&h)), "{hits:?}");
    }
}
