//! Seeded mutations of valid inputs, for runs of the fuzz targets under plain `cargo test`. Included by path,
//! so that no crate depends on this file.

/// A SplitMix64 generator; its only state is the seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// Mutates one to eight places of `bytes`: flips bits, writes edge values, and copies, removes or appends
/// bytes.
pub(crate) fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(8) {
        let at = random.below(bytes.len() + 1);
        let rest = bytes.len() - at;
        match random.below(8) {
            0 | 1 if rest > 0 => bytes[at] ^= 1 << random.below(8),
            2 if rest > 0 => bytes[at] = random.next() as u8,
            3 if rest > 0 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            4 if rest > 0 => {
                let len = (1 + random.below(8)).min(rest);
                let number = [0, 1, u64::MAX, 1 << 63, 1 << 31, 0xffff][random.below(6)].to_le_bytes();
                bytes[at..at + len].copy_from_slice(&number[..len]);
            }
            5 if rest > 0 => {
                let len = (1 + random.below(32)).min(rest);
                let piece = bytes[at..at + len].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, piece);
            }
            6 if rest > 0 => {
                let len = (1 + random.below(32)).min(rest);
                bytes.drain(at..at + len);
            }
            _ => bytes.extend((0..random.below(24)).map(|_| random.next() as u8)),
        }
    }
}

/// Runs `entry` on each of `seeds`, and on `runs` mutated inputs. A failure is reported with the mutator's
/// seed and the input.
pub(crate) fn run_mutated(runs: u64, seeds: &[Vec<u8>], entry: fn(&[u8])) {
    seeds.iter().for_each(|seed| entry(seed));
    for seed in 0..runs {
        let random = &mut Random::new(seed);
        let mut input = seeds[random.below(seeds.len())].clone();
        mutate(random, &mut input);
        let outcome = std::panic::catch_unwind(|| entry(&input));
        assert!(outcome.is_ok(), "seed {seed} of the mutator; input {input:02x?}");
    }
}
