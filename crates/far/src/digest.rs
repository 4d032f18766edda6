//! What a page's bytes are known by: XXH3 of 128 bits.
//!
//! A client keeps the digest of every page that is away, in its own memory. A page that comes back with another digest is not
//! believed, whoever sent it: so rubbish, a stale page and another client's page are all noticed, which a checksum beside the page could not
//! do. The same digest, taken again when a page leaves, tells whether it was changed (F5); two contents of one page
//! share it once in 2^128.

use twox_hash::XxHash3_128;

/// Digest of a page's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Digest(pub u128);

impl Digest {
    /// Of these bytes. Some 10 GB/s.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(bytes))
    }
}

/// Whether all bytes are zero; ends at the first word that is not.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: every bit pattern is a u128.
    let (head, words, tail) = unsafe { bytes.align_to::<u128>() };
    head.iter().chain(tail).all(|&b| b == 0)
        && words.chunks(16).all(|chunk| chunk.iter().fold(0, |all, word| all | word) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_bit_anywhere_is_seen() {
        let mut page = vec![0_u8; 4096];
        assert!(is_zero(&page));
        let zero = Digest::of(&page);
        for bit in (0..4096 * 8).step_by(37) {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_zero(&page) && Digest::of(&page) != zero, "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(is_zero(&page[1..4000]) && Digest::of(&page) == zero);
    }
}
