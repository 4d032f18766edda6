//! How many streams a device deserves: its *sync parallelism*, measured.
//!
//! A commit waits for all streams, so several streams pay only if a synchronous write is not slowed down by
//! another one at the same time. A device with a power-safe cache has such parallelism (the paper's ioDrive,
//! section 2.2, Figure 3); one that must be told to empty its cache has little, and one stream that gathers
//! all buffers wins.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use azekura_base::PageBuf;
use azekura_base::sync::thread;
use azekura_base::sync::time::Instant;
use azekura_io::{File, Fs, OpenOptions};

use crate::chunk::UNIT_BYTES;
use crate::options::MAX_STREAMS;

/// Time spent per number of writers.
const ROUND: Duration = Duration::from_millis(14);
/// Each writer's file.
const FILE_BYTES: u64 = 64 * UNIT_BYTES as u64;
/// A write may take this much longer beside twice as many others, or they slow each other down. Little: a
/// commit waits longer with more streams though a write takes no longer (`adapt`), so only where it takes
/// less for half the bytes can they pay.
const UNDISTURBED: f64 = 1.05;
/// Fewer writes than this in a round say nothing: the device or the machine is too busy with other things.
const FEWEST_WRITES: usize = 16;

/// The measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Median microseconds of a synchronous 4-KiB write, by number of concurrent writers. The median, because
    /// a rate would measure how busy the machine is with other things. Not finite if a round was too short to
    /// tell.
    pub write_us: Vec<(usize, f64)>,
    /// The number of streams that follows.
    pub streams: usize,
}

/// Measures in scratch files in `dir`, and removes them.
///
/// Rounds of 14 ms with 1, 2, 4, … writers, as long as doubling pays and at most `max_streams` are asked for.
/// Blocks; on most devices there are two rounds.
///
/// # Errors
///
/// The file system's own.
pub fn measure(fs: &dyn Fs, dir: &Path, max_streams: usize, direct: bool) -> io::Result<Measured> {
    let max_streams = max_streams.clamp(1, MAX_STREAMS);
    let name = |writer: usize| dir.join(format!("probe-{writer}"));
    let mut files: Vec<Arc<dyn File>> = Vec::new();
    let mut measured = Measured { write_us: Vec::new(), streams: 1 };
    let mut writers = 1;
    let outcome = loop {
        if let Err(error) = open_scratch(fs, &mut files, writers, &name, direct) {
            break Err(error);
        }
        match median_write_us(&files) {
            Ok(micros) => measured.write_us.push((writers, micros)),
            Err(error) => break Err(error),
        }
        measured.streams = choose(&measured.write_us);
        if measured.streams < writers || 2 * writers > max_streams {
            break Ok(());
        }
        writers *= 2;
    };
    for writer in 0..files.len() {
        // A scratch file that stays is overwritten by the next measurement.
        let _ = fs.remove_file(&name(writer));
    }
    outcome.map(|()| measured)
}

fn open_scratch(
    fs: &dyn Fs,
    files: &mut Vec<Arc<dyn File>>,
    writers: usize,
    name: &dyn Fn(usize) -> std::path::PathBuf,
    direct: bool,
) -> io::Result<()> {
    while files.len() < writers {
        let file = fs.open(&name(files.len()), OpenOptions::new().create(true).direct(direct))?;
        files.push(Arc::clone(&file));
        file.write_zeroes(0, FILE_BYTES)?;
        file.sync()?;
    }
    Ok(())
}

fn median_write_us(files: &[Arc<dyn File>]) -> io::Result<f64> {
    let start = Instant::now();
    let others: Vec<_> = files[1..]
        .iter()
        .map(|file| {
            let file = Arc::clone(file);
            thread::spawn(move || write_times(&*file, start))
        })
        .collect();
    let mut times = write_times(&*files[0], start);
    for thread in others {
        let others = thread.join().unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")));
        times = times.and_then(|mut all| others.map(|others| all.extend(others)).map(|()| all));
    }
    let mut times = times?;
    if times.len() < FEWEST_WRITES * files.len() {
        return Ok(f64::INFINITY);
    }
    let middle = times.len() / 2;
    Ok(times.select_nth_unstable(middle).1.as_secs_f64() * 1e6)
}

/// Writes block after block until the round is over; how long each took.
fn write_times(file: &dyn File, start: Instant) -> io::Result<Vec<Duration>> {
    let block = PageBuf::zeroed(UNIT_BYTES);
    let mut times = Vec::new();
    let mut before = start.elapsed();
    while before < ROUND {
        file.write_at_sync(times.len() as u64 * UNIT_BYTES as u64 % FILE_BYTES, &block)?;
        let after = start.elapsed();
        times.push(after - before);
        before = after;
    }
    Ok(times)
}

/// The number of writers up to which each doubling paid.
fn choose(write_us: &[(usize, f64)]) -> usize {
    let pays =
        |pair: &&[(usize, f64)]| pair.iter().all(|p| p.1.is_finite()) && pair[1].1 <= UNDISTURBED * pair[0].1;
    let paid = write_us.windows(2).take_while(pays).count();
    write_us.get(paid).map_or(1, |&(writers, _)| writers)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_device_whose_flushes_slow_each_other_gets_one_stream() {
        assert_eq!(choose(&[(1, 111.0), (2, 151.0)]), 1);
        assert_eq!(choose(&[(1, 111.0)]), 1);
    }

    #[test]
    fn a_device_with_parallel_flushes_gets_as_many_as_pay() {
        assert_eq!(choose(&[(1, 30.0), (2, 31.0), (4, 30.0), (8, 60.0)]), 4);
        assert_eq!(choose(&[(1, 30.0), (2, 30.0)]), 2);
    }

    #[test]
    fn a_round_that_says_nothing_gets_no_stream() {
        assert_eq!(choose(&[(1, f64::INFINITY), (2, f64::INFINITY)]), 1);
        assert_eq!(choose(&[(1, f64::INFINITY), (2, 40.0)]), 1);
        assert_eq!(choose(&[(1, 30.0), (2, f64::INFINITY)]), 1);
    }
}
