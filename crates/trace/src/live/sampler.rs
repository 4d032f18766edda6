//! Sampling of lock holds: selects the holds that are recorded, and gives each the number of holds that it
//! represents.
//!
//! | holds of one thread | or of all threads | one recorded of |
//! |---|---|---|
//! | the first 256 | the first 2,048 | 4 |
//! | up to 4,096 | up to 32,768 | 16 |
//! | up to 16,384 | up to 131,072 | 64 |
//! | further | further | the configured interval (256) |
//!
//! The lower of the two rows applies, and never more than the configured interval. So a short recording has
//! enough holds to estimate the use of a lock, and a long recording costs no more. Within a row every hold is
//! selected with the same probability, independently of any period of the program. A recorded hold carries
//! the logarithm of its weight, so weighted sums are unbiased.

use super::sample_counts::SampleCounts;
use crate::event::SAMPLED;
use std::ops::Deref;
use std::sync::Arc;

/// Rows of the table: the number of a thread's holds in the row, and the logarithm of the sampling interval.
/// The last row has no end.
const ROWS: [(u32, u32); 4] = [(256, 2), (4_096 - 256, 4), (16_384 - 4_096, 6), (u32::MAX, MOST_LOG)];
/// Number of holds of all threads at which a row begins.
const OF_ALL: [u32; 4] = [0, 8 * 256, 8 * 4_096, 8 * 16_384];

/// Logarithm of the largest weight of a recorded hold, which has four bits in the event's flags.
pub(super) const MOST_LOG: u32 = 15;

/// The sampler of one thread's holds.
#[derive(Debug)]
pub struct Sampler<D: Deref<Target = SampleCounts> = Arc<SampleCounts>> {
    /// Number of holds up to and including the next sampled one.
    until: u32,
    /// Logarithm of the weight of that hold.
    log: u32,
    row: usize,
    /// Number of holds of the row after that one.
    left: u32,
    most_log: u32,
    random: u64,
    of_all: D,
}

impl<D: Deref<Target = SampleCounts>> Sampler<D> {
    /// Returns a sampler that in the long run samples one of `every` (a power of two) holds.
    pub fn new(every: u32, seed: u32, of_all: D) -> Self {
        let most_log = every.max(1).ilog2().min(MOST_LOG);
        let random = mixed(seed);
        let mut sampler = Self { until: 0, log: 0, row: 0, left: ROWS[0].0, most_log, random, of_all };
        sampler.draw();
        sampler
    }

    /// Returns the number of holds up to and including the next sampled one.
    pub fn until(&self) -> u32 {
        self.until
    }

    /// Sets the number of holds up to the next sampled one, because the caller has counted the others.
    pub fn wind_to(&mut self, left: u32) {
        self.until = left.clamp(1, self.until);
    }

    /// Returns the flags of the thread's next hold; 0 if it is not sampled.
    #[inline]
    pub fn draw_next(&mut self) -> u8 {
        self.until -= 1;
        if self.until > 0 {
            return 0;
        }
        let flags = SAMPLED | (self.log << 4) as u8;
        self.of_all.holds.add(1 << self.log, OF_ALL[ROWS.len() - 1]);
        self.keep_up();
        self.draw();
        flags
    }

    /// Advances to the row that the holds of all threads determine. The row applies to later draws only, so
    /// no hold's probability depends on the result of a later draw.
    fn keep_up(&mut self) {
        let holds = self.of_all.holds.get();
        let row = OF_ALL.partition_point(|&begin| begin <= holds) - 1;
        if row > self.row {
            (self.row, self.left) = (row, ROWS[row].0);
        }
    }

    fn draw(&mut self) {
        let mut skipped = 0_u32;
        loop {
            let log = ROWS[self.row].1.min(self.most_log);
            let distance = self.distance(log);
            if distance <= self.left {
                self.left -= distance;
                (self.until, self.log) = (skipped.saturating_add(distance), log);
                return;
            }
            // Independent draws: a sample beyond the row's end is drawn again in the next row.
            skipped = skipped.saturating_add(self.left);
            self.row = (self.row + 1).min(ROWS.len() - 1);
            self.left = ROWS[self.row].0;
        }
    }

    /// Returns the distance to the next sampled hold: geometrically distributed, with the mean `1 << log`.
    fn distance(&mut self, log: u32) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if log == 0 {
            return 1;
        }
        /// Steps of the uniform number: 2^53, the resolution of a float.
        const STEPS: f64 = (1_u64 << 53) as f64;
        let uniform = ((self.random >> 11) as f64 + 0.5) / STEPS;
        let missed = 1.0 - 1.0 / f64::from(1_u32 << log);
        1 + (uniform.ln() / missed.ln()) as u32
    }
}

/// Returns a well-mixed number that is not zero (the finalizer of SplitMix64), because neighboring threads
/// must not draw alike.
pub(super) fn mixed(seed: u32) -> u64 {
    let mut z = (u64::from(seed) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each hold is sampled with its probability, including the first one of a thread, because threads are
    /// often short-lived.
    #[test]
    fn each_hold_is_drawn_as_often_as_it_should_and_stands_for_as_many() {
        const THREADS: u32 = 20_000;
        // Around the end of the first row, and in the third.
        let looked_at = [0, 1, 100, 254, 255, 256, 257, 300, 4_200];
        let mut drawn = [(0_u32, 0_u32); 9];
        for seed in 0..THREADS {
            let mut sampler = Sampler::new(64, seed, Arc::default());
            for hold in 0..=4_200 {
                let flags = sampler.draw_next();
                if let Some(i) = looked_at.iter().position(|l| *l == hold).filter(|_| flags != 0) {
                    drawn[i] = (drawn[i].0 + 1, drawn[i].1 + (1 << (flags >> 4)));
                }
            }
        }
        for (hold, (count, stands_for)) in looked_at.into_iter().zip(drawn) {
            let every = if hold < 256 {
                4
            } else if hold < 4_096 {
                16
            } else {
                64
            };
            assert_eq!(stands_for, count * every);
            // 5000, 1250 and 312 are expected; five standard deviations at most.
            let expected = f64::from(THREADS / every);
            assert!((f64::from(count) - expected).abs() < 5.0 * expected.sqrt(), "hold {hold}: {count}");
        }
    }

    #[test]
    fn with_many_threads_each_draws_fewer_and_they_stand_for_all() {
        let of_all = Arc::<SampleCounts>::default();
        let (mut drawn, mut stand_for) = (0, 0);
        for seed in 0..64 {
            let mut sampler = Sampler::new(64, seed, Arc::clone(&of_all));
            for _ in 0..4_096 {
                let flags = sampler.draw_next();
                if flags != 0 {
                    (drawn, stand_for) = (drawn + 1, stand_for + (1_u32 << (flags >> 4)));
                }
            }
        }
        // Separately, each thread would sample 304.
        assert!((5_000..8_000).contains(&drawn), "{drawn}");
        assert!(stand_for.abs_diff(64 * 4_096) < 20_000, "{stand_for}");
    }

    #[test]
    fn no_more_are_drawn_than_asked_for_and_all_if_all_are() {
        let count = |every| {
            let mut sampler = Sampler::new(every, 7, Arc::default());
            (0..200).filter(|_| sampler.draw_next() != 0).count()
        };
        assert_eq!(count(1), 200);
        assert!((60..140).contains(&count(2)));
    }
}
