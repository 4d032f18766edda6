//! `Choice`: a stream of decisions that the seed determines, on every machine and in every version.

/// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014, figure 1).
///
/// Not taken from a crate, because the seed of an old bug report must always tear the same sectors.
#[derive(Clone, Debug)]
pub(crate) struct Choice(u64);

impl Choice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`; 0 if `n` is 0.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        ((self.bits() as u128 * n as u128) >> 64) as u64
    }

    pub(crate) const fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_is_fixed() {
        // The published test vector of SplitMix64 for seed 1234567.
        let mut choice = Choice::new(1_234_567);
        assert_eq!(choice.bits(), 6_457_827_717_110_365_317);
        assert_eq!(choice.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut choice = Choice::new(1);
        let mut seen = [false; 3];
        (0..100).for_each(|_| seen[choice.below(3) as usize] = true);
        assert_eq!(seen, [true; 3]);
        assert_eq!(choice.below(0), 0);
    }
}
