//! Random histories of one file, checked against a simple model: for every byte, the values that it may have
//! after a crash.
//!
//! The model may be less strict than the disk: it allows every value since the byte was last durable. But a
//! byte with one possible value must have that value after every crash.
#![expect(clippy::unwrap_used, reason = "in a test, an unexpected error is a failure")]

use crate::common::{create, path};

use azekura_io::{FailKind, FaultFs, File};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Largest length of the file. Bytes beyond the end count as 0, and the length is modeled separately.
const LEN: usize = 6 * 512;

/// The possible contents after a crash. The last value of each list is the current one.
struct Model {
    bytes: Vec<Vec<u8>>,
    lens: Vec<usize>,
}

impl Model {
    fn new() -> Self {
        Self { bytes: vec![vec![0]; LEN], lens: vec![0] }
    }

    fn len(&self) -> usize {
        *self.lens.last().unwrap()
    }

    fn now(&self) -> Vec<u8> {
        self.bytes[..self.len()].iter().map(|values| *values.last().unwrap()).collect()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        for (values, &byte) in self.bytes[at..].iter_mut().zip(bytes) {
            values.push(byte);
        }
        if !bytes.is_empty() {
            self.lens.push(self.len().max(at + bytes.len()));
        }
    }

    fn set_len(&mut self, len: usize) {
        self.bytes[len..].iter_mut().for_each(|values| values.push(0));
        self.lens.push(len);
    }

    /// Records that the current bytes of a range are durable.
    fn make_durable(&mut self, range: std::ops::Range<usize>) {
        for values in &mut self.bytes[range] {
            values.drain(..values.len() - 1);
        }
    }

    fn sync(&mut self) {
        self.make_durable(0..LEN);
        self.lens.drain(..self.lens.len() - 1);
    }

    #[track_caller]
    fn check(&self, seen: &[u8], context: &str) {
        // A torn write may end the file at any of its sectors, so the length is exact only if there is one
        // possible length.
        let (least, most) = (self.lens.iter().min().unwrap(), self.lens.iter().max().unwrap());
        assert!(
            (*least..=*most).contains(&seen.len()),
            "{context}: length {} of {:?}",
            seen.len(),
            self.lens
        );
        for (at, values) in self.bytes.iter().enumerate() {
            // If an extension of the file is lost, the bytes beyond the end read as 0.
            let byte = seen.get(at).copied().unwrap_or(0);
            let may_be_zero = self.lens.len() > 1;
            let allowed = values.contains(&byte) || byte == 0 && may_be_zero && at >= *least;
            assert!(allowed, "{context}: byte {at} is {byte}, may be {values:?}");
        }
    }
}

/// Returns a random range within the file, often at sector boundaries, often small.
fn range(rng: &mut StdRng) -> (usize, usize) {
    let at = if rng.random() { rng.random_range(0..6) * 512 } else { rng.random_range(0..LEN) };
    let len = match rng.random_range(0..3) {
        0 => rng.random_range(0..40),
        1 => 512 * rng.random_range(1..4usize),
        _ => rng.random_range(0..LEN),
    };
    (at, len.min(LEN - at))
}

fn step(rng: &mut StdRng, byte: u8, fs: &FaultFs, file: &dyn File, model: &mut Model) {
    let (at, len) = range(rng);
    let bytes = vec![byte; len];
    match rng.random_range(0..10) {
        0..4 => {
            file.write_at(at as u64, &bytes).unwrap();
            model.write(at, &bytes);
        }
        4..6 => {
            file.write_at_sync(at as u64, &bytes).unwrap();
            model.write(at, &bytes);
            model.make_durable(at..at + len);
            // The length that the write needs is durable too.
            if len > 0 {
                model.lens.iter_mut().for_each(|l| *l = (*l).max(at + len));
            }
        }
        6 => {
            file.write_zeroes(at as u64, len as u64).unwrap();
            model.write(at, &vec![0; len]);
        }
        7 => {
            file.set_len(at as u64).unwrap();
            model.set_len(at);
        }
        8 => {
            file.sync().unwrap();
            model.sync();
            assert_eq!(fs.durable_contents(path("f")), fs.contents(path("f")));
        }
        _ if model.len() > 0 => {
            let last = model.len() - 1;
            fs.flip_bit(path("f"), last as u64, 0).unwrap();
            let byte = model.now()[last] ^ 1;
            model.write(last, &[byte]);
            model.make_durable(last..last + 1);
            model.lens.iter_mut().for_each(|l| *l = (*l).max(last + 1));
        }
        _ => assert!(fs.flip_bit(path("f"), 0, 0).is_err()),
    }
}

#[test]
fn random_histories_crash_into_what_the_model_allows() {
    for seed in 0..300 {
        let mut rng = StdRng::seed_from_u64(seed);
        let fs = FaultFs::new();
        let file = create(&fs, "f");
        let mut model = Model::new();
        for round in 0..30 {
            step(&mut rng, round + 1, &fs, &*file, &mut model);
            let context = format!("history {seed}, round {round}");
            assert_eq!(fs.contents(path("f")).unwrap(), model.now(), "{context}");
            let all = fs.crash_keeping_all();
            assert_eq!(all.contents(path("f")), fs.contents(path("f")), "{context}");
            assert_eq!(
                fs.crash_losing_all().contents(path("f")),
                fs.durable_contents(path("f")),
                "{context}"
            );
            for crash in 0..8 {
                let seen = fs.crash(crash).contents(path("f")).unwrap();
                model.check(&seen, &format!("{context}, crash {crash}"));
                assert_eq!(fs.kill().crash(crash).contents(path("f")).unwrap(), seen, "{context}");
            }
        }
        file.sync().unwrap();
        let bytes = fs.contents(path("f"));
        assert!((0..8).all(|crash| fs.crash(crash).contents(path("f")) == bytes), "history {seed}");
    }
}

/// W10 in random histories: reads always return the last write, and a sync after a failed one makes only
/// later writes durable.
#[test]
fn w10_random_histories_with_failing_syncs_keep_what_was_synced_and_read_what_was_written() {
    for seed in 0..200 {
        let mut rng = StdRng::seed_from_u64(seed);
        let fs = FaultFs::new();
        let file = create(&fs, "f");
        file.write_at_sync(0, &[0; LEN]).unwrap();
        let (mut now, mut dirty, mut durable) = (vec![0; LEN], vec![false; LEN], vec![Some(0); LEN]);
        for round in 1..40 {
            let (at, len) = range(&mut rng);
            let range = at..at + len;
            file.write_at(at as u64, &vec![round; len]).unwrap();
            now[range.clone()].fill(round);
            dirty[range.clone()].fill(true);
            durable[range].fill(None);
            match rng.random_range(0..4) {
                0 => {
                    fs.fail_at(1, FailKind::Io);
                    file.sync().unwrap_err();
                    dirty.fill(false); // the cache counts it as clean
                }
                1 => {
                    file.sync().unwrap();
                    for i in (0..LEN).filter(|&i| dirty[i]) {
                        durable[i] = Some(now[i]);
                    }
                    dirty.fill(false);
                }
                _ => {}
            }
            assert_eq!(fs.contents(path("f")).unwrap(), now, "history {seed}");
            for crash in 0..8 {
                let seen = fs.crash(crash).contents(path("f")).unwrap();
                for i in 0..LEN {
                    assert!(
                        durable[i].is_none_or(|byte| byte == seen[i]),
                        "history {seed}, crash {crash}, byte {i}"
                    );
                }
            }
        }
    }
}
