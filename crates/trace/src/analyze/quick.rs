//! Hash maps with small integer keys for the inner loops of the analyzer: one multiplication instead of a
//! keyed hash. Keys are numbers of sites, operations and threads, and addresses. A crafted file can only make
//! such a map slow.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map with the hash function of this module.
pub(crate) type QuickMap<K, V> = HashMap<K, V, BuildHasherDefault<Quick>>;

/// The hash function of this module.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        // A 64-bit odd number with well-distributed bits. The hash table uses both ends of the result.
        self.0 = (self.0.rotate_left(23) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, Hash};

    #[test]
    fn keys_like_ours_spread_over_a_table() {
        let hash = |key: &dyn Fn(&mut Quick)| {
            let mut quick = BuildHasherDefault::<Quick>::default().build_hasher();
            key(&mut quick);
            quick.finish()
        };
        // Consecutive sites, and addresses one page apart.
        for shift in [0, 6, 12, 20] {
            let mut slots = vec![0; 1 << 10];
            for n in 0..1_u64 << 10 {
                slots[(hash(&|h| (3_u32, n << shift).hash(h)) & 1023) as usize] += 1;
            }
            assert!(
                slots.iter().max().is_some_and(|most| *most <= 12),
                "shift {shift}: {:?}",
                slots.iter().max()
            );
        }
    }
}
