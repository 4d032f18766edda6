//! Eight-byte keys: item numbers encoded so that byte order is the item order or a scattered order.

/// A key of eight bytes; engines compare keys as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 8]);

impl Key {
    /// The smallest key, at which a scan of the whole table begins.
    pub const FIRST: Key = Key([0; 8]);

    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The mapping of item numbers to keys. Both mappings are one-to-one, so different items have different keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// Big-endian item numbers: keys are in item order, and new items are at the end of the table.
    Ordered,
    /// Scattered item numbers (YCSB's `insertorder=hashed`): new items are at random positions in the table.
    Hashed,
}

impl KeyOrder {
    /// Returns the key of item number `item`.
    #[must_use]
    pub const fn key(self, item: u64) -> Key {
        match self {
            Self::Ordered => Key(item.to_be_bytes()),
            Self::Hashed => Key(scatter(item).to_be_bytes()),
        }
    }
}

/// Applies the last step of the SplitMix64 generator: a bijection of 64-bit numbers without visible order.
#[must_use]
pub const fn scatter(item: u64) -> u64 {
    let mut x = item.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ordered_keys_compare_as_their_items() {
        let items = [0, 1, 255, 256, 65_535, u64::from(u32::MAX), u64::MAX];
        let keys: Vec<Key> = items.iter().map(|&i| KeyOrder::Ordered.key(i)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b));
        assert_eq!(keys[0], Key::FIRST);
    }

    #[test]
    fn hashed_keys_are_distinct_and_in_no_order() {
        let keys: Vec<Key> = (0..10_000).map(|i| KeyOrder::Hashed.key(i)).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        let ascents = keys.windows(2).filter(|w| w[0] < w[1]).count();
        assert!((4_500..5_500).contains(&ascents), "{ascents} ascents of 9999: half would be no order");
    }
}
