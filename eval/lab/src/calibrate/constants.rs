//! Costs of instructions, memory, calls and the device of this machine, from small measurements.
//!
//! Each measurement is divided into many short intervals, and the result is the fastest fifth (the 20th
//! percentile): other processes can only make an interval slower.

use azekura_base::page::PageWord;
use azekura_io::{Fs, OpenOptions, OsFs};
use std::hint::{black_box, spin_loop};
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::time::Instant;

/// A cache line of words; only the first word is used.
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

/// Returns the nanoseconds of one operation if `f` does `times` of them: the 20th percentile of `stretches`
/// calls.
pub(super) fn each(stretches: usize, times: usize, f: impl FnMut()) -> f64 {
    sorted(stretches, times, f)[stretches / 5]
}

/// Returns the nanoseconds of one operation in each of `stretches` calls of `f`, in ascending order.
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

/// Measures a load from a line in the core's own cache; many loads can be in flight at once.
pub(super) fn load_hit() -> f64 {
    let lines = lines(64);
    each(STRETCHES, 64 * 100, || {
        for _ in 0..100 {
            black_box(lines.iter().map(|line| line.word().load(Relaxed)).fold(0, u64::wrapping_add));
        }
    })
}

/// Measures a store to a line in the core's own cache.
pub(super) fn store() -> f64 {
    let lines = lines(64);
    each(STRETCHES, 64 * 100, || {
        (0..100).for_each(|value| lines.iter().for_each(|line| line.word().store(value, Relaxed)));
    })
}

/// Measures an atomic instruction on a line in the core's own cache.
pub(super) fn swap() -> f64 {
    let line = Line::default();
    each(STRETCHES, 10_000, || {
        for _ in 0..10_000 {
            line.word().fetch_add(1, AcqRel);
        }
    })
}

/// Measures one iteration of a spin loop.
pub(super) fn pause() -> f64 {
    each(STRETCHES, 1_000, || (0..1_000).for_each(|_| spin_loop()))
}

/// Measures a system call that does almost nothing.
pub(super) fn system_call() -> f64 {
    each(STRETCHES, 1_000, || {
        for _ in 0..1_000 {
            black_box(rustix::process::getppid());
        }
    })
}

/// Measures copying one byte, as part of a page.
pub(super) fn copy_byte() -> f64 {
    let (from, mut to) = (vec![1_u8; 8192], vec![0_u8; 8192]);
    each(STRETCHES, 8192 * 50, || {
        for _ in 0..50 {
            to.copy_from_slice(black_box(&from));
            black_box(&mut to);
        }
    })
}

/// Returns `count` lines that form one cycle: each contains the index of the next. The order is random
/// (Sattolo's shuffle), so that no prefetcher predicts it.
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

/// Measures a load from the level of the memory hierarchy that holds `bytes` bytes.
pub(super) fn chase(bytes: usize) -> f64 {
    let lines = circle(bytes / size_of::<Line>());
    let mut at = 0;
    let mut hops = |count| (0..count).for_each(|_| at = lines[at as usize].word().load(Relaxed));
    hops(lines.len());
    each(STRETCHES, 20_000, || hops(20_000))
}

/// Measures the device under a directory, in nanoseconds: a write of 4 KiB, the additional time of a flush
/// after that write, and a read.
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
