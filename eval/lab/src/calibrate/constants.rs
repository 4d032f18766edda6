//! Costs of this machine, by small measurements.
//!
//! Each is done in many short stretches, and the fastest fifth counts: other users of the machine can only
//! make a stretch slower.

use azekura_base::page::PageWord;
use azekura_io::{Fs, OpenOptions, OsFs};
use std::hint::{black_box, spin_loop};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Instant;

/// A line's worth of words; only the first is used.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Line([PageWord; 8]);

impl Line {
    pub(super) const fn word(&self) -> &PageWord {
        &self.0[0]
    }
}

fn lines(count: usize) -> Box<[Line]> {
    (0..count).map(|_| Line::default()).collect()
}

/// Nanoseconds of one of `times` things that `f` does: the fastest fifth of `stretches`.
pub(super) fn each(stretches: usize, times: usize, f: impl FnMut()) -> f64 {
    sorted(stretches, times, f)[stretches / 5]
}

/// The same of each stretch, the fastest first.
pub(super) fn sorted(stretches: usize, times: usize, mut f: impl FnMut()) -> Vec<f64> {
    let mut all: Vec<f64> = (0..stretches)
        .map(|_| {
            let began = Instant::now();
            f();
            began.elapsed().as_secs_f64() * 1e9 / times as f64
        })
        .collect();
    all.sort_by(f64::total_cmp);
    all
}

pub(super) const STRETCHES: usize = 51;

/// A load of a line in the own cache, where many can be under way at once.
pub(super) fn load_hit() -> f64 {
    let lines = lines(64);
    each(STRETCHES, 64 * 100, || {
        for _ in 0..100 {
            black_box(lines.iter().map(|line| line.word().load(Relaxed)).fold(0, u64::wrapping_add));
        }
    })
}

/// A store to a line in the own cache.
pub(super) fn store() -> f64 {
    let lines = lines(64);
    each(STRETCHES, 64 * 100, || {
        (0..100).for_each(|value| lines.iter().for_each(|line| line.word().store(value, Relaxed)));
    })
}

/// An atomic instruction on a line in the own cache.
pub(super) fn swap() -> f64 {
    let line = Line::default();
    each(STRETCHES, 10_000, || {
        for _ in 0..10_000 {
            line.word().fetch_add(1, AcqRel);
        }
    })
}

/// A turn of a spin.
pub(super) fn pause() -> f64 {
    each(STRETCHES, 1_000, || (0..1_000).for_each(|_| spin_loop()))
}

/// In and out of the kernel.
pub(super) fn system_call() -> f64 {
    each(STRETCHES, 1_000, || {
        for _ in 0..1_000 {
            black_box(rustix::process::getppid());
        }
    })
}

/// A byte of a page that is copied.
pub(super) fn copy_byte() -> f64 {
    let (from, mut to) = (vec![1_u8; 8192], vec![0_u8; 8192]);
    each(STRETCHES, 8192 * 50, || {
        for _ in 0..50 {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
        }
    })
}

/// One circle through so many lines, in an order that no prefetcher guesses (Sattolo's shuffle): each says
/// where the next is.
pub(super) fn circle(count: usize) -> Box<[Line]> {
    let lines = lines(count);
    let mut random = azekura_sim::Random::new(1);
    let mut order: Vec<u64> = (0..lines.len() as u64).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64) as usize);
    }
    for (&at, &next) in order.iter().zip(order.iter().cycle().skip(1)) {
        lines[at as usize].word().store(next, Relaxed);
    }
    lines
}

/// Time of a load from a level of memory with this number of bytes.
pub(super) fn chase(bytes: usize) -> f64 {
    let lines = circle(bytes / size_of::<Line>());
    let mut at = 0;
    let mut hops = |count| (0..count).for_each(|_| at = lines[at as usize].word().load(Relaxed));
    hops(lines.len());
    each(STRETCHES, 20_000, || hops(20_000))
}

/// Measures the device under a directory, in nanoseconds: a write of 4 KiB, the additional time of a flush
/// after it, a read.
pub(super) fn device(dir: &Path) -> io::Result<(f64, f64, f64)> {
    const WRITES: usize = 25;
    let path = dir.join(format!("azekura-calibrate-{}", std::process::id()));
    let fs = OsFs::new();
    let file = fs.open(&path, OpenOptions::new().create(true).direct(true))?;
    let mut page = azekura_base::PageBuf::zeroed(4096);
    let mut failed = Ok(());
    let mut timed = |f: &mut dyn FnMut() -> io::Result<()>| {
        let mut all: Vec<f64> = (0..WRITES)
            .map(|_| {
                let began = Instant::now();
                if let (Err(error), Ok(())) = (f(), &failed) {
                    failed = Err(error);
                }
                began.elapsed().as_secs_f64() * 1e9
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[WRITES / 2]
    };
    let synced = timed(&mut || file.write_at_sync(0, &page));
    let written = timed(&mut || file.write_at(0, &page));
    let read = timed(&mut || file.read_at(0, &mut page).map(drop));
    drop(file);
    fs.remove_file(&path)?;
    failed.map(|()| (written, (synced - written).max(0.0), read))
}
