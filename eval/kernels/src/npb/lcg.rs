//! The random numbers of the NAS Parallel Benchmarks: `x ← 5^13 x mod 2^46`, divided by 2^46.

const MODULUS_MASK: u64 = (1 << 46) - 1;
const MULTIPLIER: u64 = 1_220_703_125; // 5^13
const TWO_TO_MINUS_46: f64 = 1.0 / (1_u64 << 46) as f64;

/// A stream of random numbers that begins with the seed of the benchmarks.
#[derive(Clone, Debug)]
pub struct Lcg(u64);

impl Default for Lcg {
    fn default() -> Self {
        Self(314_159_265)
    }
}

impl Lcg {
    /// Returns the next number, above 0 and below 1.
    pub fn next_f64(&mut self) -> f64 {
        // 2^46 divides 2^64, so the kept bits of the wrapped product are correct.
        self.0 = self.0.wrapping_mul(MULTIPLIER) & MODULUS_MASK;
        self.0 as f64 * TWO_TO_MINUS_46
    }
}
